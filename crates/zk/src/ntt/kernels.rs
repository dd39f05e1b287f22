//! The kernels of passes and of tables of powers.

use bytemuck::{Pod, Zeroable};
use evener_device::{Kernel, Module};

use crate::{
    dialect::Dialect,
    field::{self, Emitter, Fields, Limbs},
};

/// Number of roots of unity for the transforms of columns, as a power of two: half of the order of the largest radix that
/// the kernels support.
pub(super) const LOG_LOCAL_ROOTS: u32 = 9;
pub(super) const LOCAL_ROOTS: usize = 1 << LOG_LOCAL_ROOTS;

/// Threads of a workgroup that computes powers.
const POWER_THREADS: u32 = 256;

/// The parameters of a pass.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Params {
    /// Elements of the transform, as a power of two.
    pub(super) log_n: u32,
    /// Elements of a segment before this pass, as a power of two.
    pub(super) log_segment: u32,
    /// The radix of this pass, as a power of two.
    pub(super) log_radix: u32,
    /// The order of the roots in the table, as a power of two.
    pub(super) log_table: u32,
    /// The bits of `Flags`.
    pub(super) flags: u32,
    pub(super) padding: [u32; 3],
    /// The factor of `FACTOR_AFTER`.
    pub(super) factor: Limbs,
}

/// What a pass does beside its butterflies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Flags(u32);

impl Flags {
    /// Uses inverse roots.
    pub(super) const INVERSE: Flags = Flags(1);
    /// Multiplies by the twiddles between two passes.
    pub(super) const TWIDDLES: Flags = Flags(2);
    /// Multiplies the inputs by the table of scales.
    pub(super) const SCALE_BEFORE: Flags = Flags(4);
    /// Multiplies the outputs by the table of scales.
    pub(super) const SCALE_AFTER: Flags = Flags(8);
    /// Multiplies the outputs by the factor.
    pub(super) const FACTOR_AFTER: Flags = Flags(16);
    /// Writes the outputs in natural order. Only the last pass can.
    pub(super) const NATURAL: Flags = Flags(32);
    /// Takes inputs in bit-reversed order. For the processor: GPUs have a kernel of its own for this.
    pub(super) const TIME: Flags = Flags(64);

    pub(super) fn empty() -> Flags {
        Flags(0)
    }

    pub(super) fn from_bits(bits: u32) -> Flags {
        Flags(bits)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    pub(super) fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn set(&mut self, flag: Flags, is_set: bool) {
        self.0 = if is_set { self.0 | flag.0 } else { self.0 & !flag.0 };
    }
}

impl std::ops::BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

impl std::ops::BitOrAssign for Flags {
    fn bitor_assign(&mut self, other: Flags) {
        *self = *self | other;
    }
}

/// The parameters of a table of powers.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PowerParams {
    /// Elements of the table.
    pub(super) count: u32,
    /// The same as a power of two, if the table is in bit-reversed order.
    pub(super) log_n: u32,
    /// Whether the table is in bit-reversed order.
    pub(super) reversed: u32,
    pub(super) padding: u32,
}

/// Returns the elements of a workgroup's tile as a power of two, for a device with this much shared memory.
pub(super) fn log_tile(max_shared_bytes: u32) -> u32 {
    const LARGEST: u32 = 10;
    let fits = |log: &u32| (size_of::<Limbs>() as u32) << log <= max_shared_bytes;
    (super::MAX_LOG_RADIX..=LARGEST).rev().find(fits).unwrap_or(super::MAX_LOG_RADIX)
}

