//! Placement: which device takes which rank, and which stage gets which layers.
//!
//! With unlike devices, a tensor-parallel group is as fast as its slowest member, and a pipeline as its slowest stage.
//! [`Planner`] puts similar devices into tensor-parallel groups, splits the layers by measured rates, and predicts the
//! balance of the result. [`split_layers`] only splits layers.
//!
//! # The cost model
//! For replica d and stage s, a micro-batch takes
//!
//! ```text
//! compute  Σ cost / (tp · slowest rate of the tp group)
//! tensor   Σ tensor_bytes · 2(tp − 1)/tp / slowest link within the tp group
//! output   output_bytes of the stage's last layer / slowest link to the next stage
//! ```
//!
//! A replica with m micro-batches takes the sum of its stages' times once, to fill the pipeline, plus m − 1 times the
//! slowest of them. Each micro-batch goes to the replica that would complete it first, so that unlike replicas end
//! together; their gradients are then averaged by weight. At the end every data-parallel group reduces its gradients: Σ
//! gradient_bytes / tp · 2(dp − 1)/dp / slowest link within the group.
//!
//! All replicas have the same layers in the same stage, because their gradients are reduced together. The split makes
//! the slowest stage as fast as possible, where a stage's time is dp over the sum of its replicas' speeds. A stage fits
//! if its layers' memory, divided by tp, fits each of its devices.
//!
//! The model leaves out latency, traffic that overlaps with compute, and links that several groups share.
//!
//! ```
//! use evener_device::DeviceKind;
//! use evener_mesh::{
//!     placement::{Planner, Workload},
//!     topology::Member,
//! };
//!
//! let device = |id: &str, rate| Member::new(id, DeviceKind::Discrete).with_rate(rate);
//! let devices = [device("new-0", 3e12), device("old-0", 1e12), device("new-1", 3e12), device("old-1", 1e12)];
//! let plan = Planner::new(devices, Workload::even(8, 1e12)).tp(2).pp(2).propose()?;
//! // Alike devices share their layers, and the faster stage has three times as many.
//! assert_eq!(plan.stages[0].layers, 0..6);
//! assert_eq!(plan.stages[1].layers, 6..8);
//! let fast = plan.mesh()?.group("tp_dp0_pp0")?;
//! assert_eq!(fast.members()?.map(|it| it.id.as_str()).collect::<Vec<_>>(), ["new-0", "new-1"]);
//! assert!(plan.balance > 0.999);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cluster_spec;
mod error;
mod links;
mod planner;
mod predict;
mod search;
mod split;
#[cfg(test)]
mod test;
mod workload;

pub use self::{
    cluster_spec::ClusterSpec,
    error::PlacementError,
    links::Links,
    planner::{Planner, Proposal, RateSource, SearchMethod},
    predict::{ReplicaPlan, StagePlan},
    split::{LayerSplit, StageCapacity, split_layers},
    workload::{Layer, Workload},
};
