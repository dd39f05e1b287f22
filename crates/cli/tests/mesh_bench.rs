//! `evener mesh bench`, as users run it.
#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn evener(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evener"));
    for variable in ["OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID"] {
        command.env_remove(variable);
    }
    command.args(["mesh", "bench"]).args(arguments).output().unwrap()
}

#[test]
fn every_collective_is_measured_and_checked() {
    for op in [
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "gather",
        "scatter",
        "all_to_all",
        "barrier",
    ] {
        let output = evener(&["--op", op, "--ranks", "3", "--sizes", "1KiB..16KiB", "--json"]);
        assert!(output.status.success(), "{op}: {}", String::from_utf8_lossy(&output.stderr));
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(said["schema_version"], 1);
        assert_eq!((&said["op"], &said["ranks"], &said["backend"]), (&op.into(), &3.into(), &"local".into()));
        let sizes = said["sizes"].as_array().unwrap();
        assert_eq!(sizes.len(), if op == "barrier" { 1 } else { 5 });
        for row in sizes {
            assert_eq!(row["wrong"], 0, "{op}: {row}");
            assert!(row["microseconds"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn the_table_has_a_line_a_size() {
    let output = evener(&["--ranks", "2", "--sizes", "4KiB..8KiB"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.starts_with("all_reduce of f32 between 2 ranks, local; all results are correct\n"),
        "{said}"
    );
    assert_eq!(said.lines().count(), 4, "{said}");
    assert!(!said.contains("WRONG"), "a column of zeros is left out: {said}");
}

#[test]
fn nonsense_is_a_wrong_command_line() {
    for wrong in [&["--sizes", "8KiB..4KiB"][..], &["--op", "all_the_things"], &["--ranks", "0"]] {
        assert_eq!(evener(wrong).status.code(), Some(2), "{wrong:?}");
    }
}
