//! Compares the strategies and the fastest device alone.

use std::time::Instant;

use anyhow::{Context, Result};
use evener_device::{Device, DeviceId};
use evener_merkle::{Builder, Leaves};
use evener_schedule::{Pool, Strategy};
use serde::Serialize;

use super::{
    LEAF_BYTES, LEAF_STEP, Rate,
    background_load::BackgroundLoad,
    cpu_use::{Interval, OtherPrograms},
    participants::Participants,
};
use crate::progress::ProgressLine;

/// The approximate time of one build on all devices.
const BUILD_S: f64 = 0.2;
/// The number of undisturbed rounds after which the comparison may end.
const ROUNDS: usize = 3;
/// The minimum number of undisturbed rounds, if the time is up.
const MIN_ROUNDS: usize = 2;
/// The maximum relative difference between the two fastest builds of a configuration.
const MAX_NOISE: f64 = 0.1;
/// The same under background load, where the operating system's time slices add noise.
const MAX_NOISE_UNDER_LOAD: f64 = 0.25;
/// A build that would take longer than this is not run.
const MAX_BUILD_S: f64 = 2.0;

/// The fastest builds of all configurations.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) leaves: u64,
    pub(super) rounds: usize,
    /// The largest relative difference between the two fastest builds of a configuration, without background load.
    pub(super) noise: f64,
    pub(super) rows: Vec<Row>,
    /// The device whose cores had background load.
    pub(super) loaded_device: Option<DeviceId>,
}

/// The fastest builds of one configuration.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// A strategy, or a device alone.
    pub(super) configuration: String,
    /// `None` if the configuration was not run.
    #[serde(flatten)]
    pub(super) timing: Option<Timing>,
    /// The predicted time, if it is too long to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_run_predicted_s: Option<f64>,
    /// With background load on one device.
    pub(super) under_load: Option<Timing>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Timing {
    pub(super) wall_s: f64,
    pub(super) leaves_per_s: f64,
    pub(super) efficiency: f64,
}

impl Comparison {
    pub(super) fn row(&self, configuration: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.configuration == configuration)
    }

    /// Returns the row of the fastest device alone.
    pub(super) fn alone(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.configuration.ends_with(" alone"))
    }
}

/// A strategy or a device alone, and its builds so far.
struct Configuration {
    name: String,
    builder: Builder,
    has_load: bool,
    /// The predicted time, if it is too long to run.
    not_run_predicted_s: Option<f64>,
    timings: Vec<Timing>,
    under_load: Vec<Timing>,
}

/// Builds with every strategy, and with the fastest device alone, in turn. Repeats rounds that other programs disturbed.
/// Returns the reason as the inner error if no meaningful comparison was possible within the time limit.
pub(super) fn compare(
    participants: &Participants,
    rates: &[Rate],
    all: &[u8],
    time_limit_s: f64,
    progress: &ProgressLine,
) -> Result<Result<Comparison, String>> {
    let began = Instant::now();
    progress.step("preparing the comparison");
    let together: f64 = rates.iter().filter_map(|rate| rate.leaves_per_s).sum();
    let count = ((together * BUILD_S) as u64 / LEAF_STEP * LEAF_STEP)
        .clamp(LEAF_STEP, (all.len() / LEAF_BYTES) as u64);
    let leaves = Leaves::fixed_size(&all[..count as usize * LEAF_BYTES], LEAF_BYTES)?;
    // Partitions of one CPU are alike, and so are the strategies on them, unless one partition has other load.
    let loaded = participants.devices.first().filter(|_| participants.cpu_was_split);
    let mut configurations = configurations(participants, rates, &leaves, loaded.is_some())?;
    let (mut rounds, mut disturbance) = (0, None);
    // A first estimate: some builds are slower than on all devices, and some have background load.
    let mut longest_round_s = 3.0 * BUILD_S * configurations.len() as f64;
    while began.elapsed().as_secs_f64() + longest_round_s < time_limit_s {
        let (round, interval) = (Instant::now(), Interval::start());
        progress.step_of(format!("comparing strategies, round {}", rounds + 1), configurations.len() as u64);
        let timings = run_round(&configurations, &leaves, loaded, progress)?;
        longest_round_s = longest_round_s.max(round.elapsed().as_secs_f64());
        if let Some(others) = interval.other_programs().filter(|others| others.disturb()) {
            disturbance = Some(others);
            continue;
        }
        rounds += 1;
        for (configuration, (timing, under_load)) in configurations.iter_mut().zip(timings) {
            configuration.timings.extend(timing);
            configuration.under_load.extend(under_load);
        }
        if rounds >= ROUNDS && is_consistent(&configurations) {
            break;
        }
    }
    if rounds < MIN_ROUNDS || !is_consistent(&configurations) {
        return Ok(Err(reason(rounds, disturbance, &configurations)));
    }
    let noise = noise(&configurations, |it| &it.timings);
    let row = |it: Configuration| Row {
        timing: fastest(&it.timings),
        under_load: fastest(&it.under_load),
        configuration: it.name,
        not_run_predicted_s: it.not_run_predicted_s,
    };
    Ok(Ok(Comparison {
        leaves: count,
        rounds,
        noise,
        rows: configurations.into_iter().map(row).collect(),
        loaded_device: loaded.map(|device| device.id().clone()),
    }))
}

