//! Transforms over the devices of a pool.
#![allow(unsafe_code)] // For `BorrowedElements`.

use std::ptr::NonNull;

use ark_bn254::Fr;
use ark_ff::Zero;
use ark_poly::{EvaluationDomain, Radix2EvaluationDomain};
use evener_device::{
    Api, Buffer, Device, DeviceId, Direction, Error, HostBuffer, Result, StagingBuffer, Stream,
};
use evener_schedule::{Chunk, Pool, Results, RunError, Task};
use rayon::prelude::*;

use super::{MAX_LOG_LEN, Ntt};
use crate::{field::Limbs, msm::zero_elements, secrets::Secrets};

/// Elements that a thread copies at once.
const SHARE: usize = 1 << 12;

/// A transform of polynomials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transform {
    /// Coefficients to values at the powers of ω.
    Ntt,
    /// Values at the powers of ω to coefficients.
    Intt,
    /// Coefficients to values at a shift times the powers of ω. The shift is not zero.
    CosetNtt(Fr),
    /// Values at a shift times the powers of ω to coefficients. The shift is not zero.
    CosetIntt(Fr),
}

/// A failure of a transform over a pool.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NttError {
    /// The number of elements is not a power of two, or there are no roots of unity of this order.
    #[error("polynomial {index} has {len} elements: a power of two up to 2^{MAX_LOG_LEN} is needed")]
    Length {
        /// The polynomial.
        index: usize,
        /// The number of its elements.
        len: usize,
    },
    /// The shift of a coset is zero.
    #[error("the shift of a coset is zero")]
    ZeroShift,
    /// The run failed.
    #[error(transparent)]
    Run(#[from] RunError),
}

/// Replaces coefficients by the polynomial's values at the powers of ω, in natural order, on the device of a pool that is
/// fastest for it. After an error, the elements are unchanged.
///
/// ```
/// use ark_bn254::Fr;
/// use evener_device::Device;
/// use evener_schedule::Pool;
/// use evener_zk::ntt;
///
/// let pool = Pool::new([Device::cpu()])?;
/// let coefficients: Vec<Fr> = (0..8u64).map(Fr::from).collect();
/// let mut polynomial = coefficients.clone();
/// ntt::ntt(&pool, &mut polynomial)?;
/// assert_eq!(polynomial[0], Fr::from(28), "the value at 1 is the sum of the coefficients");
/// ntt::intt(&pool, &mut polynomial)?;
/// assert_eq!(polynomial, coefficients);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn ntt(pool: &Pool, polynomial: &mut [Fr]) -> Result<(), NttError> {
    transform_batch(pool, Transform::Ntt, &mut [polynomial])
}

/// Replaces values at the powers of ω by the polynomial's coefficients, as [`ntt`] does the opposite.
pub fn intt(pool: &Pool, polynomial: &mut [Fr]) -> Result<(), NttError> {
    transform_batch(pool, Transform::Intt, &mut [polynomial])
}

/// Replaces coefficients by the polynomial's values at `shift` times the powers of ω, as [`ntt`] does. Fails if the shift is
/// zero.
///
/// ```
/// use ark_bn254::Fr;
/// use evener_device::Device;
/// use evener_schedule::Pool;
/// use evener_zk::ntt;
///
/// let pool = Pool::new([Device::cpu()])?;
/// let mut polynomial = [1u64, 2, 0, 0].map(Fr::from); // 1 + 2x
/// ntt::coset_ntt(&pool, &mut polynomial, Fr::from(5))?;
/// assert_eq!(polynomial[0], Fr::from(11));
/// ntt::coset_intt(&pool, &mut polynomial, Fr::from(5))?;
/// assert_eq!(polynomial, [1u64, 2, 0, 0].map(Fr::from));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn coset_ntt(pool: &Pool, polynomial: &mut [Fr], shift: Fr) -> Result<(), NttError> {
    transform_batch(pool, Transform::CosetNtt(shift), &mut [polynomial])
}

/// Replaces values at `shift` times the powers of ω by the polynomial's coefficients, as [`coset_ntt`] does the opposite.
pub fn coset_intt(pool: &Pool, polynomial: &mut [Fr], shift: Fr) -> Result<(), NttError> {
    transform_batch(pool, Transform::CosetIntt(shift), &mut [polynomial])
}

