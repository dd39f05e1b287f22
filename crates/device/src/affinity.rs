//! The cores that a thread may run on, and its priority.
//!
//! A new thread inherits the affinity of the thread that starts it. Evener binds threads to the cores of a partition, and
//! the user's code on such a thread may start other threads: those of another pool, a device or a copy. So a bound thread
//! saves its previous cores, and Evener starts threads from it with these ([`unbound`]).
//!
//! | system | a thread of a partition |
//! | --- | --- |
//! | Linux, Android | is bound to its core, on machines with at most 1024 CPUs: the size of the CPU set that Evener uses |
//! | Windows | is bound to its core, one of the first 64; new threads do not inherit the binding |
//! | macOS | is not bound: on Intel its number is a hint for the scheduler, Apple silicon has no affinity |
//! | others | is not bound, because Evener could not undo the binding for the threads that it starts |
//!
//! Where a thread cannot be bound, the partition has as many threads as cores, and the system chooses their cores. A
//! warning says so, once for each partition.

use core_affinity::CoreId;

/// The number of CPUs in the CPU set that Evener uses on Linux. The system does not fill it on a machine with more.
pub(crate) const MAX_CPUS: usize = 1024;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod linux {
    use std::cell::Cell;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    thread_local! {
        /// The cores of this thread before Evener bound it; `None` if it is not bound.
        static CORES_BEFORE_BINDING: Cell<Option<CpuSet>> = const { Cell::new(None) };
    }

    /// Saves the cores of the calling thread, for [`unbind`], and then binds it. Fails if the system does not report the
    /// cores, or if `bind` returns false.
    pub(super) fn save_cores_and(bind: impl FnOnce() -> bool, refused: String) -> Result<(), String> {
        // A thread that is bound again keeps the cores from before the first time. The thread-local value may be gone
        // already when the thread ends.
        let outcome = CORES_BEFORE_BINDING.try_with(|saved| {
            let before = saved.get();
            if before.is_none() {
                let cores = sched_getaffinity(None)
                    .map_err(|why| format!("the system does not report the thread's cores: {why}"))?;
                saved.set(Some(cores));
            }
            let is_bound = bind();
            if !is_bound {
                saved.set(before);
            }
            is_bound.then_some(()).ok_or(refused)
        });
        outcome.unwrap_or_else(|_| Err("the thread is ending".into()))
    }

    /// Binds the calling thread again when dropped.
    pub(super) struct BindAgain(CpuSet);

    /// Gives a bound thread the cores that it had before. Returns `None` if it is not bound.
    pub(super) fn unbind() -> Option<BindAgain> {
        // The thread-local value may be gone already when the thread ends.
        let before = CORES_BEFORE_BINDING.try_with(Cell::get).ok().flatten()?;
        let now = sched_getaffinity(None).ok()?;
        sched_setaffinity(None, &before).ok()?;
        Some(BindAgain(now))
    }

    impl Drop for BindAgain {
        fn drop(&mut self) {
            if let Err(why) = sched_setaffinity(None, &self.0) {
                tracing::warn!("a thread is no longer bound to its core: {why}");
            }
        }
    }
}

/// Binds the calling thread to a core. Returns the reason if the system cannot.
pub(crate) fn bind(core: CoreId) -> Result<(), String> {
    let bind = || core_affinity::set_for_current(core);
    let refused = format!("the system refuses core {}", core.id);
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let outcome = linux::save_cores_and(bind, refused);
    #[cfg(windows)]
    let outcome = bind().then_some(()).ok_or(refused);
    #[cfg(target_os = "macos")]
    let outcome = {
        // A hint, if anything.
        bind();
        Err(format!("{refused}: macOS has no such binding"))
    };
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "macos", windows)))]
    let outcome = {
        let _ = (bind, refused);
        Err(format!("not possible on {}", std::env::consts::OS))
    };
    outcome
}

/// Runs a function on the calling thread with the cores that the thread had before Evener bound it: threads that the function
/// starts inherit these cores, and calls that count the cores count them.
pub fn unbound<R>(function: impl FnOnce() -> R) -> R {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let _bind_again = linux::unbind();
    function()
}

