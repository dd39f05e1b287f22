//! A stream of the CPU device: a thread that takes operations from a channel and runs them in order, or the calling thread
//! itself, if it does nothing else.
//!
//! After an operation fails, later ones are skipped until [`CpuStream::wait`] has returned the error: their input is
//! missing.

use std::{
    any::Any,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, OnceLock, PoisonError, RwLockReadGuard, RwLockWriteGuard,
        mpsc::{Sender, channel},
    },
    time::{Duration, Instant},
};

use rayon::ThreadPool;

use super::{
    super::{BoundKernelBackend, EventBackend, HostMemory, Region, StreamBackend, TimestampBackend},
    CpuBoundKernel,
    memory::{CpuBlock, CpuHostMemory, CpuMemory, range},
};
use crate::{
    describe::DeviceId,
    error::{Error, Result, SharedError},
    kernel::{Access, BoxError},
    launch::{BufferSlot, Launch},
};

type Operation = Box<dyn FnOnce() -> Result<()> + Send>;

enum Message {
    Run(Operation),
    /// Runs even after a failure, which it is given.
    Always(Box<dyn FnOnce(Option<Error>) + Send>),
    ClearFailure,
}

impl Message {
    /// Runs the operation, and notes its failure.
    fn run(self, failure: &mut Option<Error>) {
        match self {
            Message::Run(operation) if failure.is_none() => *failure = operation().err(),
            Message::Run(_) => {}
            Message::Always(operation) => operation(failure.clone()),
            Message::ClearFailure => *failure = None,
        }
    }
}

/// Where operations run.
#[derive(Debug)]
enum Runner {
    /// On a thread of the stream's own.
    Thread(Sender<Message>),
    /// On the thread that queues them. Holds the first failure since the last wait.
    Caller(Mutex<Option<Error>>),
}

#[derive(Debug)]
pub(super) struct CpuStream {
    device: DeviceId,
    pool: Arc<ThreadPool>,
    runner: Runner,
}

impl CpuStream {
    pub(super) fn start(device: DeviceId, pool: Arc<ThreadPool>) -> Result<Self> {
        let (queue, messages) = channel::<Message>();
        std::thread::Builder::new()
            .name(format!("evener-{device}-stream"))
            .spawn(move || {
                let mut failure: Option<Error> = None;
                messages.into_iter().for_each(|message| message.run(&mut failure));
            })
            .map_err(|why| Error::lost(&device, "starting a stream", why.to_string()))?;
        Ok(CpuStream { device, pool, runner: Runner::Thread(queue) })
    }

    /// A stream whose operations run on the thread that queues them.
    pub(super) fn on_caller(device: DeviceId, pool: Arc<ThreadPool>) -> Self {
        CpuStream { device, pool, runner: Runner::Caller(Mutex::default()) }
    }

    fn send(&self, message: Message) -> Result<()> {
        match &self.runner {
            Runner::Thread(queue) => {
                queue.send(message).map_err(|_| Error::lost(&self.device, "queueing", "its thread has ended"))
            }
            Runner::Caller(failure) => {
                message.run(&mut failure.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(())
            }
        }
    }

    /// Returns a kernel of the processor. The kernels of all its partitions can be launched on each of them.
    fn own_kernel(&self, bound: &Arc<dyn BoundKernelBackend>) -> Result<Arc<CpuBoundKernel>> {
        let bound: Arc<dyn Any + Send + Sync> = bound.clone();
        bound.downcast().map_err(|_| {
            Error::unsupported(&self.device, "launching a kernel", "the kernel belongs to another device")
        })
    }

    fn run(&self, operation: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        self.send(Message::Run(Box::new(operation)))
    }
}

impl StreamBackend for CpuStream {
    fn upload(&mut self, from: &mut dyn HostMemory, part: Range<u64>, to: &Region) -> Result<()> {
        CpuMemory::of(to, &self.device)?;
        let (block, lent) = CpuHostMemory::lend(from, &self.device)?;
        let (to, device) = (to.clone(), self.device.clone());
        // The block returns to its owner even if the copy is skipped.
        self.send(Message::Always(Box::new(move |failure| {
            if failure.is_none()
                && let Ok(memory) = CpuMemory::of(&to, &device)
            {
                let source = &block.bytes()[part.start as usize..part.end as usize];
                write(memory).bytes_mut()[range(&to)].copy_from_slice(source);
            }
            *lent.lock().unwrap_or_else(PoisonError::into_inner) = Some(block);
        })))
    }

    fn download(&mut self, from: &Region, to: &mut dyn HostMemory, offset: u64) -> Result<()> {
        CpuMemory::of(from, &self.device)?;
        let (mut block, lent) = CpuHostMemory::lend(to, &self.device)?;
        let (from, device) = (from.clone(), self.device.clone());
        self.send(Message::Always(Box::new(move |failure| {
            if failure.is_none()
                && let Ok(memory) = CpuMemory::of(&from, &device)
            {
                let target = &mut block.bytes_mut()[offset as usize..(offset + from.bytes) as usize];
                target.copy_from_slice(&read(memory).bytes()[range(&from)]);
            }
            *lent.lock().unwrap_or_else(PoisonError::into_inner) = Some(block);
        })))
    }

