//! The lists: devices of the machine, runs, and their devices and lanes.

use evener_schedule::events::RunKind;
use ratatui::{layout::Rect, style::Style};

use super::pen::{Cell, Column, Pen};
use crate::{
    state::{DeviceState, DeviceView, HISTORY, LaneView, Program, RunView},
    top::{
        format::{clean, counted, memory, percent, rate, share, short, state, time},
        look::Look,
        model::Model,
        rows::{Row, RowKey, rescues},
    },
};

/// From this width on, the lists have more columns, and from this one on still more.
const WIDE: usize = 110;
const WIDER: usize = 150;

/// Columns before the first one of a run, and of a device.
const RUN_INDENT: u16 = 2;
const DEVICE_INDENT: u16 = 4;

const fn text(title: &'static str, width: usize) -> Column {
    Column { title, width, is_number: false }
}

const fn number(title: &'static str, width: usize) -> Column {
    Column { title, width, is_number: true }
}

/// The columns of a list whose flexible columns share what the others leave.
fn columns(width: u16, indent: u16, mut columns: Vec<Column>, flexible: &[(usize, usize)]) -> Vec<Column> {
    let taken: usize = columns.iter().map(|column| column.width + 1).sum();
    let mut left = usize::from(width).saturating_sub(usize::from(indent) + taken.saturating_sub(1));
    for (number, &(index, most)) in flexible.iter().enumerate() {
        let share = (left / (flexible.len() - number)).min(most.saturating_sub(columns[index].width));
        columns[index].width += share;
        left -= share;
    }
    columns
}

fn hardware_columns(width: u16) -> Vec<Column> {
    let list = vec![
        text("DEVICE", 10),
        text("NAME", 8),
        text("UTILIZATION", 8),
        number("", 5),
        number("MEMORY", 16),
        number("TEMP", 6),
        number("POWER", 7),
    ];
    columns(width, 1, list, &[(2, 40), (0, 24), (1, 60)])
}

fn run_columns(width: u16) -> Vec<Column> {
    let all = usize::from(width);
    let mut list = vec![number("PID", 7), text("TASK", 8), text("PROGRESS", 8), number("", 5)];
    list.extend([number("RATE", 9), number("LEFT", 8), number("EFF", 4)]);
    if all >= WIDE {
        list.extend([number("DONE", 8), number("OF", 8), text("PROGRAM", 14)]);
    }
    if all >= WIDER {
        list.extend([number("ELAPSED", 8), text("STRATEGY", 12)]);
    }
    columns(width, RUN_INDENT, list, &[(1, 40), (2, 60)])
}

fn device_columns(width: u16) -> Vec<Column> {
    let all = usize::from(width);
    let mut list = vec![text("DEVICE", 10), text("STATE", 18), number("SHARE", 5), number("RATE", 9)];
    list.extend([number("HAND", 7), number("RETRY", 5), number("RESCUE", 6)]);
    if all >= WIDE {
        list.extend([number("ITEMS", 8), number("CHUNKS", 8)]);
    }
    if all >= WIDER {
        list.extend([number("BUSY", 8), number("QUARANT", 7)]);
    }
    list.push(text("TREND", 5));
    let last = list.len() - 1;
    columns(width, DEVICE_INDENT, list, &[(0, if all >= WIDE { 24 } else { 12 }), (last, HISTORY)])
}

