//! Builds a root or a tree from leaves on the devices of a pool.

mod blocks;
mod built;
mod options;
mod stream;
mod totals;

use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
};

use evener_device::{Buffer, Device, DeviceId};
use evener_schedule::Pool;

use self::{
    blocks::{Jobs, MIN_POOL_BLOCKS},
    options::BuilderOptions,
};
pub use self::{built::Built, stream::RootStream};
use crate::{
    device_reducer::DeviceReducer,
    error::{Error, Result},
    hash::Digest,
    kernel::{self, LOG_THREADS, MAX_HEIGHT},
    leaves::{LeafSource, Leaves},
    rule::Scheme,
    subtree::{self, LeafFormat, root_of_sequences},
    task::{BlockItems, BlockNodes, BlockRoots},
    tree::MerkleTree,
};

/// Builds roots and trees of one scheme on one pool.
///
/// A builder keeps its kernels, device buffers and measured rates from one tree to the next, so a program that builds many
/// trees should use one builder for all of them.
///
/// ```
/// use evener_device::Device;
/// use evener_merkle::{Builder, Hash, Leaves, Rule, Scheme};
/// use evener_schedule::Pool;
///
/// let pool = Pool::new([Device::cpu()])?;
/// let builder = Builder::new(&pool).scheme(Scheme::new(Hash::Blake3, Rule::Rfc6962)?);
/// let leaves: Vec<[u8; 32]> = (0..10_000u32).map(|n| [n as u8; 32]).collect();
/// let root = builder.root(&Leaves::from(&leaves))?;
/// let tree = builder.tree(&Leaves::from(&leaves))?;
/// assert_eq!(tree.value().root(), Some(*root.value()));
/// if let Some(report) = root.report() {
///     println!("{report}"); // who did what
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Builder {
    pool: Pool,
    scheme: Scheme,
    options: BuilderOptions,
    root_jobs: RefCell<Jobs<BlockRoots>>,
    node_jobs: RefCell<Jobs<BlockNodes>>,
    reducers: RefCell<HashMap<(DeviceId, LeafFormat), DeviceReducer>>,
}

/// The maximum size of a leaf that devices hash. The CPU's cores hash longer ones, since a few would fill a device's staging
/// buffer.
const MAX_DEVICE_LEAF_BYTES: usize = 4096;
/// The maximum size of a block that is higher than the minimum.
const MAX_BLOCK_BYTES: usize = 1 << 20;

/// Returns the block height for a number of leaves: high enough that block roots are few, low enough that there are many
/// blocks to share out.
fn block_height(leaves: u64, leaf_bytes: usize) -> u32 {
    let by_count = match leaves {
        0..0x20_0000 => LOG_THREADS,
        0x20_0000..0x800_0000 => 12,
        _ => 14,
    };
    let by_bytes = (MAX_BLOCK_BYTES / leaf_bytes.max(1)).max(1).ilog2();
    by_count.min(by_bytes.max(LOG_THREADS)).min(MAX_HEIGHT)
}

impl Builder {
    /// Creates a builder for a pool with the default scheme: SHA-256, RFC 6962.
    pub fn new(pool: &Pool) -> Builder {
        Builder {
            pool: pool.clone(),
            scheme: Scheme::default(),
            options: BuilderOptions::default(),
            root_jobs: RefCell::default(),
            node_jobs: RefCell::default(),
            reducers: RefCell::default(),
        }
    }

    /// Sets the hash function and the rule.
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// Builds the root. Fails if there are no leaves and the rule defines no root for an empty tree, if leaves cannot be
    /// read or their file changes, and if the run on the pool fails.
    pub fn root(&self, leaves: &Leaves<'_>) -> Result<Built<Digest>> {
        let count = leaves.count();
        if count == 0 {
            let root = self.scheme.empty_root().ok_or(Error::NoLeaves { rule: self.scheme.rule() })?;
            return Ok(Built::without_run(root, 0));
        }
        if matches!(leaves.source, LeafSource::Lines(..)) {
            let mut stream = self.stream();
            stream.push(leaves)?;
            return stream.finish();
        }
        if let Some(digests) = self.hash_on_cpu(leaves)? {
            return self.root(&Leaves::digests(&digests));
        }
        let format = self.format(leaves);
        if let LeafSource::Device(device, buffer) = &leaves.source {
            return Ok(Built::without_run(self.root_on_device(device, buffer, format)?, count));
        }
        let height = block_height(count, format.leaf_size());
        let scheme = self.scheme;
        let built = self.reduce_blocks::<BlockRoots>(leaves, format, height, 0, |blocks| {
            block_roots(&format, blocks, height)
        })?;
        Ok(built.map(|(roots, rest)| root_of_sequences(scheme, [(height, roots), (0, rest)])))
    }

