//! Replicas of one process, for training loops of your own.

use std::thread;

use crate::{
    error::{Result, TrainError},
    replica::{Computed, Layout, Part, Replica, Scalar, Step, scale},
};

/// Replicas of one model in this process, with the operations that keep them equal. For loops of your own; a
/// [`Trainer`](crate::Trainer) decides shares and survives failures by itself.
///
/// ```
/// use std::sync::Arc;
/// use evener_train::{Ddp, Replica, Step, testing::{Mlp, Optimizer, Regression}};
///
/// let data = Arc::new(Regression::generated(70, 1));
/// let sgd = Optimizer::Sgd { learning_rate: 0.05, momentum: 0.0 };
/// let replicas = (0..2).map(|seed| Mlp::new(data.clone(), 8, sgd, seed)).collect();
/// let mut ddp = Ddp::wrap(replicas)?;
/// ddp.sync_params()?;
/// for step in 0..2 {
///     let first = step * 35;
///     let samples = [(first..first + 25).collect(), (first + 25..first + 35).collect::<Vec<u64>>()];
///     ddp.gradients(&samples)?;
///     ddp.weighted_all_reduce_gradients(&[25.0, 10.0])?;
///     ddp.apply(Step { number: step, learning_rate_gain: 1.0 })?;
/// }
/// assert_eq!(ddp.replica(0).parameters(), ddp.replica(1).parameters());
/// # Ok::<(), evener_train::TrainError>(())
/// ```
pub struct Ddp<R: Replica> {
    replicas: Vec<R>,
    layout: Layout,
    /// One flat gradient per replica.
    gradients: Vec<Vec<R::Element>>,
}

impl<R: Replica> Ddp<R> {
    /// Wraps replicas. Fails if there is none, or if their layouts differ.
    pub fn wrap(replicas: Vec<R>) -> Result<Self> {
        let Some(first) = replicas.first() else {
            return Err(TrainError::Setting { setting: "replicas", detail: "there is none".into() });
        };
        let layout = first.layout();
        if let Some(other) = replicas.iter().position(|replica| replica.layout() != layout) {
            return Err(TrainError::Layouts { detail: format!("replica {other} differs from replica 0") });
        }
        let gradients = vec![vec![R::Element::default(); layout.len(Part::Parameters)]; replicas.len()];
        Ok(Ddp { replicas, layout, gradients })
    }

    /// Returns the number of replicas.
    pub fn len(&self) -> usize {
        self.replicas.len()
    }

    /// Returns whether there is no replica, which is never so.
    pub fn is_empty(&self) -> bool {
        self.replicas.is_empty()
    }

    /// Returns a replica. Panics if there is no such one.
    pub fn replica(&self, index: usize) -> &R {
        &self.replicas[index]
    }

    /// Returns a replica. Panics if there is no such one.
    pub fn replica_mut(&mut self, index: usize) -> &mut R {
        &mut self.replicas[index]
    }

    /// Returns the flat gradient of a replica, to read or to write. Panics if there is no such replica.
    pub fn gradient_mut(&mut self, index: usize) -> &mut [R::Element] {
        &mut self.gradients[index]
    }

    /// Returns the replicas.
    pub fn into_replicas(self) -> Vec<R> {
        self.replicas
    }

    /// Computes the gradient of each replica's samples, side by side on one thread each. A replica without samples gets
    /// a gradient of 0 and weight 0.
    pub fn gradients(&mut self, samples: &[Vec<u64>]) -> Result<Vec<Computed>> {
        self.check(samples.len(), "lists of samples")?;
        let work = self.replicas.iter_mut().zip(&mut self.gradients).zip(samples).enumerate();
        thread::scope(|scope| {
            let threads: Vec<_> = work
                .map(|(rank, ((replica, gradient), samples))| {
                    scope.spawn(move || {
                        if samples.is_empty() {
                            gradient.fill(R::Element::default());
                            return Ok(Computed { weight: 0.0, loss: 0.0, compute: Default::default() });
                        }
                        replica
                            .gradients(samples, gradient)
                            .map_err(|error| TrainError::Replica { rank, error })
                    })
                })
                .collect();
            let join = |(rank, thread): (usize, thread::ScopedJoinHandle<'_, Result<Computed>>)| {
                let panicked = |_| Err(TrainError::Panicked { rank, message: "in its gradients".into() });
                thread.join().unwrap_or_else(panicked)
            };
            threads.into_iter().enumerate().map(join).collect()
        })
    }

