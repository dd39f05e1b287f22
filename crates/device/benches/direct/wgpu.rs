//! The operations through `wgpu` called directly.

use std::time::Duration;

use evener_device::{Api, Description};
use wgpu::{
    BindGroup, Buffer, BufferDescriptor, BufferUsages, ComputePipeline, Device, Features, MapMode, PollType,
    Queue,
};

use crate::{ADDEND, COPY_BYTES, GROUPS, Params, Peer, Result, WGSL_SOURCE, WORKGROUP};

pub(crate) struct Direct {
    device: Device,
    queue: Queue,
    nothing: ComputePipeline,
    multiply: ComputePipeline,
    group: BindGroup,
    target: Buffer,
    up: Buffer,
    down: Buffer,
    written: Vec<u8>,
}

impl Direct {
    pub(crate) fn new(description: &Description) -> Result<Self> {
        let backends = match description.api {
            Api::Vulkan => wgpu::Backends::VULKAN,
            Api::Metal => wgpu::Backends::METAL,
            Api::Dx12 => wgpu::Backends::DX12,
            _ => wgpu::Backends::GL,
        };
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends,
            flags: wgpu::InstanceFlags::empty(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let adapters = pollster::block_on(instance.enumerate_adapters(backends));
        let same = |adapter: &wgpu::Adapter| {
            let info = adapter.get_info();
            description
                .pci
                .as_ref()
                .map_or(info.name == description.name, |pci| info.device_pci_bus_id.eq_ignore_ascii_case(pci))
        };
        let adapter = adapters.into_iter().find(same).ok_or("wgpu does not show this device")?;
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            required_features: Features::IMMEDIATES,
            required_limits: adapter.limits(),
            ..Default::default()
        }))?;
        let descriptor = wgpu::ShaderModuleDescriptor {
            label: None,
            source: wgpu::ShaderSource::Wgsl(WGSL_SOURCE.into()),
        };
        let checks = wgpu::ShaderRuntimeChecks::unchecked();
        // SAFETY: each thread has its own element of the buffer, and every loop ends.
        let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
        let group_layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &[wgpu::BindGroupLayoutEntry {
                binding: 0,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: false },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            }],
        });
        let pipeline = |name: &str, layouts: &[Option<&wgpu::BindGroupLayout>], immediate_size: u32| {
            let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: layouts,
                immediate_size,
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: Some(&layout),
                module: &module,
                entry_point: Some(name),
                compilation_options: Default::default(),
                cache: None,
            })
        };
        let buffer = |size: usize, usage: BufferUsages| {
            device.create_buffer(&BufferDescriptor {
                label: None,
                size: size as u64,
                usage,
                mapped_at_creation: false,
            })
        };
        let out = buffer((GROUPS * WORKGROUP * 4) as usize, BufferUsages::STORAGE);
        let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &group_layout,
            entries: &[wgpu::BindGroupEntry { binding: 0, resource: out.as_entire_binding() }],
        });
        let direct = Direct {
            nothing: pipeline("nothing", &[], 0),
            multiply: pipeline("int32_multiply", &[Some(&group_layout)], size_of::<Params>() as u32),
            group,
            target: buffer(COPY_BYTES, BufferUsages::COPY_SRC | BufferUsages::COPY_DST),
            up: buffer(COPY_BYTES, BufferUsages::MAP_WRITE | BufferUsages::COPY_SRC),
            down: buffer(COPY_BYTES, BufferUsages::MAP_READ | BufferUsages::COPY_DST),
            device: device.clone(),
            queue,
            written: vec![0xA5; COPY_BYTES],
        };
        direct.map(&direct.up, MapMode::Write)?;
        direct.map(&direct.down, MapMode::Read)?;
        Ok(direct)
    }

    fn wait(&self) -> Result<()> {
        self.device
            .poll(PollType::Wait { submission_index: None, timeout: Some(Duration::from_secs(60)) })?;
        Ok(())
    }

    /// Maps as Evener's host memory does: mapped while the host uses it, unmapped while the device copies.
    fn map(&self, buffer: &Buffer, mode: MapMode) -> Result<()> {
        buffer.map_async(mode, .., |_| {});
        self.device.poll(PollType::Poll)?;
        Ok(())
    }

    fn copy(&self, from: &Buffer, to: &Buffer) -> Result<()> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(from, 0, to, 0, COPY_BYTES as u64);
        self.queue.submit([encoder.finish()]);
        self.wait()
    }
}

impl Peer for Direct {
    fn name(&self) -> String {
        "wgpu".into()
    }

    fn launch_and_wait(&mut self) -> Result<()> {
        self.launch_many(1)
    }

    // Recorded into one pass and submitted every 32 launches: the fastest way to use wgpu for a queue of unknown length.
    fn launch_many(&mut self, times: u32) -> Result<()> {
        let mut left = times;
        while left > 0 {
            let mut encoder = self.device.create_command_encoder(&Default::default());
            {
                let mut pass = encoder.begin_compute_pass(&Default::default());
                pass.set_pipeline(&self.nothing);
                for _ in 0..left.min(32) {
                    pass.dispatch_workgroups(1, 1, 1);
                }
            }
            left -= left.min(32);
            self.queue.submit([encoder.finish()]);
        }
        self.wait()
    }

    fn upload(&mut self) -> Result<()> {
        self.up.get_mapped_range_mut(..)?.copy_from_slice(&self.written);
        self.up.unmap();
        self.copy(&self.up, &self.target)?;
        self.map(&self.up, MapMode::Write)
    }

    fn download(&mut self) -> Result<()> {
        self.down.unmap();
        self.copy(&self.target, &self.down)?;
        self.map(&self.down, MapMode::Read)
    }

    fn multiply(&mut self, iterations: u32) -> Result<()> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        {
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(&self.multiply);
            pass.set_bind_group(0, &self.group, &[]);
            pass.set_immediates(0, bytemuck::bytes_of(&Params { iterations, addend: ADDEND }));
            pass.dispatch_workgroups(GROUPS, 1, 1);
        }
        self.queue.submit([encoder.finish()]);
        self.wait()
    }
}
