//! The rows of the list: runs, and below them their devices and lanes, filtered and sorted.

use std::{cmp::Ordering, collections::HashMap};

use super::scene::Scene;
use crate::state::{DeviceState, DeviceView, Program, RunView};

/// What a row stands for, as long as it is there: not where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct RowKey {
    pub(super) pid: u32,
    pub(super) run: Option<u64>,
    pub(super) device: Option<usize>,
    pub(super) lane: Option<usize>,
}

impl RowKey {
    fn program(pid: u32) -> RowKey {
        RowKey { pid, run: None, device: None, lane: None }
    }

    fn run(pid: u32, run: u64) -> RowKey {
        RowKey { run: Some(run), ..RowKey::program(pid) }
    }

    /// The row that this one is below.
    pub(super) fn parent(self) -> Option<RowKey> {
        match self {
            RowKey { lane: Some(_), .. } => Some(RowKey { lane: None, ..self }),
            RowKey { device: Some(_), .. } => Some(RowKey { device: None, ..self }),
            _ => None,
        }
    }
}

/// A row, by where its data are in the [`Scene`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    /// A program without runs.
    Idle {
        program: usize,
    },
    Run {
        program: usize,
        run: usize,
    },
    Device {
        program: usize,
        run: usize,
        device: usize,
    },
    Lane {
        program: usize,
        run: usize,
        device: usize,
        lane: usize,
    },
    LeftOut {
        program: usize,
        run: usize,
        left_out: usize,
    },
    /// Why a run has ended, or what it waits for.
    Note {
        program: usize,
        run: usize,
    },
}

impl Row {
    /// The key by which it can be selected.
    pub(super) fn key(self, scene: &Scene) -> Option<RowKey> {
        let pid = |program: usize| scene.programs.get(program).map(|it| it.pid);
        let run = |program: usize, run: usize| {
            let program = scene.programs.get(program)?;
            Some(RowKey::run(program.pid, program.runs.get(run)?.summary.id))
        };
        match self {
            Row::Idle { program } => pid(program).map(RowKey::program),
            Row::Run { program, run: index } => run(program, index),
            Row::Device { program, run: index, device } => {
                Some(RowKey { device: Some(device), ..run(program, index)? })
            }
            Row::Lane { program, run: index, device, lane } => {
                Some(RowKey { device: Some(device), lane: Some(lane), ..run(program, index)? })
            }
            Row::LeftOut { .. } | Row::Note { .. } => None,
        }
    }
}

/// By what the list is sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sort {
    /// Runs by when they began, the newest first, and devices as the run has them.
    #[default]
    Order,
    Name,
    /// The progress of runs, and the share of devices.
    Share,
    Rate,
    State,
    Retries,
    TimeLeft,
}

impl Sort {
    pub(super) const ALL: [Sort; 7] =
        [Sort::Order, Sort::Name, Sort::Share, Sort::Rate, Sort::State, Sort::Retries, Sort::TimeLeft];

    pub(super) fn name(self) -> &'static str {
        match self {
            Sort::Order => "order",
            Sort::Name => "name",
            Sort::Share => "progress and share",
            Sort::Rate => "rate",
            Sort::State => "state",
            Sort::Retries => "retries and rescues",
            Sort::TimeLeft => "time left",
        }
    }

    fn runs(self, a: &RunView, b: &RunView) -> Ordering {
        let (x, y) = (&a.summary, &b.summary);
        let done = |run: &RunView| {
            run.summary.items.map_or(0.0, |items| run.summary.done as f64 / items.max(1) as f64)
        };
        let sum = |run: &RunView| run.devices.iter().map(trouble).sum::<u64>();
        let worst = |run: &RunView| run.devices.iter().map(severity).max();
        let left = |run: &RunView| run.summary.remaining_s.unwrap_or(f64::INFINITY);
        let by = match self {
            Sort::Order => Ordering::Equal,
            Sort::Name => x.task.cmp(&y.task),
            Sort::Share => done(b).total_cmp(&done(a)),
            Sort::Rate => y.items_per_second.total_cmp(&x.items_per_second),
            Sort::State => worst(b).cmp(&worst(a)),
            Sort::Retries => sum(b).cmp(&sum(a)),
            Sort::TimeLeft => left(a).total_cmp(&left(b)),
        };
        // What runs now comes first, and then what began last.
        x.ended.is_some().cmp(&y.ended.is_some()).then(by).then(y.began_unix_s.total_cmp(&x.began_unix_s))
    }

    fn devices(self, a: &DeviceView, b: &DeviceView) -> Ordering {
        let (x, y) = (&a.totals, &b.totals);
        let rate = |it: Option<f64>| it.unwrap_or(0.0);
        match self {
            Sort::Order => Ordering::Equal,
            Sort::Name => a.id.cmp(&b.id),
            Sort::Share => y.items.cmp(&x.items),
            Sort::Rate => rate(y.items_per_second).total_cmp(&rate(x.items_per_second)),
            Sort::State => severity(b).cmp(&severity(a)),
            Sort::Retries => trouble(b).cmp(&trouble(a)),
            Sort::TimeLeft => y.in_hand.cmp(&x.in_hand),
        }
    }
}

