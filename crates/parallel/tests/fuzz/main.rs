//! Random loops from the grammar: a reference interpreter, the WGSL on software Vulkan and, compiled only, the CUDA C.
//! `EVENER_FUZZ_SECONDS` says for how long, `EVENER_FUZZ_SEED` repeats a loop that was printed, and `EVENER_FUZZ_FILE` runs the
//! loop of a file.
#![allow(clippy::all, clippy::panic, clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod interpret;

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use evener_device::{Api, Device, Inventory, Launch};
use evener_loops::{
    emit::{FieldSource, Kernels},
    ir::{Body, Ty},
    items::Items,
    split::{Context, SplitLoop, split},
};
use evener_parallel::{
    __private::{Arrays, KernelTask, Params, kernel},
    Pool,
};
use interpret::{Iteration, Panics, Value};

/// A random source that a seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    fn pick<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len() as u64) as usize]
    }
}

/// Writes random source: the variables in scope by type.
struct Writer {
    random: Random,
    variables: Vec<(String, &'static str)>,
    fresh: usize,
}

const TYPES: [&str; 5] = ["i32", "u32", "i64", "u64", "f32"];

impl Writer {
    fn variable(&mut self, ty: &str) -> Option<String> {
        let known: Vec<&String> =
            self.variables.iter().filter(|(_, it)| *it == ty).map(|(name, _)| name).collect();
        (!known.is_empty()).then(|| known[self.random.below(known.len() as u64) as usize].clone())
    }

    fn literal(&mut self, ty: &str) -> String {
        match ty {
            "f32" => format!("{}.{}f32", self.random.below(9), self.random.below(100)),
            "i32" | "i64" => {
                let value = self.random.pick(&["0", "1", "2", "3", "7", "100", "65535", "2147483647"]);
                if self.random.below(3) == 0 { format!("(-{value}{ty})") } else { format!("{value}{ty}") }
            }
            _ => format!("{}{ty}", self.random.pick(&["0", "1", "2", "5", "31", "255", "4294967295"])),
        }
    }

    fn expr(&mut self, ty: &'static str, depth: u32) -> String {
        if depth == 0 || self.random.below(6) == 0 {
            return match self.variable(ty) {
                Some(name) if self.random.below(4) > 0 => name,
                _ => self.literal(ty),
            };
        }
        let choice = self.random.below(10);
        if choice == 0 {
            let (condition, a, b) =
                (self.condition(depth - 1), self.expr(ty, depth - 1), self.expr(ty, depth - 1));
            return format!("(if {condition} {{ {a} }} else {{ {b} }})");
        }
        if choice == 1 {
            let from = TYPES[self.random.below(5) as usize];
            return format!("({} as {ty})", self.expr(from, depth - 1));
        }
        let a = self.expr(ty, depth - 1);
        if ty == "f32" {
            return match self.random.below(7) {
                0 => format!("{a}.abs()"),
                1 => format!("({a}).floor()"),
                2 => format!("({a}).min({})", self.expr(ty, depth - 1)),
                3 => format!("({a}).max({})", self.expr(ty, depth - 1)),
                _ => format!("({a} {} {})", self.random.pick(&["+", "-", "*"]), self.expr(ty, depth - 1)),
            };
        }
        let b = self.expr(ty, depth - 1);
        match self.random.below(12) {
            0 => format!("({a} / {b})"),
            1 => format!("({a} % {b})"),
            2 => format!("({a} << {}u32)", self.random.below(31)),
            3 => format!("({a} >> ({} & 31u32))", self.expr("u32", depth - 1)),
            4 => {
                format!("({a}).{}({b})", self.random.pick(&["wrapping_add", "wrapping_sub", "wrapping_mul"]))
            }
            5 => format!(
                "({a}).{}({b})",
                self.random.pick(&["saturating_add", "saturating_sub", "saturating_mul"])
            ),
            6 => format!("({a}).{}({b})", self.random.pick(&["min", "max"])),
            7 => format!("(({a}).{}() as {ty})", self.random.pick(&["count_ones", "leading_zeros"])),
            8 => format!("(!{a})"),
            _ => format!("({a} {} {b})", self.random.pick(&["+", "-", "*", "&", "|", "^"])),
        }
    }

    fn condition(&mut self, depth: u32) -> String {
        let ty = TYPES[self.random.below(5) as usize];
        let (a, b) = (self.expr(ty, depth), self.expr(ty, depth));
        let compare = format!("({a} {} {b})", self.random.pick(&["<", "<=", ">", ">=", "==", "!="]));
        match self.random.below(5) {
            0 if depth > 0 => format!("({compare} && {})", self.condition(depth - 1)),
            1 if depth > 0 => format!("({compare} || {})", self.condition(depth - 1)),
            2 => format!("!{compare}"),
            _ => compare,
        }
    }