/// Draws the first line: what there is.
pub(in crate::top) fn title(model: &Model, pen: &mut Pen<'_>, line: Rect) {
    let (look, programs) = (pen.look(), &model.scene.programs);
    let active = programs.iter().map(|program| program.active().count()).sum();
    let lost: u64 = programs.iter().map(|program| program.lost_events).sum();
    let mut parts = vec![
        counted(model.scene.devices.len(), "device", "devices"),
        counted(programs.len(), "program", "programs"),
        counted(active, "active run", "active runs"),
    ];
    if lost > 0 {
        parts.push(format!("{} events lost", short(lost as f64)));
    }
    if !model.selection.filter.is_empty() {
        parts.push(format!("filter {:?}", clean(&model.selection.filter)));
    }
    if model.selection.sort != Default::default() || model.selection.is_inverted {
        let inverted = if model.selection.is_inverted { ", inverted" } else { "" };
        parts.push(format!("by {}{inverted}", model.selection.sort.name()));
    }
    pen.text(line, &format!(" Evener  {}", parts.join(", ")), look.strong());
    if model.is_paused {
        pen.right(line, " PAUSED ", look.warning());
    }
}

pub(in crate::top) fn hardware_headings(pen: &mut Pen<'_>, line: Rect) {
    if line.height > 0 {
        pen.titles(line, 1, &hardware_columns(line.width), pen.look().heading());
    }
}

/// Draws a device of the machine, or a host that cannot be used.
pub(in crate::top) fn hardware_row(model: &Model, pen: &mut Pen<'_>, line: Rect, index: usize) {
    let (look, scene) = (pen.look(), &model.scene);
    let columns = hardware_columns(line.width);
    let Some(device) = scene.devices.get(index) else {
        let Some(absent) = scene.absent.get(index - scene.devices.len()) else { return };
        let text = format!(" {}: {}", clean(&absent.id), clean(&absent.reason));
        return pen.text(line, &text, look.bad());
    };
    let told = |value: Option<String>| match value {
        Some(value) => (value, look.plain()),
        None => (look.dash().into(), look.quiet()),
    };
    let busy = device.utilization.map(|busy| (look.bar(busy, columns[2].width), look.busy()));
    let used = device.memory_bytes.zip(device.memory_free_bytes);
    let memory = match (used, device.memory_bytes) {
        (Some((all, free)), _) => Some(memory(all.saturating_sub(free), all)),
        (None, Some(all)) => Some(format!("{} GiB", (all as f64 / f64::from(1u32 << 30)).round())),
        (None, None) => None,
    };
    let cells = [
        (clean(device.id.as_str()).into(), look.strong()),
        (clean(&device.name).into(), look.plain()),
        busy.unwrap_or((look.dash().into(), look.quiet())),
        told(device.utilization.map(percent)),
        told(memory),
        told(device.temperature_celsius.map(|it| format!("{it:.0} C"))),
        told(device.power_watts.map(|it| format!("{it:.0} W"))),
    ];
    pen.cells(line, 1, &columns, cells);
}

/// Draws the headings of runs, and below them those of devices.
pub(in crate::top) fn run_headings(pen: &mut Pen<'_>, area: Rect) {
    let look = pen.look();
    if area.height > 0 {
        let line = Rect { height: 1, ..area };
        pen.titles(line, RUN_INDENT, &run_columns(area.width), look.heading());
    }
    if area.height > 1 {
        let line = Rect { y: area.y + 1, height: 1, ..area };
        pen.titles(line, DEVICE_INDENT, &device_columns(area.width), look.quiet());
    }
}

