//! `evener merkle FILE…`: computes the root, the tree and proofs of leaves.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use clap::{ArgGroup, Args, ValueEnum};
use evener_device::Device;
use evener_merkle::{
    Builder, Built, Digest, Error, Hash, LeafFile, Leaves, MerkleTree, RootStream, Rule, Scheme, TreeSummary,
};
use evener_schedule::{Pool, Report, Strategy, Trace};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;

use super::{
    input::{self, LeafReader, MerkleInput, PartialLeaf, TestData, check_whole_leaves},
    outcome::BuildOutcome,
    proofs::{self, RootedProof},
    save::save,
    stream::{self, Split},
};
use crate::{
    Mismatch, UsageError,
    input::is_stdin,
    machines::LateNodes,
    options::{RunOptions, check_outputs, log_run, select_devices},
    output::{display_path, format_count, format_counted, write_json, write_out, write_stderr, write_trace},
    size::parse_bytes,
    verbosity::Verbosity,
    views::Views,
};

/// The maximum size of test data that is created in memory first, so that the time excludes creating it.
const MAX_TEST_DATA_IN_MEMORY: u64 = 1 << 30;

/// The default size of a leaf.
const DEFAULT_LEAF_BYTES: usize = 32;

/// The input, the scheme and the outputs.
#[derive(Debug, Args)]
#[group(skip)]
#[command(group = ArgGroup::new("input").required(true).args(["paths", "leaves", "stdin"]))]
#[command(group = ArgGroup::new("split").args(["leaf_size", "lines", "files"]))]
pub(crate) struct Arguments {
    /// Read leaves from these files, in this order; - is standard input
    #[arg(value_name = "FILE")]
    paths: Vec<PathBuf>,

    /// Use this number of leaves of test data: leaf n is the number n, little-endian, padded with zeros
    #[arg(long, value_name = "N", conflicts_with_all = ["lines", "files"], allow_negative_numbers = true, value_parser = leaf_count)]
    leaves: Option<u64>,

    /// Read leaves from standard input, as - does
    #[arg(long, conflicts_with = "files")]
    stdin: bool,

    /// Split the input into leaves of this size (4096, 4KiB) [default: 32]
    #[arg(long, value_name = "BYTES", value_parser = leaf_size)]
    leaf_size: Option<usize>,

    /// Accept bytes after the last whole leaf of a file, which are an error otherwise
    #[arg(long, value_name = "HOW", conflicts_with_all = ["lines", "files", "leaves"])]
    last: Option<PartialLeaf>,

    /// Use every line as a leaf, without its line ending (\n or \r\n)
    #[arg(long)]
    lines: bool,

    /// Use every file as a leaf
    #[arg(long)]
    files: bool,

    /// Hash with this function
    #[arg(long, value_name = "HASH", default_value = "sha256")]
    hash: HashArg,

    /// Combine hashes by this rule (see below)
    #[arg(long, value_name = "RULE", default_value = "rfc6962")]
    rule: RuleArg,

    /// Write inclusion proofs of the leaves with these indices, counted from 0, as JSON: 0,41
    #[arg(long, value_name = "INDEX", value_delimiter = ',', allow_negative_numbers = true, value_parser = leaf_index)]
    prove: Vec<u64>,

    /// Write the proofs to this file instead of standard output
    #[arg(long, value_name = "FILE", requires = "prove")]
    out: Option<PathBuf>,

    /// Store the tree in this file, for `evener merkle prove`
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,

    /// Fail if the root is not this one
    #[arg(long, value_name = "HEX")]
    expect: Option<Digest>,

    #[command(flatten)]
    run: RunOptions,
}

/// A [`Hash`](enum@Hash) on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum HashArg {
    /// SHA-256
    Sha256,
    /// Keccak-256, as Ethereum uses it
    Keccak256,
    /// BLAKE3
    Blake3,
}

impl From<HashArg> for Hash {
    fn from(hash: HashArg) -> Hash {
        match hash {
            HashArg::Sha256 => Hash::Sha256,
            HashArg::Keccak256 => Hash::Keccak256,
            HashArg::Blake3 => Hash::Blake3,
        }
    }
}

