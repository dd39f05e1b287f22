//! Partitions: some of a card's multiprocessors as a device of their own, by green contexts.
//!
//! A kernel runs on the multiprocessors of the stream that it is launched in. So a partition differs from the
//! whole card in its streams alone: memory, modules and events are those of the primary context.
//!
//! The driver splits a set of multiprocessors into one group of at least a given size and the rest. The rest
//! can be used as it is, but split further only after a green context was made of it. So unequal partitions are
//! cut off one after the other, and the last takes the rest where that is about what was asked for.

use std::{
    ffi::{c_int, c_uint},
    sync::{Arc, Mutex, PoisonError},
};

use cudarc::driver::sys::{CUgreenCtx, CUgreenCtxCreate_flags, CUstream};

use super::{
    card::Card,
    context::{Entered, Hold},
    driver::{GreenFunctions, Resource},
};
use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// A set of multiprocessors that streams can be made on.
#[derive(Debug)]
pub(super) struct Green {
    pub(super) hold: Hold,
    functions: &'static GreenFunctions,
    raw: CUgreenCtx,
    units: u32,
    /// The rest that it was cut from, where that was made a green context first. It is destroyed after this one.
    _cut_from: Option<Arc<Green>>,
}

// SAFETY: it is never made current, only streams are made on it, which the driver allows from any thread.
unsafe impl Send for Green {}
// SAFETY: as above; the driver locks the making of streams itself.
unsafe impl Sync for Green {}

impl std::fmt::Debug for GreenFunctions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GreenFunctions")
    }
}

impl Green {
    fn new(
        hold: &Hold,
        entered: &Entered<'_>,
        functions: &'static GreenFunctions,
        mut resource: Resource,
        cut_from: Option<&Arc<Green>>,
    ) -> Result<Self> {
        let mut descriptor = std::ptr::null_mut();
        // SAFETY: one resource that the driver filled in; the pointer is to a live pointer.
        entered.check(unsafe { (functions.generate_descriptor)(&mut descriptor, &mut resource, 1) })?;
        let flags = CUgreenCtxCreate_flags::CU_GREEN_CTX_DEFAULT_STREAM as c_uint;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the descriptor was made just now, for this device; the pointer is to a live pointer.
        entered.check(unsafe { (functions.create)(&mut raw, descriptor, hold.context.device, flags) })?;
        let (hold, units) = (hold.clone(), resource.units);
        Ok(Green { hold, functions, raw, units, _cut_from: cut_from.cloned() })
    }

    /// Makes a stream on these multiprocessors.
    pub(super) fn stream(&self, entered: &Entered<'_>, flags: u32, stream: &mut CUstream) -> Result<()> {
        const PRIORITY: c_int = 0;
        // SAFETY: the green context is alive; the pointer is to a live pointer.
        entered.check(unsafe { (self.functions.stream_create)(stream, self.raw, flags, PRIORITY) })
    }
}

impl Drop for Green {
    fn drop(&mut self) {
        // One with work left behind in it stays until the process ends.
        if self.hold.context.is_stuck() {
            return;
        }
        if let Ok(entered) = self.hold.enter("closing a partition") {
            // SAFETY: alive, and its streams are gone: whoever has one of them has this too.
            let code = unsafe { (self.functions.destroy)(self.raw) };
            // Nobody is there to be told, but a fault that shows here has to be noted.
            drop(entered.check(code));
        }
    }
}

/// How one partition is to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// By splitting off so many.
    Group(u32),
    /// As what is left.
    Rest,
}

/// How to cut `units` into `sizes`, where the hardware gives multiples of `step` from `minimum` on, and the
/// rest in one piece. Fails with what would be possible.
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
                "{units} multiprocessors here, {left} of them left for a partition of {size}, which takes \
                 {rounded}: sizes are multiples of {step} from {minimum} on, and the last may be the rest"
            ));
        };
        cuts.push(Cut::Group(rounded));
        left = rest;
    }
    Ok(cuts)
}

/// A card cut into partitions. The cut is made anew in each generation of the card's context.
#[derive(Debug)]
pub(super) struct Split {
    card: Arc<Card>,
    id: DeviceId,
    sizes: Vec<u32>,
    cuts: Vec<Cut>,
    made: Mutex<Option<Made>>,
}

/// The green contexts of one generation.
#[derive(Debug)]
struct Made {
    hold: Hold,
    partitions: Vec<Arc<Green>>,
}

impl Split {
    /// Cuts a card. Fails with `Split`, and what would be possible, where it cannot be cut so.
    pub(super) fn new(card: &Arc<Card>, id: &DeviceId, sizes: &[u32]) -> Result<Self> {
        let mut split = Split {
            card: card.clone(),
            id: id.clone(),
            sizes: sizes.to_vec(),
            cuts: Vec::new(),
            made: Mutex::new(None),
        };
        let functions = split.functions()?;
        let hold = card.slot.hold(id)?;
        let (units, minimum, step) = split.granularity(&hold, functions)?;
        split.cuts = plan(units, minimum, step, sizes).map_err(|detail| split.refuse(detail))?;
        let made = split.make(hold, functions)?;
        split.made = Mutex::new(Some(made));
        Ok(split)
    }

