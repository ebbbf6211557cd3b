//! The devices of a concise specification, to be measured.

use crate::{Error, Subject};
use std::path::Path;
use std::sync::Arc;
use udm_core::MappedDevice;
use udm_io::Domain;
use udm_stack::StackError;

/// A change to how a device serves its bios (`udm set`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Setting {
    /// Always clone, never remap.
    CloneAlways(bool),
    /// Lead plans through this device and down from it in one step.
    Compile(bool),
    /// Bios may be polled for, where every device beneath can be.
    IoPoll(bool),
}

/// Mapped devices of their own registry.
pub struct Stack(udm_stack::Stack);

impl Stack {
    /// Makes every device of `concise` and makes it live. May block: it opens devices.
    pub fn new(domain: &Domain, concise: &str) -> Result<Self, Error> {
        udm_stack::Stack::new(domain, concise).map(Self).map_err(refused)
    }

    /// Whether it has a device of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.has(name)
    }

    /// The device of that name.
    pub fn device(&self, name: &str) -> Result<Arc<MappedDevice>, Error> {
        self.0.device(name).map_err(refused)
    }

    /// The device of that name, to be measured.
    pub fn subject(&self, name: &str) -> Result<Subject, Error> {
        let md = self.device(name)?;
        Ok(Subject::device(name, md))
    }

    /// Changes how a device serves its bios.
    pub fn set(&self, name: &str, setting: Setting) -> Result<(), Error> {
        let md = self.device(name)?;
        match setting {
            Setting::CloneAlways(on) => md.set_clone_always(on),
            Setting::Compile(on) => md.set_compile(on),
            Setting::IoPoll(on) => md.set_io_poll(on).map_err(|e| Error::Stack(e.message))?,
        }
        Ok(())
    }
}

/// A file's path as a concise specification takes it.
pub fn in_concise(path: &Path) -> Result<String, Error> {
    // A file without a name, by way of its descriptor, has no other path than that.
    let absolute = path.canonicalize().or_else(|_| std::path::absolute(path));
    match absolute.map(|p| p.into_os_string().into_string()) {
        Ok(Ok(text)) => Ok(udm_base::concise::quote(&text.replace('\\', "\\\\").replace(' ', "\\ "))),
        _ => Err(Error::Stack(format!("{}: expected a path that is text", path.display()))),
    }
}

fn refused(e: StackError) -> Error {
    Error::Stack(format!("--concise: {e}"))
}
