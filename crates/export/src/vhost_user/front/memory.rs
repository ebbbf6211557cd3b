//! The memory that a front end shares: a memfd, as a virtual machine's.

use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use udm_files::ForeignMemory;

/// A memfd and where it stands for the guest's addresses.
pub struct SharedMemory {
    file: OwnedFd,
    map: ForeignMemory,
    guest: u64,
}

impl SharedMemory {
    /// `bytes` of zeroes at the address `guest` of the guest. `sealed`: nobody can cut them off.
    pub fn new(bytes: u64, guest: u64, sealed: bool) -> io::Result<Self> {
        let file = memfd_create("udm-front", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, bytes)?;
        if sealed {
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
        }
        let map = ForeignMemory::map(&file, 0, bytes)?;
        Ok(Self { file, map, guest })
    }

    /// Its file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        self.map.len() as u64
    }

    /// Whether it is empty; it never is.
    pub fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Where it begins for the guest.
    pub fn guest(&self) -> u64 {
        self.guest
    }

    /// Where it begins in this process, which vhost-user knows as the front end's addresses.
    pub(super) fn user(&self) -> u64 {
        self.map.as_ptr() as u64
    }

    /// The address in this process of `len` bytes at `offset`.
    ///
    /// # Panics
    /// When they do not lie within it.
    #[inline]
    pub(super) fn at(&self, offset: u64, len: u64) -> *mut u8 {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(fits, "{len} bytes at {offset} of {}", self.len());
        self.map.as_ptr().wrapping_add(offset as usize)
    }

    /// The guest's address of `at`, an address in this process.
    #[inline]
    pub(super) fn guest_of(&self, at: *const u8, len: usize) -> u64 {
        let offset = (at as u64).wrapping_sub(self.user());
        self.at(offset, len as u64);
        self.guest + offset
    }

    /// Copies `bytes` to `offset`. Panics as a slice when there is no room.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len() as u64);
        // SAFETY: within the mapping, checked by `at`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// The `len` bytes at `offset`. Panics as a slice when there are not as many.
    pub fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let from = self.at(offset, len as u64);
        let mut bytes = vec![0; len];
        // SAFETY: within the mapping, checked by `at`.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len) }
        bytes
    }
}
