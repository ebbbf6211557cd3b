//! Claims: block devices of the host that this program has for itself, as the kernel's device mapper has those beneath it.
//!
//! The kernel lets one holder claim a block device: a mounted file system, a swap area, md, its own device mapper, or
//! whoever opens it with O_EXCL (`bd_prepare_to_claim`, `block/bdev.c`, 6.12). All its mapped devices are one holder
//! (`_dm_claim_ptr`, `drivers/md/dm.c`). Here a claim is a descriptor of its own, opened with O_EXCL, which all devices on the
//! same block device share; those that do I/O are opened without. So a claim passes to another process as its descriptor,
//! and goes with the process that dies, whatever the kernel still does for that one's rings.

use super::holder;
use crate::open::{OpenError, OpenErrorKind};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use udm_base::DevT;

/// The claims of one holder. Clones are the same one.
#[derive(Clone, Default)]
pub struct Claims(Arc<Shared>);

#[derive(Default)]
struct Shared {
    devices: Mutex<BTreeMap<DevT, State>>,
    changed: Condvar,
}

enum State {
    /// Somebody opens or closes it, which may block: without the lock.
    Changing,
    Held {
        fd: OwnedFd,
        users: usize,
    },
}

/// One user of a claim. The last one that is dropped gives the device back; that may block.
pub struct Claim {
    shared: Arc<Shared>,
    dev: DevT,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<DevT, State>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, dev: DevT, state: Option<State>) {
        let mut devices = self.lock();
        match state {
            Some(state) => drop(devices.insert(dev, state)),
            None => drop(devices.remove(&dev)),
        }
        self.changed.notify_all();
    }
}

impl Claims {
    /// Another user of the claim on `dev`, if it is held; else the caller is to open it, and to settle.
    fn join(&self, dev: DevT) -> Option<Claim> {
        let mut devices = self.0.lock();
        loop {
            match devices.get_mut(&dev) {
                None => {
                    devices.insert(dev, State::Changing);
                    return None;
                }
                Some(State::Held { users, .. }) => {
                    *users += 1;
                    return Some(self.claim(dev));
                }
                Some(State::Changing) => {
                    devices = self.0.changed.wait(devices).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn claim(&self, dev: DevT) -> Claim {
        Claim { shared: self.0.clone(), dev }
    }

    /// Claims the block device `dev`, which `path` leads to. Blocks. An error names `spec`, and the holder where one is found.
    pub(super) fn take(&self, path: &Path, dev: DevT, spec: &str) -> Result<Claim, OpenError> {
        if let Some(claim) = self.join(dev) {
            return Ok(claim);
        }
        // To read: that is no reason to refuse a device that is read-only, and at the end nobody looks at it anew.
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let opened = holder::open_unclaimed(dev, spec, || rustix::fs::open(path, flags, Mode::empty()));
        let opened = opened.and_then(|fd| match number_of(&fd) {
            Ok(number) if number == dev => Ok(fd),
            _ => Err(OpenError::new(OpenErrorKind::WrongKind, spec, "was replaced while it was opened; try again")),
        });
        match opened {
            Ok(fd) => {
                self.0.settle(dev, Some(State::Held { fd, users: 1 }));
                Ok(self.claim(dev))
            }
            Err(error) => {
                self.0.settle(dev, None);
                Err(error)
            }
        }
    }

    /// A user of a claim that has come from another process.
    ///
    /// # Errors
    /// It is no block device.
    pub fn adopt(&self, fd: OwnedFd) -> io::Result<Claim> {
        let dev = number_of(&fd)?;
        if let Some(claim) = self.join(dev) {
            return Ok(claim);
        }
        self.0.settle(dev, Some(State::Held { fd, users: 1 }));
        Ok(self.claim(dev))
    }

    /// Descriptors for another process, which then shares every claim; it ends with the last of the two.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn share(&self) -> io::Result<Vec<OwnedFd>> {
        let devices = self.0.lock();
        let held =
            devices.values().filter_map(|state| if let State::Held { fd, .. } = state { Some(fd) } else { None });
        held.map(OwnedFd::try_clone).collect()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut devices = self.shared.lock();
        let Some(State::Held { users, .. }) = devices.get_mut(&self.dev) else {
            unreachable!("a claim with a user is held")
        };
        *users -= 1;
        if *users > 0 {
            return;
        }
        let last = devices.insert(self.dev, State::Changing);
        drop(devices);
        drop(last);
        self.shared.settle(self.dev, None);
    }
}

fn number_of(fd: impl AsFd) -> io::Result<DevT> {
    let stat = rustix::fs::fstat(fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => Ok(DevT::new(rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "only block devices are claimed")),
    }
}
