use super::*;

/// A scenario of the folder `scenarios`, or of the folder that `EVENER_TEST_SCENARIOS` names on a machine without the
/// sources.
fn scenario(name: &str) -> Scenario {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let folder = std::env::var("EVENER_TEST_SCENARIOS").unwrap_or_else(|_| sources.into());
    Scenario::from_toml(&std::fs::read_to_string(format!("{folder}/{name}.toml")).unwrap()).unwrap()
}

fn shipped(name: &str) -> Simulation {
    let scenario = scenario(name);
    let simulation = simulate(&scenario, Strategy::Adaptive, Settings::default());
    println!("{name}: {}", simulation.report);
    assert_eq!(simulation.outcome, Outcome::Complete, "{}", simulation.report);
    assert_eq!(simulation.report.done, scenario.items);
    let counted: u64 = simulation.report.devices.iter().map(|device| device.items).sum();
    assert_eq!(counted, scenario.items);
    assert!(
        simulation.report.efficiency.unwrap() >= simulation.report.bound.unwrap(),
        "{}",
        simulation.report
    );
    simulation
}

#[test]
fn unlike_devices_stay_close_to_ideal_while_one_slows_down() {
    assert!(shipped("unlike").report.efficiency.unwrap() >= 0.97);
}

#[test]
fn a_device_a_thousand_times_slower_does_no_harm() {
    assert!(shipped("thousandfold").report.efficiency.unwrap() >= 0.97);
}

#[test]
fn heavy_tails_and_the_worst_order_do_little_harm() {
    assert!(shipped("heavy-tail").report.efficiency.unwrap() >= 0.97);
    assert!(shipped("ascending").report.efficiency.unwrap() >= 0.97);
}

#[test]
fn a_thousand_devices_share_ten_million_items() {
    assert!(shipped("thousand").report.efficiency.unwrap() >= 0.97);
}

#[test]
fn a_thousand_hosts_behind_links_share_a_run() {
    assert!(shipped("thousand-hosts").report.efficiency.unwrap() >= 0.9);
}

/// The time of a run with one device behind a link.
fn behind_link(items: u64, rate: f64, link: &str) -> f64 {
    let text = format!(
        "items = {items}\nbytes_per_item = 1000\n[[device]]\nid = 'a'\nrate = {rate:?}\nlink = {link}\n"
    );
    let scenario = Scenario::from_toml(&text).unwrap();
    simulate(&scenario, Strategy::Adaptive, Settings::default()).report.wall_s
}

#[test]
fn an_item_behind_a_link_takes_its_copy_its_work_and_the_delay_of_both_ways() {
    let wall = behind_link(1, 100.0, "{ delay_s = 0.5, bytes_per_s = 4000.0 }");
    assert!((wall - (0.25 + 0.01 + 1.0)).abs() < 1e-6, "{wall}");
}

#[test]
fn delays_hide_behind_work_and_the_slower_of_link_and_device_counts() {
    let by_link = behind_link(10_000, 1e6, "{ delay_s = 0.05, bytes_per_s = 1e6 }");
    assert!((10.0..10.5).contains(&by_link), "{by_link}");
    let by_device = behind_link(10_000, 1000.0, "{ delay_s = 0.05, bytes_per_s = 1e9 }");
    assert!((10.0..10.5).contains(&by_device), "{by_device}");
}

#[test]
fn a_device_that_dies_or_hangs_loses_no_item() {
    shipped("dies-at-the-end");
    let survivor = shipped("one-survives");
    let healthy = survivor.report.devices.iter().filter(|device| device.state == "healthy").count();
    assert_eq!(healthy, 1);
}

#[test]
fn the_same_scenario_gives_the_same_run() {
    assert_eq!(shipped("heavy-tail"), shipped("heavy-tail"));
}

#[test]
fn fixed_splits_are_far_less_efficient_than_adapting() {
    let scenario = scenario("unlike");
    let efficiency = |shares| simulate(&scenario, shares, Settings::default()).report.efficiency.unwrap();
    let (equal, proportional) = (efficiency(Strategy::Equal), efficiency(Strategy::Proportional));
    assert!(equal < 0.2 && proportional < 0.95, "{equal} and {proportional}");
}

#[test]
fn a_run_whose_devices_all_die_ends_with_the_items_done_so_far() {
    let scenario = Scenario::from_toml(
        "items = 1000\n[[device]]\nid = 'a'\nrate = 100.0\n[[event]]\nat_s = 5.0\ndevice = 'a'\nwhat = 'die'\n",
    )
    .unwrap();
    let simulation = simulate(&scenario, Strategy::Adaptive, Settings::default());
    assert_eq!(simulation.outcome, Outcome::NoLaneLeft);
    assert!((300..500).contains(&simulation.report.done), "{}", simulation.report);
}

