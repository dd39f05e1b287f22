//! The planner: proposes sizes, ranks and a split, with a prediction.

use serde::Serialize;

use super::{
    error::PlacementError,
    links::Links,
    predict::{DeviceProperties, ReplicaPlan, StagePlan},
    search::{ScoredArrangement, Searcher, best},
    split::why_none_fits,
    workload::{PrefixSums, Workload},
};
use crate::topology::{Axis, LayoutError, Member, Mesh, Parallelism};

/// Number of layouts with the best start that are improved.
const IMPROVED: usize = 4;

/// Proposes which device takes which rank and which layers, by [the cost model](super). It uses every device.
#[derive(Debug, Clone)]
pub struct Planner {
    members: Vec<Member>,
    workload: Workload,
    links: Links,
    tp: Option<usize>,
    pp: Option<usize>,
    dp: Option<usize>,
}

/// What the devices' rates were taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateSource {
    /// Every device's measured rate.
    Rate,
    /// Every device's static score, because not all were measured: then only ratios of times have a meaning.
    Score,
}

/// How an assignment of devices to ranks was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SearchMethod {
    /// All assignments of devices to ranks were tried: by the cost model, none is better.
    Exhaustive,
    /// Too many assignments to try all: good ones were improved by swaps until none helped.
    LocalSearch,
    /// The devices are on ranks in their listed order.
    AsListed,
}

/// A layout and its predicted times, in seconds if layers' costs are in the unit of the devices' rates.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Proposal {
    /// Number of devices that share a layer.
    pub tp: usize,
    /// Number of stages.
    pub pp: usize,
    /// Number of replicas.
    pub dp: usize,
    /// The devices, in the order of their ranks.
    pub members: Vec<Member>,
    /// The stages, in order.
    pub stages: Vec<StagePlan>,
    /// The replicas, in order.
    pub replicas: Vec<ReplicaPlan>,
    /// The time to reduce the gradients.
    pub gradients_s: f64,
    /// The total time of a step.
    pub step_s: f64,
    /// The time of a step if no device were ever idle and no link used.
    pub ideal_s: f64,
    /// The ideal time over the predicted time.
    pub efficiency: f64,
    /// How evenly the devices are busy: the mean over the maximum, without filling the pipeline.
    pub balance: f64,
    /// What the devices' rates were taken from.
    pub rated_by: RateSource,
    /// How the assignment was found.
    pub search: SearchMethod,
}

impl Proposal {
    /// Returns the proposed mesh, with axes `dp`, `pp` and `tp`.
    pub fn mesh(&self) -> Result<Mesh, LayoutError> {
        let &Proposal { tp, pp, dp, .. } = self;
        Mesh::new(&self.members).axes(Parallelism::Mixed { tp, pp, dp })
    }
}

impl Planner {
    /// Creates a planner for these devices and this workload. Sizes that are not set are proposed.
    pub fn new<M: Into<Member>>(members: impl IntoIterator<Item = M>, workload: Workload) -> Self {
        let members = members.into_iter().map(Into::into).collect();
        Planner { members, workload, links: Links::new(), tp: None, pp: None, dp: None }
    }

    /// Sets the links.
    pub fn links(mut self, links: Links) -> Self {
        self.links = links;
        self
    }

    /// Sets the number of devices that share a layer.
    pub fn tp(mut self, tp: impl Into<Option<usize>>) -> Self {
        self.tp = tp.into();
        self
    }

    /// Sets the number of stages.
    pub fn pp(mut self, pp: impl Into<Option<usize>>) -> Self {
        self.pp = pp.into();
        self
    }

    /// Sets the number of replicas.
    pub fn dp(mut self, dp: impl Into<Option<usize>>) -> Self {
        self.dp = dp.into();
        self
    }

