//! The engine of GPUs, by the kernels of this crate.
//!
//! The witness is copied to the device once. The constraints are evaluated there, and the quotient polynomial is computed
//! from the result without leaving the device, in three streams: one for the constraints and the quotient, and one for the
//! sums of each group. So the ends of the sums, which keep few threads busy, overlap with other work.

mod constraints;

use std::{ops::Range, sync::Arc, thread};

use ark_bn254::{Fr, G1Affine, G1Projective, G2Affine, G2Projective};
use evener_device::{
    Buffer, Device, Direction, Download, Error as DeviceError, Event, HostBuffer, Result as DeviceResult,
    Stream, Transfer,
};
use rayon::prelude::*;
use zeroize::Zeroize;

pub use self::constraints::GpuConstraints;
use self::constraints::Sides;
use super::{Engine, ProvingKey, Queries, Reduction, Secrets, Witness};
use crate::{
    curve::{AffineG1, AffineG2},
    error::Result,
    field::Limbs,
    msm::{MsmBases, MsmGroup, MsmKernels, MsmOptions, MsmWorkspace, PendingMsm, grown, zero_elements},
};

/// Scalars that are copied to the device at once: one piece is copied while the next is written.
const PIECE: usize = 1 << 16;
/// Scalars that a thread of the host copies or zeroes at once.
const SHARE: usize = 1 << 12;
/// Up to this many scalars, the calling thread copies and zeroes them itself: to wake others takes about as long, and in a
/// batch they prove on the processor.
const MAX_INLINE: usize = PIECE;
/// The scalars of a multiplication begin at a multiple of this: slices that begin at multiples of 2 KiB can be bound on
/// every device.
const SCALAR_ALIGNMENT: usize = 64;

/// Proves on a GPU, through CUDA or wgpu.
#[derive(Debug)]
pub struct GpuEngine {
    device: Device,
    /// Uploads, evaluations and quotients.
    stream: Stream,
    /// Sums in the first group, and in the second.
    g1: MsmWorkspace,
    g2: MsmWorkspace,
    kernels_g1: Option<MsmKernels<G1Projective>>,
    kernels_g2: Option<MsmKernels<G2Projective>>,
    memory: Memory,
    points: PointMemory,
    /// The number of constraints that do not hold, and the first of them.
    failed: Buffer<u32>,
    /// The same on its way to the host, until the last evaluation is checked.
    unchecked: Option<Download<u32>>,
    /// Pinned memory, zeroed while it is here.
    staging: Vec<HostBuffer<Limbs>>,
    uploads: Vec<Transfer<Limbs>>,
}

/// Memory that depends on the witness, each part as long as the largest need so far.
#[derive(Debug, Default)]
struct Memory {
    wires: Option<Buffer<Limbs>>,
    sides: [Option<Buffer<Limbs>>; 3],
    scratch: Option<Buffer<Limbs>>,
}

/// The memory of the device for the points of a key.
#[derive(Debug, Clone, Copy, Default)]
struct PointMemory {
    /// Maximum for all points; `None` without a limit.
    limit: Option<u64>,
    used: u64,
    /// Needed for the points that are not loaded yet, without tables.
    needed: u64,
}

impl PointMemory {
    /// The limit for the next points: what the others leave, without their tables.
    fn limit_for<P: MsmGroup>(&mut self, points: usize) -> Option<u64> {
        self.needed = self.needed.saturating_sub((points * size_of::<P::DevicePoint>()) as u64);
        Some(self.limit?.saturating_sub(self.used + self.needed))
    }
}

/// Points on the device, and the index of the scalar of the first, which may be infinite.
#[derive(Debug)]
pub struct GpuBases<P: MsmGroup> {
    bases: MsmBases<P>,
    first: usize,
    /// Number of infinite points before the others.
    padding: usize,
}

