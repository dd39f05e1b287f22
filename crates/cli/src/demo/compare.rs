//! The ways to share work out, and the fastest device alone.

use anyhow::{Context, Result};
use evener_device::{Device, DeviceId};
use evener_merkle::{Builder, Leaves};
use evener_schedule::{Pool, Strategy};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{LEAF_BYTES, Rate, STEP, cast::Cast, neighbour::Neighbour};

/// Each build takes about so long; the best of so many counts, because everything that disturbs makes it worse.
const BUILD_S: f64 = 0.4;
pub(super) const REPEATS: usize = 3;

/// What would take longer than this is not tried.
const MOST_S: f64 = 2.0;

/// How long the same took in several ways.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) leaves: u64,
    pub(super) rows: Vec<Row>,
    /// The device whose cores somebody else kept busy.
    pub(super) neighbour_on: Option<DeviceId>,
}

/// One of the ways.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    /// A strategy, or a device alone.
    pub(super) way: String,
    /// Nothing where it was not tried.
    #[serde(flatten)]
    pub(super) timing: Option<Timing>,
    /// How long it would take, where that is too long to try.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) not_tried_s: Option<f64>,
    /// The same while somebody else kept cores of one device busy.
    pub(super) with_neighbour: Option<Timing>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Timing {
    pub(super) wall_s: f64,
    pub(super) leaves_per_s: f64,
    pub(super) efficiency: f64,
}

impl Comparison {
    pub(super) fn row(&self, way: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.way == way)
    }

    /// The fastest device alone.
    pub(super) fn alone(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.way.ends_with(" alone"))
    }
}

/// A way to build, and how long it has taken so far.
struct Way<'a> {
    name: String,
    builder: Builder,
    /// Who is disturbed while it is tried once more.
    disturbed: Option<&'a Device>,
    /// How long it would take, where that is too long to try.
    too_long_s: Option<f64>,
    alone: Option<Timing>,
    with_neighbour: Option<Timing>,
}

/// Tries every strategy, and the fastest device alone, turn by turn, so that what disturbs the machine disturbs all alike.
pub(super) fn compare(cast: &Cast, rates: &[Rate], all: &[u8], is_silent: bool) -> Result<Comparison> {
    let together: f64 = rates.iter().filter_map(|rate| rate.leaves_per_s).sum();
    let most = (all.len() / LEAF_BYTES) as u64;
    let count = ((together * BUILD_S) as u64 / STEP * STEP).clamp(STEP, most);
    let leaves = Leaves::fixed_size(&all[..count as usize * LEAF_BYTES], LEAF_BYTES)?;
    // Parts of one processor are alike, and so are the ways to share work out between them: until somebody disturbs one.
    let disturbed = cast.devices.first().filter(|_| cast.was_split);
    let mut ways = ways(cast, rates, &leaves, disturbed)?;
    let bar = bar((ways.len() * REPEATS) as u64, is_silent);
    for _ in 0..REPEATS {
        for way in ways.iter_mut().filter(|way| way.too_long_s.is_none()) {
            bar.set_message(way.name.clone());
            way.alone = better(way.alone, time(&way.builder, &leaves)?);
            if let Some(device) = way.disturbed {
                let _neighbour = Neighbour::on(device);
                way.with_neighbour = better(way.with_neighbour, time(&way.builder, &leaves)?);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    let row = |way: Way<'_>| Row {
        way: way.name,
        timing: way.alone,
        not_tried_s: way.too_long_s,
        with_neighbour: way.with_neighbour,
    };
    Ok(Comparison {
        leaves: count,
        rows: ways.into_iter().map(row).collect(),
        neighbour_on: disturbed.map(|device| device.id().clone()),
    })
}

fn ways<'a>(
    cast: &Cast,
    rates: &[Rate],
    leaves: &Leaves<'_>,
    disturbed: Option<&'a Device>,
) -> Result<Vec<Way<'a>>> {
    let mut ways = Vec::new();
    let mut add = |name: String, builder: Builder, disturbed, too_long_s| {
        ways.push(Way { name, builder, disturbed, too_long_s, alone: None, with_neighbour: None });
    };
    let pool = Pool::builder().devices(&cast.devices).keep_history_at(None).build()?;
    for strategy in Strategy::ALL.into_iter().rev() {
        let builder = Builder::new(&pool).strategy(strategy).all_devices();
        // Fixed shares go by this.
        builder.calibrate(leaves)?;
        let equal_s = equal_s(rates, leaves.count());
        let too_long_s = (strategy == Strategy::Equal && equal_s > MOST_S).then_some(equal_s);
        add(strategy.to_string(), builder, disturbed, too_long_s);
    }
    let rate = |rate: &&Rate| rate.leaves_per_s.unwrap_or(0.0);
    let fastest = rates.iter().max_by(|a, b| rate(a).total_cmp(&rate(b)));
    let is_fastest = |device: &&Device| fastest.is_some_and(|fastest| fastest.id == *device.id());
    if let Some(device) = cast.devices.iter().find(is_fastest) {
        let builder = Builder::new(&Pool::builder().devices([device]).keep_history_at(None).build()?);
        add(format!("{} alone", device.id()), builder, None, None);
    }
    Ok(ways)
}

/// How long an equal split would take: as long as the slowest device.
fn equal_s(rates: &[Rate], leaves: u64) -> f64 {
    let slowest = rates.iter().filter_map(|rate| rate.leaves_per_s).fold(f64::INFINITY, f64::min);
    leaves as f64 / rates.len() as f64 / slowest
}

fn bar(steps: u64, is_silent: bool) -> ProgressBar {
    let bar = if is_silent { ProgressBar::hidden() } else { ProgressBar::new(steps) };
    let style = ProgressStyle::with_template("comparing {msg} [{bar:24}] {pos}/{len}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn better(best: Option<Timing>, timing: Timing) -> Option<Timing> {
    best.filter(|best| best.wall_s <= timing.wall_s).or(Some(timing))
}

fn time(builder: &Builder, leaves: &Leaves<'_>) -> Result<Timing> {
    let built = builder.root(leaves)?;
    // There are enough leaves for a run.
    let report = built.report().context("the pool did nothing")?;
    let leaves_per_s = leaves.count() as f64 / report.wall_s.max(1e-9);
    Ok(Timing { wall_s: report.wall_s, leaves_per_s, efficiency: report.efficiency.unwrap_or(0.0) })
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn an_equal_split_takes_as_long_as_the_slowest_device() {
        let rate = |leaves_per_s| Rate { id: Device::cpu().id().clone(), leaves_per_s };
        assert_eq!(equal_s(&[rate(Some(1000.0)), rate(Some(10.0))], 2000), 100.0);
        assert_eq!(equal_s(&[rate(Some(1000.0)), rate(None)], 2000), 1.0);
    }
}
