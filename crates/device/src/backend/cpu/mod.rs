//! The processor's cores as a device: the threads of a rayon pool, bound to cores if the device is a partition.
//!
//! A stream is a thread that takes operations from a channel; a kernel's Rust body runs inside the pool. Each buffer is
//! plain host memory behind a lock of its own, so that streams which share a buffer cannot race.

mod memory;
mod stream;

use std::{
    any::Any,
    sync::{Arc, LazyLock, Mutex, Once, PoisonError, Weak},
};

use core_affinity::CoreId;
use rayon::{ThreadPool, ThreadPoolBuilder};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

use self::{
    memory::{CpuBlock, CpuHostMemory, CpuMemory},
    stream::CpuStream,
};
use super::{
    Address, Backend, BoundKernelBackend, Contents, Direction, HostMemory, Memory, MemoryUsage,
    ProgramBackend, Region, Source, StreamBackend,
    block_cache::{BlockCache, class_bytes, exact_bytes},
};
use crate::{
    affinity::{self, unbound},
    describe::{Api, Capabilities, Description, DeviceId, DeviceKind, Features},
    error::{Error, Result},
    kernel::{Binding, Kernel, RustBody},
    thread_stack::stack_bytes,
};

/// Returns the source of the device of all cores.
pub(crate) fn source() -> Arc<dyn Source> {
    static SOURCE: LazyLock<Arc<CpuSource>> = LazyLock::new(|| Arc::new(CpuSource::find()));
    SOURCE.clone()
}

#[derive(Debug)]
struct CpuSource {
    description: Description,
    threads: usize,
    /// The cores that threads are bound to; `None` for the whole processor, whose threads are not bound.
    cores: Option<Arc<PartitionCores>>,
}

/// The cores of a partition.
#[derive(Debug)]
struct PartitionCores {
    device: DeviceId,
    cores: Vec<CoreId>,
    warning: Once,
}

impl PartitionCores {
    /// Binds the calling thread to one of the cores (the index wraps around), or warns once that it cannot.
    fn bind_thread(&self, index: usize) {
        let Some(core) = self.cores.get(index % self.cores.len().max(1)) else { return };
        if let Err(why) = affinity::bind(*core) {
            self.warning.call_once(|| {
                let device = &self.device;
                tracing::warn!("{device}: its threads are not bound to cores, and may use others: {why}");
            });
        }
    }
}

impl CpuSource {
    fn find() -> Self {
        let system = System::new_with_specifics(
            RefreshKind::nothing()
                .with_cpu(CpuRefreshKind::nothing())
                .with_memory(MemoryRefreshKind::nothing().with_ram()),
        )
        .ok();
        let threads = unbound(std::thread::available_parallelism).map_or(1, usize::from);
        let brand = system.as_ref().and_then(|system| Some(system.cpus().first()?.brand().trim()));
        let name = brand.filter(|brand| !brand.is_empty());
        let kernel = System::kernel_version().unwrap_or_default();
        CpuSource {
            description: Description {
                id: DeviceId::from("cpu"),
                name: name.unwrap_or("processor").to_owned(),
                kind: DeviceKind::Cpu,
                api: Api::Cpu,
                memory_bytes: system.as_ref().map(memory_limit),
                compute_units: Some(threads as u32),
                pci: None,
                uuid: None,
                driver: format!("{} {kernel}", std::env::consts::OS).trim().to_owned(),
                part_of: None,
                rounded_from: None,
                host: None,
            },
            threads,
            cores: None,
        }
    }
}

impl Source for CpuSource {
    fn describe(&self) -> &Description {
        &self.description
    }

    fn open(&self) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(CpuBackend::new(self)?))
    }

    fn bind_thread(&self, index: usize) {
        if let Some(cores) = &self.cores {
            cores.bind_thread(index);
        }
    }

    fn split(&self, sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        let cores = match &self.cores {
            Some(partition) => partition.cores.clone(),
            None => unbound(core_affinity::get_core_ids).ok_or_else(|| {
                let limit = affinity::MAX_CPUS;
                self.cannot_split(sizes, format!(
                    "the system does not report its cores: on Linux, partitions are possible on machines with at most \
                     {limit} CPUs"
                ))
            })?,
        };
        self.split_cores(&cores, sizes)
    }
}

