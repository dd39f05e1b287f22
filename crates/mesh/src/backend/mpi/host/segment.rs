//! Memory that processes of one host share.
//!
//! The memory has no name: the kernel frees it with the last process that maps it. Other processes open it through
//! `/proc` and the file descriptor of the process that created it.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    ptr::NonNull,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

/// Memory that processes of one host share, page-aligned and zeroed at first.
#[derive(Debug)]
pub(super) struct Segment {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory behind a raw pointer; the accesses in `slots` and `barrier` synchronize themselves.
unsafe impl Send for Segment {}
// SAFETY: as for `Send`.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a segment, and the file by which others open it.
    pub(super) fn make(bytes: usize) -> io::Result<(Segment, OwnedFd)> {
        let file = memfd_create("evener", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        // The file must not shrink: accessing memory past its end would be fatal.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Segment::map(&file, bytes)?, file))
    }

    /// Opens the segment that another process has created and holds open as file descriptor `number`.
    pub(super) fn open(process: u32, number: u32, bytes: usize) -> io::Result<Segment> {
        // If the process has ended, its id may be another's: opening that file must do no harm.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = format!("/proc/{process}/fd/{number}");
        let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) || file.metadata()?.len() != bytes as u64 {
            return Err(io::Error::other("not the file of the segment"));
        }
        Segment::map(&file, bytes)
    }

    fn map(file: impl AsFd, bytes: usize) -> io::Result<Segment> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no mapping in use is replaced.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Segment { start, bytes })
    }

    /// Returns the address of an offset, which must be within the segment.
    #[inline]
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.bytes, "past the end of a segment");
        // SAFETY: `slots` computes offsets within its layout, whose size is that of the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no reference outlives the segment: all borrow it.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod test {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_segment_is_shared_and_other_files_are_refused() {
        let (made, file) = Segment::make(1 << 16).unwrap();
        let (me, number) = (std::process::id(), file.as_raw_fd() as u32);
        let opened = Segment::open(me, number, 1 << 16).unwrap();
        // SAFETY: the address is within both segments, and no other thread accesses them.
        let read = unsafe {
            made.at(4096).write(7);
            opened.at(4096).read()
        };
        assert_eq!(read, 7);
        Segment::open(me, number, 1 << 15).unwrap_err();
        let other = tempfile::tempfile().unwrap();
        other.set_len(1 << 16).unwrap();
        Segment::open(me, other.as_raw_fd() as u32, 1 << 16).unwrap_err();
        drop(file);
        Segment::open(me, number, 1 << 16).unwrap_err();
    }
}
