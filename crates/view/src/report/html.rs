//! A run as one HTML file.

use std::{
    cmp::Reverse,
    fmt::{self, Write},
};

use evener_schedule::{DeviceReport, LeftOut, Report, Trace};

use super::{
    Analysis, Provenance, RunTrace, charts, findings,
    lanes::{self, draw},
    markup::{escape, escape_short, pair},
    numbers::{format_count, format_counted, format_percent, format_rate, format_time},
    provenance::describe,
};

/// Maximum rows of the table of devices.
const MAX_DEVICES: usize = 1_000;
/// Maximum devices that are listed as left out, and findings.
const MAX_LISTED: usize = 100;
const MAX_FINDINGS: usize = 12;

const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--text:#24292f;--quiet:#57606a;--line:#d8dee4;--tile:#f6f8fa;--bar:#2f6fbd;--bad:#b3261e}\
@media screen and (prefers-color-scheme:dark){\
:root{--page:#0d1117;--text:#e6edf3;--quiet:#9aa4af;--line:#373e47;--tile:#161b22;--bar:#5b9ee6;--bad:#ff8078}}\
*{box-sizing:border-box}\
body{margin:0 auto;padding:24px 20px 48px;max-width:1040px;background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif}\
h1{font-size:24px;margin:0}h2{font-size:17px;margin:32px 0 8px}p{margin:6px 0}\
.quiet{color:var(--quiet);font-size:13px}.bad{color:var(--bad)}\
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(124px,1fr));gap:10px;margin:18px 0}\
.tile{background:var(--tile);border:1px solid var(--line);border-radius:8px;padding:10px 12px}\
.tile b{display:block;font-size:20px;font-weight:600}.tile span{color:var(--quiet);font-size:13px;line-height:1.3;display:block}\
.wide{overflow-x:auto}.wide svg{min-width:640px;width:100%;height:auto;display:block}\
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}\
th,td{text-align:left;padding:4px 8px;border-bottom:1px solid var(--line);vertical-align:top}\
th.n,td.n{text-align:right;white-space:nowrap}th[scope=row]{white-space:nowrap}td{overflow-wrap:anywhere}\
.share{display:block;height:4px;background:var(--bar);border-radius:2px;margin-top:2px}\
code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}\
ul{padding-left:20px;margin:6px 0}\
@media print{body{max-width:none;padding:0;font-size:11pt}h2{break-after:avoid}svg,tr,.tile{break-inside:avoid}\
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}}";

/// A run as one self-contained HTML file, which its [`Display`](fmt::Display) writes.
#[derive(Debug)]
pub struct Html {
    trace: RunTrace,
    analysis: Analysis,
    report: Option<Report>,
    provenance: Option<Provenance>,
    about: Option<String>,
}

impl Html {
    /// A run with its report and its trace.
    pub fn of_run(report: &Report, trace: &Trace) -> Self {
        Html { report: Some(report.clone()), ..Html::of_trace(RunTrace::from(trace)) }
    }

    /// A run of which the trace is known, and what its file says besides.
    pub fn of_trace(mut trace: RunTrace) -> Self {
        let (report, provenance) = trace.origin.take().map(|it| (it.report, it.provenance)).unzip();
        let analysis = Analysis::new(&trace);
        Html { trace, analysis, report, provenance: provenance.flatten(), about: None }
    }

    /// Says where, when and by what the run was done.
    pub fn provenance(mut self, provenance: Provenance) -> Self {
        self.provenance = Some(provenance);
        self
    }

    /// Says what the run was about, below the title.
    pub fn about(mut self, about: impl Into<String>) -> Self {
        self.about = Some(about.into());
        self
    }

    fn title(&self) -> String {
        let task = self.report.as_ref().and_then(|report| report.task.as_deref());
        let date = self.provenance.as_ref().map(|provenance| format!(", {}", provenance.date));
        format!("Evener: {}{}", task.unwrap_or("run"), date.unwrap_or_default())
    }