/// Draws a row of the list of runs.
pub(in crate::top) fn row(model: &Model, pen: &mut Pen<'_>, line: Rect, row: Row) {
    let scene = &model.scene;
    let program = |index: usize| scene.programs.get(index);
    let run = |index: usize, run: usize| program(index).and_then(|it| it.runs.get(run));
    match row {
        Row::Idle { program: index } => {
            if let Some(program) = program(index) {
                let text = format!("{:>9} {}: no run yet", program.pid, clean(&program.name));
                pen.text(line, &text, pen.look().quiet());
            }
        }
        Row::Run { program: index, run: number } => {
            if let (Some(program), Some(run), Some(key)) =
                (program(index), run(index, number), row.key(scene))
            {
                let is_open = model.selection.is_open(key, program, run);
                run_row(pen, line, program, run, is_open);
            }
        }
        Row::Device { program: index, run: number, device } => {
            let Some((program, run)) = program(index).zip(run(index, number)) else { return };
            let is_open =
                row.key(scene).is_some_and(|key: RowKey| model.selection.is_open(key, program, run));
            if let Some(view) = run.devices.get(device) {
                device_row(pen, line, run, view, is_open);
            }
        }
        Row::Lane { program: index, run: number, device, lane } => {
            let Some(run) = run(index, number) else { return };
            let view = run.devices.get(device).and_then(|device| device.lanes.get(lane));
            if let Some(view) = view {
                let line = Rect { x: line.x + 6, width: line.width.saturating_sub(6), ..line };
                pen.text(line, &lane_text(lane, view, run.summary.elapsed_s), pen.look().plain());
            }
        }
        Row::LeftOut { program: index, run: number, left_out } => {
            let left_out = run(index, number).and_then(|run| run.left_out.get(left_out));
            if let Some(it) = left_out {
                let text = format!("    {} left out: {}", clean(&it.id), clean(&it.reason));
                pen.text(line, &text, pen.look().quiet());
            }
        }
        Row::Note { program: index, run: number } => {
            let Some(run) = run(index, number) else { return };
            let (text, style) = note(run, pen.look());
            pen.text(line, &format!("    {text}"), style);
        }
    }
}

/// Why a run has failed, or what it waits for.
fn note(run: &RunView, look: Look) -> Cell {
    let error = run.summary.ended.as_ref().and_then(|ended| ended.error.as_deref());
    match (error, run.summary.waiting_for.as_deref()) {
        (Some(error), _) => (clean(error).into(), look.bad()),
        (None, Some(chunk)) => (format!("waits for {}", clean(chunk)), look.warning()),
        (None, None) => (String::new(), look.plain()),
    }
}

pub(super) fn part_done(run: &RunView) -> Option<f64> {
    let items = run.summary.items?;
    Some(if items == 0 { 1.0 } else { run.summary.done as f64 / items as f64 })
}

fn run_row(pen: &mut Pen<'_>, line: Rect, program: &Program, run: &RunView, is_open: bool) {
    let (look, it) = (pen.look(), &run.summary);
    let columns = run_columns(line.width);
    let has_failed = it.ended.as_ref().is_some_and(|ended| ended.error.is_some());
    let style = match (&it.ended, has_failed) {
        (_, true) => look.bad(),
        (Some(_), false) => look.quiet(),
        (None, _) => look.strong(),
    };
    let progress = match (it.kind, it.queue, part_done(run)) {
        (RunKind::Queue, Some(queue), _) => {
            let running = queue.outstanding.saturating_sub(queue.queued);
            format!("{} queued, {running} running", queue.queued)
        }
        (_, _, Some(part)) => look.bar(part, columns[2].width),
        _ => format!("{} items", short(it.done as f64)),
    };
    let left = match (&it.ended, has_failed, it.remaining_s) {
        (_, true, _) => "failed".into(),
        (Some(_), false, _) => "done".into(),
        (None, _, Some(left)) => time(left),
        (None, _, None) => look.dash().into(),
    };
    let dash = || look.dash().to_owned();
    let mut cells = vec![
        (program.pid.to_string(), style),
        (clean(&it.task).into(), style),
        (progress, if has_failed { look.bad() } else { look.good() }),
        (part_done(run).map_or_else(String::new, percent), style),
        (rate(it.items_per_second), style),
        (left, style),
        (it.efficiency.map_or_else(dash, |it| format!("{it:.2}")), style),
    ];
    if usize::from(line.width) >= WIDE {
        let items = it.items.map_or_else(dash, |items| short(items as f64));
        cells.extend([(short(it.done as f64), style), (items, style), (clean(&program.name).into(), style)]);
    }
    if usize::from(line.width) >= WIDER {
        cells.extend([(time(it.elapsed_s), style), (clean(&it.strategy).into(), style)]);
    }
    pen.text(line, look.fold(is_open), style);
    pen.cells(line, RUN_INDENT, &columns, cells);
}

