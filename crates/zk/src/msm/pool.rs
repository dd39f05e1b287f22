//! One multi-scalar multiplication over the devices of a pool.
#![allow(unsafe_code)] // For `BorrowedTerms`.

use std::{marker::PhantomData, ops::Range, ptr::NonNull};

use ark_bn254::{Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use evener_device::{Api, Buffer, Device, DeviceId, Error, Result};
use evener_schedule::{Chunk, Pool, Results, RunError, Task};
use rayon::prelude::*;

use super::{
    bases::MsmOptions,
    group::{MsmGroup, point_limbs},
    kernels::{AccumulateTuning, Programs},
    parts::plan_part,
    plan::Plan,
    workspace::{Bases, Marks, MsmWorkspace},
};
use crate::field::{Emitter, Limbs};

/// Number of blocks to aim for: enough to divide by the devices' rates.
const BLOCKS: usize = 128;
/// Minimum number of points of a block.
const MIN_BLOCK: usize = 256;
/// Maximum number of points that a device multiplies at once: its memory is enough for them.
const MAX_CHUNK_POINTS: usize = 1 << 22;
/// Runs after which the processor computes what is left.
const MAX_RUNS: usize = 3;

/// A failure of a multi-scalar multiplication over a pool.
#[derive(Debug, Clone, thiserror::Error)]
pub enum MsmError {
    /// There are not as many scalars as points.
    #[error("{scalars} scalars for {points} points")]
    Lengths {
        /// Number of points.
        points: usize,
        /// Number of scalars.
        scalars: usize,
    },
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Computes the sum of scalar times point in G1 over the devices of a pool, each by its measured rate. The scalars may be
/// secret: devices zero all memory that depends on them.
///
/// ```
/// use ark_bn254::{Fr, G1Affine, G1Projective};
/// use ark_ec::{AffineRepr, PrimeGroup};
/// use evener_device::Device;
/// use evener_schedule::Pool;
///
/// let pool = Pool::new([Device::cpu()])?;
/// let sum = evener_zk::msm::msm_g1(&pool, &[G1Affine::generator(); 2], &[Fr::from(2), Fr::from(3)])?;
/// assert_eq!(sum, G1Projective::generator() * Fr::from(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn msm_g1(pool: &Pool, points: &[G1Affine], scalars: &[Fr]) -> Result<G1Projective, MsmError> {
    msm(pool, points, scalars)
}

/// Computes the sum of scalar times point in G2, as [`msm_g1`] does in G1.
pub fn msm_g2(pool: &Pool, points: &[G2Affine], scalars: &[Fr]) -> Result<G2Projective, MsmError> {
    msm(pool, points, scalars)
}

/// Computes the sum of scalar times point over the devices of a pool. Whatever part each device computes, the affine
/// result is the same.
pub fn msm<P: MsmGroup>(pool: &Pool, points: &[P::Affine], scalars: &[Fr]) -> Result<P, MsmError> {
    if points.len() != scalars.len() {
        return Err(MsmError::Lengths { points: points.len(), scalars: scalars.len() });
    }
    let block = points.len().div_ceil(BLOCKS).max(MIN_BLOCK);
    // SAFETY: `points` and `scalars` are borrowed until this function returns. The terms are in `left`, which this function
    // owns, and which the scheduler lends to tasks only while a call to `map` has not returned.
    let terms = |first| unsafe { BorrowedTerms::<P>::new(points, scalars, first..first + block) };
    let mut left: Vec<BorrowedTerms<P>> = (0..points.len()).step_by(block).map(terms).collect();
    let mut total = P::zero();
    for _ in 0..MAX_RUNS {
        if left.is_empty() {
            break;
        }
        // Blocks of one chunk must follow each other in memory.
        let mut again = Vec::new();
        for run in left.chunk_by(BorrowedTerms::is_followed_by) {
            let sums = pool.map(&MsmTask::<P>(PhantomData), run)?.into_results();
            let (sum, missing) = add_up(&sums);
            total += sum;
            again.extend(missing.map(|index| run[index].duplicate()));
        }
        left = again;
    }
    Ok(total + left.iter().map(|terms| P::msm_on_host(terms.points(), terms.scalars())).sum::<P>())
}

/// Returns the sum of all chunks whose blocks were all accepted, and the indices of the other blocks: if two devices computed
/// overlapping chunks, neither sum may count as a whole.
fn add_up<P: MsmGroup>(sums: &[ChunkSum<P>]) -> (P, impl Iterator<Item = usize> + use<P>) {
    let (mut total, mut missing) = (P::zero(), Vec::new());
    let mut index = 0;
    while index < sums.len() {
        let ChunkSum { chunk, sum } = &sums[index];
        let end = usize::try_from(chunk.end).unwrap_or(usize::MAX);
        let own = sums.get(index..end).unwrap_or_default();
        if chunk.start == index as u64 && !own.is_empty() && own.iter().all(|other| other.chunk == *chunk) {
            total += sum;
            index = end;
        } else {
            missing.push(index);
            index += 1;
        }
    }
    (total, missing.into_iter())
}

/// Points and scalars that the caller of a run owns, without a lifetime.
///
/// The items of a run must be `'static`, because a thread of a hung device may outlive the run. The scheduler passes items
/// to tasks only as references within [`Chunk::read`], which does not return items after the run has ended. So no access
/// outlives the call that started the run.
#[derive(Debug)]
struct BorrowedTerms<P: MsmGroup> {
    points: NonNull<P::Affine>,
    scalars: NonNull<Fr>,
    len: usize,
}

// SAFETY: the pointers are only used for shared references to points and scalars, which any thread may read.
unsafe impl<P: MsmGroup> Send for BorrowedTerms<P> {}
// SAFETY: as for `Send`: all accesses are shared reads.
unsafe impl<P: MsmGroup> Sync for BorrowedTerms<P> {}

impl<P: MsmGroup> BorrowedTerms<P> {
    /// Returns the terms of a range of two slices, as far as both have it, and erases the lifetime of the slices.
    ///
    /// The pointers are those of the whole slices, moved to the range: [`joined`] reads several ranges through the pointers
    /// of the first, which pointers to the elements of one range alone would not allow.
    ///
    /// # Safety
    /// The slices must stay valid and unchanged while the result exists. All terms of a run come from the same two slices.
    unsafe fn new(points: &[P::Affine], scalars: &[Fr], range: Range<usize>) -> Self {
        let end = range.end.min(points.len()).min(scalars.len());
        let start = range.start.min(end);
        let (points, scalars) = (NonNull::from(points).cast(), NonNull::from(scalars).cast());
        // SAFETY: `start` is at most the length of both slices.
        let (points, scalars) = unsafe { (points.add(start), scalars.add(start)) };
        BorrowedTerms { points, scalars, len: end - start }
    }

    /// Another handle of the same terms, for a further run within the same call.
    fn duplicate(&self) -> Self {
        BorrowedTerms { points: self.points, scalars: self.scalars, len: self.len }
    }

    fn points(&self) -> &[P::Affine] {
        // SAFETY: pointer and length are of a part of a slice in `new`, or of parts that follow each other in `joined`. The
        // caller of `new` keeps the slice valid and unchanged.
        unsafe { std::slice::from_raw_parts(self.points.as_ptr(), self.len) }
    }

    fn scalars(&self) -> &[Fr] {
        // SAFETY: as for the points; `new` ends where the shorter slice of the two does.
        unsafe { std::slice::from_raw_parts(self.scalars.as_ptr(), self.len) }
    }

    fn is_followed_by(&self, next: &Self) -> bool {
        self.points().as_ptr_range().end == next.points().as_ptr()
            && self.scalars().as_ptr_range().end == next.scalars().as_ptr()
    }
}

/// The sum of a chunk, as the result of each of its blocks.
#[derive(Debug, Clone)]
struct ChunkSum<P> {
    /// The blocks whose sum it is.
    chunk: Range<u64>,
    sum: P,
}

/// Multiplies the terms of a chunk of blocks.
struct MsmTask<P>(PhantomData<fn() -> P>);

impl<P> Clone for MsmTask<P> {
    fn clone(&self) -> Self {
        MsmTask(PhantomData)
    }
}

/// A worker's kernels and memory.
enum Worker {
    Cpu,
    Device(Box<DeviceWorker>),
}

struct DeviceWorker {
    device: Device,
    programs: Programs,
    workspace: MsmWorkspace,
    points: Option<Buffer<Limbs>>,
    /// No point counts as infinite: a chunk is multiplied once, and to look would take longer than it saves.
    infinite: Option<Buffer<u32>>,
}

impl<P: MsmGroup> Task for MsmTask<P> {
    type Input = BorrowedTerms<P>;
    type Output = ChunkSum<P>;
    type State = Worker;

    fn name(&self) -> &str {
        match P::GROUP {
            crate::curve::Group::G1 => "msm in G1",
            crate::curve::Group::G2 => "msm in G2",
        }
    }

    fn state_id(&self) -> Option<u64> {
        Some(0)
    }

    fn can_use(&self, device: &Device) -> bool {
        // Arkworks computes in this process.
        !device.describe().is_remote_processor()
    }

    fn prepare(&self, device: &Device) -> Result<Worker> {
        if device.describe().api == Api::Cpu {
            return Ok(Worker::Cpu);
        }
        Ok(Worker::Device(Box::new(DeviceWorker {
            programs: Programs::compile(
                device,
                Emitter::for_device(device)?,
                P::GROUP,
                AccumulateTuning::default(),
            )?,
            workspace: MsmWorkspace::new(device)?,
            device: device.clone(),
            points: None,
            infinite: None,
        })))
    }

    fn workers(&self, _: &Device) -> usize {
        // Arkworks uses all cores, and a second worker of a GPU would halve the chunks, which are then slower.
        1
    }

    fn may_hang(&self, device: &Device) -> bool {
        device.describe().api != Api::Cpu
    }

    fn run<'s>(
        &self,
        state: &'s mut Worker,
        chunk: &Chunk<'_, BorrowedTerms<P>>,
        results: &mut Results<'s, ChunkSum<P>>,
    ) -> Result<()> {
        let sum = match state {
            Worker::Cpu => chunk.read(|blocks| {
                let sums = blocks.iter().map(|terms| (terms.points(), terms.scalars()));
                match joined(blocks) {
                    Some(all) => P::msm_on_host(all.points(), all.scalars()),
                    None => sums.map(|(points, scalars)| P::msm_on_host(points, scalars)).sum(),
                }
            })?,
            Worker::Device(worker) => worker.run(chunk)?,
        };
        results.extend((0..chunk.len()).map(|_| ChunkSum { chunk: chunk.range(), sum }));
        Ok(())
    }
}

