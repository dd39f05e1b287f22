//! `evener mesh bench`: how long do collectives take, and are they right?

use std::{
    fmt::Write,
    str::FromStr,
    time::{Duration, Instant},
};

use anyhow::{Result, anyhow, bail};
use clap::{Args, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use evener_mesh::comm::{Comm, CommError, Group, Operation};
use serde::Serialize;

use crate::{
    EXIT_CODES, Usage,
    output::{write_json, write_out},
};

/// How long do collectives take, and are they right?
///
/// Measures one collective of f32 over a range of sizes, and checks every result. Started by itself, the ranks are
/// threads of this process. Started by `mpirun` or `srun`, they are its processes.
///
/// Size, time and bandwidths are what nccl-tests call them: the size is that of the larger buffer of a rank; the
/// algorithm's bandwidth is size by time; the bus's is that times what the collective has to move at least, for
/// example 2·(n − 1)/n for an all-reduce, so that it can be compared with what the hardware can do.
#[derive(Debug, Args)]
#[command(after_long_help = after_help())]
pub(crate) struct Arguments {
    /// Which collective
    #[arg(long, value_name = "NAME", default_value = "all_reduce")]
    op: Collective,

    /// How elements are reduced, where they are: sum, product, min, max or average
    #[arg(long, value_name = "OPERATION", default_value = "sum")]
    reduce: Reduction,

    /// How many ranks; as many as there are cores, and at least two, unless said otherwise. Under mpirun it says so
    #[arg(long, value_name = "N")]
    ranks: Option<usize>,

    /// Sizes, from the first to the last by doubling
    #[arg(long, value_name = "FROM..TO", default_value = "1KiB..64MiB")]
    sizes: Sizes,

    /// Give up on a rank after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,

    /// Write an object, for programs
    #[arg(long)]
    json: bool,
}

fn after_help() -> String {
    format!(
        "\
Examples:
  evener mesh bench                                     all-reduce between threads
  evener mesh bench --op all_gather --sizes 4KiB..1MiB  another collective
  mpirun -n 4 evener mesh bench                         between processes, on one machine or many

{EXIT_CODES}"
    )
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
enum Collective {
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

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Reduction {
    Sum,
    Product,
    Min,
    Max,
    Average,
}

impl From<Reduction> for Operation {
    fn from(reduction: Reduction) -> Self {
        match reduction {
            Reduction::Sum => Operation::Sum,
            Reduction::Product => Operation::Product,
            Reduction::Min => Operation::Min,
            Reduction::Max => Operation::Max,
            Reduction::Average => Operation::Average,
        }
    }
}

/// Sizes in bytes, doubling.
#[derive(Debug, Clone)]
struct Sizes(Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (from, to) = text.split_once("..").unwrap_or((text, text));
        let (from, to) = (size(from)?, size(to)?);
        if from == 0 || from > to {
            return Err(format!("`{text}`: sizes go up, from 4 bytes: 1KiB..64MiB"));
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
        other => return Err(format!("`{other}` is no unit of size: B, KiB, MiB or GiB")),
    };
    let number: usize =
        number.trim().parse().map_err(|_| format!("`{text}` is no size: 64KiB, for example"))?;
    number.checked_mul(unit).ok_or_else(|| format!("`{text}` is more than can be counted"))
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let timeout = Duration::from_secs(arguments.timeout);
    if Comm::was_launched_by_mpi() {
        let comm = Comm::mpi(timeout)?;
        if let Some(ranks) = arguments.ranks.filter(|ranks| *ranks != comm.size()) {
            let usage = format!("--ranks {ranks}: mpirun has started {}, so leave it out", comm.size());
            return Err(Usage(usage).into());
        }
        let measured = measure(&comm, &arguments)?;
        return if comm.rank() == 0 {
            report(&comm.backend(), comm.size(), &arguments, &measured)
        } else {
            Ok(())
        };
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let ranks = arguments.ranks.unwrap_or(cores.max(2));
    if ranks == 0 {
        return Err(Usage("--ranks 0: at least one rank is needed".into()).into());
    }
    let mut measured = Vec::new();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = Comm::local_with_timeout(ranks, timeout)
            .into_iter()
            .map(|comm| {
                let arguments = &arguments;
                scope.spawn(move || measure(&comm, arguments))
            })
            .collect();
        for (rank, thread) in ranks.into_iter().enumerate() {
            let rows = thread.join().map_err(|_| anyhow!("rank {rank} panicked"))??;
            if rank == 0 {
                measured = rows;
            }
        }
        Ok::<(), anyhow::Error>(())
    })?;
    report("local", ranks, &arguments, &measured)
}

/// What was measured for one size.
#[derive(Debug, Serialize)]
struct Row {
    bytes: usize,
    iterations: usize,
    /// The mean, of all ranks.
    microseconds: f64,
    /// The least that any rank took.
    least_microseconds: f64,
    algorithm_gigabytes_per_second: f64,
    bus_gigabytes_per_second: f64,
    /// Elements that were not as they should be, on all ranks.
    wrong: u64,
}

/// Measures all sizes as one rank. Every rank gets the same rows.
fn measure(comm: &Comm, arguments: &Arguments) -> Result<Vec<Row>> {
    let group = comm.world();
    let sizes = if arguments.op == Collective::Barrier { &[0][..] } else { &arguments.sizes.0 };
    sizes.iter().map(|bytes| Ok(measure_size(group, arguments, *bytes)?)).collect()
}

fn measure_size(group: &Group, arguments: &Arguments, bytes: usize) -> Result<Row, CommError> {
    let mut trial = Trial::new(group, arguments, bytes);
    // A few to warm up, and to see how many there is time for; all ranks take the slowest one's word.
    let mut slowest = [Duration::ZERO; 1].map(|it| it.as_secs_f64());
    for _ in 0..3 {
        let (took, _) = trial.run(group)?;
        slowest[0] = slowest[0].max(took.as_secs_f64());
    }
    group.all_reduce(&mut slowest, Operation::Max)?;
    let iterations = (0.1 / slowest[0].max(1e-7)).clamp(5.0, 2000.0) as usize;
    let (mut total, mut least, mut wrong) = (Duration::ZERO, Duration::MAX, 0);
    for _ in 0..iterations {
        let (took, errors) = trial.run(group)?;
        total += took;
        least = least.min(took);
        wrong += errors;
    }
    let (mut mean, mut least) = ([total.as_secs_f64() / iterations as f64], [least.as_secs_f64()]);
    let mut wrong = [wrong];
    group.all_reduce(&mut mean, Operation::Average)?;
    group.all_reduce(&mut least, Operation::Min)?;
    group.all_reduce(&mut wrong, Operation::Sum)?;
    let size = trial.bytes(group.size());
    let algorithm = size as f64 / mean[0] / 1e9;
    Ok(Row {
        bytes: size,
        iterations,
        microseconds: mean[0] * 1e6,
        least_microseconds: least[0] * 1e6,
        algorithm_gigabytes_per_second: algorithm,
        bus_gigabytes_per_second: algorithm * bus_factor(arguments.op, group.size()),
        wrong: wrong[0],
    })
}

/// What the collective has to move at least, in parts of its size.
fn bus_factor(collective: Collective, ranks: usize) -> f64 {
    let others = (ranks - 1) as f64 / ranks as f64;
    match collective {
        Collective::AllReduce => 2.0 * others,
        Collective::Reduce | Collective::Broadcast | Collective::Barrier => 1.0,
        _ => others,
    }
}

/// One collective of one size: its buffers, and what should be in them afterwards.
struct Trial {
    collective: Collective,
    operation: Operation,
    input: Vec<f32>,
    output: Vec<f32>,
    /// Elements of one rank's part.
    part: usize,
    rounds: usize,
}

impl Trial {
    fn new(group: &Group, arguments: &Arguments, bytes: usize) -> Self {
        let (collective, ranks) = (arguments.op, group.size());
        let elements = bytes / size_of::<f32>();
        let me = group.rank().unwrap_or(0);
        let (input, output, part) = match collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => (0, elements, elements),
            Collective::Barrier => (0, 0, 0),
            _ => {
                let part = elements.div_ceil(ranks);
                let all = part * ranks;
                match collective {
                    Collective::AllGather => (part, all, part),
                    Collective::ReduceScatter => (all, part, part),
                    Collective::Gather => (part, if me == 0 { all } else { 0 }, part),
                    Collective::Scatter => (if me == 0 { all } else { 0 }, part, part),
                    _ => (all, all, part),
                }
            }
        };
        let operation = arguments.reduce.into();
        Trial { collective, operation, input: vec![0.0; input], output: vec![0.0; output], part, rounds: 0 }
    }

    /// The size, as nccl-tests count it.
    fn bytes(&self, ranks: usize) -> usize {
        let parts = match self.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast | Collective::Barrier => 1,
            _ => ranks,
        };
        self.part * parts * size_of::<f32>()
    }

    /// What a rank gives in a round, at an index: small whole numbers, which differ from round to round.
    fn given(&self, rank: usize, index: usize) -> f32 {
        ((rank * 5 + index + self.rounds) % 3 + 1) as f32
    }

    /// What should be at an index of a rank's output.
    fn expected(&self, ranks: usize, me: usize, index: usize) -> f32 {
        let reduced = |index: usize| {
            let values = (0..ranks).map(|rank| self.given(rank, index));
            let reduced = values.reduce(|a, b| match self.operation {
                Operation::Product => a * b,
                Operation::Min => a.min(b),
                Operation::Max => a.max(b),
                _ => a + b,
            });
            let reduced = reduced.unwrap_or(0.0);
            if self.operation == Operation::Average { reduced / ranks as f32 } else { reduced }
        };
        match self.collective {
            Collective::AllReduce => reduced(index),
            Collective::Reduce if me == 0 => reduced(index),
            Collective::Reduce => self.given(me, index),
            Collective::Broadcast => self.given(0, index),
            Collective::ReduceScatter => reduced(me * self.part + index),
            Collective::Scatter => self.given(0, me * self.part + index),
            Collective::AllGather | Collective::Gather => self.given(index / self.part, index % self.part),
            Collective::AllToAll => self.given(index / self.part, me * self.part + index % self.part),
            Collective::Barrier => 0.0,
        }
    }

    /// Runs it once, all ranks together. Gives how long it took here, and how many elements are wrong.
    fn run(&mut self, group: &Group) -> Result<(Duration, u64), CommError> {
        self.rounds += 1;
        let (ranks, me) = (group.size(), group.rank().unwrap_or(0));
        let in_place = self.input.is_empty() && self.collective != Collective::Scatter;
        let (mut input, mut output) = (std::mem::take(&mut self.input), std::mem::take(&mut self.output));
        for (index, value) in if in_place { &mut output } else { &mut input }.iter_mut().enumerate() {
            *value = self.given(me, index);
        }
        group.barrier()?;
        let start = Instant::now();
        match self.collective {
            Collective::AllReduce => group.all_reduce(&mut output, self.operation)?,
            Collective::Reduce => group.reduce(&mut output, self.operation, 0)?,
            Collective::Broadcast => group.broadcast(&mut output, 0)?,
            Collective::AllGather => group.all_gather(&input, &mut output)?,
            Collective::ReduceScatter => group.reduce_scatter(&input, &mut output, self.operation)?,
            Collective::Gather => group.gather(&input, &mut output, 0)?,
            Collective::Scatter => group.scatter(&input, &mut output, 0)?,
            Collective::AllToAll => group.all_to_all(&input, &mut output)?,
            Collective::Barrier => group.barrier()?,
        }
        let took = start.elapsed();
        let is_wrong = |(index, value): &(usize, &f32)| **value != self.expected(ranks, me, *index);
        let wrong = output.iter().enumerate().filter(is_wrong).count() as u64;
        (self.input, self.output) = (input, output);
        Ok((took, wrong))
    }
}

