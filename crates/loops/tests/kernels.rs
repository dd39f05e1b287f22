//! Loops that devices can run: where, and what their kernels look like.
#![allow(clippy::unwrap_used)]

use evener_loops::{emit::Language, explain::explain};

const SAXPY: &str = "fn saxpy(a: f32, x: &[f32], y: &mut [f32]) {
    for i in 0..x.len() {
        let product = a * x[i];
        y[i] = product + y[i];
    }
}";

#[test]
fn a_kernel_has_the_users_names_and_one_line_a_statement() {
    let found = explain(SAXPY).unwrap().remove(0);
    let wgsl = &found.sources.iter().find(|(language, _)| *language == Language::Wgsl).unwrap().1.text;
    for line in [
        "    var product: f32 = rounded_f32(p.a * x[item]);",
        "    y[item] = rounded_f32(product + y[item]);",
    ] {
        assert!(wgsl.lines().any(|it| it == line), "{line} in\n{wgsl}");
    }
    let cuda = &found.sources.iter().find(|(language, _)| *language == Language::Cuda).unwrap().1.text;
    for line in ["    float product = (p.a * x[item]);", "    y[item] = (product + y[item]);"] {
        assert!(cuda.lines().any(|it| it == line), "{line} in\n{cuda}");
    }
}

#[test]
fn inner_loops_are_tried_where_the_outer_one_cannot_be_split() {
    let found = explain("fn f(n: usize, a: &mut [f32], b: &[f32]) { for t in 1..n { for i in 0..n { a[i] = a[i] + b[t]; } } }").unwrap();
    assert!(found[0].refused.is_some());
    assert!(found[1].refused.is_none() && found[1].sources.len() == 2);
}

#[test]
fn functions_that_are_not_exact_in_wgsl_are_left_to_cuda() {
    let found = explain("fn f(x: &[f32], y: &mut [f32]) { for i in 0..x.len() { y[i] = x[i].powf(1.5); } }")
        .unwrap()
        .remove(0);
    assert_eq!(found.sources.len(), 1);
    assert_eq!(
        found.without[0].1,
        "`powf` of `f32` is not exact to 2 units in the last place in WGSL: `#[parallel(fast)]` allows it"
    );
}

#[test]
fn an_iteration_may_write_a_range_of_its_own() {
    let rows =
        "fn f(w: usize, x: &[f32], y: &mut [f32]) { for i in 0..9 { y[i * w..(i + 1) * w].fill(x[i]); } }";
    let found = explain(rows).unwrap().remove(0);
    assert!(found.refused.is_none() && found.processor_only.is_some(), "{:?}", found.refused);
    let one = "fn f(x: &[f32], y: &mut [f32]) { for i in 0..9 { y[0..9].fill(x[i]); } }";
    assert_eq!(explain(one).unwrap().remove(0).refused.unwrap().2, "every iteration writes `y[0..9]`");
    let rows = "fn f(w: usize, x: &[f32], y: &mut [f32]) { for i in 0..9 { let row = &mut y[i * w..(i + 1) * w]; row.fill(x[i]); } }";
    let found = explain(rows).unwrap().remove(0);
    assert!(found.refused.is_none() && found.processor_only.is_some(), "{:?}", found.refused);
    let overlapping = "fn f(w: usize, y: &mut [f32]) { for i in 0..9 { let row = &mut y[i * w..(i + 2) * w]; row.fill(0.0); } }";
    assert!(explain(overlapping).unwrap().remove(0).refused.is_some());
}
