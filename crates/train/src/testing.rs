//! A small reference network in `f64`, for tests and examples.
//!
//! [`Mlp`] is a network of dense layers with `tanh` between them and a squared error, written without any library, so
//! that its gradients can be compared with what a trainer makes of them to the last digits. A hook sees every batch: it
//! can sleep, panic, or say how long the batch took on a device that does not exist.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    error::check_len,
    ledger::SplitMix,
    replica::{Computed, Layout, Part, Replica, ReplicaError, Step, Tensor},
};

/// Samples for a regression: inputs, and targets of the same number.
#[derive(Debug, Clone)]
pub struct Regression {
    /// One input vector per sample.
    pub inputs: Vec<Vec<f64>>,
    /// One target vector per sample.
    pub targets: Vec<Vec<f64>>,
}

impl Regression {
    /// Makes up samples of a smooth function of three numbers with two results, with a little noise.
    pub fn generated(samples: usize, seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let mut number = || random.unit() * 2.0 - 1.0;
        let inputs: Vec<Vec<f64>> = (0..samples).map(|_| (0..3).map(|_| number()).collect()).collect();
        let targets = inputs
            .iter()
            .map(|x| {
                let noise = 0.01 * number();
                vec![(2.0 * x[0]).sin() + x[1] * x[2] + noise, x[0] - 0.5 * x[1] * x[1] - noise]
            })
            .collect();
        Regression { inputs, targets }
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Returns whether there is no sample.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }
}

/// The optimizer of an [`Mlp`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Optimizer {
    /// Gradient descent with momentum.
    Sgd {
        /// Learning rate.
        learning_rate: f64,
        /// Part of the momentum that is kept: 0 for none.
        momentum: f64,
    },
    /// Adam with the usual constants.
    Adam {
        /// Learning rate.
        learning_rate: f64,
    },
}

/// Sees each batch before it is computed. Returns the time that the batch is to have taken, or `None` for the real one.
pub type Hook = Box<dyn FnMut(&[u64]) -> Option<Duration> + Send>;

/// A network of dense layers.
pub struct Mlp {
    data: Arc<Regression>,
    sizes: Vec<usize>,
    parameters: Vec<f64>,
    /// With a batch norm over the inputs: their running means and variances.
    buffers: Vec<f64>,
    optimizer: Optimizer,
    /// Two moments per parameter and the number of steps.
    moments: Vec<f64>,
    micro_batch: u64,
    hook: Option<Hook>,
}

impl Mlp {
    /// Creates a network for these samples with a hidden layer of this width, and weights from a seed.
    pub fn new(data: Arc<Regression>, hidden: usize, optimizer: Optimizer, seed: u64) -> Self {
        let (inputs, outputs) =
            (data.inputs.first().map_or(0, Vec::len), data.targets.first().map_or(0, Vec::len));
        let sizes = vec![inputs, hidden, outputs];
        let mut random = SplitMix(seed);
        let mut parameters = Vec::new();
        for pair in sizes.windows(2) {
            let scale = 1.0 / (pair[0] as f64).sqrt();
            parameters.extend((0..pair[0] * pair[1]).map(|_| (random.unit() * 2.0 - 1.0) * scale));
            parameters.extend(std::iter::repeat_n(0.0, pair[1]));
        }
        let moments = vec![0.0; parameters.len() * 2 + 1];
        let (buffers, hook) = (Vec::new(), None);
        Mlp { data, sizes, parameters, buffers, optimizer, moments, micro_batch: u64::MAX, hook }
    }

    /// Normalises the inputs by the statistics of the batch, and keeps running ones.
    pub fn with_batch_norm(mut self) -> Self {
        self.buffers = [vec![0.0; self.sizes[0]], vec![1.0; self.sizes[0]]].concat();
        self
    }

    /// Limits the samples that are computed at once.
    pub fn with_micro_batch(mut self, samples: u64) -> Self {
        self.micro_batch = samples;
        self
    }

