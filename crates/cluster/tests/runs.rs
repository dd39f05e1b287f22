//! Runs over this machine's processor and a worker, with a fault at every step of the run: every item has its result exactly
//! once, or the run is an error, and nothing hangs.
//!
//! `EVENER_SOAK_SECONDS` makes the random faults go on for longer, and `EVENER_SOAK_SEED` repeats one that failed.
//!
//! This program starts itself as a worker, so it has a `main` of its own.
#![allow(clippy::panic, clippy::unwrap_used)]

mod common;

use std::{
    io::{self, Read, Write},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use common::{Behaviour, Outcome, process_of, processor, within_seconds};
use evener_cluster::{Host, Launched, Launcher, Process, connect_all, worker};
use evener_device::{
    Device, Kernel, Result, kernel_fn,
    remote::{ReadPipe, RemoteHost, WritePipe},
};
use evener_schedule::{KernelParams, KernelTask, Pool, RunError, task_fn};
use libtest_mimic::{Arguments, Trial};

fn main() {
    worker::serve_if_asked();
    let trials: [Behaviour; 8] = [
        ("a_fault_at_every_step_of_a_run_loses_and_repeats_no_item", every_step),
        ("random_faults_lose_and_repeat_no_item", random_faults),
        ("a_run_over_a_worker_alone_ends_with_all_items_or_an_error", alone),
        ("a_run_goes_on_without_a_worker_that_is_stopped_for_good", stopped_for_good),
        ("a_kernel_longer_than_the_limit_of_silence_is_no_loss", long_kernel),
        ("32_hosts_start_in_seconds_and_share_a_run", many_hosts),
        ("a_remote_device_is_a_row_of_the_trace_on_this_machines_clock", trace),
        ("a_plain_function_runs_in_a_worker_of_the_same_program", function),
    ];
    let mut arguments = Arguments::from_args();
    // They start processes, and measure time.
    arguments.test_threads.get_or_insert(1);
    let limit = 240 + seconds_from_environment().unwrap_or(0);
    let trials = trials.map(|(name, trial)| Trial::test(name, move || within_seconds(limit, trial)));
    libtest_mimic::run(&arguments, trials.into()).exit();
}

fn seconds_from_environment() -> Option<u64> {
    std::env::var("EVENER_SOAK_SECONDS").ok()?.parse().ok()
}

const WORDS: usize = 256;

type Item = [u32; WORDS];

kernel_fn! {
    /// Adds a number to each word, and takes so many microseconds for each item.
    fn add(number: u32, microseconds: u64) -> Kernel {
        Kernel::new("add").reads::<Item>().writes::<Item>().params::<KernelParams>().rust(move |launch| {
            let count = launch.params::<KernelParams>()?.count as usize;
            let (items, results) = (launch.read::<Item>(0)?, launch.write::<Item>(1)?);
            for (result, item) in results[..count].iter_mut().zip(items) {
                *result = item.map(|word| word.wrapping_add(number));
            }
            thread::sleep(Duration::from_micros(microseconds * count as u64));
            Ok(())
        })
    }
}

/// What happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Both pipes end.
    Cut,
    /// A bit of this byte is flipped.
    Flip(u8),
    /// The worker is killed.
    Kill,
    /// The worker is stopped, and resumed after a time.
    Stop(Duration),
    /// Nothing passes for a time.
    Stall(Duration),
}

/// A fault that happens after so many bytes in a direction.
#[derive(Debug, Clone, Copy)]
struct Plan {
    fault: Fault,
    at: u64,
}

/// What the two pipes of a connection share.
#[derive(Debug, Default)]
struct Line {
    /// The worker's process, and the faults in each direction, once they are planned.
    process: Mutex<Option<u32>>,
    plans: [Mutex<Option<Plan>>; 2],
    passed: [AtomicU64; 2],
    is_cut: std::sync::atomic::AtomicBool,
}

impl Line {
    /// Plans a fault after so many bytes from now on.
    fn plan(&self, direction: usize, fault: Fault, after: u64, process: u32) {
        *self.process.lock().unwrap() = Some(process);
        let at = self.passed[direction].load(SeqCst) + after;
        *self.plans[direction].lock().unwrap() = Some(Plan { fault, at });
    }

    fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|direction| self.passed[direction].load(SeqCst))
    }

    /// Counts bytes that pass, and lets a fault happen that is due. Fails if the line is cut.
    fn pass(&self, direction: usize, bytes: &mut [u8]) -> io::Result<()> {
        let first = self.passed[direction].fetch_add(bytes.len() as u64, SeqCst);
        let due = |plan: &mut Plan| plan.at < first + bytes.len() as u64;
        if let Some(Plan { fault, at }) = self.plans[direction].lock().unwrap().take_if(due) {
            let process = self.process.lock().unwrap().unwrap();
            match fault {
                Fault::Cut => self.is_cut.store(true, SeqCst),
                Fault::Flip(bit) => bytes[at.saturating_sub(first) as usize] ^= 1 << bit,
                // It may have ended already, after another fault.
                Fault::Kill => try_signal("-KILL", process),
                Fault::Stop(time) => {
                    try_signal("-STOP", process);
                    thread::spawn(move || {
                        thread::sleep(time);
                        try_signal("-CONT", process);
                    });
                }
                Fault::Stall(time) => thread::sleep(time),
            }
        }
        match self.is_cut.load(SeqCst) {
            true => Err(io::ErrorKind::ConnectionReset.into()),
            false => Ok(()),
        }
    }
}

fn try_signal(name: &str, process: u32) {
    let _ = std::process::Command::new("kill").args([name, &process.to_string()]).output();
}

/// Workers of this program. The first connection goes through a line.
#[derive(Debug, Clone, Default)]
struct Lines {
    line: Arc<Line>,
    connections: Arc<AtomicU64>,
}

impl Launcher for Lines {
    fn launch(&self, timeout: Duration) -> Result<Launched, String> {
        let mut launched = Process::this_program().map_err(|why| why.to_string())?.launch(timeout)?;
        if self.connections.fetch_add(1, SeqCst) == 0 {
            let line = self.line.clone();
            launched.to_worker = Box::new(Sending { pipe: launched.to_worker, line });
            let line = self.line.clone();
            launched.from_worker = Box::new(Receiving { pipe: launched.from_worker, line });
        }
        Ok(launched)
    }
}

#[derive(Debug)]
struct Sending {
    pipe: Box<dyn WritePipe>,
    line: Arc<Line>,
}

impl Write for Sending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut bytes = bytes.to_vec();
        self.line.pass(0, &mut bytes)?;
        self.pipe.write_all(&bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pipe.flush()
    }
}

#[derive(Debug)]
struct Receiving {
    pipe: Box<dyn ReadPipe>,
    line: Arc<Line>,
}

impl Read for Receiving {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.pipe.read(into)?;
        self.line.pass(1, &mut into[..read])?;
        Ok(read)
    }
}

/// A worker behind a line, connected.
struct Connected {
    lines: Lines,
    _host: RemoteHost,
    device: Device,
    process: u32,
}

fn connected() -> Result<Connected> {
    connected_as("there")
}

fn connected_as(name: &str) -> Result<Connected> {
    let lines = Lines::default();
    let host = Host::new(name, lines.clone()).unwrap().timeout(Duration::from_secs(30)).connect()?;
    let device = processor(&host);
    let process = process_of(&device)?;
    Ok(Connected { lines, _host: host, device, process })
}

const ITEMS: u32 = 1500;

fn items() -> Vec<Item> {
    (0..ITEMS).map(|number| std::array::from_fn(|word| number * 1000 + word as u32)).collect()
}

/// Runs over the devices, and checks that each item has its result once.
fn run(devices: &[Device], items: &[Item]) -> Result<f64, String> {
    let pool = Pool::builder().devices(devices).keep_history_at(None).build().unwrap();
    let task = KernelTask::<Item, Item>::new(&add(5, 100));
    let run = pool.job(&task).all_devices().map(items).map_err(|why| why.to_string())?;
    let is_right = |(result, item): (&Item, &Item)| *result == item.map(|word| word.wrapping_add(5));
    assert_eq!(run.results().len(), items.len());
    assert!(run.results().iter().zip(items).all(is_right), "a wrong result");
    let report = run.report();
    let counted: u64 = report.devices.iter().map(|device| device.items).sum();
    assert_eq!((report.done, counted), (u64::from(ITEMS), u64::from(ITEMS)), "{report}");
    Ok(report.wall_s)
}

fn local() -> Device {
    Device::cpu().split(&[1]).unwrap().remove(0)
}

