//! Points on a device, and their products with scalars.

use std::{
    fmt,
    marker::PhantomData,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use ark_bn254::Fr;
use evener_device::{Api, Buffer, Device, Error, Program, Result, SharedBuffer};
use rayon::prelude::*;

use super::{
    group::MsmGroup,
    kernels::{self, AccumulateTuning, Programs},
    parts::{Part, upload_parts},
    workspace::{Marks, MsmWorkspace, Queued},
};
use crate::field::{Emitter, Limbs};

/// Whether the multiples of each point for all windows are computed when the points are uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tables {
    /// If they take at most a sixth of the memory of a GPU.
    #[default]
    Auto,
    /// Never: the points take the least memory, and the upload the least time.
    Never,
    /// Always; the upload fails if there is not enough memory.
    Always,
}

/// Options of [`MsmBases::upload_with`].
#[derive(Debug, Clone, Copy, Default)]
pub struct MsmOptions {
    /// Whether tables are computed.
    pub tables: Tables,
    /// The generator of field arithmetic, instead of the fastest one.
    pub emitter: Option<Emitter>,
    /// The width of a window, from 4 to 22 bits, instead of the one with the fewest products.
    pub window_bits: Option<u32>,
    /// Workgroups that a CUDA multiprocessor adds points with at once, which limits the registers of a thread.
    #[doc(hidden)]
    pub groups_per_unit: Option<u32>,
    /// Whether the products of a CUDA kernel that adds points are functions that are called.
    #[doc(hidden)]
    pub calls_products: bool,
    /// Maximum number of points of one pass. More points are multiplied in several passes.
    pub max_points: Option<usize>,
    /// Maximum memory of the device for the points. The points beyond it stay on the host and are copied in chunks for each
    /// multiplication; so are all that the device has no memory for. Default: no limit.
    pub max_resident_bytes: Option<u64>,
}

/// Points that stay on a device, to be multiplied by scalars any number of times.
pub struct MsmBases<P: MsmGroup> {
    device: Device,
    len: usize,
    points: Points<P>,
    /// The workspace of [`MsmBases::msm`], while no call uses it.
    workspace: Mutex<Option<MsmWorkspace>>,
}

/// The compiled kernels of a group, for any number of bases on one device.
pub struct MsmKernels<P: MsmGroup> {
    device: Device,
    emitter: Emitter,
    programs: Arc<Programs>,
    /// The kernel that computes tables, once some bases have needed it.
    tables: Mutex<Option<Program>>,
    group: PhantomData<fn() -> P>,
}

impl<P: MsmGroup> MsmKernels<P> {
    /// Compiles the kernels. Fails with `Unsupported` on the processor, which needs none.
    pub fn compile(device: &Device) -> Result<Self> {
        Self::compile_with(device, &MsmOptions::default())
    }

    /// Compiles the kernels, with the options `emitter`, `groups_per_unit` and `calls_products`.
    pub fn compile_with(device: &Device, options: &MsmOptions) -> Result<Self> {
        let emitter = match options.emitter {
            Some(emitter) => emitter,
            None => Emitter::for_device(device)?,
        };
        let tuning = AccumulateTuning {
            groups_per_unit: options.groups_per_unit,
            calls_products: options.calls_products,
        };
        let programs = Programs::compile(device, emitter, P::GROUP, tuning)?;
        let (device, programs, tables) = (device.clone(), Arc::new(programs), Mutex::default());
        Ok(MsmKernels { device, emitter, programs, tables, group: PhantomData })
    }

    fn tables(&self) -> Result<Program> {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = &*tables {
            return Ok(program.clone());
        }
        let program = self.device.compile(&kernels::tables(self.emitter, P::GROUP))?;
        Ok(tables.insert(program).clone())
    }
}

impl<P: MsmGroup> fmt::Debug for MsmKernels<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MsmKernels")
            .field("device", self.device.id())
            .field("emitter", &self.emitter)
            .finish_non_exhaustive()
    }
}

enum Points<P: MsmGroup> {
    Host(Arc<[P::Affine]>),
    Device { programs: Arc<Programs>, parts: Vec<Part<P>> },
}

impl<P: MsmGroup> MsmBases<P> {
    /// Copies points to a device. They must be on the curve and in its subgroup, or infinite.
    pub fn upload(device: &Device, points: &[P::Affine]) -> Result<Self> {
        Self::upload_with(device, points, &MsmOptions::default())
    }

    /// Copies points to a device, with other options.
    pub fn upload_with(device: &Device, points: &[P::Affine], options: &MsmOptions) -> Result<Self> {
        if device.describe().is_remote_processor() {
            return Err(Error::Unsupported {
                device: device.id().clone(),
                operation: "a multi-scalar multiplication".into(),
                detail: "arkworks computes on this machine only".into(),
            });
        }
        if device.describe().api == Api::Cpu {
            let (device, len, points) = (device.clone(), points.len(), Points::Host(points.into()));
            return Ok(MsmBases { device, len, points, workspace: Mutex::new(None) });
        }
        Self::upload_for(&MsmKernels::compile_with(device, options)?, points, options)
    }

