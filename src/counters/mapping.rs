//! A page in memory: a file that is mapped, or memory of this process alone. The only place that touches mapped memory.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use nix::libc::c_void;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::metrics::{BYTES, Page, WORDS};

/// The words of a page.
#[derive(Debug)]
pub(super) enum Mapping {
    /// A file's, shared with whoever else maps it.
    Shared(NonNull<c_void>),
    /// Nobody else's.
    Own(Box<[AtomicU64]>),
}

// SAFETY: what it points to is only ever accessed as atomics, from any thread, until it is dropped.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file that has the length of a page.
    pub(super) fn shared(file: &File, is_written: bool) -> io::Result<Mapping> {
        let length = file.metadata()?.len();
        if length != BYTES as u64 {
            return Err(io::Error::other(format!("it has {length} bytes, and not {BYTES}")));
        }
        let bytes = NonZeroUsize::new(BYTES).expect("a page has words");
        let write = if is_written { ProtFlags::PROT_WRITE } else { ProtFlags::empty() };
        // SAFETY: the kernel chooses the place, so that nothing else of this process lies there.
        let start =
            unsafe { mmap(None, bytes, ProtFlags::PROT_READ | write, MapFlags::MAP_SHARED, file, 0)? };
        Ok(Mapping::Shared(start))
    }

    /// Memory that only this process sees, and that ends with it.
    pub(super) fn own() -> Mapping {
        Mapping::Own((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    pub(super) fn page(&self) -> Page<'_> {
        let words = match self {
            // SAFETY: so many bytes are mapped, at the beginning of a memory page, until this is dropped, which the lifetime
            // outlives; other processes change them, and so do they as atomics of 64 bits. A mapping that may only be read
            // is only read (`read`). Nobody cuts the file: dq never does, and who else does stops the process.
            Mapping::Shared(start) => unsafe { std::slice::from_raw_parts(start.as_ptr().cast(), WORDS) },
            Mapping::Own(words) => words,
        };
        Page::of(words).expect("a mapping has the length of a page")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Mapping::Shared(start) = self {
            // SAFETY: it was mapped with this length, and no reference to it outlives this.
            let _ = unsafe { munmap(*start, BYTES) };
        }
    }
}
