//! `evener merkle FILE…`: the root, the tree and proofs of leaves.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use clap::{ArgGroup, Args};
use evener_device::Device;
use evener_merkle::{
    Builder, Built, Digest, Error, Hash, LeafFile, Leaves, MerkleTree, RootStream, Rule, Scheme, TreeSummary,
};
use evener_schedule::{Pool, Report, Trace};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use super::{
    gather::{self, Cut},
    input::{self, Input, Last, Numbers, Origin, whole_leaves},
    proofs::{self, RootedProof},
    show::Outcome,
    store::store,
};
use crate::{
    Refuted, Usage,
    options::{RunOptions, check_outputs, choose_devices, tell_run},
    output::{count, shown, write_aside, write_json, write_out, write_trace},
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
    /// Files with the leaves, one sequence in this order; - is standard input
    #[arg(value_name = "FILE")]
    paths: Vec<PathBuf>,

    /// So many leaves of test data instead: leaf n is the number n, lowest byte first, filled up with zeros
    #[arg(long, value_name = "N", conflicts_with_all = ["lines", "files"])]
    leaves: Option<u64>,

    /// Read the leaves from standard input, as - does
    #[arg(long, conflicts_with = "files")]
    stdin: bool,

    /// Leaves of so many bytes (4096, 4KiB) [default: 32]
    #[arg(long, value_name = "BYTES", value_parser = leaf_size)]
    leaf_size: Option<usize>,

    /// What becomes of bytes after the last whole leaf of a file: a shorter leaf, or filled up with zeros; an error
    /// without it
    #[arg(long, value_name = "HOW", conflicts_with_all = ["lines", "files", "leaves"])]
    last: Option<Last>,

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

    /// Write proofs that these leaves, counted from 0, are in the tree, as JSON; several with commas: 0,41
    #[arg(long, value_name = "INDEX", value_delimiter = ',')]
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
    summary: TreeSummary,
    bytes: u64,
    /// Where it was asked for.
    tree: Option<MerkleTree>,
    report: Option<Report>,
    leaves_per_item: Option<u64>,
    trace: Trace,
}

