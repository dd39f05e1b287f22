//! `evener report`: explains where the time of a run went, from its trace, and draws it.

use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use evener_view::report::{Analysis, DeviceTimes, Finding, Html, RunTrace, TraceError, findings, lanes_svg};
use serde::Serialize;

use crate::{
    escape,
    input::{display_input, read_text},
    options::check_outputs,
    output::{format_count, format_counted, format_time, write_file, write_json, write_out},
    table::{Heading, table},
    verbosity::Verbosity,
};

/// Explain where the time of a run went, from its trace
///
/// Reads a trace that --trace has written, and prints for each device how much of the time it computed, copied, waited or
/// computed results that were not used, and what to change.
///
/// With -q, prints the busy share, from 0 to 1: the part of the time of all lanes in which they computed results that were
/// used. It is not the efficiency that the run itself prints, which compares its time with the devices' rates.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Read the trace from this file; - is standard input
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,

    /// Draw the lanes of the run as an SVG picture to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write the report as one HTML file with pictures, to attach to a bug report or a paper
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Examples:
  evener merkle disk.img --trace trace.json && evener report trace.json
      explain a run on this machine
  evener sim scenarios/unlike.toml -q --trace t.json && evener report t.json
      explain a simulated run
  evener report trace.json --svg lanes.svg
      draw what each device did when
  evener report trace.json --html report.html
      write pictures, figures, the machine and the versions to one file
  evener report trace.json --json | jq '.findings[].advice'
      print the advice only

Columns of times, in percent of the time of the run, are explained below the table.";

/// The columns of times, and what they are percentages of.
const TIMES: [(&str, &str); 6] = [
    ("BUSY", "computing results that were used, copies included"),
    ("COPY", "copying between host and device (a part of BUSY, or hidden behind it)"),
    ("WASTED", "on chunks that failed, or that another device finished first"),
    ("START", "before the first chunk: opening the device, compiling kernels"),
    ("GAPS", "idle between chunks"),
    ("TAIL", "idle after the last chunk, while other devices still worked"),
];

/// The JSON output.
#[derive(Debug, Serialize)]
struct RunReport<'a> {
    trace: String,
    #[serde(flatten)]
    analysis: &'a Analysis,
    findings: &'a [Finding],
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    check_outputs([arguments.trace.as_path()], [arguments.svg.as_deref(), arguments.html.as_deref()])?;
    let name = display_input(&arguments.trace);
    let text = read_text(&arguments.trace)?;
    let escaped = |error: TraceError| anyhow!("{}", escape::single_line(&error.to_string()));
    let trace = RunTrace::parse(&text)
        .map_err(escaped)
        .with_context(|| format!("{name}: is not a trace that --trace has written"))?;
    let analysis = Analysis::new(&trace);
    let findings = findings(&analysis);
    if arguments.json {
        write_json(&RunReport { trace: name, analysis: &analysis, findings: &findings })?;
    } else if verbosity.is_quiet() {
        write_out(&format!("{:.4}\n", analysis.total.busy))?;
    } else {
        write_out(&print(&name, &analysis, &findings))?;
    }
    if let Some(path) = arguments.svg {
        write_file(&path, lanes_svg(&trace, &analysis).as_bytes())?;
    }
    match arguments.html {
        Some(path) => write_file(&path, Html::of_trace(trace).to_string().as_bytes()),
        None => Ok(()),
    }
}