impl<P: MsmGroup> GpuBases<P> {
    /// Copies points. Infinite points are put before them, so that the scalars begin where they can be bound to a kernel.
    fn upload(
        kernels: &MsmKernels<P>,
        points: &[P::Affine],
        first: usize,
        memory: &mut PointMemory,
    ) -> DeviceResult<Self> {
        let padding = first % SCALAR_ALIGNMENT;
        let options =
            MsmOptions { max_resident_bytes: memory.limit_for::<P>(points.len()), ..Default::default() };
        let bases = match padding {
            0 => MsmBases::upload_for(kernels, points, &options)?,
            _ => {
                let infinite = std::iter::repeat_n(P::Affine::default(), padding);
                let padded: Vec<P::Affine> = infinite.chain(points.iter().copied()).collect();
                MsmBases::upload_for(kernels, &padded, &options)?
            }
        };
        memory.used += bases.resident_bytes();
        Ok(GpuBases { bases, first: first - padding, padding })
    }

    fn begin(
        &self,
        workspace: &mut MsmWorkspace,
        range: Range<usize>,
        scalars: &GpuScalars,
    ) -> DeviceResult<PendingMsm<P>> {
        workspace.stream().wait_event(&scalars.ready)?;
        let scalars = scalars.buffer.slice(self.first..self.first + self.bases.len())?;
        // The infinite points belong to the first point's range.
        let start = if range.start == 0 { 0 } else { range.start + self.padding };
        self.bases.queue_device_range(workspace, start..range.end + self.padding, &scalars)
    }
}

impl GpuEngine {
    /// Makes an engine. Kernels are compiled when a key is loaded.
    pub fn new(device: &Device) -> DeviceResult<Self> {
        // The rest is for the constraints, the quotient and the sums.
        let limit = device.describe().memory_bytes.map(|bytes| bytes / 5 * 3);
        Ok(GpuEngine {
            stream: device.stream()?,
            g1: MsmWorkspace::new(device)?,
            g2: MsmWorkspace::new(device)?,
            kernels_g1: None,
            kernels_g2: None,
            memory: Memory::default(),
            points: PointMemory { limit, ..PointMemory::default() },
            failed: device.buffer(2)?,
            unchecked: None,
            staging: Vec::new(),
            uploads: Vec::new(),
            device: device.clone(),
        })
    }

    fn kernels_g1(&mut self) -> DeviceResult<&MsmKernels<G1Projective>> {
        match &mut self.kernels_g1 {
            Some(kernels) => Ok(kernels),
            none => Ok(none.insert(MsmKernels::compile(&self.device)?)),
        }
    }

    fn kernels_g2(&mut self) -> DeviceResult<&MsmKernels<G2Projective>> {
        match &mut self.kernels_g2 {
            Some(kernels) => Ok(kernels),
            none => Ok(none.insert(MsmKernels::compile(&self.device)?)),
        }
    }

    /// Queues the copy of scalars, through pinned memory.
    fn upload(&mut self, scalars: &[Fr], to: &Buffer<Limbs>) -> DeviceResult<()> {
        for (index, piece) in scalars.chunks(PIECE).enumerate() {
            let mut host = match self.staging.pop() {
                Some(host) => host,
                None => self.device.host_buffer(PIECE, Direction::Upload)?.zeroed_on_release(),
            };
            let write = |(to, from): (&mut [Limbs], &[Fr])| {
                to.iter_mut().zip(from).for_each(|(to, from)| *to = (*from).into());
            };
            match scalars.len() <= MAX_INLINE {
                true => write((host.as_mut_slice(), piece)),
                false => {
                    let shares = host.as_mut_slice().par_chunks_mut(SHARE).zip(piece.par_chunks(SHARE));
                    shares.for_each(write);
                }
            }
            let to = to.slice(index * PIECE..)?;
            self.uploads.push(self.stream.upload_host_prefix(host, piece.len(), &to)?);
            self.stream.flush()?;
        }
        Ok(())
    }

