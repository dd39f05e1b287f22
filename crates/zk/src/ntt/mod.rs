//! Number-theoretic transforms over `Fr`: on a GPU in few passes over memory, on the processor with arkworks.
//!
//! [`Ntt`] transforms buffers of one device. [`ntt`](ntt()), [`intt`], [`coset_ntt`] and [`coset_intt`] transform a slice on the
//! devices of a pool, and [`transform_batch`] many of them.
//!
//! A transform of 2^k elements computes `X[j] = Σ x[i] · ω^(i·j)`, where ω is the root of unity of order 2^k that arkworks
//! uses, or its inverse.
//!
//! # Passes
//! The transform is cut into passes of a radix R of at most 2^8 (Bailey). With N = R · M, the index of an input is
//! n₁ · M + n₂, and that of an output k₁ + R · k₂:
//!
//! `X[k₁ + R · k₂] = Σₙ₂ ω_M^(n₂·k₂) · ω_N^(n₂·k₁) · Σₙ₁ ω_R^(n₁·k₁) · x[n₁ · M + n₂]`
//!
//! A pass computes the inner sums, which are transforms of *columns* of R elements at a distance of M, multiplies by the
//! *twiddles* ω_N^(n₂·k₁), and leaves *segments* of M elements to the next pass. A workgroup loads a tile of several
//! adjacent columns and transforms them in shared memory, two butterfly stages at a time. All passes work in place.
//!
//! # Order
//! Decimation in frequency takes inputs in natural order and leaves the outputs in bit-reversed order: output j is where j
//! has its bits reversed. Decimation in time is its transpose and does the opposite. With a pointwise operation between
//! the two, nothing is ever permuted. For outputs in natural order, the last pass writes each element where it belongs.
//!
//! ```
//! use ark_bn254::Fr;
//! use evener_device::Device;
//! use evener_zk::{field::Limbs, ntt::Ntt};
//!
//! let device = Device::cpu();
//! let (ntt, mut stream) = (Ntt::new(&device, 3)?, device.stream()?);
//! let numbers: Vec<Limbs> = (0..8u64).map(|number| Fr::from(number).into()).collect();
//! let data = device.buffer_from(&numbers)?;
//! ntt.ntt(&mut stream, &data)?;
//! ntt.intt(&mut stream, &data)?;
//! assert_eq!(stream.download(&data)?.wait()?, numbers);
//! # Ok::<(), evener_device::Error>(())
//! ```

mod kernels;
mod pool;
mod processor;
#[cfg(test)]
mod test;

use ark_bn254::Fr;
use ark_ff::{FftField, Field};
use evener_device::{Buffer, Device, Error, Program, Result, Stream};

use self::kernels::{Flags, Params, PowerParams};
pub use self::pool::{NttError, Transform, coset_intt, coset_ntt, intt, ntt, transform_batch};
use crate::field::{Emitter, Limbs};

/// The largest supported transform, as a power of two: roots of unity of this order exist in `Fr`.
pub const MAX_LOG_LEN: u32 = 28;

/// The largest radix of a pass, as a power of two. Larger ones leave too few adjacent columns in a tile.
const MAX_LOG_RADIX: u32 = 8;

/// Which root of unity a transform uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Root {
    /// ω: from coefficients to values.
    Forward,
    /// 1 / ω: from values to coefficients, which still have to be divided by their number.
    Inverse,
}

/// The order of elements in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// Element j is at index j.
    Natural,
    /// Element j is at the index whose bits are those of j in reverse.
    BitReversed,
}

/// Factors that the elements are multiplied by, in the same passes over memory.
#[derive(Debug, Clone, Copy, Default)]
pub enum Scale<'a> {
    /// None.
    #[default]
    None,
    /// Each input is multiplied by the element of the table at the same index in memory.
    Before(&'a Buffer<Limbs>),
    /// Each output is multiplied by the element of the table at the same index in memory.
    After(&'a Buffer<Limbs>),
    /// Each output is multiplied by one factor.
    AfterBy(Fr),
}

/// Transforms on one device, of any power of two up to a capacity.
#[derive(Debug, Clone)]
pub struct Ntt {
    device: Device,
    log_capacity: u32,
    log_tile: u32,
    programs: Programs,
    powers: Program,
    /// Roots of unity for the transforms of columns, forward and inverse, then half of the roots of the capacity's order.
    /// The processor needs none.
    roots: Buffer<Limbs>,
    /// Whether temporary buffers are zeroed.
    is_secret: bool,
}

#[derive(Debug, Clone)]
enum Programs {
    Gpu { frequency: Program, frequency_in_place: Program, time_in_place: Program },
    Processor(Program),
}

/// How a transform goes through memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decimation {
    InFrequency,
    InTime,
    /// In frequency, with outputs in natural order.
    Ordered,
}

