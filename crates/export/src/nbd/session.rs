//! The transmission phase without I/O: what an export can do, and what is to be done with a request.

use serde::{Deserialize, Serialize};
use udm_base::{Sector, Sectors};
use udm_io::{Limits, Op, OpFlags};
use udm_nbd::wire::consts::{MAX_PAYLOAD, cmd_flag, transmission};
use udm_nbd::wire::option::BlockSizes;
use udm_nbd::wire::request::Request;
use udm_nbd::wire::{Command, NbdError};

/// The largest minimum block size that the protocol knows.
const MAX_MINIMUM: u32 = 65536;

/// What was agreed on with a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Bytes of the export.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Replies to reads are structured.
    pub structured: bool,
    /// `base:allocation` was selected.
    pub allocation: bool,
    /// What requests must keep to.
    #[serde(with = "three_numbers")]
    pub block_sizes: BlockSizes,
    /// The device discards.
    pub trim: bool,
    /// The device zeroes without being sent the zeroes.
    pub fast_zero: bool,
    /// The device takes FUA with a write; otherwise a flush follows.
    pub fua: bool,
}

/// Minimum, preferred, maximum.
mod three_numbers {
    use super::{BlockSizes, Deserialize, Serialize};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(sizes: &BlockSizes, to: S) -> Result<S::Ok, S::Error> {
        (sizes.minimum, sizes.preferred, sizes.maximum).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BlockSizes, D::Error> {
        let (minimum, preferred, maximum) = Deserialize::deserialize(from)?;
        Ok(BlockSizes { minimum, preferred, maximum })
    }
}

/// What is to be done with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Read from the device and answer with the data.
    Read(Sector, Sectors),
    /// Receive the payload and write it.
    Write(Sector, Sectors, Durability),
    /// An operation without payload on a range. A flush has an empty one.
    Range(Op, OpFlags, Sector, Sectors, Durability),
    /// Answer with the extents of the range, or with the first alone.
    Status(Sector, Sectors, bool),
    /// Answer success at once.
    Done,
    /// Answer this error, after the payload of a write has been skipped.
    Fail(NbdError, &'static str),
    /// Answer what is under way, then hang up.
    Disconnect,
}

/// What must have happened before a write is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Durability {
    /// Nothing.
    Cached,
    /// The device itself makes it durable.
    Fua,
    /// A flush after it.
    FlushAfter,
}

impl Session {
    /// What a device of `sectors` and `limits` can do.
    pub fn new(sectors: Sectors, limits: &Limits, read_only: bool) -> Self {
        // A device whose blocks are larger than the protocol can say refuses by itself what it cannot take.
        let minimum = limits.logical_block_size.clamp(512, MAX_MINIMUM).next_power_of_two();
        let preferred = limits.physical_block_size.max(limits.io_min).clamp(4096, 1 << 20).next_power_of_two();
        Self {
            size: sectors.checked_bytes().unwrap_or(!0x1ff),
            read_only,
            structured: false,
            allocation: false,
            block_sizes: BlockSizes { minimum, preferred: preferred.max(minimum), maximum: MAX_PAYLOAD },
            trim: !limits.max_discard.is_zero(),
            fast_zero: !limits.max_write_zeroes.is_zero(),
            fua: limits.fua,
        }
    }

    /// The transmission flags of the export.
    pub fn transmission_flags(&self) -> u16 {
        use transmission as t;
        let mut flags = t::HAS_FLAGS | t::SEND_FLUSH | t::SEND_FUA | t::CAN_MULTI_CONN | t::SEND_CACHE;
        if self.read_only {
            flags |= t::READ_ONLY;
        } else {
            flags |= t::SEND_WRITE_ZEROES | t::SEND_FAST_ZERO;
            if self.trim {
                flags |= t::SEND_TRIM;
            }
        }
        if self.structured {
            flags |= t::SEND_DF;
        }
        flags
    }