/// Retries and rescues.
fn trouble(device: &DeviceView) -> u64 {
    let it = &device.totals;
    it.retries.saturating_add(rescues(device)).saturating_add(it.quarantines)
}

/// Chunks of slower or failed devices that a device took over: speculative copies that won, and stolen items.
pub(super) fn rescues(device: &DeviceView) -> u64 {
    device.totals.speculative.saturating_add(device.totals.steals)
}

fn severity(device: &DeviceView) -> u8 {
    match device.totals.state {
        DeviceState::Healthy => 0,
        DeviceState::Quarantined { .. } => 1,
        DeviceState::Retired => 2,
    }
}

/// How the rows are chosen.
#[derive(Debug, Clone, Default)]
pub(super) struct Selection {
    pub(super) sort: Sort,
    pub(super) is_inverted: bool,
    pub(super) filter: String,
    /// Rows that the user opened or closed, and whether those below them are shown.
    pub(super) opened: HashMap<RowKey, bool>,
}

impl Selection {
    /// Whether the rows below a row are shown: by default the devices of runs of now, and of the last run of a program that
    /// has none.
    pub(super) fn is_open(&self, key: RowKey, program: &Program, run: &RunView) -> bool {
        self.opened.get(&key).copied().unwrap_or_else(|| {
            let is_last = || {
                program.active().next().is_none()
                    && program.runs.last().is_some_and(|last| last.summary.id == run.summary.id)
            };
            key.device.is_none() && (run.summary.ended.is_none() || is_last())
        })
    }

    /// Returns the rows. Devices are looked at by the filter and the sort; nothing is copied.
    pub(super) fn rows(&self, scene: &Scene) -> Vec<Row> {
        let filter = Filter::new(&self.filter);
        let mut runs = Vec::new();
        let mut idle = Vec::new();
        for (program, it) in scene.programs.iter().enumerate() {
            let matches = filter.matches(&it.name) || filter.matches(&it.pid.to_string());
            if it.runs.is_empty() && matches {
                idle.push(Row::Idle { program });
            }
            let shown = (0..it.runs.len()).filter(|&run| !is_repeated(it, run));
            runs.extend(shown.map(|run| (program, run, matches)));
        }
        let run_of = |&(program, run, _): &(usize, usize, bool)| &scene.programs[program].runs[run];
        runs.sort_by(|a, b| {
            let order = self.sort.runs(run_of(a), run_of(b));
            if self.is_inverted { order.reverse() } else { order }
        });
        let mut rows = Vec::new();
        for (program, run, matches) in runs {
            let matches = matches || filter.matches(&scene.programs[program].runs[run].summary.task);
            self.run_rows(scene, (program, run), (!matches).then_some(&filter), &mut rows);
        }
        rows.extend(idle);
        rows
    }

    /// Adds the rows of one run. With a filter, the run is shown only if a device matches it, and then with those devices.
    fn run_rows(
        &self,
        scene: &Scene,
        (program, run): (usize, usize),
        filter: Option<&Filter>,
        rows: &mut Vec<Row>,
    ) {
        let program_view = &scene.programs[program];
        let view = &program_view.runs[run];
        let is_shown = |id: &str| filter.is_none_or(|filter| filter.matches(id));
        let mut devices: Vec<usize> =
            (0..view.devices.len()).filter(|&device| is_shown(&view.devices[device].id)).collect();
        let left_out: Vec<usize> =
            (0..view.left_out.len()).filter(|&it| is_shown(&view.left_out[it].id)).collect();
        if filter.is_some() && devices.is_empty() && left_out.is_empty() {
            return;
        }
        rows.push(Row::Run { program, run });
        let key = RowKey::run(program_view.pid, view.summary.id);
        let has_error = view.summary.ended.as_ref().is_some_and(|ended| ended.error.is_some());
        if has_error || (view.summary.ended.is_none() && view.summary.waiting_for.is_some()) {
            rows.push(Row::Note { program, run });
        }
        if !self.is_open(key, program_view, view) {
            return;
        }
        devices.sort_by(|&a, &b| {
            let order = self.sort.devices(&view.devices[a], &view.devices[b]);
            if self.is_inverted { order.reverse() } else { order }
        });
        for device in devices {
            rows.push(Row::Device { program, run, device });
            if self.is_open(RowKey { device: Some(device), ..key }, program_view, view) {
                let lanes = 0..view.devices[device].lanes.len();
                rows.extend(lanes.map(|lane| Row::Lane { program, run, device, lane }));
            }
        }
        rows.extend(left_out.into_iter().map(|left_out| Row::LeftOut { program, run, left_out }));
    }
}

/// Whether a run has ended well and the program has begun a newer one of the same task, which stands for both: programs with
/// many short runs would fill the list.
fn is_repeated(program: &Program, run: usize) -> bool {
    let summary = &program.runs[run].summary;
    let is_newer = |newer: &RunView| newer.summary.task == summary.task;
    let has_ended_well = summary.ended.as_ref().is_some_and(|ended| ended.error.is_none());
    has_ended_well && program.runs[run + 1..].iter().any(is_newer)
}

/// A text that names must contain, in any case.
pub(super) struct Filter(String);

impl Filter {
    pub(super) fn new(text: &str) -> Filter {
        Filter(text.to_lowercase())
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.is_empty() || name.to_lowercase().contains(&self.0)
    }
}