/// Returns the terms of blocks that follow each other in memory, as one block.
fn joined<P: MsmGroup>(blocks: &[BorrowedTerms<P>]) -> Option<BorrowedTerms<P>> {
    let (first, rest) = blocks.split_first()?;
    let follows = blocks.iter().zip(rest).all(|(one, next)| one.is_followed_by(next));
    let len = blocks.iter().map(|terms| terms.len).sum();
    follows.then(|| BorrowedTerms { len, ..first.duplicate() })
}

/// Calls a closure with some terms of a chunk, which are borrowed for that time only, and never while waiting for the device.
fn with_terms<P: MsmGroup>(
    chunk: &Chunk<'_, BorrowedTerms<P>>,
    device: &DeviceId,
    range: Range<usize>,
    copy: impl FnOnce(&[P::Affine], &[Fr]),
) -> Result<()> {
    chunk.read(|blocks| match joined(blocks) {
        Some(all) => {
            copy(&all.points()[range.clone()], &all.scalars()[range]);
            Ok(())
        }
        None => Err(Error::Task {
            device: device.clone(),
            operation: "reading points".into(),
            item: None,
            message: "the blocks of a chunk do not follow each other".into(),
            source: None,
        }),
    })?
}

impl DeviceWorker {
    fn run<P: MsmGroup>(&mut self, chunk: &Chunk<'_, BorrowedTerms<P>>) -> Result<P> {
        let len: usize = chunk.read(|blocks| blocks.iter().map(|terms| terms.len).sum())?;
        let has = self.device.capabilities()?;
        let options = MsmOptions { max_points: Some(MAX_CHUNK_POINTS), ..MsmOptions::default() };
        let mut total = P::zero();
        let mut first = 0;
        while first < len {
            let (count, plan) = plan_part::<P>(&has, len - first, false, &options);
            let sum = self.run_part(chunk, first..first + count, plan);
            total += sum.inspect_err(|_| self.workspace.erase_after_error())?;
            first += count;
        }
        Ok(total)
    }

