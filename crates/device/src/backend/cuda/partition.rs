//! Partitions of a card: some of its multiprocessors as a device of their own, made with green contexts.
//!
//! A kernel runs on the multiprocessors of the stream that it is launched in. A partition therefore
//! differs from the whole card only in its streams: memory, modules and events belong to the primary context.
//!
//! The driver splits a set of multiprocessors into one group of at least a given size and a remainder. The remainder can
//! be used as it is, but can be split further only after a green context was made of it. Unequal partitions are therefore cut
//! off one after the other, and the last one takes the remainder if its rounded size would reach it.

use std::{
    ffi::{c_int, c_uint},
    sync::{Arc, Mutex, Once, PoisonError},
};

use cudarc::driver::sys::{CUgreenCtx, CUgreenCtxCreate_flags, CUstream};

use super::{
    card::Card,
    context::{DeviceContext, DriverGuard},
    driver::{GreenFunctions, Resource},
};
use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// A green context: a set of multiprocessors on which streams can be created.
#[derive(Debug)]
pub(super) struct GreenContext {
    pub(super) context: DeviceContext,
    functions: &'static GreenFunctions,
    raw: CUgreenCtx,
    units: u32,
    /// The green context of the remainder that this one was cut from, if any. It is destroyed after this one.
    _cut_from: Option<Arc<GreenContext>>,
}

// SAFETY: it is never made current. Only streams are created on it, which the driver allows from any thread.
unsafe impl Send for GreenContext {}
// SAFETY: as for `Send`; the driver locks the creation of streams itself.
unsafe impl Sync for GreenContext {}

impl std::fmt::Debug for GreenFunctions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GreenFunctions")
    }
}

impl GreenContext {
    fn new(
        context: &DeviceContext,
        guard: &DriverGuard<'_>,
        functions: &'static GreenFunctions,
        mut resource: Resource,
        cut_from: Option<&Arc<GreenContext>>,
    ) -> Result<Self> {
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: the driver filled in this one resource; the pointer is to a live pointer.
        guard.check(unsafe { (functions.generate_descriptor)(&mut descriptor, &mut resource, 1) })?;
        let flags = CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as c_uint;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the descriptor was just generated for this device; the pointer is to a live pointer.
        guard.check(unsafe { (functions.create)(&mut raw, descriptor, context.primary.device, flags) })?;
        let (context, units) = (context.clone(), resource.units);
        Ok(GreenContext { context, functions, raw, units, _cut_from: cut_from.cloned() })
    }

    pub(super) fn stream(&self, guard: &DriverGuard<'_>, flags: u32, stream: &mut CUstream) -> Result<()> {
        const PRIORITY: c_int = 0;
        // SAFETY: the green context is alive; the pointer is to a live pointer.
        guard.check(unsafe { (self.functions.stream_create)(stream, self.raw, flags, PRIORITY) })
    }
}

impl Drop for GreenContext {
    fn drop(&mut self) {
        // A green context with unfinished work stays until the process ends.
        if self.context.primary.has_unfinished_work() {
            return;
        }
        if let Ok(guard) = self.context.enter("closing a partition") {
            // SAFETY: it is alive, and its streams are gone: each `OpenDevice` that has streams on it holds this `Arc`.
            let code = unsafe { (self.functions.destroy)(self.raw) };
            // A drop cannot report the error, but `check` marks the context as lost on a fault.
            drop(guard.check(code));
        }
    }
}

/// How one partition is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// A group of this many multiprocessors is split off.
    Group(u32),
    /// The remainder.
    Rest,
}

/// Plans how to cut `units` into `sizes`, where a group has at least `minimum` and a multiple of `step` units. Fails with
/// the possible sizes.
fn plan(units: u32, minimum: u32, step: u32, sizes: &[u32]) -> Result<Vec<Cut>, String> {
    let mut left = units;
    let mut cuts = Vec::with_capacity(sizes.len());
    for (index, &size) in sizes.iter().enumerate() {
        let rounded = size.div_ceil(step).saturating_mul(step).max(minimum);
        if index + 1 == sizes.len() && size <= left && rounded >= left {
            cuts.push(Cut::Rest);
            break;
        }
        let Some(rest) = left.checked_sub(rounded) else {
            return Err(format!(
                "the device has {units} multiprocessors, and {left} are left for a partition of {size}, which takes \
                 {rounded}: use multiples of {step} from {minimum} on; the last partition may be the remainder"
            ));
        };
        cuts.push(Cut::Group(rounded));
        left = rest;
    }
    Ok(cuts)
}

