//! Loop devices that are not udm's. Programs are told that the major number of loop devices is device mapper's, so they
//! ask about every loop device that they meet; each is answered for as a linear device.

use rustix::io::Errno;
use std::fs;
use udm_base::{Sector, Sectors};
use udm_control::codec::{Command, DeviceKey, Flags, Reply, Request, TargetSpec};

/// What is answered; `None` for what is the daemon's to answer.
pub(super) fn reply(request: &Request<'_>) -> Option<Result<Vec<u8>, Errno>> {
    let Some(DeviceKey::Dev(dev)) = request.device_key() else { return None };
    if dev.major != crate::world::LOOP_MAJOR
        || !matches!(request.command(), Command::DevStatus | Command::TableStatus | Command::TableDeps)
    {
        return None;
    }
    // A device of udm's own is attached to a file that only the daemon has.
    let backing = fs::read_to_string(format!("/sys/block/loop{}/loop/backing_file", dev.minor)).ok();
    let size = fs::read_to_string(format!("/sys/block/loop{}/size", dev.minor)).ok()?;
    if backing.is_none_or(|file| is_node(&file)) {
        return None;
    }
    let mut reply = Reply::to(request);
    let header = reply.header_mut();
    let _fits = header.set_name(format!("loop{}", dev.minor).as_bytes());
    header.set_device(Some(dev));
    (header.open_count, header.target_count, header.event_nr) = (1, 1, 0);
    header.flags.set(Flags::ACTIVE_PRESENT, true);
    let sectors = Sectors::new(size.trim().parse().ok()?);
    match request.command() {
        Command::TableStatus => {
            let is_table = request.flags().contains(Flags::STATUS_TABLE);
            let params: &[u8] = if is_table { b"1:0 0" } else { b"" };
            reply.targets([TargetSpec::new(Sector::ZERO, sectors, b"linear", params)]);
        }
        Command::TableDeps => reply.deps(&[]),
        _ => {}
    }
    Some(Ok(reply.finish()))
}

/// Whether the file of a loop device is a node's of a daemon of udm's, as the kernel shows it.
fn is_node(file: &str) -> bool {
    let file = file.trim_end().trim_end_matches(" (deleted)");
    file == "/" || file.contains("/.files/")
}