    /// Waits for uploads and zeroes their pinned memory. After an error, it zeroes that of the other uploads.
    fn zero_staging(&mut self) -> DeviceResult<()> {
        let mut zeroed = Ok(());
        let is_inline = self.uploads.len() * PIECE <= MAX_INLINE;
        for upload in self.uploads.drain(..) {
            match upload.wait() {
                Ok(mut host) => {
                    match is_inline {
                        true => bytemuck::cast_slice_mut::<Limbs, u64>(host.as_mut_slice()).zeroize(),
                        false => zero_elements(host.as_mut_slice()),
                    }
                    self.staging.push(host);
                }
                // The device may still read the memory. It is zeroed when the device has released it.
                Err(error) => zeroed = zeroed.and(Err(error)),
            }
        }
        zeroed
    }
}

impl Engine for GpuEngine {
    type G1Bases = GpuBases<G1Projective>;
    type G2Bases = GpuBases<G2Projective>;
    type Constraints = GpuConstraints;
    type Scalars = GpuScalars;
    type Values = GpuValues;
    type G1Sum = PendingMsm<G1Projective>;
    type G2Sum = PendingMsm<G2Projective>;

    fn load_constraints(&mut self, key: &ProvingKey) -> DeviceResult<GpuConstraints> {
        // All kernels are compiled at once. The choice of the arithmetic is measured before, alone.
        crate::field::Emitter::for_device(&self.device)?;
        let device = &self.device;
        let (g1, g2, constraints) = thread::scope(|scope| {
            let g1 = scope.spawn(|| MsmKernels::compile(device));
            let g2 = scope.spawn(|| MsmKernels::compile(device));
            let constraints = GpuConstraints::upload(device, key);
            let (g1, g2) = (g1.join(), g2.join());
            let resume = |panic| -> ! { std::panic::resume_unwind(panic) };
            (g1.unwrap_or_else(|it| resume(it)), g2.unwrap_or_else(|it| resume(it)), constraints)
        });
        (self.kernels_g1, self.kernels_g2) = (Some(g1?), Some(g2?));
        let Queries { a, b_g1, b_g2, l, .. } = &key.queries;
        let points_g1 = a.len() + b_g1.len() + l.len() + key.domain();
        let bytes = points_g1 * size_of::<AffineG1>() + b_g2.len() * size_of::<AffineG2>();
        self.points = PointMemory { used: 0, needed: bytes as u64, ..self.points };
        constraints
    }

    fn load_g1(&mut self, points: &Arc<[G1Affine]>, first: usize) -> DeviceResult<Self::G1Bases> {
        let mut memory = self.points;
        let bases = GpuBases::upload(self.kernels_g1()?, points, first, &mut memory)?;
        self.points = memory;
        Ok(bases)
    }

    fn load_g2(&mut self, points: &Arc<[G2Affine]>, first: usize) -> DeviceResult<Self::G2Bases> {
        let mut memory = self.points;
        let bases = GpuBases::upload(self.kernels_g2()?, points, first, &mut memory)?;
        self.points = memory;
        Ok(bases)
    }

    fn load_scalars(&mut self, scalars: &[Fr]) -> DeviceResult<GpuScalars> {
        let to = grown(&mut self.memory.wires, &self.device, &mut self.stream, scalars.len())?;
        self.upload(scalars, &to)?;
        Ok(GpuScalars { buffer: to, ready: self.stream.record_event()? })
    }

    fn evaluate(
        &mut self,
        constraints: &GpuConstraints,
        _: &ProvingKey,
        _: &Witness,
        wires: &GpuScalars,
    ) -> DeviceResult<Result<GpuValues>> {
        let [a, b, c] = &mut self.memory.sides;
        let mut side = |side| grown(side, &self.device, &mut self.stream, constraints.domain());
        let sides = Sides { a: side(a)?, b: side(b)?, c: side(c)? };
        let scratch = grown(&mut self.memory.scratch, &self.device, &mut self.stream, constraints.scratch())?;
        constraints.evaluate(&mut self.stream, &wires.buffer, &scratch, &self.failed, &sides)?;
        self.unchecked = match constraints.can_check() {
            true => Some(self.stream.download(&self.failed)?),
            false => None,
        };
        Ok(Ok(GpuValues(sides)))
    }