    /// Calls a function with each batch.
    pub fn with_hook(mut self, hook: impl FnMut(&[u64]) -> Option<Duration> + Send + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &[f64] {
        &self.parameters
    }

    /// Returns the running means and variances of the batch norm.
    pub fn buffers(&self) -> &[f64] {
        &self.buffers
    }

    /// Returns the mean loss over all samples, without a batch norm.
    pub fn loss(&self) -> f64 {
        let all: Vec<u64> = (0..self.data.len() as u64).collect();
        self.backward(&all, &mut vec![0.0; self.parameters.len()], None)
    }

    /// Computes the mean loss and its gradient.
    fn backward(&self, samples: &[u64], gradient: &mut [f64], norm: Option<(&[f64], &[f64])>) -> f64 {
        gradient.fill(0.0);
        let mut loss = 0.0;
        let (inputs, hidden, outputs) = (self.sizes[0], self.sizes[1], self.sizes[2]);
        let (w1, rest) = self.parameters.split_at(inputs * hidden);
        let (b1, rest) = rest.split_at(hidden);
        let (w2, b2) = rest.split_at(hidden * outputs);
        let part = 1.0 / samples.len() as f64;
        for &sample in samples {
            let mut x = self.data.inputs[sample as usize].clone();
            if let Some((mean, variance)) = norm {
                for (index, x) in x.iter_mut().enumerate() {
                    *x = (*x - mean[index]) / (variance[index] + 1e-5).sqrt();
                }
            }
            let h: Vec<f64> = (0..hidden)
                .map(|j| (b1[j] + (0..inputs).map(|i| x[i] * w1[i * hidden + j]).sum::<f64>()).tanh())
                .collect();
            let mut back = vec![0.0; hidden];
            let (first, rest) = gradient.split_at_mut(inputs * hidden);
            let (first_bias, rest) = rest.split_at_mut(hidden);
            let (second, second_bias) = rest.split_at_mut(hidden * outputs);
            for k in 0..outputs {
                let y = b2[k] + (0..hidden).map(|j| h[j] * w2[j * outputs + k]).sum::<f64>();
                let error = y - self.data.targets[sample as usize][k];
                loss += error * error * part;
                let slope = 2.0 * error * part;
                second_bias[k] += slope;
                for j in 0..hidden {
                    second[j * outputs + k] += slope * h[j];
                    back[j] += slope * w2[j * outputs + k];
                }
            }
            for j in 0..hidden {
                let slope = back[j] * (1.0 - h[j] * h[j]);
                first_bias[j] += slope;
                for i in 0..inputs {
                    first[i * hidden + j] += slope * x[i];
                }
            }
        }
        loss
    }

    /// Returns the means and variances of the inputs of a batch.
    fn statistics(&self, samples: &[u64]) -> (Vec<f64>, Vec<f64>) {
        let count = samples.len() as f64;
        let column =
            |index: usize| samples.iter().map(move |&sample| self.data.inputs[sample as usize][index]);
        let mean: Vec<f64> = (0..self.sizes[0]).map(|index| column(index).sum::<f64>() / count).collect();
        let variance = (0..self.sizes[0])
            .map(|index| column(index).map(|x| (x - mean[index]).powi(2)).sum::<f64>() / count)
            .collect();
        (mean, variance)
    }
}

impl Replica for Mlp {
    type Element = f64;

    fn layout(&self) -> Layout {
        let mut parameters = Vec::new();
        for (layer, pair) in self.sizes.windows(2).enumerate() {
            parameters.push(Tensor::new(format!("layer{layer}.weight"), [pair[0], pair[1]]));
            parameters.push(Tensor::new(format!("layer{layer}.bias"), [pair[1]]));
        }
        let mut buffers = Vec::new();
        if !self.buffers.is_empty() {
            buffers.push(Tensor::new("norm.mean", [self.sizes[0]]));
            buffers.push(Tensor::new("norm.variance", [self.sizes[0]]));
        }
        Layout { parameters, buffers, optimizer: self.moments.len() }
    }