/// The bytes in each direction of a run without faults.
fn bytes_of_a_run(items: &[Item]) -> Result<[u64; 2], String> {
    let there = connected().map_err(|why| why.to_string())?;
    let before = there.lines.line.bytes();
    run(&[local(), there.device.clone()], items)?;
    let after = there.lines.line.bytes();
    let bytes = [after[0] - before[0], after[1] - before[1]];
    // The worker has done some of the items.
    assert!(bytes.iter().all(|bytes| *bytes > 100_000), "{bytes:?}");
    Ok(bytes)
}

/// Runs over both devices with a fault, which the local device makes up for.
fn survives(items: &[Item], direction: usize, fault: Fault, after: u64) -> Outcome {
    let there = connected()?;
    there.lines.line.plan(direction, fault, after, there.process);
    let took = run(&[local(), there.device.clone()], items);
    let took = took.map_err(|why| format!("{fault:?} after {after} bytes, direction {direction}: {why}"))?;
    ensure!(took < 15.0, "{fault:?} after {after} bytes, direction {direction}: the run took {took} s");
    // The device works again, by a new connection where it was lost. A fault at the end is noticed only now.
    let comes_back = (0..3).any(|_| process_of(&there.device.reopened()).is_ok());
    ensure!(
        comes_back,
        "{fault:?} after {after} bytes, direction {direction}: the device does not come back"
    );
    Ok(())
}

fn every_step() -> Outcome {
    const STEPS: u64 = 10;
    let items = items();
    let bytes = bytes_of_a_run(&items)?;
    let stop = Fault::Stop(Duration::from_millis(400));
    for (direction, bytes) in bytes.into_iter().enumerate() {
        for fault in [Fault::Cut, Fault::Flip(3), Fault::Kill, stop] {
            // Preparing the device is the first few hundred bytes.
            let steps = [0, 40, 150, 400].into_iter().chain((0..STEPS).map(|step| bytes * step / STEPS));
            steps.into_iter().try_for_each(|after| survives(&items, direction, fault, after))?;
        }
    }
    Ok(())
}

/// A seeded source of choices: SplitMix64.
struct Choices(u64);

impl Choices {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }

    fn fault(&mut self) -> Fault {
        match self.below(5) {
            0 => Fault::Cut,
            1 => Fault::Flip(self.below(8) as u8),
            2 => Fault::Kill,
            3 => Fault::Stop(Duration::from_millis(self.below(1500))),
            _ => Fault::Stall(Duration::from_millis(self.below(1500))),
        }
    }
}

/// Several faults in one run, over the local device and two workers.
fn random_run(seed: u64, items: &[Item], bytes: [u64; 2]) -> Outcome {
    let mut choices = Choices(seed);
    let workers = [connected_as("one")?, connected_as("other")?];
    let mut planned = Vec::new();
    for there in &workers {
        for (direction, bytes) in bytes.into_iter().enumerate() {
            if choices.below(3) > 0 {
                let (fault, after) = (choices.fault(), choices.below(bytes));
                there.lines.line.plan(direction, fault, after, there.process);
                planned.push((direction, fault, after));
            }
        }
    }
    let devices: Vec<Device> =
        [local()].into_iter().chain(workers.iter().map(|there| there.device.clone())).collect();
    let took = run(&devices, items).map_err(|why| format!("seed {seed}: {planned:?}: {why}"))?;
    ensure!(took < 20.0, "seed {seed}: {planned:?}: the run took {took} s");
    Ok(())
}

fn random_faults() -> Outcome {
    let items = items();
    let bytes = bytes_of_a_run(&items)?;
    if let Some(seed) = std::env::var("EVENER_SOAK_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return random_run(seed, &items, bytes);
    }
    let until = seconds_from_environment().map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let goes_on = |seed: u64| seed < 25 || until.is_some_and(|until| Instant::now() < until);
    (0..).take_while(|seed| goes_on(*seed)).try_for_each(|seed| random_run(seed, &items, bytes))
}

fn alone() -> Outcome {
    let items = items();
    let bytes = bytes_of_a_run(&items)?;
    for seed in 100..115 {
        let mut choices = Choices(seed);
        let there = connected()?;
        let direction = choices.below(2) as usize;
        let (fault, after) = (choices.fault(), choices.below(bytes[direction]));
        there.lines.line.plan(direction, fault, after, there.process);
        let start = Instant::now();
        // A device that is lost comes back by a new connection, and so most runs succeed. Wrong results panic.
        if let Err(why) = run(std::slice::from_ref(&there.device), &items) {
            ensure!(why.contains("there/cpu"), "seed {seed}, {fault:?}: {why}");
        }
        ensure!(start.elapsed() < Duration::from_secs(60), "seed {seed}, {fault:?}: {:?}", start.elapsed());
    }
    Ok(())
}

