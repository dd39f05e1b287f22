//! The CUDA C and WGSL in the documentation compiles: in the rustdoc of all crates, in README.md and in `docs/`.
#![cfg(all(feature = "cuda", feature = "wgpu"))]

use std::path::{Path, PathBuf};

use evener_device::{Module, check_wgsl, cuda::compile_kernel};

/// At least this many sources of each language are found. Raise them with the documentation.
const MIN_CUDA_SOURCES: usize = 5;
const MIN_WGSL_SOURCES: usize = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Language {
    CudaC,
    Wgsl,
}

impl Language {
    fn of(text: &str) -> Option<Self> {
        match text {
            text if text.contains("__global__") && text.contains('{') => Some(Language::CudaC),
            text if text.contains("@compute") && text.contains('{') => Some(Language::Wgsl),
            _ => None,
        }
    }
}

/// A kernel source in a code block.
#[derive(Debug)]
struct Source {
    /// The file and line of the code block.
    location: String,
    language: Language,
    text: String,
    /// The calls of `Module::constant` in the block.
    constants: Vec<(String, f64)>,
    /// The other string literals of the block, among them the names of kernels. `None` if the example must not compile.
    strings: Option<Vec<String>>,
}

/// A fenced code block: its first line, its info string (the text behind the backticks) and its code.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    line: usize,
    info: String,
    code: String,
}

/// Returns the fenced code blocks in lines of Markdown. Hidden lines of rustdoc (`# …`) are part of the code.
fn blocks<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Vec<Block> {
    let (mut blocks, mut open): (Vec<Block>, Option<Block>) = (Vec::new(), None);
    for (line, text) in lines {
        match (text.trim().strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(info), None) => open = Some(Block { line, info: info.trim().into(), code: String::new() }),
            (None, Some(mut block)) => {
                block.code += text.strip_prefix("# ").unwrap_or(text);
                block.code.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    blocks
}

/// Returns the numbered lines of Markdown in a file: all of a Markdown file, and the doc comments of a Rust file.
fn markdown<'a>(path: &Path, text: &'a str) -> Vec<(usize, &'a str)> {
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let of_line = |line: &'a str| -> Option<&'a str> {
        if !is_rust {
            return Some(line);
        }
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        Some(comment.strip_prefix(' ').unwrap_or(comment))
    };
    (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, of_line(line)?))).collect()
}

/// Returns the string literals of Rust code.
fn string_literals(code: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let (before, found) = rest.split_at(at);
        if let Some(comment) = found.strip_prefix("//") {
            rest = comment.split_once('\n').map_or("", |(_, next)| next);
        } else if let Some(next) = found.strip_prefix("'\"'") {
            rest = next;
        } else if found.starts_with('"') {
            let hashes = before.len() - before.trim_end_matches('#').len();
            let is_raw = before[..before.len() - hashes].ends_with('r');
            let end = if is_raw { raw_end(found, hashes) } else { escaped_end(found) };
            let literal = &found[1..end];
            literals.push(if is_raw { literal.to_owned() } else { unescape(literal) });
            rest = &found[end + 1..];
        } else {
            rest = &found[1..];
        }
    }
    literals
}

/// Returns the index of the closing quote of a raw string.
fn raw_end(text: &str, hashes: usize) -> usize {
    let end = format!("\"{}", "#".repeat(hashes));
    1 + text[1..].find(&end).unwrap_or(text.len() - 2)
}

/// Returns the index of the closing quote of a string with escapes.
fn escaped_end(text: &str) -> usize {
    let mut is_escaped = false;
    let is_end = |letter: char| {
        let is_end = letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        is_end
    };
    1 + text[1..].find(is_end).unwrap_or(text.len() - 2)
}