    /// Copies points to the device of compiled kernels. Of the options, those of the kernels have no effect.
    pub fn upload_for(kernels: &MsmKernels<P>, points: &[P::Affine], options: &MsmOptions) -> Result<Self> {
        let (device, len) = (kernels.device.clone(), points.len());
        let parts = upload_parts::<P>(&kernels.device, &|| kernels.tables(), points, options)?;
        let points = Points::Device { programs: kernels.programs.clone(), parts };
        Ok(MsmBases { device, len, points, workspace: Mutex::new(None) })
    }

    /// Bytes of device memory that the points take. Points that do not fit are copied for each multiplication.
    pub fn resident_bytes(&self) -> u64 {
        let Points::Device { parts, .. } = &self.points else { return 0 };
        parts.iter().map(Part::resident_bytes).sum()
    }

    /// Number of points.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no points.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The device that the points are on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the width and the number of windows, and whether tables were computed; `None` on the processor and without
    /// points.
    pub fn windows(&self) -> Option<(u32, u32, bool)> {
        let Points::Device { parts, .. } = &self.points else { return None };
        Some(parts.first()?.windows())
    }

    /// Computes the sum of scalar times point. Fails if there are not as many scalars as points. The scalars may be secret:
    /// all memory that depends on them is zeroed.
    pub fn msm(&self, scalars: &[Fr]) -> Result<P> {
        self.check(scalars.len())?;
        if let Points::Host(points) = &self.points {
            return Ok(P::msm_on_host(points, scalars));
        }
        self.with_workspace(|workspace| {
            let on_device = workspace.upload(scalars)?;
            let queued = self.queue(workspace, &on_device, Marks::new())?;
            workspace.zero_staging(scalars.len());
            let sum = queued.wait()?;
            workspace.erase()?;
            workspace.stream().flush()?;
            Ok(sum)
        })
    }

    /// Computes the sum as [`msm`](Self::msm) does, for scalars in host memory from which the device can copy at the full
    /// rate of the bus: a shared [`HostBuffer`](evener_device::HostBuffer) of this device. Memory that depends on the scalars
    /// is not zeroed before the next call.
    pub fn msm_shared(&self, scalars: &SharedBuffer<Limbs>) -> Result<P> {
        self.check(scalars.as_slice().len())?;
        if let Points::Host(points) = &self.points {
            let scalars: Vec<Fr> = scalars.as_slice().par_iter().map(|limbs| Fr::from(*limbs)).collect();
            return Ok(P::msm_on_host(points, &scalars));
        }
        self.with_workspace(|workspace| self.queue_shared(workspace, scalars)?.wait())
    }

    /// Queues the copy of scalars from shared host memory and all kernels, without waiting. The memory may be dropped.
    pub fn queue_shared(
        &self,
        workspace: &mut MsmWorkspace,
        scalars: &SharedBuffer<Limbs>,
    ) -> Result<PendingMsm<P>> {
        self.check(scalars.as_slice().len())?;
        let mut marks = Marks::new();
        workspace.mark(&mut marks, "begin")?;
        let scalars = workspace.upload_shared(scalars)?;
        workspace.mark(&mut marks, "upload")?;
        self.queue(workspace, &scalars, marks)
    }

    /// Queues all kernels for scalars on the device, in Montgomery form, without waiting. If another stream writes them, let
    /// the [workspace's stream](MsmWorkspace::stream) wait for its event first.
    ///
    /// The scalars are copied first: two kernels read them, and would write out of bounds if they changed in between. Fails
    /// on the processor, which has no kernels.
    pub fn queue_device(
        &self,
        workspace: &mut MsmWorkspace,
        scalars: &Buffer<Limbs>,
    ) -> Result<PendingMsm<P>> {
        self.check(scalars.len())?;
        let mut marks = Marks::new();
        workspace.mark(&mut marks, "begin")?;
        let copied = workspace.scalars(scalars.len())?;
        workspace.stream().copy(scalars, &copied)?;
        workspace.mark(&mut marks, "copy")?;
        self.queue(workspace, &copied, marks)
    }

