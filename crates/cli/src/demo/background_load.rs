//! Load on a device's cores, as another program would cause it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
};

use evener_device::Device;

/// Threads that keep the cores of a CPU partition busy until this is dropped.
pub(super) struct BackgroundLoad {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl BackgroundLoad {
    /// Starts one spinning thread on each of a device's cores.
    pub(super) fn start(device: &Device) -> BackgroundLoad {
        let stop = Arc::new(AtomicBool::new(false));
        let cores = device.describe().compute_units.unwrap_or(1) as usize;
        let threads = (0..cores).map(|core| {
            let (device, stop) = (device.clone(), stop.clone());
            std::thread::spawn(move || {
                device.bind_thread(core);
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            })
        });
        BackgroundLoad { threads: threads.collect(), stop }
    }
}

impl Drop for BackgroundLoad {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // The thread cannot panic.
            let _ = thread.join();
        }
    }
}
