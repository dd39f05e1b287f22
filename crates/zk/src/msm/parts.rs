//! Points on a device, in parts that are multiplied one after the other.

use std::ops::Range;

use ark_ec::AffineRepr as _;
use evener_device::{Buffer, Capabilities, Device, DeviceKind, Error, Program, Result, Stream};
use rayon::prelude::*;

use super::{
    bases::{MsmOptions, Tables},
    group::{MsmGroup, point_limbs, sum_limbs},
    kernels::{Params, Programs, SORT_GROUP, TABLE_GROUP},
    plan::{MAX_BUCKETS, Plan, WINDOW_BITS},
    workspace::{Bases, MsmWorkspace},
};
use crate::field::Limbs;

/// Tables are computed if they take at most this fraction of a device's memory.
const TABLE_MEMORY_FRACTION: u64 = 6;

/// Maximum number of points in memory of one multiplication: an entry has 31 bits for the index of a point.
const MAX_POINTS: u64 = 1 << 31;

/// Parts begin at multiples of this many scalars: slices that begin at multiples of 2 KiB can be bound on every device.
const PART_ALIGNMENT: usize = 64;

/// The points of a range that is multiplied begin at a multiple of this: one bit each is then a multiple of 256 bytes, from
/// where buffers can be bound on every device.
const RANGE_ALIGNMENT: usize = 1 << 11;

/// Maximum memory of the device for a part that is copied for each multiplication.
const STREAMED_BYTES: u64 = 128 << 20;

/// Points of one pass.
pub(super) struct Part<P: MsmGroup> {
    points: PartPoints<P>,
    pub(super) count: usize,
    plan: Plan,
}

enum PartPoints<P: MsmGroup> {
    /// On the device, with a bit for each: whether it is infinite.
    Resident(Buffer<Limbs>, Buffer<u32>),
    /// On the host: they are copied for each multiplication.
    Streamed(Vec<P::DevicePoint>, Vec<u32>),
}

/// The points of a part that a multiplication uses, on the device.
pub(super) struct UsedPoints {
    points: Buffer<Limbs>,
    infinite: Buffer<u32>,
    plan: Plan,
    pub(super) count: usize,
    /// Number of points before them in the part.
    pub(super) skipped: usize,
}

impl UsedPoints {
    pub(super) fn bases<'a>(&'a self, programs: &'a Programs) -> Bases<'a> {
        let UsedPoints { points, infinite, plan, count, .. } = self;
        Bases { programs, plan: *plan, points, infinite, count: *count }
    }
}

impl<P: MsmGroup> Part<P> {
    /// Width and number of the windows, and whether tables were computed.
    pub(super) fn windows(&self) -> (u32, u32, bool) {
        (self.plan.window_bits, self.plan.windows, self.plan.is_shared)
    }

    /// Bytes of device memory between multiplications.
    pub(super) fn resident_bytes(&self) -> u64 {
        match &self.points {
            PartPoints::Resident(points, infinite) => points.bytes() + infinite.bytes(),
            PartPoints::Streamed(..) => 0,
        }
    }

    /// Returns all points. Those that are on the host are copied to the workspace's memory first.
    pub(super) fn whole(&self, workspace: &mut MsmWorkspace) -> Result<UsedPoints> {
        self.used(workspace, 0..self.count, self.plan)
    }

    /// Returns points that contain a range, as few as can be bound to a kernel, with the best plan for their number.
    pub(super) fn range(
        &self,
        workspace: &mut MsmWorkspace,
        has: &Capabilities,
        range: &Range<usize>,
    ) -> Result<UsedPoints> {
        // With tables, the multiples of all points follow each other.
        if self.plan.is_shared {
            return self.whole(workspace);
        }
        let skipped = range.start / RANGE_ALIGNMENT * RANGE_ALIGNMENT;
        let count = range.end - skipped;
        // Narrower windows may need more memory than the device can bind; those of the whole part do not.
        let (most, narrower) = plan_part::<P>(has, count, false, &MsmOptions::default());
        let plan = if most == count { narrower } else { self.plan };
        self.used(workspace, skipped..range.end, plan)
    }