impl CpuSource {
    /// Makes partitions of the first of these cores: of as many as the device has threads. A control group's quota may
    /// allow fewer than there are cores.
    fn split_cores(&self, cores: &[CoreId], sizes: &[u32]) -> Result<Vec<Arc<dyn Source>>> {
        let asked: u64 = sizes.iter().map(|&size| u64::from(size)).sum();
        let mut rest = &cores[..cores.len().min(self.threads)];
        if asked > rest.len() as u64 {
            let mut detail = format!("{asked} cores in total, and the device has {}", rest.len());
            if rest.len() < cores.len() {
                detail += &format!(": a quota allows the time of this many of the {} cores", cores.len());
            }
            return Err(self.cannot_split(sizes, detail));
        }
        let mut partitions: Vec<Arc<dyn Source>> = Vec::with_capacity(sizes.len());
        for (index, &size) in sizes.iter().enumerate() {
            let (mine, others) = rest.split_at(size as usize);
            rest = others;
            let id = self.description.id.partition(index);
            let cores = PartitionCores { device: id.clone(), cores: mine.to_vec(), warning: Once::new() };
            partitions.push(Arc::new(CpuSource {
                description: Description {
                    id,
                    compute_units: Some(size),
                    part_of: Some(self.description.id.clone()),
                    ..self.description.clone()
                },
                threads: mine.len(),
                cores: Some(Arc::new(cores)),
            }));
        }
        Ok(partitions)
    }

    fn cannot_split(&self, sizes: &[u32], detail: String) -> Error {
        Error::Split { device: self.description.id.clone(), sizes: sizes.to_vec(), detail }
    }
}

#[derive(Debug)]
struct CpuBackend {
    id: DeviceId,
    capabilities: Capabilities,
    pool: Arc<ThreadPool>,
    cache: Arc<BlockCache<CpuBlock>>,
}

impl CpuBackend {
    fn new(source: &CpuSource) -> Result<Self> {
        let id = source.description.id.clone();
        let (name, cores) = (id.clone(), source.cores.clone());
        let pool = ThreadPoolBuilder::new()
            .num_threads(source.threads)
            .stack_size(stack_bytes())
            .thread_name(move |index| format!("evener-{name}-{index}"))
            .start_handler(move |index| {
                if let Some(cores) = &cores {
                    cores.bind_thread(index);
                }
            });
        let pool = unbound(|| pool.build())
            .map_err(|why| Error::lost(&id, "starting its threads", why.to_string()))?;
        Ok(CpuBackend {
            capabilities: capabilities(source.description.memory_bytes.unwrap_or(u64::MAX)),
            id,
            pool: Arc::new(pool),
            cache: new_cache(source.description.memory_bytes.unwrap_or(u64::MAX) / CACHE_DIVISOR),
        })
    }

    fn take(&self, bytes: u64) -> Result<CpuBlock> {
        let class = class_bytes(bytes);
        if let Some((_, block)) = self.cache.take(class) {
            return Ok(block);
        }
        let block = match self.make(class) {
            Err(Error::OutOfMemory { .. }) if exact_bytes(bytes) < class => self.make(exact_bytes(bytes))?,
            made => made?,
        };
        self.cache.add_in_use(block.bytes().len() as u64);
        Ok(block)
    }

    fn make(&self, bytes: u64) -> Result<CpuBlock> {
        self.check_free(bytes)?;
        CpuBlock::zeroed(bytes).ok_or_else(|| self.out_of_memory(bytes, None))
    }

    fn check_free(&self, bytes: u64) -> Result<()> {
        match too_little_free(bytes, trim_all) {
            None => Ok(()),
            Some(free) => Err(self.out_of_memory(bytes, Some(free))),
        }
    }

    fn out_of_memory(&self, requested: u64, available: Option<u64>) -> Error {
        Error::OutOfMemory {
            device: self.id.clone(),
            operation: "allocating a buffer".into(),
            requested,
            available,
            detail: "limited by the machine's memory".into(),
        }
    }
}

/// A cache keeps at most the machine's memory divided by this.
const CACHE_DIVISOR: u64 = 4;

/// The caches of all open processors and partitions. They share the machine's memory, so all are cleared when one of them
/// needs it.
static CACHES: Mutex<Vec<Weak<BlockCache<CpuBlock>>>> = Mutex::new(Vec::new());

fn new_cache(cap: u64) -> Arc<BlockCache<CpuBlock>> {
    let cache = Arc::new(BlockCache::new(cap));
    let mut caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner);
    caches.retain(|cache| cache.strong_count() > 0);
    caches.push(Arc::downgrade(&cache));
    cache
}

/// Frees the cached memory of all open processors and partitions.
fn trim_all() {
    let caches = CACHES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    caches.iter().filter_map(Weak::upgrade).for_each(|cache| drop(cache.clear()));
}

/// The processor has no limits for a launch: these are the limits of the types.
fn capabilities(memory_bytes: u64) -> Capabilities {
    Capabilities {
        features: Features::INT64 | Features::FLOAT64 | Features::TIMESTAMPS,
        max_buffer_bytes: memory_bytes,
        max_binding_bytes: memory_bytes,
        max_bindings: 64,
        max_params_bytes: 4096,
        max_workgroup: [u32::MAX; 3],
        max_workgroup_threads: u32::MAX,
        max_groups: [u32::MAX; 3],
        max_shared_bytes: u32::MAX,
        subgroup_size: None,
        binding_alignment: 1,
        copy_alignment: 1,
    }
}

