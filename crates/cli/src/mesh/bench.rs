//! `evener mesh bench`: measures and checks collectives.

use std::{
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use evener_mesh::comm::{CommError, Communicator, ReduceOp, World};
use serde::Serialize;

use crate::{
    UsageError,
    output::{format_bytes, write_json, write_out},
    progress::ProgressLine,
    table::{Heading, table},
    verbosity::Verbosity,
};

/// Measure and check collectives
///
/// Measures one collective of f32 over a range of sizes, and checks every result. The ranks are threads of this process, or
/// processes if `mpirun` or `srun` started the command.
///
/// Size, time and bandwidths are defined as in nccl-tests: the size is that of a rank's larger buffer; the algorithm
/// bandwidth (ALG) is size over time; the bus bandwidth (BUS) is that times the least that the collective must move, for
/// example 2·(n − 1)/n for an all-reduce, so that it compares with the hardware's.
///
/// With -q, prints a line for each size: the bytes, and the mean time in microseconds.
#[derive(Debug, Args)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct Arguments {
    /// Measure this collective
    #[arg(long, value_name = "NAME", default_value = "all_reduce")]
    op: CollectiveName,

    /// Reduce elements by this operation
    #[arg(long, value_name = "OPERATION", default_value = "sum")]
    reduce: Reduction,

    /// Use this number of ranks [default: the number of cores, at least 2; under mpirun, its number of processes]
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,

    /// Measure sizes from the first to the last, doubling
    #[arg(long, value_name = "FROM..TO", default_value = "1KiB..64MiB")]
    sizes: Sizes,

    /// Fail if a rank does not respond for this number of seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,

    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
Examples:
  evener mesh bench                         measure all-reduce between threads
  evener mesh bench --op all_gather --sizes 4KiB..1MiB
                                            measure another collective
  mpirun -n 4 evener mesh bench             measure between processes";

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
enum CollectiveName {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Gather,
    Scatter,
    AllToAll,
    Barrier,
}

/// An [`ReduceOp`] on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reduction {
    Sum,
    Product,
    Min,
    Max,
    Average,
}

impl From<Reduction> for ReduceOp {
    fn from(reduction: Reduction) -> Self {
        match reduction {
            Reduction::Sum => ReduceOp::Sum,
            Reduction::Product => ReduceOp::Product,
            Reduction::Min => ReduceOp::Min,
            Reduction::Max => ReduceOp::Max,
            Reduction::Average => ReduceOp::Average,
        }
    }
}

impl Arguments {
    /// Returns the collective's name on the command line.
    fn op_name(&self) -> String {
        self.op.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default()
    }
}

/// Sizes in bytes, each twice the one before.
#[derive(Debug, Clone)]
struct Sizes(Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let (from, to) = (size(from)?, size(to)?);
        if from == 0 || from > to {
            return Err(format!("`{text}`: sizes must increase, as in 1KiB..64MiB"));
        }
        let sizes = std::iter::successors(Some(from), |size| size.checked_mul(2));
        Ok(Sizes(sizes.take_while(|size| *size <= to).collect()))
    }
}

fn size(text: &str) -> Result<usize, String> {
    let number = text.trim_end_matches(|it: char| it.is_alphabetic());
    let unit = match &text[number.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => return Err(format!("`{other}` is not a unit: use B, KiB, MiB or GiB")),
    };
    let number: usize = number.trim().parse().map_err(|_| format!("`{text}` is not a size such as 64KiB"))?;
    number.checked_mul(unit).ok_or_else(|| format!("`{text}` is too large"))
}

