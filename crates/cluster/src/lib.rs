//! Other machines: how does a worker get there, and how do their devices get here?
//!
//! A [`Host`] is a name and a [`Launcher`], which starts a worker and gives two pipes to it: [`Process`] on this machine,
//! [`Ssh`] on another one, [`Slurm`] on the nodes of a cluster, or one of your own. [`WithHosts::with_hosts`] adds the devices of hosts to an inventory, where
//! they are named `gpu-box/cuda:0` and work as any other. The protocol, and what happens when a connection is lost, is in
//! [`evener_device::remote`].
//!
//! Nothing listens on a port, and nothing stays on the other machine: a worker ends with its connection.
//!
//! ```no_run
//! use evener_cluster::{Host, WithHosts};
//! use evener_device::Inventory;
//!
//! let hosts = [Host::ssh("gpu-box")?, Host::ssh("alice@lab3:2222")?];
//! let inventory = Inventory::discover().with_hosts(&hosts);
//! for device in inventory.devices() {
//!     println!("{}", device.id()); // cuda:0, cpu, gpu-box/cuda:0, gpu-box/cpu, lab3/cpu …
//! }
//! for absent in inventory.absent() {
//!     println!("{absent}"); // for example: gpu-box: no answer within 10s
//! }
//! # Ok::<(), evener_cluster::HostError>(())
//! ```

mod host;
mod hosts;
mod launch;
mod link;
pub mod worker;

pub use host::{Host, HostError, WithHosts, connect_all, connect_or_await};
pub use hosts::{FILE_NAME, HOSTS_VARIABLE, Hosts, hosts_from_environment};
pub use launch::{ExpectedDevices, Launched, Launcher, Process, Program, Slurm, Ssh};
pub use link::Link;
