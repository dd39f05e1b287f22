//! All about one run or one device.

use super::{
    list::{lane_text, part_done, state_style},
    pen::Cell,
};
use crate::{
    hardware::DeviceHardware,
    state::{DeviceView, Program, RunView},
    top::{
        format::{clean, memory, percent, rate, share, short, state, time},
        look::Look,
        model::Model,
        rows::RowKey,
    },
};

/// Lines of labels and values.
struct Page {
    lines: Vec<Cell>,
    look: Look,
}

impl Page {
    fn new(look: Look) -> Page {
        Page { lines: Vec::new(), look }
    }

    fn heading(&mut self, text: String) {
        if !self.lines.is_empty() {
            self.lines.push((String::new(), self.look.plain()));
        }
        self.lines.push((format!(" {text}"), self.look.strong()));
    }

    fn line(&mut self, label: &str, value: String) {
        self.lines.push((format!("   {label:<16} {value}"), self.look.plain()));
    }

    fn known(&mut self, label: &str, value: Option<String>) {
        let value = value.unwrap_or_else(|| self.look.dash().into());
        self.line(label, value);
    }

    fn text(&mut self, text: String) {
        self.lines.push((format!("   {text}"), self.look.plain()));
    }
}

/// All about what a row of the list of runs stands for.
pub(super) fn of_row(model: &Model, key: RowKey, look: Look, width: usize) -> Vec<Cell> {
    let mut page = Page::new(look);
    match model.find(key) {
        Some((program, Some(run), Some(device))) => {
            device_page(&mut page, program, run, device, width);
            let hardware = model.scene.devices.iter().find(|it| it.id.as_str() == device.id);
            if let Some(hardware) = hardware {
                page.heading("Hardware".into());
                hardware_lines(&mut page, hardware);
            }
            log(&mut page, program, run, Some(&device.id));
        }
        Some((program, Some(run), None)) => {
            run_page(&mut page, program, run);
            log(&mut page, program, run, None);
        }
        Some((program, None, _)) => {
            page.heading(format!("{}, process {}", clean(&program.name), program.pid));
            page.text("It has no run yet.".into());
        }
        None => {}
    }
    page.lines
}

fn device_page(page: &mut Page, program: &Program, run: &RunView, device: &DeviceView, width: usize) {
    let (it, now, look) = (&device.totals, run.summary.elapsed_s, page.look);
    let all: u64 = run.devices.iter().map(|device| device.totals.items).sum();
    page.heading(format!(
        "{} in run {} ({}) of {}, process {}",
        clean(&device.id),
        run.summary.id,
        clean(&run.summary.task),
        clean(&program.name),
        program.pid
    ));
    page.line("state", state(it.state, now));
    if let Some(last) = page.lines.last_mut() {
        last.1 = state_style(it.state, look);
    }
    let share = share(it.items as f64 / all.max(1) as f64);
    page.line("items", format!("{} in {} chunks, {share} of the run's", it.items, it.chunks));
    page.line("in hand", format!("{} items", it.in_hand));
    page.known("rate", it.items_per_second.map(|per_s| format!("{} while busy", rate(per_s))));
    page.line("busy", format!("{} of {}", time(it.busy_s), time(now)));
    page.line("retries", format!("{} chunks failed on it and were done again", it.retries));
    page.line("rescues", format!("{} speculative copies won, {} chunks stolen", it.speculative, it.steals));
    page.line("dropped", format!("{} chunks, which other devices delivered first", it.dropped));
    page.line("quarantines", format!("{}, of which {} because a chunk hung", it.quarantines, it.hangs));
    page.known("last error", it.last_error.as_deref().map(|error| clean(error).into()));
    let most = device.throughput.iter().copied().fold(0.0, f64::max);
    page.heading(format!("Throughput of the last minute, at most {}", rate(most)));
    let spark = look.sparkline(device.throughput.iter(), width.saturating_sub(4).min(crate::state::HISTORY));
    page.lines.push((format!("   {spark}"), look.busy()));
    page.heading("Lanes".into());
    for (index, lane) in device.lanes.iter().enumerate() {
        page.text(lane_text(index, lane, now));
    }
}