    fn check(&mut self, key: &ProvingKey, witness: &Witness) -> DeviceResult<Result<()>> {
        let Some(failed) = self.unchecked.take() else { return Ok(Ok(())) };
        let failed = failed.wait()?;
        if failed.first() == Some(&0) {
            return Ok(Ok(()));
        }
        // The host decides whether the witness is wrong or the device.
        match key.evaluate(witness) {
            Err(error) => Ok(Err(error)),
            Ok(_) => Err(DeviceError::BadResult {
                device: self.device.id().clone(),
                operation: "evaluating the constraints".into(),
                detail: format!("{failed:?} do not hold, and on the host all do"),
            }),
        }
    }

    fn quotient(
        &mut self,
        constraints: &GpuConstraints,
        values: GpuValues,
        _: Reduction,
    ) -> DeviceResult<GpuScalars> {
        constraints.quotient(&mut self.stream, &values.0)?;
        Ok(GpuScalars { buffer: values.0.a, ready: self.stream.record_event()? })
    }

    fn read_scalars(&mut self, scalars: &GpuScalars) -> DeviceResult<Secrets<Fr>> {
        let host = self.device.host_buffer(scalars.buffer.len(), Direction::Download)?.zeroed_on_release();
        let mut host = self.stream.download_host(&scalars.buffer, host)?.wait()?;
        let are_reduced = host.as_slice().par_iter().with_min_len(SHARE).all(|limbs| limbs.is_reduced_fr());
        let read = are_reduced.then(|| {
            let elements = host.as_slice().par_iter().with_min_len(SHARE).map(|limbs| Fr::from(*limbs));
            Secrets::from(elements.collect::<Vec<Fr>>())
        });
        zero_elements(host.as_mut_slice());
        read.ok_or_else(|| DeviceError::BadResult {
            device: self.device.id().clone(),
            operation: "reading scalars".into(),
            detail: "a scalar is not less than the modulus".into(),
        })
    }

    fn begin_g1(
        &mut self,
        points: &Self::G1Bases,
        range: Range<usize>,
        scalars: &GpuScalars,
    ) -> DeviceResult<PendingMsm<G1Projective>> {
        points.begin(&mut self.g1, range, scalars)
    }

    fn begin_g2(
        &mut self,
        points: &Self::G2Bases,
        range: Range<usize>,
        scalars: &GpuScalars,
    ) -> DeviceResult<PendingMsm<G2Projective>> {
        points.begin(&mut self.g2, range, scalars)
    }

    fn finish_g1(&mut self, sum: PendingMsm<G1Projective>) -> DeviceResult<G1Projective> {
        sum.wait()
    }

    fn finish_g2(&mut self, sum: PendingMsm<G2Projective>) -> DeviceResult<G2Projective> {
        sum.wait()
    }

    fn wait(&mut self) -> DeviceResult<()> {
        for stream in [&mut self.stream, self.g1.stream(), self.g2.stream()] {
            stream.wait()?;
        }
        Ok(())
    }

    fn erase(&mut self) -> DeviceResult<()> {
        self.unchecked = None;
        for workspace in [&mut self.g1, &mut self.g2] {
            // Sums that were not waited for, after an error, still read the scalars.
            self.stream.wait_event(&workspace.stream().record_event()?)?;
            workspace.erase()?;
            workspace.stream().flush()?;
        }
        let Memory { wires, sides, scratch } = &self.memory;
        for buffer in [wires, scratch].into_iter().chain(sides).flatten() {
            self.stream.zero(buffer)?;
        }
        self.stream.flush()?;
        self.zero_staging()
    }
}

