//! The cost of an exchange between two workers: 1 M parameters out of a replica, through the all-reduce, and in again.
//!
//! `cargo bench -p evener-train --bench exchange [-- PARAMETERS]`. Beside it, in the same run: the all-reduce alone, and a
//! copy of as many bytes.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::expect_used)]

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use evener_mesh::comm::{ReduceOp, World};
use evener_train::{Computed, Layout, Part, Replica, ReplicaError, Step, Tensor, Trainer};

/// A replica whose gradient is a copy, and whose step is one pass over the parameters.
struct Plain {
    parameters: Vec<f32>,
    source: Vec<f32>,
    begun: Instant,
    /// Times from the start of a gradient to the end of the step with the mean.
    times: Arc<Mutex<Vec<Duration>>>,
}

impl Replica for Plain {
    type Element = f32;

    fn layout(&self) -> Layout {
        let parameters = vec![Tensor::new("weight", [self.parameters.len()])];
        Layout { parameters, ..Layout::default() }
    }

    fn gradients(&mut self, samples: &[u64], gradient: &mut [f32]) -> Result<Computed, ReplicaError> {
        self.begun = Instant::now();
        gradient.copy_from_slice(&self.source);
        Ok(Computed { weight: samples.len() as f64, loss: 1.0, compute: self.begun.elapsed() })
    }

    fn apply(&mut self, gradient: &[f32], _: Step) -> Result<(), ReplicaError> {
        self.parameters.iter_mut().zip(gradient).for_each(|(parameter, slope)| *parameter -= 1e-3 * slope);
        self.times.lock().unwrap().push(self.begun.elapsed());
        Ok(())
    }

    fn read(&self, part: Part, into: &mut [f32]) -> Result<(), ReplicaError> {
        if part == Part::Parameters {
            into.copy_from_slice(&self.parameters);
        }
        Ok(())
    }

    fn write(&mut self, part: Part, from: &[f32]) -> Result<(), ReplicaError> {
        if part == Part::Parameters {
            self.parameters.copy_from_slice(from);
        }
        Ok(())
    }
}

fn main() {
    let parameters: usize =
        std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(1_000_000);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("{parameters} parameters of f32, 2 threads, {cores} cores");
    println!("{:<34} {:>9} {:>9}", "", "least", "median");
    let source: Vec<f32> = (0..parameters).map(|index| (index % 100) as f32 * 0.01).collect();
    let mut target = source.clone();
    line("copy", (0..200).map(|_| timed(|| target.copy_from_slice(&source))).collect());
    line("all-reduce alone", all_reduce(parameters));
    let steps = 400u64;
    let times = Arc::new(Mutex::new(Vec::new()));
    let told = times.clone();
    let trainer = Trainer::builder(move |_| {
        let (parameters, source, times) = (vec![0.0; parameters], source.clone(), told.clone());
        Ok(Plain { parameters, source, begun: Instant::now(), times })
    });
    let trainer = trainer.data(2 * steps).batch(2).workers(2).shares([1, 1]).processes(false);
    trainer.build().unwrap().run(1).unwrap();
    let times = times.lock().unwrap().clone();
    line("a step: out, exchange, in, apply", times);
}

fn timed(work: impl FnOnce()) -> Duration {
    let begun = Instant::now();
    work();
    begun.elapsed()
}

fn all_reduce(parameters: usize) -> Vec<Duration> {
    let ranks: Vec<_> = World::local(2)
        .into_iter()
        .map(|world| {
            std::thread::spawn(move || {
                let mut data = vec![1.0f32; parameters];
                let once =
                    || timed(|| world.communicator().all_reduce(&mut data, ReduceOp::Average).unwrap());
                std::iter::repeat_with(once).take(400).collect::<Vec<_>>()
            })
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().unwrap()).next().unwrap()
}

fn line(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!("{what:<34} {:>6.2} ms {:>6.2} ms", ms(times[0]), ms(times[times.len() / 2]));
}