impl Ntt {
    /// Compiles the kernels and computes the roots of unity for transforms of up to 2^`log_capacity` elements, which takes
    /// 16 bytes of device memory per element.
    ///
    /// Fails with `Unsupported` if `log_capacity` is more than [`MAX_LOG_LEN`].
    pub fn new(device: &Device, log_capacity: u32) -> Result<Ntt> {
        if log_capacity > MAX_LOG_LEN {
            let detail =
                format!("2^{log_capacity} elements, and there are roots of unity for 2^{MAX_LOG_LEN}");
            return Err(unsupported(device, detail));
        }
        if device.describe().is_remote_processor() {
            return Err(unsupported(device, "arkworks computes on this machine only".into()));
        }
        if device.describe().api == evener_device::Api::Cpu {
            return Ntt::on_processor(device, log_capacity);
        }
        Ntt::with_emitter(device, log_capacity, Emitter::for_device(device)?)
    }

    /// As [`new`](Ntt::new) on a GPU, with field arithmetic of the caller's choice.
    #[allow(unsafe_code)]
    pub fn with_emitter(device: &Device, log_capacity: u32, emitter: Emitter) -> Result<Ntt> {
        let log_tile = kernels::log_tile(device.capabilities()?.max_shared_bytes);
        // SAFETY: the kernels are launched by `transform` and `fill_powers` alone, which keep what the function asks for.
        let kernels = unsafe { kernels::on_gpu(emitter, log_tile) };
        let [frequency, frequency_in_place, time_in_place, powers] = kernels.map(|it| device.compile(&it));
        let programs = Programs::Gpu {
            frequency: frequency?,
            frequency_in_place: frequency_in_place?,
            time_in_place: time_in_place?,
        };
        let small = kernels::LOCAL_ROOTS;
        let large = (1usize << log_capacity) / 2;
        let roots = device.buffer_uninit(2 * small + large.max(1))?;
        let ntt = Ntt {
            device: device.clone(),
            log_capacity,
            log_tile,
            programs,
            powers: powers?,
            roots,
            is_secret: false,
        };
        let (mut stream, one) = (device.stream()?, Fr::from(1u64));
        let of_columns = root_of_unity(kernels::LOG_LOCAL_ROOTS + 1);
        for (root, range) in [
            (of_columns, 0..small),
            (of_columns.inverse().unwrap_or(one), small..2 * small),
            (root_of_unity(log_capacity), 2 * small..2 * small + large.max(1)),
        ] {
            ntt.fill_powers(&mut stream, root, one, Order::Natural, &ntt.roots.slice(range)?)?;
        }
        // Other streams use the table.
        stream.wait()?;
        Ok(ntt)
    }

    fn on_processor(device: &Device, log_capacity: u32) -> Result<Ntt> {
        Ok(Ntt {
            device: device.clone(),
            log_capacity,
            log_tile: 0,
            programs: Programs::Processor(device.compile(&processor::transform())?),
            powers: device.compile(&processor::powers())?,
            roots: device.buffer(1)?,
            is_secret: false,
        })
    }

