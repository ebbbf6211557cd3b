//! What the kernel's ublk driver and its server say to each other: numbers and structs of
//! `include/uapi/linux/ublk_cmd.h` (6.12, what is newer says so).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The control device.
pub(super) const CONTROL: &str = "/dev/ublk-control";

/// The number of an ioctl (`include/uapi/asm-generic/ioctl.h`): its argument's direction and size, `'u'`, and which it
/// is.
const fn ioctl(direction: u32, number: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'u' as u32) << 8 | number
}

const fn read(number: u32) -> u32 {
    ioctl(2, number, size_of::<ControlCommand>())
}

const fn read_write(number: u32) -> u32 {
    ioctl(3, number, size_of::<ControlCommand>())
}

const fn io(number: u32) -> u32 {
    ioctl(3, number, size_of::<IoCommand>())
}

/// Commands to the control device.
pub(super) mod command {
    use super::{read, read_write};

    pub(crate) const ADD_DEV: u32 = read_write(0x04);
    pub(crate) const START_DEV: u32 = read_write(0x06);
    pub(crate) const STOP_DEV: u32 = read_write(0x07);
    pub(crate) const SET_PARAMS: u32 = read_write(0x08);
    pub(crate) const GET_PARAMS: u32 = read(0x09);
    pub(crate) const START_USER_RECOVERY: u32 = read_write(0x10);
    pub(crate) const END_USER_RECOVERY: u32 = read_write(0x11);
    pub(crate) const GET_DEV_INFO2: u32 = read(0x12);
    pub(crate) const GET_FEATURES: u32 = read(0x13);
    /// Does not wait until the last who has the device open has closed it.
    pub(crate) const DEL_DEV_ASYNC: u32 = read(0x14);
    /// Of 6.16, where [`feature::UPDATE_SIZE`](super::feature::UPDATE_SIZE) is.
    pub(crate) const UPDATE_SIZE: u32 = read_write(0x15);
}

/// Commands to a device's queue.
pub(super) mod queue {
    use super::io;

    pub(crate) const FETCH_REQ: u32 = io(0x20);
    pub(crate) const COMMIT_AND_FETCH_REQ: u32 = io(0x21);
}

/// What a device can be asked to do, and what the driver can.
pub(super) mod feature {
    pub(crate) const USER_RECOVERY: u64 = 1 << 3;
    pub(crate) const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    pub(crate) const UNPRIVILEGED_DEV: u64 = 1 << 5;
    pub(crate) const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    pub(crate) const UPDATE_SIZE: u64 = 1 << 10;
}

/// The state of a device.
pub(super) mod state {
    /// Not started yet, or stopped: 0.
    #[cfg(test)]
    pub(crate) const DEAD: u16 = 0;
    pub(crate) const LIVE: u16 = 1;
    pub(crate) const QUIESCED: u16 = 2;
}

/// What a request asks for: the low byte of [`IoDescriptor::op_flags`].
pub(super) mod op {
    pub(crate) const READ: u8 = 0;
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const FLUSH: u8 = 2;
    pub(crate) const DISCARD: u8 = 3;
    pub(crate) const WRITE_ZEROES: u8 = 5;

    /// Flags of a request.
    pub(crate) const FUA: u32 = 1 << 13;
    pub(crate) const NOUNMAP: u32 = 1 << 15;
}

/// Which parameters are given, and attributes of a device.
pub(super) mod param {
    pub(crate) const BASIC: u32 = 1 << 0;
    pub(crate) const DISCARD: u32 = 1 << 1;
    pub(crate) const DEVT: u32 = 1 << 2;

    pub(crate) const READ_ONLY: u32 = 1 << 0;
    pub(crate) const VOLATILE_CACHE: u32 = 1 << 2;
    pub(crate) const FUA: u32 = 1 << 3;
}

/// A request completed for its slot not to be used again: the device stops.
pub(super) const ABORT: i32 = -libc::ENODEV;
/// Requests of a queue at most, by which the places of queues' descriptors are counted too.
pub(super) const MAX_DEPTH: usize = 4096;
/// No queue, or no number of a device yet.
pub(super) const NO_QUEUE: u16 = u16::MAX;
pub(super) const ANY_DEVICE: u32 = u32::MAX;

/// `struct ublksrv_ctrl_cmd`, in a submission's last 80 bytes.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct ControlCommand {
    pub(super) dev_id: u32,
    pub(super) queue_id: u16,
    pub(super) len: u16,
    pub(super) addr: u64,
    pub(super) data: u64,
    pub(super) dev_path_len: u16,
    pub(super) pad: u16,
    pub(super) reserved: u32,
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct DeviceInfo {
    pub(super) nr_hw_queues: u16,
    pub(super) queue_depth: u16,
    pub(super) state: u16,
    pub(super) pad0: u16,
    pub(super) max_io_buf_bytes: u32,
    pub(super) dev_id: u32,
    pub(super) ublksrv_pid: i32,
    pub(super) pad1: u32,
    pub(super) flags: u64,
    /// The server's own: the driver keeps it and does not look at it.
    pub(super) ublksrv_flags: u64,
    pub(super) owner_uid: u32,
    pub(super) owner_gid: u32,
    pub(super) reserved1: u64,
    pub(super) reserved2: u64,
}

