//! The kernels of a multi-scalar multiplication, compiled for a device.
#![allow(unsafe_code)] // For kernels whose addresses are not checked.

use bytemuck::{Pod, Zeroable};
use evener_device::{Device, DeviceKind, Kernel, Module, Program, Result};

use super::plan::{MIN_SEGMENT, Plan};
use crate::{
    curve::{self, Group},
    dialect::Dialect,
    field::{self, Emitter, Fields, Limbs},
};

/// Threads of a workgroup that sorts.
pub(super) const SORT_GROUP: u32 = 256;
/// Buckets that a workgroup scans.
pub(super) const SCAN_BUCKETS: u32 = 2048;
/// Threads of a workgroup that adds in a tree.
const TREE_GROUP: u32 = 128;
/// Threads of a workgroup that computes tables.
pub(super) const TABLE_GROUP: u32 = 64;

/// Segments of a device that the processor emulates: many, because Mesa's software Vulkan ends a thread's loops after 65,535
/// iterations in all.
const SOFTWARE_SEGMENTS: u32 = 1 << 14;
/// Segments of a multiprocessor where the device does not tell how many threads it runs at once.
const DEFAULT_SEGMENTS_PER_UNIT: u32 = 512;
/// Multiprocessors of a device that does not tell their number.
const DEFAULT_UNITS: u32 = 64;

/// The parameters of all kernels.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Params {
    pub(super) count: u32,
    pub(super) window_bits: u32,
    pub(super) windows: u32,
    pub(super) is_shared: u32,
    pub(super) buckets: u32,
    pub(super) segments: u32,
    pub(super) level: u32,
    pub(super) levels: u32,
}

impl Params {
    /// Returns the parameters of a plan for some points; segments and levels are zero.
    pub(super) fn new(plan: &Plan, count: usize) -> Params {
        Params {
            count: count as u32,
            window_bits: plan.window_bits,
            windows: plan.windows,
            is_shared: plan.is_shared.into(),
            buckets: plan.buckets() as u32,
            segments: 0,
            level: 0,
            levels: 0,
        }
    }
}

/// The compiled kernels. A buffer of points is declared as `Limbs`.
#[derive(Debug)]
pub(super) struct Programs {
    pub(super) count_digits: Program,
    pub(super) sum_counters: Program,
    pub(super) scan_sums: Program,
    pub(super) write_offsets: Program,
    pub(super) write_entries: Program,
    pub(super) accumulate: Program,
    pub(super) merge: Program,
    pub(super) reduce: Program,
    /// Number of segments that keep all threads of the device busy for the same time.
    pub(super) segments: u32,
}

