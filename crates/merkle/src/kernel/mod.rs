//! The GPU kernel that reduces blocks of leaves to their roots, assembled from a hash function and a tree reduction.
//!
//! A workgroup has 256 threads and reduces one block. Each thread first reduces some leaves by itself, which keeps all
//! threads busy; then the workgroup reduces the threads' results through shared memory, where each level leaves half of the
//! active threads idle. So blocks of 256 leaves are for inputs so small that the number of workgroups matters, and larger
//! blocks for all others.

use bytemuck::{Pod, Zeroable};
use evener_device::{BoxError, Features, Kernel, Launch, kernel_fn};
use rayon::prelude::*;

use crate::{
    hash::{Digest, Hash},
    subtree::{self, LeafFormat},
};

/// The number of threads of a workgroup, which is also the number of leaves of the smallest block, as a power of two.
pub(crate) const LOG_THREADS: u32 = 8;
/// The height of the largest block: the kernel bounds the number of leaves that a thread reduces by itself.
pub(crate) const MAX_HEIGHT: u32 = 16;

/// The size of a BLAKE3 chunk. The kernel does not support longer messages.
const BLAKE3_CHUNK: usize = 1024;

/// The kernel's parameters.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TreeParams {
    log_leaves_per_thread: u32,
    prehashed: u32,
    all_nodes: u32,
    first_block: u32,
}

impl TreeParams {
    /// Returns the parameters for blocks of a height, of leaves or of leaf hashes, which are reduced to their roots or to
    /// all of their nodes.
    pub(crate) fn new(height: u32, prehashed: bool, all_nodes: bool) -> TreeParams {
        TreeParams {
            log_leaves_per_thread: height - LOG_THREADS,
            prehashed: prehashed.into(),
            all_nodes: all_nodes.into(),
            first_block: 0,
        }
    }
}

/// Returns whether the kernel supports leaves of a format.
pub(crate) fn is_supported(format: &LeafFormat) -> bool {
    let message = format.leaf_bytes + format.scheme.leaf_prefix().len();
    format.prehashed || format.scheme.hash() != Hash::Blake3 || message <= BLAKE3_CHUNK
}

kernel_fn! {
    /// Returns the kernel with its Rust body only, which checks all bounds. A worker on another machine makes the same.
    fn rust_merkle(format: LeafFormat) -> Kernel {
        Kernel::new("merkle")
            .reads::<u32>()
            .writes::<u32>()
            .params::<TreeParams>()
            .workgroup(1 << LOG_THREADS)
            .rust(move |launch| run_on_cpu(format, launch))
    }
}

/// Returns the kernel that reduces blocks.
///
/// # Safety
/// A launch is one-dimensional, with at most as many workgroups as the input has whole blocks from `first_block` on and as
/// the output has room for: one root per block, or twice the block's number of leaves if `all_nodes` is set.
/// `log_leaves_per_thread` is at most `MAX_HEIGHT - LOG_THREADS`.
#[allow(unsafe_code)]
pub(crate) unsafe fn merkle(format: LeafFormat) -> Kernel {
    let kernel = rust_merkle(format);
    // SAFETY: a workgroup reads only the leaves of its block and writes only the nodes of its block; the caller guarantees
    // that both are in bounds. A thread's own subtree has at most eight levels, since the caller bounds
    // `log_leaves_per_thread`, and `pending` in tree.cu and tree.wgsl has nine elements. Every loop has a fixed trip count,
    // and no divisor is a variable.
    unsafe { kernel.cuda(cuda_source(&format)).wgsl_unchecked(Features::empty(), wgsl_source(&format)) }
}

/// Returns a CUDA kernel that computes one leaf hash and one node hash per leaf, as many as [`merkle`], without a tree. The
/// benchmark compares the two.
///
/// # Safety
/// Input and output have a leaf and a digest for each thread of a launch.
#[allow(unsafe_code)]
pub(crate) unsafe fn hash_only(format: LeafFormat) -> Kernel {
    let source = cuda_source(&format)
        + r#"
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) hash_only(const unsigned *in, unsigned *out) {
    const unsigned long long leaf = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;
    const Digest digest = leaf_hash(in, leaf);
    store(out + leaf * 8, node_hash(digest, digest));
}
"#;
    let kernel = Kernel::new("hash_only").reads::<u32>().writes::<u32>().workgroup(1 << LOG_THREADS);
    // SAFETY: a thread reads only its own leaf and writes only its own digest; the caller guarantees that both are in bounds.
    unsafe { kernel.cuda(source) }
}

