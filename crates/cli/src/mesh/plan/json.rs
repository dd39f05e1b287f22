//! The JSON output of `evener mesh plan`.

use std::collections::BTreeMap;

use anyhow::Result;
use evener_mesh::{
    placement::{RateSource, ReplicaPlan, SearchMethod, StagePlan},
    topology::{Axis, Member, MeshStatistics},
};
use serde::Serialize;

use super::Plan;

#[derive(Serialize)]
struct PlanObject<'a> {
    about: &'a str,
    axes: &'a [Axis],
    ranks: Vec<RankObject<'a>>,
    groups: Vec<GroupObject>,
    statistics: MeshStatistics,
    prediction: Option<PredictionObject<'a>>,
}

#[derive(Serialize)]
struct RankObject<'a> {
    rank: usize,
    coordinates: BTreeMap<&'a str, usize>,
    #[serde(flatten)]
    member: &'a Member,
}

#[derive(Serialize)]
struct GroupObject {
    name: String,
    axis: Option<String>,
    ranks: Vec<usize>,
}

#[derive(Serialize)]
struct PredictionObject<'a> {
    stages: &'a [StagePlan],
    replicas: &'a [ReplicaPlan],
    gradients_s: f64,
    step_s: f64,
    ideal_s: f64,
    efficiency: f64,
    balance: f64,
    rated_by: RateSource,
    search: SearchMethod,
    /// Whether times are in seconds. If not, only their ratios have a meaning.
    times_are_seconds: bool,
}

/// Returns the object that is printed.
pub(super) fn object(plan: &Plan) -> Result<impl Serialize> {
    let mesh = &plan.mesh;
    let mut ranks = Vec::new();
    for (rank, member) in mesh.members().iter().enumerate() {
        let names = mesh.axes().iter().map(|axis| axis.name.as_str());
        ranks.push(RankObject { rank, coordinates: names.zip(mesh.coordinates(rank)?).collect(), member });
    }
    let mut groups = Vec::new();
    for group in mesh.groups() {
        groups.push(GroupObject {
            name: group.name().to_owned(),
            axis: group.axis()?.map(str::to_owned),
            ranks: group.ranks()?.to_vec(),
        });
    }
    let prediction = plan.proposal.as_ref().map(|proposal| PredictionObject {
        stages: &proposal.stages,
        replicas: &proposal.replicas,
        gradients_s: proposal.gradients_s,
        step_s: proposal.step_s,
        ideal_s: proposal.ideal_s,
        efficiency: proposal.efficiency,
        balance: proposal.balance,
        rated_by: proposal.rated_by,
        search: proposal.search,
        times_are_seconds: plan.has_seconds,
    });
    let (about, axes, statistics) = (plan.about.as_str(), mesh.axes(), mesh.statistics());
    Ok(PlanObject { about, axes, ranks, groups, statistics, prediction })
}
