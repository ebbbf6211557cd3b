//! What lies beneath this daemon's devices: not its own nodes.
//!
//! A table that names a node of the daemon that loads it would have the daemon wait for itself: in a circle for ever if the
//! node is the device's own, and else when memory is short, when devices are suspended, and at the end. So it is refused:
//! the node's file, a loop device on it, what the kernel has stacked on that, and files of a file system on any of those.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use udm_base::{DevT, Errno};
use udm_core::{Error, HostOpener, HostRequest};
use udm_io::Domain;

/// The most devices of the kernel one on top of the other that are looked into.
const DEPTH: u32 = 16;

/// Opens what is beneath, unless it is a node of the daemon whose nodes are in `nodes`.
pub(super) fn opener(domain: &Domain, nodes: PathBuf) -> Box<HostOpener> {
    let domain = domain.clone();
    Box::new(move |request| {
        refuse_own_node(request, &nodes)?;
        udm_stack::open(&domain, request)
    })
}

fn refuse_own_node(request: &HostRequest<'_>, nodes: &Path) -> Result<(), Error> {
    // Not by stat(2), which would wait for the server of the mount; in a replacement that is not there yet.
    let own: Vec<_> = udm_export::node::fuse::mounted(nodes)
        .into_iter()
        .map(|(major, minor)| rustix::fs::makedev(major, minor))
        .collect();
    if own.is_empty() {
        return Ok(());
    }
    let own = &own[..];
    let lies = match request.spec.parse::<DevT>() {
        Ok(dev) => block_lies_on(dev, own, DEPTH),
        // A URI is no path of anything.
        Err(_) => lies_on(&request.cwd.join(request.spec), own, DEPTH),
    };
    if lies {
        let message = format!(
            "{} lies on a node of this daemon, which would wait for itself: name the device instead, as /dev/mapper/NAME",
            request.spec
        );
        return Err(Error::new(Errno::EINVAL, message));
    }
    Ok(())
}

fn lies_on(path: &Path, own: &[u64], depth: u32) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let dev = if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() };
    own.contains(&dev) || block_lies_on(DevT::new(rustix::fs::major(dev), rustix::fs::minor(dev)), own, depth)
}

/// As sysfs tells: a loop device has its file, a device mapper's or an md's has its slaves, a partition its disk.
fn block_lies_on(dev: DevT, own: &[u64], depth: u32) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    let Ok(dir) = fs::canonicalize(format!("/sys/dev/block/{dev}")) else { return false };
    let disk = if dir.join("partition").exists() { dir.join("..") } else { dir };
    let file = fs::read_to_string(disk.join("loop/backing_file")).unwrap_or_default();
    let file = file.trim_end_matches('\n');
    if !file.is_empty() && lies_on(Path::new(file), own, depth) {
        return true;
    }
    fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten().any(|slave| {
        let text = fs::read_to_string(slave.path().join("dev")).unwrap_or_default();
        text.trim().parse().is_ok_and(|dev| block_lies_on(dev, own, depth))
    })
}
