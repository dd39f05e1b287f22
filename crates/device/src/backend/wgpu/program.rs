//! Compiled kernels.

use std::{any::Any, collections::HashMap, fmt, sync::Arc};

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
    super::{BoundKernelBackend, Contents, Memory, ProgramBackend, Region},
    failure::{catch_panic, inner_message, translate},
    memory::{WgpuMemory, padded},
    open_device::OpenDevice,
    pipeline_cache::KernelCache,
};
use crate::{
    describe::Features,
    error::{Error, Result},
    kernel::{Access, Kernel},
    module::WgslBody,
};

/// Bytes of the memory that is bound in place of an empty buffer, which wgpu cannot bind: the size of the smallest block.
const PLACEHOLDER_BYTES: u64 = 256;

/// The modules that an open device has compiled, by source and compile options: kernels that agree in both share a
/// module.
pub(super) type Modules = HashMap<Key, Arc<CompiledModule>>;

/// The source, whether it has run-time checks, and the names and bits of the constants.
type Key = (String, bool, Vec<(String, u64)>);

/// A compiled source, with its entry points.
pub(super) struct CompiledModule {
    shader: ShaderModule,
    entries: Vec<Entry>,
    /// The constants that the source has an `override` for.
    constants: Overrides,
}

/// Keys and values of `override` declarations.
type Overrides = Vec<(String, f64)>;

/// The properties of an entry point.
#[derive(Debug)]
struct Entry {
    name: String,
    workgroup: [u32; 3],
    /// Bytes in `var<workgroup>`. wgpu does not check the limit.
    shared_bytes: u64,
    /// Bytes in `var<immediate>`. wgpu does not compare them with the pipeline layout.
    params_bytes: u64,
    /// Minimum bytes of each binding. Without these, wgpu would check the size at every launch.
    min_bytes: HashMap<u32, u64>,
}

impl fmt::Debug for CompiledModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledModule").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl CompiledModule {
    /// Returns the module of a source, and compiles it if necessary.
    fn of(open: &OpenDevice, body: &WgslBody) -> Result<Arc<Self>, CompileError> {
        let constants = body.constants.iter().map(|(name, value)| (name.clone(), value.to_bits()));
        let key = (body.source.clone().into_owned(), body.is_checked, constants.collect());
        if let Some(module) = open.modules().get(&key) {
            return Ok(module.clone());
        }
        let (entries, constants) = entries(&body.source, &body.constants).map_err(CompileError::Compiler)?;
        let source = ShaderSource::Wgsl((&*body.source).into());
        let descriptor = ShaderModuleDescriptor { label: None, source };
        let (shader, error) = open.watch(|| match body.is_checked {
            true => open.device.create_shader_module(descriptor),
            // SAFETY: only `Kernel::wgsl_unchecked` and `Module::wgsl_unchecked` make such a body, and their callers
            // promise that the source needs no checks.
            false => unsafe {
                open.device.create_shader_module_trusted(descriptor, ShaderRuntimeChecks::unchecked())
            },
        });
        if let Some(error) = error {
            return Err(CompileError::Driver(error));
        }
        let module = Arc::new(CompiledModule { shader, entries, constants });
        open.modules().insert(key, module.clone());
        Ok(module)
    }
}

/// Returns the entry points of a source and those constants that it declares. The error is the compiler's message with
/// the line.
fn entries(source: &str, constants: &[(String, f64)]) -> Result<(Vec<Entry>, Overrides), String> {
    let module = naga::front::wgsl::parse_str(source).map_err(|error| error.emit_to_string(source))?;
    // All capabilities are allowed: wgpu itself checks those of the device.
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(source))?;
    // The key of an `override` is its `@id` if it has one, otherwise its name.
    let key_of = |name: &str| {
        let (_, it) = module.overrides.iter().find(|(_, it)| it.name.as_deref() == Some(name))?;
        Some(it.id.map_or_else(|| name.to_owned(), |id| id.to_string()))
    };
    let known: Overrides =
        constants.iter().filter_map(|(name, value)| Some((key_of(name)?, *value))).collect();
    let values = known.iter().cloned().collect();
    let mut entries = Vec::with_capacity(module.entry_points.len());
    for (index, entry) in module.entry_points.iter().enumerate() {
        if module.overrides.is_empty() {
            entries.push(entry_of(&module, &info, index));
            continue;
        }
        // An entry point may not use all overrides. Those that it uses have a value from here on.
        let point = Some((entry.stage, entry.name.as_str()));
        let (module, info) = process_overrides(&module, &info, point, &values)
            .map_err(|error| format!("entry point `{}`: {error}", entry.name))?;
        entries.push(entry_of(&module, &info, 0));
    }
    Ok((entries, known))
}

/// Checks WGSL as a device does before it compiles a kernel, and returns the names of the entry points. Needs no device.
#[doc(hidden)]
pub fn check_wgsl(source: &str, constants: &[(String, f64)]) -> Result<Vec<String>, String> {
    let (entries, _) = entries(source, constants)?;
    Ok(entries.into_iter().map(|entry| entry.name).collect())
}

