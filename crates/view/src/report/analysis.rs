//! Adds up what the lanes of a trace did.

use serde::Serialize;

use super::run_trace::{LaneActivity, LaneSpan, LaneTrace, RunTrace};

/// The times of a run.
#[derive(Debug, Serialize)]
pub struct Analysis {
    /// The time of the run.
    pub wall_s: f64,
    /// The number of items whose results were accepted.
    pub items: u64,
    /// The number of items that were computed again by a speculative copy, or by a chunk that a copy overtook.
    pub duplicates: u64,
    /// The number of chunks.
    pub chunks: u64,
    /// The number of lanes.
    pub lanes: usize,
    /// The mean over all lanes.
    pub total: Times,
    /// Each device, in the order of the trace.
    pub devices: Vec<DeviceTimes>,
}

/// The times of a device, as the mean over its lanes.
#[derive(Debug, Serialize)]
pub struct DeviceTimes {
    /// Its id.
    pub id: String,
    /// The number of its lanes.
    pub lanes: usize,
    /// The number of items whose results were accepted from the device.
    pub items: u64,
    /// The number of items that another device computed as well, whose results were accepted first.
    pub duplicates: u64,
    /// The device's share of all items.
    pub share: f64,
    /// The number of its chunks.
    pub chunks: u64,
    /// The number of chunks that failed.
    pub failures: u64,
    /// The number of chunks that another lane finished first.
    pub dropped: u64,
    /// The number of speculative copies of slower lanes' chunks whose results were used.
    pub speculative: u64,
    /// The median time of a chunk.
    pub median_chunk_s: f64,
    /// How it spent the time of the run.
    #[serde(flatten)]
    pub times: Times,
}

/// Shares of the time of a run. All but `copy` and `prepare` add up to 1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Times {
    /// Computing results that were used.
    pub busy: f64,
    /// Copying between host and device, a part of `busy`.
    pub copy: f64,
    /// On chunks that failed, or that another lane finished first.
    pub wasted: f64,
    /// Before the first chunk.
    pub start: f64,
    /// Opening devices and compiling kernels, a part of `start` or `gaps`.
    pub prepare: f64,
    /// Idle between chunks.
    pub gaps: f64,
    /// After the last chunk.
    pub tail: f64,
}

impl Analysis {
    /// Adds up what the lanes did.
    pub fn new(trace: &RunTrace) -> Analysis {
        let spans = || trace.lanes.iter().flat_map(|lane| &lane.spans);
        let wall_s = spans().map(|span| span.until_s).fold(0.0, f64::max);
        let items: u64 = spans().map(|span| span.accepted).sum();
        let device = |(id, lanes): &(&str, Vec<&LaneTrace>)| DeviceTimes::new(id, lanes, wall_s, items);
        let devices: Vec<DeviceTimes> = trace.devices().iter().map(device).collect();
        Analysis {
            wall_s,
            items,
            duplicates: spans().map(|span| span.duplicates).sum(),
            chunks: devices.iter().map(|device| device.chunks).sum(),
            lanes: trace.lanes.len(),
            total: Times::mean(trace.lanes.iter().map(|lane| Times::of(lane, wall_s))),
            devices,
        }
    }
}

impl DeviceTimes {
    fn new(id: &str, lanes: &[&LaneTrace], wall_s: f64, all_items: u64) -> DeviceTimes {
        let spans = || lanes.iter().flat_map(|lane| &lane.spans);
        let count = |activity: LaneActivity| spans().filter(|span| span.activity == activity).count() as u64;
        let items = spans().map(|span| span.accepted).sum();
        let mut chunk_times: Vec<f64> =
            spans().filter(|span| span.activity.is_chunk()).map(|span| span.until_s - span.from_s).collect();
        chunk_times.sort_unstable_by(f64::total_cmp);
        DeviceTimes {
            id: id.into(),
            lanes: lanes.len(),
            items,
            duplicates: spans().map(|span| span.duplicates).sum(),
            share: items as f64 / all_items.max(1) as f64,
            chunks: chunk_times.len() as u64,
            failures: count(LaneActivity::Failure),
            dropped: count(LaneActivity::Dropped),
            speculative: count(LaneActivity::Speculative),
            median_chunk_s: chunk_times.get(chunk_times.len() / 2).copied().unwrap_or(0.0),
            times: Times::mean(lanes.iter().map(|lane| Times::of(lane, wall_s))),
        }
    }
}

impl Times {
    fn of(lane: &LaneTrace, wall_s: f64) -> Times {
        let covered =
            |is_counted: &dyn Fn(&LaneSpan) -> bool| covered_s(lane.spans.iter().filter(|it| is_counted(it)));
        let chunks = || lane.spans.iter().filter(|span| span.activity.is_chunk());
        let first = chunks().map(|span| span.from_s).fold(wall_s, f64::min);
        let last = chunks().map(|span| span.until_s).fold(first, f64::max);
        let in_chunks = covered(&|span| span.activity.is_chunk());
        let busy = covered(&|span| span.activity.is_used());
        let share = |seconds: f64| (seconds / wall_s.max(1e-12)).clamp(0.0, 1.0);
        Times {
            busy: share(busy),
            copy: share(covered(&|span| span.activity == LaneActivity::Copy)),
            wasted: share(in_chunks - busy),
            start: share(first),
            prepare: share(covered(&|span| span.activity == LaneActivity::Preparation)),
            gaps: share(last - first - in_chunks),
            tail: share(wall_s - last),
        }
    }

