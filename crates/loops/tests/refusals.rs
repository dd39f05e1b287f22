//! Loops that are refused, each with its exact message and the line of the expression that stands in the way.
#![allow(clippy::panic, clippy::unwrap_used)]

use evener_loops::explain::{Explained, explain};

fn loops(source: &str) -> Vec<Explained> {
    explain(source).unwrap()
}

/// The first loop of a function with this body is refused with this message.
#[track_caller]
fn refused(body: &str, message: &str) {
    let source = format!(
        "fn f(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {{\n{body}\n}}"
    );
    let found = loops(&source).remove(0);
    let (line, _, said) = found.refused.unwrap_or_else(|| panic!("not refused: {body}"));
    assert_eq!(said, message, "{body}");
    assert!(line >= 2, "the place is in the function: {line}");
}

/// The first loop of a function with this body runs on the processor only, for this reason.
#[track_caller]
fn processor_only(body: &str, message: &str) {
    let source = format!(
        "fn f(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {{\n{body}\n}}"
    );
    let found = loops(&source).remove(0);
    assert!(found.refused.is_none(), "{:?}", found.refused);
    let (_, _, said) = found.processor_only.unwrap_or_else(|| panic!("no reason: {body}"));
    assert_eq!(said, message, "{body}");
}

#[test]
fn iterations_that_read_what_others_write_are_refused() {
    refused(
        "for i in 1..n { y[i] = y[i - 1] + x[i]; }",
        "iteration `i` reads `y[i - 1]`, which iteration `i - 1` writes",
    );
    refused(
        "for i in 0..n - 1 { y[i] = y[i + 1]; }",
        "iteration `i` reads `y[i + 1]`, which iteration `i + 1` writes",
    );
    refused(
        "for i in 2..n { y[i] = y[i - 2] * 2.0; }",
        "iteration `i` reads `y[i - 2]`, which iteration `i - 2` writes",
    );
    refused(
        "for i in 0..n { y[i] = y[0]; }",
        "iteration `i` reads `y[0]`, which another iteration may write",
    );
    refused(
        "for i in 0..n { y[i] = y[n - i]; }",
        "iteration `i` reads `y[n - i]`, which another iteration may write",
    );
    refused(
        "for i in 0..n { y[i] = y[k[i]]; }",
        "iteration `i` reads `y[k[i]]`, which another iteration may write",
    );
    refused(
        "for i in 0..n { y[2 * i] = y[2 * i + 2]; }",
        "iteration `i` reads `y[2 * i + 2]`, which iteration `i + 1` writes",
    );
    refused(
        "for i in 0..n { y[i] = y.iter().sum(); }",
        "`y.iter()` uses all of `y`, of which other iterations write their elements",
    );
}

#[test]
fn iterations_that_may_write_the_same_element_are_refused() {
    refused(
        "for i in 0..n { h[k[i]] += 1; }",
        "two iterations may write `h[k[i]]`: its index is not of the form `c * i + k`",
    );
    refused("for i in 0..n { y[0] = x[i]; }", "every iteration writes `y[0]`");
    refused(
        "for i in 0..n { y[i / 2] = x[i]; }",
        "two iterations may write `y[i / 2]`: its index is not of the form `c * i + k`",
    );
    refused(
        "for i in 0..n { y[i % 4] = x[i]; }",
        "two iterations may write `y[i % 4]`: its index is not of the form `c * i + k`",
    );
    refused(
        "for i in 0..n { y[i * i] = x[i]; }",
        "two iterations may write `y[i * i]`: its index is not of the form `c * i + k`",
    );
    refused(
        "for i in 0..n { for j in 0..n { y[j] += x[i]; } }",
        "two iterations may write `y[j]`: its index is data, not of the form `c * i + k`",
    );
    refused(
        "for i in 0..n { for j in 0..n { y[i * w + j] = 0.0; } }",
        "two iterations may write `y[i * w + j]`: the row of iteration `i` may reach into that of `i + 1`",
    );
    refused(
        "for i in 0..n { for j in 0..=w { y[i * w + j] = 0.0; } }",
        "two iterations may write `y[i * w + j]`: the row of iteration `i` may reach into that of `i + 1`",
    );
    refused(
        "for i in 0..n { y[i] = 0.0; y[i + 1] = 1.0; }",
        "iteration `i` writes `y[i]` and `y[i + 1]`, of which one is also written by another iteration",
    );
    refused(
        "for i in 0..n { let t = k[i]; y[t] = 1.0; }",
        "two iterations may write `y[t]`: its index is data, not of the form `c * i + k`",
    );
}

