use std::time::Duration;

use evener_schedule::{
    LeftOut, Report, Settings, Strategy, Trace,
    sim::{Scenario, Simulation, simulate},
};

use super::*;

/// A simulation of a scenario that is written as TOML.
fn simulation(toml: &str) -> Simulation {
    simulate(&Scenario::from_toml(toml).unwrap(), Strategy::Adaptive, Settings::default())
}

const ONE_DIES: &str = "items = 300_000\n[[device]]\nid = 'gpu'\ncount = 3\nrate = 100_000.0\nlaunch_s = 1e-5\n\
                        [[event]]\nat_s = 0.3\ndevice = 'gpu-1'\nwhat = 'die'\n";

/// The texts of all elements of a name. Fails if the file is not well-formed.
fn texts(html: &str, element: &str) -> Vec<String> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(html, options).unwrap_or_else(|error| {
        panic!("{error}: {html}");
    });
    let text = |node: roxmltree::Node<'_, '_>| {
        node.descendants().filter(|it| it.is_text()).filter_map(|it| it.text()).collect()
    };
    document.descendants().filter(|node| node.has_tag_name(element)).map(text).collect()
}

/// The rows of the table of devices, as cells.
fn device_rows(html: &str) -> Vec<Vec<String>> {
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let document = roxmltree::Document::parse_with_options(html, options).unwrap();
    let is_devices = |node: &roxmltree::Node<'_, '_>| {
        node.has_tag_name("table") && node.descendants().any(|it| it.text() == Some("Quarantines"))
    };
    let table = document.descendants().find(is_devices).unwrap();
    let cells = |row: roxmltree::Node<'_, '_>| {
        row.children().filter(|it| it.is_element()).map(|it| it.text().unwrap_or_default().into()).collect()
    };
    table.children().filter(|it| it.is_element()).skip(1).map(cells).collect()
}

#[test]
fn the_file_agrees_with_the_report() {
    let Simulation { mut report, trace, .. } = simulation(ONE_DIES);
    report.task = Some("square".into());
    report.predicted_s = Some(report.wall_s / 2.0);
    report.left_out.push(LeftOut { id: "cpu".into(), reason: "would finish 80 ms later".into() });
    let html = Html::of_run(&report, &trace).provenance(Provenance::of_process()).to_string();
    let rows = device_rows(&html);
    assert_eq!(rows.len(), report.devices.len());
    for (row, device) in rows.iter().zip(&report.devices) {
        assert_eq!(row[0], device.id);
        assert_eq!(row[1], numbers::format_percent(device.items as f64 / report.items as f64));
        assert_eq!(row[2], numbers::format_count(device.items));
        assert_eq!(row[3], numbers::format_count(device.chunks));
        assert_eq!(row[7], numbers::format_count(device.retries));
        assert_eq!(row[11], device.state);
    }
    assert!(report.devices[1].retries > 0, "the scenario has a failure");
    let tiles = texts(&html, "b");
    assert!(tiles.contains(&format!("{:.3}", report.efficiency.unwrap())), "{tiles:?}");
    assert!(tiles.contains(&numbers::format_time(report.wall_s)), "{tiles:?}");
    for part in [
        "the run took 2.00 times that",
        "would finish 80 ms later",
        &format!("guaranteed ≥ {:.2}", report.bound.unwrap()),
        env!("CARGO_PKG_VERSION"),
        "class=\"failed\"",
        "A triangle above a row marks a failure",
    ] {
        assert!(html.contains(part), "{part}: {html}");
    }
}

#[test]
fn nothing_is_loaded_and_nothing_runs() {
    let Simulation { report, trace, .. } = simulation(ONE_DIES);
    let html = Html::of_run(&report, &trace).to_string();
    for forbidden in ["<script", "src=", "href=", "@import", "url(", "onload", "http://"] {
        let found = html.replace("http://www.w3.org/2000/svg", "");
        assert!(!found.contains(forbidden), "{forbidden}");
    }
}

