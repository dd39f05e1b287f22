//! `evener prove`: makes Groth16 proofs from keys and witnesses of circom and snarkjs.

mod outcome;
mod outputs;
mod results;
mod signals;

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgGroup, Args};
use evener_device::Device;
use evener_schedule::{Cancel, Pool, Strategy};
use evener_zk::groth16::{
    Batch, Proved, Prover, ProvingKey, R1cs, Squares, Trapdoor, VerifyingKey, Witness, WitnessSource,
};

use self::{
    outcome::Outcome,
    outputs::OutputFiles,
    results::WitnessResults,
    signals::{cancel_at_signal, end_by},
};
use crate::{
    UsageError,
    input::{display_input, is_stdin},
    machines::LateNodes,
    options::{RunOptions, check_outputs, is_gpu, log_run, select_devices},
    output::{display_path, format_count, is_special, write_json, write_out, write_stderr, write_trace},
    progress::ProgressLine,
    verbosity::Verbosity,
    views::Views,
};

/// Prove witnesses of a circuit with Groth16 on all devices
///
/// The key is a .zkey file of snarkjs, and a witness a .wtns file of circom or snarkjs, both for BN254 (bn128). Every proof
/// is verified before it is written. Each proof is made by one device, unless there are fewer witnesses than GPUs (without a
/// GPU, than devices): then all devices share each proof. For each witness NAME.wtns, NAME.proof.json and NAME.public.json
/// are written as soon as the proof is verified, which snarkjs reads, and `evener verify`.
///
/// A witness that cannot be read or proved does not prevent the proofs of the others: the command goes on, and fails at its
/// end. The proof that an earlier run made of such a witness is removed, unless the witness cannot be opened. Ctrl-C and
/// SIGTERM end it with the finished proofs written, and --skip-existing proves the others later.
///
/// With -q, prints the name of each proof's file.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true, after_long_help = AFTER_HELP)]
// clap does not require what conflicts with an option that is there, such as --bench for --proofs beside --zkey: options that do
// not apply conflict by themselves.
#[command(group = ArgGroup::new("circuit").required(true).args(["zkey", "bench"]))]
pub(crate) struct Arguments {
    /// Read the proving key from this file
    #[arg(long, value_name = "FILE", requires = "wtns")]
    zkey: Option<PathBuf>,

    /// Prove the witnesses in these files; `-` is standard input, whose proof is stdin.proof.json
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "zkey", conflicts_with = "bench")]
    wtns: Vec<PathBuf>,

    /// Read the circuit's constraints from this file, to name the constraint that a witness does not satisfy
    #[arg(long, value_name = "FILE", requires = "zkey", conflicts_with = "bench")]
    r1cs: Option<PathBuf>,

    /// Write proofs and public inputs to this folder [default: the current folder, or none with --bench]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Do not prove witnesses again whose proof is in the folder already and valid for this key
    ///
    /// A proof with other public inputs than those of its witness is made again, and so is that of a witness from a pipe.
    #[arg(long, requires = "zkey", conflicts_with = "bench")]
    skip_existing: bool,

    /// Verify every proof before it is written; always on, since no invalid proof is ever written
    #[arg(long)]
    verify: bool,

    /// Accept a key without a phase-2 contribution, for which anyone can forge proofs
    #[arg(long, requires = "zkey", conflicts_with = "bench")]
    allow_unsafe_key: bool,

    /// Measure with a circuit of about this many constraints, such as 2^16, instead of files
    ///
    /// The circuit has a dense witness: constraint i is (x_i + i)(x_i + 7) = x_(i+1). Its key is made for this run, from
    /// random secrets that are then forgotten. With --out, the verification key is written too.
    #[arg(long, value_name = "2^N", value_parser = power)]
    bench: Option<u32>,

    /// Make this many proofs with --bench
    #[arg(long, value_name = "N", default_value_t = 8, requires = "bench", conflicts_with = "zkey", value_parser = clap::value_parser!(u32).range(1..))]
    proofs: u32,

    #[command(flatten)]
    run: RunOptions,
}

