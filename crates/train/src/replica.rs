//! Replicas: one device's copy of a model, behind a small trait.

use std::{error::Error, fmt::Debug, time::Duration};

use evener_mesh::comm::FloatElement;
use serde::{Deserialize, Serialize};

/// The number type of a model's gradients: `f32` or `f64`.
pub trait Scalar: FloatElement + Default {
    /// The name of the type in a checkpoint.
    const SAFETENSORS: safetensors::Dtype;
    /// Converts to `f64`.
    fn to_f64(self) -> f64;
    /// Converts from `f64`, rounded.
    fn from_f64(value: f64) -> Self;
}

impl Scalar for f32 {
    const SAFETENSORS: safetensors::Dtype = safetensors::Dtype::F32;

    #[inline]
    fn to_f64(self) -> f64 {
        self as f64
    }

    #[inline]
    fn from_f64(value: f64) -> Self {
        value as f32
    }
}

impl Scalar for f64 {
    const SAFETENSORS: safetensors::Dtype = safetensors::Dtype::F64;

    #[inline]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline]
    fn from_f64(value: f64) -> Self {
        value
    }
}

/// An error of a replica, of any type.
pub type ReplicaError = Box<dyn Error + Send + Sync>;

/// One tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name, unique in the model.
    pub name: String,
    /// Its shape. A scalar has none.
    pub shape: Vec<usize>,
}

impl Tensor {
    /// Describes a tensor.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Tensor { name: name.into(), shape: shape.into() }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The tensors of a model, in the order in which they lie in flat slices. Replicas of one model have equal layouts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Layout {
    /// The tensors that are trained.
    pub parameters: Vec<Tensor>,
    /// The tensors that the model updates by itself, such as running statistics of a batch norm. Ranks average them by
    /// their samples.
    pub buffers: Vec<Tensor>,
    /// Elements of the optimizer's state.
    pub optimizer: usize,
}

impl Layout {
    /// Returns the number of elements of a part.
    pub fn len(&self, part: Part) -> usize {
        match part {
            Part::Parameters => self.parameters.iter().map(Tensor::len).sum(),
            Part::Buffers => self.buffers.iter().map(Tensor::len).sum(),
            Part::Optimizer => self.optimizer,
        }
    }
}

/// A part of a replica's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The parameters.
    Parameters,
    /// The buffers.
    Buffers,
    /// The optimizer's state: moments, step counts.
    Optimizer,
}

impl Part {
    /// All parts.
    pub const ALL: [Part; 3] = [Part::Parameters, Part::Buffers, Part::Optimizer];
}

/// What a replica says about the gradient of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Computed {
    /// What the gradient is the mean of: the number of samples, or of tokens. Not negative, and finite.
    pub weight: f64,
    /// The mean loss.
    pub loss: f64,
    /// The time that the device took, without waiting for anything else.
    pub compute: Duration,
}

/// How a step is to be made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Number of steps before this one.
    pub number: u64,
    /// Factor for the learning rate. It is 1 unless the batch grows.
    pub learning_rate_gain: f64,
}

/// One device's copy of a model and its optimizer.
///
/// [`gradients`](Replica::gradients) must change nothing but the buffers; [`apply`](Replica::apply) must depend on
/// nothing but its arguments and the state that [`read`](Replica::read) returns. Then all replicas stay equal, and a
/// replica that is [written](Replica::write) continues exactly as the one that was read.
pub trait Replica: Send + 'static {
    /// The number type.
    type Element: Scalar;

    /// Describes the tensors. Never changes.
    fn layout(&self) -> Layout;

    /// Computes the mean gradient of the loss over these samples, and writes it to `gradient`, which has the length of
    /// all parameters. The samples are numbers from 0 up to the number that the trainer was given; there is at least
    /// one, and at most [`micro_batch`](Replica::micro_batch) of them.
    fn gradients(
        &mut self,
        samples: &[u64],
        gradient: &mut [Self::Element],
    ) -> Result<Computed, ReplicaError>;

    /// Makes a step with an averaged gradient.
    fn apply(&mut self, gradient: &[Self::Element], step: Step) -> Result<(), ReplicaError>;

    /// Copies a part of the state to a slice of its length.
    fn read(&self, part: Part, into: &mut [Self::Element]) -> Result<(), ReplicaError>;

    /// Replaces a part of the state.
    fn write(&mut self, part: Part, from: &[Self::Element]) -> Result<(), ReplicaError>;

    /// Returns the largest number of samples that fit the device's memory at once. A larger share is computed in several
    /// micro-batches, whose gradients are averaged by their weights.
    fn micro_batch(&self) -> u64 {
        u64::MAX
    }

    /// Returns the smallest share of this model: 2 if it has a batch norm, which has no variance of one sample.
    fn least_share(&self) -> u64 {
        1
    }
}

/// Multiplies by a factor, and returns the squared norm of the result.
///
/// Sixteen sums run side by side, because one sum would wait for each addition. The order is fixed.
pub(crate) fn scale<E: Scalar>(values: &mut [E], factor: f64) -> f64 {
    let mut sums = [0.0f64; 16];
    let mut chunks = values.chunks_exact_mut(16);
    for chunk in &mut chunks {
        for (value, sum) in chunk.iter_mut().zip(&mut sums) {
            *value = E::from_f64(value.to_f64() * factor);
            *sum += value.to_f64() * value.to_f64();
        }
    }
    for (value, sum) in chunks.into_remainder().iter_mut().zip(&mut sums) {
        *value = E::from_f64(value.to_f64() * factor);
        *sum += value.to_f64() * value.to_f64();
    }
    sums.iter().sum()
}
