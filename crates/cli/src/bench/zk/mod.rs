//! `evener bench zk`: measures proofs and their arithmetic.

mod arithmetic;
mod batch;
mod circuit;
mod proofs;
mod section;
mod snarkrs;
mod start;
mod timing;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use evener_device::{Device, DeviceKind, Inventory};
use evener_zk::field::Emitter;
use serde::Serialize;

use self::{
    section::Section,
    snarkrs::{Backend, Snarkrs},
};
use crate::{
    UsageError,
    machines::{HostsOption, LateNodes, Machines},
    options::{check_outputs, is_gpu, log_devices},
    output::{write_json, write_out},
    progress::ProgressLine,
    verbosity::Verbosity,
    views::{ViewOptions, Views},
};

/// Measure Groth16 proofs and their arithmetic on each device
///
/// Measures field products, multi-scalar multiplications (MSM), number-theoretic transforms (NTT) and proofs on each device
/// alone, beside arkworks on all cores, and, if it is installed, beside snarkrs, another Groth16 prover for the same files
/// (`cargo install snarkrs`). Every result is compared with arkworks', and every proof is verified. Times are medians, with
/// all data on the device and all kernels compiled; of a measurement that takes long, at least 3 rounds count. If a GPU is
/// measured through CUDA and another API, each table ends with the ratios of their times.
///
/// A ceiling is what a device's own measured rate allows: of products, its 32-bit multiplies; of MSM and NTT, its products.
///
/// With -q, prints a line for each measurement: name, size as a power of two, implementation, device, and seconds or, for
/// products, the rate.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Measure only these devices, as for `evener devices` [env: EVENER_DEVICES]
    ///
    /// A list such as cuda:0,cpu: see `evener help devices`. Repeat the option to measure one GPU through several APIs:
    /// --devices cuda:0 --devices vulkan:0. The default is all devices but software devices.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    devices: Vec<String>,

    #[command(flatten)]
    hosts: HostsOption,

    /// Use this field arithmetic on the devices that can, instead of the fastest: CudaPlain is CUDA C without PTX
    ///
    /// Others are CudaPtx, WgslU64, WgslU64Loop and WgslU32. Beside each device, the first lines of the output name the one
    /// that is used.
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = emitter)]
    emitter: Vec<Emitter>,

    /// Measure only these parts
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    only: Vec<Part>,

    /// Prove circuits of about 2^N constraints, for each of these N [default: 16,18,20, or 12 without a GPU]
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = exponent)]
    log: Vec<u32>,

    /// Multiply 2^N points [default: 20, or 14 without a GPU]
    #[arg(long, value_name = "N", value_parser = exponent)]
    msm_log: Option<u32>,

    /// Transform 2^N elements [default: 22, or 16 without a GPU]
    #[arg(long, value_name = "N", value_parser = exponent)]
    ntt_log: Option<u32>,

    /// Take the median of this number of rounds
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Prove a batch of this number of witnesses on all devices, and compare its rate with those of each device alone
    #[arg(long, value_name = "N", conflicts_with_all = ["only", "msm_log", "ntt_log", "snarkrs"], value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,

    /// Compare with this executable of snarkrs, another Groth16 prover [default: snarkrs in PATH, if there is one]
    #[arg(long, value_name = "FILE")]
    snarkrs: Option<PathBuf>,

    /// Use these back ends of snarkrs
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "cpu,wgpu,cuda")]
    snarkrs_backends: Vec<Backend>,

    /// Stop a back end of snarkrs after this number of seconds, and leave it out of larger circuits
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    snarkrs_timeout: u64,

    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    views: ViewOptions,
}

const AFTER_HELP: &str = "\
Examples:
  evener bench zk                           measure everything on each device
  evener bench zk --only msm --msm-log 18   measure one part, of another size
  evener bench zk --devices cuda:0 --devices vulkan:0 --log 20
                                            measure one GPU through two APIs
  evener bench zk --devices cuda:0 --devices vulkan:0 --emitter CudaPlain
                                            the same, with CUDA without PTX
  evener bench zk --batch 64 --log 16 --devices 'cuda:0[16,40,76],cpu'
                                            measure a batch on all devices";