impl Backend for CpuBackend {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn allocate(&self, bytes: u64, contents: Contents) -> Result<Arc<dyn Memory>> {
        let mut block = self.take(bytes)?;
        if contents == Contents::Zeroed {
            block.make_zero();
        }
        Ok(Arc::new(CpuMemory::new(block, bytes, self.cache.clone())))
    }

    unsafe fn adopt(
        &self,
        address: Address,
        bytes: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Option<Arc<dyn Memory>>> {
        let (Address::Host(pointer), Ok(len)) = (address, usize::try_from(bytes)) else { return Ok(None) };
        // SAFETY: the caller promises the same.
        let block = unsafe { CpuBlock::adopt(pointer, len, owner) };
        Ok(Some(Arc::new(CpuMemory::new(block, bytes, self.cache.clone()))))
    }

    fn allocate_host(&self, bytes: u64, _: Direction) -> Result<Box<dyn HostMemory>> {
        let block = self.make(bytes)?;
        Ok(Box::new(CpuHostMemory::new(block, bytes, self.id.clone())))
    }

    fn compile(&self, kernel: &Kernel) -> Result<Arc<dyn ProgramBackend>> {
        let Some(body) = kernel.rust.clone() else {
            let operation = format!("compiling kernel `{}`", kernel.name);
            return Err(Error::unsupported(
                &self.id,
                operation,
                "the kernel has no Rust body: add one with `Kernel::rust`",
            ));
        };
        Ok(Arc::new(CpuProgram {
            device: self.id.clone(),
            name: kernel.name.clone().into(),
            workgroup: kernel.workgroup,
            bindings: kernel.bindings.clone(),
            body: Body(body),
        }))
    }

    fn stream(&self) -> Result<Box<dyn StreamBackend>> {
        Ok(Box::new(unbound(|| CpuStream::start(self.id.clone(), self.pool.clone()))?))
    }

    fn stream_for_thread(&self) -> Result<Box<dyn StreamBackend>> {
        Ok(Box::new(CpuStream::on_caller(self.id.clone(), self.pool.clone())))
    }

    fn memory(&self) -> MemoryUsage {
        self.cache.usage()
    }

    fn trim(&self) {
        drop(self.cache.clear());
    }
}

#[derive(Debug, Clone)]
struct CpuProgram {
    device: DeviceId,
    name: Arc<str>,
    workgroup: [u32; 3],
    bindings: Vec<Binding>,
    body: Body,
}

#[derive(Clone)]
struct Body(Arc<RustBody>);

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Rust body")
    }
}

impl ProgramBackend for CpuProgram {
    fn body(&self) -> &str {
        "Rust"
    }

    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn BoundKernelBackend>> {
        for region in arguments {
            CpuMemory::of(region, &self.device)?;
        }
        Ok(Arc::new(CpuBoundKernel { program: self.clone(), arguments: arguments.to_vec() }))
    }
}

#[derive(Debug)]
struct CpuBoundKernel {
    program: CpuProgram,
    arguments: Vec<Region>,
}

impl BoundKernelBackend for CpuBoundKernel {
    fn with_workgroup(&self, kernel: &Kernel) -> Result<Arc<dyn BoundKernelBackend>> {
        // Any workgroup of at least one thread is possible.
        if kernel.workgroup.contains(&0) {
            let operation = format!("launching kernel `{}`", kernel.name);
            let detail = format!("a workgroup of {:?} has no threads", kernel.workgroup);
            return Err(Error::unsupported(&self.program.device, operation, detail));
        }
        let program = CpuProgram { workgroup: kernel.workgroup, ..self.program.clone() };
        Ok(Arc::new(CpuBoundKernel { program, arguments: self.arguments.clone() }))
    }
}

/// The cap for caches of pinned host memory: an eighth of the machine's memory.
pub(crate) fn pinned_cap() -> u64 {
    source().describe().memory_bytes.map_or(1 << 30, |bytes| bytes / 8)
}

/// Returns the total memory, or the limit of the control group.
fn memory_limit(system: &System) -> u64 {
    let total = system.total_memory();
    system.cgroup_limits().map_or(total, |limits| limits.total_memory.min(total))
}

/// Returns the machine's free memory if it is less than `bytes`, even after `make_room`. Linux would allocate the bytes
/// anyway, and end the process when it touches them. Small requests are not checked, because checking takes time.
pub(crate) fn too_little_free(bytes: u64, make_room: impl FnOnce()) -> Option<u64> {
    const MIN_CHECKED_BYTES: u64 = 64 << 20;
    if bytes < MIN_CHECKED_BYTES || bytes <= memory_free() {
        return None;
    }
    make_room();
    Some(memory_free()).filter(|&free| bytes > free)
}