const AFTER_HELP: &str = "\
Examples:
  evener prove --zkey circuit.zkey --wtns witness.wtns
                                  write witness.proof.json, witness.public.json
  evener prove --zkey circuit.zkey --wtns *.wtns --out proofs
                                  prove many witnesses, on all devices
  evener prove --zkey circuit.zkey --wtns witness.wtns --r1cs circuit.r1cs
                                  name the constraint that does not hold, if any
  evener prove --bench 2^16 --trace trace.json
                                  measure without files";

/// The largest circuit of --bench.
const MAX_POWER: u32 = 26;

/// Parses a power of two: `2^16` or `65536`.
fn power(text: &str) -> Result<u32, String> {
    let power = match text.strip_prefix("2^") {
        Some(power) => power.parse().ok(),
        None => text.parse().ok().filter(|count: &u64| count.is_power_of_two()).map(u64::ilog2),
    };
    match power {
        Some(power) if (1..=MAX_POWER).contains(&power) => Ok(power),
        _ => Err(format!("`{text}` is not a power of two from 2^1 to 2^{MAX_POWER}, such as 2^16")),
    }
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    match (&arguments.zkey, arguments.bench) {
        (Some(zkey), _) => prove_files(&arguments, zkey, verbosity),
        (None, Some(power)) => bench(&arguments, power, verbosity),
        (None, None) => Err(UsageError("--zkey or --bench is needed".into()).into()),
    }
}

fn prove_files(arguments: &Arguments, zkey: &PathBuf, verbosity: Verbosity) -> Result<()> {
    let run = &arguments.run;
    let folder = arguments.out.clone().unwrap_or_else(|| ".".into());
    let files = OutputFiles::of_witnesses(&folder, &arguments.wtns)?;
    create_folder(arguments)?;
    let inputs = arguments.wtns.iter().chain([zkey]).chain(&arguments.r1cs).map(PathBuf::as_path);
    let outputs = files.iter().flat_map(OutputFiles::paths).map(Some).chain(run.views.outputs());
    check_outputs(inputs, outputs.chain([run.trace.as_deref()]))?;
    let views = Views::begin(&run.views, verbosity)?;

    // Finding devices opens none. Everything that files can tell is known before one is opened.
    let devices = select_devices(&run.hosts, run.devices.as_deref(), LateNodes::Awaited)?;
    let began = Instant::now();
    let read = if arguments.allow_unsafe_key { ProvingKey::read_unsafe } else { ProvingKey::read };
    let mut key = match read(zkey) {
        Err(error @ evener_zk::Error::UnsafeKey { .. }) => {
            bail!("{error}; --allow-unsafe-key accepts it");
        }
        key => key?,
    };
    if let Some(path) = &arguments.r1cs {
        key = key.with_r1cs(&R1cs::read(path)?).with_context(|| display_path(path))?;
    }
    let key_time = began.elapsed();
    log_key(&key, key_time);

    let mut results = WitnessResults::new(arguments.wtns.len(), &arguments.wtns, &files);
    if arguments.skip_existing {
        results.keep_valid(&key);
    }
    let missing = results.missing();
    let sources = missing.iter().map(|&index| witness_source(&arguments.wtns[index])).collect();
    let cancel = Cancel::new();
    let prover =
        new_prover(&devices, key, arguments, is_silent(arguments, &views, verbosity))?.cancel(&cancel);
    let began = Instant::now();
    let (batch, signal) = cancel_at_signal(&cancel, || {
        prove(&prover, &devices, sources, |index, result| results.add(missing[index], result))
    });
    let mut outcome = Outcome::new(prover.key(), batch.as_ref().ok(), &results, began.elapsed());
    outcome.key_s = key_time.as_secs_f64();
    finish(arguments, batch, signal, results, &outcome, verbosity, views)
}

