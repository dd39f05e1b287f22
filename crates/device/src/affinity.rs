//! The cores that a thread may run on.
//!
//! A new thread inherits the affinity of the thread that starts it. Evener binds threads to the cores of a partition, and
//! the user's code on such a thread may start other threads: those of another pool, a device or a copy. So a bound thread
//! remembers its previous cores, and Evener starts threads from it with these.

use core_affinity::CoreId;

#[cfg(target_os = "linux")]
mod linux {
    use std::cell::Cell;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    thread_local! {
        /// The cores of this thread before it was bound; `None` if it is not bound.
        static BEFORE: Cell<Option<CpuSet>> = const { Cell::new(None) };
    }

    pub(super) fn remember() {
        // A thread that is bound again keeps the cores from before the first time.
        let _ = BEFORE.try_with(|before| {
            if before.get().is_none() {
                before.set(sched_getaffinity(None).ok());
            }
        });
    }

    /// Restores an affinity when dropped.
    pub(super) struct Restore(CpuSet);

    pub(super) fn unbind() -> Option<Restore> {
        // The thread-local value may be gone already when the thread ends.
        let before = BEFORE.try_with(Cell::get).ok().flatten()?;
        let now = sched_getaffinity(None).ok()?;
        sched_setaffinity(None, &before).ok()?;
        Some(Restore(now))
    }

    impl Drop for Restore {
        fn drop(&mut self) {
            if let Err(why) = sched_setaffinity(None, &self.0) {
                tracing::warn!("a thread is no longer bound to its core: {why}");
            }
        }
    }
}

/// Binds the calling thread to a core.
pub(crate) fn bind(core: CoreId) {
    #[cfg(target_os = "linux")]
    linux::remember();
    core_affinity::set_for_current(core);
}

/// Runs a function on the calling thread with the cores that the thread had before Evener bound it: threads that the function
/// starts inherit these cores, and calls that count the cores count them.
pub fn unbound<R>(run: impl FnOnce() -> R) -> R {
    #[cfg(target_os = "linux")]
    let _bound_again = linux::unbind();
    run()
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod test {
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
        std::thread::scope(|scope| {
            scope.spawn(|| {
                parts[0].bind_thread(0);
                assert!(own().parse::<usize>().is_ok(), "{}", own());
                test(all);
            });
        });
    }

    #[test]
    fn a_bound_thread_splits_all_the_cores_and_stays_bound() {
        let cores = core_affinity::get_core_ids().unwrap().len() as u32;
        on_a_bound_thread(|_| {
            let bound = own();
            assert_eq!(Device::cpu().split(&[cores]).unwrap()[0].describe().compute_units, Some(cores));
            assert_eq!(Device::cpu().describe().compute_units, Some(cores));
            assert_eq!(own(), bound);
        });
    }

    #[test]
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
    fn threads_started_by_a_bound_thread_have_all_the_cores() {
        on_a_bound_thread(|all| {
            // Threads of a device: its stream's, and the rayon threads that run a body.
            let device = Device::cpu().reopened();
            let expected = all.clone();
            let kernel = Kernel::new("places").writes::<u32>().rust(move |_| {
                let places: BTreeSet<String> = rayon::broadcast(|_| own()).into_iter().collect();
                if places.iter().all(|place| *place == expected) {
                    return Ok(());
                }
                Err(format!("threads on {places:?}").into())
            });
            let mut stream = device.stream().unwrap();
            let buffer = device.buffer::<u32>(1).unwrap();
            let bound = device.compile(&kernel).unwrap().bind(&[buffer.arg()]).unwrap();
            stream.launch(&bound, 1, &()).unwrap();
            stream.wait().unwrap();
            // Helper threads of a copy, which another test may have started.
            copy_parallel(&vec![1u8; 8 << 20], &mut vec![0; 8 << 20]);
            let bound = own();
            for thread in std::fs::read_dir("/proc/self/task").unwrap() {
                let path = thread.unwrap().path();
                let Ok(name) = std::fs::read_to_string(path.join("comm")) else { continue };
                if ["evener-copy-", "evener-cpu-stre"].iter().any(|prefix| name.starts_with(prefix)) {
                    let id = path.file_name().unwrap().to_str().unwrap();
                    assert_ne!(allowed(&format!("self/task/{id}")), bound, "{name}");
                }
            }
        });
    }
}
