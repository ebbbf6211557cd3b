//! The commands and their ioctl numbers.

use super::{CodecError, HEADER_LEN};
use udm_base::Errno;

/// The ioctl type byte (`DM_IOCTL`).
const DM_IOCTL: u32 = 0xfd;
/// `_IOC_READ | _IOC_WRITE` in its place (`include/uapi/asm-generic/ioctl.h`).
const IOC_READ_WRITE: u32 = 3 << 30;

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident = $nr:literal, $symbol:literal;)*) => {
        /// A command of the interface (`DM_*_CMD`).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Command { $($(#[$doc])* $name = $nr,)* }

        impl Command {
            /// Every command, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The name in `linux/dm-ioctl.h`, such as `DM_TABLE_LOAD`.
            pub const fn symbol(self) -> &'static str {
                match self { $(Self::$name => $symbol,)* }
            }
        }
    };
}

commands! {
    /// The interface's version.
    Version = 0, "DM_VERSION";
    /// Remove every device that is not open.
    RemoveAll = 1, "DM_REMOVE_ALL";
    /// All devices: number, name, event number and, when asked for, uuid.
    ListDevices = 2, "DM_LIST_DEVICES";
    /// Make a device without a table.
    DevCreate = 3, "DM_DEV_CREATE";
    /// Remove a device and its tables.
    DevRemove = 4, "DM_DEV_REMOVE";
    /// Give a device another name or, once, a uuid.
    DevRename = 5, "DM_DEV_RENAME";
    /// Suspend, or resume with the inactive table: which of the two tells [`Flags::SUSPEND`](super::Flags::SUSPEND).
    DevSuspend = 6, "DM_DEV_SUSPEND";
    /// The header alone.
    DevStatus = 7, "DM_DEV_STATUS";
    /// Sleep until the event number passes the one given, then as [`TableStatus`](Self::TableStatus).
    DevWait = 8, "DM_DEV_WAIT";
    /// Load the inactive table.
    TableLoad = 9, "DM_TABLE_LOAD";
    /// Drop the inactive table.
    TableClear = 10, "DM_TABLE_CLEAR";
    /// The numbers of the devices beneath.
    TableDeps = 11, "DM_TABLE_DEPS";
    /// Each target's status or, with [`Flags::STATUS_TABLE`](super::Flags::STATUS_TABLE), its line of the table.
    TableStatus = 12, "DM_TABLE_STATUS";
    /// The target types and their versions.
    ListVersions = 13, "DM_LIST_VERSIONS";
    /// A message to the target at a sector.
    TargetMsg = 14, "DM_TARGET_MSG";
    /// Cylinders, heads, sectors and start.
    DevSetGeometry = 15, "DM_DEV_SET_GEOMETRY";
    /// Make this open of the control device pollable for the next event.
    DevArmPoll = 16, "DM_DEV_ARM_POLL";
    /// The version of one target type.
    GetTargetVersion = 17, "DM_GET_TARGET_VERSION";
}

impl Command {
    /// The full number, `_IOWR(DM_IOCTL, nr, struct dm_ioctl)`.
    pub const fn ioctl_number(self) -> u32 {
        IOC_READ_WRITE | (HEADER_LEN as u32) << 16 | DM_IOCTL << 8 | self as u32
    }

    /// The command of an ioctl number. As in the kernel, only its type and its number count.
    ///
    /// # Errors
    /// ENOTTY for another type or a number past the last.
    pub fn from_ioctl_number(number: u32) -> Result<Self, CodecError> {
        let (kind, nr) = (number >> 8 & 0xff, number & 0xff);
        if kind != DM_IOCTL {
            let message = format!("ioctl type 0x{kind:02x} is not the device mapper's, 0x{DM_IOCTL:02x}");
            return Err(CodecError::new(Errno::ENOTTY, message));
        }
        Self::ALL.get(nr as usize).copied().ok_or_else(|| {
            let last = Self::ALL.len() - 1;
            CodecError::new(Errno::ENOTTY, format!("unknown command {nr}: the interface has 0 to {last}"))
        })
    }

    /// Does the command read or write data behind the header? Where not, the kernel copies the
    /// header alone (`IOCTL_FLAGS_NO_PARAMS`).
    pub const fn has_data(self) -> bool {
        use Command as C;
        !matches!(
            self,
            C::Version
                | C::RemoveAll
                | C::DevCreate
                | C::DevRemove
                | C::DevSuspend
                | C::DevStatus
                | C::TableClear
                | C::DevArmPoll
        )
    }
}
