//! What it costs a run to be watched: `cargo bench -p evener-view --bench watched`.
//!
//! The workloads of the benchmark `overhead` of `evener-schedule`, turn by turn in one process: with nobody looking, and with
//! the events folded, a client as a web page is (all updates as JSON, ten times a second) and a client of the socket as
//! `evener top` is. What nobody looking costs against a scheduler without events, `scripts/view/overhead` measures.
//!
//! With the argument `scale`: the processor time and the memory of the views of a thousand devices and a million chunks,
//! which the simulator plays in real time.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used)]

#[cfg(not(unix))]
fn main() {
    println!("skipped: sockets of programs need Unix");
}

#[cfg(unix)]
fn main() {
    if std::env::args().any(|argument| argument == "scale") {
        unix::scale();
    } else {
        unix::cost();
    }
}

#[cfg(unix)]
mod unix {
    use std::{
        sync::{
            Arc,
            atomic::{
                AtomicBool, AtomicU64,
                Ordering::{Relaxed, SeqCst},
            },
        },
        thread::{self, JoinHandle},
        time::{Duration, Instant},
    };

    use evener_device::Device;
    use evener_schedule::{
        Closure, Pool, Settings, Strategy,
        events::RunEvents,
        sim::{RealTime, Scenario, simulate_followed},
    };
    use evener_view::{
        Live,
        socket::{Connection, Server},
        state::{Program, Update},
    };

    /// A page and `top`, as long as it lives.
    struct Watchers {
        _server: Server,
        _folder: tempfile::TempDir,
        is_ending: Arc<AtomicBool>,
        threads: Vec<JoinHandle<()>>,
        bytes: Arc<AtomicU64>,
        updates: Arc<AtomicU64>,
    }

