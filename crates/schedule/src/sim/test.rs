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
