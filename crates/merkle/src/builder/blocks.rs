//! Reduces the blocks of leaves in a run on the pool, or on the calling thread if there are few.

use std::{borrow::Cow, cell::RefCell, collections::HashMap, ops::Range, rc::Rc};

use evener_schedule::{Job, Trace};

use super::{Builder, Built};
use crate::{
    error::Result,
    hash::Digest,
    leaves::{LeafSource, Leaves},
    subtree::LeafFormat,
    task::{BlockItems, BlockNodes, BlockOutput, BlockRoots, BlockTask},
};

/// The minimum number of blocks for a run on the pool: fewer are hashed in less time than a device takes to
/// start.
pub(super) const MIN_POOL_BLOCKS: u64 = 4;

/// Jobs by the format and height of their blocks.
pub(super) type Jobs<O> = HashMap<(LeafFormat, u32), Rc<Job<'static, BlockTask<O>>>>;

/// The results of the blocks, and the hashes of the leaves after them.
pub(super) type BlocksAndRest<O> = (Vec<<O as BlockOutput>::Output>, Vec<Digest>);

impl Builder {
    /// Hashes leaves on the CPU's cores if the devices cannot: leaves of unequal length, and long ones.
    pub(super) fn hash_on_cpu(&self, leaves: &Leaves<'_>) -> Result<Option<Vec<Digest>>> {
        if self.can_use_devices(leaves) {
            return Ok(None);
        }
        self.scheme.hash_leaves(leaves).map(Some)
    }

    /// Reduces the whole blocks of the leaves after the first `skip`, on the pool, or with `on_this_thread` if they are few.
    /// Also hashes the leaves after the last whole block.
    pub(super) fn reduce_blocks<O: BlockOutput>(
        &self,
        leaves: &Leaves<'_>,
        format: LeafFormat,
        height: u32,
        skip: u64,
        on_this_thread: impl FnOnce(&[u8]) -> Vec<O::Output>,
    ) -> Result<Built<BlocksAndRest<O>>>
    where
        Self: JobCache<O>,
    {
        let count = leaves.count() - skip;
        let block = format.leaf_size() << height;
        let full = count >> height;
        let start = skip * format.leaf_size() as u64;
        let rest = start + full * block as u64..start + count * format.leaf_size() as u64;
        let outcome = if full < MIN_POOL_BLOCKS {
            let all = read_bytes(leaves, start..rest.end)?;
            let (blocks, rest) = all.as_ref().split_at((rest.start - start) as usize);
            (on_this_thread(blocks), format.leaf_level_of(rest), None, Trace::default())
        } else {
            let items = BlockItems::new(leaves, start, full, block);
            let mapped = self.job::<O>(format, height).map(items.blocks());
            let mapped = mapped.map_err(|error| match &leaves.source {
                LeafSource::File(file) => file.failure().unwrap_or(error.into()),
                _ => error.into(),
            })?;
            let rest = format.leaf_level_of(read_bytes(leaves, rest)?.as_ref());
            let (report, trace) = (mapped.report().clone(), mapped.trace().clone());
            (mapped.into_results(), rest, Some(report), trace)
        };
        if let LeafSource::File(file) = &leaves.source {
            file.check_unchanged()?;
        }
        let (blocks, rest, report, trace) = outcome;
        let leaves_per_item = report.is_some().then_some(1 << height);
        Ok(Built { value: (blocks, rest), leaves: count, leaves_per_item, report, trace })
    }

    /// Returns the job for blocks of a format and height, which keeps device state and measurements between builds.
    pub(super) fn job<O: BlockOutput>(
        &self,
        format: LeafFormat,
        height: u32,
    ) -> Rc<Job<'static, BlockTask<O>>>
    where
        Self: JobCache<O>,
    {
        let mut jobs = self.jobs().borrow_mut();
        jobs.entry((format, height)).or_insert_with(|| Rc::new(self.new_job(format, height))).clone()
    }
}

/// Access to the jobs of one kind of result.
pub(super) trait JobCache<O: BlockOutput> {
    fn jobs(&self) -> &RefCell<Jobs<O>>;
}

impl JobCache<BlockRoots> for Builder {
    fn jobs(&self) -> &RefCell<Jobs<BlockRoots>> {
        &self.root_jobs
    }
}

impl JobCache<BlockNodes> for Builder {
    fn jobs(&self) -> &RefCell<Jobs<BlockNodes>> {
        &self.node_jobs
    }
}

/// Returns a range of the leaves' bytes, which is read from their file if they are in one.
pub(super) fn read_bytes<'a>(leaves: &'a Leaves<'_>, range: Range<u64>) -> Result<Cow<'a, [u8]>> {
    let indices = range.start as usize..range.end as usize;
    match &leaves.source {
        LeafSource::Bytes(bytes) => Ok(bytes[indices].into()),
        LeafSource::Shared(shared) => Ok((&shared.as_slice()[indices]).into()),
        LeafSource::File(file) => {
            let mut bytes = vec![0; indices.len()];
            file.read(range.start, &mut bytes).map_err(|detail| file.failed(detail))?;
            Ok(bytes.into())
        }
        LeafSource::Slices(_) | LeafSource::Lines(..) | LeafSource::Device(..) => Ok(Vec::new().into()),
    }
}
