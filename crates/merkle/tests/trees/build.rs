//! The sources of leaves, and their errors.

use std::{
    fs::File,
    io::{self, Read, Write},
};

use evener_device::{Device, Direction};
use evener_merkle::{Builder, Digest, Error, LeafFile, Leaves, MerkleTree, Scheme};
use evener_schedule::{Cancel, Pool, RunError};

use crate::reference::{self, noise};

fn pool() -> Pool {
    Pool::builder().devices([Device::cpu()]).keep_history_at(None).build().unwrap()
}

fn builder() -> Builder {
    Builder::new(&pool())
}

fn root_of(bytes: &[u8], size: usize) -> Digest {
    reference::root(Scheme::default(), &bytes.chunks(size).collect::<Vec<_>>()).unwrap()
}

#[test]
fn leaves_have_the_same_root_wherever_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("leaves");
    let builder = builder();
    for (count, size) in [(100, 32), (10_000, 32), (3000, 100), (50, 10_000), (1200, 4097)] {
        let bytes = noise(count * size);
        let expected = root_of(&bytes, size);
        std::fs::write(&path, &bytes).unwrap();
        let file = Leaves::file(LeafFile::open(&path).unwrap(), size).unwrap();
        let mut pinned = Device::cpu().host_buffer(bytes.len(), Direction::Upload).unwrap();
        pinned.as_mut_slice().copy_from_slice(&bytes);
        let shared = pinned.share();
        let parts = Leaves::slices(bytes.chunks(size));
        let in_memory = Leaves::fixed_size(&bytes, size).unwrap();
        let shared = Leaves::shared_buffer(&shared, size).unwrap();
        for leaves in [&in_memory, &file, &shared, &parts] {
            assert_eq!(*builder.root(leaves).unwrap().value(), expected, "{count} leaves of {size} bytes");
            assert_eq!(builder.tree(leaves).unwrap().value().root(), Some(expected));
        }
        let streamed = builder.root_from_reader(&bytes[..], size).unwrap();
        assert_eq!((*streamed.value(), streamed.leaves()), (expected, count as u64));
    }
}

#[test]
fn a_stream_of_several_gulps_has_the_same_root() {
    // Two gulps of 64 MiB and a ragged end; one that ends with a gulp; one with whole blocks at its end.
    let bytes = noise((130 << 20) + 32 * 777);
    for bytes in [&bytes[..], &bytes[..128 << 20], &bytes[..(64 << 20) + (32 << 16)]] {
        let (root, streamed) =
            (builder().root(&Leaves::fixed_size(bytes, 32).unwrap()), builder().root_from_reader(bytes, 32));
        assert_eq!(root.unwrap().value(), streamed.unwrap().value(), "{} bytes", bytes.len());
    }
}

#[test]
fn lines_are_leaves() {
    let text = b"one\ntwo\r\nthree";
    let expected = reference::root(Scheme::default(), &[b"one", b"two", b"three"]).unwrap();
    assert_eq!(*builder().root(&Leaves::lines(text)).unwrap().value(), expected);
}

#[test]
fn a_file_that_does_not_come_out_even_is_refused_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("uneven");
    std::fs::write(&path, [0; 100]).unwrap();
    let error = Leaves::file(LeafFile::open(&path).unwrap(), 32).unwrap_err().to_string();
    assert!(error.contains("uneven") && error.contains("4 bytes over"), "{error}");
    assert!(matches!(
        builder().root_from_reader(&[0; 100][..], 32),
        Err(Error::PartialLeaf { bytes: 100, .. })
    ));
    assert!(matches!(builder().root_from_reader(&[0; 100][..], 0), Err(Error::PartialLeaf { .. })));
}