fn print(name: &str, analysis: &Analysis, findings: &[Finding]) -> String {
    let mut headings = vec![
        Heading::text("DEVICE"),
        Heading::number("LANES"),
        Heading::number("ITEMS"),
        Heading::number("SHARE"),
    ];
    headings.extend(TIMES.iter().map(|(name, _)| Heading::number(name).optional()));
    let row = |device: &DeviceTimes| {
        let times = &device.times;
        let shares = [times.busy, times.copy, times.wasted, times.start, times.gaps, times.tail];
        let mut cells = vec![device.id.clone(), device.lanes.to_string(), format_count(device.items)];
        cells.push(percent_number(device.share));
        cells.extend(shares.map(percent_number));
        cells
    };
    let table = table(&headings, &analysis.devices.iter().map(row).collect::<Vec<_>>());
    // A narrow terminal has several tables.
    let is_shown = |name: &str| table.contains(name);
    let legend: Vec<String> = TIMES
        .iter()
        .filter(|(name, _)| is_shown(name))
        .map(|(name, meaning)| format!("  {name:<6}  {meaning}"))
        .collect();
    let total = &analysis.total;
    let parts = [
        (total.busy, "computing results that were used (the busy share, which -q prints)"),
        (total.wasted, "computing results that were not used"),
        (total.start, "waiting before the first chunk"),
        (total.gaps, "waiting between chunks"),
        (total.tail, "waiting after the last chunk"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(share, _)| *share >= 0.0005)
        .map(|(share, what)| format!("  {:>7}  {what}", percent(*share)))
        .collect();
    let findings: Vec<String> =
        findings.iter().map(|Finding { cause, advice, .. }| format!("  - {cause}\n    {advice}")).collect();
    format!(
        "{name}: {} in {} on {} in {}\n{}\n{table}\n\nSHARE is in percent of the items, the columns of times in percent of the run:\n{}\n\nWhere the time of all lanes went:\n{}\n\n\
         What to change:\n{}\n",
        format_counted(analysis.items, "item", "items"),
        format_counted(analysis.chunks, "chunk", "chunks"),
        format_counted(analysis.lanes as u64, "lane", "lanes"),
        format_time(analysis.wall_s),
        duplicates_line(analysis.duplicates),
        legend.join("\n"),
        parts.join("\n"),
        findings.join("\n")
    )
}

/// Returns the line about items that were computed twice, or nothing if there are none.
fn duplicates_line(duplicates: u64) -> String {
    match duplicates {
        0 => String::new(),
        1 => "1 item was computed twice by a speculative copy\n".into(),
        count => format!("{} items were computed twice by speculative copies\n", format_count(count)),
    }
}

/// Formats a share as a percentage.
fn percent(share: f64) -> String {
    percent_number(share) + " %"
}

/// Formats a share as a percentage without the sign, so that the columns of a table are narrow.
fn percent_number(share: f64) -> String {
    format!("{:.1}", 100.0 * share)
}

#[cfg(test)]
mod test {
    use evener_view::report::{LaneActivity, LaneSpan, LaneTrace};

    use super::*;

    /// A lane of a device with spans of an activity, the items and the time.
    fn lane(device: &str, spans: &[(LaneActivity, u64, f64, f64)]) -> LaneTrace {
        let span = |&(activity, items, from_s, until_s): &(LaneActivity, u64, f64, f64)| {
            let accepted = if activity.is_used() { items } else { 0 };
            LaneSpan { activity, items, accepted, duplicates: 0, from_s, until_s }
        };
        LaneTrace { device: device.into(), spans: spans.iter().map(span).collect() }
    }

    #[test]
    fn a_table_with_every_column_fits_80_columns() {
        use LaneActivity::{Copy, Dropped, Preparation, Work};
        let spans = |from: f64| {
            let (begin, middle) = (from + 1.0, from + 4.0);
            [
                (Preparation, 0, from, begin),
                (Copy, 12_345_678, begin, begin + 1.0),
                (Work, 12_345_678, begin, begin + 2.0),
                (Dropped, 12_345_678, middle, middle + 1.0),
            ]
        };
        let lanes = vec![lane("cuda:0/a", &spans(1.0)), lane("vulkan:10", &spans(0.0))];
        let text = print("trace.json", &Analysis::new(&RunTrace::of(lanes)), &[]);
        let heading = text.lines().find(|line| line.starts_with("DEVICE")).unwrap();
        for column in ["BUSY", "COPY", "WASTED", "START", "GAPS", "TAIL"] {
            assert!(heading.contains(column), "{column}\n{text}");
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}\n{text}");
        }
    }
}
