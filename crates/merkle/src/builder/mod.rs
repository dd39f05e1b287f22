//! From leaves to a root or a tree, over the devices of a pool.

mod blocks;
mod built;
mod options;
mod stream;
mod sum;

use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
};

use evener_device::{Buffer, Device, DeviceId};
use evener_schedule::Pool;

use self::{
    blocks::{FEW_BLOCKS, Jobs},
    options::Options,
};
pub use self::{built::Built, stream::RootStream};
use crate::{
    error::{Error, Result},
    hash::Digest,
    kernel::{self, LOG_THREADS, MOST_HEIGHT},
    leaves::{Leaves, Source},
    resident::Resident,
    rule::Scheme,
    subtree::{self, Format, join},
    task::{Items, Nodes, Roots},
    tree::MerkleTree,
};

/// Builds roots and trees of one scheme on one pool. What it makes on the devices, kernels and buffers among it, and what
/// it learns about them is kept from one tree to the next, so whoever builds many makes one builder.
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
    options: Options,
    root_jobs: RefCell<Jobs<Roots>>,
    node_jobs: RefCell<Jobs<Nodes>>,
    residents: RefCell<HashMap<(DeviceId, Format), Resident>>,
}

/// Longer leaves are hashed on the processor's cores: a few of them would fill a device's staging memory.
const LONG_LEAF: usize = 4096;
/// A block takes at most so many bytes, unless it is of the lowest height.
const BLOCK_BYTES: usize = 1 << 20;

/// How high blocks are for so many leaves: high enough that their roots are few, low enough that there are many to share.
fn block_height(leaves: u64, leaf_bytes: usize) -> u32 {
    let by_count = match leaves {
        0..0x20_0000 => LOG_THREADS,
        0x20_0000..0x800_0000 => 12,
        _ => 14,
    };
    let by_bytes = (BLOCK_BYTES / leaf_bytes.max(1)).max(1).ilog2();
    by_count.min(by_bytes.max(LOG_THREADS)).min(MOST_HEIGHT)
}

impl Builder {
    /// A builder for a pool, of the default scheme: SHA-256 by the rule of RFC 6962.
    pub fn new(pool: &Pool) -> Builder {
        Builder {
            pool: pool.clone(),
            scheme: Scheme::default(),
            options: Options::default(),
            root_jobs: RefCell::default(),
            node_jobs: RefCell::default(),
            residents: RefCell::default(),
        }
    }

    /// Sets hash function and rule.
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// The root over some leaves. Fails for no leaves where the rule has no root for none, where leaves cannot be read or
    /// change meanwhile, and where the pool cannot do it.
    pub fn root(&self, leaves: &Leaves<'_>) -> Result<Built<Digest>> {
        let count = leaves.count();
        if count == 0 {
            let root = self.scheme.empty_root().ok_or(Error::NoLeaves { rule: self.scheme.rule() })?;
            return Ok(Built::without_run(root, 0));
        }
        if matches!(leaves.source, Source::Lines(..)) {
            let mut stream = self.stream();
            stream.push(leaves)?;
            return stream.finish();
        }
        if let Some(digests) = self.hashed_here(leaves)? {
            return self.root(&Leaves::digests(&digests));
        }
        let format = self.format(leaves);
        if let Source::Device(device, buffer) = &leaves.source {
            return Ok(Built::without_run(self.root_on_device(device, buffer, format)?, count));
        }
        let height = block_height(count, format.bytes());
        let scheme = self.scheme;
        let built =
            self.blocks::<Roots>(leaves, format, height, 0, |blocks| roots_here(&format, blocks, height))?;
        Ok(built.map(|(roots, rest)| join(scheme, [(height, roots), (0, rest)])))
    }

