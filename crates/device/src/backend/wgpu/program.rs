//! Compiled kernels.

use std::{collections::HashMap, fmt, sync::Arc};

use wgpu::{
    BindGroup, BindGroupDescriptor, BindGroupEntry, BindGroupLayout, BindGroupLayoutDescriptor,
    BindGroupLayoutEntry, BindingResource, BindingType, BufferBinding, BufferBindingType, BufferSize,
    ComputePipeline, ComputePipelineDescriptor, PipelineCompilationOptions, PipelineLayoutDescriptor,
    ShaderModule, ShaderModuleDescriptor, ShaderRuntimeChecks, ShaderSource, ShaderStages,
    naga::{
        self,
        back::pipeline_constants::process_overrides,
        valid::{Capabilities, ModuleInfo, ValidationFlags, Validator},
    },
};

use super::{
    super::{BoundKernel, Contents, Memory, Program, Region},
    failure::{catch, translate, words},
    hold::Hold,
    memory::{WgpuMemory, padded},
    pipelines::Kept,
};
use crate::{
    describe::Features,
    error::{Error, Result},
    kernel::{Access, Kernel},
    module::WgslBody,
};

/// Bytes of the memory that is bound in place of an empty buffer, which wgpu cannot bind: as much as the smallest
/// block has.
const PLACEHOLDER_BYTES: u64 = 256;

/// The sources that an open device has compiled so far: kernels that share a source, and what it is compiled with, share a
/// module.
pub(super) type Modules = HashMap<Key, Arc<Module>>;

/// What a module is compiled from: the source, whether with run-time checks, and the bits of the constants' values.
type Key = (String, bool, Vec<(String, u64)>);

/// A compiled source, with its entry points.
pub(super) struct Module {
    shader: ShaderModule,
    entries: Vec<Entry>,
    /// Those that the source has an `override` for.
    constants: Constants,
}

/// Keys of `override` declarations, and their values.
type Constants = Vec<(String, f64)>;

/// What an entry point says about itself.
#[derive(Debug)]
struct Entry {
    name: String,
    workgroup: [u32; 3],
    /// In `var<workgroup>`. wgpu leaves it to the driver to find that this is too much.
    shared_bytes: u64,
    /// In `var<immediate>`, which wgpu does not compare with what the layout has room for.
    params_bytes: u64,
    /// The least that must be bound, by binding. Without it, wgpu would look at every launch.
    least_bytes: HashMap<u32, u64>,
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Module").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Module {
    /// The module of a source. The error is what the compiler said.
    fn of(hold: &Hold, body: &WgslBody) -> Result<Arc<Self>, Refusal> {
        let constants = body.constants.iter().map(|(name, value)| (name.clone(), value.to_bits()));
        let key = (body.source.clone().into_owned(), body.is_checked, constants.collect());
        if let Some(module) = hold.modules().get(&key) {
            return Ok(module.clone());
        }
        let (entries, constants) = entries(&body.source, &body.constants).map_err(Refusal::Compiler)?;
        let source = ShaderSource::Wgsl((&*body.source).into());
        let descriptor = ShaderModuleDescriptor { label: None, source };
        let (shader, error) = hold.watch(|| match body.is_checked {
            true => hold.device.create_shader_module(descriptor),
            // SAFETY: `Kernel::wgsl_unchecked`, the only way to such a body, asks its caller for what the checks
            // would see to.
            false => unsafe {
                hold.device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked())
            },
        });
        if let Some(error) = error {
            return Err(Refusal::Driver(error));
        }
        let module = Arc::new(Module { shader, entries, constants });
        hold.modules().insert(key, module.clone());
        Ok(module)
    }
}

/// The entry points of a source and those of the constants that it declares, or what is wrong with it and where.
fn entries(source: &str, constants: &[(String, f64)]) -> Result<(Vec<Entry>, Constants), String> {
    let module = naga::front::wgsl::parse_str(source).map_err(|error| error.emit_to_string(source))?;
    // What the device cannot do is found by wgpu, which knows; this is about what the source says.
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(source))?;
    // An `override` with a number has this one for a key, and its name otherwise.
    let key_of = |name: &str| {
        let (_, it) = module.overrides.iter().find(|(_, it)| it.name.as_deref() == Some(name))?;
        Some(it.id.map_or_else(|| name.to_owned(), |id| id.to_string()))
    };
    let known: Constants =
        constants.iter().filter_map(|(name, value)| Some((key_of(name)?, *value))).collect();
    let values = known.iter().cloned().collect();
    let mut entries = Vec::with_capacity(module.entry_points.len());
    for (index, entry) in module.entry_points.iter().enumerate() {
        if module.overrides.is_empty() {
            entries.push(entry_of(&module, &info, index));
            continue;
        }
        // An entry point may not need all of them. What it does need has a value from here on.
        let point = Some((entry.stage, entry.name.as_str()));
        let (module, info) = process_overrides(&module, &info, point, &values)
            .map_err(|error| format!("entry point `{}`: {error}", entry.name))?;
        entries.push(entry_of(&module, &info, 0));
    }
    Ok((entries, known))
}

