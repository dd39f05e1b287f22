//! Each fault at each operation.

use std::{
    fmt,
    time::{Duration, Instant},
};

use evener_device::{
    Device, Inventory,
    testing::{Fault, Faults, InjectedError},
};
use evener_schedule::{DeviceReport, Mapped, RunError};

use crate::common::{
    Faulty, Rng, Scramble, assert_counted_once, assert_possible, card, cores, done_of, numbers, scramble,
    within,
};

const ITEMS: u32 = 400;
/// Limit of a run of so few items: a longer one has hung.
const LIMIT: Duration = Duration::from_secs(20);

/// Every fault there is.
pub(crate) fn every_fault() -> impl Iterator<Item = Fault> {
    InjectedError::ALL.into_iter().map(Fault::Fail).chain([Fault::Hang, Fault::Corrupt])
}

/// The faults of a run.
#[derive(Clone)]
struct Case {
    devices: Vec<Device>,
    /// The device, its operation and the fault.
    plan: Vec<(usize, u64, Fault)>,
    /// The user's time limit of a chunk.
    chunk_limit: Option<Duration>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.devices.iter().map(|device| device.id().as_str()).collect();
        write!(f, "on {}", ids.join(", "))?;
        for (device, operation, fault) in &self.plan {
            write!(f, "; {fault:?} in operation {operation} of {}", ids[*device])?;
        }
        Ok(())
    }
}

impl Case {
    /// Runs it twice, so that the second run follows a fault. Returns the number of operations of each device.
    fn run(self) -> Vec<u64> {
        let name = self.to_string();
        within(LIMIT, &name, move || {
            let faulty = Faulty::new(&self.devices);
            for &(device, operation, fault) in &self.plan {
                faulty.faults[device].at(operation, fault);
            }
            let mut job = faulty.job(&Scramble::new());
            if let Some(limit) = self.chunk_limit {
                job = job.chunk_limit(limit);
            }
            let items = numbers(ITEMS);
            self.judge(&items, job.map(&items));
            let operations = faulty.faults.iter().map(Faults::operations).collect();
            faulty.wait_until_idle();
            // A fault that the first run did not reach may come now.
            self.judge(&items, job.map(&items));
            faulty.wait_until_idle();
            operations
        })
    }

    /// Asserts that the results are those of a plain loop, or that the faults explain the error.
    fn judge(&self, items: &[u32], outcome: Result<Mapped<u32>, RunError>) {
        match outcome {
            Ok(run) => {
                let plain: Vec<u32> = items.iter().map(|&item| scramble(item)).collect();
                assert_eq!(run.results(), plain, "wrong results {self}");
                assert_counted_once(run.report(), items.len());
                if self.plan.is_empty() {
                    let well =
                        |device: &DeviceReport| (device.state.as_str(), device.retries) == ("healthy", 0);
                    assert!(
                        run.report().devices.iter().all(well),
                        "nothing went wrong, and yet:\n{}",
                        run.report()
                    );
                }
            }
            Err(RunError::Task { items: failed, error }) => {
                assert!(self.has(Fault::Fail(InjectedError::Task)), "{error} {self}");
                assert!(failed.start < failed.end && failed.end <= items.len() as u64, "{failed:?} {self}");
            }
            Err(error) => {
                assert!(matches!(error, RunError::NoDeviceLeft { .. }), "{error} {self}");
                let broken =
                    (0..self.devices.len()).filter(|it| self.plan.iter().any(|fault| fault.0 == *it));
                assert_eq!(broken.count(), self.devices.len(), "a device is well, and yet: {error}\n{self}");
                assert_possible(done_of(&error).unwrap(), items.len());
            }
        }
    }

    fn has(&self, fault: Fault) -> bool {
        self.plan.iter().any(|planned| planned.2 == fault)
    }
}

/// A device that shares a run does more operations than this.
const ENOUGH_OPERATIONS: u64 = 10;

/// The largest number of operations of each device in a run without faults. A device that takes long to open may get no
/// items in some runs, so there are more runs until every device has some.
fn operations_of(devices: &[Device]) -> Vec<u64> {
    let clean = || Case { devices: devices.to_vec(), plan: Vec::new(), chunk_limit: None }.run();
    let mut most = vec![0; devices.len()];
    for run in 0..50 {
        most.iter_mut().zip(clean()).for_each(|(most, operations)| *most = operations.max(*most));
        if run >= 4 && most.iter().all(|&most| most > ENOUGH_OPERATIONS) {
            break;
        }
    }
    most
}

/// Every fault, at every operation of every device, one at a time.
fn every_single_fault(devices: &[Device]) {
    let start = Instant::now();
    let operations = operations_of(devices);
    let mut cases = 0;
    for (device, &count) in operations.iter().enumerate() {
        assert!(count > ENOUGH_OPERATIONS, "a run has more than {count} operations");
        for operation in 1..=count {
            for fault in every_fault() {
                let plan = vec![(device, operation, fault)];
                Case { devices: devices.to_vec(), plan, chunk_limit: None }.run();
                cases += 1;
            }
        }
    }
    eprintln!("{cases} cases over {operations:?} operations, {:.1} s", start.elapsed().as_secs_f64());
}

/// Faults on two devices at once, `count` times. If no device may be left that has ever finished a chunk, only the
/// user's limit tells that the last one hangs.
fn some_double_faults(devices: &[Device], count: usize, seed: u64) {
    let start = Instant::now();
    let operations = operations_of(devices);
    let faults: Vec<Fault> = every_fault().collect();
    let mut rng = Rng(seed);
    for _ in 0..count {
        let first = rng.below(devices.len());
        let second = (first + 1 + rng.below(devices.len() - 1)) % devices.len();
        let mut fault =
            |device: usize| (device, 1 + rng.next() % operations[device], faults[rng.below(faults.len())]);
        let plan = vec![fault(first), fault(second)];
        let chunk_limit = Some(Duration::from_millis(800));
        Case { devices: devices.to_vec(), plan, chunk_limit }.run();
    }
    eprintln!("{count} cases, seed {seed}, {:.1} s", start.elapsed().as_secs_f64());
}

#[test]
fn two_processors_survive_every_fault_of_either() {
    every_single_fault(&[cores("cpu/a", 2), cores("cpu/b", 1)]);
}

#[test]
fn a_card_and_a_processor_survive_every_fault_of_either() {
    every_single_fault(&[card("card:0"), cores("cpu", 1)]);
}

#[test]
fn three_devices_survive_every_fault_of_any() {
    every_single_fault(&[card("card:0"), card("card:1"), cores("cpu", 1)]);
}

#[test]
fn faults_of_two_devices_at_once_leave_the_results_or_a_justified_error() {
    some_double_faults(&[card("card:0"), cores("cpu", 2)], 60, 1);
    some_double_faults(&[card("card:0"), card("card:1"), cores("cpu", 1)], 60, 2);
}

#[test]
#[ignore = "needs a Vulkan device"]
fn a_card_with_vulkan_and_a_processor_survive_every_fault_of_either() {
    let inventory = Inventory::discover_all_apis();
    let mut devices = inventory.devices().iter();
    let vulkan =
        devices.find(|device| device.id().as_str().starts_with("vulkan:")).expect("no Vulkan device");
    every_single_fault(&[vulkan.clone(), cores("cpu", 1)]);
}