    fn run_part<P: MsmGroup>(
        &mut self,
        chunk: &Chunk<'_, BorrowedTerms<P>>,
        part: Range<usize>,
        plan: Plan,
    ) -> Result<P> {
        let (count, limbs) = (part.len(), point_limbs::<P>());
        let points = match self.points.take() {
            Some(points) if points.len() >= count * limbs => points,
            _ => self.device.buffer_uninit(count * limbs)?,
        };
        let infinite = match self.infinite.take() {
            Some(infinite) if infinite.len() >= count.div_ceil(32) => infinite,
            _ => self.device.buffer(count.div_ceil(32))?,
        };
        let scalars = self.workspace.scalars(count)?;
        let device = self.device.id().clone();
        let in_chunk = |piece: Range<usize>| part.start + piece.start..part.start + piece.end;
        self.workspace.upload_with(&points, count * limbs, |piece, memory| {
            // A piece has a whole number of points: its length is a multiple of four elements.
            let piece = in_chunk(piece.start / limbs..piece.end / limbs);
            with_terms(chunk, &device, piece, |points, _| {
                let memory: &mut [P::DevicePoint] = bytemuck::cast_slice_mut(memory);
                let pairs = memory.par_iter_mut().zip(points).with_min_len(1 << 10);
                pairs.for_each(|(to, point)| *to = P::device_point(point));
            })
        })?;
        self.workspace.upload_with(&scalars, count, |piece, memory| {
            with_terms(chunk, &device, in_chunk(piece), |_, scalars| {
                let pairs = memory.par_iter_mut().zip(scalars).with_min_len(1 << 10);
                pairs.for_each(|(to, scalar)| *to = (*scalar).into());
            })
        })?;
        let bases = Bases { programs: &self.programs, plan, points: &points, infinite: &infinite, count };
        let queued = self.workspace.queue::<P>(&bases, &scalars, &mut Marks::new())?;
        self.workspace.zero_staging(count);
        let sum = queued.wait()?;
        self.workspace.erase()?;
        self.workspace.stream().flush()?;
        (self.points, self.infinite) = (Some(points), Some(infinite));
        Ok(sum)
    }
}

#[cfg(test)]
mod test {
    use ark_ec::PrimeGroup;

    use super::*;

    #[test]
    fn sums_of_overlapping_chunks_are_not_counted_twice() {
        let at = |number: u64| G1Projective::generator() * Fr::from(number);
        let of = |chunk: Range<u64>, sum: u64| ChunkSum { chunk, sum: at(sum) };
        // Block n has the sum 10^n. The blocks 2 and 3 of a chunk of four were computed by another device first.
        let sums = [of(0..4, 1111), of(0..4, 1111), of(2..4, 1100), of(2..4, 1100), of(4..5, 10_000)];
        let (total, missing) = add_up(&sums);
        assert_eq!(total, at(11_100));
        assert_eq!(missing.collect::<Vec<_>>(), [0, 1]);
        let (total, missing) = add_up(&sums[..0]);
        assert_eq!((total, missing.count()), (at(0), 0));
        let (total, missing) = add_up(&[of(0..2, 11), of(0..2, 11)]);
        assert_eq!((total, missing.count()), (at(11), 0));
    }
}