fn entry_of(module: &naga::Module, info: &ModuleInfo, index: usize) -> Entry {
    let (entry, uses) = (&module.entry_points[index], info.get_entry_point(index));
    let (mut shared_bytes, mut params_bytes) = (0, 0);
    let mut min_bytes = HashMap::new();
    for (_, variable) in module.global_variables.iter().filter(|it| !uses[it.0].is_empty()) {
        let bytes = u64::from(module.types[variable.ty].inner.size(module.to_ctx()));
        match (variable.space, variable.binding) {
            (naga::AddressSpace::WorkGroup, _) => shared_bytes += bytes.next_multiple_of(16),
            (naga::AddressSpace::Immediate, _) => params_bytes += bytes,
            (_, Some(naga::ResourceBinding { group: 0, binding })) => {
                min_bytes.insert(binding, bytes);
            }
            _ => {}
        }
    }
    Entry { name: entry.name.clone(), workgroup: entry.workgroup_size, shared_bytes, params_bytes, min_bytes }
}

/// Why a kernel could not be compiled.
enum CompileError {
    Compiler(String),
    Driver(wgpu::Error),
}

impl CompileError {
    fn into_error(self, open: &OpenDevice, kernel: &Kernel, body: &str) -> Error {
        let log = match self {
            CompileError::Compiler(log) => log,
            CompileError::Driver(wgpu::Error::Validation { description, .. }) => inner_message(&description),
            CompileError::Driver(error) => {
                return translate(error, &open.id, &format!("compiling kernel `{}`", kernel.name), 0);
            }
        };
        Error::WillNotCompile {
            device: open.id.clone(),
            kernel: kernel.name.to_string(),
            body: body.into(),
            log,
        }
    }
}

#[derive(Debug)]
pub(super) struct WgpuProgram {
    open: Arc<OpenDevice>,
    name: String,
    body: String,
    pipeline: ComputePipeline,
    /// `None` if the kernel has no buffers.
    layout: Option<BindGroupLayout>,
    /// Minimum bytes of the largest binding.
    min_bytes: u64,
    /// The access to each buffer.
    access: Vec<Access>,
}

impl WgpuProgram {
    pub(super) fn compile(open: &Arc<OpenDevice>, kernel: &Kernel) -> Result<Self> {
        let operation = format!("compiling kernel `{}`", kernel.name);
        open.check(&operation)?;
        let Some(source) = kernel.wgsl_for(open.capabilities.features) else {
            return Err(Error::unsupported(&open.id, operation, no_body(kernel, open.capabilities.features)));
        };
        let needs = source.needs;
        let body = if needs.is_empty() { "WGSL".to_owned() } else { format!("WGSL with {}", names(needs)) };
        // wgpu's shader translator may panic on unexpected input.
        let made = catch_panic(|| pipeline(open, kernel, source))
            .unwrap_or_else(|why| Err(CompileError::Compiler(why)));
        let CompiledKernel { pipeline, layout, min_bytes } =
            made.map_err(|refusal| refusal.into_error(open, kernel, &body))?;
        open.check(&operation)?;
        let name = kernel.name.to_string();
        let access = kernel.bindings.iter().map(|binding| binding.access).collect();
        Ok(WgpuProgram { open: open.clone(), name, body, pipeline, layout, min_bytes, access })
    }
}

fn no_body(kernel: &Kernel, has: Features) -> String {
    if kernel.wgsl.is_empty() {
        return "the kernel has no WGSL body: add one with `Kernel::wgsl`".into();
    }
    let missing: Vec<_> = kernel.wgsl.iter().map(|body| names(body.needs.difference(has))).collect();
    format!("its WGSL bodies need features that the device lacks: {}", missing.join("; or "))
}