    /// Replaces all gradients by their mean.
    pub fn all_reduce_gradients(&mut self) -> Result<()> {
        self.weighted_all_reduce_gradients(&vec![1.0; self.len()])
    }

    /// Replaces all gradients by their mean with these weights, usually the numbers of samples. The order of the sum is
    /// fixed. A gradient with weight 0 is not read.
    pub fn weighted_all_reduce_gradients(&mut self, counts: &[f64]) -> Result<()> {
        let total = self.total(counts)?;
        reduce(&mut self.gradients, counts, total);
        Ok(())
    }

    /// Limits the norm of the averaged gradients.
    pub fn clip_gradients(&mut self, max_norm: f64) {
        for gradient in &mut self.gradients {
            let norm = scale(gradient, 1.0).sqrt();
            if norm > max_norm {
                scale(gradient, max_norm / norm);
            }
        }
    }

    /// Makes a step on each replica, with its own gradient.
    pub fn apply(&mut self, step: Step) -> Result<()> {
        for (rank, (replica, gradient)) in self.replicas.iter_mut().zip(&self.gradients).enumerate() {
            replica.apply(gradient, step).map_err(|error| TrainError::Replica { rank, error })?;
        }
        Ok(())
    }

    /// Copies parameters, buffers and optimizer state of the first replica to the others.
    pub fn sync_params(&mut self) -> Result<()> {
        for part in Part::ALL {
            let mut values = vec![R::Element::default(); self.layout.len(part)];
            for (rank, replica) in self.replicas.iter_mut().enumerate() {
                let done =
                    if rank == 0 { replica.read(part, &mut values) } else { replica.write(part, &values) };
                done.map_err(|error| TrainError::Replica { rank, error })?;
            }
        }
        Ok(())
    }

    /// Replaces the buffers of all replicas by their mean with these weights, usually the numbers of samples.
    pub fn sync_buffers(&mut self, counts: &[f64]) -> Result<()> {
        let total = self.total(counts)?;
        let mut all = vec![vec![R::Element::default(); self.layout.len(Part::Buffers)]; self.len()];
        for (rank, (replica, buffers)) in self.replicas.iter().zip(&mut all).enumerate() {
            replica.read(Part::Buffers, buffers).map_err(|error| TrainError::Replica { rank, error })?;
        }
        reduce(&mut all, counts, total);
        for (rank, (replica, buffers)) in self.replicas.iter_mut().zip(&all).enumerate() {
            replica.write(Part::Buffers, buffers).map_err(|error| TrainError::Replica { rank, error })?;
        }
        Ok(())
    }

    fn check(&self, found: usize, what: &str) -> Result<()> {
        if found == self.len() {
            return Ok(());
        }
        let detail = format!("{found} {what} for {} replicas", self.len());
        Err(TrainError::Setting { setting: "replicas", detail })
    }

    fn total(&self, counts: &[f64]) -> Result<f64> {
        self.check(counts.len(), "weights")?;
        let total: f64 = counts.iter().sum();
        if counts.iter().all(|count| count.is_finite() && *count >= 0.0) && total > 0.0 {
            return Ok(total);
        }
        let detail = format!("{counts:?}: weights are finite, at least 0, and not all 0");
        Err(TrainError::Setting { setting: "counts", detail })
    }
}

/// Replaces all vectors by their weighted mean, summed in order.
fn reduce<E: Scalar>(vectors: &mut [Vec<E>], weights: &[f64], total: f64) {
    let len = vectors.first().map_or(0, Vec::len);
    for index in 0..len {
        let mut sum = 0.0;
        for (vector, weight) in vectors.iter().zip(weights) {
            if *weight > 0.0 {
                sum += weight * vector[index].to_f64();
            }
        }
        let mean = E::from_f64(sum / total);
        vectors.iter_mut().for_each(|vector| vector[index] = mean);
    }
}
