//! The training scenarios that are shipped.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use evener_train::sim::{TrainingScenario, simulate_training};

#[test]
fn every_shipped_training_scenario_loses_no_sample_and_stays_near_the_ideal() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            TrainingScenario::is_training(&text),
            path.file_name().unwrap().to_str().unwrap().starts_with("train-")
        );
        if !TrainingScenario::is_training(&text) {
            continue;
        }
        let scenario = TrainingScenario::from_toml(&text).unwrap();
        let done = simulate_training(&scenario).unwrap();
        println!("{}\n{done}", scenario.about);
        assert_eq!(done.samples, scenario.training.samples * scenario.training.epochs, "{path:?}");
        assert!(done.efficiency > 0.85, "{path:?}:\n{done}");
        seen += 1;
    }
    assert!(seen >= 3, "{seen} scenarios");
}
