//! Functions that `#[parallel]` refuses. `loops.stderr` has what the compiler says.

#![allow(unused)]

use evener_macros::{function, parallel};

#[parallel]
fn refused_0(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 1..n { y[i] = y[i - 1] + x[i]; }
}

#[parallel]
fn refused_1(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n - 1 { y[i] = y[i + 1]; }
}

#[parallel]
fn refused_2(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 2..n { y[i] = y[i - 2] * 2.0; }
}

#[parallel]
fn refused_3(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i] = y[0]; }
}

#[parallel]
fn refused_4(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i] = y[n - i]; }
}

#[parallel]
fn refused_5(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i] = y[k[i]]; }
}

#[parallel]
fn refused_6(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[2 * i] = y[2 * i + 2]; }
}

#[parallel]
fn refused_7(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i] = y.iter().sum(); }
}

#[parallel]
fn refused_8(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { h[k[i]] += 1; }
}

#[parallel]
fn refused_9(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[0] = x[i]; }
}

#[parallel]
fn refused_10(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i / 2] = x[i]; }
}

#[parallel]
fn refused_11(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i % 4] = x[i]; }
}

#[parallel]
fn refused_12(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i * i] = x[i]; }
}

#[parallel]
fn refused_16(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i] = 0.0; y[i + 1] = 1.0; }
}

#[parallel]
fn refused_17(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { let t = k[i]; y[t] = 1.0; }
}

#[parallel]
fn refused_18(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    let mut s = 0.0;
    for i in 0..n { s += x[i]; y[i] = s; }
}

#[parallel]
fn refused_19(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    let mut last = 0.0;
    for i in 0..n { last = x[i]; }
}

#[parallel]
fn refused_20(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    let mut s = 0.0;
    for i in 0..n { s += x[i]; s *= 0.5; }
}

#[parallel]
fn refused_21(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    let mut s = 1;
    for i in 0..n { s = s * 3 % 7; }
}

#[parallel]
fn refused_22(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    let mut s = 1;
    for i in 0..n { s <<= 1; }
}

#[parallel]
fn refused_23(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    let mut v = Vec::new();
    for i in 0..n { v.push(i); h[i] = v.len() as u32 + v[0]; }
}

#[parallel]
fn refused_24(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 1..n { y.swap(i, i - 1); }
}

#[parallel]
fn refused_25(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y.fill(0.0); }
}

#[parallel]
fn refused_26(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    let mut m = Map::new();
    for i in 0..n { m.insert(i, x[i]); }
}

#[parallel]
fn refused_27(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { g(&mut h); }
}

#[parallel]
fn refused_28(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in (0..n).rev() { y[i] = 1.0; }
}

#[parallel]
fn refused_29(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0.. { y[i] = 1.0; }
}

#[parallel]
fn refused_30(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for c in text.chars() { g(c); }
}

#[parallel]
fn refused_31(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in (0..n).step_by(2) { y[i] = 1.0; }
}

#[parallel]
fn refused_32(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for w in x.windows(2) { g(w); }
}

#[parallel(gpu)]
fn refused_33(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { println!("{}", x[i]); }
}

#[parallel(gpu)]
fn refused_34(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i] = helper(x[i]); }
}

#[parallel(gpu)]
fn refused_35(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { if x[i] > 1.0 { break; } y[i] = 1.0; }
}

#[parallel(gpu)]
fn refused_36(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { if x[i] > 1.0 { return; } y[i] = 1.0; }
}

#[parallel(gpu)]
fn refused_37(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i] = parse(x[i])?; }
}

#[parallel(gpu)]
fn refused_38(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    for i in 0..n { y[i] = x[i] as u8 as f32; }
}

#[parallel(gpu)]
fn refused_39(x: &[f32], k: &[usize], y: &mut [f32], h: &mut [u32], n: usize, w: usize) {
    let mut s = 0.0f32;
    for i in 0..n { for j in 0..n { s += x[j]; } }
}

#[parallel]
fn no_loop(x: &mut [f32]) {
    x[0] = 1.0;
}

#[parallel(slow)]
fn unknown_option(x: &mut [f32]) {
    for v in x.iter_mut() {
        *v = 1.0;
    }
}

#[parallel(cpu, gpu)]
fn both_options(x: &mut [f32]) {
    for v in x.iter_mut() {
        *v = 1.0;
    }
}

#[function]
fn recursive(n: u32) -> u32 {
    if n == 0 { 0 } else { recursive(n - 1) }
}

#[function]
fn of_text(text: &str) -> u32 {
    text.len() as u32
}

#[function]
fn prints(x: f32) -> f32 {
    println!("{x}");
    x
}

fn main() {}
