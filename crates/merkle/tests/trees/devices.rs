//! Builds on every device and on several devices together.

use evener_device::{Api, Device, Inventory};
use evener_merkle::{Builder, Digest, Leaves, Scheme};
use evener_schedule::{Pool, Strategy};

use crate::reference::{self, noise};

pub(crate) const STRATEGIES: [Strategy; 4] =
    [Strategy::Equal, Strategy::Proportional, Strategy::Dynamic, Strategy::Adaptive];

/// Returns the CPU alone, and the CPU in two partitions.
fn processor() -> Vec<Vec<Device>> {
    let cpu = Device::cpu();
    let parts = cpu.split(&[1, 1]).unwrap_or_default();
    [vec![cpu], parts].into_iter().filter(|mix| !mix.is_empty()).collect()
}

/// Returns the device of an API alone, with the CPU, and with two partitions of the CPU.
fn mixes_with(api: Api) -> Vec<Vec<Device>> {
    let inventory = Inventory::discover_all_apis();
    let found = inventory.devices().iter().find(|device| device.describe().api == api);
    let device = found.unwrap_or_else(|| panic!("no {api} device"));
    let mut mixes = vec![vec![device.clone()]];
    mixes.extend(processor().into_iter().map(|mut mix| {
        mix.push(device.clone());
        mix
    }));
    mixes
}

fn name(mix: &[Device]) -> String {
    mix.iter().map(|device| device.id().to_string()).collect::<Vec<_>>().join(" + ")
}

/// Few leaves, and numbers around those at which blocks begin and end.
const COUNTS: [usize; 16] = [0, 1, 2, 3, 7, 8, 9, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097];

/// Every rule and hash, every strategy and every number of leaves, on every mix; with a million leaves on every mix.
fn every_root_on(mixes: &[Vec<Device>]) {
    let bytes = noise(32 * 1_000_000);
    for scheme in Scheme::all() {
        let expected: Vec<Option<Digest>> = COUNTS
            .iter()
            .map(|&count| reference::root(scheme, &bytes[..32 * count].chunks(32).collect::<Vec<_>>()))
            .collect();
        for mix in mixes {
            let pool = Pool::builder().devices(mix).keep_history_at(None).build().unwrap();
            for strategy in STRATEGIES {
                let builder = Builder::new(&pool).scheme(scheme).strategy(strategy).all_devices();
                for (&count, expected) in COUNTS.iter().zip(&expected) {
                    let leaves = Leaves::fixed_size(&bytes[..32 * count], 32).unwrap();
                    let about = format!("{scheme}, {count} leaves, {strategy} on {}", name(mix));
                    let root = builder.root(&leaves).ok().map(|built| built.into_value());
                    assert_eq!(root, *expected, "{about}");
                    let tree = builder.tree(&leaves).ok().and_then(|built| built.value().root());
                    assert_eq!(tree, *expected, "{about}, whole");
                }
            }
        }
    }
    let scheme = Scheme::default();
    let million = Leaves::fixed_size(&bytes, 32).unwrap();
    let expected = reference::root(scheme, &bytes.chunks(32).collect::<Vec<_>>());
    for mix in mixes {
        let pool = Pool::builder().devices(mix).keep_history_at(None).build().unwrap();
        for strategy in STRATEGIES {
            let builder = Builder::new(&pool).strategy(strategy).all_devices();
            let built = builder.root(&million).unwrap();
            assert_eq!(Some(*built.value()), expected, "{strategy} on {}", name(mix));
            let report = built.report().expect("a million leaves are shared out");
            assert_eq!(report.items, 1_000_000 / 256);
            assert_eq!(report.devices.iter().map(|device| device.items).sum::<u64>(), report.items);
        }
    }
}

/// Leaves of other sizes, other places, and trees with blocks of every height.
fn every_leaf_on(mixes: &[Vec<Device>]) {
    const SIZES: [usize; 10] = [20, 33, 1, 5, 64, 100, 200, 1023, 1024, 5000];
    for (number, mix) in mixes.iter().enumerate() {
        let pool = Pool::builder().devices(mix).keep_history_at(None).build().unwrap();
        // A device compiles a kernel for each size: once is enough.
        let sizes = if number == 0 { &SIZES[..] } else { &SIZES[..2] };
        for scheme in Scheme::all() {
            let builder = Builder::new(&pool).scheme(scheme).all_devices();
            for &size in sizes {
                let count = if size > 500 { 1100 } else { 1500 };
                let bytes = noise(size * count);
                let expected = reference::root(scheme, &bytes.chunks(size).collect::<Vec<_>>());
                let leaves = Leaves::fixed_size(&bytes, size).unwrap();
                let root = builder.root(&leaves).unwrap().into_value();
                assert_eq!(Some(root), expected, "{scheme}, leaves of {size} bytes on {}", name(mix));
            }
        }
        on_the_device(&mix[mix.len() - 1], &pool);
    }
}

