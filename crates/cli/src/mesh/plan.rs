//! `evener mesh plan`: arranges devices on the ranks of a mesh.

mod json;
mod parse;
mod text;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use evener_mesh::{
    placement::{ClusterSpec, Layer, Planner, Proposal, Workload},
    topology::{Member, Mesh},
};

use crate::{
    UsageError,
    input::{display_input, read_text},
    machines::{HostsOption, LateNodes},
    options::select_devices,
    output::{write_json, write_out},
    progress::ProgressLine,
    size::parse_bytes,
    verbosity::Verbosity,
};

/// The default number of layers.
const DEFAULT_LAYERS: usize = 32;

/// Arrange devices for parallel training or inference
///
/// Arranges devices by tensor (tp), pipeline (pp) and data (dp) parallelism: alike devices share layers, stages get
/// layers by their devices' measured rates, and most traffic uses the fastest links. Prints the ranks, the groups and the
/// predicted balance. Proposes sizes that are not given.
///
/// Uses the rates that `evener devices --measure` has kept. If one is missing, all devices are compared by score.
///
/// With -q, prints the sizes of the axes, as --axes takes them: dp=2,pp=2,tp=4.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Read devices, links and layers from this TOML file; - is standard input
    ///
    /// If the file has no devices, the devices of this machine are used. The folder `meshes` has examples.
    #[arg(value_name = "FILE")]
    cluster: Option<PathBuf>,

    /// Use only these devices, as for `evener devices` [env: EVENER_DEVICES]
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    devices: Option<String>,

    #[command(flatten)]
    hosts: HostsOption,

    /// Share each layer between this number of devices
    #[arg(long, value_name = "N")]
    tp: Option<usize>,

    /// Use this number of pipeline stages
    #[arg(long, value_name = "N")]
    pp: Option<usize>,

    /// Use this number of replicas of the model
    #[arg(long, value_name = "N")]
    dp: Option<usize>,

    /// Use any axes instead, innermost last, as dp=2,ep=2,tp=4; prints ranks and groups without a prediction
    #[arg(long, value_name = "LIST", value_parser = parse::axes, conflicts_with_all = ["tp", "pp", "dp", "as_listed", "layers", "costs", "layer_memory", "micro_batches"])]
    axes: Option<parse::AxesArgument>,

    /// Plan for this number of alike layers [default: the file's, or 32]
    #[arg(long, value_name = "N")]
    layers: Option<usize>,

    /// Set the cost of each layer for a micro-batch, in the unit of the rates (multiply-adds): 8e9,2e9x30,9e9
    #[arg(long, value_name = "LIST", value_parser = parse::costs, conflicts_with = "layers")]
    costs: Option<parse::LayerCosts>,

    /// Set the memory of each layer, over all devices that share it: 1.5GiB, 800MB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    layer_memory: Option<u64>,

    /// Set the micro-batches of a step, over all replicas [default: the file's, or 16]
    #[arg(long, value_name = "N")]
    micro_batches: Option<u64>,

    /// Put devices on ranks in their listed order, for comparison
    #[arg(long)]
    as_listed: bool,

    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  evener mesh plan                                        propose a layout
  evener mesh plan --devices 'cuda:0[40,92],cpu' --pp 3   use three stages
  evener mesh plan --devices 'cpu[1,1]' --axes dp=1,ep=2  use other axes
  evener mesh plan meshes/two-machines.toml               use other machines
  evener mesh plan meshes/mixed-cards.toml --tp 2 --pp 2 --dp 2
  evener mesh plan meshes/mixed-cards.toml --tp 2 --pp 2 --dp 2 --as-listed";

/// A layout and its prediction.
#[derive(Debug)]
struct Plan {
    about: String,
    mesh: Mesh,
    /// `None` for `--axes`.
    proposal: Option<Proposal>,
    /// Whether times are in seconds, which needs costs and measured rates.
    has_seconds: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let (json, quiet) = (arguments.json, verbosity.is_quiet());
    let progress = ProgressLine::new(json || quiet);
    progress.step("arranging devices");
    let plan = plan(arguments);
    progress.finish();
    let plan = plan?;
    match (json, quiet) {
        (true, _) => write_json(&json::object(&plan)?),
        (false, true) => Ok(write_out(&text::axes(&plan.mesh))?),
        (false, false) => Ok(write_out(&text::text(&plan)?)?),
    }
}

fn plan(arguments: Arguments) -> Result<Plan> {
    let cluster = match &arguments.cluster {
        Some(path) => read(path)?,
        None => ClusterSpec::from_toml("").map_err(UsageError)?,
    };
    let members = members(&arguments, &cluster)?;
    let about = cluster.about.clone();
    if let Some(parse::AxesArgument(axes)) = arguments.axes {
        let mesh = Mesh::new(members).axes(axes).map_err(|why| UsageError(why.to_string()))?;
        return Ok(Plan { about, mesh, proposal: None, has_seconds: false });
    }
    let has_costs = arguments.costs.is_some() || (cluster.workload.is_some() && arguments.layers.is_none());
    let workload = workload(&arguments, cluster.workload);
    let planner = Planner::new(members, workload)
        .links(cluster.links)
        .tp(arguments.tp)
        .pp(arguments.pp)
        .dp(arguments.dp);
    let proposal = if arguments.as_listed { planner.as_listed() } else { planner.propose() };
    let proposal = proposal.map_err(|why| UsageError(why.to_string()))?;
    let mesh = proposal.mesh()?;
    let has_seconds = has_costs && proposal.rated_by == evener_mesh::placement::RateSource::Rate;
    Ok(Plan { about, mesh, proposal: Some(proposal), has_seconds })
}

fn read(path: &Path) -> Result<ClusterSpec> {
    let text = read_text(path)?;
    Ok(ClusterSpec::from_toml(&text).map_err(|why| UsageError(format!("{}: {why}", display_input(path))))?)
}

fn members(arguments: &Arguments, cluster: &ClusterSpec) -> Result<Vec<Member>> {
    if cluster.members.is_empty() {
        let devices = select_devices(&arguments.hosts, arguments.devices.as_deref(), LateNodes::Refused)?;
        return Ok(devices.iter().map(Member::of).collect());
    }
    if arguments.devices.is_some() || arguments.hosts.hosts.is_some() {
        let message =
            "the file lists devices, and --devices or --hosts selects those of this machine: leave one out";
        return Err(UsageError(message.into()).into());
    }
    Ok(cluster.members.clone())
}

/// Combines the layers of the file or the command line with the memory and micro-batches of the command line.
fn workload(arguments: &Arguments, from_file: Option<Workload>) -> Workload {
    let micro_batches = from_file.as_ref().map(|workload| workload.micro_batches);
    let even = |count| Workload::even(count, 1.0);
    let mut workload = match (&arguments.costs, arguments.layers, from_file) {
        (Some(parse::LayerCosts(costs)), ..) => {
            Workload::new(costs.iter().map(|&cost| Layer { cost, ..Layer::default() }).collect())
        }
        (None, Some(count), _) => even(count),
        (None, None, Some(workload)) => workload,
        (None, None, None) => even(DEFAULT_LAYERS),
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