impl Programs {
    /// Compiles the kernels, several at a time.
    pub(super) fn compile(
        device: &Device,
        emitter: Emitter,
        group: Group,
        tuning: AccumulateTuning,
    ) -> Result<Programs> {
        let compile = |kernels: Vec<Kernel>| -> Result<Vec<Program>> {
            kernels.iter().map(|kernel| device.compile(kernel)).collect()
        };
        let (sort, accumulate, merge, reduce) = std::thread::scope(|scope| {
            let compile = &compile;
            // Kernels with additions take the longest.
            let additions =
                [accumulate(emitter, group, tuning), merge(emitter, group), reduce(emitter, group)]
                    .map(|kernel| scope.spawn(move || compile(vec![kernel])));
            let sort = compile(sort(emitter));
            let [accumulate, merge, reduce] = additions.map(|thread| match thread.join() {
                Ok(programs) => programs,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            (sort, accumulate, merge, reduce)
        });
        let mut all = sort?.into_iter().chain(accumulate?).chain(merge?).chain(reduce?);
        let mut next = || {
            all.next().ok_or_else(|| evener_device::Error::Unsupported {
                device: device.id().clone(),
                operation: "compiling kernels".into(),
                detail: "a kernel is missing".into(),
            })
        };
        let mut programs = Programs {
            count_digits: next()?,
            sum_counters: next()?,
            scan_sums: next()?,
            write_offsets: next()?,
            write_entries: next()?,
            accumulate: next()?,
            merge: next()?,
            reduce: next()?,
            segments: SOFTWARE_SEGMENTS,
        };
        if device.describe().kind != DeviceKind::Software {
            programs.segments = full_segments(device, &programs.accumulate)?;
        }
        Ok(programs)
    }
}

/// Returns the number of threads of a kernel over seven buffers that a device runs at once.
fn full_segments(device: &Device, accumulate: &Program) -> Result<u32> {
    let units = device.describe().compute_units.unwrap_or(DEFAULT_UNITS).max(1);
    let points = || device.buffer_uninit::<Limbs>(64);
    let words = || device.buffer_uninit::<u32>(64);
    let bound = accumulate.bind(&[
        points()?.arg(),
        words()?.arg(),
        device.buffer_uninit::<[u32; 2]>(64)?.arg(),
        words()?.arg(),
        points()?.arg(),
        points()?.arg(),
        words()?.arg(),
    ])?;
    let group = bound.kernel().workgroup_threads() as u32;
    Ok(units * bound.occupancy()?.map_or(DEFAULT_SEGMENTS_PER_UNIT, |groups| groups.max(1) * group))
}

/// Threads of a workgroup that adds up points.
fn accumulate_group(dialect: Dialect) -> u32 {
    match dialect {
        Dialect::CudaC => 128,
        Dialect::Wgsl => 64,
    }
}

/// The constants of all kernels, as source code.
fn definitions(dialect: Dialect) -> String {
    let all = [
        ("MIN_SEGMENT", MIN_SEGMENT),
        ("TREE_GROUP", TREE_GROUP),
        ("TABLE_GROUP", TABLE_GROUP),
        ("ACCUMULATE_GROUP", accumulate_group(dialect)),
    ];
    let define = |(name, value): &(&str, u32)| match dialect {
        Dialect::CudaC => format!("#define {name} {value}\n"),
        Dialect::Wgsl => format!("const {name} = {value}u;\n"),
    };
    all.iter().map(define).collect()
}

/// Returns what is before the first kernel of a WGSL source, and the part of one kernel. A line `//! name` begins a part.
fn wgsl_part(source: &str, name: &str) -> String {
    let mut parts = source.split("//! ");
    let shared = parts.next().unwrap_or_default();
    let own = parts.find_map(|part| part.strip_prefix(name)?.strip_prefix('\n')).unwrap_or_default();
    format!("{shared}{own}")
}

/// The kernels that sort digits by bucket, in the order of [`Programs`].
fn sort(emitter: Emitter) -> Vec<Kernel> {
    let dialect = emitter.dialect();
    let definitions = definitions(dialect);
    let arithmetic = field::source(emitter, Fields::Fr);
    let cuda = match dialect {
        Dialect::CudaC => {
            Some([&definitions, &*arithmetic, include_str!("params.cu"), include_str!("sort.cu")].concat())
        }
        Dialect::Wgsl => None,
    };
    // SAFETY: the launches of `MsmWorkspace::queue` are within these bounds. A thread of `count_digits` and `write_entries`
    // reads the scalar of its index and its bit of `infinite`, if the index is less than `count`, and accesses ranks below
    // `count * windows`, counters and offsets below `buckets`, and entries below the sum of all counters, which is at most
    // `count * windows`: both kernels see the same scalars, because `MsmBases` queues them for memory that nothing writes
    // meanwhile. The other kernels access `buckets` counters and offsets, one sum for each `SCAN_BUCKETS` of them, and at
    // most `buckets + 1` runs.
    let module = cuda.map(|source| unsafe { Module::new().cuda(source) });
    let kernel = |name: &'static str| match &module {
        Some(module) => module.kernel(name),
        None => {
            let (arithmetic, source) = match name {
                "count_digits" | "write_entries" => (&*arithmetic, include_str!("sort.wgsl")),
                _ => ("", include_str!("scan.wgsl")),
            };
            let text =
                [&definitions, arithmetic, include_str!("params.wgsl"), &wgsl_part(source, name)].concat();
            // SAFETY: as above; all loops count up to a limit.
            unsafe { Kernel::new(name).wgsl_unchecked(emitter.features(), text) }
        }
    };
    let kernels = [
        kernel("count_digits").reads::<Limbs>().reads::<u32>().writes::<u32>().writes::<u32>(),
        kernel("sum_counters").reads::<u32>().writes::<[u32; 2]>(),
        kernel("scan_sums").writes::<[u32; 2]>().writes::<u32>().writes::<[u32; 2]>(),
        kernel("write_offsets").reads::<u32>().reads::<[u32; 2]>().writes::<u32>().writes::<[u32; 2]>(),
        kernel("write_entries").reads::<Limbs>().reads::<u32>().reads::<u32>().reads::<u32>().writes::<u32>(),
    ];
    kernels.map(|kernel| kernel.params::<Params>().workgroup(SORT_GROUP)).into()
}

/// A kernel has one addition: as a function that is called, it would pass its points through memory.
const INLINED: &str = "#define ZK_G2_INLINE __forceinline__\n";

/// Returns a kernel over points of a group.
fn of_group(name: &'static str, emitter: Emitter, group: Group, cuda: &str, wgsl: &str) -> Kernel {
    of_group_with(INLINED, name, emitter, group, cuda, wgsl)
}

/// Returns a kernel over points of a group, with macros of its own in CUDA C.
fn of_group_with(
    macros: &str,
    name: &'static str,
    emitter: Emitter,
    group: Group,
    cuda: &str,
    wgsl: &str,
) -> Kernel {
    let dialect = emitter.dialect();
    let fields = if group == Group::G1 { Fields::Fq } else { Fields::Fq2 };
    let (params, body) = match dialect {
        Dialect::CudaC => (include_str!("params.cu"), cuda),
        Dialect::Wgsl => (include_str!("params.wgsl"), wgsl),
    };
    let body = match group {
        Group::G1 => body.to_owned(),
        Group::G2 => body.replace("G1", "G2").replace("g1_", "g2_"),
    };
    let text = [
        if dialect == Dialect::CudaC { macros.to_owned() } else { String::new() },
        definitions(dialect),
        field::source(emitter, fields),
        curve::source(emitter, group),
        params.to_owned(),
        body,
    ]
    .concat();
    let kernel = Kernel::new(name).params::<Params>();
    match dialect {
        // SAFETY: the launches of `MsmWorkspace::queue` and `make_resident` are within these bounds: points below `count` times the
        // points of a base, which the entries name; entries below their number, `info[1]`; runs up to their number; buckets
        // below `buckets`; two partial sums and one first run for each of `segments`; results of one root for each set.
        Dialect::CudaC => unsafe { kernel.cuda(text) },
        // SAFETY: as above; all loops count up to a limit, or halve a range. `length` and `segments` are not zero.
        Dialect::Wgsl => unsafe { kernel.wgsl_unchecked(emitter.features(), text) },
    }
}

/// Workgroups that a multiprocessor adds points with at once. The registers of a thread are limited accordingly: to 128 in
/// G1, and to 255 in G2.
fn default_groups_per_unit(group: Group) -> u32 {
    match group {
        Group::G1 => 4,
        Group::G2 => 2,
    }
}

/// How the kernel that adds points is compiled for CUDA.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AccumulateTuning {
    /// Workgroups that a multiprocessor runs at once, instead of the default.
    pub(super) groups_per_unit: Option<u32>,
    /// Whether products are functions that are called. The code is then half as long.
    pub(super) calls_products: bool,
}

