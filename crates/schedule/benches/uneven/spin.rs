//! Another program that keeps one core busy.

use std::{
    io::Read,
    process::{Child, Command, Stdio},
    time::Duration,
};

use evener_device::Device;

/// A child process that spins on one core until this is dropped.
pub(crate) struct Spinner(Child);

impl Spinner {
    pub(crate) fn start(core: usize) -> Spinner {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let child = command.args(["spin", &core.to_string()]).stdin(Stdio::piped()).spawn().unwrap();
        // Waits until it spins.
        std::thread::sleep(Duration::from_millis(200));
        Spinner(child)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Spins on a core until the process that started this one is gone.
pub(crate) fn spin(core: usize) {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let parts = Device::cpu().split(&vec![1; core + 1]).unwrap();
    parts[core].bind_thread(0);
    loop {
        std::hint::spin_loop();
    }
}