/// A [`Rule`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RuleArg {
    /// RFC 6962, of Certificate Transparency
    Rfc6962,
    /// Bitcoin, with SHA-256 only
    Bitcoin,
    /// The crate rs_merkle
    RsMerkle,
}

impl From<RuleArg> for Rule {
    fn from(rule: RuleArg) -> Rule {
        match rule {
            RuleArg::Rfc6962 => Rule::Rfc6962,
            RuleArg::Bitcoin => Rule::Bitcoin,
            RuleArg::RsMerkle => Rule::RsMerkle,
        }
    }
}

fn leaf_size(text: &str) -> Result<usize, String> {
    match parse_bytes(text)? {
        0 => Err("a leaf has at least one byte".into()),
        bytes => usize::try_from(bytes).map_err(|_| format!("`{text}` is larger than any memory")),
    }
}

fn leaf_count(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("a number of leaves is a whole number from 0 to {}", u64::MAX))
}

/// Parses the index of a leaf.
pub(super) fn leaf_index(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "an index is a whole number, counted from 0; separate several by commas".into())
}

/// The root of the leaves, and the tree if requested.
struct BuildResult {
    summary: TreeSummary,
    bytes: u64,
    tree: Option<MerkleTree>,
    report: Option<Report>,
    leaves_per_item: Option<u64>,
    trace: Trace,
}

impl BuildResult {
    fn new<T>(built: &Built<T>, summary: TreeSummary, bytes: u64, tree: Option<MerkleTree>) -> BuildResult {
        let (report, trace) = (built.report().cloned(), built.trace().clone());
        BuildResult { summary, bytes, tree, report, leaves_per_item: built.leaves_per_item(), trace }
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let Arguments { run, out, .. } = &arguments;
    let inputs = arguments.paths.iter().map(PathBuf::as_path);
    let outputs = [run.trace.as_deref(), out.as_deref(), arguments.tree.as_deref()];
    check_outputs(inputs, run.views.outputs().chain(outputs))?;
    let input = arguments.input()?;
    let scheme = Scheme::new(arguments.hash.into(), arguments.rule.into())?;
    let views = Views::begin(&run.views, verbosity)?;
    let is_silent = run.json || verbosity.is_quiet() || views.show_progress();
    let build = TreeBuild::new(&arguments, scheme, is_silent)?;
    let began = Instant::now();
    let result = build.run(input, &arguments)?;
    let took = began.elapsed();
    let viewed = views.finish(result.report.as_ref().map(|report| (report, &result.trace)));
    if let Some(expected) = arguments.expect.filter(|expected| result.summary.root != Some(*expected)) {
        let root = result.summary.root.map_or("none".into(), |root| root.to_string());
        return Err(Mismatch(format!("the root is {root}, not {expected}")).into());
    }
    let proofs = result.tree.as_ref().map(|tree| proofs::prove(tree, &arguments.prove)).transpose()?;
    let proofs = proofs.filter(|proofs| !proofs.is_empty());

    // An output that cannot be written does not prevent the others, nor printing the root.
    let mut failures = Vec::new();
    let mut is_done = |written: Result<()>| written.map_err(|error| failures.push(error)).is_ok();
    let is_stored = match (&result.tree, &arguments.tree) {
        (Some(tree), Some(path)) => is_done(save(tree, path)),
        _ => false,
    };
    is_done(viewed);
    if let Some(path) = &run.trace {
        is_done(write_trace(path, &result.trace, result.report.as_ref()));
    }
    let proofs_file = out
        .as_deref()
        .filter(|path| proofs.as_ref().is_some_and(|proofs| is_done(proofs::write(proofs, Some(path)))));

    let BuildResult { summary, bytes, report, leaves_per_item, .. } = result;
    let mut outcome = BuildOutcome::new(summary, bytes, took, report, leaves_per_item, &build.devices);
    outcome.proofs_file = proofs_file.map(|path| path.display().to_string());
    outcome.tree = arguments.tree.as_ref().filter(|_| is_stored).map(|path| path.display().to_string());
    log_outcome(&outcome, &arguments);
    let printed = print(outcome, proofs.filter(|_| out.is_none()), run.json, verbosity);
    match failures.pop() {
        None => printed,
        Some(last) => {
            failures.iter().for_each(|failure| write_stderr(&format!("error: {failure:#}\n")));
            Err(last)
        }
    }
}

/// Prints the outcome to standard output. If proofs are printed there, the text goes to standard error.
fn print(
    mut outcome: BuildOutcome,
    proofs: Option<Vec<RootedProof>>,
    json: bool,
    verbosity: Verbosity,
) -> Result<()> {
    if json {
        outcome.proofs = proofs;
        return write_json(&outcome);
    }
    let text = match (verbosity.is_quiet(), outcome.summary.root) {
        (false, _) => outcome.text(),
        (true, Some(root)) => format!("{root}\n"),
        (true, None) => String::new(),
    };
    match proofs {
        Some(proofs) => {
            proofs::write(&proofs, None)?;
            if !verbosity.is_quiet() {
                write_stderr(&text);
            }
        }
        None => write_out(&text)?,
    }
    Ok(())
}

/// Logs, at `-v`, the size of the input and what each device did.
fn log_outcome(outcome: &BuildOutcome, arguments: &Arguments) {
    let count = |one, several| format_counted(outcome.summary.leaves, one, several);
    let bytes = |bytes| format_counted(bytes, "byte", "bytes");
    let leaves = match (arguments.lines, arguments.files) {
        (true, _) => count("line", "lines"),
        (_, true) => count("file", "files"),
        _ => format!("{} of {}", count("leaf", "leaves"), bytes(arguments.leaf_bytes() as u64)),
    };
    let all_bytes = bytes(outcome.bytes);
    match outcome.leaves_per_item {
        Some(each) => {
            tracing::info!("{leaves}, {all_bytes}, in items of {}", format_counted(each, "leaf", "leaves"))
        }
        None => tracing::info!("{leaves}, {all_bytes}"),
    }
    log_run(&outcome.report);
}

impl Arguments {
    fn leaf_bytes(&self) -> usize {
        self.leaf_size.unwrap_or(DEFAULT_LEAF_BYTES)
    }

