//! `evener merkle FILE…`: the root, the tree and proofs of leaves.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use evener_device::Inventory;
use evener_merkle::{Builder, Digest, Hash, LeafFile, Leaves, MerkleTree, Rule, Scheme, Summary};
use evener_schedule::{Pool, Report, Trace};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use super::{
    gather::{self, Cut, Gathered},
    input::{Input, Numbers, Origin, whole_leaves},
    proofs,
    show::Outcome,
    store::store,
};
use crate::{
    Refuted, Usage,
    options::{RunOptions, check_outputs},
    output::{write_aside, write_json, write_out, write_trace},
    size,
    verbosity::Verbosity,
};

/// Test data up to so many bytes is made in memory first, so that making it is not what is measured.
const IN_MEMORY: u64 = 1 << 30;

/// Where leaves come from, what they are, and what becomes of them.
#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("input").required(true).args(["paths", "leaves", "stdin"]))]
#[command(group = ArgGroup::new("cut").args(["leaf_size", "lines", "files"]))]
pub(crate) struct Arguments {
    /// Files with the leaves, one sequence in this order
    #[arg(value_name = "FILE")]
    paths: Vec<PathBuf>,

    /// So many leaves of test data instead: leaf n is the number n, lowest byte first, filled up with zeros
    #[arg(long, value_name = "N", conflicts_with_all = ["lines", "files"])]
    leaves: Option<u64>,

    /// Read the leaves from standard input
    #[arg(long, conflicts_with = "files")]
    stdin: bool,

    /// Leaves of so many bytes (4096, 4KiB) [default: 32]
    #[arg(long, value_name = "BYTES", value_parser = leaf_size)]
    leaf_size: Option<usize>,

    /// Every line is a leaf, without its end (\n or \r\n)
    #[arg(long)]
    lines: bool,

    /// Every file is a leaf
    #[arg(long)]
    files: bool,

    /// The hash function: sha256, keccak256 (Ethereum's) or blake3
    #[arg(long, value_name = "HASH", default_value_t)]
    hash: Hash,

    /// What leaves and nodes hash, and what becomes of odd nodes: rfc6962, bitcoin or rs-merkle
    #[arg(long, value_name = "RULE", default_value_t)]
    rule: Rule,

    /// Write proofs that these leaves, counted from 0, are in the tree, as JSON
    #[arg(long, value_name = "INDEX", num_args = 1.., value_delimiter = ',')]
    prove: Vec<u64>,

    /// Write the proofs to this file; standard output has them otherwise, and nothing else
    #[arg(long, value_name = "FILE", requires = "prove")]
    out: Option<PathBuf>,

    /// Store the tree in this file, for `evener merkle prove`
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,

    /// Fail unless this is the root
    #[arg(long, value_name = "HEX")]
    expect: Option<Digest>,

    #[command(flatten)]
    run: RunOptions,
}

fn leaf_size(text: &str) -> Result<usize, String> {
    match size::bytes(text)? {
        0 => Err("a leaf has at least one byte".into()),
        bytes => usize::try_from(bytes).map_err(|_| format!("`{text}` is more than there can be in memory")),
    }
}

