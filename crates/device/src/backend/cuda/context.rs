//! A card's primary context: shared by every open device on the card, lost as a whole, and created again after a loss.
//!
//! A process has one primary context per card, so a fault in one kernel breaks it for all users. A [`RetainedContext`] is
//! one generation of it. Losing it shuts its [`CallGate`]: from then on nothing of that generation reaches the driver: calls
//! return `Lost`, and drops do nothing. The next opening releases the lost generation and begins a new one, whose handles
//! are all new.
//!
//! Evener shares the process with other users of the primary context (NCCL, PyTorch, the CUDA runtime), which have
//! references of their own. A lost context is therefore released and never reset: a reset would free their memory and
//! streams. Where Evener had the only reference, the release destroys the context and the next opening gets a new one.
//! Where other libraries still hold it, the next opening gets the broken context again and fails with `Lost` until they
//! release it too. The context that is current to a thread before a call of Evener is current to it afterwards.

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
    errors::{self, ErrorClass},
    gate::{CallGate, DriverCallGuard},
    open::OpenDevice,
};
use crate::{
    describe::DeviceId,
    error::{Error, Result},
};

/// How long an opening waits for calls into a lost context to return.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The current generation of one card's primary context in this process.
#[derive(Debug)]
pub(super) struct ContextSlot {
    driver: &'static Driver,
    pub(super) device: CUdevice,
    current: Mutex<Weak<RetainedContext>>,
    /// The last generation was lost and is still retained: it has to be released before the next one is retained.
    must_release: Arc<AtomicBool>,
}

impl ContextSlot {
    /// Returns the slot of a card, the same one each time that the card is found.
    pub(super) fn of(driver: &'static Driver, device: CUdevice) -> Arc<ContextSlot> {
        static SLOTS: Mutex<BTreeMap<CUdevice, Arc<ContextSlot>>> = Mutex::new(BTreeMap::new());
        let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || ContextSlot { driver, device, current: Mutex::default(), must_release: Arc::default() };
        slots.entry(device).or_insert_with(|| Arc::new(new())).clone()
    }

    /// Returns a reference to the card's context for the device `id`: to the current generation, or to a new one where
    /// there is none or it was lost.
    pub(super) fn open(&self, id: &DeviceId) -> Result<DeviceContext> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let last = current.upgrade();
        if let Some(primary) = last.as_ref().filter(|primary| !primary.gate.is_shut()) {
            primary.release_finished();
            return Ok(DeviceContext { id: id.clone(), primary: primary.clone() });
        }
        if self.must_release.load(SeqCst) {
            self.release(id, last.as_deref())?;
        }
        let primary = Arc::new(self.retain(id)?);
        *current = Arc::downgrade(&primary);
        Ok(DeviceContext { id: id.clone(), primary })
    }

    /// Releases a lost generation. The driver destroys it if no other library holds the card's context.
    fn release(&self, id: &DeviceId, lost: Option<&RetainedContext>) -> Result<()> {
        let operation = "reopening the device after a loss";
        // A generation that is dropped already has no callers inside.
        if lost.is_some_and(|lost| !lost.gate.drain(DRAIN_TIMEOUT)) {
            let detail = format!("calls into the lost context have not returned after {DRAIN_TIMEOUT:?}");
            return Err(Error::lost(id, operation, detail));
        }
        if let Some(lost) = lost {
            // Nothing runs in a lost context, so all work counts as finished.
            lost.release_finished();
        }
        // The result is ignored: the first use of the new context shows whether the card works again. The gate of the lost
        // generation is shut and drained, so none of its handles is in use or will be used again.
        // SAFETY: `retain` retained the lost generation once, and `must_release` says that it was not released since.
        unsafe { (self.driver.primary_release)(self.device) };
        self.must_release.store(false, SeqCst);
        Ok(())
    }

    fn retain(&self, id: &DeviceId) -> Result<RetainedContext> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `card::all` got the device from the driver; the pointer is to a live pointer.
        let code = unsafe { (self.driver.primary_retain)(&mut raw, self.device) };
        if code != SUCCESS {
            let text = self.driver.text(code);
            return Err(errors::error(id, "opening the device".into(), code, text, 0));
        }
        Ok(RetainedContext {
            driver: self.driver,
            device: self.device,
            raw,
            gate: CallGate::default(),
            loss_reason: OnceLock::new(),
            closed: Mutex::default(),
            closed_count: AtomicUsize::new(0),
            open_devices: Mutex::default(),
            must_release: self.must_release.clone(),
        })
    }
}