fn accumulate(emitter: Emitter, group: Group, tuning: AccumulateTuning) -> Kernel {
    let groups_per_unit = tuning.groups_per_unit.unwrap_or(default_groups_per_unit(group));
    // The registers of a thread hold one more point of G1, but not of G2.
    let loads_ahead = u32::from(group == Group::G1);
    let cuda = format!(
        "#define ACCUMULATE_GROUPS {groups_per_unit}\n#define LOADS_AHEAD {loads_ahead}\n{}",
        include_str!("accumulate.cu")
    );
    let inline = match tuning.calls_products {
        true => INLINED.to_owned() + "#define ZK_PTX_INLINE __noinline__\n",
        false => INLINED.to_owned(),
    };
    of_group_with(&inline, "accumulate", emitter, group, &cuda, include_str!("accumulate.wgsl"))
        .reads::<Limbs>()
        .reads::<u32>()
        .reads::<[u32; 2]>()
        .reads::<u32>()
        .writes::<Limbs>()
        .writes::<Limbs>()
        .writes::<u32>()
        .workgroup(accumulate_group(emitter.dialect()))
}

fn merge(emitter: Emitter, group: Group) -> Kernel {
    of_group("merge", emitter, group, include_str!("merge.cu"), include_str!("merge.wgsl"))
        .reads::<[u32; 2]>()
        .reads::<u32>()
        .reads::<u32>()
        .writes::<Limbs>()
        .writes::<Limbs>()
        .workgroup(TREE_GROUP)
}

fn reduce(emitter: Emitter, group: Group) -> Kernel {
    of_group("reduce", emitter, group, include_str!("reduce.cu"), include_str!("reduce.wgsl"))
        .reads::<u32>()
        .writes::<Limbs>()
        .writes::<Limbs>()
        .workgroup(TREE_GROUP)
}

/// The kernel that computes the points of all windows from those of the first.
pub(super) fn tables(emitter: Emitter, group: Group) -> Kernel {
    of_group("tables", emitter, group, include_str!("tables.cu"), include_str!("tables.wgsl"))
        .writes::<Limbs>()
        .workgroup(TABLE_GROUP)
}

#[cfg(all(test, feature = "cuda"))]
mod with_nvrtc {
    use evener_device::cuda::compile_kernel;

    use super::*;

    #[test]
    #[ignore = "needs NVRTC"]
    fn the_kernels_compile_for_cards_old_and_new() {
        for emitter in [Emitter::CudaPtx, Emitter::CudaPlain] {
            for card in ["sm_75", "sm_90"] {
                for group in [Group::G1, Group::G2] {
                    let mut kernels = vec![
                        accumulate(emitter, group, AccumulateTuning::default()),
                        accumulate(
                            emitter,
                            group,
                            AccumulateTuning { calls_products: true, ..AccumulateTuning::default() },
                        ),
                        merge(emitter, group),
                        reduce(emitter, group),
                        tables(emitter, group),
                    ];
                    if group == Group::G1 {
                        kernels.extend(sort(emitter).drain(..1));
                    }
                    for kernel in kernels {
                        let start = std::time::Instant::now();
                        let compiled = compile_kernel(card, &kernel);
                        let (name, took) = (kernel.name(), start.elapsed());
                        let bytes = compiled.unwrap().len();
                        println!("{emitter:?} {group:?} {card} {name}: {bytes} bytes in {took:?}");
                        assert!(bytes > 0);
                    }
                }
            }
        }
    }
}