/// Replaces the escapes that occur in kernel sources.
fn unescape(literal: &str) -> String {
    let (mut text, mut letters) = (String::new(), literal.chars().peekable());
    while let Some(letter) = letters.next() {
        match (letter, letters.peek()) {
            ('\\', Some('n')) => text.push('\n'),
            ('\\', Some('\n')) => {
                while letters.next_if(|letter| letter.is_whitespace()).is_some() {}
                continue;
            }
            ('\\', Some(&other)) => text.push(other),
            _ => {
                text.push(letter);
                continue;
            }
        }
        letters.next();
    }
    text
}

/// Returns the constants of a block: `.constant("NAME", VALUE)`.
fn constants(code: &str) -> Vec<(String, f64)> {
    let constant = |call: &str| {
        let (name, rest) = call.split_once('"')?;
        let (value, _) = rest.split_once(',')?.1.split_once(')')?;
        // A value that is computed is of no importance for whether the source compiles.
        Some((name.to_owned(), value.trim().parse().unwrap_or(1.0)))
    };
    code.split(".constant(\"").skip(1).filter_map(constant).collect()
}

/// Returns the kernel sources of a block: the block itself if it is CUDA C or WGSL, or its string literals if it is Rust.
fn sources_of(path: &Path, block: &Block) -> Vec<Source> {
    let source = |language, text: String, constants: Vec<_>, strings| Source {
        location: format!("{}:{}", path.strip_prefix(root()).unwrap_or(path).display(), block.line),
        language,
        text,
        constants,
        strings,
    };
    let words: Vec<&str> = block.info.split([',', ' ']).map(str::trim).collect();
    if words.iter().any(|word| ["c", "c++", "cpp", "cuda", "wgsl"].contains(word)) {
        let language = Language::of(&block.code);
        return language
            .map(|language| source(language, block.code.clone(), Vec::new(), None))
            .into_iter()
            .collect();
    }
    let is_rust = words.iter().all(|word| {
        let attributes = ["", "rust", "no_run", "ignore", "should_panic", "compile_fail"];
        attributes.contains(word) || (word.starts_with('E') && word[1..].bytes().all(|b| b.is_ascii_digit()))
    });
    if !is_rust {
        return Vec::new();
    }
    let literals = string_literals(&block.code);
    let (kernels, others): (Vec<_>, Vec<_>) =
        literals.into_iter().partition(|literal| Language::of(literal).is_some());
    let others = (!words.contains(&"compile_fail")).then_some(others);
    let constants = constants(&block.code);
    let of_text = |text: String| Some(source(Language::of(&text)?, text, constants.clone(), others.clone()));
    kernels.into_iter().filter_map(of_text).collect()
}

/// The folder of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the Rust and Markdown files of the documentation.
fn files() -> Vec<PathBuf> {
    fn add(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                add(&path, extension, files);
            } else if path.extension().is_some_and(|found| found == extension) {
                files.push(path);
            }
        }
    }
    let root = root();
    let mut files = vec![root.join("README.md")];
    add(&root.join("docs"), "md", &mut files);
    for entry in std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten() {
        add(&entry.path().join("src"), "rs", &mut files);
        add(&entry.path().join("src"), "md", &mut files);
    }
    files.sort();
    files
}

/// Returns all kernel sources of the documentation in one language.
fn sources(wanted: Language) -> Vec<Source> {
    let of_file = |path: PathBuf| -> Vec<Source> {
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let blocks = blocks(markdown(&path, &text).into_iter());
        blocks.iter().flat_map(|block| sources_of(&path, block)).collect()
    };
    files().into_iter().flat_map(of_file).filter(|source| source.language == wanted).collect()
}

/// Returns the names of the `__global__` functions in CUDA C.
fn cuda_entries(text: &str) -> Vec<&str> {
    fn name(function: &str) -> Option<&str> {
        let head = function.split('{').next()?;
        let mut words = head.split('(').filter_map(|part| part.rsplit([' ', '\n', ')']).next());
        words.find(|word| !word.is_empty() && *word != "__launch_bounds__")
    }
    text.split("__global__").skip(1).filter_map(name).collect()
}

