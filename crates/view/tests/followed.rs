//! A real run with a device that fails and comes back, seen from another process through the socket.
#![cfg(target_os = "linux")]

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use evener_device::{
    Description, Device, DeviceKind, Result,
    backend::{Backend, Source},
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{Closure, KernelParams, KernelTask, Pool, Report, RunError};
use evener_view::{
    Live,
    socket::{Programs, Server},
    state::{BarKind, DeviceState, Program, RunView},
};

/// The processor under another name, scheduled like a card.
#[derive(Debug)]
struct Renamed {
    description: Description,
    under: Arc<dyn Source>,
}

impl Source for Renamed {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        self.under.open()
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        self.under.split(sizes)
    }
}

fn card(id: &str) -> Device {
    let under = Device::cpu().source().clone();
    let mut description = Description { id: id.into(), ..under.describe().clone() };
    (description.kind, description.compute_units) = (DeviceKind::Discrete, Some(16));
    Device::from_source(Arc::new(Renamed { description, under }))
}

/// A kernel that takes about a microsecond an item.
fn slow() -> KernelTask<u32, u32> {
    KernelTask::new(
        &evener_device::Kernel::new("slow").reads::<u32>().writes::<u32>().params::<KernelParams>().rust(
            |launch| {
                let count = launch.params::<KernelParams>()?.count as usize;
                let (items, results) = (launch.read::<u32>(0)?, launch.write::<u32>(1)?);
                for (result, &item) in results[..count].iter_mut().zip(items) {
                    *result = (0..2_000)
                        .fold(item, |hash, step| hash.rotate_left(5).wrapping_mul(2_654_435_761) ^ step);
                }
                Ok(())
            },
        ),
    )
}

/// The role of this test program that is started again: it runs, with its socket in this folder.
const FOLDER: &str = "EVENER_TEST_VIEW_FOLDER";

/// The program that is looked at: waits for a view, runs with a device that is lost twice, prints its report, and then runs
/// until it is cancelled.
#[test]
#[ignore = "a program that the other test starts"]
fn program_that_is_looked_at() {
    let folder = std::env::var_os(FOLDER).unwrap();
    let server = Server::open_in(folder.as_ref(), Live::of_process().unwrap()).unwrap();
    let start = Instant::now();
    while server.views() == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "no view came");
        thread::sleep(Duration::from_millis(5));
    }
    let (failing, faults) = Faults::wrap(&card("a:0"));
    faults.at(30, Fault::Fail(InjectedError::Lost));
    faults.at(60, Fault::Fail(InjectedError::Lost));
    let pool = Pool::builder().devices([failing, card("b:0")]).keep_history_at(None).build().unwrap();
    let items: Vec<u32> = (0..1_000_000).collect();
    let run = pool.job(&slow()).all_devices().map(&items).unwrap();
    println!("REPORT {}", serde_json::to_string(run.report()).unwrap());
    let endless = Closure::new("endless", |_: &u32| thread::sleep(Duration::from_millis(2)));
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let ended = pool.job(&endless).deadline(Duration::from_secs(60)).for_each(&items);
    assert!(matches!(ended, Err(RunError::Cancelled { .. })), "{ended:?}");
    println!("CANCELLED");
}

/// Ends a program when the test ends, however it ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn wait_for<R>(what: &str, mut get: impl FnMut() -> Option<R>) -> R {
    let start = Instant::now();
    loop {
        if let Some(got) = get() {
            return got;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn assert_agrees(run: &RunView, report: &Report) {
    assert_eq!((run.summary.done, run.summary.items), (report.done, Some(report.items)));
    assert_eq!(run.devices.len(), report.devices.len());
    for (device, expected) in run.devices.iter().zip(&report.devices) {
        let it = &device.totals;
        let seen = [it.items, it.chunks, it.retries, it.speculative, it.steals, it.dropped, it.quarantines];
        let told = [
            expected.items,
            expected.chunks,
            expected.retries,
            expected.speculative,
            expected.steals,
            expected.dropped,
            expected.quarantines,
        ];
        assert_eq!((&device.id, seen), (&expected.id, told), "{report}");
        assert_eq!(it.state == DeviceState::Healthy, expected.state == "healthy");
    }
    let close = |a: Option<f64>, b: Option<f64>| a.zip(b).is_some_and(|(a, b)| (a - b).abs() < 1e-9);
    assert!(close(run.summary.efficiency, report.efficiency) && close(run.summary.bound, report.bound));
}

#[test]
fn a_device_that_fails_and_comes_back_is_seen_from_another_process_as_the_report_has_it() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    let program = Command::new(std::env::current_exe().unwrap())
        .args(["program_that_is_looked_at", "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut program = Ended(program);
    let mut programs = Programs::in_folder(folder.path()).unwrap();
    let connection = wait_for("the program is found", || {
        programs.refresh().unwrap();
        programs.connection(program.0.id()).cloned()
    });

    // While it runs: progress, rates, and what the lanes have in hand.
    let mut saw_in_hand = false;
    let mut saw_quarantine = false;
    let seen: Program = wait_for("the run ends", || {
        assert!(!connection.is_closed(), "the program has ended too early");
        connection.with_program(|program| {
            for run in program.active().filter(|run| run.summary.task == "slow") {
                saw_in_hand |= run.devices.iter().any(|device| device.totals.in_hand > 0);
                let is_quarantined = |device: &evener_view::state::DeviceView| {
                    matches!(device.totals.state, DeviceState::Quarantined { .. })
                };
                saw_quarantine |= run.devices.iter().any(is_quarantined);
            }
            let has_ended = program.past.iter().any(|run| run.summary.task == "slow");
            has_ended.then(|| program.clone())
        })
    });
    assert!(saw_in_hand, "it was not seen at work");
    assert_eq!(seen.lost_events, 0);
    let past = seen.past.iter().find(|run| run.summary.task == "slow").unwrap();
    let (report, run) = (past.report.clone().unwrap(), seen.run(past.summary.id).unwrap());
    assert!(report.devices[0].quarantines >= 1 && report.devices[0].state == "healthy", "{report}");
    assert_agrees(run, &report);
    // The last bars of a long run may not have the failures any more; the log has them in words.
    let failures = run.devices[0].lanes[0].bars.iter().filter(|bar| bar.kind == BarKind::Failure).count();
    assert!(failures as u64 <= report.devices[0].retries + report.devices[0].quarantines);
    let line = |text: &str| seen.log.iter().any(|line| line.text.contains(text));
    assert!(line("a:0 quarantined for") && line("a:0 is back") && line("slow done in"), "{:#?}", seen.log);

    // The second run is cancelled from here.
    let run = wait_for("the endless run is seen", || {
        connection.with_program(|program| {
            program.active().find(|run| run.summary.task == "endless").map(|run| run.summary.id)
        })
    });
    assert!(!connection.cancel(run + 1_000).unwrap());
    assert!(connection.cancel(run).unwrap());
    let output = wait_for("the program ends", || program.0.try_wait().unwrap());
    assert!(output.success());
    let mut printed = String::new();
    std::io::Read::read_to_string(program.0.stdout.as_mut().unwrap(), &mut printed).unwrap();
    let told = printed.lines().find_map(|line| line.split_once("REPORT ")).unwrap().1;
    let told: Report = serde_json::from_str(told).unwrap();
    assert_eq!((told.devices.len(), told.done), (2, report.done));
    assert_agrees(seen.run(past.summary.id).unwrap(), &told);
    assert!(printed.contains("CANCELLED"), "{printed}");
    println!("quarantine seen while it lasted: {saw_quarantine}");
}