impl Found {
    fn new<T>(built: &Built<T>, summary: TreeSummary, bytes: u64, tree: Option<MerkleTree>) -> Found {
        let (report, trace) = (built.report().cloned(), built.trace().clone());
        Found { summary, bytes, tree, report, leaves_per_item: built.leaves_per_item(), trace }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let Arguments { run, out, .. } = &arguments;
    check_outputs([run.trace.as_deref(), out.as_deref(), arguments.tree.as_deref()])?;
    let input = arguments.input()?;
    let scheme = Scheme::new(arguments.hash, arguments.rule)?;
    let is_silent = run.json || verbosity.is_quiet();
    let work = Work::new(&arguments, scheme, is_silent)?;
    let began = Instant::now();
    let found = work.find(input, &arguments)?;
    let took = began.elapsed();
    if let Some(expected) = arguments.expect.filter(|expected| found.summary.root != Some(*expected)) {
        let root = found.summary.root.map_or("none".into(), |root| root.to_string());
        return Err(Refuted(format!("the root is {root}, and not {expected}")).into());
    }
    let proofs = found.tree.as_ref().map(|tree| proofs::prove(tree, &arguments.prove)).transpose()?;
    let proofs = proofs.filter(|proofs| !proofs.is_empty());

    // A file that cannot be written costs nobody the root, nor the other files.
    let mut failures = Vec::new();
    let mut is_done = |written: Result<()>| written.map_err(|error| failures.push(error)).is_ok();
    let is_stored = match (&found.tree, &arguments.tree) {
        (Some(tree), Some(path)) => is_done(store(tree, path)),
        _ => false,
    };
    if let Some(path) = &run.trace {
        is_done(write_trace(path, &found.trace));
    }
    let proofs_to = out
        .as_deref()
        .filter(|path| proofs.as_ref().is_some_and(|proofs| is_done(proofs::write(proofs, Some(path)))));

    let Found { summary, bytes, report, leaves_per_item, .. } = found;
    let mut outcome = Outcome::new(summary, bytes, took, report, leaves_per_item, &work.devices);
    outcome.tree = arguments.tree.as_ref().filter(|_| is_stored).map(|path| path.display().to_string());
    tell(&outcome, &arguments);
    let proofs_here = proofs.filter(|_| out.is_none());
    let shown = show(outcome, proofs_here, proofs_to, run.json, verbosity);
    match failures.pop() {
        None => shown,
        Some(last) => {
            failures.iter().for_each(|failure| write_aside(&format!("error: {failure:#}\n")));
            Err(last)
        }
    }
}

/// Writes to standard output what came of it; proofs have it for themselves.
fn show(
    mut outcome: Outcome,
    proofs: Option<Vec<RootedProof>>,
    proofs_to: Option<&Path>,
    json: bool,
    verbosity: Verbosity,
) -> Result<()> {
    if json {
        outcome.proofs = proofs;
        return write_json(&outcome);
    }
    let text = match (verbosity.is_quiet(), outcome.summary.root) {
        (false, _) => outcome.text(proofs_to),
        (true, Some(root)) => format!("{root}\n"),
        (true, None) => String::new(),
    };
    match proofs {
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

/// Says, at `-v`, how large it was and who did what.
fn tell(outcome: &Outcome, arguments: &Arguments) {
    let leaves = count(outcome.summary.leaves);
    let of = match (arguments.lines, arguments.files) {
        (true, _) => "lines".into(),
        (_, true) => "files".into(),
        _ => format!("leaves of {} bytes", count(arguments.leaf_bytes() as u64)),
    };
    let bytes = count(outcome.bytes);
    match outcome.leaves_per_item {
        Some(each) => tracing::info!("{leaves} {of}, {bytes} bytes, in items of {} leaves", count(each)),
        None => tracing::info!("{leaves} {of}, {bytes} bytes"),
    }
    tell_run(&outcome.report);
}

impl Arguments {
    fn leaf_bytes(&self) -> usize {
        self.leaf_size.unwrap_or(32)
    }

    /// Where leaves come from. Fails where that cannot be meant.
    fn input(&self) -> Result<Input> {
        if let Some(leaves) = self.leaves {
            return Ok(Input::Numbers(leaves));
        }
        let paths = if self.stdin { vec!["-".into()] } else { self.paths.clone() };
        if paths.iter().filter(|path| input::is_stdin(path)).count() > 1 {
            return Err(Usage("- is standard input, which can be read once: name it once".into()).into());
        }
        // Other commands take several values after an option; here these would be files.
        let is_index = |path: &&PathBuf| path.to_str().is_some_and(|it| it.parse::<u64>().is_ok());
        let indices: Vec<String> =
            paths.iter().filter(is_index).filter(|path| !path.exists()).map(|path| shown(path)).collect();
        if !self.prove.is_empty() && !indices.is_empty() {
            let all: Vec<String> = self.prove.iter().map(u64::to_string).chain(indices.clone()).collect();
            let (missing, all) = (indices.join(", "), all.join(","));
            let why = format!("{missing}: there is no such file; for several leaves write --prove {all}");
            return Err(Usage(why).into());
        }
        Ok(Input::Files(paths))
    }
}

/// What builds, and how.
struct Work {
    builder: Builder,
    scheme: Scheme,
    wants_tree: bool,
    /// The leaves that proofs are wanted for.
    prove: Vec<u64>,
    is_silent: bool,
    devices: Vec<String>,
}

impl Work {
    fn new(arguments: &Arguments, scheme: Scheme, is_silent: bool) -> Result<Work> {
        let devices = choose_devices(arguments.run.devices.as_deref())?;
        tracing::info!("{scheme}, strategy {}", arguments.run.strategy);
        let pool = Pool::new(&devices)?;
        let mut builder = Builder::new(&pool).scheme(scheme).strategy(arguments.run.strategy);
        if arguments.run.trace.is_some() {
            builder = builder.trace();
        }
        if !is_silent {
            builder = builder.progress_bar();
        }
        let prove = arguments.prove.clone();
        let wants_tree = arguments.tree.is_some() || !prove.is_empty();
        let devices = devices.iter().map(|device| device.id().to_string()).collect();
        Ok(Work { builder, scheme, wants_tree, prove, is_silent, devices })
    }

    fn find(&self, input: Input, arguments: &Arguments) -> Result<Found> {
        let (size, last) = (arguments.leaf_bytes(), arguments.last);
        let cut = if arguments.lines { Cut::Lines } else { Cut::Size(size, last) };
        match (input, cut) {
            (Input::Files(paths), _) if arguments.files => self.of_whole_files(&paths),
            (Input::Files(paths), Cut::Size(..)) if is_one_file(&paths) => {
                self.of_file(&paths[0], size, last)
            }
            (Input::Files(paths), _) => {
                let origins: Result<Vec<Origin>> = paths.iter().map(|path| Origin::open(path)).collect();
                self.of_stream(origins?, cut)
            }
            (Input::Numbers(leaves), _) => self.of_numbers(leaves, size),
        }
    }

    /// All devices read from the file what they need, so that it is never in memory as a whole.
    fn of_file(&self, path: &Path, leaf_bytes: usize, last: Option<Last>) -> Result<Found> {
        let mut file = LeafFile::open(path)?;
        let bytes = file.bytes();
        tracing::info!("{}: {} bytes, read by the devices themselves", shown(path), count(bytes));
        let mut short = match last {
            None => whole_leaves(&shown(path), bytes, leaf_bytes).map(|()| Vec::new())?,
            Some(_) => file.split_off_partial_leaf(leaf_bytes)?,
        };
        let leaves = Leaves::file(file, leaf_bytes)?;
        if short.is_empty() {
            return self.of_leaves(&leaves, bytes);
        }
        if last == Some(Last::Pad) {
            input::check_memory(leaf_bytes, RootStream::recommended_piece_bytes(leaf_bytes), free_memory())?;
            input::make_room(&mut short, leaf_bytes, &shown(path))?;
            short.resize(leaf_bytes, 0);
        }
        let bytes = leaves.count() * leaf_bytes as u64 + short.len() as u64;
        let last = Leaves::slices([short.as_slice()]);
        if leaves.count() == 0 {
            return self.of_leaves(&last, bytes);
        }
        if self.wants_tree {
            self.check_indices(leaves.count() + 1)?;
            let (mut tree, built) = self.builder.tree(&leaves)?.into_parts();
            tree.append(&short);
            return Ok(Found::new(&built, tree.summary(), bytes, Some(tree)));
        }
        let mut stream = self.builder.stream();
        stream.push(&leaves)?;
        stream.push(&last)?;
        let built = stream.finish()?;
        Ok(Found::new(&built, self.summary(&built), bytes, None))
    }

    fn of_numbers(&self, leaves: u64, leaf_bytes: usize) -> Result<Found> {
        let bytes = leaves.checked_mul(leaf_bytes as u64).ok_or_else(|| {
            Usage(format!("{leaves} leaves of {leaf_bytes} bytes are more bytes than can be counted"))
        })?;
        let mut all = Vec::new();
        if bytes > IN_MEMORY || all.try_reserve_exact(bytes as usize).is_err() {
            return self.of_stream(vec![Origin::made_up(leaves, leaf_bytes)], Cut::Size(leaf_bytes, None));
        }
        all.resize(bytes as usize, 0);
        let leaf = |(index, leaf): (usize, &mut [u8])| Numbers::leaf(index as u64, leaf);
        all.par_chunks_mut(leaf_bytes).enumerate().for_each(leaf);
        self.of_leaves(&Leaves::fixed_size(&all, leaf_bytes)?, bytes)
    }

    fn of_leaves(&self, leaves: &Leaves<'_>, bytes: u64) -> Result<Found> {
        if self.wants_tree {
            self.check_indices(leaves.count())?;
            let (tree, built) = self.builder.tree(leaves)?.into_parts();
            return Ok(Found::new(&built, tree.summary(), bytes, Some(tree)));
        }
        let built = self.builder.root(leaves)?;
        Ok(Found::new(&built, self.summary(&built), bytes, None))
    }

    fn summary(&self, built: &Built<Digest>) -> TreeSummary {
        TreeSummary { scheme: self.scheme, leaves: built.leaves(), root: Some(*built.value()) }
    }

    /// Fails, before the tree is built, where a leaf to prove is not there.
    fn check_indices(&self, leaves: u64) -> Result<()> {
        match self.prove.iter().find(|&&index| index >= leaves) {
            Some(&index) => Err(Error::LeafOutOfRange { index, leaves }.into()),
            None => Ok(()),
        }
    }

    fn of_stream(&self, origins: Vec<Origin>, cut: Cut) -> Result<Found> {
        if let Cut::Size(size, last) = cut {
            input::check_memory(size, RootStream::recommended_piece_bytes(size), free_memory())?;
            if last.is_none() {
                origins.iter().try_for_each(|origin| origin.check_size(size))?;
            }
        }
        let known: Option<u64> = origins.iter().map(Origin::bytes).sum();
        match known {
            Some(bytes) => tracing::info!("{} bytes to read, piece by piece", count(bytes)),
            None => tracing::info!("leaves are read piece by piece, until they end"),
        }
        let bar = self.bar(known);
        let pieces = gather::pieces(origins, cut);
        if self.wants_tree {
            let (hashes, bytes) = gather::hashes(self.scheme, &pieces, cut, &bar)?;
            bar.finish_and_clear();
            return self.of_leaves(&Leaves::digests(&hashes), bytes);
        }
        let (built, bytes) = gather::root(&self.builder, &pieces, cut, &bar)?;
        bar.finish_and_clear();
        Ok(Found::new(&built, self.summary(&built), bytes, None))
    }

    fn of_whole_files(&self, paths: &[PathBuf]) -> Result<Found> {
        let bar = self.bar(paths.iter().map(|path| Some(path.metadata().ok()?.len())).sum());
        let scheme = self.scheme;
        let hash = |path: &PathBuf| {
            let mut origin = Origin::open(path)?;
            let mut counted = Counted { reader: origin.reader(), bytes: 0 };
            let digest = scheme.hash_leaf_from(&mut counted);
            let digest = digest.with_context(|| format!("{}: cannot be read", shown(path)))?;
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
    matches!(paths, [path] if input::is_file(path))
}

fn free_memory() -> Option<u64> {
    Device::cpu().telemetry().memory_free_bytes
}