/// A card split into partitions. Each generation of the card's context gets new green contexts.
#[derive(Debug)]
pub(super) struct SplitCard {
    card: Arc<Card>,
    id: DeviceId,
    sizes: Vec<u32>,
    cuts: Vec<Cut>,
    contexts: Mutex<Option<GreenContexts>>,
}

/// The green contexts in one generation of the card's context.
#[derive(Debug)]
struct GreenContexts {
    context: DeviceContext,
    partitions: Vec<Arc<GreenContext>>,
}

impl SplitCard {
    /// Splits a card. Fails with `Split`, which states the possible sizes, if these are not.
    pub(super) fn new(card: &Arc<Card>, id: &DeviceId, sizes: &[u32]) -> Result<Self> {
        let mut split = SplitCard {
            card: card.clone(),
            id: id.clone(),
            sizes: sizes.to_vec(),
            cuts: Vec::new(),
            contexts: Mutex::new(None),
        };
        let functions = split.functions()?;
        let context = card.slot.open(id)?;
        let (units, minimum, step) = split.granularity(&context, functions)?;
        split.cuts = plan(units, minimum, step, sizes).map_err(|detail| split.refuse(detail))?;
        let contexts = split.create(context, functions)?;
        split.contexts = Mutex::new(Some(contexts));
        Ok(split)
    }

    pub(super) fn units(&self) -> Vec<u32> {
        let contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        contexts.iter().flat_map(|contexts| &contexts.partitions).map(|green| green.units).collect()
    }

    /// Returns a partition's green context in the current generation of the card's context.
    pub(super) fn green_context(&self, index: usize) -> Result<Arc<GreenContext>> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if contexts.as_ref().is_none_or(|contexts| contexts.context.primary.is_lost()) {
            *contexts = None;
            *contexts = Some(self.create(self.card.slot.open(&self.id)?, self.functions()?)?);
        }
        let green = contexts.as_ref().and_then(|contexts| contexts.partitions.get(index)).cloned();
        green.ok_or_else(|| self.refuse(format!("there is no partition {index}")))
    }

    fn functions(&self) -> Result<&'static GreenFunctions> {
        let driver = self.card.driver;
        driver.green.as_ref().ok_or_else(|| {
            let version = driver.version_text();
            self.refuse(format!(
                "the driver is for {version}, and partitions need CUDA 12.5 or newer: update the driver"
            ))
        })
    }

    /// Returns the number of multiprocessors, the smallest group that can be split off, and the step between group sizes.
    fn granularity(
        &self,
        context: &DeviceContext,
        functions: &'static GreenFunctions,
    ) -> Result<(u32, u32, u32)> {
        let guard = context.enter("splitting the device")?;
        let all = self.all(context, &guard, functions)?;
        let group_units =
            |asked| -> Result<u32> { Ok(self.cut_off(&guard, functions, &all, asked)?.0.units) };
        let minimum = group_units(1)?.max(1);
        // A card that is too small for the next size has only one.
        let step = group_units(minimum + 1).map_or(minimum, |next| next.saturating_sub(minimum)).max(1);
        Ok((all.units, minimum, step))
    }

    fn create(&self, context: DeviceContext, functions: &'static GreenFunctions) -> Result<GreenContexts> {
        warn_about_queues();
        let guard = context.enter("splitting the device")?;
        let mut left = self.all(&context, &guard, functions)?;
        let mut partitions = Vec::new();
        // The green context that `left` belongs to.
        let mut left_of: Option<Arc<GreenContext>> = None;
        for (index, &cut) in self.cuts.iter().enumerate() {
            let cut_from = left_of.clone();
            let mine = match cut {
                Cut::Rest => left,
                Cut::Group(units) => {
                    let (group, rest) = self.cut_off(&guard, functions, &left, units)?;
                    left = match self.cuts.get(index + 1) {
                        Some(Cut::Group(_)) => {
                            let green =
                                GreenContext::new(&context, &guard, functions, rest, left_of.as_ref());
                            let green = Arc::new(self.refused(green)?);
                            let mut again = Resource::empty();
                            // SAFETY: the green context is alive; the pointer is to a live resource.
                            let code = unsafe {
                                (functions.green_get_resource)(
                                    green.raw,
                                    &mut again,
                                    Resource::MULTIPROCESSORS,
                                )
                            };
                            self.refused(guard.check(code))?;
                            left_of = Some(green);
                            again
                        }
                        _ => rest,
                    };
                    group
                }
            };
            if mine.kind != Resource::MULTIPROCESSORS || mine.units == 0 {
                return Err(self.refuse(format!("the driver left no multiprocessors for partition {index}")));
            }
            let green = GreenContext::new(&context, &guard, functions, mine, cut_from.as_ref());
            partitions.push(Arc::new(self.refused(green)?));
        }
        drop(guard);
        Ok(GreenContexts { context, partitions })
    }

    fn all(
        &self,
        context: &DeviceContext,
        guard: &DriverGuard<'_>,
        functions: &GreenFunctions,
    ) -> Result<Resource> {
        let mut all = Resource::empty();
        // SAFETY: the pointer is to a live resource.
        let code = unsafe {
            (functions.device_get_resource)(context.primary.device, &mut all, Resource::MULTIPROCESSORS)
        };
        self.refused(guard.check(code))?;
        Ok(all)
    }

    /// Splits off a group of at least `units`. Returns the group and the remainder.
    fn cut_off(
        &self,
        guard: &DriverGuard<'_>,
        functions: &GreenFunctions,
        from: &Resource,
        units: u32,
    ) -> Result<(Resource, Resource)> {
        const FLAGS: c_uint = 0;
        let (mut group, mut rest, mut groups) = (Resource::empty(), Resource::empty(), 1);
        // SAFETY: `groups` says that there is room for one group; all pointers are to live values; the driver filled in the
        // input.
        let code =
            unsafe { (functions.split_by_count)(&mut group, &mut groups, from, &mut rest, FLAGS, units) };
        self.refused(guard.check(code))?;
        if groups != 1 {
            return Err(
                self.refuse(format!("the driver cannot split {units} multiprocessors off {}", from.units))
            );
        }
        Ok((group, rest))
    }

    /// Turns the driver's refusal into a `Split` error, and leaves other errors as they are.
    fn refused<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match error {
            Error::Unsupported { detail, .. } => self.refuse(format!("the driver refused: {detail}")),
            error => error,
        })
    }

    fn refuse(&self, detail: String) -> Error {
        Error::Split { device: self.id.clone(), sizes: self.sizes.clone(), detail }
    }
}