/// A build of each configuration, and one under background load.
type RoundTimings = Vec<(Option<Timing>, Option<Timing>)>;

fn run_round(
    configurations: &[Configuration],
    leaves: &Leaves<'_>,
    loaded: Option<&Device>,
    progress: &ProgressLine,
) -> Result<RoundTimings> {
    let mut timings = Vec::new();
    for configuration in configurations {
        let (mut timing, mut under_load) = (None, None);
        if configuration.not_run_predicted_s.is_none() {
            timing = Some(time(&configuration.builder, leaves)?);
            if let Some(device) = loaded.filter(|_| configuration.has_load) {
                let _load = BackgroundLoad::start(device);
                under_load = Some(time(&configuration.builder, leaves)?);
            }
        }
        timings.push((timing, under_load));
        progress.advance();
    }
    Ok(timings)
}

/// Returns whether the two fastest builds of each configuration agree, so that differences between configurations count.
fn is_consistent(configurations: &[Configuration]) -> bool {
    noise(configurations, |it| &it.timings) <= MAX_NOISE
        && noise(configurations, |it| &it.under_load) <= MAX_NOISE_UNDER_LOAD
}

/// Returns the largest relative difference between the two fastest builds of a configuration.
fn noise(configurations: &[Configuration], timings: impl Fn(&Configuration) -> &Vec<Timing>) -> f64 {
    let spread = |configuration: &Configuration| {
        let mut times: Vec<f64> = timings(configuration).iter().map(|timing| timing.wall_s).collect();
        times.sort_unstable_by(f64::total_cmp);
        match times[..] {
            [best, second, ..] => second / best.max(1e-9) - 1.0,
            _ => 0.0,
        }
    };
    configurations.iter().map(spread).fold(0.0, f64::max)
}

fn reason(rounds: usize, disturbance: Option<OtherPrograms>, configurations: &[Configuration]) -> String {
    match disturbance {
        Some(OtherPrograms { used_cores, cores }) => {
            format!("other programs used {used_cores:.1} of {cores} cores during the measurements")
        }
        None if rounds < MIN_ROUNDS => "there was not enough time for it".into(),
        None => {
            let noise = noise(configurations, |it| &it.timings);
            format!("the times of equal builds differed by up to {:.0} %", 100.0 * noise)
        }
    }
}

