//! A card's primary context: shared by everything that has the card open, lost as a whole, made anew.
//!
//! All of a process shares one primary context per card, so a fault in one kernel breaks it for everybody. A
//! [`Context`] is one generation of it. Losing it shuts its [`Gate`]: from then on nothing of that generation
//! reaches the driver any more, neither calls, which answer `Lost`, nor drops, which do nothing. The next
//! opening releases it and begins a new generation, whose handles are all new.
//!
//! Evener is a guest in the process. Other users of the primary context (NCCL, PyTorch, the CUDA runtime) have
//! references of their own, so a lost context is released and never reset: a reset would take their memory and streams
//! from under them. Where Evener had the only reference, the release destroys the context and the next opening gets a new
//! one. Where others have the context still, the next opening gets the broken one again, and fails with `Lost` until they
//! have let go of it too. And what is current to a thread when it calls Evener is current to it again afterwards.

use std::{
    collections::BTreeMap,
    ffi::c_int,
    marker::PhantomData,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use cudarc::driver::sys::{CUcontext, CUdevice};

use super::{
    driver::{Driver, SUCCESS},
    errors::{self, Meaning},
    gate::{Gate, Inside},
    open::Open,
};
use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// So long an opening waits for calls into a lost context to return.
const DRAIN: Duration = Duration::from_secs(2);

/// One card's place in this process: the present generation of its primary context.
#[derive(Debug)]
pub(super) struct Slot {
    driver: &'static Driver,
    pub(super) device: CUdevice,
    current: Mutex<Weak<Context>>,
    /// The last generation was lost: it is retained still, and has to be released before there can be another.
    broken: Arc<AtomicBool>,
}

impl Slot {
    /// The slot of a card, the same one however often the card is found.
    pub(super) fn of(driver: &'static Driver, device: CUdevice) -> Arc<Slot> {
        static SLOTS: Mutex<BTreeMap<CUdevice, Arc<Slot>>> = Mutex::new(BTreeMap::new());
        let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Slot { driver, device, current: Mutex::default(), broken: Arc::default() };
        slots.entry(device).or_insert_with(|| Arc::new(new())).clone()
    }

    /// A hold on the card's context, for a device of this id: on the present generation, or on a new one where
    /// there is none or it was lost.
    pub(super) fn hold(&self, id: &DeviceId) -> Result<Hold> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let last = current.upgrade();
        if let Some(context) = last.as_ref().filter(|context| !context.gate.is_shut()) {
            // A good moment to let go of what was left behind, if its work has ended since.
            context.is_stuck();
            return Ok(Hold { id: id.clone(), context: context.clone() });
        }
        if self.broken.load(SeqCst) {
            self.release(id, last.as_deref())?;
        }
        let context = Arc::new(self.retain(id)?);
        *current = Arc::downgrade(&context);
        Ok(Hold { id: id.clone(), context })
    }

    /// Lets go of a lost generation, which is destroyed with that where nobody else has the card's context.
    fn release(&self, id: &DeviceId, lost: Option<&Context>) -> Result<()> {
        let operation = "opening it again after a loss";
        // One that is dropped already has nobody inside.
        if lost.is_some_and(|lost| !lost.gate.drain(DRAIN)) {
            let detail = format!("calls into the lost context have not returned after {DRAIN:?}");
            return Err(Error::lost(id, operation, detail));
        }
        if let Some(lost) = lost {
            // Nothing runs any more in it, so what was left behind is let go.
            lost.is_stuck();
        }
        // The answer does not matter: whether the card works again is seen when the new context is first used. The gate
        // of the lost generation is shut and nobody is inside, so none of its handles is in use or will ever be again.
        // SAFETY: the lost generation was retained once and has not been released.
        unsafe { (self.driver.primary_release)(self.device) };
        self.broken.store(false, SeqCst);
        Ok(())
    }

    fn retain(&self, id: &DeviceId) -> Result<Context> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the device is one that the driver counted; the pointer is to a live pointer.
        let code = unsafe { (self.driver.primary_retain)(&mut raw, self.device) };
        if code != SUCCESS {
            let text = self.driver.text(code);
            return Err(errors::error(id, "opening it".into(), code, text, 0));
        }
        Ok(Context {
            driver: self.driver,
            device: self.device,
            raw,
            gate: Gate::default(),
            reason: OnceLock::new(),
            stuck: Mutex::default(),
            stuck_count: AtomicUsize::new(0),
            openings: Mutex::default(),
            broken: self.broken.clone(),
        })
    }
}