    /// How many multiprocessors each partition got.
    pub(super) fn units(&self) -> Vec<u32> {
        let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.iter().flat_map(|made| &made.partitions).map(|green| green.units).collect()
    }

    /// A partition's green context, in the present generation of the card's context.
    pub(super) fn green(&self, index: usize) -> Result<Arc<Green>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if made.as_ref().is_none_or(|made| made.hold.context.is_lost()) {
            *made = None;
            *made = Some(self.make(self.card.slot.hold(&self.id)?, self.functions()?)?);
        }
        let green = made.as_ref().and_then(|made| made.partitions.get(index)).cloned();
        green.ok_or_else(|| self.refuse(format!("there is no partition {index}")))
    }

    fn functions(&self) -> Result<&'static GreenFunctions> {
        let driver = self.card.driver;
        driver.green.as_ref().ok_or_else(|| {
            let version = driver.version_text();
            self.refuse(format!("the driver is for {version}, and green contexts come with CUDA 12.5"))
        })
    }

    /// How many multiprocessors there are, the fewest that can be split off, and in what steps.
    fn granularity(&self, hold: &Hold, functions: &'static GreenFunctions) -> Result<(u32, u32, u32)> {
        let entered = hold.enter("splitting it")?;
        let all = self.all(hold, &entered, functions)?;
        let least = |asked| -> Result<u32> { Ok(self.cut_off(&entered, functions, &all, asked)?.0.units) };
        let minimum = least(1)?.max(1);
        // A card with no room for the next size has only one.
        let step = least(minimum + 1).map_or(minimum, |next| next.saturating_sub(minimum)).max(1);
        Ok((all.units, minimum, step))
    }

    fn make(&self, hold: Hold, functions: &'static GreenFunctions) -> Result<Made> {
        let entered = hold.enter("splitting it")?;
        let mut left = self.all(&hold, &entered, functions)?;
        let mut partitions = Vec::new();
        // The green context that what is left was taken from.
        let mut left_of: Option<Arc<Green>> = None;
        for (index, &cut) in self.cuts.iter().enumerate() {
            let cut_from = left_of.clone();
            let mine = match cut {
                Cut::Rest => left,
                Cut::Group(units) => {
                    let (group, rest) = self.cut_off(&entered, functions, &left, units)?;
                    left = match self.cuts.get(index + 1) {
                        Some(Cut::Group(_)) => {
                            let green = Green::new(&hold, &entered, functions, rest, left_of.as_ref());
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
                            self.refused(entered.check(code))?;
                            left_of = Some(green);
                            again
                        }
                        _ => rest,
                    };
                    group
                }
            };
            if mine.kind != Resource::MULTIPROCESSORS || mine.units == 0 {
                return Err(self.refuse(format!("the driver left nothing for partition {index}")));
            }
            let green = Green::new(&hold, &entered, functions, mine, cut_from.as_ref());
            partitions.push(Arc::new(self.refused(green)?));
        }
        drop(entered);
        Ok(Made { hold, partitions })
    }

    /// All multiprocessors of the card.
    fn all(&self, hold: &Hold, entered: &Entered<'_>, functions: &GreenFunctions) -> Result<Resource> {
        let mut all = Resource::empty();
        // SAFETY: the pointer is to a live resource.
        let code = unsafe {
            (functions.device_get_resource)(hold.context.device, &mut all, Resource::MULTIPROCESSORS)
        };
        self.refused(entered.check(code))?;
        Ok(all)
    }

    /// A group of at least so many, and the rest.
    fn cut_off(
        &self,
        entered: &Entered<'_>,
        functions: &GreenFunctions,
        from: &Resource,
        units: u32,
    ) -> Result<(Resource, Resource)> {
        const FLAGS: c_uint = 0;
        let (mut group, mut rest, mut groups) = (Resource::empty(), Resource::empty(), 1);
        // SAFETY: room for one group is given and told of; all pointers are to live values, and the input is as
        // the driver filled it in.
        let code =
            unsafe { (functions.split_by_count)(&mut group, &mut groups, from, &mut rest, FLAGS, units) };
        self.refused(entered.check(code))?;
        if groups != 1 {
            return Err(self.refuse(format!("the driver cannot take {units} of {} units", from.units)));
        }
        Ok((group, rest))
    }

    /// A refusal of the driver as a refusal to split; other errors as they are.
    fn refused<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| match error {
            Error::Unsupported { detail, .. } => self.refuse(format!("the driver refuses: {detail}")),
            error => error,
        })
    }

    fn refuse(&self, detail: String) -> Error {
        Error::Split { device: self.id.clone(), sizes: self.sizes.clone(), detail }
    }
}

#[cfg(test)]
mod test {
    use super::{Cut::*, *};

    /// An H200.
    fn h200(sizes: &[u32]) -> Result<Vec<Cut>, String> {
        plan(132, 8, 8, sizes)
    }

    #[test]
    fn the_last_partition_takes_the_rest_where_that_is_what_was_asked_for() {
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
    fn what_does_not_fit_is_refused_with_the_numbers() {
        for sizes in [&[133][..], &[100, 40], &[128, 4, 1], &[u32::MAX, 1]] {
            let detail = h200(sizes).unwrap_err();
            assert!(detail.contains("132") && detail.contains("multiples of 8 from 8"), "{detail}");
        }
    }
}