    fn used(&self, workspace: &mut MsmWorkspace, range: Range<usize>, plan: Plan) -> Result<UsedPoints> {
        let (skipped, count, limbs) = (range.start, range.len(), point_limbs::<P>());
        let words = skipped / 32..range.end.div_ceil(32);
        let (points, infinite) = match &self.points {
            PartPoints::Resident(points, infinite) => {
                let each = limbs * plan.points_per_base() as usize;
                (points.slice(skipped * each..range.end * each)?, infinite.slice(words)?)
            }
            PartPoints::Streamed(points, infinite) => {
                let (points, infinite) = (&points[range], &infinite[words]);
                workspace.copy_points(bytemuck::cast_slice(points), infinite)?
            }
        };
        Ok(UsedPoints { points, infinite, plan, count, skipped })
    }
}

/// Returns the largest number of points of one pass, and their plan, within the device's limits.
pub(super) fn plan_part<P: MsmGroup>(
    has: &Capabilities,
    points: usize,
    is_shared: bool,
    options: &MsmOptions,
) -> (usize, Plan) {
    let max_bytes = has.max_binding_bytes.min(has.max_buffer_bytes);
    let (sum_bytes, point_bytes) = ((sum_limbs::<P>() * size_of::<Limbs>()) as u64, point_bytes::<P>());
    let plan_for = |count: u64| match options.window_bits {
        Some(bits) => Plan::new(bits, is_shared),
        None => Plan::best(count, is_shared, max_bytes / sum_bytes),
    };
    let max_groups = u64::from(has.max_groups[0]) * u64::from(SORT_GROUP.min(TABLE_GROUP));
    let mut count = (points as u64)
        .min(options.max_points.map_or(u64::MAX, |max| max.max(PART_ALIGNMENT) as u64))
        .min(max_groups);
    loop {
        let plan = plan_for(count);
        let points_in_memory = count * plan.points_per_base();
        let fits = points_in_memory * point_bytes <= max_bytes
            && count * u64::from(plan.windows) * 4 <= max_bytes
            && count * u64::from(plan.windows) < MAX_POINTS;
        if fits || count <= PART_ALIGNMENT as u64 {
            return (count as usize, plan);
        }
        count = count.div_ceil(2);
    }
}

/// Returns a bit for each point: whether it is infinite. Keys of real circuits have many such points, and their digits need
/// no entries.
pub(super) fn infinite_bits<P: MsmGroup>(points: &[P::Affine]) -> Vec<u32> {
    let word = |points: &[P::Affine]| {
        (0..).zip(points).fold(0, |word, (bit, point)| word | u32::from(point.is_zero()) << bit)
    };
    points.par_chunks(32).map(word).collect()
}

/// Returns the length of each part but the last: about the same for all, and such that the scalars of each part begin
/// where they can be bound to a kernel.
fn part_len(points: usize, max_count: usize) -> usize {
    if max_count >= points {
        return points.max(1);
    }
    let passes = points.div_ceil(max_count);
    let even = points.div_ceil(passes).next_multiple_of(PART_ALIGNMENT);
    if even <= max_count { even } else { (max_count / PART_ALIGNMENT).max(1) * PART_ALIGNMENT }
}

/// Whether tables are to be computed.
fn uses_tables<P: MsmGroup>(
    device: &Device,
    has: &Capabilities,
    points: usize,
    options: &MsmOptions,
) -> bool {
    match options.tables {
        Tables::Always => true,
        Tables::Never => false,
        Tables::Auto => {
            let (count, plan) = plan_part::<P>(has, points, true, options);
            let bytes = points as u64 * plan.points_per_base() * point_bytes::<P>();
            let limit = options.max_resident_bytes.unwrap_or(u64::MAX);
            let memory =
                device.describe().memory_bytes.unwrap_or(0).min(limit.saturating_mul(TABLE_MEMORY_FRACTION));
            // Several passes cost more than wider windows bring.
            device.describe().kind == DeviceKind::Discrete
                && bytes <= memory / TABLE_MEMORY_FRACTION
                && count >= plan_part::<P>(has, points, false, options).0
        }
    }
}

/// Bytes of a point in a device's memory.
pub(super) fn point_bytes<P: MsmGroup>() -> u64 {
    (point_limbs::<P>() * size_of::<Limbs>()) as u64
}