    /// Returns the input. Fails if standard input is named twice, or indices are given as files.
    fn input(&self) -> Result<MerkleInput> {
        if let Some(leaves) = self.leaves {
            return Ok(MerkleInput::TestData(leaves));
        }
        let paths = if self.stdin { vec!["-".into()] } else { self.paths.clone() };
        if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
            return Err(
                UsageError("- is standard input, which can be read only once: name it once".into()).into()
            );
        }
        // `--prove 0 2` would read a file called 2.
        let is_index = |path: &&PathBuf| path.to_str().is_some_and(|it| it.parse::<u64>().is_ok());
        let indices: Vec<String> = paths
            .iter()
            .filter(is_index)
            .filter(|path| !path.exists())
            .map(|path| display_path(path))
            .collect();
        if !self.prove.is_empty() && !indices.is_empty() {
            let all: Vec<String> = self.prove.iter().map(u64::to_string).chain(indices.clone()).collect();
            let (missing, all) = (indices.join(", "), all.join(","));
            let message = format!("{missing}: no such file; to prove several leaves, use --prove {all}");
            return Err(UsageError(message).into());
        }
        Ok(MerkleInput::Files(paths))
    }
}

/// A build of a root or tree on a pool.
struct TreeBuild {
    builder: Builder,
    scheme: Scheme,
    wants_tree: bool,
    /// The indices of the leaves to prove.
    prove: Vec<u64>,
    is_silent: bool,
    devices: Vec<String>,
}

impl TreeBuild {
    fn new(arguments: &Arguments, scheme: Scheme, is_silent: bool) -> Result<TreeBuild> {
        let devices =
            select_devices(&arguments.run.hosts, arguments.run.devices.as_deref(), LateNodes::Awaited)?;
        let strategy = Strategy::from(arguments.run.strategy);
        tracing::info!("{scheme}, strategy {strategy}");
        let pool = Pool::new(&devices)?;
        let mut builder = Builder::new(&pool).scheme(scheme).strategy(strategy);
        if arguments.run.trace.is_some() || arguments.run.views.needs_trace() {
            builder = builder.trace();
        }
        if !is_silent {
            builder = builder.progress_bar();
        }
        let prove = arguments.prove.clone();
        let wants_tree = arguments.tree.is_some() || !prove.is_empty();
        let devices = devices.iter().map(|device| device.id().to_string()).collect();
        Ok(TreeBuild { builder, scheme, wants_tree, prove, is_silent, devices })
    }

