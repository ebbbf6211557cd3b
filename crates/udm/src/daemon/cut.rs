//! `udm cut`: a power cut of one device, and what follows for those who use it.
//!
//! The device's own target loses what a disk would, and fails every bio from then on; so nodes, and devices above, give
//! EIO. Clients of NBD and virtual machines are hung up on besides, and refused until the device has a table anew: they
//! would try again for ever.

use super::devices::Devices;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use udm_base::Errno;
use udm_control::second::CutAnswer;
use udm_core::{Error, MappedDevice, TableSlot};
use udm_io::{BlockDevice, DeviceId};

/// Whether `md` stands on that device, or is it.
fn stands_on(md: &MappedDevice, id: DeviceId) -> bool {
    let table = md.table(TableSlot::Active);
    let beneath = table.as_ref().map_or(&[][..], |table| table.devices());
    let is_above =
        |dev: &Arc<dyn BlockDevice>| dev.as_any().downcast_ref::<MappedDevice>().is_some_and(|md| stands_on(md, id));
    md.id() == id || beneath.iter().any(is_above)
}

/// Does it, and tells what is left.
pub(super) fn cut(devices: &Devices, md: &MappedDevice, seed: u64, record: Option<&str>) -> Result<CutAnswer, Error> {
    // Before the cut, which cannot be taken back.
    let file = record.map(|path| create(path).map(|file| (path, file))).transpose()?;
    let cut = md.cut_power(seed, file.is_some())?;
    tracing::warn!("the power of {} is cut: {cut}", md.device_name());
    let Devices { registry, nbd, tcp, vhost, .. } = devices;
    let above = registry.list().into_iter().filter(|other| stands_on(other, md.id()));
    let hang_up = |name: String| nbd.0.disconnect(&name) + tcp.disconnect(&name) + vhost.disconnect(&name);
    let disconnected: usize = above.map(|md| hang_up(md.device_name())).sum();
    if let (Some((path, mut file)), Some(bytes)) = (file, &cut.record) {
        let failed = |e: std::io::Error| {
            Error::new(Errno::of(&e), format!("the power is cut by {cut}; but the record {path} is not written: {e}"))
        };
        file.write_all(bytes).map_err(failed)?;
    }
    let udm_core::PowerCut { seed, writes, whole, torn, lost, sectors, .. } = cut;
    let disconnected = disconnected as u64;
    Ok(CutAnswer { seed, writes, whole, torn, lost, sectors: sectors.get(), disconnected })
}

fn create(path: &str) -> Result<File, Error> {
    if !Path::new(path).is_absolute() {
        return Err(Error::new(Errno::EINVAL, format!("{path:?}: expected a path from the root on")));
    }
    // An existing file may be anything, and not everything of the client's is the daemon's to write.
    let created = File::options().write(true).create_new(true).open(path);
    created.map_err(|e| Error::new(Errno::of(&e), format!("the record {path}: {e}; expected a new file")))
}