    fn block(&mut self, depth: u32) -> String {
        let known = self.variables.len();
        let mut out = String::new();
        for _ in 0..1 + self.random.below(4) {
            let ty = TYPES[self.random.below(5) as usize];
            match self.random.below(6) {
                0 | 1 => {
                    self.fresh += 1;
                    let (name, value) = (format!("v{}", self.fresh), self.expr(ty, 3));
                    out.push_str(&format!("let mut {name}: {ty} = {value};\n"));
                    self.variables.push((name, ty));
                }
                2 => {
                    if let Some(name) = self.variable(ty) {
                        let value = self.expr(ty, 3);
                        let op = self.random.pick(&["=", "=", "+=", "-="]);
                        out.push_str(&format!("{name} {op} {value};\n"));
                    }
                }
                3 if depth > 0 => {
                    let (condition, then, other) =
                        (self.condition(2), self.block(depth - 1), self.block(depth - 1));
                    out.push_str(&format!("if {condition} {{\n{then}}} else {{\n{other}}}\n"));
                }
                4 if depth > 0 => {
                    self.fresh += 1;
                    let (name, end) = (format!("j{}", self.fresh), self.random.below(5));
                    let known = self.variables.len();
                    let body = self.block(depth - 1);
                    self.variables.truncate(known);
                    out.push_str(&format!("for {name} in 0..{end}u32 {{\n{body}}}\n"));
                }
                _ => {}
            }
        }
        self.variables.truncate(known);
        out
    }