    fn run(&self, input: MerkleInput, arguments: &Arguments) -> Result<BuildResult> {
        let (size, partial) = (arguments.leaf_bytes(), arguments.last);
        let split = if arguments.lines { Split::Lines } else { Split::Size(size, partial) };
        match (input, split) {
            (MerkleInput::Files(paths), _) if arguments.files => self.of_whole_files(&paths),
            (MerkleInput::Files(paths), Split::Size(..)) if is_one_file(&paths) => {
                self.of_file(&paths[0], size, partial)
            }
            (MerkleInput::Files(paths), _) => {
                let readers: Result<Vec<LeafReader>> =
                    paths.iter().map(|path| LeafReader::open(path)).collect();
                self.of_stream(readers?, split)
            }
            (MerkleInput::TestData(leaves), _) => self.of_test_data(leaves, size),
        }
    }

    /// Builds from one file. All devices read it themselves, so that it is never in memory as a whole.
    fn of_file(&self, path: &Path, leaf_bytes: usize, partial: Option<PartialLeaf>) -> Result<BuildResult> {
        let mut file = LeafFile::open(path)?;
        let bytes = file.bytes();
        tracing::info!(
            "{}: {} bytes, read by the devices themselves",
            display_path(path),
            format_count(bytes)
        );
        let mut rest = match partial {
            None => check_whole_leaves(&display_path(path), bytes, leaf_bytes).map(|()| Vec::new())?,
            Some(_) => file.split_off_partial_leaf(leaf_bytes)?,
        };
        let leaves = Leaves::file(file, leaf_bytes)?;
        if rest.is_empty() {
            return self.of_leaves(&leaves, bytes);
        }
        if partial == Some(PartialLeaf::Pad) {
            input::check_memory(leaf_bytes, RootStream::recommended_piece_bytes(leaf_bytes), free_memory())?;
            input::reserve(&mut rest, leaf_bytes, &display_path(path))?;
            rest.resize(leaf_bytes, 0);
        }
        let bytes = leaves.count() * leaf_bytes as u64 + rest.len() as u64;
        let last = Leaves::slices([rest.as_slice()]);
        if leaves.count() == 0 {
            return self.of_leaves(&last, bytes);
        }
        if self.wants_tree {
            self.check_indices(leaves.count() + 1)?;
            let (mut tree, built) = self.builder.tree(&leaves)?.into_parts();
            tree.append(&rest);
            return Ok(BuildResult::new(&built, tree.summary(), bytes, Some(tree)));
        }
        let mut stream = self.builder.stream();
        stream.push(&leaves)?;
        stream.push(&last)?;
        let built = stream.finish()?;
        Ok(BuildResult::new(&built, self.summary(&built), bytes, None))
    }

    fn of_test_data(&self, leaves: u64, leaf_bytes: usize) -> Result<BuildResult> {
        let bytes = leaves.checked_mul(leaf_bytes as u64).ok_or_else(|| {
            UsageError(format!("{leaves} leaves of {leaf_bytes} bytes are more than 2^64 bytes"))
        })?;
        let mut all = Vec::new();
        if bytes > MAX_TEST_DATA_IN_MEMORY || all.try_reserve_exact(bytes as usize).is_err() {
            let reader = LeafReader::test_data(leaves, leaf_bytes);
            return self.of_stream(vec![reader], Split::Size(leaf_bytes, None));
        }
        all.resize(bytes as usize, 0);
        let leaf = |(index, leaf): (usize, &mut [u8])| TestData::write_leaf(index as u64, leaf);
        all.par_chunks_mut(leaf_bytes).enumerate().for_each(leaf);
        self.of_leaves(&Leaves::fixed_size(&all, leaf_bytes)?, bytes)
    }