    /// Queues all kernels for a range of the points, without waiting. There are as many scalars as points, of which those of
    /// the range are used. They must not change before the result is there, because not every device copies them.
    pub(crate) fn queue_device_range(
        &self,
        workspace: &mut MsmWorkspace,
        range: Range<usize>,
        scalars: &Buffer<Limbs>,
    ) -> Result<PendingMsm<P>> {
        if range == (0..self.len) {
            // Other devices cannot bind a slice that begins anywhere.
            if self.device.describe().api != Api::Cuda {
                return self.queue_device(workspace, scalars);
            }
            self.check(scalars.len())?;
            let mut marks = Marks::new();
            workspace.mark(&mut marks, "begin")?;
            return self.queue(workspace, scalars, marks);
        }
        self.check(scalars.len())?;
        let (programs, parts) = self.parts_for(workspace)?;
        if range.start > range.end || range.end > self.len {
            return Err(self.refuse(format!("the points {range:?} of {}", self.len)));
        }
        let has = self.device.capabilities()?;
        let mut first = 0;
        let (mut queued, mut marks) = (Vec::new(), Marks::new());
        workspace.mark(&mut marks, "begin")?;
        for part in parts {
            let own = range.start.max(first)..range.end.min(first + part.count);
            if !own.is_empty() {
                let within = own.start - first..own.end - first;
                let used = part.range(workspace, &has, &within)?;
                // The points before and after the range are multiplied by zero, which adds no entry.
                let masked = workspace.scalars(used.count)?;
                let (start, end) = (within.start - used.skipped, within.end - used.skipped);
                let stream = workspace.stream();
                for rest in [masked.slice(..start)?, masked.slice(end..)?] {
                    if !rest.is_empty() {
                        stream.zero(&rest)?;
                    }
                }
                stream.copy(&scalars.slice(own)?, &masked.slice(start..end)?)?;
                queued.push(workspace.queue::<P>(&used.bases(programs), &masked, &mut marks)?);
            }
            first += part.count;
        }
        let event = if workspace.is_timed() { Some(workspace.stream().record_event()?) } else { None };
        Ok(PendingMsm { queued, marks, event, group: PhantomData })
    }

    /// Returns the points of each pass. Fails on the processor, and if the workspace is on another device.
    fn parts_for(&self, workspace: &MsmWorkspace) -> Result<(&Arc<Programs>, &[Part<P>])> {
        let Points::Device { programs, parts } = &self.points else {
            return Err(self.refuse("the processor has no kernels: use `msm`".into()));
        };
        if workspace.device().id() != self.device.id() {
            return Err(self.refuse(format!("the workspace is on {}", workspace.device().id())));
        }
        Ok((programs, parts))
    }

    fn queue(
        &self,
        workspace: &mut MsmWorkspace,
        scalars: &Buffer<Limbs>,
        mut marks: Marks,
    ) -> Result<PendingMsm<P>> {
        let (programs, parts) = self.parts_for(workspace)?;
        let mut first = 0;
        let mut queued = Vec::with_capacity(parts.len());
        for part in parts {
            let used = part.whole(workspace)?;
            let scalars = scalars.slice(first..first + part.count)?;
            queued.push(workspace.queue::<P>(&used.bases(programs), &scalars, &mut marks)?);
            first += part.count;
        }
        // Timestamps can be read once all operations before them have finished.
        let event = if workspace.is_timed() { Some(workspace.stream().record_event()?) } else { None };
        Ok(PendingMsm { queued, marks, event, group: PhantomData })
    }

    fn with_workspace<R>(&self, work: impl FnOnce(&mut MsmWorkspace) -> Result<R>) -> Result<R> {
        let kept = self.workspace.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut workspace = match kept {
            Some(workspace) => workspace,
            None => MsmWorkspace::new(&self.device)?,
        };
        // After an error the workspace is dropped: its stream may be broken.
        let result = work(&mut workspace).inspect_err(|_| workspace.erase_after_error())?;
        *self.workspace.lock().unwrap_or_else(PoisonError::into_inner) = Some(workspace);
        Ok(result)
    }

    fn check(&self, scalars: usize) -> Result<()> {
        if scalars == self.len {
            return Ok(());
        }
        Err(self.refuse(format!("{scalars} scalars for {} points", self.len)))
    }

    fn refuse(&self, detail: String) -> Error {
        let operation = "multi-scalar multiplication".into();
        Error::Unsupported { device: self.device.id().clone(), operation, detail }
    }
}

impl<P: MsmGroup> fmt::Debug for MsmBases<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MsmBases")
            .field("device", self.device.id())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A queued multiplication.
#[derive(Debug)]
pub struct PendingMsm<P> {
    queued: Vec<Queued>,
    marks: Marks,
    event: Option<evener_device::Event>,
    group: PhantomData<fn() -> P>,
}

impl<P: MsmGroup> PendingMsm<P> {
    /// Waits for the result.
    pub fn wait(self) -> Result<P> {
        self.queued.into_iter().map(Queued::wait::<P>).sum()
    }

    /// Waits for the result, and returns the time of each phase too, if the workspace is
    /// [timed](MsmWorkspace::timed).
    pub fn wait_timed(mut self) -> Result<(P, Vec<(&'static str, Duration)>)> {
        if let Some(event) = self.event.take() {
            event.wait()?;
        }
        let marks = std::mem::take(&mut self.marks);
        let phases = marks.windows(2).map(|pair| Ok((pair[1].0, pair[1].1.since(&pair[0].1)?)));
        let phases = phases.collect::<Result<Vec<_>>>()?;
        Ok((self.wait()?, phases))
    }
}