fn run_page(page: &mut Page, program: &Program, run: &RunView) {
    let it = &run.summary;
    page.heading(format!(
        "Run {} of {}, process {}: {}",
        it.id,
        clean(&program.name),
        program.pid,
        clean(&it.task)
    ));
    let of = it.items.map_or(String::new(), |items| format!(" of {items}"));
    let part = part_done(run).map_or(String::new(), |part| format!(", {}", percent(part)));
    page.line("done", format!("{}{of} items{part}", it.done));
    page.line("strategy", clean(&it.strategy).into());
    page.line("rate", format!("{} items", rate(it.items_per_second)));
    page.line("time", time(it.elapsed_s));
    page.known("time left", it.remaining_s.map(time));
    page.known("predicted", it.predicted_s.map(time));
    page.known("efficiency", it.efficiency.map(|it| format!("{it:.3}")));
    page.known("guaranteed", it.bound.map(|it| format!("at least {it:.3}")));
    page.line("devices", run.devices.len().to_string());
    if let Some(queue) = it.queue {
        let counts = format!("{} submitted, {} queued", queue.submitted, queue.queued);
        page.line("queue", format!("{counts}, {} without a result", queue.outstanding));
    }
    if let Some(chunk) = &it.waiting_for {
        page.line("waits for", clean(chunk).into());
    }
    if let Some(ended) = &it.ended {
        let how = ended.error.as_deref().map_or("done".into(), |error| format!("failed: {}", clean(error)));
        page.line("ended", how);
    }
    if program.lost_events > 0 {
        let lost = short(program.lost_events as f64);
        page.line("events lost", format!("{lost}: counters may be too low for a while"));
    }
    if !run.left_out.is_empty() {
        page.heading("Left out".into());
        for left_out in &run.left_out {
            page.text(format!("{}: {}", clean(&left_out.id), clean(&left_out.reason)));
        }
    }
}

/// The lines of the log that are about a run, or about one of its devices; the newest first.
fn log(page: &mut Page, program: &Program, run: &RunView, device: Option<&str>) {
    let is_about = |line: &&crate::state::LogLine| {
        line.run == run.summary.id && device.is_none_or(|device| line.text.contains(device))
    };
    let lines: Vec<_> = program.log.iter().filter(is_about).collect();
    if lines.is_empty() {
        return;
    }
    page.heading("Log, the newest first".into());
    for line in lines.iter().rev() {
        let style = if line.is_failure { page.look.bad() } else { page.look.plain() };
        let age = time((program.unix_s - line.unix_s).max(0.0));
        page.lines.push((format!("   {age:>8} ago  {}", clean(&line.text)), style));
    }
}

/// All about a device of the machine.
pub(super) fn of_hardware(model: &Model, index: usize, look: Look) -> Vec<Cell> {
    let mut page = Page::new(look);
    let Some(device) = model.scene.devices.get(index) else { return page.lines };
    page.heading(clean(device.id.as_str()).into());
    hardware_lines(&mut page, device);
    let runs =
        model.scene.programs.iter().flat_map(|program| program.active().map(move |run| (program, run)));
    let using: Vec<String> = runs
        .filter(|(_, run)| run.devices.iter().any(|it| it.id == device.id.as_str()))
        .map(|(program, run)| {
            format!("{} of {}, process {}", clean(&run.summary.task), clean(&program.name), program.pid)
        })
        .collect();
    page.heading("Runs that use it".into());
    if using.is_empty() {
        page.text("none that is known here".into());
    }
    using.into_iter().for_each(|text| page.text(text));
    page.lines
}

fn hardware_lines(page: &mut Page, device: &DeviceHardware) {
    page.line("name", clean(&device.name).into());
    page.line("kind", device.kind.to_string());
    page.known("utilization", device.utilization.map(percent));
    let used = device.memory_bytes.zip(device.memory_free_bytes);
    page.known("memory used", used.map(|(all, free)| memory(all.saturating_sub(free), all)));
    page.known("temperature", device.temperature_celsius.map(|it| format!("{it:.0} C")));
    page.known("power", device.power_watts.map(|it| format!("{it:.0} W")));
}
