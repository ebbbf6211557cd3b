//! Opening the devices that a table names: a path, a device number of the host, or a URI.

use crate::file::{Claims, FileDevice, FileOptions};
use crate::mounts::block_device;
use crate::nbd::uri::Uri;
use crate::nbd::{ConnectError, NbdDevice};
use crate::null::{self, NullDevice, NullSpec};
use crate::{BlockDevice, Domain};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use udm_base::{DevT, Errno};

/// How long an NBD server may take to accept and to agree.
const NBD_TIMEOUT: Duration = Duration::from_secs(30);

/// How a device is opened. Only files and block devices can be opened read-only and exclusively; a remote export is
/// what its server makes of it, and every null device is new.
#[derive(Clone)]
pub struct OpenOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Refuse, and be refused by, other exclusive opens: for metadata, which two programs must not write.
    pub exclusive: bool,
    /// Claim block devices, for this holder: nobody else may then use them exclusively, as file systems do. Who holds the
    /// claims keeps its own exclusive opens apart.
    pub claims: Option<Claims>,
    /// The folder that relative paths start from.
    pub cwd: PathBuf,
    /// Where the device's threads come from.
    pub domain: Domain,
}

impl OpenOptions {
    /// To read and write, shared with anybody, with relative paths from the root.
    pub fn new(domain: &Domain) -> Self {
        Self { read_only: false, exclusive: false, claims: None, cwd: PathBuf::from("/"), domain: domain.clone() }
    }
}

/// What kept a device from being opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum OpenErrorKind {
    /// The text names no device.
    Spec,
    /// There is nothing by that name.
    NotFound,
    /// It may not be read.
    Denied,
    /// It is neither a regular file nor a block device.
    WrongKind,
    /// Another has it open exclusively.
    Busy,
    /// The system failed in another way.
    System,
}

impl OpenErrorKind {
    pub(crate) fn of(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno as E;
        match errno {
            E::NOENT | E::NOTDIR | E::NODEV | E::NXIO => Self::NotFound,
            E::ACCESS | E::PERM | E::ROFS => Self::Denied,
            E::BUSY | E::TXTBSY => Self::Busy,
            _ => Self::System,
        }
    }
}

/// A device that could not be opened: which, why, and the system's error beneath.
#[derive(Debug)]
pub struct OpenError {
    kind: OpenErrorKind,
    spec: String,
    detail: String,
    source: Option<io::Error>,
}

impl OpenError {
    /// An error about the device that `spec` names; `detail` goes on from there: "is a directory".
    pub fn new(kind: OpenErrorKind, spec: &str, detail: impl Into<String>) -> Self {
        Self { kind, spec: spec.to_owned(), detail: detail.into(), source: None }
    }

    /// What open(2) said.
    pub(crate) fn of_open(spec: &str, errno: rustix::io::Errno) -> Self {
        Self::new(OpenErrorKind::of(errno), spec, "cannot be opened").because(errno.into())
    }

    /// The same with the error beneath.
    #[must_use]
    pub fn because(mut self, source: io::Error) -> Self {
        self.source = Some(source);
        self
    }

    /// What kind of error it is.
    pub fn kind(&self) -> OpenErrorKind {
        self.kind
    }

    /// The number that an ioctl fails with for it: the system's, or what the kernel gives in its place.
    pub fn errno(&self) -> Errno {
        match (&self.source, self.kind) {
            (Some(source), _) if source.raw_os_error().is_some() => Errno::of(source),
            (_, OpenErrorKind::Spec) => Errno::EINVAL,
            (_, OpenErrorKind::NotFound) => Errno::ENOENT,
            (_, OpenErrorKind::Denied) => Errno::EACCES,
            (_, OpenErrorKind::WrongKind) => Errno::ENOTBLK,
            (_, OpenErrorKind::Busy) => Errno::EBUSY,
            (_, OpenErrorKind::System) => Errno::EIO,
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.spec, self.detail)?;
        match &self.source {
            Some(source) => write!(f, ": {}", text_of(source)),
            None => Ok(()),
        }
    }
}

