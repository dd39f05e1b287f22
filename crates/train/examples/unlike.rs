//! Trains a small network on two unlike workers, one of which sleeps: `cargo run --release -p evener-train --example unlike`.
//!
//! The workers are the partitions of `cpu[1,1]`, or two threads where the processor cannot be split. Under `mpirun -n 2`
//! the same program trains with two processes.

#![allow(clippy::print_stdout)]

use std::{error::Error, sync::Arc, thread, time::Duration};

use evener_train::{
    Trainer,
    testing::{Mlp, Optimizer, Regression},
};

fn main() -> Result<(), Box<dyn Error>> {
    let data = Arc::new(Regression::generated(3_500, 1));
    let samples = data.clone();
    let make = move |worker: &evener_train::Worker| {
        // The second worker is two and a half times slower than the first.
        let per_sample = Duration::from_micros(if worker.rank == 0 { 40 } else { 100 });
        let network = Mlp::new(samples.clone(), 16, Optimizer::Adam { learning_rate: 0.01 }, 7);
        Ok(network.with_hook(move |batch| {
            thread::sleep(per_sample * batch.len() as u32);
            None
        }))
    };
    let builder = || Trainer::builder(make.clone()).data(data.clone()).batch(350).max_grad_norm(1.0);
    let trainer = builder().devices("cpu[1,1]").build().or_else(|error| {
        println!("{error}: two threads instead");
        builder().workers(2).build()
    })?;
    let handle = trainer.start(20)?;
    while let Some(metrics) = handle.next_metrics() {
        if let Some(loss) = metrics.epoch_loss {
            let batches: Vec<u64> = metrics.workers.iter().map(|worker| worker.batch).collect();
            let left = metrics.remaining.unwrap_or_default();
            println!(
                "epoch {:>2}: loss {loss:.5}, {:>6.0} samples/s, {left:.1?} left, batches {batches:?}",
                metrics.epoch, metrics.samples_per_s
            );
        }
    }
    println!("\n{}", handle.join()?.report);
    Ok(())
}