/// Copies points to a device, as many as it has memory for. The others stay on the host.
pub(super) fn upload_parts<P: MsmGroup>(
    device: &Device,
    tables: &dyn Fn() -> Result<Program>,
    points: &[P::Affine],
    options: &MsmOptions,
) -> Result<Vec<Part<P>>> {
    let mut options = *options;
    loop {
        match try_upload::<P>(device, tables, points, &options) {
            // Tables that were asked for are not left out.
            Err(Error::OutOfMemory { .. })
                if options.tables != Tables::Always && options.max_resident_bytes != Some(0) =>
            {
                let all = points.len() as u64 * point_bytes::<P>();
                let limit = options.max_resident_bytes.unwrap_or(all).min(all) / 2;
                // Less than one part is nothing.
                let limit = if limit < all / 16 { 0 } else { limit };
                tracing::debug!(device = %device.id(), limit, "too little memory for the points of a key");
                options = MsmOptions { tables: Tables::Never, max_resident_bytes: Some(limit), ..options };
            }
            uploaded => return uploaded,
        }
    }
}

fn try_upload<P: MsmGroup>(
    device: &Device,
    tables: &dyn Fn() -> Result<Program>,
    points: &[P::Affine],
    options: &MsmOptions,
) -> Result<Vec<Part<P>>> {
    let has = device.capabilities()?;
    if let Some(bits) = options.window_bits {
        let is_shared = options.tables != Tables::Never;
        if !WINDOW_BITS.contains(&bits) || Plan::new(bits, is_shared).buckets() > MAX_BUCKETS {
            let detail = format!(
                "windows of {bits} bits: at least {WINDOW_BITS:?} with at most {MAX_BUCKETS} buckets"
            );
            let operation = "multi-scalar multiplication".into();
            return Err(Error::Unsupported { device: device.id().clone(), operation, detail });
        }
    }
    let is_shared = uses_tables::<P>(device, &has, points.len(), options);
    let tables = if is_shared { Some(tables()?) } else { None };
    let limit = options.max_resident_bytes.filter(|_| !is_shared).unwrap_or(u64::MAX);
    let mut options = *options;
    if points.len() as u64 * point_bytes::<P>() > limit {
        // Parts of which one at a time is on the device beside those that stay there.
        let bytes = STREAMED_BYTES.min(limit.max(STREAMED_BYTES / 64) / 4);
        let most = (bytes / point_bytes::<P>()) as usize;
        options.max_points = Some(options.max_points.unwrap_or(usize::MAX).min(most));
    }
    let (max_count, plan) = plan_part::<P>(&has, points.len(), is_shared, &options);
    let mut stream = device.stream()?;
    let (mut parts, mut resident) = (Vec::new(), 0);
    for part in points.chunks(part_len(points.len(), max_count)) {
        let in_memory: Vec<P::DevicePoint> = part.par_iter().map(P::device_point).collect();
        let infinite = infinite_bits::<P>(part);
        resident += part.len() as u64 * point_bytes::<P>();
        let points = match resident <= limit {
            true => {
                let points = make_resident(
                    device,
                    &mut stream,
                    tables.as_ref(),
                    &plan,
                    (part.len(), bytemuck::cast_slice(&in_memory)),
                )?;
                PartPoints::Resident(points, device.buffer_from(&infinite)?)
            }
            false => PartPoints::Streamed(in_memory, infinite),
        };
        parts.push(Part { points, count: part.len(), plan });
    }
    stream.wait()?;
    Ok(parts)
}

/// Copies the points of a part to the device, and computes their tables.
fn make_resident(
    device: &Device,
    stream: &mut Stream,
    tables: Option<&Program>,
    plan: &Plan,
    (count, points): (usize, &[Limbs]),
) -> Result<Buffer<Limbs>> {
    let buffer = device.buffer_uninit::<Limbs>(points.len() * plan.points_per_base() as usize)?;
    stream.upload(points, &buffer.slice(..points.len())?)?;
    if let Some(tables) = tables {
        let bound = tables.bind(&[buffer.arg()])?;
        for window in 1..plan.windows {
            let params = Params { level: window, ..Params::new(plan, count) };
            stream.launch(&bound, (count as u32).div_ceil(TABLE_GROUP), &params)?;
        }
    }
    Ok(buffer)
}
