//! The workload: layers with their costs, memory and traffic.

use serde::Serialize;

use super::error::PlacementError;

/// Maximum number of micro-batches in a step: more are taken for a typing error.
const MAX_MICRO_BATCHES: u64 = 100_000;

/// One layer of a model. Cost and traffic are per micro-batch, forward and backward.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Layer {
    /// Its work, in the unit of the devices' rates: multiply-adds for rates measured by Evener.
    pub cost: f64,
    /// All memory that it needs: weights, gradients, optimizer state and stored activations.
    pub memory_bytes: u64,
    /// Bytes that its tensor-parallel group reduces.
    pub tensor_bytes: u64,
    /// Bytes that it passes on if the next layer is in another stage.
    pub output_bytes: u64,
    /// Bytes that its data-parallel groups reduce at the end of a step.
    pub gradient_bytes: u64,
}

/// A model to place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Workload {
    /// Its layers, in order.
    pub layers: Vec<Layer>,
    /// Number of micro-batches of a step, over all replicas.
    pub micro_batches: u64,
}

impl Workload {
    /// The default number of micro-batches of a step.
    pub const MICRO_BATCHES: u64 = 16;

    /// Creates a workload of equal layers with this cost, without memory or traffic.
    pub fn even(layers: usize, cost: f64) -> Self {
        Workload::new(vec![Layer { cost, ..Layer::default() }; layers])
    }

    /// Creates a workload with [`MICRO_BATCHES`](Workload::MICRO_BATCHES).
    pub fn new(layers: Vec<Layer>) -> Self {
        Workload { layers, micro_batches: Workload::MICRO_BATCHES }
    }

    /// Sets the number of micro-batches of a step.
    pub fn with_micro_batches(mut self, micro_batches: u64) -> Self {
        self.micro_batches = micro_batches;
        self
    }

    pub(super) fn has_traffic(&self) -> bool {
        let sends =
            |layer: &Layer| layer.tensor_bytes > 0 || layer.output_bytes > 0 || layer.gradient_bytes > 0;
        self.layers.iter().any(sends)
    }

    pub(super) fn check(&self) -> Result<(), PlacementError> {
        let wrong = |text: String| Err(PlacementError::Workload(text));
        check_costs(&self.layers)?;
        if !self.layers.iter().any(|layer| layer.cost > 0.0) {
            return wrong("all layers have cost 0: at least one must cost more".into());
        }
        if !(1..=MAX_MICRO_BATCHES).contains(&self.micro_batches) {
            let count = self.micro_batches;
            return wrong(format!("{count} micro-batches a step: it must be 1 to {MAX_MICRO_BATCHES}"));
        }
        Ok(())
    }
}

pub(super) fn check_costs(layers: &[Layer]) -> Result<(), PlacementError> {
    let wrong = |cost: f64| !cost.is_finite() || cost < 0.0;
    match layers.iter().position(|layer| wrong(layer.cost)) {
        Some(index) => Err(PlacementError::Workload(format!(
            "layer {index} costs {}: it must be 0 or more",
            layers[index].cost
        ))),
        None => Ok(()),
    }
}

/// Prefix sums over the layers, for sums over ranges in constant time.
#[derive(Debug)]
pub(super) struct PrefixSums {
    cost: Vec<f64>,
    memory: Vec<u128>,
    tensor: Vec<f64>,
    gradient: Vec<f64>,
}

impl PrefixSums {
    pub(super) fn of(layers: &[Layer]) -> Self {
        let mut sums =
            PrefixSums { cost: vec![0.0], memory: vec![0], tensor: vec![0.0], gradient: vec![0.0] };
        for (index, layer) in layers.iter().enumerate() {
            sums.cost.push(sums.cost[index] + layer.cost);
            sums.memory.push(sums.memory[index] + u128::from(layer.memory_bytes));
            sums.tensor.push(sums.tensor[index] + layer.tensor_bytes as f64);
            sums.gradient.push(sums.gradient[index] + layer.gradient_bytes as f64);
        }
        sums
    }

    pub(super) fn cost(&self, from: usize, until: usize) -> f64 {
        self.cost[until] - self.cost[from]
    }

    pub(super) fn memory(&self, from: usize, until: usize) -> u128 {
        self.memory[until] - self.memory[from]
    }

    pub(super) fn tensor(&self, from: usize, until: usize) -> f64 {
        self.tensor[until] - self.tensor[from]
    }

    pub(super) fn gradient(&self, from: usize, until: usize) -> f64 {
        self.gradient[until] - self.gradient[from]
    }
}