/// A part of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Products in the scalar field
    Field,
    /// Multi-scalar multiplications
    Msm,
    /// Number-theoretic transforms
    Ntt,
    /// Proofs, with their verification
    Groth16,
    /// The time from starting `evener prove` to its end, without and with compiled kernels
    Start,
}

/// The largest power of two of a size.
const MAX_EXPONENT: u32 = 26;

/// Parses the exponent of a power of two: `16` or `2^16`.
fn exponent(text: &str) -> Result<u32, String> {
    match text.strip_prefix("2^").unwrap_or(text).parse() {
        Ok(exponent) if (1..=MAX_EXPONENT).contains(&exponent) => Ok(exponent),
        _ => Err(format!("`{text}` is not the exponent of a power of two, from 1 to {MAX_EXPONENT}")),
    }
}

/// Parses the name of a generator of field arithmetic, in any case.
fn emitter(text: &str) -> Result<Emitter, String> {
    let names = Emitter::ALL.map(|emitter| format!("{emitter:?}"));
    let found = names.iter().position(|name| name.eq_ignore_ascii_case(text));
    found.map(|index| Emitter::ALL[index]).ok_or(format!("possible values: {}", names.join(", ")))
}

/// The sizes of the measurements, as exponents of two.
struct Sizes {
    msm: u32,
    ntt: u32,
    circuits: Vec<u32>,
}

impl Sizes {
    fn new(arguments: &Arguments, devices: &[Device]) -> Sizes {
        let is_gpu = |device: &Device| is_gpu(device) && device.describe().kind != DeviceKind::Software;
        let (msm, ntt, circuits): (_, _, &[u32]) = match devices.iter().any(is_gpu) {
            true if arguments.batch.is_some() => (20, 22, &[16]),
            true => (20, 22, &[16, 18, 20]),
            false => (14, 16, &[12]),
        };
        let mut circuits = if arguments.log.is_empty() { circuits.to_vec() } else { arguments.log.clone() };
        circuits.sort_unstable();
        circuits.dedup();
        Sizes { msm: arguments.msm_log.unwrap_or(msm), ntt: arguments.ntt_log.unwrap_or(ntt), circuits }
    }
}

/// The machine, in the JSON output.
#[derive(Debug, Serialize)]
struct Machine {
    threads: usize,
    devices: Vec<MeasuredDevice>,
}

#[derive(Debug, Serialize)]
struct MeasuredDevice {
    id: String,
    name: String,
    driver: String,
    /// The generator of field arithmetic that is used.
    #[serde(skip_serializing_if = "Option::is_none")]
    emitter: Option<Emitter>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments, verbosity: Verbosity) -> Result<()> {
    let devices = select(&arguments.hosts, &arguments.devices)?;
    arguments.emitter.iter().try_for_each(|&emitter| use_emitter(emitter, &devices))?;
    let sizes = Sizes::new(arguments, &devices);
    check_outputs([], arguments.views.outputs())?;
    let views = Views::begin(&arguments.views, verbosity)?;
    let progress = ProgressLine::new(arguments.json || verbosity.is_quiet());
    if views.show_progress() {
        progress.hide();
    }
    if let Some(count) = arguments.batch {
        let (sizes, count) = (&sizes.circuits, count as usize);
        let result = batch::run(arguments, &devices, sizes, count, &progress, views, verbosity);
        progress.finish();
        return result;
    }
    let snarkrs = Snarkrs::find(arguments)?;
    progress.step("choosing the field arithmetic of each device");
    let machine = describe(&devices);
    progress.print(&text(&machine))?;
    let sections = Bench { arguments, devices, sizes, progress, snarkrs, sections: Vec::new() }.run()?;
    views.finish(None)?;
    // What a device fails in does not keep the others from being measured.
    let failed: Vec<String> = sections.iter().flat_map(Section::failures).collect();
    if arguments.json {
        #[derive(Serialize)]
        struct Outcome {
            machine: Machine,
            rounds: u32,
            measurements: Vec<Section>,
        }
        write_json(&Outcome { machine, rounds: arguments.rounds, measurements: sections })?;
    } else if verbosity.is_quiet() {
        write_out(&sections.iter().map(Section::lines).collect::<String>())?;
    }
    match failed.as_slice() {
        [] => Ok(()),
        failed => bail!("{}", failed.join("; ")),
    }
}