/// `struct ublk_params`, as far as it is used here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Params {
    pub(super) len: u32,
    pub(super) types: u32,
    // `struct ublk_param_basic`.
    pub(super) attrs: u32,
    pub(super) logical_bs_shift: u8,
    pub(super) physical_bs_shift: u8,
    pub(super) io_opt_shift: u8,
    pub(super) io_min_shift: u8,
    pub(super) max_sectors: u32,
    pub(super) chunk_sectors: u32,
    pub(super) dev_sectors: u64,
    pub(super) virt_boundary_mask: u64,
    // `struct ublk_param_discard`.
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) max_discard_sectors: u32,
    pub(super) max_write_zeroes_sectors: u32,
    pub(super) max_discard_segments: u16,
    pub(super) reserved0: u16,
    // `struct ublk_param_devt`.
    pub(super) char_major: u32,
    pub(super) char_minor: u32,
    pub(super) disk_major: u32,
    pub(super) disk_minor: u32,
    /// The beginning of `struct ublk_param_zoned`, which is not used.
    pub(super) zoned: u32,
}

/// `struct ublksrv_io_cmd`, in a submission's last 80 bytes.
#[derive(Clone, Copy, Debug, IntoBytes, Immutable)]
#[repr(C)]
pub(super) struct IoCommand {
    pub(super) q_id: u16,
    pub(super) tag: u16,
    pub(super) result: i32,
    pub(super) addr: u64,
}

/// `struct ublksrv_io_desc`: a request, in memory that the driver shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct IoDescriptor {
    pub(super) op_flags: u32,
    pub(super) nr_sectors: u32,
    pub(super) start_sector: u64,
    pub(super) addr: u64,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<ControlCommand>() == 32 && offset_of!(ControlCommand, data) == 16);
    assert!(offset_of!(ControlCommand, dev_path_len) == 24);
    assert!(size_of::<DeviceInfo>() == 64 && offset_of!(DeviceInfo, flags) == 24);
    assert!(offset_of!(DeviceInfo, ublksrv_flags) == 32 && offset_of!(DeviceInfo, owner_uid) == 40);
    assert!(size_of::<Params>() == 80 && offset_of!(Params, dev_sectors) == 24);
    assert!(offset_of!(Params, discard_alignment) == 40 && offset_of!(Params, char_major) == 60);
    assert!(size_of::<IoCommand>() == 16 && offset_of!(IoCommand, addr) == 8);
    assert!(size_of::<IoDescriptor>() == 24 && offset_of!(IoDescriptor, start_sector) == 8);
};

/// A command's struct as the end of a submission.
pub(super) fn in_submission(command: &impl IntoBytesSmall) -> [u8; 80] {
    let mut out = [0; 80];
    let bytes = command.bytes();
    out[..bytes.len()].copy_from_slice(bytes);
    out
}

/// What fits into a submission.
pub(super) trait IntoBytesSmall {
    fn bytes(&self) -> &[u8];
}

impl IntoBytesSmall for ControlCommand {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl IntoBytesSmall for IoCommand {
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }
}

/// Where a queue's descriptors begin in the character device, and how many bytes they take.
pub(super) fn descriptors(queue: u16, depth: u16, page: usize) -> (u64, usize) {
    let size = |depth: usize| (depth * size_of::<IoDescriptor>()).next_multiple_of(page);
    (u64::from(queue) * size(MAX_DEPTH) as u64, size(depth.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_numbered_as_ioctls() {
        // Computed by the macros of the header, on x86-64.
        for (command, number) in [
            (command::ADD_DEV, 0xc020_7504),
            (command::START_DEV, 0xc020_7506),
            (command::STOP_DEV, 0xc020_7507),
            (command::SET_PARAMS, 0xc020_7508),
            (command::GET_PARAMS, 0x8020_7509),
            (command::START_USER_RECOVERY, 0xc020_7510),
            (command::END_USER_RECOVERY, 0xc020_7511),
            (command::GET_DEV_INFO2, 0x8020_7512),
            (command::GET_FEATURES, 0x8020_7513),
            (command::DEL_DEV_ASYNC, 0x8020_7514),
            (command::UPDATE_SIZE, 0xc020_7515),
            (queue::FETCH_REQ, 0xc010_7520),
            (queue::COMMIT_AND_FETCH_REQ, 0xc010_7521),
        ] {
            assert_eq!(command, number, "{number:#x}");
        }
    }

    #[test]
    fn commands_lie_in_submissions() {
        let command = IoCommand { q_id: 0x0102, tag: 0x0304, result: -5, addr: 0x1122_3344_5566_7788 };
        let bytes = in_submission(&command);
        assert_eq!(bytes[..8], [0x02, 0x01, 0x04, 0x03, 0xfb, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[8..16], 0x1122_3344_5566_7788u64.to_le_bytes());
        assert!(bytes[16..].iter().all(|byte| *byte == 0));
        let command = ControlCommand {
            dev_id: 7,
            queue_id: NO_QUEUE,
            len: 64,
            addr: 0x1000,
            data: 99,
            dev_path_len: 12,
            pad: 0,
            reserved: 0,
        };
        let bytes = in_submission(&command);
        assert_eq!(bytes[..8], [7, 0, 0, 0, 0xff, 0xff, 64, 0]);
        assert_eq!((bytes[8..16].to_vec(), bytes[16], bytes[24]), (0x1000u64.to_le_bytes().to_vec(), 99, 12));
    }

    #[test]
    fn places_of_descriptors() {
        // A queue of 4096 requests takes 24 pages; whatever the depth, the next one begins there.
        assert_eq!(descriptors(0, 128, 4096), (0, 4096));
        assert_eq!(descriptors(1, 128, 4096), (98304, 4096));
        assert_eq!(descriptors(3, 256, 4096), (3 * 98304, 8192));
        assert_eq!(descriptors(1, 1, 65536), (131_072, 65536));
    }
}
