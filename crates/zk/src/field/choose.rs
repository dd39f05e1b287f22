//! Chooses the generator of field arithmetic for a device: the fastest whose products are right.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use ark_bn254::Fr;
use bytemuck::{Pod, Zeroable};
use evener_device::{Api, BoundKernel, Buffer, Device, DeviceKind, Error, Features, Kernel, Result, Stream};

use super::{Emitter, Fields, Limbs, source};

/// Threads of a workgroup.
const WORKGROUP: u32 = 128;

/// Products of an iteration of the kernel.
const PRODUCTS_PER_ITERATION: u64 = 2;

/// Iterations of the test: few, because software devices run it too.
const TEST_ITERATIONS: u32 = 5;

/// Threads of the test.
const TEST_THREADS: u32 = 2 * WORKGROUP;

/// Minimum duration of a timed launch.
const LONG_ENOUGH: Duration = Duration::from_millis(4);

/// Maximum iterations of a launch. Mesa's software Vulkan ends any loop after 65,535.
const MAX_ITERATIONS: u32 = 1 << 15;

/// Emitters chosen in this process, by the identity of the device.
static CHOSEN: Mutex<Option<HashMap<String, Emitter>>> = Mutex::new(None);

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    iterations: u32,
    count: u32,
}

impl Emitter {
    /// Returns the generators that a device could use. The processor has none: it computes with arkworks.
    pub fn candidates(device: &Device) -> Result<&'static [Emitter]> {
        Ok(match device.describe().api {
            Api::Cuda => &[Emitter::CudaPtx, Emitter::CudaPlain],
            Api::Cpu => &[],
            _ if !device.capabilities()?.features.contains(Features::INT64) => &[Emitter::WgslU32],
            // Software devices compile straight-line code for minutes.
            _ if device.describe().kind == DeviceKind::Software => &[Emitter::WgslU64Loop, Emitter::WgslU32],
            _ => &[Emitter::WgslU64, Emitter::WgslU64Loop, Emitter::WgslU32],
        })
    }

    /// Returns the fastest generator whose products are right on this device. The first call for a device measures; the
    /// result is kept in the process and in Evener's cache folder.
    ///
    /// Fails with `Unsupported` for the processor, and with `BadResult` if no generator computes right products.
    pub fn for_device(device: &Device) -> Result<Emitter> {
        let candidates = Emitter::candidates(device)?;
        let identity = identity(device, candidates);
        let known = |identity: &str| {
            CHOSEN.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(identity).copied()
        };
        if let Some(emitter) = known(&identity) {
            return Ok(emitter);
        }
        let emitter = match load(&identity).filter(|emitter| candidates.contains(emitter)) {
            Some(emitter) => emitter,
            None => {
                let emitter = measure(device, candidates)?;
                save(&identity, emitter);
                emitter
            }
        };
        let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(*chosen.get_or_insert_default().entry(identity).or_insert(emitter))
    }

    /// Makes [`for_device`](Self::for_device) return this generator for a device in this process, instead of the fastest one:
    /// for measurements. Kernels that are compiled already are not affected.
    ///
    /// Fails with `Unsupported` if the device cannot use the generator, and with `BadResult` if its products are wrong there.
    pub fn use_on(self, device: &Device) -> Result<()> {
        let candidates = Emitter::candidates(device)?;
        if !candidates.contains(&self) {
            return Err(Error::Unsupported {
                device: device.id().clone(),
                operation: format!("using the field arithmetic {self:?}"),
                detail: format!("the device can use {candidates:?}"),
            });
        }
        Measurement::new(self, device)?;
        let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.get_or_insert_default().insert(identity(device, candidates), self);
        Ok(())
    }

    /// Returns the products per second of this generator on a device. Fails with `BadResult` if products are wrong.
    pub fn products_per_s(self, device: &Device) -> Result<f64> {
        Measurement::new(self, device)?.products_per_s()
    }
}

fn measure(device: &Device, candidates: &[Emitter]) -> Result<Emitter> {
    let mut best: Option<(f64, Emitter)> = None;
    let mut last = Error::Unsupported {
        device: device.id().clone(),
        operation: "choosing field arithmetic".into(),
        detail: "the processor computes with arkworks".into(),
    };
    for &emitter in candidates {
        // With one candidate there is nothing to compare: the test is enough.
        let rate = Measurement::new(emitter, device).and_then(|mut measurement| match candidates {
            [_] => Ok(0.0),
            _ => measurement.products_per_s(),
        });
        match rate {
            Ok(rate) => {
                tracing::debug!("{}: {emitter:?}: {rate:.3e} products per second", device.id());
                if best.is_none_or(|(fastest, _)| rate > fastest) {
                    best = Some((rate, emitter));
                }
            }
            Err(why) => {
                tracing::warn!("{}: {emitter:?} is not used: {why}", device.id());
                last = why;
            }
        }
    }
    best.map(|(_, emitter)| emitter).ok_or(last)
}

/// Returns the kernel in which each thread multiplies two elements again and again.
///
/// # Safety
/// `count` is at most the number of elements of the buffer.
#[allow(unsafe_code)]
unsafe fn products(emitter: Emitter) -> Kernel {
    let arithmetic = source(emitter, Fields::Fr);
    let kernel = Kernel::new("products").writes::<[Limbs; 2]>().params::<Params>().workgroup(WORKGROUP);
    match emitter {
        // SAFETY: a thread reads and writes the pair of its index if that is less than `count`.
        Emitter::CudaPtx | Emitter::CudaPlain => unsafe {
            let inline = "#define ZK_PLAIN_INLINE __forceinline__\n";
            kernel.cuda([inline, &arithmetic, include_str!("products.cu")].concat())
        },
        // SAFETY: as above; the loop ends after `iterations`.
        Emitter::WgslU64 | Emitter::WgslU64Loop | Emitter::WgslU32 => unsafe {
            kernel.wgsl_unchecked(emitter.features(), arithmetic + include_str!("products.wgsl"))
        },
    }
}