    /// The first lines: what the run was, and its figures.
    fn summary(&self) -> String {
        let report = self.report.as_ref();
        let task = report.and_then(|report| report.task.as_deref());
        let mut html = format!("<h1>{}</h1>\n", escape(task.unwrap_or("Run")));
        if let Some(about) = self.about.as_deref().filter(|about| !about.is_empty()) {
            let _ = writeln!(html, "<p>{}</p>", escape_short(about));
        }
        let strategy = report.and_then(|report| report.strategy.as_deref());
        let strategy = strategy.map(|strategy| format!("strategy {strategy}"));
        let by = self.provenance.as_ref().map(|it| format!("Evener {}, {}", it.version, it.date));
        let line: Vec<String> = [strategy, by].into_iter().flatten().map(|part| escape(&part)).collect();
        let _ = writeln!(html, "<p class=\"quiet\">{}</p>", line.join(" · "));
        if let Some(report) = report.filter(|report| report.done < report.items) {
            let _ = writeln!(
                html,
                "<p class=\"bad\"><b>The run ended before all items were done:</b> {} of {}.</p>",
                format_count(report.done),
                format_count(report.items)
            );
        }
        html += "<div class=\"tiles\">\n";
        let mut tile = |value: &str, what: &str| {
            let _ = writeln!(
                html,
                "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
                escape(value),
                escape(what)
            );
        };
        let analysis = &self.analysis;
        match report {
            Some(report) => {
                tile(&format_time(report.wall_s), "time of the run");
                let bound = report.bound.map(|bound| format!("Efficiency (guaranteed ≥ {bound:.2})"));
                let efficiency = report.efficiency.map_or("none".into(), |it| format!("{it:.3}"));
                tile(&efficiency, bound.as_deref().unwrap_or("Efficiency"));
                tile(&format_count(report.items), "items");
                if report.wall_s > 0.0 {
                    tile(&format_rate(report.done as f64 / report.wall_s), "items per second");
                }
                if let Some(speedup) = &report.speedup {
                    let what = format!("times as fast as {} alone", speedup.device);
                    tile(&format!("{:.2}", speedup.times), &what);
                }
            }
            None => {
                tile(&format_time(analysis.wall_s), "time of the run");
                tile(&format_percent(analysis.total.busy), "of the lanes' time was useful");
                tile(&format_count(analysis.items), "items");
            }
        }
        let chunks = report.map(|report| report.devices.iter().map(|device| device.chunks).sum());
        tile(&format_count(chunks.unwrap_or(analysis.chunks)), "chunks");
        let devices = report.map_or(analysis.devices.len(), |report| report.devices.len());
        tile(&format_count(devices as u64), "devices");
        html + "</div>\n"
    }

    fn lanes(&self) -> String {
        if self.analysis.chunks == 0 {
            return "<h2>Lanes</h2>\n<p>No device was given a chunk.</p>\n".into();
        }
        let picture = draw(&self.trace, &self.analysis, false);
        let mut notes = Vec::new();
        if picture.bars < picture.chunks {
            notes.push(format!(
                "{} are drawn as {}: chunks that are next to each other and too narrow share one.",
                format_counted(picture.chunks, "chunk", "chunks"),
                format_counted(picture.bars, "bar", "bars")
            ));
        }
        if self.trace.devices().iter().any(|(_, lanes)| lanes.len() > 1) {
            notes.push("The height of a device with several lanes is the part of them that work.".into());
        }
        if picture.devices_together > 0 {
            notes.push(format!(
                "{} share the last row: those that failed have rows of their own first, then those that did most.",
                format_counted(picture.devices_together as u64, "device", "devices")
            ));
        }
        if self.analysis.devices.iter().any(|device| device.failures > 0) {
            notes.push("A triangle above a row marks a failure.".into());
        }
        format!(
            "<h2>Lanes</h2>\n<div class=\"wide\">\n{}</div>\n<p class=\"quiet\">{}</p>\n",
            picture.svg,
            notes.join(" ")
        )
    }

    fn sizes(&self) -> String {
        if self.analysis.chunks == 0 {
            return String::new();
        }
        let (svg, points) = charts::chunk_sizes(&self.trace, self.analysis.wall_s);
        let merged = match points < self.analysis.chunks {
            true => format!(
                " {} are drawn as {}: a point that would cover another is drawn once.",
                format_counted(self.analysis.chunks, "chunk", "chunks"),
                format_counted(points, "point", "points")
            ),
            false => String::new(),
        };
        format!(
            "<h2>Sizes of chunks</h2>\n<div class=\"wide\">\n{svg}</div>\n\
             <p class=\"quiet\">Each point is a chunk, where it began.{merged}</p>\n"
        )
    }

