//! Claims: block devices of the host that this program has for itself, as the kernel's device mapper has those beneath
//! it.
//!
//! The kernel lets one holder claim a block device: a mounted file system, a swap area, md, its own device mapper, or
//! whoever opens it with O_EXCL (`bd_prepare_to_claim`, `block/bdev.c`, 6.12). All its mapped devices are one holder
//! (`_dm_claim_ptr`, `drivers/md/dm.c`). Here a claim is a descriptor of its own, opened with O_EXCL, which all devices
//! on the same block device share; those that do I/O are opened without. So a claim passes to another process as its
//! descriptor, and goes with the process that dies, whatever the kernel still does for that one's rings.

use crate::error::{OpenError, OpenErrorKind};
use crate::holder;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::FileType;
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
        fd: Arc<OwnedFd>,
        users: usize,
    },
}

/// One user of a claim. The last one that is dropped gives the device back; that may block.
pub struct Claim {
    shared: Arc<Shared>,
    dev: DevT,
    /// `None` at its end only.
    fd: Option<Arc<OwnedFd>>,
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
                Some(State::Held { fd, users }) => {
                    *users += 1;
                    return Some(self.claim(dev, fd.clone()));
                }
                Some(State::Changing) => {
                    devices = self.0.changed.wait(devices).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn claim(&self, dev: DevT, fd: Arc<OwnedFd>) -> Claim {
        Claim { shared: self.0.clone(), dev, fd: Some(fd) }
    }

    /// The first user of a claim that the caller was to open.
    fn begin(&self, dev: DevT, fd: OwnedFd) -> Claim {
        let fd = Arc::new(fd);
        self.0.settle(dev, Some(State::Held { fd: fd.clone(), users: 1 }));
        self.claim(dev, fd)
    }

    /// Claims the block device `dev`, which `path` leads to. Blocks. An error names `spec`, and the holder where one is
    /// found.
    pub(crate) fn take(&self, path: &Path, dev: DevT, spec: &str) -> Result<Claim, OpenError> {
        if let Some(claim) = self.join(dev) {
            return Ok(claim);
        }
        let opened = holder::open_unclaimed(dev, spec, || holder::open_fd(path, false, true));
        let opened = opened.and_then(|(fd, _)| match number_of(&fd) {
            Ok(number) if number == dev => Ok(fd),
            _ => Err(OpenError::new(OpenErrorKind::WrongKind, spec, "was replaced while it was opened; try again")),
        });
        match opened {
            Ok(fd) => Ok(self.begin(dev, fd)),
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
        Ok(self.begin(dev, fd))
    }

    /// Descriptors for another process, which then shares every claim; it ends with the last of the two.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn share(&self) -> io::Result<Vec<OwnedFd>> {
        let devices = self.0.lock();
        let held =
            devices.values().filter_map(|state| if let State::Held { fd, .. } = state { Some(fd) } else { None });
        held.map(|fd| fd.try_clone()).collect()
    }
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it has not ended").as_fd()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.fd = None;
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