/// One generation of a card's primary context, retained once.
#[derive(Debug)]
pub(super) struct RetainedContext {
    driver: &'static Driver,
    pub(super) device: CUdevice,
    raw: CUcontext,
    gate: CallGate,
    loss_reason: OnceLock<String>,
    /// Devices that were closed while their work was still running.
    closed: Mutex<Vec<Arc<OpenDevice>>>,
    closed_count: AtomicUsize,
    /// Every device that is open in this context. Each gives up its cached memory when another one has none left.
    open_devices: Mutex<Vec<Weak<OpenDevice>>>,
    must_release: Arc<AtomicBool>,
}

// SAFETY: a context may be used from any thread that makes it current first, which `DeviceContext::enter` does.
unsafe impl Send for RetainedContext {}
// SAFETY: as for `Send`; the driver's functions may be called from several threads at once.
unsafe impl Sync for RetainedContext {}

impl RetainedContext {
    fn lose(&self, reason: String) {
        // Only the first reason names the cause; later errors follow from it.
        let _ = self.loss_reason.set(reason);
        self.must_release.store(true, SeqCst);
        self.gate.shut();
    }

    pub(super) fn as_raw(&self) -> CUcontext {
        self.raw
    }

    pub(super) fn is_lost(&self) -> bool {
        self.gate.is_shut()
    }

    pub(super) fn register(&self, open: &Arc<OpenDevice>) {
        let mut devices = self.open_devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Arc::downgrade(open));
    }

    /// Returns every device that is open in this context: the whole card and its partitions.
    pub(super) fn open_devices(&self) -> Vec<Arc<OpenDevice>> {
        let devices = self.open_devices.lock().unwrap_or_else(PoisonError::into_inner);
        devices.iter().filter_map(Weak::upgrade).collect()
    }

    /// Keeps a device that was closed with work in flight, until that work has finished.
    pub(super) fn keep_closed(&self, open: Arc<OpenDevice>) {
        self.closed_count.fetch_add(1, SeqCst);
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).push(open);
    }

    /// Drops the closed devices whose work has finished.
    fn release_finished(&self) {
        if self.closed_count.load(SeqCst) == 0 {
            return;
        }
        // The lock is not held while they are dropped: a drop may call this function again.
        let all = std::mem::take(&mut *self.closed.lock().unwrap_or_else(PoisonError::into_inner));
        let (finished, running): (Vec<_>, Vec<_>) = all.into_iter().partition(|open| open.release_finished());
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).extend(running);
        self.closed_count.fetch_sub(finished.len(), SeqCst);
        drop(finished);
    }

    /// Whether work of closed devices is still running. Freeing memory waits for all work of a context, and this work
    /// may never end: until it does, memory is kept instead of freed.
    pub(super) fn has_unfinished_work(&self) -> bool {
        self.release_finished();
        self.closed_count.load(SeqCst) != 0
    }
}

impl Drop for RetainedContext {
    fn drop(&mut self) {
        // A lost generation is released by the next opening (`ContextSlot::release`).
        if !self.is_lost() {
            // SAFETY: `ContextSlot::retain` retained it once. Everything that lives in it has a `DeviceContext`, and the last
            // of those is gone.
            unsafe { (self.driver.primary_release)(self.device) };
        }
    }
}

/// A device's reference to a primary context. Every call to the driver goes through [`DeviceContext::enter`].
#[derive(Debug, Clone)]
pub(super) struct DeviceContext {
    pub(super) id: DeviceId,
    pub(super) primary: Arc<RetainedContext>,
}

