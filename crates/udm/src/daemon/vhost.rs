//! Devices exported as disks of virtual machines, when asked.

use super::handover::{HandOver, Parcel};
use crate::exports::MappedExports;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use udm_base::Errno;
use udm_control::second::{ExportEntry, VhostUserExport};
use udm_core::{Error, Registry};
use udm_export::vhost_user::Server;

/// One device on one socket.
struct Exported {
    name: String,
    /// As it was asked for, so that the next daemon chooses what was not said anew.
    at: VhostUserExport,
    server: Server,
}

/// All of them.
#[derive(Default)]
pub(crate) struct VhostExports {
    all: Mutex<Vec<Exported>>,
    /// Those that have ended for another daemon to go on.
    ended: Mutex<Vec<(String, VhostUserExport)>>,
}

impl VhostExports {
    fn lock(&self) -> MutexGuard<'_, Vec<Exported>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to serve the device. Blocks until it listens.
    pub(crate) fn add(&self, registry: &Registry, name: &str, at: &VhostUserExport) -> Result<ExportEntry, Error> {
        if registry.by_name(name).is_none() {
            return Err(Error::new(Errno::ENXIO, format!("no device has the name {name:?}")));
        }
        let path = Path::new(&at.socket);
        if !path.is_absolute() {
            let message = format!("{:?}: expected a path from the root on", at.socket);
            return Err(Error::new(Errno::EINVAL, message));
        }
        let mode = at.mode.as_deref().map(str::parse).transpose().map_err(|e: String| Error::new(Errno::EINVAL, e))?;
        let mut builder = Server::builder(path);
        if let Some(queues) = at.queues {
            builder = builder.queues(queues);
        }
        if let Some(entries) = at.queue_size {
            builder = builder.queue_size(entries);
        }
        if let Some(mode) = mode {
            builder = builder.mode(mode);
        }
        let exports = Arc::new(MappedExports::only(registry, name));
        let server = builder.start(registry.domain(), exports, name);
        let server = server.map_err(|e| Error::new(Errno::of(&e), e.to_string()))?;
        let exported = Exported { name: name.to_owned(), at: at.clone(), server };
        let entry = exported.entry();
        self.lock().push(exported);
        Ok(entry)
    }

    /// Ends those of a device, on one socket or at all; returns how many there were. Blocks until their front ends' requests are done,
    /// some seconds at most.
    pub(crate) fn remove(&self, name: &str, socket: Option<&str>) -> usize {
        let chosen = |e: &Exported| e.name == name && socket.is_none_or(|socket| socket == e.at.socket);
        let gone: Vec<_> = self.lock().extract_if(.., |e| chosen(e)).collect();
        gone.iter().for_each(|e| e.server.shut_down(Duration::from_secs(5)));
        gone.len()
    }

    pub(crate) fn list(&self) -> Vec<ExportEntry> {
        self.lock().iter().map(Exported::entry).collect()
    }

    /// What it takes to make them again: names, and how they are served.
    pub(crate) fn described(&self) -> Vec<(String, VhostUserExport)> {
        self.lock().iter().map(|e| (e.name.clone(), e.at.clone())).collect()
    }

    pub(crate) fn reap_hangups(&self) {
        self.lock().iter().for_each(|e| {
            e.server.reap_hangups();
        });
    }

    /// Ends all.
    pub(crate) fn shut_down(&self, patience: Duration) {
        for exported in std::mem::take(&mut *self.lock()) {
            exported.server.shut_down(patience);
        }
    }
}

/// Front ends connect again by themselves, and find their requests in the memory that is in flight: nothing passes but what
/// the state says.
impl HandOver for VhostExports {
    fn kind(&self) -> &'static str {
        "vhost-user"
    }

    fn pause(&self, patience: Duration) -> Result<(), String> {
        let described = self.described();
        self.shut_down(patience);
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = described;
        Ok(())
    }

    fn holds(&self) -> Vec<String> {
        Vec::new()
    }

    fn resume(&self, registry: &Registry) {
        for (name, at) in std::mem::take(&mut *self.ended.lock().unwrap_or_else(PoisonError::into_inner)) {
            if let Err(e) = self.add(registry, &name, &at) {
                tracing::error!("{name} is not exported on {} again: {}", at.socket, e.message);
            }
        }
    }

    fn give(&self) -> Result<Vec<Parcel>, String> {
        Ok(Vec::new())
    }
}

impl Exported {
    fn entry(&self) -> ExportEntry {
        let address = self.at.socket.clone();
        let uri = format!("vhost-user:{address}");
        ExportEntry { name: self.name.clone(), transport: "vhost-user".into(), address, uri }
    }
}