/// The kernel and a buffer on a device.
struct Measurement {
    device: Device,
    stream: Stream,
    pairs: Buffer<[Limbs; 2]>,
    bound: BoundKernel,
}

impl Measurement {
    /// Compiles the kernel, and checks its products against arkworks'.
    #[allow(unsafe_code)]
    fn new(emitter: Emitter, device: &Device) -> Result<Self> {
        // Several times as many threads as a GPU runs at once, so that its last ones do not matter; software devices compute
        // for few.
        let threads = match device.describe().kind {
            DeviceKind::Software => TEST_THREADS,
            _ => device.describe().compute_units.unwrap_or(64).clamp(8, 256) * 48 * WORKGROUP,
        };
        // SAFETY: `launch` is called with the number of pairs at most.
        let program = device.compile(&unsafe { products(emitter) })?;
        let pairs: Vec<[Limbs; 2]> = (0..threads).map(|thread| pair(thread).map(Limbs::from)).collect();
        let pairs = device.buffer_from(&pairs)?;
        let bound = program.bind(&[pairs.arg()])?;
        let mut measurement = Measurement { device: device.clone(), stream: device.stream()?, pairs, bound };
        measurement.launch(TEST_ITERATIONS, TEST_THREADS)?;
        measurement.check(emitter)?;
        Ok(measurement)
    }

    fn launch(&mut self, iterations: u32, count: u32) -> Result<()> {
        let params = Params { iterations, count: count.min(self.pairs.len() as u32) };
        self.stream.launch(&self.bound, count.div_ceil(WORKGROUP), &params)
    }

    fn check(&mut self, emitter: Emitter) -> Result<()> {
        let found = self.stream.download(&self.pairs.slice(..TEST_THREADS as usize)?)?.wait()?;
        let wrong = (0..).zip(&found).find(|(thread, found)| {
            let [mut a, mut b] = pair(*thread);
            for _ in 0..TEST_ITERATIONS {
                a *= b;
                b *= a;
            }
            **found != [a, b].map(Limbs::from)
        });
        let Some((thread, found)) = wrong else { return Ok(()) };
        Err(Error::BadResult {
            device: self.device.id().clone(),
            operation: format!("products of {emitter:?}"),
            detail: format!("thread {thread} found {found:x?}"),
        })
    }

    fn products_per_s(&mut self) -> Result<f64> {
        let threads = self.pairs.len() as u32;
        let mut iterations = 8;
        loop {
            let start = Instant::now();
            self.launch(iterations, threads)?;
            self.stream.wait()?;
            let took = start.elapsed();
            if took >= LONG_ENOUGH || iterations >= MAX_ITERATIONS {
                let products = PRODUCTS_PER_ITERATION * u64::from(iterations) * u64::from(threads);
                return Ok(products as f64 / took.as_secs_f64());
            }
            iterations *= 4;
        }
    }
}

/// The elements that a thread begins with: −1 for the first one, then numbers that fill all limbs.
fn pair(thread: u32) -> [Fr; 2] {
    let first = -Fr::from(thread + 1);
    [first, first * first + Fr::from(thread)]
}

/// Everything that the choice depends on: the device, its driver and the generated code.
fn identity(device: &Device, candidates: &[Emitter]) -> String {
    let mut hasher = DefaultHasher::new();
    candidates.iter().for_each(|&emitter| source(emitter, Fields::Fr).hash(&mut hasher));
    format!("{}|{:016x}", device.describe().identity(), hasher.finish())
}

fn file(identity: &str) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    identity.hash(&mut hasher);
    Some(evener_device::cache_folder()?.join("field").join(format!("{:016x}.json", hasher.finish())))
}

fn load(identity: &str) -> Option<Emitter> {
    let (stored, emitter): (String, Emitter) =
        serde_json::from_slice(&std::fs::read(file(identity)?).ok()?).ok()?;
    (stored == identity).then_some(emitter)
}

/// Stores a choice. Without a cache folder the next process measures again.
fn save(identity: &str, emitter: Emitter) {
    let Some(path) = file(identity) else { return };
    let stored = serde_json::to_vec(&(identity, emitter))
        .map_err(std::io::Error::from)
        .and_then(|text| evener_device::write_atomically(&path, &text));
    if let Err(why) = stored {
        tracing::debug!("{}: the choice of field arithmetic is not kept: {why}", path.display());
    }
}

#[cfg(all(test, feature = "cuda"))]
mod with_nvrtc {
    use evener_device::cuda::compile_kernel;

    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    #[allow(unsafe_code)]
    fn the_measured_kernel_compiles_for_cards_old_and_new() {
        for emitter in [Emitter::CudaPtx, Emitter::CudaPlain] {
            for card in ["sm_75", "sm_90"] {
                // SAFETY: the kernel is compiled and never launched.
                let compiled = compile_kernel(card, &unsafe { products(emitter) });
                assert!(!compiled.unwrap().is_empty(), "{emitter:?}, {card}");
            }
        }
    }
}
