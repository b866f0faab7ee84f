//! The contents of another process's pages, copied a few at a time.

use std::io::{self, IoSliceMut};

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::pages::Page;

/// Pages copied at once: 256 KiB, which stay in a processor's cache until they have been looked at.
pub const AT_ONCE: usize = 64;

/// Copies pages of one process.
#[derive(Debug)]
pub struct Memory {
    pid: Pid,
    page: usize,
    buffer: Vec<u8>,
}

impl Memory {
    /// The memory of the process `pid`, with pages of `page` bytes.
    pub fn of(pid: u32, page: usize) -> Self {
        Self {
            pid: Pid::from_raw(i32::try_from(pid).unwrap_or(i32::MAX)),
            page,
            buffer: vec![0; page * AT_ONCE],
        }
    }

    /// Calls `each` with all `pages` and their contents. Pages that have gone meanwhile are left out.
    ///
    /// # Errors
    /// If the process is gone, or this user may not read its memory.
    pub fn read(&mut self, pages: &[Page], mut each: impl FnMut(Page, &[u8])) -> io::Result<()> {
        let mut left = pages;
        while !left.is_empty() {
            let some = left.split_at(left.len().min(AT_ONCE)).0;
            let buffer = self.buffer.get_mut(..some.len() * self.page).unwrap_or_default();
            let got =
                match process_vm_readv(self.pid, &mut [IoSliceMut::new(buffer)], &ranges(some, self.page)) {
                    Ok(got) => got / self.page,
                    Err(Errno::EFAULT) => 0,
                    Err(errno) => return Err(errno.into()),
                };
            for (page, content) in some.iter().zip(self.buffer.chunks_exact(self.page)).take(got) {
                each(*page, content);
            }
            // If nothing was read, the first page has gone.
            left = left.split_at(got.clamp(1, some.len())).1;
        }
        Ok(())
    }
}

/// The pages as ranges of addresses.
fn ranges(pages: &[Page], page: usize) -> Vec<RemoteIoVec> {
    let mut ranges: Vec<RemoteIoVec> = Vec::new();
    for at in pages {
        let base = usize::try_from(at.address).unwrap_or(usize::MAX);
        match ranges.last_mut() {
            Some(last) if last.base + last.len == base => last.len += page,
            _ => ranges.push(RemoteIoVec { base, len: page }),
        }
    }
    ranges
}