fn stopped_for_good() -> Outcome {
    let items = items();
    let bytes = bytes_of_a_run(&items)?;
    let there = connected()?;
    let for_good = Fault::Stop(Duration::from_secs(3600));
    there.lines.line.plan(0, for_good, bytes[0] / 2, there.process);
    let took = run(&[local(), there.device.clone()], &items)?;
    ensure!(took < 15.0, "the run took {took} s");
    Ok(())
}

kernel_fn! {
    /// Takes so many seconds.
    fn long(seconds: u64) -> Kernel {
        Kernel::new("long").writes::<u32>().rust(move |launch| {
            thread::sleep(Duration::from_secs(seconds));
            launch.write::<u32>(0)?[0] = 7;
            Ok(())
        })
    }
}

fn long_kernel() -> Outcome {
    let there = connected()?;
    let data = there.device.buffer::<u32>(1)?;
    let mut stream = there.device.stream()?;
    stream.launch(&there.device.compile(&long(23))?.bind(&[data.arg()])?, 1, &())?;
    ensure!(stream.download(&data)?.wait()? == [7], "a wrong result");
    ensure!(there.lines.connections.load(SeqCst) == 1, "it was lost");
    Ok(())
}

fn many_hosts() -> Outcome {
    const HOSTS: usize = 32;
    let host = |number: usize| -> Result<Host, libtest_mimic::Failed> {
        let host = Host::new(format!("box-{number}"), Process::this_program()?)?;
        Ok(host.timeout(Duration::from_secs(30)))
    };
    let hosts = (0..HOSTS).map(host).collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    let connected = connect_all(&hosts).into_iter().collect::<Result<Vec<_>>>()?;
    let took = start.elapsed();
    ensure!(took < Duration::from_secs(10), "{HOSTS} hosts took {took:?} to start");
    let devices: Vec<Device> = connected.iter().map(processor).collect();
    let items: Vec<Item> = (0..20_000u32).map(|number| [number; WORDS]).collect();
    let pool = Pool::builder().devices(&devices).keep_history_at(None).build()?;
    let task = KernelTask::<Item, Item>::new(&add(5, 500));
    let run = pool.job(&task).all_devices().map(&items)?;
    ensure!(run.results().iter().zip(&items).all(|(it, item)| it[0] == item[0] + 5), "a wrong result");
    let idle: Vec<&str> =
        run.report().devices.iter().filter(|it| it.items == 0).map(|it| it.id.as_str()).collect();
    ensure!(idle.is_empty(), "these did nothing: {idle:?}\n{}", run.report());
    Ok(())
}

fn trace() -> Outcome {
    let there = connected()?;
    let pool = Pool::builder().devices([local(), there.device.clone()]).keep_history_at(None).build()?;
    let task = KernelTask::<Item, Item>::new(&add(5, 100));
    let start = Instant::now();
    let run: Result<_, RunError> = pool.job(&task).all_devices().trace().map(&items());
    let (run, most) = (run?, start.elapsed());
    let trace = run.trace();
    let rows = trace.lanes.iter().filter(|lane| *lane == "there/cpu").count();
    ensure!(rows == 1, "{rows} rows of the remote device: {:?}", trace.lanes);
    let spans = trace.spans.iter().filter(|span| trace.lanes[span.lane] == "there/cpu");
    let spans: Vec<_> = spans.collect();
    ensure!(spans.iter().any(|span| span.accepted > 0), "the remote device did nothing");
    // They are on the clock of this machine, whatever the other one's says.
    ensure!(spans.iter().all(|span| span.from <= span.until && span.until <= most), "{spans:?}");
    Ok(())
}

task_fn! {
    /// The number of the process that computes the item, and an entry of a table.
    fn looked_up(item: &u32, table: Vec<u32>) -> [u32; 2] {
        [std::process::id(), table[*item as usize % table.len()]]
    }
}

fn function() -> Outcome {
    let there = connected()?;
    let items: Vec<u32> = (0..1000).collect();
    let pool = Pool::builder().devices([&there.device]).keep_history_at(None).build()?;
    let run = pool.map(&looked_up(vec![7, 8, 9]), &items)?;
    for (item, [process, entry]) in items.iter().zip(run.results()) {
        ensure!(*process == there.process, "item {item} was computed by another process");
        ensure!(*entry == 7 + item % 3, "item {item}: {entry}");
    }
    Ok(())
}
