//! Builds a Merkle tree on every device of this machine: `cargo run --release -p evener-merkle --example tree [-- LEAVES]`.
//!
//! Prints the report, creates proofs of some leaves, and verifies them with the root alone.
#![allow(clippy::print_stdout)]

use evener_merkle::{Builder, Leaves};
use evener_schedule::Pool;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let count: u64 = std::env::args().nth(1).map_or(Ok(1 << 20), |text| text.parse())?;
    let leaves: Vec<[u8; 32]> = (0..count).map(leaf).collect();

    let pool = Pool::all()?;
    let built = Builder::new(&pool).progress_bar().tree(&Leaves::from(&leaves))?;
    if let Some(report) = built.report() {
        println!("{report}");
    }
    let mut tree = built.into_value();
    let root = tree.root().ok_or("there are no leaves")?;
    println!("{} leaves, {} levels, root {root}", tree.leaves(), tree.levels());

    // A proof has one hash per level; a multi-proof of several leaves shares most of them.
    let index = count / 2;
    let proof = tree.proof(index)?;
    proof.verify_leaf(&root, &leaf(index))?;
    println!("leaf {index} is proved by {} hashes", proof.path.len());
    let several = tree.multi_proof(&[0, index, count - 1])?;
    several.verify(&root)?;
    println!("leaves 0, {index} and {} are proved by {} hashes", count - 1, several.nodes.len());
    let wrong = proof.verify_leaf(&root, b"another leaf");
    println!(
        "another leaf at the same place: {}",
        wrong.err().map_or("holds".into(), |error| error.to_string())
    );

    tree.append(b"one more");
    println!("with one leaf more, root {}", tree.root().ok_or("there are no leaves")?);
    Ok(())
}

/// Returns the same leaf every time.
fn leaf(number: u64) -> [u8; 32] {
    let mut leaf = [0; 32];
    leaf[..8].copy_from_slice(&number.to_le_bytes());
    leaf
}
