//! Proofs: those that hold, and those that must not.

use evener_device::Device;
use evener_merkle::{Builder, Digest, Error, Hash, Leaves, MerkleTree, MultiProof, Proof, Rule, Scheme};
use evener_schedule::Pool;
use proptest::{collection, prelude::*};

use crate::reference::{self, Blake3, Keccak256, Sha256, noise};

fn tree_of(scheme: Scheme, bytes: &[u8]) -> MerkleTree {
    let pool = Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap();
    let builder = Builder::new(&pool).scheme(scheme);
    builder.tree(&Leaves::fixed_size(bytes, 32).unwrap()).unwrap().into_value()
}

fn schemes() -> impl Strategy<Value = Scheme> {
    proptest::sample::select(Scheme::all().collect::<Vec<_>>())
}

/// Proofs as `rs_merkle` has them: for one leaf, and for several.
fn rs_merkle_proof(hash: Hash, leaves: &[[u8; 32]], indices: &[usize]) -> Vec<Digest> {
    fn of<H: rs_merkle::Hasher<Hash = [u8; 32]>>(leaves: &[[u8; 32]], indices: &[usize]) -> Vec<Digest> {
        let proof = rs_merkle::MerkleTree::<H>::from_leaves(leaves).proof(indices);
        proof.proof_hashes().iter().copied().map(Digest).collect()
    }
    match hash {
        Hash::Sha256 => of::<Sha256>(leaves, indices),
        Hash::Keccak256 => of::<Keccak256>(leaves, indices),
        Hash::Blake3 => of::<Blake3>(leaves, indices),
    }
}

#[test]
fn proofs_are_those_of_rs_merkle() {
    for hash in Hash::ALL {
        let scheme = Scheme::new(hash, Rule::RsMerkle).unwrap();
        for count in [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 1025, 2049] {
            let bytes = noise(32 * count);
            let tree = tree_of(scheme, &bytes);
            let leaves: Vec<[u8; 32]> = bytes.chunks(32).map(|leaf| reference::hash(hash, leaf)).collect();
            for index in [0, 1, count / 3, count / 2, count.saturating_sub(2), count - 1] {
                if index < count {
                    let proof = tree.proof(index as u64).unwrap();
                    assert_eq!(proof.path, rs_merkle_proof(hash, &leaves, &[index]), "{index} of {count}");
                }
            }
            for step in [1, 2, 3, 5] {
                let indices: Vec<usize> = (0..count).step_by(step).collect();
                let proof =
                    tree.multi_proof(&indices.iter().map(|&it| it as u64).collect::<Vec<_>>()).unwrap();
                assert_eq!(proof.nodes, rs_merkle_proof(hash, &leaves, &indices), "every {step} of {count}");
            }
        }
    }
}

#[test]
fn a_proof_of_a_leaf_that_is_not_there_is_refused() {
    let tree = tree_of(Scheme::default(), &noise(32 * 5));
    for index in [5, 6, u64::MAX] {
        let error = tree.proof(index).unwrap_err();
        assert!(matches!(error, Error::LeafOutOfRange { leaves: 5, .. }), "{error}");
        assert!(tree.multi_proof(&[0, index]).is_err());
    }
    assert!(matches!(tree.multi_proof(&[]), Err(Error::NoLeavesToProve)));
    let none = tree_of(Scheme::default(), &[]);
    assert!(none.proof(0).is_err());
    let mut proof = tree.proof(4).unwrap();
    for (leaves, index) in [(0, 0), (5, 5), (u64::MAX, u64::MAX), (4, 4)] {
        (proof.leaves, proof.index) = (leaves, index);
        assert!(matches!(proof.verify(&tree.root().unwrap()), Err(Error::LeafOutOfRange { .. })));
    }
    (proof.leaves, proof.index) = (u64::MAX, u64::MAX - 1);
    assert!(proof.verify(&tree.root().unwrap()).is_err());
}

