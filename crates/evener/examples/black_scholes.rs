//! Prices options on every device of this machine: `cargo run --release -p evener --example black_scholes [-- OPTIONS]`.
//!
//! The function is a plain loop. The attribute runs it on the calling thread, on all cores or on every device, whichever is
//! fastest, and the result is that of the plain loop.
#![allow(clippy::print_stdout)]

use evener::{Pool, parallel};

/// The interest rate and the volatility.
const R: f32 = 0.02;
const V: f32 = 0.30;

/// The cumulative distribution of the normal distribution, by a polynomial.
#[parallel::function]
fn cdf(x: f32) -> f32 {
    let k = 1.0 / (1.0 + 0.2316419 * x.abs());
    let poly =
        k * (0.31938153 + k * (-0.356_563_78 + k * (1.781_477_9 + k * (-1.821_256 + k * 1.330_274_5))));
    let tail = 0.3989423 * (-0.5 * x * x).exp() * poly;
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// The price of a call for each pair of spot and strike.
#[parallel]
fn black_scholes(spot: &[f32], strike: &[f32], years: f32, call: &mut [f32]) {
    for i in 0..spot.len() {
        let d1 = ((spot[i] / strike[i]).ln() + (R + V * V / 2.0) * years) / (V * years.sqrt());
        call[i] = spot[i] * cdf(d1) - strike[i] * (-R * years).exp() * cdf(d1 - V * years.sqrt());
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options: usize = std::env::args().nth(1).map_or(Ok(1 << 20), |count| count.parse())?;
    let spot: Vec<f32> = (0..options).map(|i| 80.0 + (i % 41) as f32).collect();
    let strike: Vec<f32> = (0..options).map(|i| 90.0 + (i % 23) as f32).collect();
    let mut call = vec![0.0; options];

    black_scholes(&spot, &strike, 1.5, &mut call);
    println!("the first option is worth {}", call[0]);

    let run = black_scholes::on(&Pool::all()?).run(&spot, &strike, 1.5, &mut call);
    println!("{run}");
    Ok(())
}