    fn copy(&mut self, from: &Region, to: &Region) -> Result<()> {
        let (from, to, device) = (from.clone(), to.clone(), self.device.clone());
        self.run(move || {
            let (source, target) = (CpuMemory::of(&from, &device)?, CpuMemory::of(&to, &device)?);
            if std::ptr::eq(source, target) {
                write(target).bytes_mut().copy_within(range(&from), to.offset as usize);
                return Ok(());
            }
            // All operations take locks in the order of addresses, so two streams cannot deadlock.
            let (source, mut target) = if std::ptr::from_ref(source) < std::ptr::from_ref(target) {
                (read(source), write(target))
            } else {
                let target = write(target);
                (read(source), target)
            };
            target.bytes_mut()[range(&to)].copy_from_slice(&source.bytes()[range(&from)]);
            Ok(())
        })
    }

    fn zero(&mut self, region: &Region) -> Result<()> {
        let (region, device) = (region.clone(), self.device.clone());
        self.run(move || {
            write(CpuMemory::of(&region, &device)?).bytes_mut()[range(&region)].fill(0);
            Ok(())
        })
    }

    fn fill(&mut self, region: &Region, pattern: &[u8]) -> Result<bool> {
        let (region, device, pattern) = (region.clone(), self.device.clone(), pattern.to_vec());
        self.run(move || {
            let mut block = write(CpuMemory::of(&region, &device)?);
            let targets = block.bytes_mut()[range(&region)].chunks_exact_mut(pattern.len());
            targets.for_each(|target| target.copy_from_slice(&pattern));
            Ok(())
        })?;
        Ok(true)
    }

    fn check_kernel(&self, bound: &Arc<dyn BoundKernelBackend>) -> Result<()> {
        self.own_kernel(bound).map(drop)
    }

    fn launch(&mut self, bound: &Arc<dyn BoundKernelBackend>, groups: [u32; 3], params: &[u8]) -> Result<()> {
        let bound = self.own_kernel(bound)?;
        let (pool, params) = (self.pool.clone(), params.to_vec());
        self.run(move || run_body(&bound, &pool, groups, &params))
    }

    fn timestamp(&mut self) -> Result<Arc<dyn TimestampBackend>> {
        let reading = Arc::new(OnceLock::new());
        let timestamp = CpuTimestamp { device: self.device.clone(), reading: reading.clone() };
        self.send(Message::Always(Box::new(move |_| {
            // Only this operation sets it, once.
            let _ = reading.set(Instant::now());
        })))?;
        Ok(Arc::new(timestamp))
    }

