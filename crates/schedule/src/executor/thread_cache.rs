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
///
/// The threads of a processor's partition are bound to its cores, each to one. A thread is bound when it gets work, so that
/// the workers of a run or queue are on different cores, whichever threads were idle.
#[derive(Debug, Clone)]
pub(crate) struct ThreadCache {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    /// Number of cores that threads are bound to; 1 if they are not bound.
    cores: usize,
    /// Binds the calling thread to the core with this index.
    bind: Box<dyn Fn(usize) + Send + Sync>,
    /// How long an idle thread spins before it parks.
    spin_budget: SpinBudget,
    threads: Mutex<Threads>,
    started: AtomicUsize,
}

#[derive(Default)]
struct Threads {
    /// The core of each idle thread, and its mailbox.
    idle: Vec<(usize, Arc<CachedThread>)>,
    /// The place of each busy thread. Empty if there is one core only.
    busy: Vec<Place>,
}

/// Where work runs, and for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    core: usize,
    /// The run or queue.
    owner: usize,
}

impl Threads {
    /// The core for more work of an owner: one with the fewest threads of that owner, and of those one with the fewest busy
    /// threads.
    fn choose_core(&self, cores: usize, owner: usize) -> usize {
        let count = |core: usize| {
            let here = self.busy.iter().filter(|place| place.core == core);
            let (mut own, mut all) = (0, 0);
            here.for_each(|place| (own, all) = (own + usize::from(place.owner == owner), all + 1));
            (own, all)
        };
        if cores > 1 { (0..cores).min_by_key(|&core| count(core)).unwrap_or_default() } else { 0 }
    }

    /// Takes the idle thread that was busy last, if possible one that is bound to this core.
    fn take_idle(&mut self, core: usize) -> Option<Arc<CachedThread>> {
        match self.idle.iter().rposition(|(bound, _)| *bound == core) {
            Some(index) => Some(self.idle.remove(index).1),
            None => Some(self.idle.pop()?.1),
        }
    }

    fn remove_busy(&mut self, place: Place) {
        if let Some(index) = self.busy.iter().position(|it| *it == place) {
            self.busy.swap_remove(index);
        }
    }
}

/// A thread's mailbox for its next work.
#[derive(Default)]
struct CachedThread {
    next: Mutex<Option<(Place, Work)>>,
    wake: Condvar,
    /// Whether `next` was set: a spinning thread reads it without the lock.
    has_work: AtomicBool,
}

impl CachedThread {
    fn assign(&self, place: Place, work: Work) {
        *lock(&self.next) = Some((place, work));
        self.has_work.store(true, Release);
        self.wake.notify_one();
    }

    fn next_work(&self, spin_budget: SpinBudget) -> (Place, Work) {
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

/// Returns a number that no other run or queue has.
pub(crate) fn next_owner() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Relaxed)
}

impl ThreadCache {
    /// Creates a cache of threads that `bind` binds to one of so many cores.
    pub(crate) fn new(
        name: String,
        spin_budget: SpinBudget,
        cores: usize,
        bind: impl Fn(usize) + Send + Sync + 'static,
    ) -> Self {
        let (bind, threads, started) = (Box::new(bind), Mutex::default(), AtomicUsize::new(0));
        ThreadCache { inner: Arc::new(Inner { name, cores, bind, spin_budget, threads, started }) }
    }

    /// Runs `work` on an idle thread or a new one. Fails if the system gives no more threads. `owner` tells the runs and
    /// queues apart: work of one owner is spread over the cores.
    pub(crate) fn spawn(&self, owner: usize, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let mut threads = lock(&self.inner.threads);
        let place = Place { core: threads.choose_core(self.inner.cores, owner), owner };
        if self.inner.cores > 1 {
            threads.busy.push(place);
        }
        let idle = threads.take_idle(place.core);
        drop(threads);
        match idle {
            Some(thread) => thread.assign(place, Box::new(work)),
            None => unbound(|| self.start(place, Box::new(work)))
                .inspect_err(|_| lock(&self.inner.threads).remove_busy(place))?,
        }
        Ok(())
    }