/// Returns the memory that can be allocated without swapping; `u64::MAX` if the system does not report it.
pub(crate) fn memory_free() -> u64 {
    let Ok(mut system) = System::new() else { return u64::MAX };
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    let free = system.available_memory();
    system.cgroup_limits().map_or(free, |limits| limits.free_memory.min(free))
}

#[cfg(test)]
mod test {
    use std::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        thread,
    };

    use tracing_subscriber::{
        Layer,
        layer::{Context, SubscriberExt},
    };

    use super::*;

    fn source_with(threads: usize) -> CpuSource {
        CpuSource { threads, ..CpuSource::find() }
    }

    fn cores(count: usize) -> Vec<CoreId> {
        (0..count).map(|id| CoreId { id }).collect()
    }

    #[test]
    fn a_device_with_a_quota_is_split_into_no_more_cores_than_it_has_threads() {
        let limited = source_with(2);
        let error = limited.split_cores(&cores(64), &[32, 32]).unwrap_err().to_string();
        assert!(
            error.contains("the device has 2: a quota allows the time of this many of the 64 cores"),
            "{error}"
        );
        limited.split_cores(&cores(64), &[2, 1]).unwrap_err();
        let parts = limited.split_cores(&cores(64), &[1, 1]).unwrap();
        assert!(parts.iter().all(|part| part.describe().compute_units == Some(1)));
        // Without a quota, and where the system allows fewer cores than the device counts.
        let error = source_with(4).split_cores(&cores(4), &[5]).unwrap_err().to_string();
        assert!(error.ends_with("the device has 4"), "{error}");
        source_with(4).split_cores(&cores(3), &[4]).unwrap_err();
    }

    /// Uses twice the stack that Rust gives a thread. Not inlined: the array must not be in the caller's frame.
    #[inline(never)]
    fn use_stack() -> usize {
        let mut bytes = [1u8; 4 << 20];
        std::hint::black_box(&mut bytes).iter().map(|&byte| usize::from(byte)).sum::<usize>()
    }

    #[test]
    fn the_devices_threads_have_more_stack_than_other_threads() {
        let backend = CpuBackend::new(&source_with(1)).unwrap();
        assert_eq!(backend.pool.install(use_stack), 4 << 20);
    }

    #[test]
    fn freed_memory_is_kept_up_to_the_cap_and_no_more() {
        const BYTES: u64 = 64 << 10;
        let mut source = source_with(1);
        source.description.memory_bytes = Some(16 * BYTES);
        let backend = CpuBackend::new(&source).unwrap();
        let counted = || (backend.memory().in_use_bytes, backend.memory().cached_bytes);
        let blocks: Vec<_> = (0..10).map(|_| backend.allocate(BYTES, Contents::Uninit).unwrap()).collect();
        assert_eq!(counted(), (10 * BYTES, 0));
        drop(blocks);
        assert_eq!(counted(), (0, 16 * BYTES / CACHE_DIVISOR));
        // A larger block replaces smaller ones, and one that is larger than the cap is freed.
        drop(backend.allocate(2 * BYTES, Contents::Uninit).unwrap());
        assert_eq!(counted(), (0, 4 * BYTES));
        drop(backend.allocate(5 * BYTES, Contents::Uninit).unwrap());
        assert!(counted().1 <= 4 * BYTES, "{:?}", counted());
    }

    /// Counts warnings.
    struct CountsWarnings(Arc<AtomicUsize>);

    impl<S: tracing::Subscriber> Layer<S> for CountsWarnings {
        fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
            assert_eq!(*event.metadata().level(), tracing::Level::WARN);
            self.0.fetch_add(1, SeqCst);
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_partition_whose_threads_cannot_be_bound_warns_once() {
        let warnings = Arc::new(AtomicUsize::new(0));
        let subscriber = tracing_subscriber::registry().with(CountsWarnings(warnings.clone()));
        // On a thread of its own, whose cores may change.
        let bind = || {
            tracing::subscriber::with_default(subscriber, || {
                // No machine has these cores, and no system binds to them.
                let absent = [affinity::MAX_CPUS - 1, affinity::MAX_CPUS - 2].map(|id| CoreId { id });
                let parts = source_with(2).split_cores(&absent, &[1, 1]).unwrap();
                (0..3).for_each(|index| parts[0].bind_thread(index));
                assert_eq!(warnings.load(SeqCst), 1);
                parts[1].bind_thread(0);
                assert_eq!(warnings.load(SeqCst), 2, "for each partition");
            });
        };
        thread::scope(|scope| scope.spawn(bind).join().unwrap());
    }
}