/// Returns a CUDA kernel that computes leaf hashes only.
///
/// # Safety
/// As for [`hash_only`].
#[allow(unsafe_code)]
pub(crate) unsafe fn leaf_hash_only(format: LeafFormat) -> Kernel {
    let source = cuda_source(&format)
        + r#"
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM) leaf_hash_only(const unsigned *in, unsigned *out) {
    const unsigned long long leaf = (unsigned long long)blockIdx.x * THREADS + threadIdx.x;
    store(out + leaf * 8, leaf_hash(in, leaf));
}
"#;
    let kernel = Kernel::new("leaf_hash_only").reads::<u32>().writes::<u32>().workgroup(1 << LOG_THREADS);
    // SAFETY: as for `hash_only`: a thread reads only its own leaf and writes only its own digest.
    unsafe { kernel.cuda(source) }
}

fn cuda_source(format: &LeafFormat) -> String {
    let hash = match format.scheme.hash() {
        Hash::Sha256 => include_str!("sha256.cu"),
        Hash::Keccak256 => include_str!("keccak256.cu"),
        Hash::Blake3 => include_str!("blake3.cu"),
    };
    let definitions: String =
        definitions(format).map(|(name, value)| format!("#define {name} {value}\n")).concat();
    [&definitions, include_str!("message.cu"), hash, include_str!("tree.cu")].concat()
}

fn wgsl_source(format: &LeafFormat) -> String {
    let hash = match format.scheme.hash() {
        Hash::Sha256 => include_str!("sha256.wgsl"),
        Hash::Keccak256 => include_str!("keccak256.wgsl"),
        Hash::Blake3 => include_str!("blake3.wgsl"),
    };
    let definitions: String =
        definitions(format).map(|(name, value)| format!("const {name} = {value}u;\n")).concat();
    [&definitions, include_str!("message.wgsl"), hash, include_str!("tree.wgsl")].concat()
}

fn definitions(format: &LeafFormat) -> [(&'static str, usize); 3] {
    [
        // The leaf code is unused for leaf hashes, and must still compile.
        ("LEAF_BYTES", if format.prehashed { size_of::<Digest>() } else { format.leaf_bytes }),
        ("PREFIXED", format.scheme.leaf_prefix().len()),
        ("DOUBLE", format.scheme.hashes_twice().into()),
    ]
}

/// The kernel's Rust body, for leaves in a buffer of the CPU device.
fn run_on_cpu(format: LeafFormat, launch: &mut Launch<'_>) -> Result<(), BoxError> {
    let params: TreeParams = launch.params()?;
    if params.log_leaves_per_thread > MAX_HEIGHT - LOG_THREADS {
        return Err("blocks are too high".into());
    }
    let height = params.log_leaves_per_thread + LOG_THREADS;
    let format = LeafFormat { prehashed: params.prehashed != 0, ..format };
    let input: &[u8] = bytemuck::cast_slice(launch.read::<u32>(0)?);
    let output: &mut [Digest] = bytemuck::cast_slice_mut(launch.write::<u32>(1)?);
    let bytes = format.leaf_size() << height;
    let blocks = launch.groups()[0] as usize;
    let blocks = blocks.min(input.len() / bytes.max(1));
    let input = &input[..blocks * bytes];
    if params.all_nodes != 0 {
        let work = output.par_chunks_mut(2 << height).zip(input.par_chunks_exact(bytes));
        work.for_each(|(out, leaves)| {
            subtree::all_nodes(&format, leaves, height, &mut out[..(2 << height) - 1]);
        });
    } else {
        let at_once = subtree::blocks_at_once(height);
        let work = output.par_chunks_mut(at_once).zip(input.par_chunks(at_once * bytes));
        work.for_each_init(subtree::Scratch::default, |scratch, (mut out, leaves)| {
            subtree::roots(&format, leaves, height, scratch, |roots| {
                let (first, rest) = std::mem::take(&mut out).split_at_mut(roots.len());
                first.copy_from_slice(roots);
                out = rest;
            });
        });
    }
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
            // The newer architecture also gets the sizes with separate code paths.
            for (card, leaf_bytes) in [("sm_75", 32), ("sm_90", 32), ("sm_90", 7), ("sm_90", 300)] {
                let format = LeafFormat { scheme, leaf_bytes, prehashed: false };
                // SAFETY: the kernel is compiled and never launched.
                let kernel = unsafe { merkle(format) };
                let source = kernel.cuda_source().unwrap();
                let compiled = compile_for(card, kernel.name(), source);
                assert!(!compiled.unwrap().is_empty(), "{scheme}, leaves of {leaf_bytes} bytes, {card}");
            }
        }
    }
}
