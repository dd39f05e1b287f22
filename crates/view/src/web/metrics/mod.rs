//! Metrics for Prometheus.
//!
//! A run is not a label: there may be thousands a second. What is shown belongs to a task, and adds up its runs. Counters
//! include runs that have ended ([`Program::totals`](crate::state::Program::totals)), so they never fall while the program
//! lives. The number of time series is bounded: [`MAX_PROGRAMS`] programs, 64 tasks each, and [`MAX_DEVICES`] devices of all
//! tasks; what is beyond is summed under the name `other`.

mod program;
#[cfg(test)]
mod test;
mod text;

pub(super) use self::text::Format;
use self::{
    program::Tasks,
    text::{Family, Kind, labels},
};
use crate::{hardware::DeviceHardware, state::Program};

/// Maximum programs.
const MAX_PROGRAMS: usize = 64;
/// Maximum devices of all tasks of all programs.
const MAX_DEVICES: usize = 2_048;
/// Maximum devices of the hardware.
const MAX_HARDWARE: usize = 1_024;

/// The metrics of some programs and of the hardware.
#[derive(Debug, Default)]
pub(super) struct Metrics {
    programs: usize,
    devices: usize,
    families: Vec<Family>,
}

impl Metrics {
    /// Adds a sample to a family, which is made if it is not there.
    fn add(&mut self, definition: &Definition, labels: &str, value: f64) {
        let family = match self.families.iter().position(|family| family.name == definition.0) {
            Some(index) => &mut self.families[index],
            None => {
                let &(name, kind, unit, help) = definition;
                self.families.push(Family { name, kind, unit, help, samples: Vec::new() });
                let last = self.families.len() - 1;
                &mut self.families[last]
            }
        };
        family.samples.push((labels.to_owned(), value));
    }

    fn add_if(&mut self, definition: &Definition, labels: &str, value: Option<f64>) {
        if let Some(value) = value {
            self.add(definition, labels, value);
        }
    }

    /// Adds a program: its runs, queues and devices.
    pub(super) fn add_program(&mut self, program: &Program) {
        if self.programs >= MAX_PROGRAMS {
            return;
        }
        self.programs += 1;
        let pid = program.pid.to_string();
        let of_program = [("pid", pid.as_str()), ("program", program.name.as_str())];
        self.add(&EVENTS_LOST, &labels(&of_program), program.lost_events as f64);
        let mut room = MAX_DEVICES.saturating_sub(self.devices);
        let tasks = Tasks::of(program, &mut room);
        self.devices = MAX_DEVICES - room;
        for (name, task) in &tasks.by_name {
            let of_task = [of_program[0], of_program[1], ("task", name.as_str())];
            task.add_to(self, &of_task);
        }
    }

    /// Adds the hardware's counters.
    pub(super) fn add_hardware(&mut self, devices: &[DeviceHardware]) {
        for device in devices.iter().take(MAX_HARDWARE) {
            let (id, kind) = (device.id.to_string(), device.kind.to_string());
            let of_device = labels(&[("device", &id), ("name", &device.name), ("kind", &kind)]);
            let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
            self.add_if(&HARDWARE_UTILIZATION, &of_device, device.utilization);
            self.add_if(&HARDWARE_MEMORY, &of_device, bytes(device.memory_bytes));
            self.add_if(&HARDWARE_MEMORY_FREE, &of_device, bytes(device.memory_free_bytes));
            self.add_if(&HARDWARE_TEMPERATURE, &of_device, device.temperature_celsius);
            self.add_if(&HARDWARE_POWER, &of_device, device.power_watts);
        }
    }

    /// Adds what the server itself does.
    pub(super) fn add_server(&mut self, connections: usize, refused: usize) {
        self.add(&BUILD, &labels(&[("version", env!("CARGO_PKG_VERSION"))]), 1.0);
        self.add(&PROGRAMS, "", self.programs as f64);
        self.add(&SERVER_CONNECTIONS, "", connections as f64);
        self.add(&SERVER_REFUSED, "", refused as f64);
    }
}