    fn gradients(&mut self, samples: &[u64], gradient: &mut [f64]) -> Result<Computed, ReplicaError> {
        let begun = Instant::now();
        let said = self.hook.as_mut().and_then(|hook| hook(samples));
        let loss = if self.buffers.is_empty() {
            self.backward(samples, gradient, None)
        } else {
            let (mean, variance) = self.statistics(samples);
            let loss = self.backward(samples, gradient, Some((&mean, &variance)));
            for (kept, new) in self.buffers.iter_mut().zip(mean.iter().chain(&variance)) {
                *kept += 0.1 * (new - *kept);
            }
            loss
        };
        let compute = said.unwrap_or_else(|| begun.elapsed());
        Ok(Computed { weight: samples.len() as f64, loss, compute })
    }

    fn apply(&mut self, gradient: &[f64], step: Step) -> Result<(), ReplicaError> {
        let count = self.parameters.len();
        check_len(&self.layout(), Part::Parameters, gradient.len())?;
        let (first, rest) = self.moments.split_at_mut(count);
        let (second, steps) = rest.split_at_mut(count);
        steps[0] += 1.0;
        for index in 0..count {
            let slope = gradient[index];
            match self.optimizer {
                Optimizer::Sgd { learning_rate, momentum } => {
                    first[index] = momentum * first[index] + slope;
                    self.parameters[index] -= learning_rate * step.learning_rate_gain * first[index];
                }
                Optimizer::Adam { learning_rate } => {
                    first[index] += 0.1 * (slope - first[index]);
                    second[index] += 0.001 * (slope * slope - second[index]);
                    let mean = first[index] / (1.0 - 0.9f64.powf(steps[0]));
                    let size = (second[index] / (1.0 - 0.999f64.powf(steps[0]))).sqrt();
                    self.parameters[index] -= learning_rate * step.learning_rate_gain * mean / (size + 1e-8);
                }
            }
        }
        Ok(())
    }

    fn read(&self, part: Part, into: &mut [f64]) -> Result<(), ReplicaError> {
        check_len(&self.layout(), part, into.len())?;
        into.copy_from_slice(match part {
            Part::Parameters => &self.parameters,
            Part::Buffers => &self.buffers,
            Part::Optimizer => &self.moments,
        });
        Ok(())
    }

    fn write(&mut self, part: Part, from: &[f64]) -> Result<(), ReplicaError> {
        check_len(&self.layout(), part, from.len())?;
        match part {
            Part::Parameters => &mut self.parameters,
            Part::Buffers => &mut self.buffers,
            Part::Optimizer => &mut self.moments,
        }
        .copy_from_slice(from);
        Ok(())
    }

    fn micro_batch(&self) -> u64 {
        self.micro_batch
    }

    fn least_share(&self) -> u64 {
        if self.buffers.is_empty() { 1 } else { 2 }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_gradient_is_the_slope_of_the_loss() {
        let data = Arc::new(Regression::generated(20, 1));
        let mut network = Mlp::new(data, 5, Optimizer::Sgd { learning_rate: 0.1, momentum: 0.0 }, 2);
        let samples: Vec<u64> = (3..17).collect();
        let mut gradient = vec![0.0; network.parameters.len()];
        network.backward(&samples, &mut gradient, None);
        for index in 0..gradient.len() {
            let mut loss_at = |delta: f64| {
                network.parameters[index] += delta;
                let loss = network.backward(&samples, &mut vec![0.0; gradient.len()], None);
                network.parameters[index] -= delta;
                loss
            };
            let slope = (loss_at(1e-6) - loss_at(-1e-6)) / 2e-6;
            assert!((slope - gradient[index]).abs() < 1e-7, "{index}: {slope} is not {}", gradient[index]);
        }
    }
}