    /// The prediction against the result, and the ideal.
    fn times(&self) -> String {
        let Some(report) = &self.report else {
            return "<h2>Prediction and result</h2>\n<p>The trace has no report of the run: efficiency, bound, prediction \
                    and errors are not known. <code>--report</code> writes them when the run ends, and traces of this \
                    version have them.</p>\n"
                .into();
        };
        let mut times = vec![("ideal", report.ideal_s, false), ("this run", report.wall_s, true)];
        if let Some(predicted) = report.predicted_s {
            times.push(("predicted", predicted, false));
        }
        if let Some(bound) = report.bound.filter(|bound| *bound > 0.0) {
            times.push(("guaranteed at most", report.ideal_s / bound, false));
        }
        if let Some(calibrated) = &report.calibrated {
            times.push(("at the rates alone", calibrated.ideal_s, false));
        }
        if let Some(speedup) = &report.speedup {
            times.push(("fastest device alone", speedup.alone_s, false));
        }
        times.retain(|(_, time, _)| time.is_finite());
        let prediction = match report.predicted_s {
            Some(predicted) if predicted > 0.0 => {
                let ratio = report.wall_s / predicted;
                format!("The prediction was {}: the run took {ratio:.2} times that.", format_time(predicted))
            }
            _ => "There was no prediction.".into(),
        };
        format!(
            "<h2>Prediction and result</h2>\n<div class=\"wide\">\n{}</div>\n<p class=\"quiet\">{prediction} The ideal is \
             a run in which no device is ever idle, at the rates that the devices had. Efficiency is the ideal time divided \
             by the time of the run.</p>\n",
            charts::times(&times)
        )
    }

    fn devices(&self) -> String {
        match &self.report {
            Some(report) => reported_devices(report),
            None => self.traced_devices(),
        }
    }

    /// The devices of a trace without a report.
    fn traced_devices(&self) -> String {
        let headings =
            ["Device", "Share", "Items", "Chunks", "Median chunk", "Busy", "Failed", "Dropped", "Rescues"];
        let mut html = table(&headings);
        for it in self.analysis.devices.iter().take(MAX_DEVICES) {
            let cells = [
                share_cell(it.share),
                number(format_count(it.items)),
                number(format_count(it.chunks)),
                number(format_time(it.median_chunk_s)),
                number(format_percent(it.times.busy)),
                number(format_count(it.failures)),
                number(format_count(it.dropped)),
                number(format_count(it.speculative)),
            ];
            let _ =
                writeln!(html, "<tr><th scope=\"row\">{}</th>{}</tr>", escape_short(&it.id), cells.concat());
        }
        html + "</table></div>\n" + &not_listed(self.analysis.devices.len())
    }

    fn advice(&self) -> String {
        if self.analysis.chunks == 0 {
            return String::new();
        }
        let findings = findings(&self.analysis);
        let mut html = String::from("<h2>Where time was lost</h2>\n<ul>\n");
        for finding in findings.iter().take(MAX_FINDINGS) {
            let _ = writeln!(
                html,
                "<li>{} <span class=\"quiet\">{}</span></li>",
                escape_short(&finding.cause),
                escape_short(&finding.advice)
            );
        }
        html += "</ul>\n";
        if let Some(more) = findings.len().checked_sub(MAX_FINDINGS + 1) {
            let _ = writeln!(
                html,
                "<p class=\"quiet\">And {} more, which cost less.</p>",
                format_count(more as u64 + 1)
            );
        }
        html
    }
}

/// The devices of a report, and those that were left out.
fn reported_devices(report: &Report) -> String {
    let headings = [
        "Device",
        "Share",
        "Items",
        "Chunks",
        "Busy",
        "Idle",
        "Items/s",
        "Retries",
        "Rescues",
        "Dropped",
        "Quarantines",
        "State",
    ];
    let mut html = table(&headings);
    let mut devices: Vec<&DeviceReport> = report.devices.iter().collect();
    if devices.len() > MAX_DEVICES {
        // Those that failed are what one looks for.
        devices.sort_by_key(|it| Reverse((it.state != "healthy", it.retries + it.quarantines, it.items)));
    }
    for it in devices.into_iter().take(MAX_DEVICES) {
        let quarantines = match it.quarantines {
            0 => "0".into(),
            count => format!("{} ({})", format_count(count), format_time(it.quarantined_s)),
        };
        let state = match it.state.as_str() {
            "healthy" => "<td>healthy</td>".into(),
            state => format!("<td class=\"bad\">{}</td>", escape_short(state)),
        };
        let cells = [
            share_cell(it.items as f64 / report.items.max(1) as f64),
            number(format_count(it.items)),
            number(format_count(it.chunks)),
            number(format_time(it.busy_s)),
            number(format_time(it.idle_s)),
            number(it.rate.map_or("–".into(), format_rate)),
            number(format_count(it.retries)),
            number(format_count(it.speculative)),
            number(format_count(it.dropped)),
            number(quarantines),
            state,
        ];
        let _ = writeln!(html, "<tr><th scope=\"row\">{}</th>{}</tr>", escape_short(&it.id), cells.concat());
    }
    html += "</table></div>\n";
    html += &not_listed(report.devices.len());
    html += "<p class=\"quiet\">Rescues are speculative copies of slower devices' chunks whose results were used. Retries are \
             chunks that failed and were done again. Dropped are chunks that others finished first.</p>\n";
    html + &errors(&report.devices) + &left_out(&report.left_out)
}

