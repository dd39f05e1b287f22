//! Threads that are kept for the next run.

use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
};

use evener_device::{affinity::unbound, thread_stack::thread_builder};

use super::SpinBudget;
use crate::sync::{lock, wait};

type Work = Box<dyn FnOnce() + Send>;

/// Threads for one device's lanes. A run takes as many as it needs, and each returns to the cache when its work ends. A
/// thread that a hung device blocks does not return, and no run waits for it. Idle threads exit when the cache is dropped.
#[derive(Debug, Clone)]
pub(crate) struct ThreadCache {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    /// What a new thread runs first, with its number.
    on_start: Box<dyn Fn(usize) + Send + Sync>,
    /// How long an idle thread spins before it parks.
    spin_budget: SpinBudget,
    idle: Mutex<Vec<Arc<CachedThread>>>,
    started: AtomicUsize,
}

/// A thread's mailbox for its next work.
#[derive(Default)]
struct CachedThread {
    next: Mutex<Option<Work>>,
    wake: Condvar,
    /// Whether `next` was set: a spinning thread reads it without the lock.
    has_work: AtomicBool,
}

impl CachedThread {
    fn assign(&self, work: Work) {
        *lock(&self.next) = Some(work);
        self.has_work.store(true, Release);
        self.wake.notify_one();
    }

    fn next_work(&self, spin_budget: SpinBudget) -> Work {
        // The next run often follows soon, and waking a parked thread takes far longer than a short run.
        let take = || self.has_work.swap(false, Acquire).then(|| lock(&self.next).take()).flatten();
        if let Some(work) = spin_budget.spin_until(take) {
            return work;
        }
        let mut next = lock(&self.next);
        loop {
            match next.take() {
                Some(work) => return work,
                None => next = wait(&self.wake, next),
            }
        }
    }
}

impl ThreadCache {
    pub(crate) fn new(
        name: String,
        spin_budget: SpinBudget,
        on_start: impl Fn(usize) + Send + Sync + 'static,
    ) -> Self {
        let (on_start, idle, started) = (Box::new(on_start), Mutex::default(), AtomicUsize::new(0));
        ThreadCache { inner: Arc::new(Inner { name, on_start, spin_budget, idle, started }) }
    }

    /// Runs `work` on an idle thread or a new one. Fails if the system gives no more threads.
    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let idle = lock(&self.inner.idle).pop();
        match idle {
            Some(thread) => thread.assign(Box::new(work)),
            None => unbound(|| self.start(Box::new(work)))?,
        }
        Ok(())
    }

    fn start(&self, work: Work) -> std::io::Result<()> {
        let number = self.inner.started.fetch_add(1, Relaxed);
        let thread = thread_builder(format!("evener-{}-{number}", self.inner.name));
        let inner = self.inner.clone();
        thread.spawn(move || {
            (inner.on_start)(number);
            // A busy thread does not keep the cache alive: dropping the cache must be able to end its idle threads.
            let cache = Arc::downgrade(&inner);
            drop(inner);
            serve(&cache, work);
        })?;
        Ok(())
    }
}

/// Runs work for the cache until the cache is dropped.
fn serve(cache: &Weak<Inner>, first: Work) {
    let thread = Arc::new(CachedThread::default());
    first();
    while let Some(inner) = cache.upgrade() {
        lock(&inner.idle).push(thread.clone());
        let spin_budget = inner.spin_budget;
        drop(inner);
        thread.next_work(spin_budget)();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for thread in lock(&self.idle).drain(..) {
            thread.assign(Box::new(|| ()));
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the threads of {}", self.name)
    }
}

#[cfg(test)]
mod test {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn threads_are_reused_and_exit_with_the_cache() {
        let alive = Arc::new(());
        let kept = alive.clone();
        let cache = ThreadCache::new("test".into(), SpinBudget::SHORT, move |_| drop(kept.clone()));
        let (sender, receiver) = channel();
        for _ in 0..20 {
            let sender = sender.clone();
            cache.spawn(move || sender.send(std::thread::current().id()).unwrap()).unwrap();
            receiver.recv().unwrap();
            // The thread becomes idle only after the work.
            while lock(&cache.inner.idle).is_empty() {
                std::thread::yield_now();
            }
        }
        assert_eq!(cache.inner.started.load(Relaxed), 1);
        let thread = lock(&cache.inner.idle)[0].clone();
        drop(cache);
        while Arc::strong_count(&thread) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