/// Selects the devices of each list. Two lists may name the same hardware.
fn select(hosts: &HostsOption, lists: &[String]) -> Result<Vec<Device>> {
    let selections: Vec<&str> = lists.iter().map(String::as_str).collect();
    let found = Machines::find(Inventory::discover(), hosts, &selections, LateNodes::Refused)?;
    let inventory = found.all_there()?;
    let mut devices: Vec<Device> = Vec::new();
    match lists {
        [] => devices = inventory.select_or_default(None)?,
        lists => {
            for list in lists {
                for device in inventory.select(list)? {
                    if devices.iter().any(|other| other.id() == device.id()) {
                        let message = format!("--devices names {} twice", device.id());
                        return Err(UsageError(message).into());
                    }
                    devices.push(device);
                }
            }
        }
    }
    log_devices(&inventory, &devices);
    Ok(devices)
}

/// Has all devices that can use a generator of field arithmetic use it. Fails if none can.
fn use_emitter(emitter: Emitter, devices: &[Device]) -> Result<()> {
    let mut is_used = false;
    for device in devices {
        if Emitter::candidates(device)?.contains(&emitter) {
            emitter.use_on(device)?;
            is_used = true;
        }
    }
    match is_used {
        true => Ok(()),
        false => Err(UsageError(format!("--emitter {emitter:?}: no selected device can use it")).into()),
    }
}

fn describe(devices: &[Device]) -> Machine {
    let describe = |device: &Device| {
        let it = device.describe();
        let emitter = Emitter::for_device(device).ok();
        let (id, name, driver) = (it.id.to_string(), it.name.clone(), it.driver.clone());
        MeasuredDevice { id, name, driver, emitter }
    };
    Machine { threads: rayon::current_num_threads(), devices: devices.iter().map(describe).collect() }
}

fn text(machine: &Machine) -> String {
    let device = |device: &MeasuredDevice| {
        let emitter = device.emitter.map_or(String::new(), |emitter| format!(", {emitter:?}"));
        format!("{}: {} ({}{emitter})\n", device.id, device.name, device.driver)
    };
    let devices: String = machine.devices.iter().map(device).collect();
    format!("{devices}peers use {} threads\n", machine.threads)
}

/// The measurements so far, and what they are about.
struct Bench<'a> {
    arguments: &'a Arguments,
    devices: Vec<Device>,
    sizes: Sizes,
    progress: ProgressLine,
    snarkrs: Option<Snarkrs>,
    sections: Vec<Section>,
}

impl Bench<'_> {
    fn run(mut self) -> Result<Vec<Section>> {
        let measured = self.measure();
        self.progress.finish();
        measured.map(|()| self.sections)
    }

    fn measure(&mut self) -> Result<()> {
        if self.has(Part::Field) {
            self.field()?;
        }
        if self.has(Part::Msm) {
            self.msm::<ark_bn254::G1Projective>("msm_g1", "G1")?;
            self.msm::<ark_bn254::G2Projective>("msm_g2", "G2")?;
        }
        if self.has(Part::Ntt) {
            self.ntt()?;
        }
        if self.has(Part::Groth16) || self.has(Part::Start) {
            self.proofs()?;
        }
        Ok(())
    }

    fn has(&self, part: Part) -> bool {
        self.arguments.only.is_empty() || self.arguments.only.contains(&part)
    }

    fn rounds(&self) -> usize {
        self.arguments.rounds as usize
    }

    /// Prints a section, and keeps it for the other formats.
    fn add(&mut self, mut section: Section) -> Result<()> {
        section.compare_apis();
        self.progress.print(&section.text())?;
        self.sections.push(section);
        Ok(())
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn exponents_are_written_with_and_without_their_base() {
        assert_eq!(["1", "20", "2^20"].map(exponent), [Ok(1), Ok(20), Ok(20)]);
        for text in ["", "0", "27", "65536", "2^", "3^4", "-1"] {
            assert!(exponent(text).is_err(), "{text}");
        }
    }

    #[test]
    fn field_arithmetic_has_the_names_that_the_output_prints() {
        for expected in Emitter::ALL {
            assert_eq!(emitter(&format!("{expected:?}")), Ok(expected));
        }
        assert_eq!(emitter("cudaplain"), Ok(Emitter::CudaPlain));
        assert!(emitter("ptx").unwrap_err().contains("CudaPlain, WgslU64"));
    }
}