/// Transforms polynomials, each in place, spread over the devices of a pool by their measured rates. After an error, all
/// elements are unchanged. The elements may be secret: all other memory that depends on them is zeroed.
///
/// ```
/// use ark_bn254::Fr;
/// use evener_device::Device;
/// use evener_schedule::Pool;
/// use evener_zk::ntt::{Transform, transform_batch};
///
/// let pool = Pool::new([Device::cpu()])?;
/// let mut polynomials: Vec<Vec<Fr>> = (0..3u64).map(|number| vec![Fr::from(number); 4]).collect();
/// transform_batch(&pool, Transform::Intt, &mut polynomials)?;
/// assert_eq!(polynomials[2], [2u64, 0, 0, 0].map(Fr::from));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn transform_batch<P: AsMut<[Fr]>>(
    pool: &Pool,
    transform: Transform,
    polynomials: &mut [P],
) -> Result<(), NttError> {
    if matches!(transform, Transform::CosetNtt(shift) | Transform::CosetIntt(shift) if shift.is_zero()) {
        return Err(NttError::ZeroShift);
    }
    let mut polynomials: Vec<&mut [Fr]> = polynomials.iter_mut().map(AsMut::as_mut).collect();
    for (index, polynomial) in polynomials.iter().enumerate() {
        let len = polynomial.len();
        if !len.is_power_of_two() || len.ilog2() > MAX_LOG_LEN {
            return Err(NttError::Length { index, len });
        }
    }
    let Some(largest) = polynomials.iter().map(|polynomial| polynomial.len()).max() else { return Ok(()) };
    let results = {
        // SAFETY: the polynomials are borrowed until this function returns, and not written before `items` is dropped. The
        // scheduler lends items to tasks only while the call to `map` has not returned.
        let items: Vec<BorrowedElements> =
            polynomials.iter().map(|polynomial| unsafe { BorrowedElements::new(polynomial) }).collect();
        let task = NttTask { transform, log_largest: largest.ilog2() };
        pool.map(&task, &items)?.into_results()
    };
    for (polynomial, result) in polynomials.iter_mut().zip(results) {
        let shares = polynomial.par_chunks_mut(SHARE).zip(result.par_chunks(SHARE));
        shares.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to = (*from).into()));
        drop(result);
    }
    Ok(())
}

/// Elements that the caller of a run owns, without a lifetime.
///
/// The items of a run must be `'static`, because a thread of a hung device may outlive the run. The scheduler passes items
/// to tasks only as references within [`Chunk::read`], which does not return items after the run has ended. So no access
/// outlives the call that started the run.
#[derive(Debug)]
struct BorrowedElements {
    elements: NonNull<Fr>,
    len: usize,
}

// SAFETY: the pointer is only used for shared references to elements, which any thread may read.
unsafe impl Send for BorrowedElements {}
// SAFETY: as for `Send`: all accesses are shared reads.
unsafe impl Sync for BorrowedElements {}

impl BorrowedElements {
    /// Erases the lifetime of a slice.
    ///
    /// # Safety
    /// The slice must stay valid and unchanged while the result exists.
    unsafe fn new(elements: &[Fr]) -> Self {
        BorrowedElements { elements: NonNull::from(elements).cast(), len: elements.len() }
    }

    fn elements(&self) -> &[Fr] {
        // SAFETY: pointer and length come from a slice in `new`, whose caller keeps it valid and unchanged.
        unsafe { std::slice::from_raw_parts(self.elements.as_ptr(), self.len) }
    }
}

/// Transforms one polynomial per item.
#[derive(Clone)]
struct NttTask {
    transform: Transform,
    log_largest: u32,
}

/// A worker's kernels and memory, for transforms of any kind.
enum Worker {
    Processor,
    Device(Box<DeviceWorker>),
}

struct DeviceWorker {
    device: Device,
    stream: Stream,
    /// Transforms of up to this power of two.
    ntt: (u32, Ntt),
    data: Option<Buffer<Limbs>>,
    staging: Option<StagingBuffer<Limbs>>,
    arrived: Option<HostBuffer<Limbs>>,
}

impl Task for NttTask {
    type Input = BorrowedElements;
    type Output = Secrets<Limbs>;
    type State = Worker;

    fn name(&self) -> &str {
        match self.transform {
            Transform::Ntt => "ntt",
            Transform::Intt => "intt",
            Transform::CosetNtt(_) => "coset ntt",
            Transform::CosetIntt(_) => "coset intt",
        }
    }

    fn fingerprint(&self) -> u64 {
        self.log_largest.into()
    }

    fn state_id(&self) -> Option<u64> {
        Some(0)
    }

    fn can_use(&self, device: &Device) -> bool {
        // Arkworks computes on this machine only.
        !device.describe().is_remote_processor()
    }

    fn prepare(&self, device: &Device) -> Result<Worker> {
        if device.describe().api == Api::Cpu {
            return Ok(Worker::Processor);
        }
        Ok(Worker::Device(Box::new(DeviceWorker {
            device: device.clone(),
            stream: device.stream()?,
            ntt: (self.log_largest, Ntt::new(device, self.log_largest)?.secret()),
            data: None,
            staging: None,
            arrived: None,
        })))
    }

    fn workers(&self, device: &Device) -> usize {
        // Arkworks uses all cores. One worker of a GPU copies while the other computes.
        if device.describe().api == Api::Cpu { 1 } else { 2 }
    }

    fn may_hang(&self, device: &Device) -> bool {
        device.describe().api != Api::Cpu
    }

    fn is_divisible(&self, _: &Device) -> bool {
        true
    }

    fn costs(&self, items: &[BorrowedElements]) -> Option<Vec<f64>> {
        let cost = |item: &BorrowedElements| item.len as f64 * f64::from(item.len.ilog2().max(1));
        Some(items.iter().map(cost).collect())
    }