/// The style of a device's state.
pub(super) fn state_style(state: DeviceState, look: Look) -> Style {
    match state {
        DeviceState::Healthy => look.good(),
        DeviceState::Quarantined { .. } => look.warning(),
        DeviceState::Retired => look.bad(),
    }
}

fn device_row(pen: &mut Pen<'_>, line: Rect, run: &RunView, device: &DeviceView, is_open: bool) {
    let (look, it, plain) = (pen.look(), &device.totals, pen.look().plain());
    let columns = device_columns(line.width);
    let all: u64 = run.devices.iter().map(|device| device.totals.items).sum();
    let counter = |count: u64, style: Style| match count {
        0 => ("0".to_owned(), look.quiet()),
        _ => (short(count as f64), style),
    };
    let mut cells = vec![
        (clean(&device.id).into(), look.strong()),
        (state(it.state, run.summary.elapsed_s), state_style(it.state, look)),
        (share(it.items as f64 / all.max(1) as f64), plain),
        (it.items_per_second.map_or_else(|| look.dash().into(), rate), plain),
        counter(it.in_hand, plain),
        counter(it.retries, look.warning()),
        counter(rescues(device), look.busy()),
    ];
    if usize::from(line.width) >= WIDE {
        cells.extend([(short(it.items as f64), plain), (short(it.chunks as f64), plain)]);
    }
    if usize::from(line.width) >= WIDER {
        cells.extend([(time(it.busy_s), plain), counter(it.quarantines, look.warning())]);
    }
    let spark = columns.last().map_or(0, |column| column.width);
    cells.push((look.sparkline(device.throughput.iter(), spark), look.busy()));
    pen.text(
        Rect { x: line.x + 2, width: line.width.saturating_sub(2), ..line },
        look.fold(is_open),
        look.quiet(),
    );
    pen.cells(line, DEVICE_INDENT, &columns, cells);
}

/// A lane and what it has in hand.
pub(super) fn lane_text(index: usize, lane: &LaneView, now_s: f64) -> String {
    let chunks: Vec<String> = lane
        .in_hand
        .iter()
        .take(2)
        .map(|chunk| {
            let kind = format!("{:?}", chunk.kind).to_lowercase();
            let end = chunk.first.saturating_add(chunk.items);
            format!("items {}..{end} ({kind}, {})", chunk.first, time(now_s - chunk.since_s))
        })
        .collect();
    let more = match lane.in_hand.len().saturating_sub(chunks.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let in_hand = if chunks.is_empty() { "nothing in hand".into() } else { chunks.join(", ") + &more };
    format!("lane {index:<3} {:<19} {in_hand}", state(lane.state, now_s))
}

/// The last lines of the log of all programs: their ages, their texts, and whether they are failures.
pub(in crate::top) fn log_lines(model: &Model, count: usize) -> Vec<(String, String, bool)> {
    let programs = &model.scene.programs;
    let now = programs.iter().map(|program| program.unix_s).fold(0.0, f64::max);
    let last = |program: &Program| program.log.iter().rev().take(count).cloned().collect::<Vec<_>>();
    let mut lines: Vec<_> = programs.iter().flat_map(last).collect();
    lines.sort_by(|a, b| a.unix_s.total_cmp(&b.unix_s));
    let from = lines.len().saturating_sub(count);
    let line = |line: &crate::state::LogLine| {
        let age = (now - line.unix_s).max(0.0);
        let age =
            if age < 1.0 { "now".into() } else { format!("{} ago", time(age.floor()).replace(".0 s", " s")) };
        (age, clean(&line.text).into_owned(), line.is_failure)
    };
    lines[from..].iter().map(line).collect()
}