    fn mean(all: impl Iterator<Item = Times>) -> Times {
        let (mut sum, mut count) = (Times::default(), 0.0f64);
        for Times { busy, copy, wasted, start, prepare, gaps, tail } in all {
            count += 1.0;
            sum.busy += busy;
            sum.copy += copy;
            sum.wasted += wasted;
            sum.start += start;
            sum.prepare += prepare;
            sum.gaps += gaps;
            sum.tail += tail;
        }
        let count = count.max(1.0);
        Times {
            busy: sum.busy / count,
            copy: sum.copy / count,
            wasted: sum.wasted / count,
            start: sum.start / count,
            prepare: sum.prepare / count,
            gaps: sum.gaps / count,
            tail: sum.tail / count,
        }
    }
}

/// Returns the time that spans cover. Chunks of one lane overlap, since two are in flight on a GPU.
fn covered_s<'a>(spans: impl Iterator<Item = &'a LaneSpan>) -> f64 {
    let mut intervals: Vec<(f64, f64)> = spans.map(|span| (span.from_s, span.until_s)).collect();
    intervals.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut covered, mut end) = (0.0, f64::NEG_INFINITY);
    for (from, until) in intervals {
        covered += (until - from.max(end)).max(0.0);
        end = end.max(until);
    }
    covered
}

#[cfg(test)]
pub(super) mod test {
    use super::*;

    /// A lane of a device with spans of an activity, the items and the time.
    pub(in crate::report) fn lane(device: &str, spans: &[(LaneActivity, u64, f64, f64)]) -> LaneTrace {
        let span = |&(activity, items, from_s, until_s): &(LaneActivity, u64, f64, f64)| {
            let accepted = if activity.is_used() { items } else { 0 };
            LaneSpan { activity, items, accepted, duplicates: 0, from_s, until_s }
        };
        LaneTrace { device: device.into(), spans: spans.iter().map(span).collect() }
    }

    #[test]
    fn times_add_up_and_overlaps_count_once() {
        let lanes = vec![
            lane(
                "gpu",
                &[
                    (LaneActivity::Work, 30, 1.0, 4.0),
                    (LaneActivity::Copy, 30, 1.0, 2.0),
                    (LaneActivity::Work, 30, 3.0, 6.0),
                    (LaneActivity::Preparation, 0, 0.0, 1.0),
                ],
            ),
            lane("cpu", &[(LaneActivity::Work, 20, 0.0, 4.0), (LaneActivity::Dropped, 20, 5.0, 10.0)]),
            lane("cpu", &[]),
        ];
        let analysis = Analysis::new(&RunTrace::of(lanes));
        assert_eq!((analysis.wall_s, analysis.items, analysis.chunks, analysis.lanes), (10.0, 80, 4, 3));
        let [gpu, cpu] = &analysis.devices[..] else { panic!("two devices") };
        let times =
            Times { busy: 0.5, copy: 0.1, wasted: 0.0, start: 0.1, prepare: 0.1, gaps: 0.0, tail: 0.4 };
        assert_eq!(gpu.times, times);
        assert_eq!((gpu.share, gpu.chunks, gpu.median_chunk_s), (0.75, 2, 3.0));
        // The mean of a lane that worked and one that had nothing to do.
        assert_eq!((cpu.lanes, cpu.dropped), (2, 1));
        let Times { busy, wasted, start, gaps, tail, .. } = cpu.times;
        assert_eq!([busy, wasted, start, gaps, tail], [0.2, 0.25, 0.5, 0.05, 0.0]);
        for Times { busy, wasted, start, gaps, tail, .. } in [gpu.times, cpu.times, analysis.total] {
            assert!((busy + wasted + start + gaps + tail - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn items_that_two_lanes_computed_count_once() {
        let mut lanes = vec![
            lane("gpu", &[(LaneActivity::Work, 16, 0.0, 4.0)]),
            lane("cpu", &[(LaneActivity::Speculative, 6, 1.0, 4.0), (LaneActivity::Dropped, 3, 4.0, 5.0)]),
        ];
        (lanes[1].spans[0].accepted, lanes[1].spans[0].duplicates) = (2, 4);
        lanes[1].spans[1].duplicates = 3;
        let analysis = Analysis::new(&RunTrace::of(lanes));
        assert_eq!((analysis.items, analysis.duplicates), (18, 7));
        let devices: Vec<_> = analysis.devices.iter().map(|it| (it.items, it.duplicates)).collect();
        assert_eq!(devices, [(16, 0), (2, 7)]);
    }
}
