//! What lies beneath this daemon's devices: block devices that are claimed for it, and nothing of its own.
//!
//! A table that names a node or an export of the daemon that loads it would have the daemon wait for itself: in a
//! circle for ever if it is the device's own, and else when memory is short, when devices are suspended, in a
//! replacement, and at the end. So it is refused. How far that is seen: `walk` for nodes, here for exports. Through
//! another daemon, a proxy, or the kernel's own NBD client it is not.

mod walk;

use super::tcp::Listening;
use crate::places::Places;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use udm_base::{DevT, Errno};
use udm_core::{Error, HostOpener, HostRequest};
use udm_export::{node, ublk};
use udm_files::Claims;
use udm_io::Domain;
use udm_nbd::uri::{Endpoint, Uri};
use walk::{Place, Walk};

/// Opens what is beneath the devices of one daemon.
pub(crate) struct Beneath {
    domain: Domain,
    claims: Claims,
    nodes: PathBuf,
    nbd: PathBuf,
    tcp: Listening,
}

impl Beneath {
    /// Of the daemon in `places`, which listens on `tcp`, and has its block devices by `claims`.
    pub(crate) fn new(domain: &Domain, claims: &Claims, places: &Places, tcp: Listening) -> Self {
        Self { domain: domain.clone(), claims: claims.clone(), nodes: places.nodes(), nbd: places.nbd(), tcp }
    }

    /// It, for a registry.
    pub(crate) fn opener(self) -> Box<HostOpener> {
        Box::new(move |request| {
            let refuse = |what: String| {
                let message =
                    format!("{what}, which would wait for itself: name the device instead, as /dev/mapper/NAME");
                Err(Error::new(Errno::EINVAL, message))
            };
            match request.spec.parse::<Uri>() {
                Ok(uri) if self.is_own_export(&uri, request.cwd) => {
                    return refuse(format!("{} is an export of this daemon", request.spec));
                }
                Ok(_) => {}
                // No URI, or none that anybody opens.
                Err(_) => {
                    if let Some(way) = self.way_to_own_node(request) {
                        let by = if way.is_empty() { String::new() } else { format!(" (by {})", way.join(", ")) };
                        return refuse(format!("{} lies on a node of this daemon{by}", request.spec));
                    }
                }
            }
            udm_stack::open_for_table(&self.domain, &self.claims, request)
        })
    }

    /// By what it lies on one of this daemon's nodes, if it does.
    fn way_to_own_node(&self, request: &HostRequest<'_>) -> Option<Vec<String>> {
        // Not by stat(2), which would wait for the server of the mount; in a replacement that is not there yet.
        let mounts = udm_files::mounts().unwrap_or_default();
        let files = node::fuse::mounted(&mounts, &self.nodes);
        if files.is_empty() && !ublk::is_there() {
            return None;
        }
        let walk = Walk {
            sysfs: Path::new("/sys"),
            mounts: &mounts,
            look: &walk::look,
            behind_loop: &|number| node::loopdev::file_system(&self.domain, number),
            is_own: &|dev, disk| files.contains(&dev) || self.is_own_ublk(disk),
        };
        match request.spec.parse::<DevT>() {
            Ok(dev) => walk.from(&Place::Device(dev)),
            Err(_) => walk.from(&walk::look(&request.cwd.join(request.spec))?),
        }
    }

    fn is_own_ublk(&self, disk: &str) -> bool {
        let number = disk.strip_prefix("ublkb").and_then(|number| number.parse().ok());
        number.and_then(ublk::mark_of).is_some_and(|mark| mark.is_of(&self.nodes))
    }

    fn is_own_export(&self, uri: &Uri, cwd: &Path) -> bool {
        match &uri.endpoint {
            Endpoint::Unix(socket) => is_same_file(&cwd.join(socket), &self.nbd),
            Endpoint::Tcp { host, port } => {
                // Names are looked up for those only that may be this machine's.
                let own: Vec<_> = self.tcp.addresses().into_iter().filter(|at| at.port() == *port).collect();
                let reached = || (&**host, *port).to_socket_addrs().into_iter().flatten();
                !own.is_empty() && reached().any(|to| own.iter().any(|at| leads_to(to.ip(), *at)))
            }
        }
    }
}

/// By whatever path, link or mount.
fn is_same_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    file(one).is_some_and(|one| Some(one) == file(other))
}

/// Whether who connects to `to` reaches a socket that listens at `at`, the port being the same.
fn leads_to(to: IpAddr, at: SocketAddr) -> bool {
    let (to, at) = (to.to_canonical(), at.ip().to_canonical());
    // Nothing but an address of this machine can be bound to; one that says "any" is reached as this machine as well.
    let is_here = || to.is_unspecified() || UdpSocket::bind((to, 0)).is_ok();
    to == at || ((at.is_unspecified() || to.is_unspecified()) && is_here())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine() {
        for (to, at, expect) in [
            ("127.0.0.1", "127.0.0.1:1", true),
            ("127.0.0.1", "127.0.0.2:1", false),
            ("127.0.0.1", "0.0.0.0:1", true),
            ("127.3.2.1", "0.0.0.0:1", true),
            ("0.0.0.0", "127.0.0.1:1", true),
            ("::ffff:127.0.0.1", "127.0.0.1:1", true),
            ("127.0.0.1", "[::]:1", true),
            // Set aside for books: nobody has them.
            ("192.0.2.1", "0.0.0.0:1", false),
            ("192.0.2.1", "192.0.2.1:1", true),
            ("2001:db8::1", "[::]:1", false),
        ] {
            assert_eq!(leads_to(to.parse().unwrap(), at.parse().unwrap()), expect, "{to} {at}");
        }
    }
}