    /// Decides on a request. Every number in it is the client's: a range in the answer lies within the export and
    /// on block borders, and a payload is at most the advertised maximum.
    #[inline]
    pub fn decide(&self, request: &Request) -> Action {
        let Some(command) = Command::from_wire(request.kind) else {
            return Action::Fail(NbdError::Inval, "unknown command");
        };
        if request.flags & !command.valid_flags() != 0 {
            return Action::Fail(NbdError::Inval, "a flag that the command does not have");
        }
        match command {
            Command::Disc => return Action::Disconnect,
            Command::Flush => {
                return if request.offset == 0 && request.length == 0 {
                    Action::Range(Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, Durability::Cached)
                } else {
                    Action::Fail(NbdError::Inval, "a flush has no range")
                };
            }
            _ => {}
        }
        match self.check_range(command, request) {
            Err((error, message)) => Action::Fail(error, message),
            Ok((start, length)) => self.action(command, request.flags, start, length),
        }
    }

    fn check_range(&self, command: Command, request: &Request) -> Result<(Sector, Sectors), (NbdError, &'static str)> {
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if writes && self.read_only {
            return Err((NbdError::Perm, "the export is read-only"));
        }
        let (offset, length) = (request.offset, u64::from(request.length));
        if matches!(command, Command::Read | Command::Write) && request.length > self.block_sizes.maximum {
            // Unfragmented replies have an error of their own for it.
            let fragment = command == Command::Read && request.flags & cmd_flag::DF != 0;
            let error = if fragment { NbdError::Overflow } else { NbdError::Inval };
            return Err((error, "longer than the maximum payload"));
        }
        if offset.checked_add(length).is_none_or(|end| end > self.size) {
            let full = matches!(command, Command::Write | Command::WriteZeroes);
            let error = if full { NbdError::NoSpc } else { NbdError::Inval };
            return Err((error, "past the end of the export"));
        }
        if (offset | length) & u64::from(self.block_sizes.minimum - 1) != 0 {
            return Err((NbdError::Inval, "not aligned to the minimum block size"));
        }
        Ok((Sector::containing(offset), Sectors::in_bytes(length)))
    }

    fn action(&self, command: Command, flags: u16, start: Sector, length: Sectors) -> Action {
        if command == Command::BlockStatus {
            return if !self.allocation {
                Action::Fail(NbdError::Inval, "no metadata context was selected")
            } else if length.is_zero() {
                Action::Fail(NbdError::Inval, "the status of nothing")
            } else {
                Action::Status(start, length, flags & cmd_flag::REQ_ONE != 0)
            };
        }
        if length.is_zero() {
            return Action::Done;
        }
        let fua = flags & cmd_flag::FUA != 0;
        // Only a write carries FUA to the device; what follows other operations is a flush, as the block layer's
        // own emulation does (block/blk-flush.c, 6.12).
        let after = if fua { Durability::FlushAfter } else { Durability::Cached };
        match command {
            Command::Read => Action::Read(start, length),
            Command::Write if fua && self.fua => Action::Write(start, length, Durability::Fua),
            Command::Write => Action::Write(start, length, after),
            // A hint, and one that may be ignored: by a device that cannot discard.
            Command::Trim if !self.trim => Action::Done,
            Command::Trim => Action::Range(Op::Discard, OpFlags::NONE, start, length, after),
            Command::WriteZeroes if flags & cmd_flag::FAST_ZERO != 0 && !self.fast_zero => {
                Action::Fail(NbdError::NotSup, "zeroes are no faster than a write here")
            }
            Command::WriteZeroes => {
                let keep = flags & cmd_flag::NO_HOLE != 0;
                let flags = if keep { OpFlags::NO_UNMAP } else { OpFlags::NONE };
                Action::Range(Op::WriteZeroes, flags, start, length, after)
            }
            // A cache has nothing to do: the data has no better place to be. The others were decided before.
            Command::Cache | Command::Disc | Command::Flush | Command::BlockStatus => Action::Done,
        }
    }
}

#[cfg(test)]
mod tests;