impl DeviceContext {
    /// Enters the context's gate and makes the context current to this thread while the guard lives. Fails at once,
    /// without a call to the driver, if the context was lost.
    ///
    /// Where another context is current, or none, this one is pushed and popped, which takes some 100 ns for both; a
    /// launch takes microseconds.
    #[inline]
    pub(super) fn enter(&self, operation: &'static str) -> Result<DriverGuard<'_>> {
        self.enter_with(operation, false)
    }

    /// Enters as [`enter`](DeviceContext::enter) does, for code that may leave another context current: this one is pushed
    /// even where it is current already, so that popping it restores the thread's context.
    pub(super) fn enter_pushing(&self, operation: &'static str) -> Result<DriverGuard<'_>> {
        self.enter_with(operation, true)
    }

    #[inline]
    fn enter_with(&self, operation: &'static str, always_pushes: bool) -> Result<DriverGuard<'_>> {
        let primary = &*self.primary;
        let Some(gate_guard) = primary.gate.enter() else { return Err(self.lost(operation)) };
        let mut guard = DriverGuard {
            context: self,
            operation,
            driver: primary.driver,
            is_pushed: false,
            _gate_guard: gate_guard,
            _not_send: PhantomData,
        };
        let mut current = std::ptr::null_mut();
        // SAFETY: the pointer is to a live pointer.
        let code = unsafe { (primary.driver.ctx_get_current)(&mut current) };
        if always_pushes || code != SUCCESS || current != primary.raw {
            // SAFETY: the context is alive: it is retained, and while this thread is inside its gate,
            // `ContextSlot::release` does not release it.
            guard.check(unsafe { (primary.driver.ctx_push_current)(primary.raw) })?;
            guard.is_pushed = true;
        }
        Ok(guard)
    }

    /// Whether both refer to the same generation of the same context.
    pub(super) fn is_same_context(&self, other: &DeviceContext) -> bool {
        Arc::ptr_eq(&self.primary, &other.primary)
    }

    #[cold]
    fn lost(&self, operation: &str) -> Error {
        let reason = self.primary.loss_reason.get().map_or("the device was lost earlier", String::as_str);
        Error::lost(&self.id, operation, reason)
    }
}

/// Permission to call the driver: the context is alive and current to this thread while the guard lives.
pub(super) struct DriverGuard<'a> {
    context: &'a DeviceContext,
    operation: &'static str,
    pub(super) driver: &'static Driver,
    /// The guard pushed the context, and pops it when it is dropped.
    is_pushed: bool,
    _gate_guard: DriverCallGuard<'a>,
    /// The current context is a property of the thread, so the guard stays on its thread.
    _not_send: PhantomData<*const ()>,
}

impl Drop for DriverGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.is_pushed {
            let mut popped = std::ptr::null_mut();
            // The result is ignored: a drop cannot report an error, and the next call meets the same one.
            // SAFETY: the pointer is to a live pointer. Guards of a thread are dropped in reverse order of their creation,
            // so the context on top of its stack is the one that this guard pushed.
            unsafe { (self.driver.ctx_pop_current)(&mut popped) };
        }
    }
}

impl DriverGuard<'_> {
    /// Turns a result code into an error. A fatal code also loses the context.
    #[inline]
    pub(super) fn check(&self, code: c_int) -> Result<()> {
        self.check_for(code, 0, || self.operation.to_owned())
    }

    /// Checks a result code of an operation on this many bytes.
    #[inline]
    pub(super) fn check_sized(&self, code: c_int, bytes: u64) -> Result<()> {
        self.check_for(code, bytes, || format!("{} ({bytes} bytes)", self.operation))
    }

    /// Checks a result code of an operation that `operation` describes.
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
        if matches!(errors::meaning(code), ErrorClass::Lost | ErrorClass::KernelTimedOut) {
            self.context.primary.lose(text.clone());
        }
        errors::error(&self.context.id, operation, code, text, bytes)
    }
}