/// Lowers the priority of the calling thread, so that threads which feed other devices run at once when they have work.
/// Threads that it starts inherit the priority. Returns whether the system could: Linux and Android can.
pub fn lower_priority() -> bool {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let is_low = {
        use rustix::process::{getpriority_process, setpriority_process};
        /// With this niceness, a thread gets a tenth of a core for which another thread competes.
        const NICENESS: i32 = 10;
        // On Linux, niceness belongs to a thread, and no process means the calling thread.
        getpriority_process(None).is_ok_and(|now| now >= NICENESS)
            || setpriority_process(None, NICENESS).is_ok()
    };
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let is_low = false;
    is_low
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_thread_lowers_its_own_priority_and_no_other() {
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        let lowered = std::thread::spawn(move || (lower_priority(), niceness())).join().unwrap();
        assert_eq!(lowered, (true, before.max(10)));
        assert_eq!(niceness(), before);
    }

    #[test]
    fn a_thread_that_cannot_be_bound_gets_the_reason_and_keeps_its_cores() {
        // On a thread of its own, which alone has saved its cores.
        let (refused, cores) = std::thread::spawn(|| {
            let before = core_affinity::get_core_ids().unwrap();
            let refused = bind(CoreId { id: MAX_CPUS - 1 });
            assert_eq!(core_affinity::get_core_ids().unwrap(), before);
            // What the program changes later is not undone.
            core_affinity::set_for_current(before[0]);
            assert_eq!(unbound(core_affinity::get_core_ids).unwrap(), before[..1]);
            (refused, before)
        })
        .join()
        .unwrap();
        assert!(cores.iter().all(|core| core.id != MAX_CPUS - 1), "this machine has that core");
        assert_eq!(refused, Err("the system refuses core 1023".into()));
    }
}

/// Tests that can fail only if a thread may run on two cores at least. They are ignored by default.
#[cfg(target_os = "linux")]
#[cfg(test)]
mod with_two_cores {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{Device, Kernel, copy_parallel};

    /// The cores that a thread of this process may run on, as Linux writes them.
    fn allowed(thread: &str) -> String {
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    }

    fn own() -> String {
        allowed("thread-self")
    }

    /// Runs a test on a thread that is bound to one core. The test's argument is the cores of the calling thread.
    fn on_a_bound_thread(test: impl FnOnce(String) + Send) {
        let parts = Device::cpu().split(&[1]).unwrap();
        let all = own();
        assert!(all.parse::<usize>().is_err(), "only one core: {all}");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                parts[0].bind_thread(0);
                assert!(own().parse::<usize>().is_ok(), "{}", own());
                test(all);
            });
        });
    }

    #[test]
    #[ignore = "needs two cores"]
    fn a_bound_thread_splits_all_the_cores_and_stays_bound() {
        // Where a quota limits the device, these are fewer than the cores that a thread may run on.
        let cores = Device::cpu().describe().compute_units.unwrap();
        on_a_bound_thread(|_| {
            let bound = own();
            assert_eq!(Device::cpu().split(&[cores]).unwrap()[0].describe().compute_units, Some(cores));
            assert_eq!(own(), bound);
        });
    }

    #[test]
    #[ignore = "needs two cores"]
    fn a_thread_bound_twice_remembers_the_cores_before_the_first_time() {
        on_a_bound_thread(|all| {
            Device::cpu().split(&[1]).unwrap()[0].bind_thread(0);
            assert_eq!(unbound(own), all);
            // The end of a nested call does not bind the thread again.
            unbound(|| {
                unbound(|| ());
                assert_eq!(own(), all);
            });
        });
    }

    #[test]
    #[ignore = "needs two cores"]
    fn threads_started_by_a_bound_thread_have_all_the_cores() {
        on_a_bound_thread(|all| {
            // Threads of a device: its stream's, and the rayon threads that run a body.
            let device = Device::cpu().reopened();
            let expected = all.clone();
            let kernel = Kernel::new("cores").writes::<u32>().rust(move |_| {
                let found: BTreeSet<String> = rayon::broadcast(|_| own()).into_iter().collect();
                if found.iter().all(|cores| *cores == expected) {
                    return Ok(());
                }
                Err(format!("threads on {found:?}").into())
            });
            let mut stream = device.stream().unwrap();
            let buffer = device.buffer::<u32>(1).unwrap();
            let bound = device.compile(&kernel).unwrap().bind(&[buffer.arg()]).unwrap();
            stream.launch(&bound, 1, &()).unwrap();
            stream.wait().unwrap();
            // Threads of a copy, which another test may have started.
            copy_parallel(&vec![1u8; 8 << 20], &mut vec![0; 8 << 20]);
            for thread in std::fs::read_dir("/proc/self/task").unwrap() {
                let path = thread.unwrap().path();
                let Ok(name) = std::fs::read_to_string(path.join("comm")) else { continue };
                if ["evener-copy-", "evener-cpu-stre"].iter().any(|prefix| name.starts_with(prefix)) {
                    let id = path.file_name().unwrap().to_str().unwrap();
                    assert_eq!(allowed(&format!("self/task/{id}")), all, "{name}");
                }
            }
        });
    }
}
