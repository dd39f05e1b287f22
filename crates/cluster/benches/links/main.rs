//! What a link costs, over real `ssh` on loopback and over a far link, against what `ssh`, the devices and the link can do:
//!
//! `cargo bench -p evener-cluster --bench links --no-default-features [-- connection|merkle|far]`
//!
//! Starts SSH servers of its own (`scripts/cluster/sshd`), whose workers are this program. `far` makes network namespaces
//! with a slow link between them (`scripts/cluster/netns`), and needs root.
#![allow(missing_docs, clippy::print_stdout)]

mod connection;
mod far;
mod merkle;
mod rig;

use evener_cluster::worker;
use evener_device::{Device, remote::RemoteHost};

use rig::Servers;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    worker::serve_if_asked();
    let parts: Vec<String> = std::env::args().skip(1).filter(|it| !it.starts_with("--")).collect();
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|it| it == part);
    println!("{} cores, {}", std::thread::available_parallelism()?, Device::cpu().describe().name);
    if wants("connection") || wants("merkle") {
        let servers = Servers::start(None)?;
        if wants("connection") {
            connection::bench(&servers)?;
        }
        if wants("merkle") {
            merkle::bench(&servers)?;
        }
    }
    if wants("far") {
        far::bench()?;
    }
    Ok(())
}

/// The processor of a host.
fn processor(host: &RemoteHost) -> Result<Device> {
    let id = format!("{}/cpu", host.name());
    let found = host.devices().iter().find(|device| device.id().as_str() == id);
    Ok(found.ok_or("the host does not list its processor")?.clone())
}

/// Returns the same random bytes every time. They cannot be compressed.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut noise = vec![0; bytes];
    for eight in noise.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        eight.copy_from_slice(&state.to_le_bytes()[..eight.len()]);
    }
    noise
}
