//! Opening the devices that a table names: a path, a device number of the host, or a URI.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use udm_base::DevT;
use udm_files::{Claims, FileDevice, FileOptions, OpenError, OpenErrorKind, block_device};
use udm_io::{BlockDevice, Domain, NullDevice, NullSpec};
use udm_nbd::uri::Uri;
use udm_nbd::{ConnectError, NbdDevice};

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
    /// Claim block devices, for this holder: nobody else may then use them exclusively, as file systems do. Who holds
    /// the claims keeps its own exclusive opens apart.
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

/// Opens the device that `spec` names: a path to a regular file or block device, `M:m` for a block device of the host,
/// `nbd://`, `nbd+unix://` or `null:`. Every call opens anew; who wants one device for one file compares
/// [`BlockDevice::id`]. Blocks.
pub fn open_beneath(spec: &str, options: &OpenOptions) -> Result<Arc<dyn BlockDevice>, OpenError> {
    if spec.is_empty() {
        return Err(OpenError::new(OpenErrorKind::Spec, spec, "names no device; expected a path or a URI"));
    }
    if spec.starts_with(NullSpec::SCHEME) {
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