    fn start(&self, place: Place, work: Work) -> std::io::Result<()> {
        let number = self.inner.started.fetch_add(1, Relaxed);
        let thread = thread_builder(format!("evener-{}-{number}", self.inner.name));
        let inner = self.inner.clone();
        thread.spawn(move || {
            (inner.bind)(place.core);
            // A busy thread does not keep the cache alive: dropping the cache must be able to end its idle threads.
            let cache = Arc::downgrade(&inner);
            drop(inner);
            serve(&cache, place, work);
        })?;
        Ok(())
    }
}

/// Runs work for the cache until the cache is dropped.
fn serve(cache: &Weak<Inner>, mut place: Place, first: Work) {
    let thread = Arc::new(CachedThread::default());
    first();
    while let Some(inner) = cache.upgrade() {
        let mut threads = lock(&inner.threads);
        threads.remove_busy(place);
        threads.idle.push((place.core, thread.clone()));
        drop(threads);
        let spin_budget = inner.spin_budget;
        drop(inner);
        let (next, work) = thread.next_work(spin_budget);
        if next.core != place.core
            && let Some(inner) = cache.upgrade()
        {
            (inner.bind)(next.core);
        }
        place = next;
        work();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for (core, thread) in lock(&self.threads).idle.drain(..) {
            thread.assign(Place { core, owner: 0 }, Box::new(|| ()));
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
    use std::{
        cell::Cell,
        sync::mpsc::{Receiver, Sender, channel},
    };

    use super::*;

    #[test]
    fn threads_are_reused_and_exit_with_the_cache() {
        let alive = Arc::new(());
        let kept = alive.clone();
        let cache = ThreadCache::new("test".into(), SpinBudget::SHORT, 1, move |_| drop(kept.clone()));
        let (sender, receiver) = channel();
        for _ in 0..20 {
            let sender = sender.clone();
            cache.spawn(0, move || sender.send(std::thread::current().id()).unwrap()).unwrap();
            receiver.recv().unwrap();
            wait_until_idle(&cache, 1);
        }
        assert_eq!(cache.inner.started.load(Relaxed), 1);
        let thread = lock(&cache.inner.threads).idle[0].1.clone();
        drop(cache);
        while Arc::strong_count(&thread) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    /// Waits until so many threads are idle: a thread becomes idle only after its work.
    fn wait_until_idle(cache: &ThreadCache, count: usize) {
        while lock(&cache.inner.threads).idle.len() < count {
            std::thread::yield_now();
        }
    }

    thread_local! {
        static CORE: Cell<Option<usize>> = const { Cell::new(None) };
    }

    /// Work that reports its thread's core, and ends when its sender is dropped.
    fn start(cache: &ThreadCache, owner: usize) -> (usize, Sender<()>) {
        let (core, cores) = channel();
        let (end, ended): (Sender<()>, Receiver<()>) = channel();
        let work = move || {
            core.send(CORE.get().unwrap()).unwrap();
            let _ = ended.recv();
        };
        cache.spawn(owner, work).unwrap();
        (cores.recv().unwrap(), end)
    }

    #[test]
    fn the_workers_of_a_run_are_on_different_cores_whichever_threads_are_idle() {
        let cache = ThreadCache::new("test".into(), SpinBudget::SHORT, 2, |core| CORE.set(Some(core)));
        // The second run begins while a thread of the first is busy.
        let (first, second) = (start(&cache, 1), start(&cache, 1));
        assert_eq!((first.0, second.0), (0, 1));
        drop(second);
        wait_until_idle(&cache, 1);
        let (third, fourth) = (start(&cache, 2), start(&cache, 2));
        assert_eq!((third.0, fourth.0), (1, 0));
        drop(fourth);
        wait_until_idle(&cache, 1);
        drop((first, third));
        wait_until_idle(&cache, 3);
        // Two of the three idle threads were bound to one core.
        let (fifth, sixth) = (start(&cache, 3), start(&cache, 3));
        assert_ne!(fifth.0, sixth.0);
        // Another run with a single worker is where fewer threads are busy.
        drop(fifth);
        wait_until_idle(&cache, 2);
        assert_ne!(start(&cache, 4).0, sixth.0);
        assert_eq!(cache.inner.started.load(Relaxed), 3, "idle threads are bound again");
    }
}