    /// Zeroes temporary buffers from now on, because the elements are secret.
    fn secret(self) -> Ntt {
        Ntt { is_secret: true, ..self }
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Transforms in place, from natural to bit-reversed order. The result is not divided by the number of elements.
    ///
    /// This and the other transforms fail with `Unsupported` if the number of elements is not a power of two up to the
    /// capacity, or a table has another number of elements.
    pub fn to_bit_reversed(
        &self,
        stream: &mut Stream,
        data: &Buffer<Limbs>,
        root: Root,
        scale: Scale<'_>,
    ) -> Result<()> {
        self.transform(stream, data, Decimation::InFrequency, root, scale)
    }

    /// Transforms in place, from bit-reversed to natural order. The result is not divided by the number of elements.
    pub fn from_bit_reversed(
        &self,
        stream: &mut Stream,
        data: &Buffer<Limbs>,
        root: Root,
        scale: Scale<'_>,
    ) -> Result<()> {
        self.transform(stream, data, Decimation::InTime, root, scale)
    }

    /// Transforms in natural order, with a temporary buffer of the same size. The result is not divided by the number of
    /// elements.
    pub fn in_natural_order(
        &self,
        stream: &mut Stream,
        data: &Buffer<Limbs>,
        root: Root,
        scale: Scale<'_>,
    ) -> Result<()> {
        self.transform(stream, data, Decimation::Ordered, root, scale)
    }

    /// Replaces coefficients by the polynomial's values at the powers of ω, in natural order.
    pub fn ntt(&self, stream: &mut Stream, data: &Buffer<Limbs>) -> Result<()> {
        self.in_natural_order(stream, data, Root::Forward, Scale::None)
    }

    /// Replaces values at the powers of ω by the polynomial's coefficients, in natural order.
    pub fn intt(&self, stream: &mut Stream, data: &Buffer<Limbs>) -> Result<()> {
        let scale = Scale::AfterBy(reciprocal(data.len()));
        self.in_natural_order(stream, data, Root::Inverse, scale)
    }

    /// Replaces coefficients by the polynomial's values at `shift` times the powers of ω, in natural order.
    pub fn coset_ntt(&self, stream: &mut Stream, data: &Buffer<Limbs>, shift: Fr) -> Result<()> {
        let table = self.powers(stream, data.len(), shift, Fr::from(1u64), Order::Natural)?;
        self.in_natural_order(stream, data, Root::Forward, Scale::Before(&table))
    }

    /// Replaces values at `shift` times the powers of ω by the polynomial's coefficients, in natural order. Fails with
    /// `Unsupported` if `shift` is zero.
    pub fn coset_intt(&self, stream: &mut Stream, data: &Buffer<Limbs>, shift: Fr) -> Result<()> {
        let Some(base) = shift.inverse() else {
            return Err(unsupported(&self.device, "a coset of zero".into()));
        };
        let table = self.powers(stream, data.len(), base, reciprocal(data.len()), Order::Natural)?;
        self.in_natural_order(stream, data, Root::Inverse, Scale::After(&table))
    }

    /// Returns a table of `factor · base^j` for each j less than `len`, in some order: for [`Scale`].
    ///
    /// With `factor` 1 / N and `base` g, a table in bit-reversed order turns the result of
    /// [`to_bit_reversed`](Ntt::to_bit_reversed) by the inverse root into the input of
    /// [`from_bit_reversed`](Ntt::from_bit_reversed) for the coset of g.
    pub fn powers(
        &self,
        stream: &mut Stream,
        len: usize,
        base: Fr,
        factor: Fr,
        order: Order,
    ) -> Result<Buffer<Limbs>> {
        let table = self.device.buffer_uninit(len)?;
        self.fill_powers(stream, base, factor, order, &table)?;
        Ok(table)
    }

    fn fill_powers(
        &self,
        stream: &mut Stream,
        base: Fr,
        factor: Fr,
        order: Order,
        to: &Buffer<Limbs>,
    ) -> Result<()> {
        let log_len = to.len().max(1).ilog2();
        if order == Order::BitReversed && !to.len().is_power_of_two() || log_len > 31 {
            return Err(unsupported(&self.device, format!("a table of {} powers", to.len())));
        }
        let squares = std::iter::successors(Some(base), |last| Some(last.square())).take(32);
        let squares: Vec<Limbs> = [factor].into_iter().chain(squares).map(Limbs::from).collect();
        let squares = self.device.buffer_from(&squares)?;
        let params = PowerParams {
            count: to.len() as u32,
            log_n: log_len,
            reversed: (order == Order::BitReversed).into(),
            padding: 0,
        };
        let bound = self.powers.bind(&[squares.arg(), to.arg()])?;
        stream.launch_folded(&bound, self.powers.kernel().groups_for(to.len() as u64), &params)
    }

    fn transform(
        &self,
        stream: &mut Stream,
        data: &Buffer<Limbs>,
        decimation: Decimation,
        root: Root,
        scale: Scale<'_>,
    ) -> Result<()> {
        let log_n = data.len().max(1).ilog2();
        if !data.len().is_power_of_two() || log_n > self.log_capacity {
            let detail = format!("{} elements, and the capacity is 2^{}", data.len(), self.log_capacity);
            return Err(unsupported(&self.device, detail));
        }
        let table = match scale {
            Scale::Before(table) | Scale::After(table) => Some(table),
            Scale::None | Scale::AfterBy(_) => None,
        };
        if let Some(table) = table.filter(|table| table.len() != data.len()) {
            let detail = format!("{} elements, and the table has {}", data.len(), table.len());
            return Err(unsupported(&self.device, detail));
        }
        let mut flags = Flags::empty();
        flags.set(Flags::INVERSE, root == Root::Inverse);
        let params = Params {
            log_n,
            log_segment: log_n,
            log_radix: log_n,
            log_table: self.log_capacity,
            flags: flags.bits(),
            padding: [0; 3],
            factor: match scale {
                Scale::AfterBy(factor) => factor.into(),
                _ => Limbs::default(),
            },
        };
        match &self.programs {
            Programs::Processor(program) => {
                let all = flags
                    | before(&scale)
                    | after(&scale)
                    | match decimation {
                        Decimation::InFrequency => Flags::empty(),
                        Decimation::InTime => Flags::TIME,
                        Decimation::Ordered => Flags::NATURAL,
                    };
                let bound = program.bind(&[data.arg(), table.unwrap_or(&self.roots).arg()])?;
                stream.launch(&bound, 1, &Params { flags: all.bits(), ..params })
            }
            Programs::Gpu { frequency, frequency_in_place, time_in_place } => {
                let scales = table.unwrap_or(&self.roots);
                let passes = passes(log_n, decimation == Decimation::InTime);
                // With one pass, one workgroup has read everything before it writes: no copy is needed.
                let is_ordered = decimation == Decimation::Ordered;
                let copy =
                    (is_ordered && passes.len() > 1).then(|| self.device.buffer_uninit::<Limbs>(data.len()));
                let copy = copy.transpose()?;
                let last = passes.len() - 1;
                let mut launch = |(index, Pass { log_segment, log_radix }): (usize, Pass)| {
                    let mut flags = flags;
                    flags.set(Flags::TWIDDLES, log_segment > log_radix);
                    if index == 0 {
                        flags |= before(&scale);
                    }
                    if index == last {
                        flags |= after(&scale);
                        flags.set(Flags::NATURAL, is_ordered);
                    }
                    let bound = match &copy {
                        Some(copy) if index == 0 => {
                            frequency.bind(&[data.arg(), copy.arg(), self.roots.arg(), scales.arg()])
                        }
                        Some(copy) if index == last => {
                            frequency.bind(&[copy.arg(), data.arg(), self.roots.arg(), scales.arg()])
                        }
                        Some(copy) => frequency_in_place.bind(&[copy.arg(), self.roots.arg(), scales.arg()]),
                        None if decimation == Decimation::InTime => {
                            time_in_place.bind(&[data.arg(), self.roots.arg(), scales.arg()])
                        }
                        None => frequency_in_place.bind(&[data.arg(), self.roots.arg(), scales.arg()]),
                    }?;
                    let params = Params { log_segment, log_radix, flags: flags.bits(), ..params };
                    let columns = 1u64 << (log_n - log_radix);
                    let tiles = columns.div_ceil(1 << (self.log_tile - log_radix));
                    stream.launch_folded(&bound, tiles, &params)
                };
                let launched = passes.into_iter().enumerate().try_for_each(&mut launch);
                // Also after an error.
                match copy.filter(|_| self.is_secret) {
                    Some(copy) => launched.and(stream.zero(&copy)),
                    None => launched,
                }
            }
        }
    }
}

fn before(scale: &Scale<'_>) -> Flags {
    if matches!(scale, Scale::Before(_)) { Flags::SCALE_BEFORE } else { Flags::empty() }
}

fn after(scale: &Scale<'_>) -> Flags {
    match scale {
        Scale::After(_) => Flags::SCALE_AFTER,
        Scale::AfterBy(_) => Flags::FACTOR_AFTER,
        Scale::None | Scale::Before(_) => Flags::empty(),
    }
}

/// A pass of radix 2^`log_radix` over segments of 2^`log_segment` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pass {
    log_segment: u32,
    log_radix: u32,
}

