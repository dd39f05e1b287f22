//! A Merkle root over two hosts, whose workers have a core each, against the same two cores as local devices; and whether a
//! pool leaves hosts out where the link is the limit.

use std::time::{Duration, Instant};

use evener_device::Device;
use evener_merkle::{Builder, Hash, Leaves, Rule, Scheme};
use evener_schedule::Pool;

use crate::{Result, processor, rig::Servers};

/// Turns of each pool, of which the lower quartile counts.
const TURNS: usize = 6;

/// Builds before a pool that chooses has learned what its devices are worth.
const LEARNING: usize = 20;

pub(crate) fn bench(servers: &Servers) -> Result<()> {
    let hosts = [servers.connect("host1", Some("0"))?, servers.connect("host2", Some("1"))?];
    let remote = [processor(&hosts[0])?, processor(&hosts[1])?];
    let local = Device::cpu().split(&[1, 1])?;
    println!(
        "\n| Merkle root over two hosts of a core each, lower quartile of {TURNS} | local | over ssh | ratio |"
    );
    println!("| --- | --- | --- | --- |");
    // Few bytes and much work, and a common tree, whose leaves go through `ssh` slower than a core hashes them.
    for (hash, leaf_bytes, count) in
        [(Hash::Keccak256, 4, 1 << 19), (Hash::Sha256, 4, 4 << 20), (Hash::Sha256, 32, 1 << 20)]
    {
        let bytes = crate::noise(leaf_bytes * count);
        let leaves = Leaves::fixed_size(&bytes, leaf_bytes)?;
        let [local, remote] = in_turns(hash, &leaves, [&local, &remote])?;
        let [l, r] = [local, remote].map(|time| time.as_secs_f64() * 1e3);
        let about = format!("{hash:?}, {} Ki leaves of {leaf_bytes} bytes", count >> 10);
        println!("| {about} | {l:.0} ms | {r:.0} ms | {:.3} |", r / l);
    }
    choice(&remote)
}

/// Builds the root with both sets of devices in turn.
fn in_turns(hash: Hash, leaves: &Leaves<'_>, sets: [&[Device]; 2]) -> Result<[Duration; 2]> {
    let scheme = Scheme::new(hash, Rule::Rfc6962)?;
    let builder = |devices: &[Device]| -> Result<Builder> {
        let pool = Pool::builder().devices(devices).keep_history_at(None).build()?;
        Ok(Builder::new(&pool).scheme(scheme).all_devices())
    };
    let builders = [builder(sets[0])?, builder(sets[1])?];
    let (mut times, mut roots) = ([Vec::new(), Vec::new()], Vec::new());
    for turn in 0..TURNS + 2 {
        for (builder, times) in builders.iter().zip(&mut times) {
            let start = Instant::now();
            let root = builder.root(leaves)?;
            // The first two open devices and measure their rates.
            if turn >= 2 {
                times.push(start.elapsed());
            }
            roots.push(*root.value());
        }
    }
    assert!(roots.iter().all(|root| *root == roots[0]), "the roots differ");
    Ok(times.map(|mut times| {
        times.sort();
        times[times.len() / 4]
    }))
}

/// Lets a pool choose between this machine's processor and the hosts.
fn choice(remote: &[Device]) -> Result<()> {
    let devices: Vec<Device> = [Device::cpu()].iter().chain(remote).cloned().collect();
    let pool = Pool::builder().devices(&devices).keep_history_at(None).build()?;
    let builder = Builder::new(&pool);
    let bytes = crate::noise(32 << 21);
    let leaves = Leaves::fixed_size(&bytes, 32)?;
    for _ in 0..LEARNING {
        builder.root(&leaves)?;
    }
    let built = builder.root(&leaves)?;
    println!("\nWhere the link is the limit (2 Mi leaves of 32 bytes), after {LEARNING} builds, a pool of");
    println!("the processor and both hosts:\n\n```text");
    println!("{}\n```", built.report().ok_or("no run")?);
    Ok(())
}
