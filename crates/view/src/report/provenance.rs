//! Where, when and by what a run was done.

use std::time::SystemTime;

use evener_device::{Description, Device, Inventory};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sysinfo::System;

use super::numbers::format_bytes;

/// Where, when and by what a run was done: what somebody needs to do it again.
///
/// It names no user and no host. The command line is as it was given, so it may have names of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of Evener.
    pub version: String,
    /// The program's arguments, its own name first.
    pub command: Vec<String>,
    /// When the report was made, in UTC, as ISO 8601 writes it.
    pub date: String,
    /// The operating system and its version.
    pub system: String,
    /// The version of the kernel.
    pub kernel: String,
    /// The processor's architecture.
    pub architecture: String,
    /// The processor.
    pub processor: Description,
    /// The other devices of the machine, whether they took part or not.
    pub devices: Vec<Description>,
    /// Back ends that are not available, and why.
    pub absent: Vec<String>,
}

impl Provenance {
    /// Describes this process and this machine, without its GPUs.
    pub fn of_process() -> Self {
        // An argument's name may be no path at all.
        let mut command: Vec<String> =
            std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
        if let Some(program) = command.first_mut() {
            *program = crate::live::program_name();
        }
        let date = Timestamp::try_from(SystemTime::now()).unwrap_or_default();
        Provenance {
            version: env!("CARGO_PKG_VERSION").into(),
            command,
            date: date.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
            system: System::long_os_version().unwrap_or_else(|_| std::env::consts::OS.into()),
            kernel: System::kernel_version().unwrap_or_default(),
            architecture: std::env::consts::ARCH.into(),
            processor: Device::cpu().describe().clone(),
            devices: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// Adds the devices of this machine. Finding them takes some time, and opens none of them.
    pub fn with_devices(mut self, inventory: &Inventory) -> Self {
        let described = inventory.devices().iter().map(Device::describe);
        self.devices = described.filter(|it| it.id != self.processor.id).cloned().collect();
        self.absent = inventory.absent().iter().map(ToString::to_string).collect();
        self
    }

    /// The command line as a shell would take it.
    pub(super) fn command_line(&self) -> String {
        let is_plain = |char: char| char.is_alphanumeric() || "-_=./:,+@%^".contains(char);
        let quoted = |argument: &String| match argument.is_empty() || !argument.chars().all(is_plain) {
            true => format!("'{}'", argument.replace('\'', "'\\''")),
            false => argument.clone(),
        };
        self.command.iter().map(quoted).collect::<Vec<_>>().join(" ")
    }
}

/// A device in words.
pub(super) fn describe(it: &Description) -> String {
    let units = it.compute_units.map(|units| format!("{units} compute units"));
    let memory = it.memory_bytes.map(format_bytes);
    let driver = Some(it.driver.clone()).filter(|driver| !driver.is_empty());
    let parts = [Some(it.kind.to_string()), units, memory, driver].into_iter().flatten();
    format!("{} ({})", it.name, parts.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_command_line_can_be_given_to_a_shell() {
        let mut provenance = Provenance::of_process();
        provenance.command =
            ["evener", "merkle", "my file", "--devices", "cpu[1,1]", "it's", ""].map(String::from).into();
        assert_eq!(provenance.command_line(), r"evener merkle 'my file' --devices 'cpu[1,1]' 'it'\''s' ''");
    }

    #[test]
    fn the_machine_is_described() {
        let provenance = Provenance::of_process();
        assert_eq!(provenance.date.len(), "2026-01-31 12:34:56Z".len(), "{}", provenance.date);
        assert!(!provenance.system.is_empty() && !provenance.processor.name.is_empty());
        let json = serde_json::to_string(&provenance).unwrap();
        assert_eq!(serde_json::from_str::<Provenance>(&json).unwrap(), provenance);
    }
}