    impl Watchers {
        fn begin() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let live = Live::of_process().unwrap();
            let server = Server::open_in(&folder.path().join("sockets"), live.clone()).unwrap();
            let connection = Connection::open(server.path()).unwrap();
            let is_ending = Arc::new(AtomicBool::new(false));
            let (bytes, updates) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
            let page = {
                let (is_ending, bytes, updates) = (is_ending.clone(), bytes.clone(), updates.clone());
                thread::spawn(move || {
                    let mut version = None;
                    while !is_ending.load(SeqCst) {
                        if let Some(update) = live.wait_for_update(version, Duration::from_millis(100)) {
                            version = Some(update.version());
                            let json = match update {
                                Update::Snapshot(program) => serde_json::to_string(&program),
                                Update::Delta(delta) => serde_json::to_string(&delta),
                            };
                            bytes.fetch_add(json.unwrap().len() as u64, Relaxed);
                            updates.fetch_add(1, Relaxed);
                        }
                        thread::sleep(Duration::from_millis(100));
                    }
                })
            };
            let top = {
                let is_ending = is_ending.clone();
                thread::spawn(move || {
                    while !is_ending.load(SeqCst) {
                        let shown = |program: &Program| {
                            program.runs.iter().map(|run| run.devices.len()).sum::<usize>()
                        };
                        std::hint::black_box(connection.with_program(shown));
                        thread::sleep(Duration::from_millis(250));
                    }
                })
            };
            Watchers { _server: server, _folder: folder, is_ending, threads: vec![page, top], bytes, updates }
        }
    }

    impl Drop for Watchers {
        fn drop(&mut self) {
            self.is_ending.store(true, SeqCst);
            self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        }
    }

    fn load() -> String {
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        text.split(' ').next().unwrap_or("unknown").to_owned()
    }

    pub(super) fn cost() {
        let rounds = std::env::var("ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(30);
        let cpu = Device::cpu();
        let cores = cpu.describe().compute_units.unwrap_or(0);
        println!("{}, {cores} cores, load {} at the start", cpu.describe().name, load());
        let pool = Pool::builder().devices([&cpu]).keep_history_at(None).build().unwrap();
        let items: Vec<u64> = (0..1_000_000).collect();
        let task = Closure::new("trivial", |&item: &u64| item.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7);
        let single = Settings { max_items: Some(1), ..Settings::default() };
        let small = Settings { max_items: Some(64), max_time_floor: Duration::ZERO, ..Settings::default() };
        for (name, settings, items) in [
            ("a million trivial items", Settings::default(), &items[..]),
            ("100,000 chunks of one item", single, &items[..100_000]),
            ("a million items in chunks of at most 64", small, &items[..]),
        ] {
            let job = pool.job(&task).settings(settings);
            // A turn lasts long enough that a page gets several updates.
            let turn = || {
                let (start, mut maps) = (Instant::now(), 0);
                while start.elapsed() < Duration::from_millis(500) {
                    assert_eq!(job.map(items).unwrap().results().len(), items.len());
                    maps += 1;
                }
                start.elapsed().as_secs_f64() / f64::from(maps)
            };
            let mut times = [Vec::new(), Vec::new()];
            for round in 0..rounds {
                for which in [round % 2, 1 - round % 2] {
                    let watchers = (which == 1).then(Watchers::begin);
                    times[which].push(turn());
                    drop(watchers);
                }
            }
            let mut ratios: Vec<f64> =
                times[0].iter().zip(&times[1]).map(|(alone, watched)| watched / alone).collect();
            let quartile = |times: &Vec<f64>, part: usize| {
                let mut times = times.clone();
                times.sort_by(f64::total_cmp);
                times[times.len() * part / 4]
            };
            ratios.sort_by(f64::total_cmp);
            println!(
                "{name}: {:.3} ms with nobody looking, {:.3} ms with a page and top (medians); \
                 ratio {:.4} of lower quartiles, {:.4} of pairs",
                1e3 * quartile(&times[0], 2),
                1e3 * quartile(&times[1], 2),
                quartile(&times[1], 1) / quartile(&times[0], 1),
                ratios[ratios.len() / 2]
            );
        }
        println!("load {} at the end", load());
    }

    /// The processor time of this process so far, and its memory in MB.
    fn usage() -> (f64, f64) {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |index: usize| fields.get(index).and_then(|it| it.parse::<f64>().ok()).unwrap_or(0.0);
        let memory = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let memory = memory.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib: f64 = memory.trim().trim_end_matches(" kB").parse().unwrap_or(0.0);
        ((ticks(11) + ticks(12)) / 100.0, kib / 1024.0)
    }

    pub(super) fn scale() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/million-chunks.toml");
        let scenario = Scenario::from_toml(&std::fs::read_to_string(path).unwrap()).unwrap();
        let speed = std::env::var("SPEED").ok().and_then(|speed| speed.parse().ok()).unwrap_or(1.0);
        println!("load {} at the start", load());
        for is_watched in [false, true] {
            let watchers = is_watched.then(Watchers::begin);
            let (before, start) = (usage(), Instant::now());
            let mut real_time = RealTime::new(speed);
            let mut pace = |until| real_time.pass(until);
            let events = RunEvents::of_process(scenario.items);
            let run =
                simulate_followed(&scenario, Strategy::Adaptive, Settings::default(), events, &mut pace);
            let (after, took) = (usage(), start.elapsed().as_secs_f64());
            let chunks: u64 = run.report.devices.iter().map(|device| device.chunks).sum();
            println!(
                "{}: {chunks} chunks in {took:.1} s, {:.1} % of a core, {:.0} MB at the end",
                if is_watched { "with a page and top" } else { "with nobody looking" },
                100.0 * (after.0 - before.0) / took,
                after.1
            );
            if let Some(watchers) = &watchers {
                let (bytes, updates) = (watchers.bytes.load(Relaxed), watchers.updates.load(Relaxed));
                let lost = Live::of_process().unwrap().snapshot().lost_events;
                println!(
                    "  the page got {updates} updates of {:.0} kB on average; {lost} events were lost",
                    bytes as f64 / 1e3 / updates.max(1) as f64
                );
            }
        }
        println!("load {} at the end", load());
    }
}