/// Leaves that are on the device already.
fn on_the_device(device: &Device, pool: &Pool) {
    for scheme in Scheme::all() {
        let builder = Builder::new(pool).scheme(scheme);
        for (count, size) in [(1, 32), (255, 32), (256, 32), (5000, 32), (5001, 20), (600_000, 32)] {
            // The last has enough blocks for a second pass on the device.
            if count > 100_000 && scheme != Scheme::default() {
                continue;
            }
            let bytes = noise(size * count);
            let buffer = device.buffer_from(&bytes).unwrap();
            let leaves = Leaves::on_device(device, &buffer, size).unwrap();
            let expected = reference::root(scheme, &bytes.chunks(size).collect::<Vec<_>>());
            let about = format!("{scheme}, {count} leaves of {size} bytes on {}", device.id());
            assert_eq!(Some(builder.root(&leaves).unwrap().into_value()), expected, "{about}");
            if count < 100_000 {
                let tree = builder.tree(&leaves).unwrap().into_value();
                assert_eq!(tree.root(), expected, "{about}, whole");
                tree.proof(count as u64 / 2).unwrap().verify(&tree.root().unwrap()).unwrap();
            }
        }
    }
}

/// Blocks of 4096 leaves, which inputs of millions have: the tree and its proofs.
fn high_blocks_on(mixes: &[Vec<Device>]) {
    const COUNT: usize = (1 << 21) + 4097;
    let bytes = noise(32 * COUNT);
    let leaves = Leaves::fixed_size(&bytes, 32).unwrap();
    let expected = reference::root(Scheme::default(), &bytes.chunks(32).collect::<Vec<_>>());
    for mix in mixes {
        let pool = Pool::builder().devices(mix).keep_history_at(None).build().unwrap();
        let builder = Builder::new(&pool).all_devices();
        assert_eq!(Some(builder.root(&leaves).unwrap().into_value()), expected, "{}", name(mix));
        let tree = builder.tree(&leaves).unwrap().into_value();
        assert_eq!(tree.root(), expected, "{}, whole", name(mix));
        for index in [0, 4095, 4096, 1 << 20, COUNT as u64 - 4097, COUNT as u64 - 1] {
            let leaf = &bytes[32 * index as usize..][..32];
            tree.proof(index).unwrap().verify_leaf(&expected.unwrap(), leaf).unwrap();
        }
    }
}

#[test]
fn every_root_is_the_same_on_the_processor() {
    every_root_on(&processor());
}

#[test]
fn every_kind_of_leaf_has_the_same_root_on_the_processor() {
    every_leaf_on(&processor());
}

#[test]
fn high_blocks_have_the_same_root_on_the_processor() {
    high_blocks_on(&processor());
}

#[test]
#[ignore = "needs a Vulkan device"]
fn every_root_is_the_same_with_vulkan() {
    every_root_on(&mixes_with(Api::Vulkan));
}

#[test]
#[ignore = "needs a Vulkan device"]
fn every_kind_of_leaf_has_the_same_root_with_vulkan() {
    every_leaf_on(&mixes_with(Api::Vulkan));
}

#[test]
#[ignore = "needs a Vulkan device"]
fn high_blocks_have_the_same_root_with_vulkan() {
    high_blocks_on(&mixes_with(Api::Vulkan));
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_root_is_the_same_with_card() {
    every_root_on(&mixes_with(Api::Cuda));
}

#[test]
#[ignore = "needs a CUDA device"]
fn every_kind_of_leaf_has_the_same_root_with_card() {
    every_leaf_on(&mixes_with(Api::Cuda));
}

#[test]
#[ignore = "needs a CUDA device"]
fn high_blocks_have_the_same_root_with_card() {
    high_blocks_on(&mixes_with(Api::Cuda));
}