#[test]
fn a_scenario_that_makes_no_sense_is_refused_with_the_reason() {
    let event = |event: &str| {
        format!(
            "items = 1\n[[device]]\nid = 'a'\nrate = 1.0\n[[event]]\nat_s = 1.0\ndevice = 'a'\nwhat = {event}"
        )
    };
    for (text, reason) in [
        (event("'slow'").as_str(), "factor"),
        (&event("'die'\nfactor = 2.0"), "neither"),
        (&event("'die'\nspeed = 2.0"), "speed"),
        ("items = 1", "device"),
        ("items = 1\n[[device]]\nid = 'a'\nrate = 0.0", "rate"),
        ("items = 1\n[[device]]\nid = 'a'\nrate = 1.0\nspeed = 2", "speed"),
        (
            "items = 1\n[[device]]\nid = 'a'\nrate = 1.0\n[[event]]\nat_s = 1.0\ndevice = 'b'\nwhat = 'die'",
            "`b`",
        ),
    ] {
        let error = Scenario::from_toml(text).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn a_view_can_cancel_a_simulation_in_the_middle_of_a_step() {
    let stream: &'static events::EventStream = Box::leak(Box::new(events::EventStream::new()));
    let scenario = scenario("unlike");
    let whole = simulate(&scenario, Strategy::Adaptive, Settings::default()).report;
    let of_run = RunEvents::to(stream, 3, 1, scenario.items);
    let half = Duration::from_secs_f64(whole.wall_s / 2.0);
    let mut pace = |until: Time| {
        if until < half {
            return until;
        }
        stream.request_cancel(3);
        half
    };
    let run = simulate_followed(&scenario, Strategy::Adaptive, Settings::default(), of_run, &mut pace);
    assert_eq!(run.outcome, Outcome::Stopped);
    assert!((run.report.wall_s - half.as_secs_f64()).abs() < 1e-9, "{}", run.report);
    assert!(run.report.done > 0 && run.report.done < scenario.items);
    assert!(!stream.is_cancel_requested(3), "the request was for this run only");
}

#[test]
fn a_reader_that_attaches_while_nothing_happens_is_told_the_status() {
    let stream: &'static events::EventStream = Box::leak(Box::new(events::EventStream::new()));
    let scenario = Scenario::from_toml("items = 1\n[[device]]\nid = 'a'\nrate = 1.0\n").unwrap();
    let (mut reader, mut told) = (None, Vec::new());
    let mut passed = Duration::ZERO;
    let mut pace = |until: Time| {
        passed = until.min(passed + Duration::from_millis(5));
        let reader = reader.get_or_insert_with(|| stream.attach());
        if passed < until {
            while reader.read(64, &mut told) {}
        }
        passed
    };
    let of_run = RunEvents::to(stream, 1, 1, 1);
    simulate_followed(&scenario, Strategy::Adaptive, Settings::default(), of_run, &mut pace);
    let is_status = |event: &events::Event| matches!(event.kind, events::EventKind::Status(_));
    assert_eq!(told.iter().filter(|event| is_status(event)).count(), 1, "{told:?}");
}

#[test]
fn followed_and_paced_the_run_is_the_same() {
    let stream: &'static events::EventStream = Box::leak(Box::new(events::EventStream::new()));
    let _reader = stream.attach();
    let scenario = scenario("one-survives");
    let of_run = RunEvents::to(stream, 1, 1, scenario.items);
    let mut real_time = RealTime::new(1_000.0);
    let mut pace = |until| real_time.pass(until);
    let followed = simulate_followed(&scenario, Strategy::Adaptive, Settings::default(), of_run, &mut pace);
    assert_eq!(followed, simulate(&scenario, Strategy::Adaptive, Settings::default()));
}

#[test]
fn no_chunk_is_larger_than_the_scenario_allows() {
    let text = "items = 1000\nmax_items = 7\n[[device]]\nid = 'a'\ncount = 3\nrate = 100.0\n";
    let run = simulate(&Scenario::from_toml(text).unwrap(), Strategy::Adaptive, Settings::default());
    let sizes: Vec<u64> = run.trace.spans.iter().map(|span| span.items.end - span.items.start).collect();
    assert!(sizes.len() >= 143 && sizes.iter().all(|&items| items <= 7), "{sizes:?}");
}