/// One generation of a card's primary context, retained once.
#[derive(Debug)]
pub(super) struct Context {
    driver: &'static Driver,
    pub(super) device: CUdevice,
    raw: CUcontext,
    gate: Gate,
    /// Why it was lost.
    reason: OnceLock<String>,
    /// Openings that were closed with work left behind that did not end in time.
    stuck: Mutex<Vec<Arc<Open>>>,
    stuck_count: AtomicUsize,
    /// What was opened in it, to be asked for memory that it keeps for reuse.
    openings: Mutex<Vec<Weak<Open>>>,
    broken: Arc<AtomicBool>,
}

// SAFETY: a context may be used from any thread that makes it current first, which `Hold::enter` does.
unsafe impl Send for Context {}
// SAFETY: as above; the driver's functions may be called from several threads at once.
unsafe impl Sync for Context {}

impl Context {
    fn lose(&self, reason: String) {
        // The first reason is the one that tells; the ones after it are echoes.
        let _ = self.reason.set(reason);
        self.broken.store(true, SeqCst);
        self.gate.shut();
    }

    pub(super) fn as_raw(&self) -> CUcontext {
        self.raw
    }

    pub(super) fn is_lost(&self) -> bool {
        self.gate.is_shut()
    }

    /// Takes note of an opening.
    pub(super) fn note(&self, open: &Arc<Open>) {
        let mut openings = self.openings.lock().unwrap_or_else(PoisonError::into_inner);
        openings.retain(|open| open.strong_count() > 0);
        openings.push(Arc::downgrade(open));
    }

    /// Everything that has the card open in this context: the whole card and its partitions.
    pub(super) fn openings(&self) -> Vec<Arc<Open>> {
        let openings = self.openings.lock().unwrap_or_else(PoisonError::into_inner);
        openings.iter().filter_map(Weak::upgrade).collect()
    }

    /// Keeps an opening that was closed with work under way, until that has ended.
    pub(super) fn keep_stuck(&self, open: Arc<Open>) {
        self.stuck_count.fetch_add(1, SeqCst);
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }

    /// Whether work is under way that was left behind. Freeing memory waits for all work of a context, and this
    /// work may never end: while it is there, memory is rather kept than freed.
    pub(super) fn is_stuck(&self) -> bool {
        if self.stuck_count.load(SeqCst) == 0 {
            return false;
        }
        // Not under the lock: what is let go may close something that asks this again.
        let all = std::mem::take(&mut *self.stuck.lock().unwrap_or_else(PoisonError::into_inner));
        let (ended, left): (Vec<_>, Vec<_>) = all.into_iter().partition(|open| open.sweep());
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).extend(left);
        self.stuck_count.fetch_sub(ended.len(), SeqCst);
        drop(ended);
        self.stuck_count.load(SeqCst) != 0
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // A lost one is released by the opening that follows, if one does.
        if !self.is_lost() {
            // SAFETY: retained once, by `Slot::retain`; whatever lived in it held it and is gone.
            unsafe { (self.driver.primary_release)(self.device) };
        }
    }
}

/// A device's hold on a context. Everything that calls the driver goes through [`Hold::enter`].
#[derive(Debug, Clone)]
pub(super) struct Hold {
    pub(super) id: DeviceId,
    pub(super) context: Arc<Context>,
}