/// What leaves came to.
struct Found {
    summary: Summary,
    bytes: u64,
    /// Where it was asked for.
    tree: Option<MerkleTree>,
    report: Option<Report>,
    trace: Trace,
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let Arguments { run, prove, out, .. } = &arguments;
    check_outputs([run.trace.as_deref(), out.as_deref(), arguments.tree.as_deref()])?;
    let scheme = Scheme::new(arguments.hash, arguments.rule)?;
    let is_silent = run.json || verbosity.is_quiet();
    let work = Work::new(&arguments, scheme, is_silent)?;
    let began = Instant::now();
    let found = work.find(&arguments)?;
    let took = began.elapsed();
    let root = found.summary.root;
    if let Some(expected) = arguments.expect.filter(|expected| root != Some(*expected)) {
        let root = root.map_or("none".into(), |root| root.to_string());
        return Err(Refuted(format!("the root is {root}, and not {expected}")).into());
    }
    let proofs = found.tree.as_ref().map(|tree| proofs::prove(tree, prove)).transpose()?;
    let proofs = proofs.filter(|proofs| !proofs.is_empty());
    if let (Some(tree), Some(path)) = (&found.tree, &arguments.tree) {
        store(tree, path)?;
    }
    if let Some(path) = &run.trace {
        write_trace(path, &found.trace)?;
    }
    if let (Some(proofs), Some(path)) = (&proofs, out) {
        proofs::write(proofs, Some(path))?;
    }
    let mut outcome = Outcome::new(found.summary, found.bytes, took, found.report, &work.devices);
    outcome.tree = arguments.tree.as_ref().map(|path| path.display().to_string());
    let proofs_here = proofs.filter(|_| out.is_none());
    if run.json {
        outcome.proofs = proofs_here;
        return write_json(&outcome);
    }
    let text = match (verbosity.is_quiet(), root) {
        (false, _) => outcome.text(out.as_deref()),
        (true, Some(root)) => format!("{root}\n"),
        (true, None) => String::new(),
    };
    match proofs_here {
        Some(proofs) => {
            proofs::write(&proofs, None)?;
            if !verbosity.is_quiet() {
                write_aside(&text);
            }
        }
        None => write_out(&text)?,
    }
    Ok(())
}

/// What builds, and how.
struct Work {
    builder: Builder,
    scheme: Scheme,
    wants_tree: bool,
    is_silent: bool,
    devices: Vec<String>,
}

impl Work {
    fn new(arguments: &Arguments, scheme: Scheme, is_silent: bool) -> Result<Work> {
        let devices = Inventory::discover().select_or_default(arguments.run.devices.as_deref())?;
        let pool = Pool::new(&devices)?;
        let mut builder = Builder::new(&pool).scheme(scheme).strategy(arguments.run.strategy);
        if arguments.run.trace.is_some() {
            builder = builder.trace();
        }
        if !is_silent {
            builder = builder.progress_bar();
        }
        let wants_tree = arguments.tree.is_some() || !arguments.prove.is_empty();
        let devices = devices.iter().map(|device| device.id().to_string()).collect();
        Ok(Work { builder, scheme, wants_tree, is_silent, devices })
    }

    fn find(&self, arguments: &Arguments) -> Result<Found> {
        let size = arguments.leaf_size.unwrap_or(32);
        let cut = if arguments.lines { Cut::Lines } else { Cut::Size(size) };
        let input = match (arguments.leaves, arguments.stdin) {
            (Some(leaves), _) => Input::Numbers(leaves),
            (None, true) => Input::Stdin,
            (None, false) => Input::Files(arguments.paths.clone()),
        };
        match (input, cut) {
            (Input::Files(paths), _) if arguments.files => self.of_whole_files(&paths),
            (Input::Files(paths), Cut::Size(size)) if is_one_file(&paths) => self.of_file(&paths[0], size),
            (Input::Files(paths), _) => {
                let origins: Result<Vec<Origin>> = paths.iter().map(|path| Origin::open(path)).collect();
                self.of_stream(origins?, cut)
            }
            (Input::Stdin, _) => self.of_stream(vec![Origin::stdin()], cut),
            (Input::Numbers(leaves), _) => self.of_numbers(leaves, size),
        }
    }

    /// All devices read from the file what they need, so that it is never in memory as a whole.
    fn of_file(&self, path: &Path, leaf_bytes: usize) -> Result<Found> {
        let file = LeafFile::open(path)?;
        let bytes = file.bytes();
        whole_leaves(&path.display().to_string(), bytes, leaf_bytes)?;
        self.of_leaves(&Leaves::file(file, leaf_bytes)?, bytes)
    }

