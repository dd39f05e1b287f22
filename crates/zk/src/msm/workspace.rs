//! The memory of multi-scalar multiplications on a device, and the launches of one.

use ark_bn254::Fr;
use bytemuck::Pod;
use evener_device::{
    Buffer, Device, DeviceId, Direction, Error, Result, SharedBuffer, StagingBuffer, Stream, Timestamp,
    Transfer,
};
use rayon::prelude::*;
use zeroize::Zeroize;

use super::{
    group::{MsmGroup, point_limbs, sum_limbs},
    kernels::{Params, Programs, SCAN_BUCKETS, SORT_GROUP},
    plan::{MIN_SEGMENT, Plan},
};
use crate::field::Limbs;

/// Levels of a tree that one launch computes, if every node of the level below has one element.
const FIRST_LEVELS: u32 = 8;
/// Levels that the later launches over buckets compute: their nodes have several elements, so that fewer nodes keep a
/// workgroup busy.
const LATER_LEVELS: u32 = 4;

/// A stream on a device and the memory of multi-scalar multiplications, which is kept from call to call. One workspace
/// serves all bases of a device, of both groups, one after the other.
#[derive(Debug)]
pub struct MsmWorkspace {
    device: Device,
    stream: Stream,
    buffers: Buffers,
    staging: Option<StagingBuffer<Limbs>>,
    /// Whether timestamps are taken between the phases.
    is_timed: bool,
}

/// Buffers, each as long as the largest need so far.
#[derive(Debug, Default)]
struct Buffers {
    /// Points that are copied for each multiplication, and which of them are infinite.
    points: Option<Buffer<Limbs>>,
    infinite: Option<Buffer<u32>>,
    scalars: Option<Buffer<Limbs>>,
    counters: Option<Buffer<u32>>,
    sums: Option<Buffer<[u32; 2]>>,
    info: Option<Buffer<u32>>,
    offsets: Option<Buffer<u32>>,
    runs: Option<Buffer<[u32; 2]>>,
    ranks: Option<Buffer<u32>>,
    entries: Option<Buffer<u32>>,
    buckets: Option<Buffer<Limbs>>,
    partials: Option<Buffer<Limbs>>,
    firsts: Option<Buffer<u32>>,
    results: Option<Buffer<Limbs>>,
}

/// Returns the first `len` elements of a kept buffer, or of a new one if it is too short. The old one, which may depend on
/// secret scalars, is then zeroed before it is freed.
pub(crate) fn grown<T: Pod>(
    kept: &mut Option<Buffer<T>>,
    device: &Device,
    stream: &mut Stream,
    len: usize,
) -> Result<Buffer<T>> {
    match kept {
        Some(buffer) if buffer.len() >= len => buffer.slice(..len),
        _ => {
            let larger = device.buffer_uninit(len)?;
            if let Some(old) = kept.replace(larger.clone()) {
                stream.zero(&old)?;
            }
            Ok(larger)
        }
    }
}

/// Zeroes elements in host memory, in the threads of the current rayon pool.
pub(crate) fn zero_elements(elements: &mut [Limbs]) {
    /// Elements that a thread zeroes at once.
    const SHARE: usize = 1 << 12;
    elements.par_chunks_mut(SHARE).for_each(|share| bytemuck::cast_slice_mut::<Limbs, u64>(share).zeroize());
}

/// Points of time between the phases of a multiplication.
pub(super) type Marks = Vec<(&'static str, Timestamp)>;

/// The sums of a queued multiplication on their way to the host.
#[derive(Debug)]
pub(super) struct Queued {
    device: DeviceId,
    transfer: Transfer<Limbs>,
    plan: Plan,
}

/// The bases of one multiplication: their points on the device, and how they are cut into windows.
pub(super) struct Bases<'a> {
    pub(super) programs: &'a Programs,
    pub(super) plan: Plan,
    pub(super) points: &'a Buffer<Limbs>,
    /// A bit for each base: whether it is infinite.
    pub(super) infinite: &'a Buffer<u32>,
    pub(super) count: usize,
}

