//! Published test vectors.

use evener_device::Device;
use evener_merkle::{Builder, Digest, Error, Hash, Leaves, MerkleTree, Rule, Scheme};
use evener_schedule::Pool;

fn pool() -> Pool {
    Pool::new([Device::cpu()]).unwrap()
}

/// The leaves that Certificate Transparency's implementations are tested with.
const LEAVES: [&[u8]; 8] = [
    b"",
    b"\x00",
    b"\x10",
    b"\x20\x21",
    b"\x30\x31",
    b"\x40\x41\x42\x43",
    b"\x50\x51\x52\x53\x54\x55\x56\x57",
    b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
];

/// The roots over none of them, the first, the first two, and so on.
const ROOTS: [&str; 9] = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
];

/// Audit paths: the index of a leaf, the number of leaves, and the path.
const PATHS: [(u64, usize, &[&str]); 4] = [
    (
        0,
        8,
        &[
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ],
    ),
    (
        5,
        8,
        &[
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ],
    ),
    (2, 3, &["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]),
    (
        1,
        5,
        &[
            "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b",
        ],
    ),
];

#[test]
fn roots_are_those_of_certificate_transparency() {
    let pool = pool();
    let mut grown = MerkleTree::build(&pool, &Leaves::slices([])).unwrap();
    for (count, expected) in ROOTS.iter().enumerate() {
        let leaves = Leaves::slices(LEAVES[..count].iter().copied());
        let root = Builder::new(&pool).root(&leaves).unwrap().into_value();
        assert_eq!(root.to_string(), *expected, "{count} leaves");
        assert_eq!(MerkleTree::build(&pool, &leaves).unwrap().root(), Some(root));
        assert_eq!(grown.root(), Some(root), "appended one by one");
        if let Some(leaf) = LEAVES.get(count) {
            grown.append(leaf);
        }
    }
}

#[test]
fn proofs_are_those_of_certificate_transparency() {
    for (index, count, expected) in PATHS {
        let tree = MerkleTree::build(&pool(), &Leaves::slices(LEAVES[..count].iter().copied())).unwrap();
        let proof = tree.proof(index).unwrap();
        let path: Vec<String> = proof.path.iter().map(Digest::to_string).collect();
        assert_eq!(path, expected, "leaf {index} of {count}");
        proof.verify_leaf(&ROOTS[count].parse().unwrap(), LEAVES[index as usize]).unwrap();
    }
}

/// A hash as Bitcoin shows it: the last byte first.
fn shown(text: &str) -> Digest {
    let mut digest: Digest = text.parse().unwrap();
    digest.0.reverse();
    digest
}

/// Transaction ids and merkle roots of real blocks, the last with an odd number of nodes on several levels.
fn blocks() -> Vec<(u32, Vec<Digest>, Digest)> {
    let ids = |texts: &[&str]| texts.iter().map(|text| shown(text)).collect();
    vec![
        (
            170,
            ids(&[
                "b1fea52486ce0c62bb442b530a3f0132b826c74e473d1f2c220bfa78111c5082",
                "f4184fc596403b9d638783cf57adfe4c75c605f6356fbc91338530e9831e9e16",
            ]),
            shown("7dac2c5666815c17a3b36427de37bb9d2e2c5ccec3f8633eb91a4205cb4c10ff"),
        ),
        (
            100_000,
            ids(&[
                "8c14f0db3df150123e6f3dbbf30f8b955a8249b62ac1d1ff16284aefa3d06d87",
                "fff2525b8931402dd09222c50775608f75787bd2b87e56995a7bdd30f79702c4",
                "6359f0868171b1d194cbee1af2f16ea598ae8fad666d9b012c8ed2b79a236ec4",
                "e9a66845e05d5abc0ad04ec80f774a7e585c6e8db975962d069a522137b80c1d",
            ]),
            shown("f3e94742aca4b5ef85488dc37c06c3282295ffec960994b2c0d5ac2a25a95766"),
        ),
        (
            286_819,
            include_str!("block_286819.txt").lines().map(shown).collect(),
            shown("871714dcbae6c8193a2bb9b2a69fe1c0440399f38d94b3a0f1b447275a29978a"),
        ),
    ]
}

#[test]
fn roots_and_proofs_are_those_of_bitcoin_blocks() {
    let builder = Builder::new(&pool()).scheme(Scheme::new(Hash::Sha256, Rule::Bitcoin).unwrap());
    for (height, ids, root) in blocks() {
        let tree = builder.tree(&Leaves::digests(&ids)).unwrap().into_value();
        assert_eq!(tree.root(), Some(root), "block {height}");
        assert_eq!(*builder.root(&Leaves::digests(&ids)).unwrap().value(), root);
        for (index, id) in ids.iter().enumerate() {
            let proof = tree.proof(index as u64).unwrap();
            assert_eq!(proof.leaf, *id);
            proof.verify(&root).unwrap();
            // A branch has a hash for each level, also where a node is its own neighbour.
            assert_eq!(proof.path.len() as u32, tree.levels() - 1);
        }
    }
    assert_eq!(blocks()[2].1.len() % 2, 1, "the last leaf is its own neighbour");
}

#[test]
fn no_leaves_have_a_root_by_rfc_6962_alone() {
    for scheme in Scheme::all() {
        let builder = Builder::new(&pool()).scheme(scheme);
        let none: [[u8; 32]; 0] = [];
        let root = builder.root(&Leaves::from(&none[..]));
        match scheme.rule() {
            Rule::Rfc6962 => assert_eq!(root.unwrap().into_value(), scheme.hash().digest(b"")),
            rule => {
                assert!(matches!(root, Err(Error::NoLeaves { rule: named }) if named == rule));
                assert!(builder.tree(&Leaves::from(&none[..])).is_err());
            }
        }
    }
}