/// Secret scalars, in the engine's memory. No other crate can read them.
#[derive(Debug)]
pub struct GpuScalars {
    buffer: Buffer<Limbs>,
    /// When they are there: sums over the wires do not wait for the evaluation of the constraints.
    ready: Event,
}

/// The values of A, B and their product on the domain, in the engine's memory.
#[derive(Debug)]
pub struct GpuValues(Sides);

#[cfg(test)]
mod test {
    use evener_device::{
        Api,
        testing::{Fault, Faults, InjectedError},
    };
    use evener_schedule::Resident;

    use super::{
        super::{CpuEngine, Part, PartSum, ProofMaker, SharedProof, Squares, Sum, Worker},
        *,
    };
    use crate::field::test::devices;

    impl GpuEngine {
        /// Returns whether all memory that depends on the witness is zero.
        fn is_erased(&mut self) -> bool {
            let Memory { wires, sides, scratch } = &self.memory;
            let mut is_zero = true;
            for buffer in [wires, scratch].into_iter().chain(sides).flatten() {
                let limbs = self.stream.download(buffer).unwrap().wait().unwrap();
                is_zero &= limbs.iter().all(|limbs| *limbs == Limbs::default());
            }
            let mut staged = self.staging.iter().flat_map(|host| host.as_slice());
            is_zero &= self.uploads.is_empty() && staged.all(|limbs| *limbs == Limbs::default());
            // Memory of copies that failed is reused by the next ones.
            for direction in [Direction::Upload, Direction::Download] {
                let reused: Vec<HostBuffer<Limbs>> =
                    (0..4).map(|_| self.device.host_buffer(PIECE, direction).unwrap()).collect();
                let mut reused = reused.iter().flat_map(|host| host.as_slice());
                is_zero &= reused.all(|limbs| *limbs == Limbs::default());
            }
            is_zero && self.g1.is_erased().unwrap() && self.g2.is_erased().unwrap()
        }
    }

    fn key(power: u32) -> (Squares, ProvingKey) {
        let circuit = Squares::filling(power);
        (circuit, ProvingKey::set_up(&circuit.r1cs().unwrap()).unwrap())
    }

    /// All parts of a shared proof's sums, cut in the middle.
    fn parts(key: &ProvingKey) -> Vec<Part> {
        let halves =
            |sum, points: usize| [0..points / 2, points / 2..points].map(|range| Part { sum, range });
        let wires = [Sum::A, Sum::B1, Sum::B2].map(|sum| halves(sum, key.wires()));
        let others = [halves(Sum::L, key.queries.l.len()), halves(Sum::H, key.domain())];
        wires.into_iter().chain(others).flatten().collect()
    }

    fn check_erasure(device: &Device) {
        let (circuit, key) = key(5);
        let (wrapped, faults) = Faults::wrap(device);
        let engine = GpuEngine::new(&wrapped).unwrap();
        let mut worker = Worker::new(engine, &key, &Resident::default()).unwrap();
        let witness = || Arc::new(circuit.witness(Fr::from(3)).unwrap());
        let (r, s) = (Fr::from(5), Fr::from(6));
        worker.make(&key, &witness(), &r, &s).unwrap().unwrap();
        assert!(worker.engine().is_erased(), "after a proof");

        // All parts of a shared proof, by one device.
        let share = |worker: &mut Worker<GpuEngine>| {
            let proof = SharedProof::for_test(witness());
            let quotient = worker.make_quotient(&key, &proof)?;
            proof.set_quotient(Arc::new(quotient.unwrap()));
            worker.add_up(&key, &proof, &parts(&key))
        };
        share(&mut worker).unwrap();
        assert!(!worker.engine().is_erased(), "the witness stays for further parts of the proof");
        worker.erase().unwrap();
        assert!(worker.engine().is_erased(), "after a shared proof");

        // All memory is allocated now, so that the next proofs have as many operations as these.
        let before = faults.operations();
        worker.make(&key, &witness(), &r, &s).unwrap().unwrap();
        let of_whole = faults.operations() - before;
        share(&mut worker).unwrap();
        let of_shared = faults.operations() - before - of_whole;
        worker.erase().unwrap();
        for step in 0..8 {
            let fail_at = |operation| {
                faults.at(faults.operations() + operation, Fault::Fail(InjectedError::OutOfMemory))
            };
            fail_at(1 + step * of_whole / 8);
            let _ = worker.make(&key, &witness(), &r, &s);
            assert!(worker.engine().is_erased(), "after an error of a proof, at {step} of 8");
            fail_at(1 + step * of_shared / 8);
            assert!(share(&mut worker).is_err());
            assert!(worker.engine().is_erased(), "after an error of a shared proof, at {step} of 8");
        }
    }

