//! Splitting layers into pipeline stages: contiguous, none empty, within memory, with the fastest slowest stage.

use std::ops::Range;

use super::{
    error::PlacementError,
    workload::{Layer, PrefixSums, check_costs},
};

/// Tolerance for rounding, as a factor.
const ROUNDING: f64 = 1.0 + 1e-12;

/// What a stage's devices can do together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageCapacity {
    /// Work per second.
    pub rate_per_s: f64,
    /// The maximum memory of its layers; `None` if unknown, and then it is not checked.
    pub memory_bytes: Option<u64>,
}

/// Layers split into stages.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSplit {
    /// The layers of each stage.
    pub stages: Vec<Range<usize>>,
    /// The time of the slowest stage.
    pub slowest_s: f64,
}

/// Splits layers into stages, in order: each stage gets at least one layer, the slowest stage is as fast as possible,
/// and of such splits the sum of all stages' times is the least. The result is exact.
///
/// ```
/// use evener_mesh::placement::{Layer, StageCapacity, split_layers};
///
/// let layers = [4.0, 1.0, 1.0, 1.0, 1.0].map(|cost| Layer { cost, ..Layer::default() });
/// let stages = [2.0, 2.0].map(|rate_per_s| StageCapacity { rate_per_s, memory_bytes: None });
/// let split = split_layers(&layers, &stages)?;
/// assert_eq!(split.stages, [0..1, 1..5]);
/// assert_eq!(split.slowest_s, 2.0);
/// # Ok::<(), evener_mesh::placement::PlacementError>(())
/// ```
pub fn split_layers(layers: &[Layer], stages: &[StageCapacity]) -> Result<LayerSplit, PlacementError> {
    check_costs(layers)?;
    for (index, stage) in stages.iter().enumerate() {
        let rate = stage.rate_per_s;
        if !rate.is_finite() || rate <= 0.0 {
            let (device, what) = (format!("stage {index}"), "its rate");
            return Err(PlacementError::InvalidNumber { device, what, value: rate });
        }
    }
    if stages.is_empty() || stages.len() > layers.len() {
        return Err(PlacementError::TooFewLayers { layers: layers.len(), stages: stages.len().max(1) });
    }
    let sums = PrefixSums::of(layers);
    let seconds = |stage: usize, from: usize, until: usize| sums.cost(from, until) / stages[stage].rate_per_s;
    let capacity = |stage: usize| stages[stage].memory_bytes.map(u128::from);
    let fits = |stage: usize, from: usize, until: usize| {
        capacity(stage).is_none_or(|capacity| sums.memory(from, until) <= capacity)
    };
    split_by(layers.len(), stages.len(), seconds, fits)
        .ok_or_else(|| PlacementError::Memory(why_none_fits(&sums, layers, (0..stages.len()).map(capacity))))
}

pub(super) fn why_none_fits(
    sums: &PrefixSums,
    layers: &[Layer],
    capacities: impl Iterator<Item = Option<u128>> + Clone,
) -> String {
    let needed = sums.memory(0, layers.len());
    let Some(capacity) = capacities.clone().sum::<Option<u128>>() else {
        return format!("they need {} in their order", bytes(needed));
    };
    let largest = layers.iter().map(|layer| u128::from(layer.memory_bytes)).max().unwrap_or(0);
    let stage = capacities.flatten().max().unwrap_or(0);
    if needed > capacity {
        format!(
            "they need {}, and the stages have {}: {} too little",
            bytes(needed),
            bytes(capacity),
            bytes(needed - capacity)
        )
    } else if largest > stage {
        format!(
            "the largest layer needs {}, and the largest stage has {}: raise tp",
            bytes(largest),
            bytes(stage)
        )
    } else {
        format!(
            "they need {} of the {} that the stages have, but no split in the layers' order fits: the largest layer \
             needs {}",
            bytes(needed),
            bytes(capacity),
            bytes(largest)
        )
    }
}

fn bytes(count: u128) -> String {
    const GIB: u128 = 1 << 30;
    if count < GIB { format!("{count} bytes") } else { format!("{:.1} GiB", count as f64 / GIB as f64) }
}

/// Splits by any cost of time and memory. `seconds` must not decrease, and `fits` must not become true again, when
/// layers are added in front. Returns `None` if no split fits.
pub(super) fn split_by(
    layers: usize,
    stages: usize,
    seconds: impl Fn(usize, usize, usize) -> f64,
    fits: impl Fn(usize, usize, usize) -> bool,
) -> Option<LayerSplit> {
    let slowest_s = fastest_slowest(layers, stages, &seconds, &fits);
    if !slowest_s.is_finite() {
        return None;
    }
    // Of the splits with this slowest stage, takes the one with the least total time, which fills the pipeline soonest.
    let most = slowest_s * ROUNDING;
    let mut least = vec![f64::INFINITY; layers + 1];
    least[0] = 0.0;
    let mut begins = vec![vec![0; layers + 1]; stages];
    for (stage, begins) in begins.iter_mut().enumerate() {
        let before = std::mem::replace(&mut least, vec![f64::INFINITY; layers + 1]);
        for until in stage + 1..=layers - (stages - 1 - stage) {
            for from in (stage..until).rev() {
                let time = seconds(stage, from, until);
                if time > most || !fits(stage, from, until) {
                    break;
                }
                if before[from] + time < least[until] {
                    least[until] = before[from] + time;
                    begins[until] = from;
                }
            }
        }
    }
    let mut until = layers;
    let mut ranges: Vec<Range<usize>> = Vec::with_capacity(stages);
    for begins in begins.iter().rev() {
        ranges.push(begins[until]..until);
        until = begins[until];
    }
    ranges.reverse();
    Some(LayerSplit { stages: ranges, slowest_s })
}

/// Returns the time of the slowest stage in the best split: over all starts of the last stage, the slower of it and of
/// the best split of the layers before.
fn fastest_slowest(
    layers: usize,
    stages: usize,
    seconds: &impl Fn(usize, usize, usize) -> f64,
    fits: &impl Fn(usize, usize, usize) -> bool,
) -> f64 {
    let mut slowest = vec![f64::INFINITY; layers + 1];
    slowest[0] = 0.0;
    for stage in 0..stages {
        let ends = stage + 1..=layers - (stages - 1 - stage);
        let best = |until: usize| {
            let mut best = f64::INFINITY;
            for from in (stage..until).rev() {
                let time = seconds(stage, from, until);
                if time >= best || !fits(stage, from, until) {
                    break;
                }
                best = best.min(slowest[from].max(time));
            }
            best
        };
        slowest = (0..=layers)
            .map(|until| if ends.contains(&until) { best(until) } else { f64::INFINITY })
            .collect();
    }
    slowest[layers]
}