#[test]
fn variables_that_iterations_pass_on_are_refused() {
    refused(
        "let mut s = 0.0; for i in 0..n { s += x[i]; y[i] = s; }",
        "iteration `i` reads `s`, which all iterations before it change",
    );
    refused(
        "let mut last = 0.0; for i in 0..n { last = x[i]; }",
        "iteration `i` assigns to `last`, which is declared outside of the loop: only `+=`, `-=`, `*=`, `&=`, `|=`, `^=`, `min`, `max` and `push` can be combined",
    );
    refused(
        "let mut s = 0.0; for i in 0..n { s += x[i]; s *= 0.5; }",
        "`s` is combined in two ways, whose order matters",
    );
    refused(
        "let mut s = 1; for i in 0..n { s = s * 3 % 7; }",
        "iteration `i` assigns to `s`, which is declared outside of the loop: only `+=`, `-=`, `*=`, `&=`, `|=`, `^=`, `min`, `max` and `push` can be combined",
    );
    refused(
        "let mut s = 1; for i in 0..n { s <<= 1; }",
        "iteration `i` assigns to `s`, which is declared outside of the loop: only `+=`, `-=`, `*=`, `&=`, `|=`, `^=`, `min`, `max` and `push` can be combined",
    );
    refused(
        "let mut v = Vec::new(); for i in 0..n { v.push(i); h[i] = v.len() as u32 + v[0]; }",
        "iteration `i` reads `v[0]`, and all iterations before it change `v`",
    );
}

#[test]
fn changes_of_a_whole_variable_are_refused() {
    refused(
        "for i in 1..n { y.swap(i, i - 1); }",
        "`y.swap(i, i - 1)` changes `y` as a whole, which every iteration would do at once",
    );
    refused(
        "for i in 0..n { y.fill(0.0); }",
        "`y.fill(0.0)` changes `y` as a whole, which every iteration would do at once",
    );
    refused(
        "let mut m = Map::new(); for i in 0..n { m.insert(i, x[i]); }",
        "`m.insert(i, x[i])` changes `m` as a whole, which every iteration would do at once",
    );
    refused("for i in 0..n { g(&mut h); }", "`&mut h` lets every iteration change all of `h`");
}

#[test]
fn loops_over_other_things_are_refused() {
    let only = "and only ranges, `iter()`, `iter_mut()`, `enumerate()` and `zip()` can be split";
    refused(
        "for i in (0..n).rev() { y[i] = 1.0; }",
        "the loop runs over `(0..n).rev()`, whose order is reversed: iterations are numbered from the first",
    );
    refused("for i in 0.. { y[i] = 1.0; }", "the loop runs over `0..`, which has no end");
    refused("for c in text.chars() { g(c); }", &format!("the loop runs over `text.chars()`, {only}"));
    refused(
        "for i in (0..n).step_by(2) { y[i] = 1.0; }",
        &format!("the loop runs over `(0..n).step_by(2)`, {only}"),
    );
    refused("for w in x.windows(2) { g(w); }", &format!("the loop runs over `x.windows(2)`, {only}"));
}

#[test]
fn what_keeps_a_loop_from_devices_is_named() {
    processor_only(
        "for i in 0..n { println!(\"{}\", x[i]); }",
        "devices other than the processor do not have `println!`",
    );
    processor_only(
        "for i in 0..n { y[i] = helper(x[i]); }",
        "`helper` is not marked `#[parallel::function]` in the same module of this file",
    );
    processor_only(
        "for i in 0..n { if x[i] > 1.0 { break; } y[i] = 1.0; }",
        "`break` ends the loop before its last iteration",
    );
    processor_only(
        "for i in 0..n { if x[i] > 1.0 { return; } y[i] = 1.0; }",
        "`return` leaves the loop before its last iteration",
    );
    processor_only("for i in 0..n { y[i] = parse(x[i])?; }", "`?` leaves the loop before its last iteration");
    processor_only("for i in 0..n { y[i] = x[i] as u8 as f32; }", "devices do not have the type `u8`");
    processor_only(
        "let mut s = 0.0f32; for i in 0..n { for j in 0..n { s += x[j]; } }",
        "an iteration may change `s` several times, which only the processor does in order",
    );
}
