//! A page in memory: a mapped file, or memory of this process only. Only this file touches mapped memory.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::libc::c_void;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use model::metrics::{BYTES, BYTES_1, Page, WORDS};

/// The words of a page.
#[derive(Debug)]
pub(super) enum PageMemory {
    /// A mapped file that this process shares with the other processes that map it, and its number of words.
    Shared(NonNull<c_void>, usize),
    /// Memory of this process only.
    Own(Box<[AtomicU64]>),
}

// SAFETY: the memory is only accessed as atomics, from any thread, until the mapping is dropped.
unsafe impl Send for PageMemory {}
// SAFETY: for the same reason as `Send`.
unsafe impl Sync for PageMemory {}

impl PageMemory {
    /// Maps a file that has the length of a page. A page of version 1 is shorter, and is only read.
    pub(super) fn shared(file: &File, is_written: bool) -> io::Result<PageMemory> {
        let length = file.metadata()?.len() as usize;
        if length != BYTES && (is_written || length != BYTES_1) {
            return Err(io::Error::other(format!("it has {length} bytes instead of {BYTES}")));
        }
        let bytes = NonZeroUsize::new(length).expect("a page has words");
        let write = if is_written { ProtFlags::PROT_WRITE } else { ProtFlags::empty() };
        // SAFETY: the kernel chooses the address, so no other memory of this process is at this address.
        let start =
            unsafe { mmap(None, bytes, ProtFlags::PROT_READ | write, MapFlags::MAP_SHARED, file, 0)? };
        Ok(PageMemory::Shared(start, length / 8))
    }

    /// Makes a page that only this process sees. The page ends with the process.
    pub(super) fn own() -> PageMemory {
        PageMemory::Own((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn page(&self) -> Page<'_> {
        let words = match self {
            // SAFETY: this number of words is mapped, from the beginning of a memory page, until the mapping is
            // dropped. The reference cannot outlive the mapping. Other processes change the bytes too, and they also
            // use 64-bit atomics. A read-only mapping is only read (`read`). dq never cuts the file short. If another
            // program cuts the file short, the kernel kills this process (SIGBUS).
            PageMemory::Shared(start, length) => unsafe {
                std::slice::from_raw_parts(start.as_ptr().cast(), *length)
            },
            PageMemory::Own(words) => words,
        };
        Page::new(words).expect("a mapping has the length of a page")
    }
}

impl Drop for PageMemory {
    fn drop(&mut self) {
        if let PageMemory::Shared(start, length) = self {
            // SAFETY: the memory was mapped with this length, and no reference to the memory outlives the mapping.
            let _ = unsafe { munmap(*start, *length * 8) };
        }
    }
}
