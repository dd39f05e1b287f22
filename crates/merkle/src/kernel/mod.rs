//! The kernels: one that reduces blocks of leaves to their roots, with a hash function in front of it.
//!
//! A workgroup has 256 threads and one block. Each thread reduces some leaves by itself, which keeps all threads busy, and
//! then the workgroup reduces what the threads have through shared memory, which leaves half of them idle each level. So
//! blocks of 256 leaves are there for inputs so small that the number of workgroups counts, and larger ones for the rest.

use bytemuck::{Pod, Zeroable};
use evener_device::{BoxError, Features, Kernel, Launch};
use rayon::prelude::*;

use crate::{
    hash::{Digest, Hash},
    subtree::{self, Format},
};

/// A workgroup's threads: the smallest block has so many leaves.
pub(crate) const LOG_THREADS: u32 = 8;
/// The largest block has this height: what a thread reduces by itself is bounded in the kernel.
pub(crate) const MOST_HEIGHT: u32 = 16;

/// Longer messages are more than one chunk of BLAKE3, which the kernel does not know.
const BLAKE3_CHUNK: usize = 1024;

/// What the kernel is told.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    log_leaves_a_thread: u32,
    hashed: u32,
    whole: u32,
    first_block: u32,
}

impl Params {
    /// For blocks of a height, of leaves or of digests, with all of their nodes or with their roots alone.
    pub(crate) fn new(height: u32, hashed: bool, whole: bool) -> Params {
        Params {
            log_leaves_a_thread: height - LOG_THREADS,
            hashed: hashed.into(),
            whole: whole.into(),
            first_block: 0,
        }
    }
}

/// Whether there is a kernel for leaves of a format.
pub(crate) fn can_do(format: &Format) -> bool {
    let message = format.leaf_bytes + format.scheme.leaf_prefix().len();
    format.hashed || format.scheme.hash() != Hash::Blake3 || message <= BLAKE3_CHUNK
}

/// The kernel that reduces blocks.
///
/// # Safety
/// A launch has at most as many workgroups, in one dimension, as the input has whole blocks from `first_block` on and as
/// the output has room for results of: a root a block, or where `whole` is set as many nodes as two blocks have leaves.
/// `log_leaves_a_thread` is at most `MOST_HEIGHT - LOG_THREADS`.
#[allow(unsafe_code)]
pub(crate) unsafe fn merkle(format: Format) -> Kernel {
    let kernel = Kernel::new("merkle")
        .reads::<u32>()
        .writes::<u32>()
        .params::<Params>()
        .workgroup(1 << LOG_THREADS)
        .rust(move |launch| on_cores(format, launch));
    // SAFETY: a workgroup reads the leaves of its block and writes the nodes of its block, which the caller says are
    // there. A thread's own subtree has at most eight levels, for which `waiting` has nine places. Every loop counts to a
    // number that is fixed before it begins, and nothing is divided by a variable.
    unsafe { kernel.cuda(cuda(&format)).wgsl_unchecked(Features::empty(), wgsl(&format)) }
}

/// A kernel that hashes as much as the other one does, one leaf and one node for each leaf, without a tree: what that one
/// is measured by. CUDA only.
///
/// # Safety
/// Input and output have a leaf and a digest for each thread of a launch.
#[allow(unsafe_code)]
pub(crate) unsafe fn bare(format: Format) -> Kernel {
    let source = cuda(&format)
        + r#"
extern "C" __global__ void __launch_bounds__(THREADS, GROUPS_AT_ONCE) bare(const unsigned *in, unsigned *out) {
    const unsigned long long leaf = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;
    const Digest digest = leaf_hash(in, leaf);
    store(out + leaf * 8, node_hash(digest, digest));
}
"#;
    let kernel = Kernel::new("bare").reads::<u32>().writes::<u32>().workgroup(1 << LOG_THREADS);
    // SAFETY: a thread reads its own leaf and writes its own digest, which the caller says are there.
    unsafe { kernel.cuda(source) }
}