/// Returns the passes of a transform: as few as there can be, in frequency or in time. All radices but one are even powers
/// of two, because two stages at a time need fewer products.
fn passes(log_n: u32, in_time: bool) -> Vec<Pass> {
    let count = log_n.div_ceil(MAX_LOG_RADIX).max(1);
    let mut passes = Vec::new();
    let mut log_segment = log_n;
    for left in (1..=count).rev() {
        let share = log_segment.div_ceil(left);
        let log_radix = if left > 1 { share.next_multiple_of(2) } else { share };
        passes.push(Pass { log_segment, log_radix });
        log_segment -= log_radix;
    }
    if in_time {
        passes.reverse();
    }
    passes
}

fn root_of_unity(log_order: u32) -> Fr {
    // There is a root for every order up to 2^28, which bounds the capacity.
    Fr::get_root_of_unity(1 << log_order).unwrap_or(Fr::from(1u64))
}

fn reciprocal(len: usize) -> Fr {
    // No length is a multiple of the modulus, and the transform refuses an empty buffer.
    Fr::from(len as u64).inverse().unwrap_or_default()
}

fn unsupported(device: &Device, detail: String) -> Error {
    Error::Unsupported {
        device: device.id().clone(),
        operation: "a number-theoretic transform".into(),
        detail,
    }
}
