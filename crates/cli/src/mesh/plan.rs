//! `evener mesh plan`: which device should be where, and how well would that go?

mod json;
mod parse;
mod text;

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use evener_mesh::{
    placement::{Blueprint, Layer, Planner, Proposal, Workload},
    topology::{Member, Mesh},
};

use crate::{
    EXIT_CODES, Usage,
    options::choose_devices,
    output::{shown, write_json, write_out},
    size::bytes,
};

/// Layers of a model of which nothing is said.
const LAYERS: usize = 32;

/// Which device should be where, and how well would that go?
///
/// Arranges devices by tensor (tp), pipeline (pp) and data (dp) parallelism: alike devices share layers, stages get
/// layers by their devices' measured rates, and the most traffic goes over the fastest links. Prints the ranks, the
/// groups, and how evenly the devices would be busy. Sizes that are not given are proposed.
///
/// Rates are those that `evener devices --measure` has kept. Where one is missing, all are compared by score.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// Devices, links and layers to plan for, a TOML file
    ///
    /// Without devices in it, those of this machine are meant. The folder `meshes` has examples.
    #[arg(value_name = "FILE")]
    blueprint: Option<PathBuf>,

    /// Only these devices of this machine, as for `evener devices` [env: EVENER_DEVICES]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    devices: Option<String>,

    /// Devices that share each layer
    #[arg(long, value_name = "N")]
    tp: Option<usize>,

    /// Stages that follow each other
    #[arg(long, value_name = "N")]
    pp: Option<usize>,

    /// Replicas of the model
    #[arg(long, value_name = "N")]
    dp: Option<usize>,

    /// Any axes instead, innermost last, as dp=2,ep=2,tp=4: ranks and groups alone, without a prediction
    #[arg(long, value_name = "LIST", value_parser = parse::axes, conflicts_with_all = ["tp", "pp", "dp", "as_listed", "layers", "costs", "layer_memory", "micro_batches"])]
    axes: Option<parse::Axes>,

    /// So many alike layers [default: those of the file, or else 32]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,

    /// What each layer costs for a micro-batch, in multiply-adds or whatever the rates count: 8e9,2e9x30,9e9
    #[arg(long, value_name = "LIST", value_parser = parse::costs, conflicts_with = "layers")]
    costs: Option<parse::Costs>,

    /// What each layer needs of memory, over all that share it: 1.5GiB, 800MB
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    layer_memory: Option<u64>,

    /// Micro-batches of a step, over all replicas [default: that of the file, or else 16]
    #[arg(long, value_name = "N")]
    micro_batches: Option<u64>,

    /// Ranks in the order that the devices are listed, to compare with
    #[arg(long)]
    as_listed: bool,

    /// Write an object, for programs
    #[arg(long)]
    json: bool,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener mesh plan                                       the best layout of all devices
  evener mesh plan --devices 'cuda:0[40,92],cpu' --pp 3  three parts, one after another
  evener mesh plan --devices 'cpu[1,1]' --axes dp=1,ep=2 any axes
  evener mesh plan meshes/two-machines.toml              machines that are not here
  evener mesh plan meshes/mixed-cards.toml --tp 2 --pp 2 --dp 2
  evener mesh plan meshes/mixed-cards.toml --tp 2 --pp 2 --dp 2 --as-listed

{EXIT_CODES}"
    )
}

/// What there is to say.
#[derive(Debug)]
struct Plan {
    about: String,
    mesh: Mesh,
    /// Nothing for axes of one's own.
    proposal: Option<Proposal>,
    /// Whether times are in seconds: costs were said, and rates measured.
    has_seconds: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let json = arguments.json;
    let plan = plan(arguments)?;
    match json {
        true => write_json(&json::object(&plan)?),
        false => Ok(write_out(&text::text(&plan)?)?),
    }
}

fn plan(arguments: Arguments) -> Result<Plan> {
    let blueprint = match &arguments.blueprint {
        Some(path) => read(path)?,
        None => Blueprint::from_toml("").map_err(Usage)?,
    };
    let members = members(&arguments, &blueprint)?;
    let about = blueprint.about.clone();
    if let Some(parse::Axes(axes)) = arguments.axes {
        let mesh = Mesh::new(members).axes(axes).map_err(|why| Usage(why.to_string()))?;
        return Ok(Plan { about, mesh, proposal: None, has_seconds: false });
    }
    let has_costs = arguments.costs.is_some() || (blueprint.workload.is_some() && arguments.layers.is_none());
    let workload = workload(&arguments, blueprint.workload);
    let planner = Planner::new(members, workload)
        .links(blueprint.links)
        .tp(arguments.tp)
        .pp(arguments.pp)
        .dp(arguments.dp);
    let proposal = if arguments.as_listed { planner.as_listed() } else { planner.propose() };
    let proposal = proposal.map_err(|why| Usage(why.to_string()))?;
    let mesh = proposal.mesh()?;
    let has_seconds = has_costs && proposal.rated_by == evener_mesh::placement::RatedBy::Rate;
    Ok(Plan { about, mesh, proposal: Some(proposal), has_seconds })
}

fn read(path: &PathBuf) -> Result<Blueprint> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{}: cannot be read", shown(path)))?;
    Ok(Blueprint::from_toml(&text).map_err(|why| Usage(format!("{}: {why}", shown(path))))?)
}

fn members(arguments: &Arguments, blueprint: &Blueprint) -> Result<Vec<Member>> {
    if blueprint.members.is_empty() {
        let devices = choose_devices(arguments.devices.as_deref())?;
        return Ok(devices.iter().map(Member::of).collect());
    }
    if arguments.devices.is_some() {
        let why = "the file lists devices, and --devices selects those of this machine: leave one out";
        return Err(Usage(why.into()).into());
    }
    Ok(blueprint.members.clone())
}

/// The file's layers, or those of the command line; what it says of memory and micro-batches counts for both.
fn workload(arguments: &Arguments, from_file: Option<Workload>) -> Workload {
    let micro_batches = from_file.as_ref().map(|workload| workload.micro_batches);
    let even = |count| Workload::even(count, 1.0);
    let mut workload = match (&arguments.costs, arguments.layers, from_file) {
        (Some(parse::Costs(costs)), ..) => {
            Workload::new(costs.iter().map(|&cost| Layer { cost, ..Layer::default() }).collect())
        }
        (None, Some(count), _) => even(count),
        (None, None, Some(workload)) => workload,
        (None, None, None) => even(LAYERS),
    };
    if let Some(bytes) = arguments.layer_memory {
        for layer in &mut workload.layers {
            layer.memory_bytes = bytes;
        }
    }
    if let Some(count) = arguments.micro_batches.or(micro_batches) {
        workload.micro_batches = count;
    }
    workload
}