    fn run<'s>(
        &self,
        state: &'s mut Worker,
        chunk: &Chunk<'_, BorrowedElements>,
        results: &mut Results<'s, Secrets<Limbs>>,
    ) -> Result<()> {
        while let Some(claimed) = chunk.claim(results, 1) {
            for index in claimed {
                results.push(match state {
                    Worker::Processor => {
                        let elements = chunk.read(|items| items[index].elements().to_vec())?;
                        let mut elements = Secrets::from(elements);
                        on_processor(self.transform, &mut elements);
                        let limbs = elements.par_iter().with_min_len(SHARE).map(|it| Limbs::from(*it));
                        limbs.collect::<Vec<_>>().into()
                    }
                    Worker::Device(worker) => worker.run(self.transform, chunk, index)?,
                });
            }
        }
        Ok(())
    }
}

/// Transforms elements with arkworks.
fn on_processor(transform: Transform, elements: &mut Vec<Fr>) {
    // The caller has checked the length and the shift, so there is such a domain and such a coset.
    let Some(domain) = Radix2EvaluationDomain::<Fr>::new(elements.len()) else { return };
    let coset = |shift| domain.get_coset(shift).unwrap_or(domain);
    match transform {
        Transform::Ntt => domain.fft_in_place(elements),
        Transform::Intt => domain.ifft_in_place(elements),
        Transform::CosetNtt(shift) => coset(shift).fft_in_place(elements),
        Transform::CosetIntt(shift) => coset(shift).ifft_in_place(elements),
    }
}

impl DeviceWorker {
    fn run(
        &mut self,
        transform: Transform,
        chunk: &Chunk<'_, BorrowedElements>,
        index: usize,
    ) -> Result<Secrets<Limbs>> {
        let len = chunk.read(|items| items[index].len)?;
        if len.ilog2() > self.ntt.0 {
            self.ntt = (len.ilog2(), Ntt::new(&self.device, len.ilog2())?.secret());
        }
        let data = match self.data.take() {
            Some(data) if data.len() >= len => data,
            _ => self.device.buffer_uninit(len)?,
        };
        let own = data.slice(..len)?;
        let transformed = self.run_in(&own, transform, chunk, index);
        match transformed {
            Ok(_) => self.data = Some(data),
            // The memory is freed, and other programs or tasks may get it.
            Err(_) => drop(self.stream.zero(&own).and_then(|()| self.stream.flush())),
        }
        transformed
    }

    /// Transforms elements in memory of the device, and zeroes it.
    fn run_in(
        &mut self,
        own: &Buffer<Limbs>,
        transform: Transform,
        chunk: &Chunk<'_, BorrowedElements>,
        index: usize,
    ) -> Result<Secrets<Limbs>> {
        let len = own.len();
        let staging = match self.staging.take() {
            Some(staging) if staging.len() >= len => staging,
            _ => self.device.staging_buffer(len)?.zeroed_on_release(),
        };
        let arrived = match self.arrived.take() {
            Some(arrived) if arrived.as_slice().len() >= len => arrived,
            _ => self.device.host_buffer(len, Direction::Download)?.zeroed_on_release(),
        };
        // The caller's memory is read piece by piece, and never while waiting for the device.
        let upload = self.stream.upload_staged(staging, len, own, |_, piece, memory| {
            chunk.read(|items| {
                let from = &items[index].elements()[piece];
                let shares = memory.par_chunks_mut(SHARE).zip(from.par_chunks(SHARE));
                shares.for_each(|(to, from)| {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = (*from).into());
                });
            })
        })?;
        let (stream, ntt) = (&mut self.stream, &self.ntt.1);
        match transform {
            Transform::Ntt => ntt.ntt(stream, own)?,
            Transform::Intt => ntt.intt(stream, own)?,
            Transform::CosetNtt(shift) => ntt.coset_ntt(stream, own, shift)?,
            Transform::CosetIntt(shift) => ntt.coset_intt(stream, own, shift)?,
        }
        let download = stream.download_host(own, arrived)?;
        stream.zero(own)?;
        stream.flush()?;
        let mut staging = upload.wait()?;
        // The device computes meanwhile.
        staging.pieces_mut().for_each(zero_elements);
        self.staging = Some(staging);
        let mut arrived = download.wait()?;
        let elements = arrived.as_slice()[..len].par_iter().with_min_len(SHARE).copied().collect::<Vec<_>>();
        zero_elements(&mut arrived.as_mut_slice()[..len]);
        self.arrived = Some(arrived);
        reduced(self.device.id(), elements.into())
    }
}

/// Fails if an element is not less than the modulus: arkworks relies on it.
fn reduced(device: &DeviceId, elements: Secrets<Limbs>) -> Result<Secrets<Limbs>> {
    match elements.par_iter().with_min_len(SHARE).all(Limbs::is_reduced_fr) {
        true => Ok(elements),
        false => Err(Error::BadResult {
            device: device.clone(),
            operation: "a number-theoretic transform".into(),
            detail: "an element is not less than the modulus".into(),
        }),
    }
}
