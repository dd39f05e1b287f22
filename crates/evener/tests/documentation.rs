//! Compiles the CUDA C and WGSL of all examples in the documentation: of the README, of the guide and of every crate.
//!
//! The examples themselves run as documentation tests, on the devices of the machine. Their WGSL is checked here as the
//! wgpu back end does and their CUDA C is compiled by NVRTC, so that both are checked where no such device is present.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// At least this many bodies are found: as many as the documentation has. Raise them with it.
#[cfg(feature = "wgpu")]
const MIN_WGSL_BODIES: usize = 7;
#[cfg(feature = "cuda")]
const MIN_CUDA_BODIES: usize = 8;

/// A kernel body in an example.
struct Body {
    /// The file, for messages.
    file: PathBuf,
    /// The name that the example declares, if it declares the kernel before the body.
    kernel: Option<String>,
    /// The constants of the module.
    constants: Vec<(String, f64)>,
    source: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Calls a function with every file of a folder and of the folders in it.
fn visit(folder: &Path, file: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { visit(&path, file) } else { file(&path) }
    }
}

/// Returns the code blocks of all documentation. Those of Rust sources are in their comments.
fn examples() -> Vec<(PathBuf, String)> {
    let mut files = vec![root().join("README.md")];
    let mut add = |path: &Path| files.push(path.to_owned());
    visit(&root().join("docs"), &mut add);
    for krate in ["device", "schedule", "mesh", "merkle", "evener"] {
        visit(&root().join("crates").join(krate).join("src"), &mut add);
    }
    let mut examples = Vec::new();
    for file in files {
        let text = match file.extension().and_then(|it| it.to_str()) {
            Some("md") => fs::read_to_string(&file).unwrap(),
            Some("rs") => comments(&fs::read_to_string(&file).unwrap()),
            _ => continue,
        };
        // Every other piece is between two fences.
        examples
            .extend(text.split("```").skip(1).step_by(2).map(|example| (file.clone(), example.to_owned())));
    }
    examples
}

fn comments(source: &str) -> String {
    let lines = source.lines().map(str::trim_start);
    let lines = lines.filter_map(|line| line.strip_prefix("///").or_else(|| line.strip_prefix("//!")));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the string literals of an example, each with its position.
fn literals(example: &str) -> Vec<(usize, String)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(quote) = example[at..].find('"').map(|offset| at + offset) {
        let is_raw = example[..quote].ends_with("r#");
        let text = &example[quote + 1..];
        let is_escaped = |end: usize| text[..end].ends_with('\\');
        let end = match is_raw {
            true => text.find("\"#"),
            false => text.match_indices('"').map(|(end, _)| end).find(|end| !is_escaped(*end)),
        };
        let Some(end) = end else { break };
        let text = &text[..end];
        let literal = if is_raw { text.to_owned() } else { text.replace("\\\"", "\"").replace("\\n", "\n") };
        found.push((quote, literal));
        at = quote + 1 + end + 1;
    }
    found
}

/// Returns the string literals that contain a mark.
fn bodies(mark: &str) -> Vec<Body> {
    let mut bodies = Vec::new();
    for (file, example) in examples() {
        let all = literals(&example);
        let is_after = |position: usize, call: &str| example[..position].ends_with(call);
        let names: Vec<&(usize, String)> =
            all.iter().filter(|(position, _)| is_after(*position, "Kernel::new(")).collect();
        let constants = all.iter().filter(|(position, _)| is_after(*position, ".constant("));
        let constants: Vec<(String, f64)> = constants
            .map(|(position, name)| {
                let value = example[position + name.len() + 2..].split([',', ')']).nth(1).unwrap();
                // Whether a source compiles hardly depends on a value that the example computes.
                (name.clone(), value.trim().parse().unwrap_or(1.0))
            })
            .collect();
        for (position, source) in all.iter().filter(|(_, literal)| literal.contains(mark)) {
            // A constant may come before the declaration of its kernel: then there is one kernel only.
            let name = match &names[..] {
                [only] => Some(only),
                _ => names.iter().rfind(|(name, _)| name < position),
            };
            bodies.push(Body {
                file: file.clone(),
                kernel: name.map(|(_, name)| name.clone()),
                constants: constants.clone(),
                source: source.clone(),
            });
        }
    }
    bodies
}

#[cfg(feature = "wgpu")]
#[test]
fn the_wgsl_of_every_example_is_valid() {
    let bodies = bodies("@compute");
    assert!(bodies.len() >= MIN_WGSL_BODIES, "only {} WGSL bodies were found", bodies.len());
    for Body { file, kernel, constants, source } in bodies {
        let entries = evener_device::check_wgsl(&source, &constants);
        let entries = entries.unwrap_or_else(|log| panic!("{file:?}: {log}"));
        if let Some(kernel) = kernel {
            assert!(entries.contains(&kernel), "{file:?}: no entry point `{kernel}`\n{source}");
        }
    }
}

#[cfg(feature = "cuda")]
mod with_nvrtc {
    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_cuda_c_of_every_example_compiles() {
        let bodies = bodies("__global__");
        assert!(bodies.len() >= MIN_CUDA_BODIES, "only {} CUDA C bodies were found", bodies.len());
        for Body { file, kernel, constants, source } in bodies {
            let define = |(name, value): &(String, f64)| format!("#define {name} {value}\n");
            let constants: String = constants.iter().map(define).collect();
            let name = kernel.as_deref().unwrap_or("example");
            let compiled = evener::cuda::compile_for("sm_75", name, &(constants + &source));
            assert!(compiled.is_ok(), "{file:?}: {}\n{source}", compiled.unwrap_err());
            if let Some(kernel) = kernel {
                assert!(source.contains(&format!("void {kernel}(")), "{file:?}: no entry point `{kernel}`");
            }
        }
    }
}

/// Programs need no dependency but `evener`: neither the examples nor what the documentation shows of the facade do.
#[test]
fn examples_of_the_facade_import_nothing_but_the_facade() {
    let mut sources: Vec<(PathBuf, String)> = examples();
    sources.retain(|(file, _)| file.ends_with("README.md") || file.starts_with(root().join("docs")));
    visit(&root().join("crates/evener/examples"), &mut |file| {
        if file.extension().is_some_and(|it| it == "rs") {
            sources.push((file.to_owned(), fs::read_to_string(file).unwrap()));
        }
    });
    assert!(sources.len() > 10, "only {} examples were found", sources.len());
    for (file, source) in sources {
        for line in source.lines().map(str::trim_start) {
            let Some(path) = line.strip_prefix("use ") else { continue };
            let from = path.split([':', ';', ' ']).next().unwrap_or_default();
            assert!(
                ["evener", "std", "self", "super", "crate"].contains(&from),
                "{}: {line}",
                file.display()
            );
        }
    }
}
