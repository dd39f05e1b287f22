//! A run of the pool over the blocks of some leaves, and what is hashed without one.

use std::{borrow::Cow, cell::RefCell, collections::HashMap, ops::Range, rc::Rc};

use evener_schedule::{Job, Trace};

use super::{Builder, Built};
use crate::{
    error::Result,
    hash::Digest,
    leaves::{Leaves, Source},
    subtree::Format,
    task::{BlockTask, Items, Nodes, Outcome, Roots},
};

/// Fewer blocks than this are done here: no device would be awake sooner.
pub(super) const FEW_BLOCKS: u64 = 4;

/// The jobs for blocks of a format and a height.
pub(super) type Jobs<O> = HashMap<(Format, u32), Rc<Job<'static, BlockTask<O>>>>;

/// What became of the blocks, and the hashes of the leaves after them.
pub(super) type BlocksAndRest<O> = (Vec<<O as Outcome>::Output>, Vec<Digest>);

impl Builder {
    /// The hashes of leaves that are better hashed on the processor's cores: those of unequal length, and long ones.
    pub(super) fn hashed_here(&self, leaves: &Leaves<'_>) -> Result<Option<Vec<Digest>>> {
        if self.goes_to_devices(leaves) {
            return Ok(None);
        }
        self.scheme.leaf_digests(leaves).map(Some)
    }

    /// Reduces the whole blocks of the leaves after the first `skip`, on the pool or, where they are few, here; and hashes
    /// the rest of the leaves.
    pub(super) fn blocks<O: Outcome>(
        &self,
        leaves: &Leaves<'_>,
        format: Format,
        height: u32,
        skip: u64,
        here: impl FnOnce(&[u8]) -> Vec<O::Output>,
    ) -> Result<Built<BlocksAndRest<O>>>
    where
        Self: HasJobs<O>,
    {
        let count = leaves.count() - skip;
        let block = format.bytes() << height;
        let full = count >> height;
        let start = skip * format.bytes() as u64;
        let rest = start + full * block as u64..start + count * format.bytes() as u64;
        let outcome = if full < FEW_BLOCKS {
            let all = bytes_of(leaves, start..rest.end)?;
            let (blocks, rest) = all.as_ref().split_at((rest.start - start) as usize);
            (here(blocks), format.bottom_of(rest), None, Trace::default())
        } else {
            let items = Items::new(leaves, start, full, block);
            let mapped = self.job::<O>(format, height).map(items.blocks());
            let mapped = mapped.map_err(|error| match &leaves.source {
                Source::File(file) => file.failure().unwrap_or(error.into()),
                _ => error.into(),
            })?;
            let rest = format.bottom_of(bytes_of(leaves, rest)?.as_ref());
            let (report, trace) = (mapped.report().clone(), mapped.trace().clone());
            (mapped.into_results(), rest, Some(report), trace)
        };
        if let Source::File(file) = &leaves.source {
            file.is_unchanged()?;
        }
        let (blocks, rest, report, trace) = outcome;
        let leaves_per_item = report.is_some().then_some(1 << height);
        Ok(Built { value: (blocks, rest), leaves: count, leaves_per_item, report, trace })
    }

    /// The job for blocks of a kind, with what earlier builds have made and learned.
    pub(super) fn job<O: Outcome>(&self, format: Format, height: u32) -> Rc<Job<'static, BlockTask<O>>>
    where
        Self: HasJobs<O>,
    {
        let mut jobs = self.jobs().borrow_mut();
        jobs.entry((format, height)).or_insert_with(|| Rc::new(self.new_job(format, height))).clone()
    }
}

/// Where the jobs of one kind are kept.
pub(super) trait HasJobs<O: Outcome> {
    fn jobs(&self) -> &RefCell<Jobs<O>>;
}

impl HasJobs<Roots> for Builder {
    fn jobs(&self) -> &RefCell<Jobs<Roots>> {
        &self.root_jobs
    }
}

impl HasJobs<Nodes> for Builder {
    fn jobs(&self) -> &RefCell<Jobs<Nodes>> {
        &self.node_jobs
    }
}

/// Some of the leaves' bytes.
pub(super) fn bytes_of<'a>(leaves: &'a Leaves<'_>, range: Range<u64>) -> Result<Cow<'a, [u8]>> {
    let place = range.start as usize..range.end as usize;
    match &leaves.source {
        Source::Bytes(bytes) => Ok(bytes[place].into()),
        Source::Shared(shared) => Ok((&shared.as_slice()[place]).into()),
        Source::File(file) => {
            let mut bytes = vec![0; place.len()];
            file.read(range.start, &mut bytes).map_err(|detail| file.failed(detail))?;
            Ok(bytes.into())
        }
        Source::Parts(_) | Source::Lines(..) | Source::Device(..) => Ok(Vec::new().into()),
    }
}