fn configurations(
    participants: &Participants,
    rates: &[Rate],
    leaves: &Leaves<'_>,
    has_load: bool,
) -> Result<Vec<Configuration>> {
    let mut configurations = Vec::new();
    let mut add = |name: String, builder: Builder, has_load, not_run_predicted_s| {
        let (timings, under_load) = (Vec::new(), Vec::new());
        configurations.push(Configuration {
            name,
            builder,
            has_load,
            not_run_predicted_s,
            timings,
            under_load,
        });
    };
    let pool = Pool::builder().devices(&participants.devices).keep_history_at(None).build()?;
    for strategy in Strategy::ALL.into_iter().rev() {
        let builder = Builder::new(&pool).strategy(strategy).all_devices();
        // These strategies share out by measured rates.
        if matches!(strategy, Strategy::Proportional | Strategy::Dynamic) {
            builder.calibrate(leaves)?;
        }
        let predicted_s = predicted_equal_s(rates, leaves.count());
        let is_too_long = strategy == Strategy::Equal && predicted_s > MAX_BUILD_S;
        add(strategy.to_string(), builder, has_load, is_too_long.then_some(predicted_s));
    }
    let rate = |rate: &&Rate| rate.leaves_per_s.unwrap_or(0.0);
    let fastest = rates.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
    let is_fastest = |device: &&Device| fastest.is_some_and(|fastest| fastest.id == *device.id());
    if let Some(device) = participants.devices.iter().find(is_fastest) {
        let builder = Builder::new(&Pool::builder().devices([device]).keep_history_at(None).build()?);
        add(format!("{} alone", device.id()), builder, false, None);
    }
    Ok(configurations)
}

/// Returns the predicted time of an equal split, which is that of the slowest device.
fn predicted_equal_s(rates: &[Rate], leaves: u64) -> f64 {
    let slowest = rates.iter().filter_map(|rate| rate.leaves_per_s).fold(f64::INFINITY, f64::min);
    leaves as f64 / rates.len() as f64 / slowest
}

fn fastest(timings: &[Timing]) -> Option<Timing> {
    timings.iter().copied().min_by(|a, b| a.wall_s.total_cmp(&b.wall_s))
}

fn time(builder: &Builder, leaves: &Leaves<'_>) -> Result<Timing> {
    let built = builder.root(leaves)?;
    let report = built.report().context("the build did not use the pool")?;
    let leaves_per_s = leaves.count() as f64 / report.wall_s.max(1e-9);
    Ok(Timing { wall_s: report.wall_s, leaves_per_s, efficiency: report.efficiency.unwrap_or(0.0) })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_equal_split_takes_as_long_as_the_slowest_device() {
        let rate = |leaves_per_s| Rate { id: Device::cpu().id().clone(), leaves_per_s };
        assert_eq!(predicted_equal_s(&[rate(Some(1000.0)), rate(Some(10.0))], 2000), 100.0);
        assert_eq!(predicted_equal_s(&[rate(Some(1000.0)), rate(None)], 2000), 1.0);
    }

    fn configuration(times: &[f64]) -> Configuration {
        let timing = |&wall_s: &f64| Timing { wall_s, leaves_per_s: 1.0, efficiency: 1.0 };
        Configuration {
            name: "adaptive".into(),
            builder: Builder::new(&Pool::new([Device::cpu()]).unwrap()),
            has_load: false,
            not_run_predicted_s: None,
            timings: times.iter().map(timing).collect(),
            under_load: Vec::new(),
        }
    }

    #[test]
    fn times_that_differ_from_round_to_round_are_no_comparison() {
        let (steady, noisy) = ([configuration(&[1.5, 1.0, 1.02])], [configuration(&[1.0, 1.3, 1.9])]);
        assert!(is_consistent(&steady) && !is_consistent(&noisy));
        assert_eq!(reason(3, None, &noisy), "the times of equal builds differed by up to 30 %");
        assert_eq!(fastest(&steady[0].timings).unwrap().wall_s, 1.0);
        let others = OtherPrograms { used_cores: 1.25, cores: 2 };
        let why = reason(0, Some(others), &steady);
        assert_eq!(why, "other programs used 1.2 of 2 cores during the measurements");
    }
}
