//! The registry with all targets, and what lies beneath it: files, block devices, `null:` and remote exports.

use crate::open::{OpenOptions, open_beneath};
use std::sync::Arc;
use std::time::Duration;
use udm_base::Errno;
use udm_core::{Error, HostOpener, HostRequest, Registry};
use udm_files::Claims;
use udm_io::{BlockDevice, Domain};
use udm_nbd::uri::{Endpoint, Uri, UriError};
use udm_nbd::{ConnectError, NbdDevice};
use udm_targets::TARGETS;

/// How long a remote export may take to be reached, and to negotiate.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// An empty registry that knows every target and opens every kind of device. What it opens takes its threads from
/// `domain`.
pub fn registry(domain: Domain) -> Registry {
    let (opener, claims) = (domain.clone(), Claims::default());
    Registry::new(domain, TARGETS, Box::new(move |request| open_for_table(&opener, &claims, request)))
}

/// An empty registry that knows every target, over what `opener` opens: disks of a simulation, say.
pub fn registry_over(domain: Domain, opener: Box<HostOpener>) -> Registry {
    Registry::new(domain, TARGETS, opener)
}

/// Opens what `request` names, which is no mapped device, for whoever looks at it: others may use it. Blocks: a server
/// may take 20 s to answer.
pub fn open(domain: &Domain, request: &HostRequest<'_>) -> Result<Arc<dyn BlockDevice>, Error> {
    open_with(domain, None, request)
}

/// As [`open`], for a table: as the kernel's device mapper, the holder of the claims has a block device for itself.
pub fn open_for_table(
    domain: &Domain,
    claims: &Claims,
    request: &HostRequest<'_>,
) -> Result<Arc<dyn BlockDevice>, Error> {
    open_with(domain, Some(claims), request)
}

fn open_with(
    domain: &Domain,
    claims: Option<&Claims>,
    request: &HostRequest<'_>,
) -> Result<Arc<dyn BlockDevice>, Error> {
    match request.spec.parse::<Uri>() {
        Ok(uri) => connect(domain, request, uri),
        Err(UriError::Scheme(_)) => {
            let options = OpenOptions {
                read_only: request.read_only,
                exclusive: request.exclusive,
                claims: claims.cloned(),
                cwd: request.cwd.to_owned(),
                domain: domain.clone(),
            };
            open_beneath(request.spec, &options).map_err(|e| Error::new(e.errno(), e.to_string()))
        }
        Err(e) => Err(Error::new(Errno::EINVAL, e.to_string())),
    }
}

fn connect(domain: &Domain, request: &HostRequest<'_>, mut uri: Uri) -> Result<Arc<dyn BlockDevice>, Error> {
    if let Endpoint::Unix(socket) = &mut uri.endpoint {
        // As for a file: the client's directory, not the daemon's, and `udm table` prints what loads from anywhere.
        *socket = request.cwd.join(&*socket);
    }
    let dev = NbdDevice::connect(&uri, domain, CONNECT_TIMEOUT, request.cancel).map_err(|e| {
        let errno = match &e {
            ConnectError::Connect { source, .. } | ConnectError::Thread { source, .. } => Errno::of(source),
            ConnectError::Handshake { .. } => Errno::EPROTO,
            ConnectError::Unusable { .. } => Errno::EINVAL,
        };
        Error::new(errno, e.to_string())
    })?;
    Ok(dev)
}