    /// Builds the whole tree, which keeps 64 bytes per leaf in memory. Fails as [`Builder::root`].
    pub fn tree(&self, leaves: &Leaves<'_>) -> Result<Built<MerkleTree>> {
        let count = leaves.count();
        if count == 0 {
            self.scheme.empty_root().ok_or(Error::NoLeaves { rule: self.scheme.rule() })?;
        }
        if let Some(digests) = self.hash_on_cpu(leaves)? {
            return self.tree(&Leaves::digests(&digests));
        }
        let format = self.format(leaves);
        let height = block_height(count, format.leaf_size());
        let scheme = self.scheme;
        if let LeafSource::Device(device, buffer) = &leaves.source {
            let blocks = (count >> height) as usize;
            let (nodes, rest) = self.on_device(device, format, |reducer| {
                Ok((reducer.nodes(buffer, height, blocks)?, reducer.rest(buffer, height, blocks)?))
            })?;
            let tree = MerkleTree::from_blocks(scheme, height, nodes, format.leaf_level_of(&rest));
            return Ok(Built::without_run(tree, count));
        }
        let built = self.reduce_blocks::<BlockNodes>(leaves, format, height, 0, |blocks| {
            let all_nodes = |block: &[u8]| {
                let mut nodes = vec![Digest::default(); (2 << height) - 1].into_boxed_slice();
                subtree::all_nodes(&format, block, height, &mut nodes);
                nodes
            };
            blocks.chunks(format.leaf_size() << height).map(all_nodes).collect()
        })?;
        Ok(built.map(|(blocks, rest)| MerkleTree::from_blocks(scheme, height, blocks, rest)))
    }

    /// Measures the rate of each device alone, in leaves per second, with the block size of a build of as many leaves (see
    /// [`Job::calibrate`](evener_schedule::Job::calibrate)). The rate is `None` for a device that fails, and for all
    /// devices if a build of these leaves needs no run on the pool.
    pub fn calibrate(&self, leaves: &Leaves<'_>) -> Result<Vec<(DeviceId, Option<f64>)>> {
        let format = self.format(leaves);
        let height = block_height(leaves.count(), format.leaf_size());
        let full = leaves.count() >> height;
        if full < MIN_POOL_BLOCKS || !self.can_use_devices(leaves) {
            return Ok(self.pool.devices().iter().map(|device| (device.id().clone(), None)).collect());
        }
        let items = BlockItems::new(leaves, 0, full, format.leaf_size() << height);
        let rates = self.job::<BlockRoots>(format, height).calibrate(items.blocks())?;
        let leaves_of_block = (1u64 << height) as f64;
        Ok(rates.into_iter().map(|(id, rate)| (id, rate.map(|rate| rate * leaves_of_block))).collect())
    }

    fn format(&self, leaves: &Leaves<'_>) -> LeafFormat {
        LeafFormat { scheme: self.scheme, leaf_bytes: leaves.leaf_bytes, prehashed: leaves.prehashed }
    }

    /// Returns whether devices can hash these leaves.
    fn can_use_devices(&self, leaves: &Leaves<'_>) -> bool {
        let of_one_size = !matches!(leaves.source, LeafSource::Slices(_) | LeafSource::Lines(..));
        of_one_size
            && leaves.leaf_bytes <= MAX_DEVICE_LEAF_BYTES
            && kernel::is_supported(&self.format(leaves))
    }

    fn root_on_device(&self, device: &Device, leaves: &Buffer<u8>, format: LeafFormat) -> Result<Digest> {
        let (levels, rest) = self.on_device(device, format, |reducer| reducer.reduce(leaves))?;
        let levels = levels.into_iter().map(|it| (it.level, it.nodes));
        Ok(root_of_sequences(self.scheme, levels.chain([(0, format.leaf_level_of(&rest))])))
    }

    /// Runs a reduction with the device's kept reducer, or with a new one.
    fn on_device<R>(
        &self,
        device: &Device,
        format: LeafFormat,
        work: impl Fn(&mut DeviceReducer) -> evener_device::Result<R>,
    ) -> Result<R> {
        let mut reducers = self.reducers.borrow_mut();
        let new = || DeviceReducer::new(device, format);
        let reducer = match reducers.entry((device.id().clone(), format)) {
            Entry::Vacant(entry) => entry.insert(new()?),
            Entry::Occupied(entry) => {
                let kept = entry.into_mut();
                if let Ok(done) = work(kept) {
                    return Ok(done);
                }
                // The kept reducer may belong to an earlier opening of the device: try once more with a new one.
                *kept = new()?;
                kept
            }
        };
        Ok(work(reducer)?)
    }
}

/// Computes the roots of blocks on the calling thread.
fn block_roots(format: &LeafFormat, blocks: &[u8], height: u32) -> Vec<Digest> {
    let mut roots = Vec::new();
    subtree::roots(format, blocks, height, &mut Default::default(), |some| roots.extend_from_slice(some));
    roots
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}