#[test]
fn hostile_names_stay_text() {
    let hostile =
        "</td></title></style><script>alert(1)</script><img src=x onerror='alert(1)'>\"&\u{1b}]0;\u{202e}";
    let Simulation { mut report, mut trace, .. } = simulation(ONE_DIES);
    report.task = Some(hostile.into());
    report.strategy = Some(hostile.into());
    report.left_out.push(LeftOut { id: hostile.into(), reason: hostile.into() });
    trace.task = hostile.into();
    for (device, lane) in report.devices.iter_mut().zip(&mut trace.lanes) {
        device.id = hostile.into();
        device.state = hostile.into();
        device.failures = vec![hostile.into()];
        *lane = hostile.into();
    }
    let mut provenance = Provenance::of_process();
    provenance.command = vec![hostile.into()];
    provenance.processor.name = hostile.into();
    provenance.absent = vec![hostile.into()];
    let html = Html::of_run(&report, &trace).provenance(provenance).about(hostile).to_string();
    assert!(texts(&html, "script").is_empty() && texts(&html, "img").is_empty(), "{html}");
    assert!(!html.contains("<script") && !html.contains("<img") && !html.contains(['\u{1b}', '\u{202e}']));
    assert_eq!(texts(&html, "title").len(), 1);
}

#[test]
fn a_million_chunks_on_a_thousand_devices_make_a_small_file() {
    let lanes: Vec<LaneTrace> = (0..1_000u64)
        .map(|lane| {
            let span = |n: u64| {
                let from_s = n as f64 + (n * 7 + lane) as f64 % 10.0 / 20.0;
                let activity = match (n + lane) % 10 {
                    0 => LaneActivity::Failure,
                    1 => LaneActivity::Dropped,
                    2 => LaneActivity::Speculative,
                    _ => LaneActivity::Work,
                };
                LaneSpan {
                    activity,
                    items: 1 + n * lane,
                    accepted: n,
                    duplicates: 0,
                    from_s,
                    until_s: from_s + 0.4,
                }
            };
            LaneTrace { device: format!("device-{lane}"), spans: (0..1_000).map(span).collect() }
        })
        .collect();
    let html = Html::of_trace(RunTrace::of(lanes)).to_string();
    assert!(html.len() < 3_000_000, "{} bytes", html.len());
    assert!(html.contains("1,000,000 chunks are drawn as"), "what was merged is said");
    assert!(html.contains("976 devices share the last row"));
    texts(&html, "svg");
}

#[test]
fn a_trace_in_a_file_gives_the_same_report_as_the_run() {
    let Simulation { report, trace, .. } = simulation(ONE_DIES);
    let origin = TraceOrigin { report: report.clone(), provenance: Some(Provenance::of_process()) };
    let json = origin.to_json(&trace).unwrap().to_string();
    let read = RunTrace::parse(&json).unwrap();
    let provenance = origin.provenance.unwrap();
    let of_run = Html::of_run(&report, &trace).provenance(provenance).to_string();
    let of_file = Html::of_trace(read).to_string();
    let first = of_file.lines().zip(of_run.lines()).find(|(file, run)| file != run);
    assert_eq!((first, of_file.len()), (None, of_run.len()));
    let without = RunTrace::parse(&trace.to_json().to_string()).unwrap();
    assert!(Html::of_trace(without).to_string().contains("The trace has no report of the run"));
}

#[test]
fn a_run_that_did_nothing_has_a_report_too() {
    let Simulation { mut report, .. } = simulation(ONE_DIES);
    report =
        Report { items: 0, done: 0, wall_s: 0.0, ideal_s: 0.0, devices: Vec::new(), speedup: None, ..report };
    let html = Html::of_run(&report, &Trace::default()).to_string();
    assert!(texts(&html, "h2").contains(&"Lanes".to_owned()));
    report.wall_s = Duration::MAX.as_secs_f64();
    texts(&Html::of_run(&report, &Trace::default()).to_string(), "h2");
}