/// The system's words without the number that io::Error adds.
fn text_of(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(n) => Errno::new(n).to_string(),
        None => error.to_string(),
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|e| e as _)
    }
}

/// Opens the device that `spec` names: a path to a regular file or block device, `M:m` for a block device of the
/// host, `nbd://`, `nbd+unix://` or `null:`. Every call opens anew; who wants one device for one file compares [`BlockDevice::id`]. Blocks.
pub fn open(spec: &str, options: &OpenOptions) -> Result<Arc<dyn BlockDevice>, OpenError> {
    if spec.is_empty() {
        return Err(OpenError::new(OpenErrorKind::Spec, spec, "names no device; expected a path or a URI"));
    }
    if spec.starts_with(null::SCHEME) {
        let null: NullSpec =
            spec.parse().map_err(|e| OpenError::new(OpenErrorKind::Spec, spec, format!("is no null device: {e}")))?;
        let device = NullDevice::new(null)
            .map_err(|e| OpenError::new(OpenErrorKind::System, spec, "finds no memory").because(e))?;
        return Ok(Arc::new(device));
    }
    if let Some((scheme, _)) = spec.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) {
        return match scheme.to_ascii_lowercase().as_str() {
            "nbd" | "nbd+unix" | "nbds" | "nbds+unix" => open_nbd(spec, options),
            _ => {
                let detail = format!("has the scheme {scheme:?}; expected a path, M:m, nbd://, nbd+unix:// or null:");
                Err(OpenError::new(OpenErrorKind::Spec, spec, detail))
            }
        };
    }
    if let Ok(dev) = spec.parse::<DevT>() {
        let node = node_of(dev).ok_or_else(|| {
            OpenError::new(OpenErrorKind::NotFound, spec, "is no block device of this machine that has a node in /dev")
        })?;
        return open_file(&node, options);
    }
    open_file(&options.cwd.join(spec), options)
}

fn open_file(path: &Path, options: &OpenOptions) -> Result<Arc<dyn BlockDevice>, OpenError> {
    let how = FileOptions { read_only: options.read_only, exclusive: options.exclusive, ..FileOptions::default() };
    let executor = options.domain.executor().clone();
    let opened = match &options.claims {
        Some(claims) => FileDevice::open_claimed(path, how, claims, executor),
        None => FileDevice::open(path, how, executor),
    };
    Ok(Arc::new(opened?))
}

fn open_nbd(spec: &str, options: &OpenOptions) -> Result<Arc<dyn BlockDevice>, OpenError> {
    let uri: Uri = spec.parse().map_err(|e| OpenError::new(OpenErrorKind::Spec, spec, format!("is no URI: {e}")))?;
    let device = NbdDevice::connect(&uri, &options.domain, NBD_TIMEOUT, &|| false);
    let device = device.map_err(|e| match e {
        ConnectError::Connect { source, .. } => {
            OpenError::new(OpenErrorKind::NotFound, spec, "cannot be connected to").because(source)
        }
        other => OpenError::new(OpenErrorKind::System, spec, format!("cannot be used: {other}")),
    })?;
    Ok(device)
}

/// What stands before `://` in a URI (RFC 3986); a path that looks so is written `./nbd://`.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// The node of a block device of the host: where udev links it, or where the kernel says it is.
fn node_of(dev: DevT) -> Option<PathBuf> {
    let linked = PathBuf::from(format!("/dev/block/{dev}"));
    let uevent = std::fs::read_to_string(format!("/sys/dev/block/{dev}/uevent")).unwrap_or_default();
    let named = uevent.lines().find_map(|l| l.strip_prefix("DEVNAME=")).map(|name| Path::new("/dev").join(name));
    std::iter::once(linked).chain(named).find(|path| block_device(path) == Some(dev))
}
