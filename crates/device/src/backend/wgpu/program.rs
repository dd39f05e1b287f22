//! Compiled kernels.

use std::{collections::HashMap, fmt, sync::Arc};

use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingResource, BindingType, BufferBinding, BufferBindingType, BufferSize,
    ComputePipeline, ComputePipelineDescriptor, PipelineLayoutDescriptor, ShaderModule,
    ShaderModuleDescriptor, ShaderRuntimeChecks, ShaderSource, ShaderStages, naga,
};

use super::{
    super::{Bound, Memory, Program, Region},
    failure::{quietly, translate, words},
    hold::Hold,
    memory::{WgpuMemory, padded},
};
use crate::{
    describe::{Api, Features},
    error::{Error, Result},
    kernel::{Access, Kernel},
};

/// What is bound for a part of no length, which cannot be bound: as much as the smallest block has, so that
/// it is enough for an element of any type.
const NOTHING_BYTES: u64 = 256;

/// The sources that an open device has compiled so far: kernels that share a source share a module.
pub(super) type Modules = HashMap<String, Arc<Module>>;

/// A compiled source, with the workgroup size of each of its entry points.
pub(super) struct Module {
    shader: ShaderModule,
    entries: Vec<(String, [u32; 3])>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Module {
    /// The module of a source. The error is what the compiler said.
    fn of(hold: &Hold, source: &str) -> Result<Arc<Self>, Refusal> {
        if let Some(module) = hold.modules().get(source) {
            return Ok(module.clone());
        }
        // Parsed here for the entry points, and for messages that show the line.
        let parsed = naga::front::wgsl::parse_str(source);
        let parsed = parsed.map_err(|error| Refusal::Compiler(error.emit_to_string(source)))?;
        let entries = parsed.entry_points.iter().map(|entry| (entry.name.clone(), entry.workgroup_size));
        let descriptor = ShaderModuleDescriptor { label: None, source: ShaderSource::Wgsl(source.into()) };
        // SAFETY: see `checks`.
        let make = || unsafe { hold.device.create_shader_module_trusted(descriptor, checks(hold.api)) };
        let (shader, error) = hold.scoped(make);
        if let Some(error) = error {
            return Err(Refusal::Driver(error));
        }
        let module = Arc::new(Module { shader, entries: entries.collect() });
        hold.modules().insert(source.to_owned(), module.clone());
        Ok(module)
    }
}

/// Which checks are compiled into a kernel.
///
/// All but one, as for any WGSL: an index out of bounds must not reach another buffer. The one left out
/// counts the turns of every loop and ends it after 2^64 of them, which costs field arithmetic dearly.
/// Without it, a loop that never ends is a kernel that never ends: a device that does not answer, which is
/// an error that waiting can report. Only Metal's compiler is allowed to take such a loop for unreachable
/// and to draw conclusions from that, so there the check stays.
fn checks(api: Api) -> ShaderRuntimeChecks {
    let mut checks = ShaderRuntimeChecks::checked();
    checks.force_loop_bounding = api == Api::Metal;
    checks
}

/// Why a kernel could not be compiled.
enum Refusal {
    Compiler(String),
    Driver(wgpu::Error),
}

impl Refusal {
    fn into_error(self, hold: &Hold, kernel: &Kernel, body: &str) -> Error {
        let log = match self {
            Refusal::Compiler(log) => log,
            Refusal::Driver(wgpu::Error::Validation { description, .. }) => words(&description),
            Refusal::Driver(error) => {
                return translate(error, &hold.id, &format!("compiling kernel `{}`", kernel.name), 0);
            }
        };
        Error::WillNotCompile {
            device: hold.id.clone(),
            kernel: kernel.name.to_string(),
            body: body.into(),
            log,
        }
    }
}

/// A kernel compiled for one open device.
#[derive(Debug)]
pub(super) struct WgpuProgram {
    hold: Arc<Hold>,
    name: String,
    body: String,
    pipeline: ComputePipeline,
    /// None where the kernel works on no buffers.
    layout: Option<BindGroupLayout>,
}

impl WgpuProgram {
    pub(super) fn compile(hold: &Arc<Hold>, kernel: &Kernel) -> Result<Self> {
        let operation = format!("compiling kernel `{}`", kernel.name);
        hold.check(&operation)?;
        let Some((needs, source)) = kernel.wgsl_for(hold.capabilities.features) else {
            return Err(Error::unsupported(&hold.id, operation, no_body(kernel, hold.capabilities.features)));
        };
        let body = if needs.is_empty() { "WGSL".to_owned() } else { format!("WGSL with {}", names(needs)) };
        // Deeply nested code makes the driver's compiler give up by unwinding.
        let made =
            quietly(|| pipeline(hold, kernel, source)).unwrap_or_else(|why| Err(Refusal::Compiler(why)));
        let (pipeline, layout) = made.map_err(|refusal| refusal.into_error(hold, kernel, &body))?;
        hold.check(&operation)?;
        Ok(WgpuProgram { hold: hold.clone(), name: kernel.name.to_string(), body, pipeline, layout })
    }
}

fn no_body(kernel: &Kernel, has: Features) -> String {
    if kernel.wgsl.is_empty() {
        return "it has no WGSL body".into();
    }
    let missing: Vec<_> = kernel.wgsl.iter().map(|(needs, _)| names(needs.difference(has))).collect();
    format!("its WGSL bodies need what is missing here: {}", missing.join("; or "))
}

fn names(features: Features) -> String {
    features.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

fn pipeline(
    hold: &Hold,
    kernel: &Kernel,
    source: &str,
) -> Result<(ComputePipeline, Option<BindGroupLayout>), Refusal> {
    let module = Module::of(hold, source)?;
    let Some((_, declared)) = module.entries.iter().find(|(name, _)| *name == kernel.name) else {
        let there: Vec<_> = module.entries.iter().map(|(name, _)| format!("`{name}`")).collect();
        return Err(Refusal::Compiler(format!(
            "no entry point `{}`; there: {}",
            kernel.name,
            if there.is_empty() { "none".into() } else { there.join(", ") }
        )));
    };
    if *declared != kernel.workgroup {
        return Err(Refusal::Compiler(format!(
            "the body declares a workgroup of {declared:?}, the kernel of {:?}",
            kernel.workgroup
        )));
    }
    let entries: Vec<_> = kernel
        .bindings
        .iter()
        .zip(0..)
        .map(|(binding, index)| BindGroupLayoutEntry {
            binding: index,
            visibility: ShaderStages::COMPUTE,
            ty: BindingType::Buffer {
                ty: BufferBindingType::Storage { read_only: binding.access == Access::Read },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        })
        .collect();
    let device = &hold.device;
    let (made, error) = hold.scoped(|| {
        let descriptor = BindGroupLayoutDescriptor { label: None, entries: &entries };
        let layout = (!entries.is_empty()).then(|| device.create_bind_group_layout(&descriptor));
        let groups: Vec<_> = layout.iter().map(Some).collect();
        let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &groups,
            immediate_size: kernel.params_bytes.next_multiple_of(4),
        });
        let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: None,
            layout: Some(&pipeline_layout),
            module: &module.shader,
            entry_point: Some(&kernel.name),
            compilation_options: Default::default(),
            cache: None,
        });
        (pipeline, layout)
    });
    error.map_or(Ok(made), |error| Err(Refusal::Driver(error)))
}

