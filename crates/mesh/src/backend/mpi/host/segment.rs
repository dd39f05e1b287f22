//! Memory that processes of one host share.
//!
//! It has no name: the kernel frees it with the last process that has it, however that ends. Others get it through the
//! open files of the process that made it.

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

/// Memory that processes of one host share. It begins at a page, and is all zeros at first.
#[derive(Debug)]
pub(super) struct Segment {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only memory; whoever reads and writes it says why that is sound.
unsafe impl Send for Segment {}
// SAFETY: the same.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes one, and the file by which others open it.
    pub(super) fn make(bytes: usize) -> io::Result<(Segment, OwnedFd)> {
        let file = memfd_create("evener", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes as u64)?;
        // What is past the end of a file cannot be touched: it is never to become shorter.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Segment::map(&file, bytes)?, file))
    }

    /// Opens the one that another process has made and holds open by this number.
    pub(super) fn open(process: u32, number: u32, bytes: usize) -> io::Result<Segment> {
        // Should the process have ended meanwhile, its number may be another's: what is opened then must do no harm.
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let path = format!("/proc/{process}/fd/{number}");
        let file = File::options().read(true).write(true).custom_flags(flags).open(path)?;
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) || file.metadata()?.len() != bytes as u64 {
            return Err(io::Error::other("another file"));
        }
        Segment::map(&file, bytes)
    }

    fn map(file: impl AsFd, bytes: usize) -> io::Result<Segment> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: at no particular address, so over nothing that is in use.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at nothing"))?;
        Ok(Segment { start, bytes })
    }

    /// Where a part of it is, which must lie in it.
    #[inline]
    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset < self.bytes, "past the end of a segment");
        // SAFETY: within what is mapped, as whoever laid it out promises.
        unsafe { self.start.as_ptr().add(offset) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped here, and nobody has a pointer into it any more.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod test {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn what_one_writes_another_reads_and_nothing_else_can_be_opened() {
        let (made, file) = Segment::make(1 << 16).unwrap();
        let (me, number) = (std::process::id(), file.as_raw_fd() as u32);
        let opened = Segment::open(me, number, 1 << 16).unwrap();
        // SAFETY: within both, and nobody else has them.
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