/// What an entry point of a source says about itself.
fn entry_of(module: &naga::Module, info: &ModuleInfo, index: usize) -> Entry {
    let (entry, uses) = (&module.entry_points[index], info.get_entry_point(index));
    let (mut shared_bytes, mut params_bytes) = (0, 0);
    let mut least_bytes = HashMap::new();
    for (_, variable) in module.global_variables.iter().filter(|it| !uses[it.0].is_empty()) {
        let bytes = u64::from(module.types[variable.ty].inner.size(module.to_ctx()));
        match (variable.space, variable.binding) {
            (naga::AddressSpace::WorkGroup, _) => shared_bytes += bytes.next_multiple_of(16),
            (naga::AddressSpace::Immediate, _) => params_bytes += bytes,
            (_, Some(naga::ResourceBinding { group: 0, binding })) => {
                least_bytes.insert(binding, bytes);
            }
            _ => {}
        }
    }
    Entry {
        name: entry.name.clone(),
        workgroup: entry.workgroup_size,
        shared_bytes,
        params_bytes,
        least_bytes,
    }
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
    /// The fewest bytes that any binding may have.
    least_bytes: u64,
    /// What the kernel does with each buffer.
    access: Vec<Access>,
}

impl WgpuProgram {
    pub(super) fn compile(hold: &Arc<Hold>, kernel: &Kernel) -> Result<Self> {
        let operation = format!("compiling kernel `{}`", kernel.name);
        hold.check(&operation)?;
        let Some(source) = kernel.wgsl_for(hold.capabilities.features) else {
            return Err(Error::unsupported(&hold.id, operation, no_body(kernel, hold.capabilities.features)));
        };
        let needs = source.needs;
        let body = if needs.is_empty() { "WGSL".to_owned() } else { format!("WGSL with {}", names(needs)) };
        // The translator to the driver's language panics on what it did not expect.
        let made = catch(|| pipeline(hold, kernel, source)).unwrap_or_else(|why| Err(Refusal::Compiler(why)));
        let Made { pipeline, layout, least_bytes } =
            made.map_err(|refusal| refusal.into_error(hold, kernel, &body))?;
        hold.check(&operation)?;
        let name = kernel.name.to_string();
        let access = kernel.bindings.iter().map(|binding| binding.access).collect();
        Ok(WgpuProgram { hold: hold.clone(), name, body, pipeline, layout, least_bytes, access })
    }
}

fn no_body(kernel: &Kernel, has: Features) -> String {
    if kernel.wgsl.is_empty() {
        return "it has no WGSL body".into();
    }
    let missing: Vec<_> = kernel.wgsl.iter().map(|body| names(body.needs.difference(has))).collect();
    format!("its WGSL bodies need what is missing here: {}", missing.join("; or "))
}