    /// The whole tree over some leaves: twice as many digests as there are leaves stay in memory. Fails as
    /// [`Builder::root`].
    pub fn tree(&self, leaves: &Leaves<'_>) -> Result<Built<MerkleTree>> {
        let count = leaves.count();
        if count == 0 {
            self.scheme.empty_root().ok_or(Error::NoLeaves { rule: self.scheme.rule() })?;
        }
        if let Some(digests) = self.hashed_here(leaves)? {
            return self.tree(&Leaves::digests(&digests));
        }
        let format = self.format(leaves);
        let height = block_height(count, format.bytes());
        let scheme = self.scheme;
        if let Source::Device(device, buffer) = &leaves.source {
            let blocks = (count >> height) as usize;
            let (nodes, rest) = self.on_device(device, format, |resident| {
                Ok((resident.nodes(buffer, height, blocks)?, resident.rest(buffer, height, blocks)?))
            })?;
            let tree = MerkleTree::from_blocks(scheme, height, nodes, format.bottom_of(&rest));
            return Ok(Built::without_run(tree, count));
        }
        let built = self.blocks::<Nodes>(leaves, format, height, 0, |blocks| {
            let whole = |block: &[u8]| {
                let mut nodes = vec![Digest::default(); (2 << height) - 1].into_boxed_slice();
                subtree::whole(&format, block, height, &mut nodes);
                nodes
            };
            blocks.chunks(format.bytes() << height).map(whole).collect()
        })?;
        Ok(built.map(|(blocks, rest)| MerkleTree::from_blocks(scheme, height, blocks, rest)))
    }

    /// Measures how fast each device is alone with blocks as a build of as many leaves has them, as
    /// [`Job::calibrate`](evener_schedule::Job::calibrate). Gives leaves a second; a device that fails has none, and
    /// nobody has for leaves that no run of the pool would be needed for.
    pub fn calibrate(&self, leaves: &Leaves<'_>) -> Result<Vec<(DeviceId, Option<f64>)>> {
        let format = self.format(leaves);
        let height = block_height(leaves.count(), format.bytes());
        let full = leaves.count() >> height;
        if full < FEW_BLOCKS || !self.goes_to_devices(leaves) {
            return Ok(self.pool.devices().iter().map(|device| (device.id().clone(), None)).collect());
        }
        let items = Items::new(leaves, 0, full, format.bytes() << height);
        let rates = self.job::<Roots>(format, height).calibrate(items.blocks())?;
        let leaves_of_block = (1u64 << height) as f64;
        Ok(rates.into_iter().map(|(id, rate)| (id, rate.map(|rate| rate * leaves_of_block))).collect())
    }

    fn format(&self, leaves: &Leaves<'_>) -> Format {
        Format { scheme: self.scheme, leaf_bytes: leaves.leaf_bytes, hashed: leaves.hashed }
    }

    /// Whether there is a kernel for such leaves.
    fn goes_to_devices(&self, leaves: &Leaves<'_>) -> bool {
        let of_one_size = !matches!(leaves.source, Source::Parts(_) | Source::Lines(..));
        of_one_size && leaves.leaf_bytes <= LONG_LEAF && kernel::can_do(&self.format(leaves))
    }

    fn root_on_device(&self, device: &Device, leaves: &Buffer<u8>, format: Format) -> Result<Digest> {
        let (runs, rest) = self.on_device(device, format, |resident| resident.reduce(leaves))?;
        let runs = runs.into_iter().map(|run| (run.level, run.nodes));
        Ok(join(self.scheme, runs.chain([(0, format.bottom_of(&rest))])))
    }

    fn on_device<R>(
        &self,
        device: &Device,
        format: Format,
        work: impl Fn(&mut Resident) -> evener_device::Result<R>,
    ) -> Result<R> {
        let mut residents = self.residents.borrow_mut();
        let new = || Resident::new(device, format);
        let resident = match residents.entry((device.id().clone(), format)) {
            Entry::Vacant(place) => place.insert(new()?),
            Entry::Occupied(there) => {
                let there = there.into_mut();
                if let Ok(done) = work(there) {
                    return Ok(done);
                }
                // It may have been made for another opening of the same device.
                *there = new()?;
                there
            }
        };
        Ok(work(resident)?)
    }
}

/// The roots of blocks, on this thread.
fn roots_here(format: &Format, blocks: &[u8], height: u32) -> Vec<Digest> {
    let mut roots = Vec::new();
    subtree::roots(format, blocks, height, &mut Default::default(), |some| roots.extend_from_slice(some));
    roots
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}