/// The last error of each device that had one.
fn errors(devices: &[DeviceReport]) -> String {
    let failed = || devices.iter().filter_map(|device| Some((&device.id, device.failures.last()?)));
    if failed().next().is_none() {
        return String::new();
    }
    let mut html = String::from("<h2>Last errors</h2>\n<table>\n");
    failed().take(MAX_LISTED).for_each(|(id, error)| pair(&mut html, id, error));
    html += "</table>\n";
    if let Some(more) = failed().count().checked_sub(MAX_LISTED + 1) {
        let _ = writeln!(html, "<p class=\"quiet\">And {} more.</p>", format_count(more as u64 + 1));
    }
    html
}

fn left_out(left_out: &[LeftOut]) -> String {
    if left_out.is_empty() {
        return String::new();
    }
    let mut html = String::from("<h2>Left out</h2>\n<table>\n");
    left_out.iter().take(MAX_LISTED).for_each(|LeftOut { id, reason }| pair(&mut html, id, reason));
    html += "</table>\n";
    if let Some(more) = left_out.len().checked_sub(MAX_LISTED + 1) {
        let _ = writeln!(html, "<p class=\"quiet\">And {} more.</p>", format_count(more as u64 + 1));
    }
    html
}

fn machine(provenance: &Provenance) -> String {
    let it = provenance;
    let mut html = String::from("<h2>Machine and versions</h2>\n<table>\n");
    pair(&mut html, "Command", &it.command_line());
    pair(&mut html, "Evener", &it.version);
    pair(&mut html, "Date", &it.date);
    pair(&mut html, "System", &format!("{}, kernel {}, {}", it.system, it.kernel, it.architecture));
    pair(&mut html, "Processor", &describe(&it.processor));
    it.devices
        .iter()
        .take(MAX_LISTED)
        .for_each(|device| pair(&mut html, device.id.as_str(), &describe(device)));
    it.absent.iter().take(MAX_LISTED).for_each(|absent| pair(&mut html, "Not available", absent));
    html + "</table>\n"
}

/// The beginning of the table of devices.
fn table(headings: &[&str]) -> String {
    let is_text = |name: &str| matches!(name, "Device" | "State");
    let heading = |name: &&str| {
        let class = if is_text(name) { "" } else { " class=\"n\"" };
        format!("<th scope=\"col\"{class}>{name}</th>")
    };
    let headings: String = headings.iter().map(heading).collect();
    format!("<h2>Devices</h2>\n<div class=\"wide\"><table>\n<tr>{headings}</tr>\n")
}

fn not_listed(devices: usize) -> String {
    match devices.saturating_sub(MAX_DEVICES) {
        0 => String::new(),
        more => format!("<p class=\"quiet\">And {} more devices.</p>\n", format_count(more as u64)),
    }
}

fn number(text: String) -> String {
    format!("<td class=\"n\">{}</td>", escape(&text))
}

/// A share as a number and a bar.
fn share_cell(share: f64) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let width = 100.0 * share;
    format!(
        "<td class=\"n\">{}<span class=\"share\" style=\"width:{width:.1}%\"></span></td>",
        format_percent(share)
    )
}

impl fmt::Display for Html {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = escape(&self.title());
        let (lanes_style, charts_style) = (lanes::STYLE, charts::STYLE);
        // Well-formed as XML too, so that any parser can check it.
        write!(
            f,
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\"/>\n\
             <title>{title}</title>\n<style>{STYLE}{lanes_style}{charts_style}</style>\n</head>\n<body>\n<main>\n"
        )?;
        f.write_str(&self.summary())?;
        f.write_str(&self.lanes())?;
        f.write_str(&self.devices())?;
        f.write_str(&self.times())?;
        f.write_str(&self.sizes())?;
        f.write_str(&self.advice())?;
        if let Some(provenance) = &self.provenance {
            f.write_str(&machine(provenance))?;
        }
        f.write_str("</main>\n</body>\n</html>\n")
    }
}