fn names(features: Features) -> String {
    features.iter_names().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// The pipeline of a kernel.
struct CompiledKernel {
    pipeline: ComputePipeline,
    layout: Option<BindGroupLayout>,
    min_bytes: u64,
}

fn pipeline(open: &OpenDevice, kernel: &Kernel, body: &WgslBody) -> Result<CompiledKernel, CompileError> {
    let module = CompiledModule::of(open, body)?;
    let Some(entry) = module.entries.iter().find(|entry| entry.name == kernel.name) else {
        let names: Vec<_> = module.entries.iter().map(|entry| format!("`{}`", entry.name)).collect();
        let names = if names.is_empty() { "none".into() } else { names.join(", ") };
        return Err(CompileError::Compiler(format!(
            "no entry point `{}`; the source has: {names}",
            kernel.name
        )));
    };
    if entry.workgroup != kernel.workgroup {
        return Err(CompileError::Compiler(format!(
            "the body declares a workgroup of {:?}, and the kernel one of {:?}",
            entry.workgroup, kernel.workgroup
        )));
    }
    let params_bytes = kernel.params_bytes.next_multiple_of(4);
    if entry.params_bytes > u64::from(params_bytes) {
        return Err(CompileError::Compiler(format!(
            "the body has {} bytes of parameters (`var<immediate>`), and the kernel declares {}",
            entry.params_bytes, kernel.params_bytes
        )));
    }
    let limit = open.capabilities.max_shared_bytes;
    if entry.shared_bytes > u64::from(limit) {
        return Err(CompileError::Compiler(format!(
            "{} bytes of shared memory (`var<workgroup>`), but the device allows at most {limit}",
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
                min_binding_size: entry.min_bytes.get(&index).copied().and_then(BufferSize::new),
            },
            count: None,
        })
        .collect();
    let device = &open.device;
    let constants: Vec<_> = module.constants.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let mut kept = None;
    let (made, error) = open.watch(|| {
        kept = KernelCache::of(device, open.pipeline_key.as_deref(), kernel, body);
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
        CompiledKernel { pipeline, layout, min_bytes: entry.min_bytes.values().copied().max().unwrap_or(0) }
    });
    match (error, kept) {
        (Some(error), _) => return Err(CompileError::Driver(error)),
        (None, Some(kept)) => kept.write(),
        (None, None) => {}
    }
    Ok(made)
}

impl ProgramBackend for WgpuProgram {
    fn body(&self) -> &str {
        &self.body
    }

    fn bind(&self, arguments: &[Region]) -> Result<Arc<dyn BoundKernelBackend>> {
        let operation = format!("binding kernel `{}`", self.name);
        let mut memories = Vec::with_capacity(arguments.len());
        let mut copied = Vec::new();
        let writes = |(other, access): (&Region, &Access), region: &Region| {
            *access == Access::ReadWrite && Arc::ptr_eq(&other.memory, &region.memory)
        };
        for (region, access) in arguments.iter().zip(&self.access) {
            let memory = WgpuMemory::of(region, &self.open)?;
            // wgpu tracks whole buffers, so one launch cannot read and write slices of the same one. A slice that is only
            // read is copied first.
            if region.bytes > 0
                && *access == Access::Read
                && arguments.iter().zip(&self.access).any(|other| writes(other, region))
            {
                let copy = Arc::new(WgpuMemory::allocate(&self.open, region.bytes, Contents::Uninit)?);
                copied.push((region.clone(), copy.clone()));
                let (buffer, bytes) = (copy.buffer().clone(), padded(region.bytes));
                memories.push(BoundBuffer { buffer, offset: 0, bytes, memory: copy });
                continue;
            }
            // wgpu cannot bind an empty slice. Binding other elements of the buffer instead would let a kernel that uses
            // `arrayLength` overwrite them, so separate zeroed memory is bound.
            memories.push(if region.bytes == 0 {
                let bytes = self.min_bytes.max(PLACEHOLDER_BYTES);
                let placeholder = Arc::new(WgpuMemory::allocate(&self.open, bytes, Contents::Zeroed)?);
                BoundBuffer { buffer: placeholder.buffer().clone(), offset: 0, bytes, memory: placeholder }
            } else {
                let (buffer, bytes) = (memory.buffer().clone(), padded(region.bytes));
                BoundBuffer { buffer, offset: region.offset, bytes, memory: region.memory.clone() }
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
            Some(layout) => Some(self.open.attempt(&operation, || {
                self.open.device.create_bind_group(&BindGroupDescriptor {
                    label: None,
                    layout,
                    entries: &entries,
                })
            })?),
        };
        Ok(Arc::new(WgpuBoundKernel {
            open: self.open.clone(),
            pipeline: self.pipeline.clone(),
            group,
            copied,
            _memories: memories.into_iter().map(|place| place.memory).collect(),
        }))
    }
}

/// The buffer that is bound for an argument.
struct BoundBuffer {
    buffer: wgpu::Buffer,
    offset: u64,
    bytes: u64,
    /// Keeps the buffer from being reused.
    memory: Arc<dyn Memory>,
}

/// A compiled kernel with its buffers, whose memory it keeps.
#[derive(Debug)]
pub(super) struct WgpuBoundKernel {
    pub(super) open: Arc<OpenDevice>,
    pub(super) pipeline: ComputePipeline,
    pub(super) group: Option<BindGroup>,
    /// Slices that are copied before every launch, and their copies.
    pub(super) copied: Vec<(Region, Arc<WgpuMemory>)>,
    _memories: Vec<Arc<dyn Memory>>,
}

impl WgpuBoundKernel {
    /// Returns a kernel of this opening of the device.
    #[inline]
    pub(super) fn of<'a>(bound: &'a Arc<dyn BoundKernelBackend>, open: &Arc<OpenDevice>) -> Result<&'a Self> {
        let kernel = (&**bound as &dyn Any).downcast_ref::<WgpuBoundKernel>();
        kernel.filter(|kernel| Arc::ptr_eq(&kernel.open, open)).ok_or_else(|| {
            Error::unsupported(&open.id, "launching a kernel", "the kernel belongs to another device")
        })
    }
}

impl BoundKernelBackend for WgpuBoundKernel {
    fn with_workgroup(&self, kernel: &Kernel) -> Result<Arc<dyn BoundKernelBackend>> {
        let operation = format!("launching kernel `{}`", kernel.name);
        let detail = "WGSL fixes the workgroup size: give the module a constant for an `override`";
        Err(Error::unsupported(&self.open.id, operation, detail))
    }
}
