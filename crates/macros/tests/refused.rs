//! Functions that the attributes refuse, compiled by the compiler itself: each message with its place in the source.
//! `EVENER_BLESS=1` writes what the compiler says to `refused/loops.stderr`.
#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The library of the attributes that Cargo has built for this test: the newest of its name beside the test.
fn library() -> PathBuf {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.contains("evener_macros-")
            && path.extension().is_some_and(|it| it == std::env::consts::DLL_EXTENSION)
    };
    let found = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(is_ours);
    found.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap()
}

#[test]
fn every_refusal_has_its_message_and_its_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/refused");
    let out = std::env::temp_dir().join(format!("evener-refused-{}", std::process::id()));
    let compiled = Command::new("rustc")
        .args(["loops.rs", "--edition", "2024", "--emit", "metadata", "--error-format", "short", "--out-dir"])
        .arg(&out)
        .arg("--extern")
        .arg(format!("evener_macros={}", library().display()))
        .current_dir(&folder)
        .output()
        .unwrap();
    let _ = std::fs::remove_dir_all(&out);
    assert!(!compiled.status.success());
    let said = String::from_utf8(compiled.stderr).unwrap();
    // What is refused is the point, and not what the compiler thinks of the functions themselves.
    let is_refusal = |line: &&str| line.starts_with("loops.rs:") && line.contains(": error: ");
    let said: Vec<&str> = said.lines().filter(is_refusal).collect();
    let path = folder.join("loops.stderr");
    if std::env::var_os("EVENER_BLESS").is_some() {
        std::fs::write(&path, said.join("\n") + "\n").unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    let expected: Vec<&str> = expected.lines().collect();
    for (said, expected) in said.iter().zip(&expected) {
        assert_eq!(said, expected);
    }
    assert_eq!(said.len(), expected.len());
    assert!(said.len() >= 30);
}