#[test]
fn a_node_that_is_its_own_neighbour_must_be_given_as_that() {
    let tree = tree_of(Scheme::new(Hash::Sha256, Rule::Bitcoin).unwrap(), &noise(32 * 3));
    let mut proof = tree.proof(2).unwrap();
    assert_eq!(proof.path[0], proof.leaf);
    proof.path[0].0[5] ^= 1;
    assert!(matches!(proof.verify(&tree.root().unwrap()), Err(Error::MalformedProof { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_proof_holds_and_none_with_a_bit_flipped(
        scheme in schemes(), count in 1usize..3000, place: u64, bit in 0usize..256, which: usize,
    ) {
        let bytes = noise(32 * count);
        let tree = tree_of(scheme, &bytes);
        let root = tree.root().unwrap();
        let index = place % count as u64;
        let leaf = &bytes[32 * index as usize..][..32];
        let proof = tree.proof(index).unwrap();
        proof.verify(&root).unwrap();
        proof.verify_leaf(&root, leaf).unwrap();
        let json = serde_json::to_string(&proof).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Proof>(&json).unwrap(), &proof);

        let flip = |digest: &mut Digest| digest.0[bit / 8] ^= 1 << (bit % 8);
        let mut wrong = proof.clone();
        flip(&mut wrong.leaf);
        prop_assert!(wrong.verify(&root).is_err());
        if !proof.path.is_empty() {
            let mut wrong = proof.clone();
            flip(&mut wrong.path[which % proof.path.len()]);
            prop_assert!(wrong.verify(&root).is_err());
            let mut short = proof.clone();
            short.path.pop();
            prop_assert!(short.verify(&root).is_err());
        }
        let mut long = proof.clone();
        long.path.push(root);
        assert!(matches!(long.verify(&root), Err(Error::MalformedProof { .. })));
        let mut other = root;
        flip(&mut other);
        assert!(matches!(proof.verify(&other), Err(Error::RootMismatch { .. })));
        let mut changed = leaf.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(proof.verify_leaf(&root, &changed).is_err());
    }

    #[test]
    fn every_multi_proof_holds_and_none_with_a_bit_flipped(
        scheme in schemes(), count in 1usize..3000, places in collection::vec(any::<u64>(), 1..20),
        bit in 0usize..256, which: usize,
    ) {
        let bytes = noise(32 * count);
        let tree = tree_of(scheme, &bytes);
        let root = tree.root().unwrap();
        let indices: Vec<u64> = places.iter().map(|place| place % count as u64).collect();
        let proof = tree.multi_proof(&indices).unwrap();
        proof.verify(&root).unwrap();
        let leaves = || proof.proved.iter().map(|it| &bytes[32 * it.index as usize..][..32]);
        proof.verify_leaves(&root, leaves()).unwrap();
        prop_assert!(proof.verify_leaves(&root, leaves().skip(1)).is_err());
        let json = serde_json::to_string(&proof).unwrap();
        prop_assert_eq!(&serde_json::from_str::<MultiProof>(&json).unwrap(), &proof);

        let flip = |digest: &mut Digest| digest.0[bit / 8] ^= 1 << (bit % 8);
        let mut wrong = proof.clone();
        let place = which % wrong.proved.len();
        flip(&mut wrong.proved[place].leaf);
        prop_assert!(wrong.verify(&root).is_err());
        if !proof.nodes.is_empty() {
            let mut wrong = proof.clone();
            flip(&mut wrong.nodes[which % proof.nodes.len()]);
            prop_assert!(wrong.verify(&root).is_err());
            let mut short = proof.clone();
            short.nodes.pop();
            prop_assert!(short.verify(&root).is_err());
        }
        let mut long = proof.clone();
        long.nodes.push(root);
        assert!(matches!(long.verify(&root), Err(Error::MalformedProof { .. })));
        let mut twice = proof.clone();
        twice.proved.push(twice.proved[0]);
        prop_assert!(twice.verify(&root).is_err());
    }

    #[test]
    fn a_tree_that_grows_is_the_tree_that_is_built(
        scheme in schemes(), first in 0usize..3000, more in collection::vec(0usize..700, 0..6),
    ) {
        let all = first + more.iter().sum::<usize>();
        prop_assume!(first > 0 || scheme.rule() == Rule::Rfc6962);
        let bytes = noise(32 * all);
        let mut tree = tree_of(scheme, &bytes[..32 * first]);
        let mut count = first;
        for more in more {
            match more {
                1 => tree.append(&bytes[32 * count..][..32]),
                _ => tree.extend(bytes[32 * count..32 * (count + more)].chunks(32)),
            }
            count += more;
            let built = tree_of(scheme, &bytes[..32 * count]);
            prop_assert_eq!(tree.root(), built.root());
            for level in 0..built.levels() {
                for index in [0, 1, (count as u64 / 3) >> level, (count as u64 - 1) >> level] {
                    prop_assert_eq!(tree.node(level, index), built.node(level, index));
                }
            }
            prop_assert_eq!(tree.node(built.levels(), 0), None);
        }
    }
}