/// Warns once if the card has the driver's default number of queues, which is 8. The work of all streams of a card goes into
/// them, and streams that share one wait for each other, also those of different partitions.
fn warn_about_queues() {
    static WARNED: Once = Once::new();
    if std::env::var_os("CUDA_DEVICE_MAX_CONNECTIONS").is_none() {
        WARNED.call_once(|| {
            tracing::warn!(
                "partitions with several streams each may wait for each other: start the program with \
                 CUDA_DEVICE_MAX_CONNECTIONS=32"
            );
        });
    }
}

#[cfg(test)]
mod test {
    use super::{Cut::*, *};

    /// Plans for an H200.
    fn h200(sizes: &[u32]) -> Result<Vec<Cut>, String> {
        plan(132, 8, 8, sizes)
    }

    #[test]
    fn the_last_partition_takes_the_rest_if_that_is_its_size() {
        assert_eq!(h200(&[40, 92]), Ok(vec![Group(40), Rest]));
        assert_eq!(h200(&[132]), Ok(vec![Rest]));
        assert_eq!(h200(&[16, 32, 84]), Ok(vec![Group(16), Group(32), Rest]));
        assert_eq!(h200(&[128, 4]), Ok(vec![Group(128), Rest]));
        assert_eq!(h200(&[64, 65]), Ok(vec![Group(64), Rest]), "65 rounds to 72, and 68 are left");
    }

    #[test]
    fn sizes_are_rounded_up_to_what_the_hardware_gives() {
        assert_eq!(h200(&[1, 41]), Ok(vec![Group(8), Group(48)]));
        assert_eq!(h200(&[40]), Ok(vec![Group(40)]));
        assert_eq!(plan(46, 4, 2, &[3, 5]), Ok(vec![Group(4), Group(6)]));
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused_with_the_numbers() {
        for sizes in [&[133][..], &[100, 40], &[128, 4, 1], &[u32::MAX, 1]] {
            let detail = h200(sizes).unwrap_err();
            assert!(detail.contains("132") && detail.contains("multiples of 8 from 8"), "{detail}");
        }
    }
}
