use std::collections::VecDeque;

use evener_device::DeviceKind;
use evener_schedule::events::{QueueProgress, RunKind};

use super::*;
use crate::state::{Counters, DeviceState, DeviceTotals, DeviceView, RunSummary, RunView, TaskTotals};

fn summary(id: u64, task: &str) -> RunSummary {
    RunSummary {
        id,
        task: task.into(),
        kind: RunKind::Map,
        strategy: "adaptive".into(),
        began_unix_s: 1e9,
        elapsed_s: 2.0,
        items: Some(100),
        done: 40,
        items_per_second: 20.0,
        remaining_s: Some(3.0),
        predicted_s: None,
        efficiency: Some(0.9),
        bound: None,
        waiting_for: None,
        queue: None,
        ended: None,
    }
}

fn device(id: &str, items: u64, state: DeviceState) -> DeviceView {
    let totals = DeviceTotals { state, items, chunks: 2, busy_s: 0.5, ..DeviceTotals::default() };
    DeviceView { id: id.into(), totals, throughput: VecDeque::new(), lanes: Vec::new() }
}

fn run(summary: RunSummary, devices: Vec<DeviceView>) -> RunView {
    RunView { summary, devices, left_out: Vec::new(), max_bars: 8 }
}

fn program(runs: Vec<RunView>, totals: Vec<TaskTotals>) -> Program {
    Program {
        pid: 7,
        name: "app".into(),
        version: 1,
        unix_s: 1e9,
        lost_events: 3,
        runs,
        past: VecDeque::new(),
        log: VecDeque::new(),
        totals,
    }
}

fn text_of(program: &Program, format: Format) -> String {
    let mut metrics = Metrics::default();
    metrics.add_program(program);
    metrics.add_server(1, 0);
    metrics.to_text(format)
}

#[test]
fn counters_add_what_has_ended_and_what_runs() {
    let counters = Counters { items: 1_000, busy_s: 1.25, ..Counters::default() };
    let ended = TaskTotals {
        task: "hash".into(),
        succeeded: 5,
        failed: 1,
        submitted: 0,
        devices: vec![("gpu".into(), counters)],
    };
    let quarantined = DeviceState::Quarantined { until_s: 9.0 };
    let runs = vec![
        run(
            summary(8, "hash"),
            vec![device("gpu", 30, quarantined), device("cpu", 10, DeviceState::Healthy)],
        ),
        run(
            RunSummary { efficiency: Some(0.5), ..summary(9, "hash") },
            vec![device("gpu", 3, DeviceState::Healthy)],
        ),
    ];
    let text = text_of(&program(runs, vec![ended]), Format::OpenMetrics);
    let of = r#"{pid="7",program="app",task="hash""#;
    for line in [
        format!(r#"evener_device_items_total{of},device="gpu"}} 1033"#),
        format!(r#"evener_device_busy_seconds_total{of},device="gpu"}} 2.25"#),
        format!(r#"evener_device_state{of},device="gpu",state="quarantined"}} 1"#),
        format!(r#"evener_device_state{of},device="gpu",state="healthy"}} 0"#),
        format!(r#"evener_runs_ended_total{of},result="ok"}} 5"#),
        format!("evener_runs_active{of}}} 2"),
        format!("evener_run_efficiency_ratio{of}}} 0.5"),
        format!("evener_run_progress_ratio{of}}} 0.4"),
        r#"evener_events_lost_total{pid="7",program="app"} 3"#.into(),
        "# TYPE evener_device_busy_seconds counter\n# UNIT evener_device_busy_seconds seconds".into(),
    ] {
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

#[test]
fn names_of_any_kind_stay_within_their_label() {
    let name = "a\"b\\c\nd\u{1b}é";
    let text = text_of(&program(vec![run(summary(1, name), Vec::new())], Vec::new()), Format::Prometheus);
    assert!(text.contains("task=\"a\\\"b\\\\c\\nd\u{1b}é\""), "{text}");
    assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("evener_")), "{text}");
}

/// However many tasks, devices and programs there are, the number of lines is bounded, and no item is missing.
#[test]
fn the_number_of_series_is_bounded() {
    let mut metrics = Metrics::default();
    for pid in 0..100 {
        let runs = (0..64).map(|id| {
            let devices = (0..50).map(|index| device(&format!("d{index}"), 1, DeviceState::Healthy));
            run(summary(id, &format!("task {id}")), devices.collect())
        });
        metrics.add_program(&Program { pid, ..program(runs.collect(), Vec::new()) });
    }
    let hardware = |index: u32| DeviceHardware {
        id: format!("cuda:{index}").as_str().into(),
        name: "card".into(),
        kind: DeviceKind::Discrete,
        utilization: Some(0.5),
        memory_bytes: None,
        memory_free_bytes: None,
        temperature_celsius: None,
        power_watts: None,
    };
    metrics.add_hardware(&(0..5_000).map(hardware).collect::<Vec<_>>());
    let text = metrics.to_text(Format::OpenMetrics);
    let lines = text.lines().count();
    assert!(lines < 200_000, "{lines}");
    let items: f64 = text
        .lines()
        .filter(|line| line.starts_with("evener_device_items_total"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum();
    assert_eq!(items, (MAX_PROGRAMS * 64 * 50) as f64, "what is beyond the bound is summed");
}

#[test]
fn a_queue_tells_its_length() {
    let queue = Some(QueueProgress { submitted: 10, queued: 4, outstanding: 6 });
    let summary = RunSummary { kind: RunKind::Queue, items: None, queue, ..summary(1, "serve") };
    let text = text_of(&program(vec![run(summary, Vec::new())], Vec::new()), Format::Prometheus);
    let of = r#"{pid="7",program="app",task="serve"}"#;
    assert!(text.contains(&format!("evener_queue_pieces_waiting{of} 4\n")), "{text}");
    assert!(text.contains(&format!("evener_queue_pieces_submitted_total{of} 10\n")), "{text}");
    assert!(!text.contains("evener_run_progress_ratio"), "{text}");
}