impl MsmWorkspace {
    /// Makes a workspace. Memory is allocated when it is first needed.
    pub fn new(device: &Device) -> Result<Self> {
        Ok(MsmWorkspace {
            device: device.clone(),
            stream: device.stream()?,
            buffers: Buffers::default(),
            staging: None,
            is_timed: false,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The stream in which multiplications are queued: to wait for events of other streams before, or to record some
    /// after.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Takes timestamps between the phases of each multiplication from now on.
    pub fn timed(mut self) -> Self {
        self.is_timed = true;
        self
    }

    pub(super) fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// Queues zeros over all memory of the device that depends on the scalars of earlier calls.
    pub fn erase(&mut self) -> Result<()> {
        let Buffers { counters, info, offsets, ranks, entries, firsts, .. } = &self.buffers;
        for buffer in [counters, info, offsets, ranks, entries, firsts].into_iter().flatten() {
            self.stream.zero(buffer)?;
        }
        let Buffers { sums, runs, scalars, buckets, partials, results, .. } = &self.buffers;
        for buffer in [sums, runs].into_iter().flatten() {
            self.stream.zero(buffer)?;
        }
        for buffer in [scalars, buckets, partials, results].into_iter().flatten() {
            self.stream.zero(buffer)?;
        }
        Ok(())
    }

    /// Zeroes the memory of the device as far as that is possible, before the workspace is dropped after an error.
    pub(super) fn erase_after_error(&mut self) {
        if let Err(error) = self.erase().and_then(|()| self.stream.flush()) {
            tracing::debug!(device = %self.device.id(), %error, "memory is freed that is not zeroed");
        }
    }

    /// Copies scalars to the device through staging memory.
    pub(super) fn upload(&mut self, scalars: &[Fr]) -> Result<Buffer<Limbs>> {
        let to = grown(&mut self.buffers.scalars, &self.device, &mut self.stream, scalars.len())?;
        self.upload_with(&to, scalars.len(), |part, memory| {
            let from = &scalars[part];
            memory.par_chunks_mut(1 << 12).zip(from.par_chunks(1 << 12)).for_each(|(to, from)| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = (*from).into());
            });
            Ok(())
        })?;
        Ok(to)
    }

    /// Copies elements to a buffer through staging memory, which `fill` writes piece by piece.
    pub(super) fn upload_with(
        &mut self,
        to: &Buffer<Limbs>,
        len: usize,
        mut fill: impl FnMut(std::ops::Range<usize>, &mut [Limbs]) -> Result<()>,
    ) -> Result<()> {
        let staging = match self.staging.take() {
            Some(staging) if staging.len() >= len => staging,
            _ => self.device.staging_buffer(len)?.zeroed_on_release(),
        };
        let upload = self.stream.upload_staged(staging, len, to, |_, part, memory| fill(part, memory))?;
        self.staging = Some(upload.wait()?);
        Ok(())
    }

    /// Zeroes the host memory of the last upload, which had this many elements. The device computes meanwhile.
    pub(super) fn zero_staging(&mut self, len: usize) {
        let mut left = len;
        for piece in self.staging.iter_mut().flat_map(StagingBuffer::pieces_mut) {
            let own = left.min(piece.len());
            zero_elements(&mut piece[..own]);
            left -= own;
        }
    }

    /// Queues a copy of scalars from shared host memory.
    pub(super) fn upload_shared(&mut self, scalars: &SharedBuffer<Limbs>) -> Result<Buffer<Limbs>> {
        let len = scalars.as_slice().len();
        let to = grown(&mut self.buffers.scalars, &self.device, &mut self.stream, len)?;
        self.stream.upload_shared(scalars, 0..len, &to)?;
        Ok(to)
    }

    /// Copies points, and the bits that tell which of them are infinite, to memory that the next such copy reuses.
    pub(super) fn copy_points(
        &mut self,
        points: &[Limbs],
        infinite: &[u32],
    ) -> Result<(Buffer<Limbs>, Buffer<u32>)> {
        let (kept, stream) = (&mut self.buffers, &mut self.stream);
        let on_device = (
            grown(&mut kept.points, &self.device, stream, points.len())?,
            grown(&mut kept.infinite, &self.device, stream, infinite.len())?,
        );
        stream.upload(points, &on_device.0)?;
        stream.upload(infinite, &on_device.1)?;
        Ok(on_device)
    }

    /// Returns whether all memory that depends on scalars is zero.
    #[cfg(test)]
    pub(crate) fn is_erased(&mut self) -> Result<bool> {
        let Buffers { counters, info, offsets, ranks, entries, firsts, .. } = &self.buffers;
        let mut words = Vec::new();
        for buffer in [counters, info, offsets, ranks, entries, firsts].into_iter().flatten() {
            words.extend(self.stream.download(buffer)?.wait()?);
        }
        let Buffers { sums, runs, scalars, buckets, partials, results, .. } = &self.buffers;
        for buffer in [sums, runs].into_iter().flatten() {
            words.extend(self.stream.download(buffer)?.wait()?.into_iter().flatten());
        }
        let mut is_zero = words.into_iter().all(|word| word == 0);
        for buffer in [scalars, buckets, partials, results].into_iter().flatten() {
            is_zero &= self.stream.download(buffer)?.wait()?.iter().all(|limbs| *limbs == Limbs::default());
        }
        Ok(is_zero)
    }

    /// Returns memory for scalars.
    pub(super) fn scalars(&mut self, len: usize) -> Result<Buffer<Limbs>> {
        grown(&mut self.buffers.scalars, &self.device, &mut self.stream, len)
    }

    pub(super) fn mark(&mut self, marks: &mut Marks, phase: &'static str) -> Result<()> {
        if self.is_timed {
            marks.push((phase, self.stream.timestamp()?));
        }
        Ok(())
    }

    /// Queues one multiplication, for at least one base: all kernels, and the copy of their few sums to the host.
    pub(super) fn queue<P: MsmGroup>(
        &mut self,
        bases: &Bases<'_>,
        scalars: &Buffer<Limbs>,
        marks: &mut Marks,
    ) -> Result<Queued> {
        let Bases { programs, plan, points, infinite, count } = *bases;
        let device = self.device.clone();
        let (kept, stream) = (&mut self.buffers, &mut self.stream);
        let digits = count * plan.windows as usize;
        let buckets = plan.buckets() as usize;
        let scan_groups = buckets.div_ceil(SCAN_BUCKETS as usize);
        let counters = grown(&mut kept.counters, &device, stream, buckets)?;
        let sums = grown(&mut kept.sums, &device, stream, scan_groups)?;
        let info = grown(&mut kept.info, &device, stream, 2)?;
        let offsets = grown(&mut kept.offsets, &device, stream, buckets)?;
        let runs = grown(&mut kept.runs, &device, stream, buckets + 1)?;
        let ranks = grown(&mut kept.ranks, &device, stream, digits)?;
        let entries = grown(&mut kept.entries, &device, stream, digits)?;
        let bucket_sums = grown(&mut kept.buckets, &device, stream, buckets * sum_limbs::<P>())?;
        let root_len = plan.sets() as usize * plan.window_bits as usize;
        let results = grown(&mut kept.results, &device, stream, root_len * sum_limbs::<P>())?;
        let points = points.slice(..count * plan.points_per_base() as usize * point_limbs::<P>())?;

        let segments = digits.div_ceil(MIN_SEGMENT as usize).clamp(1, programs.segments as usize);
        let partials = grown(&mut kept.partials, &device, stream, 2 * segments * sum_limbs::<P>())?;
        let firsts = grown(&mut kept.firsts, &device, stream, segments)?;

        let params = Params { segments: segments as u32, ..Params::new(&plan, count) };
        let scalar_groups = (count as u32).div_ceil(SORT_GROUP);
        let scalars = scalars.slice(..count)?;
        stream.zero(&counters)?;
        let count_digits =
            programs.count_digits.bind(&[scalars.arg(), infinite.arg(), counters.arg(), ranks.arg()])?;
        stream.launch(&count_digits, scalar_groups, &params)?;
        self.mark(marks, "count digits")?;
        let stream = &mut self.stream;
        let sum_counters = programs.sum_counters.bind(&[counters.arg(), sums.arg()])?;
        stream.launch(&sum_counters, scan_groups as u32, &params)?;
        stream.launch(&programs.scan_sums.bind(&[sums.arg(), info.arg(), runs.arg()])?, 1, &params)?;
        let write_offsets =
            programs.write_offsets.bind(&[counters.arg(), sums.arg(), offsets.arg(), runs.arg()])?;
        stream.launch(&write_offsets, scan_groups as u32, &params)?;
        self.mark(marks, "scan counters")?;
        let stream = &mut self.stream;
        let arguments = [scalars.arg(), infinite.arg(), ranks.arg(), offsets.arg(), entries.arg()];
        stream.launch(&programs.write_entries.bind(&arguments)?, scalar_groups, &params)?;
        self.mark(marks, "write entries")?;
        let stream = &mut self.stream;
        let accumulate = programs.accumulate.bind(&[
            points.arg(),
            entries.arg(),
            runs.arg(),
            info.arg(),
            bucket_sums.arg(),
            partials.arg(),
            firsts.arg(),
        ])?;
        let group = accumulate.kernel().workgroup_threads() as usize;
        stream.launch(&accumulate, segments.div_ceil(group) as u32, &params)?;
        self.mark(marks, "add points")?;
        let stream = &mut self.stream;
        let merge = programs.merge.bind(&[
            runs.arg(),
            info.arg(),
            firsts.arg(),
            partials.arg(),
            bucket_sums.arg(),
        ])?;
        let depth = segments.next_power_of_two().ilog2();
        for level in (0..depth).step_by(FIRST_LEVELS as usize) {
            let levels = FIRST_LEVELS.min(depth - level);
            let groups = segments.div_ceil(1 << (level + levels)) as u32;
            stream.launch(&merge, groups, &Params { level, levels, ..params })?;
        }
        self.mark(marks, "merge segments")?;
        let stream = &mut self.stream;
        let reduce = programs.reduce.bind(&[counters.arg(), bucket_sums.arg(), results.arg()])?;
        let mut level = 0;
        while level < plan.depth() {
            let levels = if level == 0 { FIRST_LEVELS } else { LATER_LEVELS }.min(plan.depth() - level);
            let groups = (buckets >> (level + levels)) as u32;
            stream.launch(&reduce, groups, &Params { level, levels, ..params })?;
            level += levels;
        }
        self.mark(marks, "reduce buckets")?;
        let host = device.host_buffer(results.len(), Direction::Download)?.zeroed_on_release();
        let transfer = self.stream.download_host(&results, host)?;
        self.mark(marks, "download")?;
        Ok(Queued { device: device.id().clone(), transfer, plan })
    }
}

impl Queued {
    /// Waits for the sums, and combines them: bits of a bucket's index, then windows. Fails with `BadResult` if a coordinate
    /// is not less than the modulus.
    pub(super) fn wait<P: MsmGroup>(self) -> Result<P> {
        let Queued { device, transfer, plan } = self;
        let mut host = transfer.wait()?;
        let total = check_reduced(&device, host.as_slice()).map(|()| combine::<P>(host.as_slice(), plan));
        // The scalars may be secret, and their sums too.
        bytemuck::cast_slice_mut::<Limbs, u64>(host.as_mut_slice()).zeroize();
        total
    }
}

/// Fails if a coordinate is not less than the modulus: arkworks relies on it, and does not end if it inverts a multiple of
/// the modulus.
fn check_reduced(device: &DeviceId, coordinates: &[Limbs]) -> Result<()> {
    match coordinates.iter().all(Limbs::is_reduced_fq) {
        true => Ok(()),
        false => Err(Error::BadResult {
            device: device.clone(),
            operation: "a multi-scalar multiplication".into(),
            detail: "a coordinate is not less than the modulus".into(),
        }),
    }
}

/// Combines the sums of each set of buckets.
fn combine<P: MsmGroup>(sums: &[Limbs], plan: Plan) -> P {
    let sums: &[P::DeviceSum] = bytemuck::cast_slice(sums);
    let of_set = |sums: &[P::DeviceSum]| {
        let mut sums = sums.iter().map(|sum| P::from_device(*sum));
        let all = sums.next().unwrap_or_default();
        // The index of a bucket is one less than its digit.
        sums.rev().fold(P::zero(), |total, bit| total.double() + bit) + all
    };
    let sets = sums.chunks(plan.window_bits as usize).map(of_set);
    sets.rev().fold(P::zero(), |mut total, set| {
        for _ in 0..plan.window_bits {
            total.double_in_place();
        }
        total + set
    })
}

#[cfg(test)]
mod test {
    use ark_bn254::Fq;
    use ark_ff::{BigInt, BigInteger, PrimeField};

    use super::*;

    #[test]
    fn coordinates_that_are_not_reduced_are_a_bad_result() {
        let device = DeviceId::from("any");
        let largest = Limbs::from(-Fq::from(1u64));
        let one = BigInt::from(1u64);
        let mut above = Fq::MODULUS;
        above.add_with_carry(&one);
        assert!(check_reduced(&device, &[Limbs::default(), largest]).is_ok());
        for wrong in [Fq::MODULUS, above, BigInt([u64::MAX; 4])] {
            let error = check_reduced(&device, &[largest, Limbs(wrong.0)]).unwrap_err();
            assert!(matches!(error, Error::BadResult { .. }), "{error}");
        }
    }
}
