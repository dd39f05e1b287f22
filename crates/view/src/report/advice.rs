//! Turns times into causes and advice.

use serde::Serialize;

use super::{
    Analysis,
    markup::plain,
    numbers::{format_counted, format_percent as percent, format_time},
};

/// The minimum share of the time of a run for which a cause is reported.
const MIN_SHARE: f64 = 0.05;
/// The minimum share for results that were computed twice.
const MIN_WASTED: f64 = 0.02;
/// The share of its busy time above which a device is limited by copies.
const MAX_COPY: f64 = 0.5;
/// The share of items below which a device contributes next to nothing.
const MIN_ITEMS: f64 = 0.01;
/// The median time of a chunk below which overhead dominates.
const SHORT_CHUNK_S: f64 = 50e-6;

/// A cause of lost time, and what to change.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// The share of the time of all lanes that it costs.
    pub share: f64,
    /// What cost the time.
    pub cause: String,
    /// What to change.
    pub advice: String,
}

/// Returns the causes of lost time, the most expensive first. There is always at least one finding.
pub fn findings(analysis: &Analysis) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |share: f64, cause: String, advice: &str| {
        findings.push(Finding { share, cause, advice: advice.into() });
    };
    let wall_s = analysis.wall_s;
    for device in &analysis.devices {
        let (id, times) = (plain(&device.id), &device.times);
        let weight = device.lanes as f64 / analysis.lanes.max(1) as f64;
        let time = |share: f64| format!("{} ({} of the run)", format_time(share * wall_s), percent(share));
        if device.chunks == 0 {
            add(
                weight,
                format!("{id} did nothing."),
                "It was ready too late or failed: check `evener devices`, and run again with -v.",
            );
            continue;
        }
        if device.failures > 0 {
            add(
                weight * times.wasted,
                format!("{} failed on {id}.", format_counted(device.failures, "chunk", "chunks")),
                "See the errors with -v, or leave the device out with --devices.",
            );
        }
        if device.dropped > 0 && times.wasted >= MIN_WASTED {
            add(
                weight * times.wasted,
                format!(
                    "Other devices finished {} of {id} first, which cost {}.",
                    format_counted(device.dropped, "chunk", "chunks"),
                    time(times.wasted)
                ),
                "It is slow or unsteady: stop other programs on it, or leave it out with --devices.",
            );
        }
        if times.start >= MIN_SHARE {
            let prepare = match times.prepare {
                share if share < MIN_SHARE => String::new(),
                share => format!(": preparing it (opening, compiling) took {}", time(share)),
            };
            add(
                weight * times.start,
                format!("{id} began its first chunk after {}{prepare}.", time(times.start)),
                "Reuse the pool for several runs, keep EVENER_CACHE_DIR for compiled kernels, or give it more items.",
            );
        }
        if times.gaps >= MIN_SHARE {
            add(
                weight * times.gaps,
                format!("{id} was idle between chunks for {}.", time(times.gaps)),
                "The host or the input may be too slow: leave it a free core, or prepare items ahead.",
            );
        }
        if times.tail >= MIN_SHARE {
            add(
                weight * times.tail,
                format!("{id} waited {} at the end for other devices.", time(times.tail)),
                "Use --strategy adaptive, or make items smaller, so that the last ones end together.",
            );
        }
        if times.busy > 0.0 && times.copy / times.busy > MAX_COPY {
            add(
                weight * times.copy,
                format!(
                    "{id} copied for {}, which is {} of its busy time.",
                    time(times.copy),
                    percent(times.copy / times.busy)
                ),
                "Keep data on the device, use pinned memory (HostBuffer), or do more work per byte.",
            );
        }
        if device.median_chunk_s < SHORT_CHUNK_S && device.chunks > 100 {
            add(
                0.0,
                format!("Chunks on {id} take {} only.", format_time(device.median_chunk_s)),
                "Overhead dominates: put more work into an item, or use fewer devices.",
            );
        }
        if device.share < MIN_ITEMS && analysis.devices.len() > 1 {
            add(
                0.0,
                format!("{id} did {} of the items.", percent(device.share)),
                "Leaving it out with --devices costs next to nothing.",
            );
        }
    }
    findings.sort_by(|a, b| b.share.total_cmp(&a.share));
    if findings.is_empty() {
        findings.push(Finding {
            share: 0.0,
            cause: format!("Nothing: the lanes were busy for {} of the time.", percent(analysis.total.busy)),
            advice: "A faster run needs faster code per item, or more devices.".into(),
        });
    }
    findings
}

#[cfg(test)]
mod test {
    use super::{
        super::{
            analysis::test::lane,
            run_trace::{LaneActivity, LaneTrace, RunTrace},
        },
        *,
    };

    fn causes(lanes: Vec<LaneTrace>) -> Vec<String> {
        findings(&Analysis::new(&RunTrace::of(lanes))).into_iter().map(|finding| finding.cause).collect()
    }

    #[test]
    fn a_run_without_losses_needs_no_change() {
        let lanes = ["a", "b"].map(|id| lane(id, &[(LaneActivity::Work, 5, 0.0, 10.0)])).into();
        assert_eq!(causes(lanes), ["Nothing: the lanes were busy for 100.0 % of the time."]);
    }

    #[test]
    fn every_cause_is_found_and_the_most_expensive_is_first() {
        let lanes = vec![
            lane("late", &[(LaneActivity::Work, 50, 2.0, 10.0), (LaneActivity::Preparation, 0, 0.5, 2.0)]),
            lane("early", &[(LaneActivity::Work, 50, 0.0, 4.0), (LaneActivity::Copy, 50, 0.0, 3.0)]),
            lane("gap", &[(LaneActivity::Work, 50, 0.0, 5.0), (LaneActivity::Work, 50, 6.0, 10.0)]),
            lane("lost", &[(LaneActivity::Work, 50, 0.0, 9.0), (LaneActivity::Failure, 50, 9.0, 10.0)]),
            lane("slow", &[(LaneActivity::Work, 1, 0.0, 7.0), (LaneActivity::Dropped, 50, 7.0, 10.0)]),
            lane("none", &[]),
        ];
        let causes = causes(lanes);
        for part in [
            "none did nothing.",
            "early waited 6.000 s (60.0 % of the run) at the end",
            "early copied for 3.000 s (30.0 % of the run), which is 75.0 % of its busy time.",
            "Other devices finished 1 chunk of slow first, which cost 3.000 s",
            "late began its first chunk after 2.000 s (20.0 % of the run): preparing it (opening, compiling) took 1.500 s",
            "gap was idle between chunks for 1.000 s",
            "1 chunk failed on lost.",
            "slow did 0.4 % of the items.",
        ] {
            assert!(causes.iter().any(|cause| cause.contains(part)), "{part}: {causes:#?}");
        }
        assert_eq!(causes.len(), 8, "{causes:#?}");
        assert!(causes[0].starts_with("none") && causes[1].starts_with("early waited"), "{causes:#?}");
    }

    #[test]
    fn many_short_chunks_are_told() {
        let spans: Vec<_> =
            (0..200).map(|n| (LaneActivity::Work, 1, f64::from(n) * 1e-5, f64::from(n + 1) * 1e-5)).collect();
        assert_eq!(causes(vec![lane("cpu", &spans)]), ["Chunks on cpu take 10.0 µs only."]);
    }
}