#[test]
fn a_file_that_is_cut_short_or_changed_is_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changing");
    for (count, size) in [(100, 32), (10_000, 32), (20, 100_000)] {
        for tree in [false, true] {
            std::fs::write(&path, noise(count * size)).unwrap();
            let leaves = Leaves::file(LeafFile::open(&path).unwrap(), size).unwrap();
            let build = || match tree {
                false => builder().root(&leaves).map(drop),
                true => builder().tree(&leaves).map(drop),
            };
            build().unwrap();
            File::options().write(true).open(&path).unwrap().set_len((count * size / 2) as u64).unwrap();
            let error = build().unwrap_err().to_string();
            assert!(error.contains("changing: was cut short"), "{error}");
            let mut file = File::options().append(true).open(&path).unwrap();
            file.write_all(&noise(count * size)).unwrap();
            let error = build().unwrap_err().to_string();
            assert!(error.contains("changing: changed while it was read"), "{error}");
        }
    }
}

/// A stream that breaks.
struct Broken(usize);

impl Read for Broken {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::Error::other("the cable is out"));
        }
        let count = bytes.len().min(self.0);
        self.0 -= count;
        Ok(count)
    }
}

#[test]
fn a_stream_that_breaks_is_an_error_that_says_so() {
    for after in [0, 1000, 65 << 20, 129 << 20] {
        let error = builder().root_from_reader(Broken(after), 32).unwrap_err().to_string();
        assert!(error.contains("the cable is out"), "{error}");
    }
}

#[test]
fn a_build_can_be_cancelled() {
    let cancel = Cancel::new();
    cancel.cancel();
    let bytes = noise(32 << 22);
    let error = builder().cancel(&cancel).root(&Leaves::fixed_size(&bytes, 32).unwrap()).unwrap_err();
    assert!(matches!(error, Error::Run(RunError::Cancelled { .. })), "{error}");
}

#[test]
fn leaves_that_are_hashes_are_taken_as_they_are() {
    let bytes = noise(32 * 5000);
    let digests: &[Digest] = bytemuck::cast_slice(&bytes);
    for scheme in Scheme::all() {
        let builder = builder().scheme(scheme);
        let leaves: Vec<[u8; 32]> = bytes.chunks(32).map(|leaf| scheme.hash_leaf(leaf).0).collect();
        let expected = *builder.root(&Leaves::fixed_size(&bytes, 32).unwrap()).unwrap().value();
        let hashed = Leaves::from(&leaves).prehashed().unwrap();
        assert_eq!(*builder.root(&hashed).unwrap().value(), expected);
        assert_ne!(*builder.root(&Leaves::digests(digests)).unwrap().value(), expected);
    }
    assert!(Leaves::fixed_size(&bytes, 16).unwrap().prehashed().is_err());
}

#[test]
fn a_tree_that_was_stored_proves_and_grows_as_before() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tree");
    let bytes = noise(32 * 10_000);
    let tree = builder().tree(&Leaves::fixed_size(&bytes[..32 * 9000], 32).unwrap()).unwrap().into_value();
    tree.save(&path).unwrap();
    let mut loaded = MerkleTree::load(&path).unwrap();
    assert_eq!(loaded.summary(), tree.summary());
    assert_eq!(loaded.proof(8999).unwrap(), tree.proof(8999).unwrap());
    assert_eq!(loaded.multi_proof(&[1, 5000, 8999]).unwrap(), tree.multi_proof(&[1, 5000, 8999]).unwrap());
    loaded.extend(bytes[32 * 9000..].chunks(32));
    assert_eq!(loaded.root(), Some(root_of(&bytes, 32)));
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_told_and_nothing_is_left_behind() {
    // A device file that is always full stands in for the disk.
    let tree = builder().tree(&Leaves::fixed_size(&noise(32 * 5000), 32).unwrap()).unwrap().into_value();
    let full = File::options().write(true).open("/dev/full").unwrap();
    assert_eq!(tree.write_to(full).unwrap_err().kind(), io::ErrorKind::StorageFull);
    // Where the file itself cannot be written, what was there is as it was.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tree");
    std::fs::write(&path, b"as it was").unwrap();
    assert!(tree.save(path.join("below a file")).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), b"as it was");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
