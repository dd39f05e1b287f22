//! Somebody else who uses a device's cores.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

use evener_device::Device;

/// Threads that keep the cores of a part of the processor busy until this is dropped: what works on them has to share.
pub(super) struct Neighbour {
    leaves: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Neighbour {
    /// Moves in on a device's cores.
    pub(super) fn on(device: &Device) -> Neighbour {
        let leaves = Arc::new(AtomicBool::new(false));
        let cores = device.describe().compute_units.unwrap_or(1) as usize;
        let threads = (0..cores).map(|core| {
            let (device, leaves) = (device.clone(), leaves.clone());
            std::thread::spawn(move || {
                device.bind_thread(core);
                while !leaves.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        });
        Neighbour { threads: threads.collect(), leaves }
    }
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.leaves.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // It has nothing to panic over.
            let _ = thread.join();
        }
    }
}