fn report(backend: &str, ranks: usize, arguments: &Arguments, rows: &[Row]) -> Result<()> {
    if arguments.json {
        let object = serde_json::json!({
            "backend": backend, "ranks": ranks, "op": arguments.op, "type": "f32",
            "reduce": Operation::from(arguments.reduce), "sizes": rows,
        });
        write_json(&object)?;
    } else {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_header(["BYTES", "TIMES", "MEAN µs", "LEAST µs", "ALG GB/s", "BUS GB/s", "WRONG"]);
        for row in rows {
            table.add_row([
                row.bytes.to_string(),
                row.iterations.to_string(),
                format!("{:.2}", row.microseconds),
                format!("{:.2}", row.least_microseconds),
                format!("{:.3}", row.algorithm_gigabytes_per_second),
                format!("{:.3}", row.bus_gigabytes_per_second),
                row.wrong.to_string(),
            ]);
        }
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        let name = arguments.op.to_possible_value().map(|it| it.get_name().to_owned()).unwrap_or_default();
        let mut text = format!("{name} of f32 between {ranks} ranks, {backend}\n");
        writeln!(text, "{table}")?;
        write_out(&text)?;
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
        assert_eq!(bus_factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(Collective::AllGather, 4), 0.75);
        assert_eq!(bus_factor(Collective::Broadcast, 4), 1.0);
    }
}