impl Program for WgpuProgram {
    fn body(&self) -> &str {
        &self.body
    }

    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn Bound>> {
        let operation = format!("binding kernel `{}`", self.name);
        let memories: Vec<_> =
            arguments.iter().map(|region| WgpuMemory::of(region, &self.hold)).collect::<Result<_>>()?;
        let entries: Vec<_> = arguments
            .iter()
            .zip(&memories)
            .zip(0..)
            .map(|((region, memory), index)| BindGroupEntry {
                binding: index,
                resource: BindingResource::Buffer(place(region, memory)),
            })
            .collect();
        let group = match &self.layout {
            None => None,
            Some(layout) => Some(self.hold.attempt(&operation, || {
                self.hold.device.create_bind_group(&BindGroupDescriptor {
                    label: None,
                    layout,
                    entries: &entries,
                })
            })?),
        };
        Ok(Arc::new(WgpuBound {
            hold: self.hold.clone(),
            pipeline: self.pipeline.clone(),
            group,
            _memories: arguments.iter().map(|region| region.memory.clone()).collect(),
        }))
    }
}

fn place<'a>(region: &Region, memory: &'a WgpuMemory) -> BufferBinding<'a> {
    let (mut offset, mut size) = (region.offset, padded(region.bytes));
    if size == 0 {
        // At the very end of a block there is nothing to bind, so its beginning stands in.
        offset = if offset + NOTHING_BYTES <= memory.buffer.size() { offset } else { 0 };
        size = NOTHING_BYTES;
    }
    BufferBinding { buffer: &memory.buffer, offset, size: BufferSize::new(size) }
}

/// A compiled kernel with its buffers, whose memory it keeps.
#[derive(Debug)]
pub(super) struct WgpuBound {
    pub(super) hold: Arc<Hold>,
    pub(super) pipeline: ComputePipeline,
    pub(super) group: Option<BindGroup>,
    _memories: Vec<Arc<dyn Memory>>,
}

impl Bound for WgpuBound {}