    /// Returns the layout with the least predicted time.
    pub fn propose(&self) -> Result<Proposal, PlacementError> {
        self.plan(|searcher, sizes| {
            let exhaustive = sizes.iter().all(|&sizes| searcher.is_exhaustive(sizes));
            let mut candidates: Vec<_> = sizes.iter().filter_map(|&sizes| searcher.begin(sizes)).collect();
            candidates.sort_by(|one, other| one.prediction.step_s.total_cmp(&other.prediction.step_s));
            let improved = candidates.into_iter().enumerate().map(|(index, candidate)| {
                if index < IMPROVED { searcher.improve(candidate) } else { candidate }
            });
            let mut best = best(improved)?;
            // The search of the best sizes may have been exhaustive, and of others not.
            best.search = if exhaustive { SearchMethod::Exhaustive } else { SearchMethod::LocalSearch };
            Some(best)
        })
    }

    /// Returns the layout with the devices on ranks in their listed order; proposes only the sizes that are not set.
    pub fn as_listed(&self) -> Result<Proposal, PlacementError> {
        self.plan(|searcher, sizes| best(sizes.iter().filter_map(|&sizes| searcher.as_listed(sizes))))
    }

    fn plan(
        &self,
        search: impl FnOnce(&Searcher<'_>, &[[usize; 3]]) -> Option<ScoredArrangement>,
    ) -> Result<Proposal, PlacementError> {
        // Fails if the devices cannot form any mesh.
        Mesh::new(&self.members).axes(Parallelism::DataParallel)?;
        self.workload.check()?;
        self.links.check(&self.members)?;
        let (properties, rated_by) = self.properties()?;
        let sums = PrefixSums::of(&self.workload.layers);
        let sizes = self.sizes()?;
        let machines = self
            .members
            .iter()
            .map(|member| self.members.iter().position(|first| first.machine == member.machine).unwrap_or(0));
        let searcher = Searcher::new(&properties, &self.workload, &sums, &machines.collect::<Vec<_>>());
        let Some(candidate) = search(&searcher, &sizes) else {
            return Err(self.no_memory(&sums, &sizes));
        };
        Ok(self.proposal(candidate, rated_by))
    }

    fn proposal(&self, candidate: ScoredArrangement, rated_by: RateSource) -> Proposal {
        let ScoredArrangement { arrangement, prediction, search } = candidate;
        Proposal {
            tp: arrangement.tp,
            pp: arrangement.pp,
            dp: arrangement.dp,
            members: arrangement.order.iter().map(|&device| self.members[device].clone()).collect(),
            stages: prediction.stages,
            replicas: prediction.replicas,
            gradients_s: prediction.gradients_s,
            step_s: prediction.step_s,
            ideal_s: prediction.ideal_s,
            efficiency: prediction.ideal_s / prediction.step_s,
            balance: prediction.balance,
            rated_by,
            search,
        }
    }

    /// Returns all sizes whose product is the number of devices, with the sizes that are set and at least one layer per
    /// stage.
    fn sizes(&self) -> Result<Vec<[usize; 3]>, PlacementError> {
        let (world, layers) = (self.members.len(), self.workload.layers.len());
        let axes = [("dp", self.dp), ("pp", self.pp), ("tp", self.tp)];
        let axes: Vec<Axis> =
            axes.iter().filter_map(|&(name, size)| Some(Axis { name: name.into(), size: size? })).collect();
        if let Some(axis) = axes.iter().find(|axis| axis.size == 0) {
            return Err(LayoutError::ZeroSize { axis: axis.name.clone(), world }.into());
        }
        let fits = |wanted: Option<usize>, size: usize| wanted.is_none_or(|wanted| wanted == size);
        let divides = |size: &usize| world.is_multiple_of(*size);
        let sizes: Vec<[usize; 3]> = (1..=world)
            .filter(divides)
            .flat_map(|tp| {
                (1..=world / tp)
                    .filter(move |pp| (world / tp).is_multiple_of(*pp))
                    .map(move |pp| [tp, pp, world / tp / pp])
            })
            .filter(|&[tp, pp, dp]| fits(self.tp, tp) && fits(self.pp, pp) && fits(self.dp, dp))
            .collect();
        let fewest = sizes.iter().map(|sizes| sizes[1]).min();
        match fewest {
            None => Err(LayoutError::SizeMismatch { axes, world }.into()),
            Some(stages) if stages > layers => Err(PlacementError::TooFewLayers { layers, stages }),
            Some(_) => Ok(sizes.into_iter().filter(|sizes| sizes[1] <= layers).collect()),
        }
    }

    fn properties(&self) -> Result<(DeviceProperties, RateSource), PlacementError> {
        let unmeasured = self.members.iter().filter(|member| member.rate_per_s.is_none());
        let unmeasured: Vec<String> = unmeasured.map(ToString::to_string).collect();
        let rated_by = if unmeasured.is_empty() { RateSource::Rate } else { RateSource::Score };
        if rated_by == RateSource::Score {
            if self.members.iter().any(|member| member.score.is_none()) {
                return Err(PlacementError::NotRated(unmeasured));
            }
            if self.workload.has_traffic() {
                return Err(PlacementError::NotMeasured(unmeasured));
            }
        }
        let (what, rate): (_, fn(&Member) -> Option<f64>) = match rated_by {
            RateSource::Rate => ("its rate", |member| member.rate_per_s),
            RateSource::Score => ("its score", |member| member.score),
        };
        let mut rates = Vec::new();
        for member in &self.members {
            let value = rate(member).unwrap_or(f64::NAN);
            if !value.is_finite() || value <= 0.0 {
                return Err(PlacementError::InvalidNumber { device: member.to_string(), what, value });
            }
            rates.push(value);
        }
        let memory = self.members.iter().map(|member| self.capacity(member)).collect();
        Ok((DeviceProperties { rates, memory, bandwidth: self.bandwidths()? }, rated_by))
    }

    fn capacity(&self, member: &Member) -> Option<u64> {
        let sharing = self.members.iter().filter(|other| other.memory_key() == member.memory_key());
        Some(member.memory_bytes? / sharing.count().max(1) as u64)
    }

    fn bandwidths(&self) -> Result<Vec<Vec<Option<f64>>>, PlacementError> {
        let traffic = self.workload.has_traffic();
        let mut all = vec![vec![None; self.members.len()]; self.members.len()];
        for (index, one) in self.members.iter().enumerate() {
            for (second, other) in self.members.iter().enumerate().skip(index + 1) {
                let bandwidth = self.links.bandwidth(one, other);
                match bandwidth {
                    None if traffic => {
                        return Err(PlacementError::UnknownLink {
                            from: one.to_string(),
                            to: other.to_string(),
                        });
                    }
                    Some(value) if !value.is_finite() || value <= 0.0 => {
                        let device = if one.host_bytes_per_s == bandwidth { one } else { other }.to_string();
                        let what = "its host's bandwidth";
                        return Err(PlacementError::InvalidNumber { device, what, value });
                    }
                    _ => {}
                }
                all[index][second] = bandwidth;
                all[second][index] = bandwidth;
            }
        }
        Ok(all)
    }

    /// Explains why nothing fits, for the layout with the most memory per layer.
    fn no_memory(&self, sums: &PrefixSums, sizes: &[[usize; 3]]) -> PlacementError {
        let [tp, pp, dp] = sizes.iter().copied().max_by_key(|sizes| sizes[0] * sizes[1]).unwrap_or([1; 3]);
        // The maximum for the stages: the largest devices together.
        let mut memory: Vec<Option<u64>> = self.members.iter().map(|member| self.capacity(member)).collect();
        memory.sort_unstable_by_key(|capacity| std::cmp::Reverse(capacity.unwrap_or(u64::MAX)));
        let capacities: Vec<Option<u128>> = memory
            .chunks(tp * dp)
            .map(|devices| Some(u128::from(devices.iter().copied().flatten().min()?) * tp as u128))
            .collect();
        let why = why_none_fits(sums, &self.workload.layers, capacities.into_iter());
        PlacementError::Memory(format!("with tp {tp}, pp {pp} and dp {dp}, {why}"))
    }
}