    /// A key of which little or nothing stays on the device.
    fn check_memory_limit(device: &Device) {
        let (circuit, key) = key(7);
        let witness = Arc::new(circuit.witness(Fr::from(3)).unwrap());
        let (r, s) = (Fr::from(5), Fr::from(6));
        let host = CpuEngine::new(device.id().clone());
        let mut host = Worker::new(host, &key, &Resident::default()).unwrap();
        let expected = host.make(&key, &witness, &r, &s).unwrap().unwrap();
        let proof = SharedProof::for_test(witness.clone());
        proof.set_quotient(Arc::new(host.make_quotient(&key, &proof).unwrap().unwrap()));
        let expected_parts = host.add_up(&key, &proof, &parts(&key)).unwrap();
        let all = {
            let mut engine = GpuEngine::new(device).unwrap();
            engine.points.limit = None;
            let _key = Worker::new(engine, &key, &Resident::default()).unwrap();
            _key.resident_bytes()
        };
        for limit in [0, all / 2] {
            let mut engine = GpuEngine::new(device).unwrap();
            engine.points.limit = Some(limit);
            let mut worker = Worker::new(engine, &key, &Resident::default()).unwrap();
            let used = worker.resident_bytes();
            assert!(used <= limit && (used > 0) == (limit > 0), "{used} of at most {limit} bytes");
            assert_eq!(worker.make(&key, &witness, &r, &s).unwrap().unwrap(), expected, "{limit} bytes");
            let found = worker.add_up(&key, &proof, &parts(&key)).unwrap();
            for (found, expected) in found.iter().zip(&expected_parts) {
                let is_same = match (found, expected) {
                    (PartSum::G1(found), PartSum::G1(expected)) => found == expected,
                    (PartSum::G2(found), PartSum::G2(expected)) => found == expected,
                    _ => false,
                };
                assert!(is_same, "{limit} bytes");
            }
            worker.erase().unwrap();
        }
    }

    impl Worker<GpuEngine> {
        /// Bytes of the key's points on the device.
        fn resident_bytes(&self) -> u64 {
            let key = self.loaded();
            let g1 = [&key.a, &key.b_g1, &key.l, &key.h].map(|points| points.bases.resident_bytes());
            g1.iter().sum::<u64>() + key.b_g2.bases.resident_bytes()
        }
    }

    #[test]
    #[ignore = "needs a Vulkan device"]
    fn nothing_of_a_witness_stays_on_the_device_also_after_errors_with_vulkan() {
        check_erasure(&devices(Api::Vulkan)[0]);
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn nothing_of_a_witness_stays_on_the_device_also_after_errors_with_card() {
        check_erasure(&devices(Api::Cuda)[0]);
    }

    #[test]
    #[ignore = "needs a Vulkan device"]
    fn a_key_that_does_not_fit_is_copied_in_chunks_with_vulkan() {
        check_memory_limit(&devices(Api::Vulkan)[0]);
    }

    #[test]
    #[ignore = "needs a CUDA device"]
    fn a_key_that_does_not_fit_is_copied_in_chunks_with_card() {
        check_memory_limit(&devices(Api::Cuda)[0]);
    }
}