fn names(features: Features) -> String {
    features.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// What a kernel is compiled to.
struct Made {
    pipeline: ComputePipeline,
    layout: Option<BindGroupLayout>,
    least_bytes: u64,
}

fn pipeline(hold: &Hold, kernel: &Kernel, body: &WgslBody) -> Result<Made, Refusal> {
    let module = Module::of(hold, body)?;
    let Some(entry) = module.entries.iter().find(|entry| entry.name == kernel.name) else {
        let there: Vec<_> = module.entries.iter().map(|entry| format!("`{}`", entry.name)).collect();
        let there = if there.is_empty() { "none".into() } else { there.join(", ") };
        return Err(Refusal::Compiler(format!("no entry point `{}`; there: {there}", kernel.name)));
    };
    if entry.workgroup != kernel.workgroup {
        return Err(Refusal::Compiler(format!(
            "the body declares a workgroup of {:?}, the kernel of {:?}",
            entry.workgroup, kernel.workgroup
        )));
    }
    let params_bytes = kernel.params_bytes.next_multiple_of(4);
    if entry.params_bytes > u64::from(params_bytes) {
        return Err(Refusal::Compiler(format!(
            "the body has {} bytes of parameters (`var<immediate>`), the kernel declares {}",
            entry.params_bytes, kernel.params_bytes
        )));
    }
    let most = hold.capabilities.max_shared_bytes;
    if entry.shared_bytes > u64::from(most) {
        return Err(Refusal::Compiler(format!(
            "{} bytes of shared memory (`var<workgroup>`), at most {most} here",
            entry.shared_bytes
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
                min_binding_size: entry.least_bytes.get(&index).copied().and_then(BufferSize::new),
            },
            count: None,
        })
        .collect();
    let device = &hold.device;
    let constants: Vec<_> = module.constants.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut kept = None;
    let (made, error) = hold.watch(|| {
        kept = Kept::of(device, hold.pipelines.as_deref(), kernel, body);
        let descriptor = BindGroupLayoutDescriptor { label: None, entries: &entries };
        let layout = (!entries.is_empty()).then(|| device.create_bind_group_layout(&descriptor));
        let groups: Vec<_> = layout.iter().map(Some).collect();
        let pipeline_layout = device.create_pipeline_layout(&PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &groups,
            immediate_size: params_bytes,
        });
        let pipeline = device.create_compute_pipeline(&ComputePipelineDescriptor {
            label: None,
            layout: Some(&pipeline_layout),
            module: &module.shader,
            entry_point: Some(&kernel.name),
            compilation_options: PipelineCompilationOptions { constants: &constants, ..Default::default() },
            cache: kept.as_ref().map(|kept| &kept.cache),
        });
        Made { pipeline, layout, least_bytes: entry.least_bytes.values().copied().max().unwrap_or(0) }
    });
    match (error, kept) {
        (Some(error), _) => return Err(Refusal::Driver(error)),
        (None, Some(kept)) => kept.write(),
        (None, None) => {}
    }
    Ok(made)
}

impl Program for WgpuProgram {
    fn body(&self) -> &str {
        &self.body
    }

    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn BoundKernel>> {
        let operation = format!("binding kernel `{}`", self.name);
        let mut memories = Vec::with_capacity(arguments.len());
        let mut copied = Vec::new();
        let writes = |(other, access): (&Region, &Access), region: &Region| {
            *access == Access::ReadWrite && Arc::ptr_eq(&other.memory, &region.memory)
        };
        for (region, access) in arguments.iter().zip(&self.access) {
            let memory = WgpuMemory::of(region, &self.hold)?;
            // wgpu knows whole buffers only: one cannot be read and written by the same launch. What is only read is
            // copied first.
            if region.bytes > 0
                && *access == Access::Read
                && arguments.iter().zip(&self.access).any(|other| writes(other, region))
            {
                let copy = Arc::new(WgpuMemory::allocate(&self.hold, region.bytes, Contents::Any)?);
                copied.push((region.clone(), copy.clone()));
                let (buffer, bytes) = (copy.buffer().clone(), padded(region.bytes));
                memories.push(Place { buffer, offset: 0, bytes, memory: copy });
                continue;
            }
            // wgpu cannot bind nothing. Any part of the buffer itself that was bound instead would be other elements
            // of it, which a kernel that trusts `arrayLength` overwrites: memory of its own is bound, of zeros.
            memories.push(if region.bytes == 0 {
                let bytes = self.least_bytes.max(PLACEHOLDER_BYTES);
                let placeholder = Arc::new(WgpuMemory::allocate(&self.hold, bytes, Contents::Zeroed)?);
                Place { buffer: placeholder.buffer().clone(), offset: 0, bytes, memory: placeholder }
            } else {
                let (buffer, bytes) = (memory.buffer().clone(), padded(region.bytes));
                Place { buffer, offset: region.offset, bytes, memory: region.memory.clone() }
            });
        }
        let entries: Vec<_> = memories
            .iter()
            .zip(0..)
            .map(|(place, index)| BindGroupEntry {
                binding: index,
                resource: BindingResource::Buffer(BufferBinding {
                    buffer: &place.buffer,
                    offset: place.offset,
                    size: BufferSize::new(place.bytes),
                }),
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
            copied,
            _memories: memories.into_iter().map(|place| place.memory).collect(),
        }))
    }
}

/// What is bound for an argument.
struct Place {
    buffer: wgpu::Buffer,
    offset: u64,
    bytes: u64,
    /// Keeps the buffer from being used for something else.
    memory: Arc<dyn Memory>,
}

/// A compiled kernel with its buffers, whose memory it keeps.
#[derive(Debug)]
pub(super) struct WgpuBound {
    pub(super) hold: Arc<Hold>,
    pub(super) pipeline: ComputePipeline,
    pub(super) group: Option<BindGroup>,
    /// What is copied before every launch, and where to.
    pub(super) copied: Vec<(Region, Arc<WgpuMemory>)>,
    _memories: Vec<Arc<dyn Memory>>,
}

impl BoundKernel for WgpuBound {
    fn with_workgroup(&self, kernel: &Kernel) -> Result<Arc<dyn BoundKernel>> {
        let operation = format!("launching kernel `{}`", kernel.name);
        let detail = "WGSL fixes the workgroup's size: give the module a constant for an `override`";
        Err(Error::unsupported(&self.hold.id, operation, detail))
    }
}
