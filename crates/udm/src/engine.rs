//! The devices of one process: the registry with all targets, and what lies beneath.

use std::time::Duration;
use udm_base::Errno;
use udm_core::{Error, HostRequest, Registry};
use udm_io::nbd::{ConnectError, NbdDevice, uri::Endpoint, uri::Uri};
use udm_io::{BlockDevice, Domain, OpenOptions};
use udm_targets::TARGETS;

use std::sync::Arc;

/// How long a remote export may take to be reached, and to negotiate.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// An empty registry that knows every target and opens every kind of device.
pub(crate) fn registry() -> Registry {
    let domain = Domain::default();
    let opener = domain.clone();
    Registry::new(domain, TARGETS, Box::new(move |request| open(&opener, request)))
}

fn open(domain: &Domain, request: &HostRequest<'_>) -> Result<Arc<dyn BlockDevice>, Error> {
    if is_nbd(request.spec) {
        return connect(domain, request);
    }
    let options = OpenOptions {
        read_only: request.read_only,
        exclusive: request.exclusive,
        cwd: request.cwd.to_owned(),
        domain: domain.clone(),
    };
    udm_io::open(request.spec, &options).map_err(|e| Error::new(e.errno(), e.to_string()))
}

fn is_nbd(spec: &str) -> bool {
    let scheme = spec.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    scheme.is_some_and(|s| matches!(s.as_str(), "nbd" | "nbd+unix" | "nbds" | "nbds+unix"))
}

fn connect(domain: &Domain, request: &HostRequest<'_>) -> Result<Arc<dyn BlockDevice>, Error> {
    let uri = request.spec.parse();
    let mut uri: Uri = uri.map_err(|e: udm_io::nbd::uri::UriError| Error::new(Errno::EINVAL, e.to_string()))?;
    if let Endpoint::Unix(socket) = &mut uri.endpoint {
        // As for a file: the client's directory, not the daemon's, and `udm table` prints what loads from anywhere.
        *socket = request.cwd.join(&*socket);
    }
    let dev = NbdDevice::connect(&uri, CONNECT_TIMEOUT, &**domain.executor()).map_err(|e| {
        let errno = match &e {
            ConnectError::Connect { source, .. } | ConnectError::Thread { source, .. } => Errno::of(source),
            ConnectError::Handshake { .. } => Errno::EPROTO,
            ConnectError::Unusable { .. } => Errno::EINVAL,
        };
        Error::new(errno, e.to_string())
    })?;
    Ok(dev)
}