impl Hold {
    /// Enters the context's gate and makes the context current to this thread until it leaves. Fails at once, without
    /// reaching the driver, where the context was lost.
    ///
    /// Where another context is current, or none, ours is pushed and popped again, at some 100 ns for both; a launch takes
    /// microseconds.
    #[inline]
    pub(super) fn enter(&self, operation: &'static str) -> Result<Entered<'_>> {
        self.enter_with(operation, false)
    }

    /// The same for code that may leave another context current: ours is pushed even where it is current, so that what
    /// was current before is current again when it is popped.
    pub(super) fn enter_pushing(&self, operation: &'static str) -> Result<Entered<'_>> {
        self.enter_with(operation, true)
    }

    #[inline]
    fn enter_with(&self, operation: &'static str, always_pushes: bool) -> Result<Entered<'_>> {
        let context = &*self.context;
        let Some(inside) = context.gate.enter() else { return Err(self.lost(operation)) };
        let mut entered = Entered {
            hold: self,
            operation,
            driver: context.driver,
            is_pushed: false,
            _inside: inside,
            _of_this_thread: PhantomData,
        };
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        let code = unsafe { (context.driver.ctx_get_current)(&mut current) };
        if always_pushes || code != SUCCESS || current != context.raw {
            // SAFETY: the context is alive: it is retained, and its gate was open a moment ago and is held.
            entered.check(unsafe { (context.driver.ctx_push_current)(context.raw) })?;
            entered.is_pushed = true;
        }
        Ok(entered)
    }

    /// Whether two holds are on the same generation of the same context.
    pub(super) fn shares_context(&self, other: &Hold) -> bool {
        Arc::ptr_eq(&self.context, &other.context)
    }

    #[cold]
    fn lost(&self, operation: &str) -> Error {
        let reason = self.context.reason.get().map_or("lost before", String::as_str);
        Error::lost(&self.id, operation, reason)
    }
}

/// Leave to call the driver: the context is alive and current to this thread while this exists.
pub(super) struct Entered<'a> {
    hold: &'a Hold,
    operation: &'static str,
    pub(super) driver: &'static Driver,
    /// The context was not current before, and is not to be afterwards.
    is_pushed: bool,
    _inside: Inside<'a>,
    /// What is current is a matter of the thread, so this stays on it.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Entered<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = std::ptr::null_mut();
            // The answer does not matter: nobody is there to be told, and the next call tells as well.
            // SAFETY: the pointer is to a live pointer. Entries are left in the reverse order on each thread, so the
            // context on top is the one that this entry has pushed.
            unsafe { (self.driver.ctx_pop_current)(&mut popped) };
        }
    }
}

impl Entered<'_> {
    /// Turns a result code into an error, and a fatal one into the loss of the context.
    #[inline]
    pub(super) fn check(&self, code: c_int) -> Result<()> {
        self.check_for(code, 0, || self.operation.to_owned())
    }

    /// The same, for an operation on so many bytes.
    #[inline]
    pub(super) fn check_sized(&self, code: c_int, bytes: u64) -> Result<()> {
        self.check_for(code, bytes, || format!("{} ({bytes} bytes)", self.operation))
    }

    /// The same, with words of one's own for the operation.
    #[inline]
    pub(super) fn check_for(
        &self,
        code: c_int,
        bytes: u64,
        operation: impl FnOnce() -> String,
    ) -> Result<()> {
        if code == SUCCESS { Ok(()) } else { Err(self.fail(code, bytes, operation())) }
    }

    #[cold]
    fn fail(&self, code: c_int, bytes: u64, operation: String) -> Error {
        let text = self.driver.text(code);
        if matches!(errors::meaning(code), Meaning::Lost | Meaning::KernelTimedOut) {
            self.hold.context.lose(text.clone());
        }
        errors::error(&self.hold.id, operation, code, text, bytes)
    }
}
