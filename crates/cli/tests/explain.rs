//! `evener explain`: loops of files that do not use Evener.
#![allow(clippy::unwrap_used)]

mod common;

const SOURCE: &str = "fn f(x: &[f32], y: &mut [f32]) {
    for i in 0..x.len() {
        y[i] = 2.0 * x[i];
    }
    for i in 1..x.len() {
        y[i] = y[i - 1] + x[i];
    }
    for v in x {
        println!(\"{v}\");
    }
}
";

fn explain(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("loops.rs"), SOURCE).unwrap();
    let output = common::evener()
        .arg("explain")
        .args(arguments)
        .arg("loops.rs")
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", common::stderr(&output));
    common::stdout(&output).to_owned()
}

#[test]
fn every_loop_is_explained() {
    assert_eq!(
        explain(&[]),
        "loops.rs:2: `for i in 0..x.len()` in `f`: runs on every device
loops.rs:5: `for i in 1..x.len()` in `f`: cannot be split
  loops.rs:6:16: iteration `i` reads `y[i - 1]`, which iteration `i - 1` writes
loops.rs:8: `for v in x` in `f`: runs on the processor's cores only
  loops.rs:9:9: devices other than the processor do not have `println!`
"
    );
}

#[test]
fn kernels_are_printed_with_the_users_names() {
    assert!(explain(&["--emit", "wgsl"]).contains("y[item] = rounded_f32(2.0f * x[item]);"));
    assert!(explain(&["--emit", "cuda"]).contains("y[item] = (2.0f * x[item]);"));
}

#[test]
fn a_file_that_is_not_rust_is_an_error_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("bad.rs"), "fn f( {").unwrap();
    let output = common::evener().args(["explain", "bad.rs"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(common::stderr(&output).contains("bad.rs:1:"), "{}", common::stderr(&output));
}