/// Name, kind, unit and help of a family. The name has the unit at its end, and not the `_total` of a counter.
type Definition = (&'static str, Kind, &'static str, &'static str);

macro_rules! families {
    ($($constant:ident: $name:literal $kind:ident $unit:literal $help:literal;)*) => {
        $(const $constant: Definition = ($name, Kind::$kind, $unit, $help);)*
    };
}

families! {
    BUILD: "evener_build" Info "" "The version of Evener that answers.";
    PROGRAMS: "evener_programs" Gauge "" "Programs whose runs are shown.";
    SERVER_CONNECTIONS: "evener_server_connections" Gauge "" "Open connections to this server.";
    SERVER_REFUSED: "evener_server_connections_refused" Counter "" "Connections that were refused, or closed for others, because there were too many.";
    EVENTS_LOST: "evener_events_lost" Counter "" "Events that were lost because the program wrote them faster than they were read.";

    RUNS_ACTIVE: "evener_runs_active" Gauge "" "Runs and queues that have not ended.";
    RUNS_ENDED: "evener_runs_ended" Counter "" "Runs and queues that have ended, by result: ok or error.";
    RUN_ITEMS: "evener_run_items" Gauge "" "Items of the runs that have not ended, where their number is known.";
    RUN_DONE: "evener_run_items_done" Gauge "" "Items that are done of the runs that have not ended.";
    RUN_PROGRESS: "evener_run_progress_ratio" Gauge "ratio" "Items that are done divided by all items, of the runs that have not ended.";
    RUN_RATE: "evener_run_items_per_second" Gauge "" "Items per second since the beginning of the runs that have not ended.";
    RUN_ELAPSED: "evener_run_elapsed_seconds" Gauge "seconds" "Time since the oldest run began that has not ended.";
    RUN_REMAINING: "evener_run_remaining_seconds" Gauge "seconds" "Estimated time until the last run ends.";
    RUN_EFFICIENCY: "evener_run_efficiency_ratio" Gauge "ratio" "Ideal time divided by real time so far: the lowest of the runs that have not ended.";
    RUN_BOUND: "evener_run_efficiency_bound_ratio" Gauge "ratio" "Guaranteed efficiency, once every item is handed out: the lowest of the runs that have not ended.";
    LAST_EFFICIENCY: "evener_last_run_efficiency_ratio" Gauge "ratio" "Efficiency of the last run that has ended.";
    LAST_BOUND: "evener_last_run_efficiency_bound_ratio" Gauge "ratio" "Guaranteed efficiency of the last run that has ended.";
    LAST_TIME: "evener_last_run_duration_seconds" Gauge "seconds" "Duration of the last run that has ended.";

    QUEUE_LENGTH: "evener_queue_pieces_waiting" Gauge "" "Pieces that wait in queues.";
    QUEUE_OUTSTANDING: "evener_queue_pieces_outstanding" Gauge "" "Pieces of queues without a result: waiting or running.";
    QUEUE_SUBMITTED: "evener_queue_pieces_submitted" Counter "" "Pieces that were submitted to queues.";

    DEVICE_ITEMS: "evener_device_items" Counter "" "Items whose results were accepted from the device.";
    DEVICE_CHUNKS: "evener_device_chunks" Counter "" "Chunks that the device has finished.";
    DEVICE_BUSY: "evener_device_busy_seconds" Counter "seconds" "Time with a chunk in flight: the mean of the device's lanes.";
    DEVICE_RETRIES: "evener_device_retries" Counter "" "Chunks that failed on the device and were done again.";
    DEVICE_SPECULATIVE: "evener_device_speculative_copies" Counter "" "Speculative copies of slower devices' chunks whose results were accepted.";
    DEVICE_STEALS: "evener_device_steals" Counter "" "Chunks that the device stole.";
    DEVICE_DROPPED: "evener_device_chunks_dropped" Counter "" "Chunks whose results were dropped, because other devices delivered them first.";
    DEVICE_QUARANTINES: "evener_device_quarantines" Counter "" "How often the device was quarantined.";
    DEVICE_HANGS: "evener_device_hangs" Counter "" "How often the device was quarantined because a chunk had hung.";
    DEVICE_IN_HAND: "evener_device_items_in_hand" Gauge "" "Items that the device has in hand.";
    DEVICE_STATE: "evener_device_state" Gauge "" "1 for the state of the device in the runs that have not ended: healthy, quarantined or retired. The worst counts.";

    HARDWARE_UTILIZATION: "evener_hardware_utilization_ratio" Gauge "ratio" "Utilization by all programs.";
    HARDWARE_MEMORY: "evener_hardware_memory_bytes" Gauge "bytes" "Memory of the device.";
    HARDWARE_MEMORY_FREE: "evener_hardware_memory_free_bytes" Gauge "bytes" "Free memory of the device.";
    HARDWARE_TEMPERATURE: "evener_hardware_temperature_celsius" Gauge "celsius" "Temperature of the device.";
    HARDWARE_POWER: "evener_hardware_power_watts" Gauge "watts" "Power draw of the device.";
}