/// Fails unless the example names one of the entry points: a kernel whose name is not in its source does not run.
fn check_entries(source: &Source, entries: &[&str]) {
    assert!(!entries.is_empty(), "{}: the source has no entry point", source.location);
    if let Some(strings) = &source.strings {
        let is_named = entries.iter().any(|entry| strings.iter().any(|name| name == entry));
        assert!(is_named, "{}: the example names none of the entry points {entries:?}", source.location);
    }
}

#[test]
fn every_wgsl_source_in_the_documentation_compiles() {
    let sources = sources(Language::Wgsl);
    assert!(sources.len() >= MIN_WGSL_SOURCES, "only {} WGSL sources were found", sources.len());
    for source in &sources {
        match check_wgsl(&source.text, &source.constants) {
            Ok(entries) => check_entries(source, &entries.iter().map(String::as_str).collect::<Vec<_>>()),
            Err(log) => panic!("{}: {log}\n{}", source.location, source.text),
        }
    }
}

#[test]
fn every_cuda_source_in_the_documentation_has_an_entry_point_that_its_example_names() {
    let sources = sources(Language::CudaC);
    assert!(sources.len() >= MIN_CUDA_SOURCES, "only {} CUDA C sources were found", sources.len());
    sources.iter().for_each(|source| check_entries(source, &cuda_entries(&source.text)));
}

#[test]
fn kernel_sources_are_found_in_string_literals() {
    let code = r##"
        // "not this one"
        let quote = '"';
        let name = "twice";
        let raw = r#"extern "C" __global__ void __launch_bounds__(64) twice(int *out) { *out = 1; }"#;
        let escaped = "@compute\n\"x\" \
            fn f() {}";
    "##;
    let literals = string_literals(code);
    let raw = "extern \"C\" __global__ void __launch_bounds__(64) twice(int *out) { *out = 1; }";
    assert_eq!(literals, ["twice", raw, "@compute\n\"x\" fn f() {}"]);
    assert_eq!(cuda_entries(raw), ["twice"]);
    assert_eq!(
        cuda_entries("extern \"C\" __global__ void one() {} extern \"C\" __global__ void two(int *p) {}"),
        ["one", "two"]
    );
    assert_eq!(
        constants("x.constant(\"A\", 3).constant(\"B\", size)"),
        [("A".to_owned(), 3.0), ("B".to_owned(), 1.0)]
    );
}

#[test]
fn blocks_are_found_in_markdown_and_in_doc_comments() {
    let rust = "/// Text.\n/// ```no_run\n/// # let hidden = 1;\n/// let shown = 2;\n/// ```\nfn code() {}\n";
    let lines = markdown(Path::new("a.rs"), rust);
    let block = Block { line: 2, info: "no_run".into(), code: "let hidden = 1;\nlet shown = 2;\n".into() };
    assert_eq!(blocks(lines.into_iter()), [block]);
    let text = "Text.\n```wgsl\n@compute fn f() {}\n```\n";
    let found = blocks(markdown(Path::new("a.md"), text).into_iter());
    let sources = sources_of(Path::new("a.md"), &found[0]);
    assert_eq!((sources.len(), sources[0].language), (1, Language::Wgsl));
}

mod with_nvrtc {
    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    #[allow(unsafe_code)]
    fn every_cuda_source_in_the_documentation_compiles_for_cards_old_and_new() {
        for source in sources(Language::CudaC) {
            let with_constant = |module: Module, (name, value): &(String, f64)| module.constant(name, *value);
            let module = source.constants.iter().fold(Module::new(), with_constant);
            // SAFETY: the kernel is compiled and never launched.
            let module = unsafe { module.cuda(source.text.clone()) };
            for card in ["sm_75", "sm_90"] {
                if let Err(why) = compile_kernel(card, &module.kernel("documentation")) {
                    panic!("{}: {why}\n{}", source.location, source.text);
                }
            }
        }
    }
}
