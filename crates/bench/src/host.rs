//! Opening what is no mapped device: files, block devices, `null:` and remote exports.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use udm_base::Errno;
use udm_core::{Error, HostOpener, HostRequest};
use udm_io::nbd::NbdDevice;
use udm_io::nbd::uri::{Uri, UriError};
use udm_io::{BlockDevice, Domain, OpenOptions};

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// An opener whose devices take their threads from `domain`.
pub(crate) fn opener(domain: &Domain) -> Box<HostOpener> {
    let domain = domain.clone();
    Box::new(move |request| open(&domain, request))
}

/// Opens what `request` names. Blocks.
pub(crate) fn open(domain: &Domain, request: &HostRequest<'_>) -> Result<Arc<dyn BlockDevice>, Error> {
    match request.spec.parse::<Uri>() {
        Ok(uri) => {
            let dev = NbdDevice::connect(&uri, PATIENCE, &**domain.executor());
            return dev.map(|dev| dev as _).map_err(|e| Error::new(Errno::EIO, e.to_string()));
        }
        Err(UriError::Scheme(_)) => {}
        Err(e) => return Err(Error::new(Errno::EINVAL, e.to_string())),
    }
    let options = OpenOptions {
        read_only: request.read_only,
        exclusive: request.exclusive,
        cwd: PathBuf::from(request.cwd),
        domain: domain.clone(),
    };
    udm_io::open(request.spec, &options).map_err(|e| Error::new(e.errno(), e.to_string()))
}