fn bench(arguments: &Arguments, power: u32, verbosity: Verbosity) -> Result<()> {
    let folder = arguments.out.as_deref();
    let files = match folder {
        Some(folder) => OutputFiles::numbered(folder, arguments.proofs),
        None => Vec::new(),
    };
    create_folder(arguments)?;
    let key_file = folder.map(|folder| folder.join("verification_key.json"));
    let outputs = files.iter().flat_map(OutputFiles::paths).map(Some).chain(arguments.run.views.outputs());
    check_outputs([], outputs.chain([key_file.as_deref(), arguments.run.trace.as_deref()]))?;

    let devices = select_devices(&arguments.run.hosts, arguments.run.devices.as_deref(), LateNodes::Awaited)?;
    let views = Views::begin(&arguments.run.views, verbosity)?;
    let is_silent = is_silent(arguments, &views, verbosity);
    let circuit = Squares::filling(power);
    let progress = ProgressLine::new(is_silent);
    progress.step_of(format!("setting up a key for 2^{power} constraints"), 1);
    let began = Instant::now();
    let key = Trapdoor::random()?.set_up(&circuit.r1cs()?, &|done, all| progress.set(done, all));
    progress.finish();
    let (key, key_time) = (key?, began.elapsed());
    log_key(&key, key_time);
    if let Some(path) = &key_file {
        write_key(path, key.verifying_key())?;
    }

    let prover = new_prover(&devices, key, arguments, is_silent)?;
    // The first proof copies the key to a device and compiles its kernels.
    let began = Instant::now();
    let first = prover.prove_batch(vec![circuit.witness(1.into())?])?;
    let first_proof = began.elapsed();
    tracing::info!("the first proof took {first_proof:?}");
    let witnesses = || -> evener_zk::Result<Vec<WitnessSource>> {
        let witness = |number| circuit.witness((u64::from(number) + 2).into()).map(WitnessSource::from);
        (0..arguments.proofs).map(witness).collect()
    };
    warm_up(first, || prove(&prover, &devices, witnesses()?, |_, _| ()))?;
    let witnesses = witnesses()?;
    let began = Instant::now();
    let batch = prove(&prover, &devices, witnesses, |_, _| ())?;
    let took = began.elapsed();
    // What is measured does not include writing.
    let mut results = WitnessResults::new(arguments.proofs as usize, &[], &files);
    batch.results().iter().enumerate().for_each(|(index, result)| results.add(index, result));
    let mut outcome = Outcome::new(prover.key(), Some(&batch), &results, took);
    outcome.set_up_s = Some(key_time.as_secs_f64());
    outcome.first_proof_s = Some(first_proof.as_secs_f64());
    outcome.verification_key = key_file.map(|path| path.display().to_string());
    finish(arguments, Ok(batch), None, results, &outcome, verbosity, views)
}

/// Reads a witness from a pipe or standard input now, because it can be read once, and one from a file when it is needed.
fn witness_source(path: &Path) -> WitnessSource {
    let read = match is_stdin(path) {
        true => Witness::from_reader(&display_input(path), io::stdin().lock()),
        false if is_special(path) => Witness::read(path),
        false => return WitnessSource::file(path),
    };
    match read {
        Ok(witness) => witness.into(),
        Err(error) => WitnessSource::read_by(move || Err(error.clone())),
    }
}

/// The longest time that a measurement waits for all devices to be ready.
const WARM_UP: Duration = Duration::from_secs(60);

/// Proves batches that are not measured, until every device that takes part has compiled its kernels and loaded the key.
/// `first` is the batch before, and `next` proves another one.
fn warm_up(first: Batch, next: impl Fn() -> Result<Batch>) -> Result<()> {
    let began = Instant::now();
    let is_ready = |batch: &Batch| {
        batch.report().is_none_or(|report| report.devices.iter().all(|device| device.items > 0))
    };
    let is_alone =
        |batch: &Batch| batch.report().is_none_or(|report| report.devices.len() + report.left_out.len() == 1);
    if is_alone(&first) {
        return Ok(());
    }
    while !is_ready(&next()?) && began.elapsed() < WARM_UP {}
    tracing::info!("the other devices were ready after {:?}", began.elapsed());
    Ok(())
}

