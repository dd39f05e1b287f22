//! Measures a million leaves on the CPU's cores.

use evener_device::Device;
use evener_merkle::{Builder, Hash, Leaves, Rule, Scheme};
use evener_schedule::Pool;
use rayon::prelude::*;
use rs_merkle::{Hasher, MerkleTree, algorithms};
use sha2::{Digest, Sha256};

use crate::{milliseconds, noise, turns};

const LEAVES: usize = 1_000_000;

fn leaf(leaf: &[u8; 32]) -> [u8; 32] {
    let mut message = [0; 33];
    message[1..].copy_from_slice(leaf);
    Sha256::digest(message).into()
}

fn node(pair: &[[u8; 32]]) -> [u8; 32] {
    let [left, right] = pair else { return pair[0] };
    let mut message = [1; 65];
    message[1..33].copy_from_slice(left);
    message[33..].copy_from_slice(right);
    Sha256::digest(message).into()
}

/// The straightforward loop with rayon and `sha2`: level by level, RFC 6962's rule.
fn with_rayon(leaves: &[[u8; 32]]) -> [u8; 32] {
    let mut level: Vec<[u8; 32]> = leaves.par_iter().map(leaf).collect();
    while level.len() > 1 {
        level = level.par_chunks(2).map(node).collect();
    }
    level[0]
}

/// The same loop with the rule of `rs_merkle`, whose messages have no prefix.
fn with_rayon_unprefixed(leaves: &[[u8; 32]], hash: impl Fn(&[u8]) -> [u8; 32] + Sync) -> [u8; 32] {
    let mut level: Vec<[u8; 32]> = leaves.par_iter().map(|leaf| hash(leaf)).collect();
    while level.len() > 1 {
        let node = |pair: &[[u8; 32]]| match pair.len() {
            1 => pair[0],
            _ => hash(pair.as_flattened()),
        };
        level = level.par_chunks(2).map(node).collect();
    }
    level[0]
}

/// SHA-256 with the current version of `sha2`, and with the one before.
fn now(message: &[u8]) -> [u8; 32] {
    Sha256::digest(message).into()
}

fn before(message: &[u8]) -> [u8; 32] {
    <sha2_before::Sha256 as sha2_before::Digest>::digest(message).into()
}

fn with_one_thread(leaves: &[[u8; 32]]) -> [u8; 32] {
    let mut level: Vec<[u8; 32]> = leaves.iter().map(leaf).collect();
    while level.len() > 1 {
        level = level.chunks(2).map(node).collect();
    }
    level[0]
}

/// `rs_merkle` with its own SHA-256, leaves hashed first, by its own rule.
fn with_rs_merkle(leaves: &[[u8; 32]]) -> [u8; 32] {
    let hashed: Vec<[u8; 32]> = leaves.iter().map(|leaf| algorithms::Sha256::hash(leaf)).collect();
    MerkleTree::<algorithms::Sha256>::from_leaves(&hashed).root().unwrap()
}

pub(crate) fn bench() {
    let cpu = Device::cpu();
    println!("{}, {} cores", cpu.describe().name, cpu.describe().compute_units.unwrap_or(0));
    println!("{LEAVES} leaves of 32 bytes on the processor, SHA-256, the root:");
    let bytes = noise(32 * LEAVES);
    let leaves: &[[u8; 32]] = bytes.as_chunks().0;
    let input = Leaves::from(leaves);
    let pool = Pool::builder().devices([&cpu]).keep_history_at(None).build().unwrap();
    let builder = Builder::new(&pool);
    let same_rule = Scheme::new(Hash::Sha256, Rule::RsMerkle).unwrap();
    let like_rs_merkle = Builder::new(&pool).scheme(same_rule);
    let root = builder.root(&input).unwrap().into_value().0;
    let other_root = like_rs_merkle.root(&input).unwrap().into_value().0;
    let [evener, evener_other, rayon, unprefixed, before, one, rs_merkle] = turns(
        12,
        [
            &mut || assert_eq!(builder.root(&input).unwrap().value().0, root),
            &mut || assert_eq!(like_rs_merkle.root(&input).unwrap().value().0, other_root),
            &mut || assert_eq!(with_rayon(leaves), root),
            &mut || assert_eq!(with_rayon_unprefixed(leaves, now), other_root),
            &mut || assert_eq!(with_rayon_unprefixed(leaves, before), other_root),
            &mut || assert_eq!(with_one_thread(leaves), root),
            &mut || assert_eq!(with_rs_merkle(leaves), other_root),
        ],
    );
    let line = |name: &str, time, ours: std::time::Duration| {
        let ratio = milliseconds(time) / milliseconds(ours);
        println!("  {name:<42} {:>8.2} ms   Evener is {ratio:>5.2} times as fast", milliseconds(time));
    };
    println!("  {:<42} {:>8.2} ms", "Evener, rule rfc6962", milliseconds(evener));
    println!("  {:<42} {:>8.2} ms", "Evener, rule rs-merkle", milliseconds(evener_other));
    line("rayon and sha2, a plain loop, rfc6962", rayon, evener);
    line("rayon and sha2, a plain loop, rs-merkle", unprefixed, evener_other);
    line("rayon and sha2 0.10, rs-merkle", before, evener_other);
    line("sha2 on one thread, rfc6962", one, evener);
    line("rs_merkle, rs-merkle", rs_merkle, evener_other);
    for hash in Hash::ALL {
        let builder = Builder::new(&pool).scheme(Scheme::new(hash, Rule::Rfc6962).unwrap());
        let [root, tree] = turns(
            4,
            [&mut || drop(builder.root(&input).unwrap()), &mut || drop(builder.tree(&input).unwrap())],
        );
        println!(
            "  {hash}: the root {:.2} ms, the whole tree {:.2} ms",
            milliseconds(root),
            milliseconds(tree)
        );
    }
}
