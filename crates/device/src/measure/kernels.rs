//! The kernels that measure a device, in all three bodies. Each is declared for workers, where the linker's section counts
//! as unsafe code in this crate.

use bytemuck::{Pod, Zeroable};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::{describe::Features, kernel::Kernel, kernel_fn};

pub(super) const WORKGROUP: u32 = 256;

/// Independent chains of arithmetic in a thread.
pub(super) const CHAINS: u32 = 8;

/// Chains that the Rust bodies compute together, so that they fill the vector registers.
const LANES: usize = 128;

const CUDA: &str = include_str!("rates.cu");
const WGSL: &str = include_str!("rates.wgsl");

/// The parameters of all kernels.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RateParams {
    pub(super) iterations: u32,
    pub(super) addend: u32,
}

kernel_fn! {
    /// Each thread does `CHAINS * iterations` multiplies (each with an addition).
    #[allow(unsafe_code)]
    pub(super) fn int32_multiply() -> Kernel {
        kernel("int32_multiply").writes::<u32>().params::<RateParams>().rust(|launch| {
            let (params, out) = (launch.params::<RateParams>()?, launch.write::<u32>(0)?);
            const THREADS: usize = LANES / CHAINS as usize;
            out.par_chunks_mut(THREADS).enumerate().for_each(|(index, threads)| {
                let first = (index * THREADS) as u32 * CHAINS;
                let chains = multiply_chains(first, params);
                for (out, chains) in threads.iter_mut().zip(chains.chunks(CHAINS as usize)) {
                    *out = chains.iter().fold(0, |all, chain| all ^ chain);
                }
            });
            Ok(())
        })
    }
}

fn multiply_chains(first: u32, params: RateParams) -> [u32; LANES] {
    let mut chains: [u32; LANES] = std::array::from_fn(|lane| first.wrapping_add(lane as u32));
    // The loop is compiled for each set of vector instructions, and the best one is chosen at run time.
    Arch::new().dispatch(|| {
        for _ in 0..params.iterations {
            for chain in &mut chains {
                *chain = chain.wrapping_mul(*chain).wrapping_add(params.addend);
            }
        }
    });
    chains
}

kernel_fn! {
    /// Each thread does `CHAINS * iterations` multiply-adds.
    #[allow(unsafe_code)]
    pub(super) fn f32_multiply_add() -> Kernel {
        kernel("f32_multiply_add").writes::<f32>().params::<RateParams>().rust(|launch| {
            let (params, out) = (launch.params::<RateParams>()?, launch.write::<f32>(0)?);
            const THREADS: usize = LANES / CHAINS as usize;
            out.par_chunks_mut(THREADS).enumerate().for_each(|(index, threads)| {
                let mut chains: [f32; LANES] = std::array::from_fn(|lane| {
                    let thread = index * THREADS + lane / CHAINS as usize;
                    (thread % 1024 + lane % CHAINS as usize) as f32
                });
                Arch::new().dispatch(MultiplyAdd { chains: &mut chains, iterations: params.iterations });
                for (out, chains) in threads.iter_mut().zip(chains.chunks(CHAINS as usize)) {
                    *out = chains.iter().sum();
                }
            });
            Ok(())
        })
    }
}

/// The loop of `f32_multiply_add`, with the processor's multiply-add instruction.
struct MultiplyAdd<'a> {
    chains: &'a mut [f32; LANES],
    iterations: u32,
}

impl WithSimd for MultiplyAdd<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (factor, addend) = (simd.splat_f32s(0.75), simd.splat_f32s(0.5));
        let (vectors, rest) = S::as_mut_simd_f32s(self.chains);
        // Eight vectors at a time stay in registers.
        for vectors in vectors.chunks_mut(8) {
            for _ in 0..self.iterations {
                for vector in vectors.iter_mut() {
                    *vector = simd.mul_add_f32s(*vector, factor, addend);
                }
            }
        }
        for value in rest {
            for _ in 0..self.iterations {
                *value = *value * 0.75 + 0.5;
            }
        }
    }
}

kernel_fn! {
    /// Copies `iterations` units of sixteen bytes.
    #[allow(unsafe_code)]
    pub(super) fn copy_words() -> Kernel {
        kernel("copy_words").reads::<[u32; 4]>().writes::<[u32; 4]>().params::<RateParams>().rust(|launch| {
            let count = launch.params::<RateParams>()?.iterations as usize;
            let (input, output) = (launch.read::<[u32; 4]>(0)?, launch.write::<[u32; 4]>(1)?);
            const UNITS: usize = 1 << 14;
            let pairs = output[..count].par_chunks_mut(UNITS).zip(input[..count].par_chunks(UNITS));
            pairs.for_each(|(output, input)| output.copy_from_slice(input));
            Ok(())
        })
    }
}

kernel_fn! {
    /// Does nothing: for the time of a launch alone.
    #[allow(unsafe_code)]
    pub(super) fn nothing() -> Kernel {
        kernel("nothing").rust(|_| Ok(()))
    }
}

#[allow(unsafe_code)]
fn kernel(name: &'static str) -> Kernel {
    let kernel = Kernel::new(name).workgroup(WORKGROUP);
    // SAFETY: only `measure` launches these kernels. It gives the arithmetic kernels a buffer with an element for each
    // thread, and `copy_words` two buffers of `iterations` elements. Every loop ends after `iterations` iterations, and
    // there is no division by a variable.
    unsafe { kernel.cuda(CUDA).wgsl_unchecked(Features::empty(), WGSL) }
}

#[cfg(all(test, feature = "cuda"))]
mod with_nvrtc {
    use crate::cuda::compile_for;

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_cuda_bodies_compile_for_cards_old_and_new() {
        for card in ["sm_75", "sm_90"] {
            assert!(!compile_for(card, "rates", super::CUDA).unwrap().is_empty());
        }
    }
}
