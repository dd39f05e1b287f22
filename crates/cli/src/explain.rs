//! `evener explain`: tells which loops of Rust files could run on every device.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, ValueEnum};
use evener_loops::{
    emit::Language,
    explain::{Explained, explain},
};

use crate::{
    UsageError,
    escape::single_line,
    input::{display_input, read_text},
    output::write_out,
    verbosity::Verbosity,
};

/// Tell which loops of Rust files could run on every device
///
/// Reads Rust files, which need not use Evener, and says of every `for` loop and `map(…).collect()` whether its iterations
/// are independent, on which devices `#[parallel]` could run it, or which expression stands in the way.
///
/// With -q, prints only the loops that could be split.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Read these Rust files; - is standard input
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,

    /// Print the kernels in this language instead
    #[arg(long, value_name = "LANGUAGE")]
    emit: Option<Emit>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Emit {
    /// For devices driven through Vulkan, Metal and Direct3D 12
    Wgsl,
    /// For NVIDIA's devices
    Cuda,
}

const EXAMPLES: &str = "\
Examples:
  evener explain src/*.rs
      list the loops of a project
  evener explain --emit wgsl src/prices.rs
      print the WGSL of its loops";

/// Runs the command.
pub(crate) fn run(arguments: &Arguments, verbosity: Verbosity) -> Result<()> {
    for path in &arguments.files {
        let name = display_input(path);
        let loops = explain(&read_text(path)?).map_err(|(line, column, why)| {
            UsageError(format!("{name}:{line}:{column}: this is not Rust: {why}"))
        })?;
        for found in &loops {
            match arguments.emit {
                Some(emit) => write_out(&kernel(&name, found, emit))?,
                None if verbosity.is_quiet() && found.refused.is_some() => {}
                None => write_out(&sentence(&name, found))?,
            }
        }
    }
    Ok(())
}

fn title(name: &str, found: &Explained) -> String {
    format!("{name}:{}: `{}` in `{}`", found.line, single_line(&found.header), found.function)
}

/// What can be done with a loop, for a person.
fn sentence(name: &str, found: &Explained) -> String {
    let mut text = title(name, found);
    let at = |(line, column, why): &(usize, usize, String)| {
        format!("  {name}:{line}:{column}: {}\n", single_line(why))
    };
    if let Some(problem) = &found.refused {
        text.push_str(&format!(": cannot be split\n{}", at(problem)));
    } else if let Some(problem) = &found.processor_only {
        text.push_str(&format!(": runs on the processor's cores only\n{}", at(problem)));
    } else if found.without.is_empty() {
        text.push_str(": runs on every device\n");
    } else {
        text.push_str(": runs on some devices\n");
        for (language, why) in &found.without {
            text.push_str(&format!("  not in {}: {}\n", language_name(*language), single_line(why)));
        }
    }
    text
}

fn language_name(language: Language) -> &'static str {
    match language {
        Language::Wgsl => "WGSL",
        Language::Cuda => "CUDA C",
    }
}

/// The kernel of a loop, or a comment that says why there is none.
fn kernel(name: &str, found: &Explained, emit: Emit) -> String {
    let language = match emit {
        Emit::Wgsl => Language::Wgsl,
        Emit::Cuda => Language::Cuda,
    };
    let head = title(name, found);
    match found.sources.iter().find(|(it, _)| *it == language) {
        Some((_, source)) => format!("// {head}\n{}\n", source.text),
        None => {
            let why = found.refused.as_ref().or(found.processor_only.as_ref()).map(|(.., why)| why.clone());
            let why = why.or_else(|| found.without.first().map(|(_, why)| why.clone())).unwrap_or_default();
            format!("// {head}: no kernel: {}\n\n", single_line(&why))
        }
    }
}