    fn of_leaves(&self, leaves: &Leaves<'_>, bytes: u64) -> Result<BuildResult> {
        if self.wants_tree {
            self.check_indices(leaves.count())?;
            let (tree, built) = self.builder.tree(leaves)?.into_parts();
            return Ok(BuildResult::new(&built, tree.summary(), bytes, Some(tree)));
        }
        let built = self.builder.root(leaves)?;
        Ok(BuildResult::new(&built, self.summary(&built), bytes, None))
    }

    fn summary(&self, built: &Built<Digest>) -> TreeSummary {
        TreeSummary { scheme: self.scheme, leaves: built.leaves(), root: Some(*built.value()) }
    }

    /// Fails, before the tree is built, if a leaf to prove does not exist.
    fn check_indices(&self, leaves: u64) -> Result<()> {
        match self.prove.iter().find(|&&index| index >= leaves) {
            Some(&index) => Err(Error::LeafOutOfRange { index, leaves }.into()),
            None => Ok(()),
        }
    }

    fn of_stream(&self, readers: Vec<LeafReader>, split: Split) -> Result<BuildResult> {
        if let Split::Size(size, partial) = split {
            input::check_memory(size, RootStream::recommended_piece_bytes(size), free_memory())?;
            if partial.is_none() {
                readers.iter().try_for_each(|reader| reader.check_size(size))?;
            }
        }
        let known: Option<u64> = readers.iter().map(LeafReader::bytes).sum();
        match known {
            Some(bytes) => tracing::info!("reading {} bytes in pieces", format_count(bytes)),
            None => tracing::info!("reading leaves in pieces until the input ends"),
        }
        let bar = self.bar(known);
        let pieces = stream::read_pieces(readers, split);
        if self.wants_tree {
            let (hashes, bytes) = stream::leaf_hashes(self.scheme, &pieces, split, &bar)?;
            bar.finish_and_clear();
            return self.of_leaves(&Leaves::digests(&hashes), bytes);
        }
        let (built, bytes) = stream::root(&self.builder, &pieces, split, &bar)?;
        bar.finish_and_clear();
        Ok(BuildResult::new(&built, self.summary(&built), bytes, None))
    }

    fn of_whole_files(&self, paths: &[PathBuf]) -> Result<BuildResult> {
        let bar = self.bar(paths.iter().map(|path| Some(path.metadata().ok()?.len())).sum());
        let scheme = self.scheme;
        let hash = |path: &PathBuf| {
            let mut reader = LeafReader::open(path)?;
            let mut counted = CountingReader { reader: reader.reader(), bytes: 0 };
            let digest = scheme.hash_leaf_from(&mut counted);
            let digest = digest.with_context(|| format!("{}: cannot be read", display_path(path)))?;
            let bytes = counted.bytes;
            reader.check_unchanged(bytes)?;
            bar.inc(bytes);
            Ok((digest, bytes))
        };
        let hashed: Result<Vec<(Digest, u64)>> = paths.par_iter().map(hash).collect();
        bar.finish_and_clear();
        let (hashes, bytes): (Vec<Digest>, Vec<u64>) = hashed?.into_iter().unzip();
        self.of_leaves(&Leaves::digests(&hashes), bytes.iter().sum())
    }

    /// Returns a progress bar of the bytes read, which indicatif draws on standard error if it is a terminal.
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

/// A reader that counts bytes.
struct CountingReader<R> {
    reader: R,
    bytes: u64,
}

impl<R: std::io::Read> std::io::Read for CountingReader<R> {
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

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn every_hash_and_rule_can_be_named_by_its_own_name() {
        let name =
            |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| value().unwrap().get_name().to_owned();
        assert_eq!(HashArg::value_variants().len(), Hash::ALL.len());
        for &argument in HashArg::value_variants() {
            assert_eq!(Hash::from(argument).name(), name(&|| argument.to_possible_value()));
        }
        assert_eq!(RuleArg::value_variants().len(), Rule::ALL.len());
        for &argument in RuleArg::value_variants() {
            assert_eq!(Rule::from(argument).name(), name(&|| argument.to_possible_value()));
        }
        let default = Scheme::new(HashArg::Sha256.into(), RuleArg::Rfc6962.into()).unwrap();
        assert_eq!(default, Scheme::default());
    }
}
