//! The claims of a worker process on the items of its chunk, in memory that it shares with the process that drives it.
#![allow(unsafe_code)]

use std::{
    io,
    ptr::NonNull,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use evener_schedule::decide;
use pyo3::{exceptions::PyValueError, prelude::*};

/// What a worker process and its driver share: all fields are atomic, and all bits zero is a value.
#[repr(C)]
struct Page {
    claims: decide::Claims,
    /// The item that the worker runs, counted from the chunk's first.
    current: AtomicU64,
    /// When the worker began that item: nanoseconds of the system's monotonic clock.
    began: AtomicU64,
}

/// A mapping of the page. Freed when the last clone is dropped.
struct Mapping(NonNull<Page>);

// SAFETY: the page is used through atomics only, and the mapping belongs to no thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the beginning of a file. The file must never become shorter: its maker seals it, or gives it no name.
    fn new(file: i32) -> io::Result<Mapping> {
        // SAFETY: `fstat` writes a `stat`, for which zeros are a value.
        let size = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            match libc::fstat(file, &mut status) {
                0 => status.st_size,
                _ => return Err(io::Error::last_os_error()),
            }
        };
        if (size as u64) < size_of::<Page>() as u64 {
            return Err(io::Error::other(format!("the shared file has {size} bytes, too few for claims")));
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping touches no other memory. It is as long as a `Page`, which the file is too.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Page>(), protection, flags, file, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast()).map(Mapping).ok_or_else(|| io::Error::other("mapped at address zero"))
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping is as long as a `Page`, aligned to a page of memory, and valid until `self` is dropped. Other
        // processes may write anything into it at any time: every field is atomic, and every bit pattern is a value.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length, and no reference to the page outlives `self`.
        unsafe { libc::munmap(self.0.as_ptr().cast(), size_of::<Page>()) };
    }
}

/// Nanoseconds of the monotonic clock, which all processes of a machine share.
fn now() -> u64 {
    static START: OnceLock<(Instant, u64)> = OnceLock::new();
    let (instant, nanoseconds) = START.get_or_init(|| {
        // SAFETY: `clock_gettime` writes a `timespec`, for which zeros are a value.
        let time = unsafe {
            let mut time: libc::timespec = std::mem::zeroed();
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time);
            time
        };
        (Instant::now(), time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    });
    nanoseconds + instant.elapsed().as_nanos() as u64
}

/// Which items of its chunk a worker process has begun. The worker claims items from the front before it begins them, and the
/// driver steals from the end, for other workers.
#[pyclass(frozen, module = "evener._evener")]
pub(crate) struct Claims(Arc<Mapping>);

impl Claims {
    pub(crate) fn shared(&self) -> SharedClaims {
        SharedClaims(self.0.clone())
    }
}

/// The driver's view of a worker's claims.
pub(crate) struct SharedClaims(Arc<Mapping>);

impl SharedClaims {
    pub(crate) fn claims(&self) -> &decide::Claims {
        &self.0.page().claims
    }

    /// Begins a chunk of this many items, while the worker has none.
    pub(crate) fn begin(&self, items: u64) {
        let page = self.0.page();
        page.claims.reset();
        page.current.store(0, Ordering::SeqCst);
        page.began.store(0, Ordering::SeqCst);
        page.claims.begin(items);
    }
}

#[pymethods]
impl Claims {
    /// Maps the claims in a shared file of at least 4,096 bytes, all zero at first.
    #[new]
    fn new(file: i32) -> PyResult<Claims> {
        let mapping = Mapping::new(file)
            .map_err(|error| PyValueError::new_err(format!("cannot map the claims of a worker: {error}")))?;
        Ok(Claims(Arc::new(mapping)))
    }

    /// Claims the next items, at most `most`. Returns the first and the end, counted from the chunk's first item, or `None`
    /// at the chunk's end.
    fn claim(&self, most: u32) -> Option<(u32, u32)> {
        let page = self.0.page();
        let block = page.claims.claim(most, 1)?;
        page.current.store(u64::from(block.start), Ordering::Relaxed);
        page.began.store(now(), Ordering::Relaxed);
        Some((block.start, block.end))
    }

    /// Gives back the claimed items from this one on.
    fn unclaim(&self, item: u32) {
        self.0.page().claims.unclaim(item);
    }

    /// Notes that the worker begins this item. Returns whether it is asked to give back items or to stop instead.
    fn begin_item(&self, item: u64) -> bool {
        let page = self.0.page();
        page.current.store(item, Ordering::Relaxed);
        page.began.store(now(), Ordering::Relaxed);
        page.claims.is_interrupted()
    }

    /// The number of items that are claimed.
    fn claimed(&self) -> u32 {
        self.0.page().claims.claimed()
    }

    /// The item that the worker runs, or ran last.
    fn current(&self) -> u64 {
        self.0.page().current.load(Ordering::Relaxed)
    }

    /// Seconds since the worker began that item. `None` if it has begun none.
    fn current_seconds(&self) -> Option<f64> {
        let began = self.0.page().began.load(Ordering::Relaxed);
        (began > 0).then(|| now().saturating_sub(began) as f64 * 1e-9)
    }

    /// Begins a chunk of this many items, while the worker has none.
    fn begin(&self, items: u64) {
        self.shared().begin(items);
    }

    /// Takes all items that the worker has not claimed, except the chunk's first. Returns where they begin. If there are none,
    /// asks the worker to end its chunk after its present item.
    fn take_rest(&self) -> Option<u32> {
        self.0.page().claims.steal(1.0, u64::MAX, 1).map(|taken| taken.start)
    }

    /// Whether the worker is asked to give back items, or to stop.
    fn is_interrupted(&self) -> bool {
        self.0.page().claims.is_interrupted()
    }

    /// The end of the chunk, counted from its first item: less than it began with if items were taken.
    fn end(&self) -> u32 {
        self.0.page().claims.end()
    }

    /// Asks the worker to end its chunk after its present item.
    fn end_run(&self) {
        self.0.page().claims.end_run();
    }
}

#[cfg(test)]
mod test {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn two_mappings_of_a_file_share_the_claims() {
        let file = tempfile::tempfile().unwrap();
        assert!(Claims::new(file.as_raw_fd()).is_err(), "the file is empty");
        file.set_len(4096).unwrap();
        let worker = Claims::new(file.as_raw_fd()).unwrap();
        let driver = Claims::new(file.as_raw_fd()).unwrap().shared();
        assert_eq!(worker.current_seconds(), None);
        driver.begin(10);
        assert_eq!(worker.claim(2), Some((0, 2)));
        assert!(!worker.begin_item(1));
        assert_eq!(driver.claims().steal(0.5, 100, 1), Some(6..10));
        assert_eq!(worker.claim(100), Some((2, 6)));
        assert_eq!((worker.claim(1), worker.current()), (None, 2));
        assert!(worker.current_seconds().is_some_and(|seconds| seconds < 10.0));
        driver.claims().end_run();
        driver.begin(3);
        assert_eq!(worker.claim(9), Some((0, 3)), "a new chunk forgets the end of an earlier run");
    }
}