/// Runs the command.
pub(crate) fn run(arguments: Arguments, verbosity: Verbosity) -> Result<()> {
    let progress = ProgressLine::new(arguments.json || verbosity.is_quiet());
    let timeout = Duration::from_secs(arguments.timeout);
    if World::was_launched_by_mpi() {
        let world = World::mpi(timeout)?;
        if let Some(ranks) = arguments.ranks.filter(|ranks| *ranks != world.size()) {
            let message =
                format!("--ranks {ranks}: mpirun started {} ranks; leave the option out", world.size());
            return Err(UsageError(message).into());
        }
        let measured = measure(&world, &arguments, (world.rank() == 0).then_some(&progress));
        progress.finish();
        let measured = measured?;
        return if world.rank() == 0 {
            report(&world.backend(), world.size(), &arguments, verbosity, &measured)
        } else {
            Ok(())
        };
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let ranks = arguments.ranks.unwrap_or(cores.max(2));
    if ranks == 0 {
        return Err(UsageError("--ranks 0: at least one rank is needed".into()).into());
    }
    let mut measured = Vec::new();
    let outcome = std::thread::scope(|scope| {
        let ranks: Vec<_> = World::local_with_timeout(ranks, timeout)
            .into_iter()
            .map(|world| {
                let (arguments, progress) = (&arguments, (world.rank() == 0).then_some(&progress));
                scope.spawn(move || measure(&world, arguments, progress))
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            let rows = thread.join().map_err(|_| anyhow!("rank {rank} panicked"))??;
            if rank == 0 {
                measured = rows;
            }
        }
        Ok::<(), anyhow::Error>(())
    });
    progress.finish();
    outcome?;
    report("local", ranks, &arguments, verbosity, &measured)
}

/// The measurements of one size.
#[derive(Debug, Serialize)]
struct Row {
    bytes: usize,
    iterations: usize,
    /// The mean time over all ranks.
    microseconds: f64,
    /// The minimum time of any rank.
    min_microseconds: f64,
    algorithm_gigabytes_per_second: f64,
    bus_gigabytes_per_second: f64,
    /// The number of wrong elements on all ranks.
    wrong: u64,
}

/// Measures all sizes as one rank, of which one shows the progress. Returns the same rows on every rank.
fn measure(world: &World, arguments: &Arguments, progress: Option<&ProgressLine>) -> Result<Vec<Row>> {
    let group = world.communicator();
    let sizes = if arguments.op == CollectiveName::Barrier { &[0][..] } else { &arguments.sizes.0 };
    let mut rows = Vec::new();
    for (index, &bytes) in sizes.iter().enumerate() {
        if let Some(progress) = progress {
            let (name, number) = (arguments.op_name(), index + 1);
            progress.step(format!(
                "{name}: {}, size {number} of {}",
                format_bytes(bytes as u64),
                sizes.len()
            ));
        }
        rows.push(measure_size(group, arguments, bytes)?);
    }
    Ok(rows)
}

fn measure_size(group: &Communicator, arguments: &Arguments, bytes: usize) -> Result<Row, CommError> {
    let mut trial = Trial::new(group, arguments, bytes);
    // Warm up. The slowest rank's time determines the number of iterations on all ranks.
    let mut slowest = [Duration::ZERO; 1].map(|it| it.as_secs_f64());
    for _ in 0..3 {
        let (took, _) = trial.run(group)?;
        slowest[0] = slowest[0].max(took.as_secs_f64());
    }
    group.all_reduce(&mut slowest, ReduceOp::Max)?;
    let iterations = (0.1 / slowest[0].max(1e-7)).clamp(5.0, 2000.0) as usize;
    let (mut total, mut min, mut wrong) = (Duration::ZERO, Duration::MAX, 0);
    for _ in 0..iterations {
        let (took, errors) = trial.run(group)?;
        total += took;
        min = min.min(took);
        wrong += errors;
    }
    let (mut mean, mut min) = ([total.as_secs_f64() / iterations as f64], [min.as_secs_f64()]);
    let mut wrong = [wrong];
    group.all_reduce(&mut mean, ReduceOp::Average)?;
    group.all_reduce(&mut min, ReduceOp::Min)?;
    group.all_reduce(&mut wrong, ReduceOp::Sum)?;
    let size = trial.bytes(group.size());
    let algorithm = size as f64 / mean[0] / 1e9;
    Ok(Row {
        bytes: size,
        iterations,
        microseconds: mean[0] * 1e6,
        min_microseconds: min[0] * 1e6,
        algorithm_gigabytes_per_second: algorithm,
        bus_gigabytes_per_second: algorithm * bus_factor(arguments.op, group.size()),
        wrong: wrong[0],
    })
}

/// Returns the least that a collective must move, as a multiple of its size.
fn bus_factor(collective: CollectiveName, ranks: usize) -> f64 {
    let others = (ranks - 1) as f64 / ranks as f64;
    match collective {
        CollectiveName::AllReduce => 2.0 * others,
        CollectiveName::Reduce | CollectiveName::Broadcast | CollectiveName::Barrier => 1.0,
        _ => others,
    }
}

/// The buffers of one collective of one size, and their expected contents.
struct Trial {
    collective: CollectiveName,
    operation: ReduceOp,
    input: Vec<f32>,
    output: Vec<f32>,
    /// The number of elements of one rank's part.
    part: usize,
    rounds: usize,
}

impl Trial {
    fn new(group: &Communicator, arguments: &Arguments, bytes: usize) -> Self {
        let (collective, ranks) = (arguments.op, group.size());
        let elements = bytes / size_of::<f32>();
        let me = group.rank().unwrap_or(0);
        let (input, output, part) = match collective {
            CollectiveName::AllReduce | CollectiveName::Reduce | CollectiveName::Broadcast => {
                (0, elements, elements)
            }
            CollectiveName::Barrier => (0, 0, 0),
            _ => {
                let part = elements.div_ceil(ranks);
                let all = part * ranks;
                match collective {
                    CollectiveName::AllGather => (part, all, part),
                    CollectiveName::ReduceScatter => (all, part, part),
                    CollectiveName::Gather => (part, if me == 0 { all } else { 0 }, part),
                    CollectiveName::Scatter => (if me == 0 { all } else { 0 }, part, part),
                    _ => (all, all, part),
                }
            }
        };
        let operation = arguments.reduce.into();
        Trial { collective, operation, input: vec![0.0; input], output: vec![0.0; output], part, rounds: 0 }
    }

    /// Returns the size as nccl-tests count it.
    fn bytes(&self, ranks: usize) -> usize {
        let parts = match self.collective {
            CollectiveName::AllReduce
            | CollectiveName::Reduce
            | CollectiveName::Broadcast
            | CollectiveName::Barrier => 1,
            _ => ranks,
        };
        self.part * parts * size_of::<f32>()
    }

    /// Returns a rank's input at an index: a small whole number, which differs from round to round.
    fn input_at(&self, rank: usize, index: usize) -> f32 {
        ((rank * 5 + index + self.rounds) % 3 + 1) as f32
    }

    /// Returns the expected output of a rank at an index.
    fn expected_at(&self, ranks: usize, me: usize, index: usize) -> f32 {
        let reduced = |index: usize| {
            let values = (0..ranks).map(|rank| self.input_at(rank, index));
            let reduced = values.reduce(|a, b| match self.operation {
                ReduceOp::Product => a * b,
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                _ => a + b,
            });
            let reduced = reduced.unwrap_or(0.0);
            if self.operation == ReduceOp::Average { reduced / ranks as f32 } else { reduced }
        };
        match self.collective {
            CollectiveName::AllReduce => reduced(index),
            CollectiveName::Reduce if me == 0 => reduced(index),
            CollectiveName::Reduce => self.input_at(me, index),
            CollectiveName::Broadcast => self.input_at(0, index),
            CollectiveName::ReduceScatter => reduced(me * self.part + index),
            CollectiveName::Scatter => self.input_at(0, me * self.part + index),
            CollectiveName::AllGather | CollectiveName::Gather => {
                self.input_at(index / self.part, index % self.part)
            }
            CollectiveName::AllToAll => self.input_at(index / self.part, me * self.part + index % self.part),
            CollectiveName::Barrier => 0.0,
        }
    }

    /// Runs the collective once. Returns its time on this rank and the number of wrong elements.
    fn run(&mut self, group: &Communicator) -> Result<(Duration, u64), CommError> {
        self.rounds += 1;
        let (ranks, me) = (group.size(), group.rank().unwrap_or(0));
        let in_place = self.input.is_empty() && self.collective != CollectiveName::Scatter;
        let (mut input, mut output) = (std::mem::take(&mut self.input), std::mem::take(&mut self.output));
        for (index, value) in if in_place { &mut output } else { &mut input }.iter_mut().enumerate() {
            *value = self.input_at(me, index);
        }
        group.barrier()?;
        let start = Instant::now();
        match self.collective {
            CollectiveName::AllReduce => group.all_reduce(&mut output, self.operation)?,
            CollectiveName::Reduce => group.reduce(&mut output, self.operation, 0)?,
            CollectiveName::Broadcast => group.broadcast(&mut output, 0)?,
            CollectiveName::AllGather => group.all_gather(&input, &mut output)?,
            CollectiveName::ReduceScatter => group.reduce_scatter(&input, &mut output, self.operation)?,
            CollectiveName::Gather => group.gather(&input, &mut output, 0)?,
            CollectiveName::Scatter => group.scatter(&input, &mut output, 0)?,
            CollectiveName::AllToAll => group.all_to_all(&input, &mut output)?,
            CollectiveName::Barrier => group.barrier()?,
        }
        let took = start.elapsed();
        let is_wrong = |(index, value): &(usize, &f32)| **value != self.expected_at(ranks, me, *index);
        let wrong = output.iter().enumerate().filter(is_wrong).count() as u64;
        (self.input, self.output) = (input, output);
        Ok((took, wrong))
    }
}

fn report(
    backend: &str,
    ranks: usize,
    arguments: &Arguments,
    verbosity: Verbosity,
    rows: &[Row],
) -> Result<()> {
    if arguments.json {
        let object = serde_json::json!({
            "backend": backend, "ranks": ranks, "op": arguments.op, "type": "f32",
            "reduce": ReduceOp::from(arguments.reduce), "sizes": rows,
        });
        write_json(&object)?;
    } else if verbosity.is_quiet() {
        let line = |row: &Row| format!("{} {:.2}\n", row.bytes, row.microseconds);
        write_out(&rows.iter().map(line).collect::<String>())?;
    } else {
        let headings = [
            Heading::number("BYTES"),
            Heading::number("TIMES"),
            Heading::number("MEAN µs"),
            Heading::number("MIN µs"),
            Heading::number("ALG GB/s").optional(),
            Heading::number("BUS GB/s").optional(),
            Heading::number("WRONG").optional(),
        ];
        let cells = rows.iter().map(|row| {
            vec![
                row.bytes.to_string(),
                row.iterations.to_string(),
                format!("{:.2}", row.microseconds),
                format!("{:.2}", row.min_microseconds),
                format!("{:.3}", row.algorithm_gigabytes_per_second),
                format!("{:.3}", row.bus_gigabytes_per_second),
                row.wrong.to_string(),
            ]
        });
        let name = arguments.op_name();
        let correct = if rows.iter().all(|row| row.wrong == 0) { "; all results are correct" } else { "" };
        let table = table(&headings, &cells.collect::<Vec<_>>());
        write_out(&format!("{name} of f32 between {ranks} ranks, {backend}{correct}\n{table}\n"))?;
    }
    let wrong: u64 = rows.iter().map(|row| row.wrong).sum();
    if wrong > 0 {
        bail!("{wrong} elements were wrong");
    }
    Ok(())
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn sizes_double_and_nonsense_is_refused() {
        assert_eq!("1KiB..4KiB".parse::<Sizes>().unwrap().0, [1024, 2048, 4096]);
        assert_eq!("64MiB".parse::<Sizes>().unwrap().0, [64 << 20]);
        for wrong in ["4KiB..1KiB", "1kb..2kb", "..", "0..4", "99999999999GiB"] {
            assert!(wrong.parse::<Sizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(bus_factor(CollectiveName::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(CollectiveName::AllGather, 4), 0.75);
        assert_eq!(bus_factor(CollectiveName::Broadcast, 4), 1.0);
    }
}