    /// A whole function. All variables are set before the random statements, so that these can use them.
    fn function(seed: u64) -> String {
        let mut writer = Writer { random: Random(seed), variables: Vec::new(), fresh: 0 };
        let mut body = String::new();
        for (name, ty, value) in [
            ("x", "i32", "a[i]"),
            ("y", "u32", "b[i]"),
            ("z", "f32", "c[i]"),
            ("m", "i64", "a[i] as i64"),
            ("n", "u64", "b[i] as u64"),
        ] {
            body.push_str(&format!("let mut {name}: {ty} = {value};\n"));
            writer.variables.push((name.into(), ty));
        }
        body.push_str(&writer.block(2));
        body.push_str(&writer.block(2));
        body.push_str("out[i] = (x as i64) ^ m ^ (y as i64) ^ (n as i64);\noutf[i] = z;\n");
        format!(
            "fn f(a: &[i32], b: &[u32], c: &[f32], out: &mut [i64], outf: &mut [f32]) {{\nfor i in 0..a.len() {{\n{body}}}\n}}"
        )
    }
}

/// The loop of a source.
fn read(source: &str) -> Option<(Body, Kernels)> {
    let function: syn::ItemFn = syn::parse_str(source).unwrap();
    let items = Items::default();
    let context = Context::of(&function, &items, false);
    let syn::Stmt::Expr(syn::Expr::ForLoop(inner), _) = &function.block.stmts[0] else { return None };
    let SplitLoop { devices, .. } =
        split("f", inner, &context).map_err(|problem| panic!("{}: {source}", problem.message)).ok()?;
    match devices {
        Ok(found) => Some(found),
        Err(problem) => panic!("{}: {source}", problem.message),
    }
}

const COUNT: usize = 200;

fn inputs() -> (Vec<i32>, Vec<u32>, Vec<f32>) {
    let mut random = Random(99);
    let special = [0, 1, -1, 2, 31, 32, i32::MAX, i32::MIN, 1000, -77];
    let a: Vec<i32> = (0..COUNT)
        .map(|i| if i % 3 == 0 { special[i / 3 % 10] } else { random.below(2000) as i32 - 1000 })
        .collect();
    let b = a.iter().rev().map(|a| *a as u32).collect();
    let c = (0..COUNT).map(|i| (i as f32 - 90.0) * 0.37).collect();
    (a, b, c)
}

/// What the interpreter says of each iteration.
fn reference(body: &Body, is_checked: bool) -> Vec<Result<(i64, f32), Panics>> {
    let (a, b, c) = inputs();
    let number = |name: &str| body.slices.iter().position(|slice| slice.name == name).unwrap();
    (0..COUNT)
        .map(|i| {
            let elements = HashMap::from([
                (number("a"), Value::Int(a[i].into())),
                (number("b"), Value::Int(b[i].into())),
                (number("c"), Value::F32(c[i])),
            ]);
            let locals = HashMap::from([(0, Value::Int(i as i128))]);
            let mut iteration = Iteration { locals, elements, len: COUNT, is_checked };
            iteration.block(&body.block)?;
            match (iteration.elements[&number("out")], iteration.elements[&number("outf")]) {
                (Value::Int(out), Value::F32(outf)) => Ok((out as i64, outf)),
                other => panic!("{other:?}"),
            }
        })
        .collect()
}

/// What a device gives: the results, and which iterations it leaves to the processor.
fn on_device(
    pool: &Pool,
    body: &Body,
    kernels: &Kernels,
    is_checked: bool,
) -> (Vec<i64>, Vec<f32>, Vec<u32>) {
    let (a, b, c) = inputs();
    let sources = kernels.wgsl.as_ref().unwrap();
    let source = &sources[usize::from(!is_checked)];
    let text: &'static str = Box::leak(source.text.clone().into_boxed_str());
    let rust = |_: &mut Launch<'_>| Err("no body".into());
    let task =
        KernelTask::arrays(&kernel("f", Some((text, source.needs.int64, source.needs.float64)), None, rust));
    let task = task.input::<i32>().input::<u32>().input::<f32>().output::<i64>().output::<f32>();
    let task = if kernels.has_status { task.output::<u32>() } else { task };
    let mut params = Params::default();
    for field in &kernels.layout.fields {
        match field.source {
            FieldSource::Start => params.push::<usize>(0),
            FieldSource::Len(_) => params.push::<usize>(COUNT),
            ref other => panic!("{other:?}"),
        }
    }
    let names: Vec<&str> = kernels.layout.inputs.iter().map(|it| body.slices[*it].name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let (mut out, mut outf, mut status) = (vec![0; COUNT], vec![0.0; COUNT], vec![0; COUNT]);
    let arrays = Arrays::new().input(&a).input(&b).input(&c).output(&mut out).output(&mut outf);
    let arrays = if kernels.has_status { arrays.output(&mut status) } else { arrays };
    // The words begin at the first for the kernel's Rust body only.
    pool.map_arrays(&task.parameters(params), arrays).unwrap_or_else(|error| panic!("{error}\n{text}"));
    (out, outf, status)
}

fn limit() -> Duration {
    Duration::from_secs(
        std::env::var("EVENER_FUZZ_SECONDS").ok().and_then(|it| it.parse().ok()).unwrap_or(20),
    )
}

fn seeds() -> Box<dyn Iterator<Item = u64>> {
    match std::env::var("EVENER_FUZZ_SEED").ok().and_then(|it| it.parse().ok()) {
        Some(seed) => Box::new(std::iter::once(seed)),
        None => Box::new(1..),
    }
}

#[test]
fn random_loops_are_read_and_have_kernels() {
    for seed in 1..200 {
        let source = Writer::function(seed);
        let (body, kernels) = read(&source).unwrap();
        assert_eq!(body.locals[0].ty, Ty::Usize);
        assert!(kernels.wgsl.is_ok() && kernels.cuda.is_ok(), "{source}");
    }
}

mod with_vulkan {
    use super::*;

    #[test]
    #[ignore = "needs a Vulkan device"]
    fn random_loops_give_what_the_interpreter_gives() {
        let devices: Vec<Device> = Inventory::discover().select("all").unwrap();
        let device = devices.into_iter().find(|device| device.describe().api == Api::Vulkan).unwrap();
        let pool = Pool::new([device]).unwrap();
        let (start, mut loops) = (Instant::now(), 0);
        for seed in seeds() {
            if start.elapsed() > limit() {
                break;
            }
            let source = match std::env::var("EVENER_FUZZ_FILE") {
                Ok(path) => std::fs::read_to_string(path).unwrap(),
                Err(_) => Writer::function(seed),
            };
            let (body, kernels) = read(&source).unwrap();
            for is_checked in [true, false] {
                let expected = reference(&body, is_checked);
                let (out, outf, status) = on_device(&pool, &body, &kernels, is_checked);
                for (i, expected) in expected.iter().enumerate() {
                    let what = format!("seed {seed}, checked {is_checked}, iteration {i}\n{source}");
                    match expected {
                        Err(Panics) => assert_ne!(status[i] & 1, 0, "the panic is missed: {what}"),
                        Ok((value, float)) => {
                            assert_eq!(status[i] & 1, 0, "no panic: {what}");
                            assert_eq!(out[i], *value, "{what}");
                            let is_same =
                                outf[i].to_bits() == float.to_bits() || outf[i].is_nan() && float.is_nan();
                            assert!(is_same, "{} is not {float}: {what}", outf[i]);
                        }
                    }
                }
            }
            loops += 1;
        }
        println!("{loops} random loops");
    }
}

mod with_nvrtc {
    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    fn random_loops_compile_as_cuda() {
        let start = Instant::now();
        for seed in 1..60 {
            if start.elapsed() > limit() {
                break;
            }
            let source = Writer::function(seed);
            let (_, kernels) = read(&source).unwrap();
            for cuda in kernels.cuda.as_ref().unwrap() {
                let compiled = evener_device::cuda::compile_for("sm_90", "f", &cuda.text);
                assert!(compiled.is_ok(), "{compiled:?}\n{}", cuda.text);
            }
        }
    }
}