/// A kernel that hashes leaves alone. CUDA only.
///
/// # Safety
/// As for [`bare`].
#[allow(unsafe_code)]
pub(crate) unsafe fn leaves_alone(format: Format) -> Kernel {
    let source = cuda(&format)
        + r#"
extern "C" __global__ void __launch_bounds__(THREADS, GROUPS_AT_ONCE) leaves(const unsigned *in, unsigned *out) {
    const unsigned long long leaf = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;
    store(out + leaf * 8, leaf_hash(in, leaf));
}
"#;
    let kernel = Kernel::new("leaves").reads::<u32>().writes::<u32>().workgroup(1 << LOG_THREADS);
    // SAFETY: as for `bare`.
    unsafe { kernel.cuda(source) }
}

fn cuda(format: &Format) -> String {
    let hash = match format.scheme.hash() {
        Hash::Sha256 => include_str!("sha256.cu"),
        Hash::Keccak256 => include_str!("keccak256.cu"),
        Hash::Blake3 => include_str!("blake3.cu"),
    };
    let definitions: String =
        definitions(format).map(|(name, value)| format!("#define {name} {value}\n")).concat();
    [&definitions, include_str!("message.cu"), hash, include_str!("tree.cu")].concat()
}

fn wgsl(format: &Format) -> String {
    let hash = match format.scheme.hash() {
        Hash::Sha256 => include_str!("sha256.wgsl"),
        Hash::Keccak256 => include_str!("keccak256.wgsl"),
        Hash::Blake3 => include_str!("blake3.wgsl"),
    };
    let definitions: String =
        definitions(format).map(|(name, value)| format!("const {name} = {value}u;\n")).concat();
    [&definitions, include_str!("message.wgsl"), hash, include_str!("tree.wgsl")].concat()
}

fn definitions(format: &Format) -> [(&'static str, usize); 3] {
    [
        // Digests that are taken as they are need no code for leaves; what is there must still be code.
        ("LEAF_BYTES", if format.hashed { size_of::<Digest>() } else { format.leaf_bytes }),
        ("PREFIXED", format.scheme.leaf_prefix().len()),
        ("DOUBLE", format.scheme.is_double().into()),
    ]
}

/// The same on the processor, for leaves that are in a buffer of its device.
fn on_cores(format: Format, launch: &mut Launch<'_>) -> Result<(), BoxError> {
    let params: Params = launch.params()?;
    let height = params.log_leaves_a_thread + LOG_THREADS;
    let format = Format { hashed: params.hashed != 0, ..format };
    let (input, output) = (launch.read::<u8>(0)?, launch.write::<Digest>(1)?);
    let bytes = format.bytes() << height;
    let blocks = launch.groups()[0] as usize;
    let step = if params.whole != 0 { 2 << height } else { 1 };
    let work = output.par_chunks_mut(step).zip(input.par_chunks_exact(bytes)).take(blocks);
    work.for_each_init(subtree::Scratch::default, |scratch, (out, leaves)| {
        if params.whole != 0 {
            subtree::whole(&format, leaves, height, &mut out[..(2 << height) - 1]);
        } else {
            subtree::roots(&format, leaves, height, scratch, |roots| out.copy_from_slice(roots));
        }
    });
    Ok(())
}

#[cfg(all(test, feature = "cuda"))]
#[allow(unsafe_code)]
mod with_nvrtc {
    use evener_device::cuda::compile_for;

    use super::*;
    use crate::rule::Scheme;

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_cuda_bodies_compile_for_cards_old_and_new() {
        for scheme in Scheme::all() {
            // The newer card gets the sizes that have code of their own.
            for (card, leaf_bytes) in [("sm_75", 32), ("sm_90", 32), ("sm_90", 7), ("sm_90", 300)] {
                let format = Format { scheme, leaf_bytes, hashed: false };
                // SAFETY: it is never launched.
                let kernel = unsafe { merkle(format) };
                let source = kernel.cuda_source().unwrap();
                let compiled = compile_for(card, kernel.name(), source);
                assert!(!compiled.unwrap().is_empty(), "{scheme}, leaves of {leaf_bytes} bytes, {card}");
            }
        }
    }
}