/// Returns the kernels for GPUs: passes in frequency, the same in place, passes in time in place, and tables of powers.
///
/// # Safety
/// A launch of a pass has data, and scales if a flag asks for them, of 2^`log_n` elements; `log_radix` is
/// at most `log_segment`, which is at most `log_n`, and at most `log_tile`. The table has `2 * LOCAL_ROOTS` elements and half
/// of 2^`log_table` more, and `log_table` is at least `log_n`. `NATURAL` is set only if `log_radix` is `log_segment`, and
/// in place only for a single workgroup. A table of powers has `count` elements, and 33 squares.
#[allow(unsafe_code)]
pub(super) unsafe fn on_gpu(emitter: Emitter, log_tile: u32) -> [Kernel; 4] {
    let threads = 1 << (log_tile - 2);
    let passes = ["ntt_frequency", "ntt_frequency_in_place", "ntt_time_in_place"];
    let kernels = match emitter.dialect() {
        Dialect::CudaC => {
            let text =
                [&field::source(emitter, Fields::Fr), include_str!("ntt.cu"), include_str!("powers.cu")];
            let module = Module::new().constant("LOG_TILE", log_tile);
            // SAFETY: the addresses of a pass are below 2^`log_n`, those of the roots within the table, and those in shared
            // memory below 2^`LOG_TILE`, if the parameters are as the caller promises.
            let module = unsafe { module.cuda(text.concat()) };
            [passes[0], passes[1], passes[2], "ntt_powers"].map(|entry| module.kernel(entry))
        }
        Dialect::Wgsl => {
            let kernel = |entry: &'static str, text: String| {
                let kernel = Kernel::new(entry);
                // SAFETY: as for CUDA C. Loops have at most 16 and 32 iterations, and no divisor is a variable.
                unsafe {
                    kernel.wgsl_unchecked(emitter.features(), field::source(emitter, Fields::Fr) + &text)
                }
            };
            let [first, second, third] = passes.map(|entry| kernel(entry, pass_in_wgsl(entry, log_tile)));
            [first, second, third, kernel("ntt_powers", include_str!("powers.wgsl").into())]
        }
    };
    let [frequency, frequency_in_place, time_in_place, powers] = kernels;
    let pass =
        |kernel: Kernel| kernel.reads::<Limbs>().reads::<Limbs>().params::<Params>().workgroup(threads);
    [
        pass(frequency.reads::<Limbs>().writes::<Limbs>()),
        pass(frequency_in_place.writes::<Limbs>()),
        pass(time_in_place.writes::<Limbs>()),
        powers.reads::<Limbs>().writes::<Limbs>().params::<PowerParams>().workgroup(POWER_THREADS),
    ]
}

/// Declares the buffers of a kernel, and fills in the names that ntt.wgsl leaves open.
fn pass_in_wgsl(entry: &str, log_tile: u32) -> String {
    let is_in_place = entry.ends_with("in_place");
    let buffers: &[(&str, &str)] = match is_in_place {
        true => &[("data", "read_write"), ("roots", "read"), ("scales", "read")],
        false => &[("input", "read"), ("output", "read_write"), ("roots", "read"), ("scales", "read")],
    };
    let mut text = format!(
        "const LOG_TILE = {log_tile}u;\nconst TILE = {}u;\nconst THREADS = {}u;\n",
        1 << log_tile,
        1 << (log_tile - 2)
    );
    for (index, (name, access)) in buffers.iter().enumerate() {
        text += &format!("@group(0) @binding({index}) var<storage, {access}> {name}: array<Fr>;\n");
    }
    let (input, output) = if is_in_place { ("data", "data") } else { ("input", "output") };
    let pass = if entry.contains("time") { "time" } else { "frequency" };
    text + &include_str!("ntt.wgsl")
        .replace("INPUT", input)
        .replace("OUTPUT", output)
        .replace("ENTRY", entry)
        .replace("PASS", pass)
}

#[cfg(all(test, feature = "cuda"))]
#[allow(unsafe_code)]
mod with_nvrtc {
    use evener_device::cuda::compile_kernel;

    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_passes_compile_for_cards_old_and_new() {
        for emitter in [Emitter::CudaPtx, Emitter::CudaPlain] {
            for card in ["sm_75", "sm_90"] {
                // SAFETY: the kernels are compiled and never launched.
                let [kernel, ..] = unsafe { on_gpu(emitter, 10) };
                assert!(!compile_kernel(card, &kernel).unwrap().is_empty(), "{emitter:?}, {card}");
            }
        }
    }
}