    fn record_event(&mut self) -> Result<Arc<dyn EventBackend>> {
        let event = Arc::new(CpuEvent {
            device: self.device.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let reached = event.clone();
        self.send(Message::Always(Box::new(move |failure| reached.reach(failure))))?;
        Ok(event)
    }

    fn wait_event(&mut self, event: &Arc<dyn EventBackend>) -> Result<()> {
        let event = event.clone();
        self.run(move || event.wait(None))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        let outcome = self.record_event()?.wait(timeout);
        if !matches!(outcome, Ok(()) | Err(Error::TimedOut { .. })) {
            self.send(Message::ClearFailure)?;
        }
        outcome
    }
}

/// Runs a kernel's body in the pool, with its buffers locked.
fn run_body(bound: &CpuBoundKernel, pool: &ThreadPool, groups: [u32; 3], params: &[u8]) -> Result<()> {
    let program = &bound.program;
    let task_error = |message: String, source: Option<BoxError>| Error::Task {
        device: program.device.clone(),
        operation: format!("running kernel `{}`", program.name),
        item: None,
        message,
        source: source.map(SharedError::new),
    };
    let mut locks = lock_all(bound)?;
    let mut slots: Vec<BufferSlot<'_>> = bound.arguments.iter().map(|_| BufferSlot::Taken).collect();
    for lock in &mut locks {
        match lock {
            Lock::Read(guard, users) => {
                for &mut index in users {
                    slots[index] = BufferSlot::Read(&guard.bytes()[range(&bound.arguments[index])]);
                }
            }
            Lock::Write(guard, users) => share_out(bound, guard.bytes_mut(), users, &mut slots)?,
        }
    }
    let mut launch =
        Launch { groups, workgroup: program.workgroup, params, bindings: &program.bindings, buffers: slots };
    let body = &program.body.0;
    match catch_unwind(AssertUnwindSafe(|| pool.install(|| body(&mut launch)))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(task_error(why.to_string(), Some(why))),
        Err(panic) => {
            let message = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(task_error(format!("panicked: {}", message.unwrap_or_default()), None))
        }
    }
}

/// A lock that a launch holds, and the indices of its arguments in that buffer.
enum Lock<'a> {
    Read(RwLockReadGuard<'a, CpuBlock>, Vec<usize>),
    Write(RwLockWriteGuard<'a, CpuBlock>, Vec<usize>),
}

/// Gives each argument in one block its slice: exclusive slices to those that are written, which overlap with nothing,
/// and shared slices of the bytes between those to the others.
fn share_out<'a>(
    bound: &CpuBoundKernel,
    mut block: &'a mut [u8],
    users: &[usize],
    slots: &mut [BufferSlot<'a>],
) -> Result<()> {
    let (mut written, read): (Vec<usize>, Vec<usize>) =
        users.iter().partition(|&&index| bound.program.bindings[index].access == Access::ReadWrite);
    written.sort_by_key(|&index| bound.arguments[index].offset);
    let overlap = || {
        let detail = "slices of one buffer overlap, and the kernel writes to one of them";
        Error::unsupported(&bound.program.device, "launching a kernel", detail)
    };
    let mut between: Vec<(usize, &'a [u8])> = Vec::new();
    let mut begin = 0;
    for index in written {
        let bytes = range(&bound.arguments[index]);
        // An empty slice overlaps with nothing.
        if bytes.is_empty() {
            slots[index] = BufferSlot::Write(&mut []);
            continue;
        }
        let skipped = bytes.start.checked_sub(begin).ok_or_else(overlap)?;
        let (before, rest) = std::mem::take(&mut block).split_at_mut(skipped);
        let (own, rest) = rest.split_at_mut(bytes.len());
        between.push((begin, before));
        slots[index] = BufferSlot::Write(own);
        (begin, block) = (bytes.end, rest);
    }
    between.push((begin, block));
    for index in read {
        let bytes = range(&bound.arguments[index]);
        let part = between.iter().find_map(|&(begin, part)| {
            part.get(bytes.start.checked_sub(begin)?..bytes.end.checked_sub(begin)?)
        });
        slots[index] = match part {
            _ if bytes.is_empty() => BufferSlot::Read(&[]),
            part => BufferSlot::Read(part.ok_or_else(overlap)?),
        };
    }
    Ok(())
}

/// Locks each buffer of a launch once, in the order of addresses, so that two launches which share buffers cannot
/// deadlock.
fn lock_all(bound: &CpuBoundKernel) -> Result<Vec<Lock<'_>>> {
    let device = &bound.program.device;
    let mut users: Vec<(&CpuMemory, Vec<usize>)> = Vec::new();
    for (index, region) in bound.arguments.iter().enumerate() {
        let memory = CpuMemory::of(region, device)?;
        match users.iter_mut().find(|(other, _)| std::ptr::eq(*other, memory)) {
            Some((_, indices)) => indices.push(index),
            None => users.push((memory, vec![index])),
        }
    }
    users.sort_by_key(|(memory, _)| std::ptr::from_ref(*memory));
    users
        .into_iter()
        .map(|(memory, indices)| {
            let writes = |&index: &usize| bound.program.bindings[index].access == Access::ReadWrite;
            Ok(match indices.iter().any(writes) {
                true => Lock::Write(write(memory), indices),
                false => Lock::Read(read(memory), indices),
            })
        })
        .collect()
}

// A panic of the user's code is caught before it can poison a lock; the data may be incomplete but is valid.
fn read(memory: &CpuMemory) -> RwLockReadGuard<'_, CpuBlock> {
    memory.block.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(memory: &CpuMemory) -> RwLockWriteGuard<'_, CpuBlock> {
    memory.block.write().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct CpuTimestamp {
    device: DeviceId,
    reading: Arc<OnceLock<Instant>>,
}

impl TimestampBackend for CpuTimestamp {
    fn since(&self, earlier: &dyn TimestampBackend) -> Result<Duration> {
        let earlier = (earlier as &dyn Any).downcast_ref::<CpuTimestamp>().and_then(|it| it.reading.get());
        match (earlier, self.reading.get()) {
            (Some(earlier), Some(later)) => Ok(later.saturating_duration_since(*earlier)),
            _ => {
                let detail = "wait for the stream first, and compare timestamps of one device";
                Err(Error::unsupported(&self.device, "reading a timestamp", detail))
            }
        }
    }
}

#[derive(Debug)]
struct CpuEvent {
    device: DeviceId,
    /// `None` until reached; then the error before it, if any.
    state: Mutex<Option<Option<Error>>>,
    changed: Condvar,
}

impl CpuEvent {
    fn reach(&self, failure: Option<Error>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
        self.changed.notify_all();
    }
}

impl EventBackend for CpuEvent {
    fn is_done(&self) -> Result<bool> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(failure)) => Err(failure.clone()),
        }
    }

    fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = |state: &mut Option<Option<Error>>| state.is_none();
        let state = match timeout {
            None => self.changed.wait_while(state, pending).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self.changed.wait_timeout_while(state, timeout, pending);
                let (state, elapsed) = waited.unwrap_or_else(PoisonError::into_inner);
                if elapsed.timed_out() {
                    return Err(Error::TimedOut {
                        device: self.device.clone(),
                        operation: "waiting for a stream".into(),
                        after: timeout,
                    });
                }
                state
            }
        };
        match &*state {
            Some(Some(failure)) => Err(failure.clone()),
            _ => Ok(()),
        }
    }
}