    fn of_numbers(&self, leaves: u64, leaf_bytes: usize) -> Result<Found> {
        let bytes = leaves.checked_mul(leaf_bytes as u64).ok_or_else(|| {
            Usage(format!("{leaves} leaves of {leaf_bytes} bytes are more bytes than can be counted"))
        })?;
        if bytes > IN_MEMORY {
            return self.of_stream(vec![Origin::made_up(leaves, leaf_bytes)], Cut::Size(leaf_bytes));
        }
        let mut all = vec![0; bytes as usize];
        let leaf = |(index, leaf): (usize, &mut [u8])| Numbers::leaf(index as u64, leaf);
        all.par_chunks_mut(leaf_bytes).enumerate().for_each(leaf);
        self.of_leaves(&Leaves::of_size(&all, leaf_bytes)?, bytes)
    }

    fn of_leaves(&self, leaves: &Leaves<'_>, bytes: u64) -> Result<Found> {
        if self.wants_tree {
            let built = self.builder.tree(leaves)?;
            let (report, trace) = (built.report().cloned(), built.trace().clone());
            let tree = built.into_value();
            return Ok(Found { summary: tree.summary(), bytes, tree: Some(tree), report, trace });
        }
        let built = self.builder.root(leaves)?;
        let summary = Summary { scheme: self.scheme, leaves: leaves.count(), root: Some(*built.value()) };
        let (report, trace) = (built.report().cloned(), built.trace().clone());
        Ok(Found { summary, bytes, tree: None, report, trace })
    }

    fn of_stream(&self, origins: Vec<Origin>, cut: Cut) -> Result<Found> {
        if let Cut::Size(size) = cut {
            origins.iter().try_for_each(|origin| origin.check_size(size))?;
        }
        let bar = self.bar(origins.iter().map(Origin::bytes).sum());
        let pieces = gather::pieces(origins, cut);
        if self.wants_tree {
            let (hashes, bytes) = gather::hashes(self.scheme, &pieces, cut, &bar)?;
            bar.finish_and_clear();
            return self.of_leaves(&Leaves::digests(&hashes), bytes);
        }
        let Gathered { root, leaves, bytes, sum } =
            gather::root(&self.builder, self.scheme, &pieces, cut, &bar)?;
        bar.finish_and_clear();
        let (report, trace) = sum.finish();
        let summary = Summary { scheme: self.scheme, leaves, root: Some(root) };
        Ok(Found { summary, bytes, tree: None, report, trace })
    }

    fn of_whole_files(&self, paths: &[PathBuf]) -> Result<Found> {
        let bar = self.bar(paths.iter().map(|path| Some(path.metadata().ok()?.len())).sum());
        let scheme = self.scheme;
        let hash = |path: &PathBuf| {
            let mut origin = Origin::open(path)?;
            let mut counted = Counted { reader: origin.reader(), bytes: 0 };
            let digest = scheme.leaf_from(&mut counted);
            let digest = digest.with_context(|| format!("{}: cannot be read", path.display()))?;
            let bytes = counted.bytes;
            origin.check_unchanged(bytes)?;
            bar.inc(bytes);
            Ok((digest, bytes))
        };
        let hashed: Result<Vec<(Digest, u64)>> = paths.par_iter().map(hash).collect();
        bar.finish_and_clear();
        let (hashes, bytes): (Vec<Digest>, Vec<u64>) = hashed?.into_iter().unzip();
        self.of_leaves(&Leaves::digests(&hashes), bytes.iter().sum())
    }

    /// A bar on standard error, of bytes that were read; it hides itself where that is no terminal.
    fn bar(&self, bytes: Option<u64>) -> ProgressBar {
        let (bar, template) = match bytes {
            _ if self.is_silent => return ProgressBar::hidden(),
            Some(bytes) => {
                (ProgressBar::new(bytes), "{wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} to go")
            }
            None => (ProgressBar::no_length(), "{spinner} {bytes} {bytes_per_sec}"),
        };
        bar.with_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        )
    }
}

/// What was read is counted.
struct Counted<R> {
    reader: R,
    bytes: u64,
}

impl<R: std::io::Read> std::io::Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }
}

fn is_one_file(paths: &[PathBuf]) -> bool {
    matches!(paths, [path] if path.metadata().is_ok_and(|there| there.is_file()))
}