/// Proves witnesses: each by one device, or, if there are fewer witnesses than GPUs, by all devices together. Without a GPU,
/// all devices count. Beside a GPU, a processor has too small a share of a proof to be worth its key. Calls `on_proof` with
/// each result as it comes.
fn prove(
    prover: &Prover,
    devices: &[Device],
    witnesses: Vec<WitnessSource>,
    on_proof: impl FnMut(usize, &evener_zk::Result<Proved>) + Send,
) -> Result<Batch> {
    let gpus = devices.iter().filter(|device| is_gpu(device)).count();
    let sharing = if gpus > 0 { gpus } else { devices.len() };
    Ok(match (1..sharing).contains(&witnesses.len()) {
        true => prover.prove_each_shared(witnesses, on_proof)?,
        false => prover.prove_each(witnesses, on_proof)?,
    })
}

fn new_prover(devices: &[Device], key: ProvingKey, arguments: &Arguments, is_silent: bool) -> Result<Prover> {
    let strategy = Strategy::from(arguments.run.strategy);
    tracing::info!("strategy {strategy}");
    let mut prover = Prover::load(&Pool::new(devices)?, key).strategy(strategy);
    if arguments.run.trace.is_some() || arguments.run.views.needs_trace() {
        prover = prover.trace();
    }
    Ok(if is_silent { prover } else { prover.progress_bar() })
}

/// Whether the command shows no progress of its own.
fn is_silent(arguments: &Arguments, views: &Views, verbosity: Verbosity) -> bool {
    arguments.run.json || verbosity.is_quiet() || views.show_progress()
}

fn create_folder(arguments: &Arguments) -> Result<()> {
    let Some(folder) = &arguments.out else { return Ok(()) };
    std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", display_path(folder)))
}

fn log_key(key: &ProvingKey, took: Duration) {
    let (constraints, wires) = (format_count(key.constraints() as u64), format_count(key.wires() as u64));
    tracing::info!(
        "key of {constraints} constraints, {wires} wires, {} of them public: {took:?}",
        key.public()
    );
}

fn write_key(path: &Path, key: &VerifyingKey) -> Result<()> {
    let text = serde_json::to_string_pretty(&key.to_json())? + "\n";
    crate::output::write_file(path, text.as_bytes())
}

/// Writes the trace, and prints the outcome. Fails if a witness has no proof, or a file is not written. Ends the process if a
/// signal ended the batch.
fn finish(
    arguments: &Arguments,
    batch: Result<Batch>,
    signal: Option<i32>,
    results: WitnessResults<'_>,
    outcome: &Outcome,
    verbosity: Verbosity,
    views: Views,
) -> Result<()> {
    let (proved, all) = (results.proved(), results.len());
    let mut failures = results.into_errors();
    match batch {
        Ok(batch) => {
            if let Some(report) = batch.report() {
                log_run(report);
            }
            let viewed = views.finish(batch.report().map(|report| (report, batch.trace())));
            failures.extend(viewed.err());
            if let Some(path) = &arguments.run.trace {
                failures.extend(write_trace(path, batch.trace(), batch.report()).err());
            }
        }
        Err(error) => {
            drop(views);
            let written =
                format!("{} of {} proofs written", format_count(proved as u64), format_count(all as u64));
            failures.push(match signal {
                Some(_) => anyhow!("stopped by a signal, with {written} (--skip-existing proves the others)"),
                None => error.context(format!("{written} (--skip-existing proves the others)")),
            });
        }
    }
    let printed = match arguments.run.json {
        true => write_json(outcome),
        false if verbosity.is_quiet() => write_out(&outcome.files_text()).map_err(Into::into),
        false => write_out(&outcome.text()).map_err(Into::into),
    };
    let last = failures.pop();
    failures.iter().for_each(|failure| write_stderr(&format!("error: {failure:#}\n")));
    match (last, signal) {
        // A closed standard output is no error, so it must not take the place of one.
        (None, _) => printed,
        (Some(last), None) => Err(last),
        (Some(last), Some(signal)) => {
            write_stderr(&format!("error: {last:#}\n"));
            end_by(signal);
            Err(last)
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn powers_of_two_are_written_with_and_without_an_exponent() {
        assert_eq!(["2^1", "2^20", "65536", "2"].map(power), [Ok(1), Ok(20), Ok(16), Ok(1)]);
        for text in ["", "0", "1", "2^0", "2^27", "2^-1", "1000", "2^", "two"] {
            assert!(power(text).is_err(), "{text}");
        }
    }
}
