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

use evener_device::affinity::unbound;

use super::Patience;
use crate::sync::{lock, wait};

type Work = Box<dyn FnOnce() + Send>;

/// Threads for one device's lanes. A run takes as many as it needs and they come back by themselves; one that a
/// device holds on to does not, and is not waited for. They end with the crew.
#[derive(Debug, Clone)]
pub(crate) struct Crew {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    /// What a new thread does first, told its number.
    begin: Box<dyn Fn(usize) + Send + Sync>,
    /// How long a thread looks whether there is something to do before it sleeps.
    patience: Patience,
    idle: Mutex<Vec<Arc<Worker>>>,
    started: AtomicUsize,
}

/// One thread, and what it is to do next.
#[derive(Default)]
struct Worker {
    next: Mutex<Option<Work>>,
    told: Condvar,
    /// Something was put there: to be looked at without the lock.
    is_told: AtomicBool,
}

impl Worker {
    fn tell(&self, work: Work) {
        *lock(&self.next) = Some(work);
        self.is_told.store(true, Release);
        self.told.notify_one();
    }

    fn listen(&self, patience: Patience) -> Work {
        // The next run often follows soon, and waking up takes far longer than a short run.
        let told = || self.is_told.swap(false, Acquire).then(|| lock(&self.next).take()).flatten();
        if let Some(work) = patience.wait(told) {
            return work;
        }
        let mut next = lock(&self.next);
        loop {
            match next.take() {
                Some(work) => return work,
                None => next = wait(&self.told, next),
            }
        }
    }
}

impl Crew {
    pub(crate) fn new(
        name: String,
        patience: Patience,
        begin: impl Fn(usize) + Send + Sync + 'static,
    ) -> Self {
        let (begin, idle, started) = (Box::new(begin), Mutex::default(), AtomicUsize::new(0));
        Crew { inner: Arc::new(Inner { name, begin, patience, idle, started }) }
    }

    /// Has a thread do this. Fails where the system gives no more threads.
    pub(crate) fn go(&self, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let idle = lock(&self.inner.idle).pop();
        match idle {
            Some(worker) => worker.tell(Box::new(work)),
            None => unbound(|| self.start(Box::new(work)))?,
        }
        Ok(())
    }

    fn start(&self, work: Work) -> std::io::Result<()> {
        let number = self.inner.started.fetch_add(1, Relaxed);
        let thread = std::thread::Builder::new().name(format!("evener-{}-{number}", self.inner.name));
        let inner = self.inner.clone();
        thread.spawn(move || {
            (inner.begin)(number);
            // Only a thread that is at work for nobody may be ended by the crew's end.
            let crew = Arc::downgrade(&inner);
            drop(inner);
            stay(&crew, work);
        })?;
        Ok(())
    }
}

/// Works for the crew until it is gone.
fn stay(crew: &Weak<Inner>, first: Work) {
    let worker = Arc::new(Worker::default());
    first();
    while let Some(inner) = crew.upgrade() {
        lock(&inner.idle).push(worker.clone());
        let patience = inner.patience;
        drop(inner);
        worker.listen(patience)();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for worker in lock(&self.idle).drain(..) {
            worker.tell(Box::new(|| ()));
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the crew of {}", self.name)
    }
}

#[cfg(test)]
mod test {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn threads_are_kept_for_the_next_work_and_end_with_the_crew() {
        let alive = Arc::new(());
        let kept = alive.clone();
        let crew = Crew::new("test".into(), Patience::SHORT, move |_| drop(kept.clone()));
        let (sender, receiver) = channel();
        for _ in 0..20 {
            let sender = sender.clone();
            crew.go(move || sender.send(std::thread::current().id()).unwrap()).unwrap();
            receiver.recv().unwrap();
            // The thread says that it is idle only after the work.
            while lock(&crew.inner.idle).is_empty() {
                std::thread::yield_now();
            }
        }
        assert_eq!(crew.inner.started.load(Relaxed), 1);
        let worker = lock(&crew.inner.idle)[0].clone();
        drop(crew);
        while Arc::strong_count(&worker) > 1 {
            std::thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&alive), 1);
    }
}
