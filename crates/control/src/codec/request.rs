//! The daemon's side: reading a request.

use super::header::{HEADER_LEN, MIN_DATA_SIZE, until_zero};
use super::records::{RawTargetSpec, read, text};
use super::{CodecError, Command, DM_NAME_LEN, DM_UUID_LEN, DmIoctl, Flags, INTERFACE_VERSION, TargetSpec};
use udm_base::{DevT, Sector, Sectors};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// A request whose header has been checked as `ctl_ioctl`, `copy_params` and `validate_params` do
/// (`drivers/md/dm-ioctl.c`, 6.12). The payload is checked by the method that reads it.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    command: Command,
    header: DmIoctl,
    secure: bool,
    /// `data_size` bytes.
    buf: &'a [u8],
}

/// How a request names its device (`__find_device_hash_cell`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKey<'a> {
    /// By its name.
    Name(&'a [u8]),
    /// By its uuid.
    Uuid(&'a [u8]),
    /// By its number.
    Dev(DevT),
}

/// The geometry of [`Command::DevSetGeometry`], within the limits of `dev_set_geometry`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Cylinders.
    pub cylinders: u16,
    /// Heads.
    pub heads: u8,
    /// Sectors a track.
    pub sectors: u8,
    /// The first sector.
    pub start: Sector,
}

impl<'a> Request<'a> {
    /// Check a request: the ioctl number, the interface's version, the sizes, and that a name and
    /// a uuid are not both given. The flags that only an answer has are cleared.
    ///
    /// # Errors
    /// ENOTTY for a number that is no command; EINVAL for the rest. Even then the kernel fills in
    /// its version: [`Reply::version_only`](super::Reply::version_only).
    pub fn parse(ioctl_number: u32, buf: &'a [u8]) -> Result<Self, CodecError> {
        if buf.len() < MIN_DATA_SIZE {
            let message = format!("a buffer has at least {MIN_DATA_SIZE} bytes: got {}", buf.len());
            return Err(CodecError::invalid(message));
        }
        let mut header = header_of(buf);
        let [major, minor, patch] = header.version;
        if major != INTERFACE_VERSION[0] || minor > INTERFACE_VERSION[1] {
            let [a, b, c] = INTERFACE_VERSION;
            let message = format!("interface mismatch: udm speaks {a}.{b}.{c}, the caller {major}.{minor}.{patch}");
            return Err(CodecError::invalid(message));
        }
        header.version = INTERFACE_VERSION;
        let command = Command::from_ioctl_number(ioctl_number)?;
        let size = header.data_size as usize;
        if command != Command::Version && !(MIN_DATA_SIZE..=buf.len()).contains(&size) {
            let message = format!("data_size is {size}: expected {MIN_DATA_SIZE} to {}", buf.len());
            return Err(CodecError::invalid(message));
        }
        let secure = header.flags.contains(Flags::SECURE_DATA);
        let of_answers = Flags::BUFFER_FULL | Flags::UEVENT_GENERATED | Flags::SECURE_DATA | Flags::DATA_OUT;
        header.flags.set(of_answers, false);
        let buf = if command.has_data() { &buf[..size] } else { &buf[..MIN_DATA_SIZE] };
        let mut this = Self { command, header, secure, buf };
        this.check_names()?;
        this.header.name[DM_NAME_LEN - 1] = 0;
        this.header.uuid[DM_UUID_LEN - 1] = 0;
        Ok(this)
    }

    fn check_names(&self) -> Result<(), CodecError> {
        use Command as C;
        let symbol = self.command.symbol();
        match self.command {
            C::Version | C::RemoveAll | C::ListDevices | C::ListVersions => Ok(()),
            C::DevCreate if self.name().is_empty() => {
                Err(CodecError::invalid(format!("{symbol} without a name: give the new device one")))
            }
            C::DevCreate => Ok(()),
            _ if !self.name().is_empty() && !self.uuid().is_empty() => {
                Err(CodecError::invalid(format!("{symbol} with both a name and a uuid: give one of them")))
            }
            _ => Ok(()),
        }
    }

    /// The command.
    pub fn command(&self) -> Command {
        self.command
    }

    /// The header as checked: with this interface's version.
    pub fn header(&self) -> &DmIoctl {
        &self.header
    }

    /// The flags.
    pub fn flags(&self) -> Flags {
        self.header.flags
    }

    /// The name: a new device's, a device's, a target type's, or a list's prefix.
    pub fn name(&self) -> &[u8] {
        self.header.name()
    }

    /// The uuid: a new device's, a device's, or a list's prefix.
    pub fn uuid(&self) -> &[u8] {
        self.header.uuid()
    }

    /// Were the buffers to be wiped after use?
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Which device is meant; `None` (the kernel answers ENXIO) when none is named, or when a
    /// number comes with a name or a uuid.
    pub fn device_key(&self) -> Option<DeviceKey<'_>> {
        match (self.name(), self.uuid(), self.header.device()) {
            (name, b"", None) if !name.is_empty() => Some(DeviceKey::Name(name)),
            (b"", uuid, None) if !uuid.is_empty() => Some(DeviceKey::Uuid(uuid)),
            (b"", b"", Some(dev)) => Some(DeviceKey::Dev(dev)),
            _ => None,
        }
    }

    /// The whole buffer's size: what an answer has to fit in.
    pub(super) fn capacity(&self) -> usize {
        self.buf.len()
    }

    /// The lines of the table to load (`populate_table`, `next_target`).
    ///
    /// # Errors
    /// EINVAL: no targets, or one that overlaps what is before it, is not aligned to 8 bytes,
    /// reaches past the end, or whose parameters no zero ends.
    pub fn targets(&self) -> Result<Vec<TargetSpec<'a>>, CodecError> {
        let count = self.header.target_count;
        if count == 0 {
            return Err(CodecError::invalid("the table has no targets"));
        }
        let bad = |i: u32, what: &str| CodecError::invalid(format!("target {} of {count}: {what}", u64::from(i) + 1));
        // The buffer bounds the loop whatever the count says: each turn moves on by a record.
        let mut targets = Vec::new();
        let (mut at, mut next, mut min) = (0, self.header.data_start as usize, HEADER_LEN);
        for i in 0..count {
            if next < min {
                return Err(bad(i, "its record overlaps what is before it"));
            }
            if !next.is_multiple_of(8) {
                return Err(bad(i, "its record is not aligned to 8 bytes"));
            }
            at += next;
            let raw: RawTargetSpec =
                read(self.buf, at).ok_or_else(|| bad(i, "its record reaches past the end of the buffer"))?;
            let params_at = at + size_of::<RawTargetSpec>();
            let params =
                text(self.buf, params_at).ok_or_else(|| bad(i, "its parameters are not ended by a zero byte"))?;
            let type_at = at + std::mem::offset_of!(RawTargetSpec, target_type);
            targets.push(TargetSpec {
                start: Sector::new(raw.sector_start),
                len: Sectors::new(raw.length),
                status: raw.status,
                target_type: until_zero(&self.buf[type_at..params_at]),
                params,
            });
            min = size_of::<RawTargetSpec>() + params.len() + 1;
            next = raw.next as usize;
        }
        Ok(targets)
    }

    /// The text of [`Command::DevRename`]: the new name or, with [`Flags::UUID`], the uuid.
    ///
    /// # Errors
    /// EINVAL: outside the buffer, empty or too long. A slash is the caller's to refuse.
    pub fn new_name(&self) -> Result<&'a [u8], CodecError> {
        let (what, limit) =
            if self.flags().contains(Flags::UUID) { ("uuid", DM_UUID_LEN - 1) } else { ("name", DM_NAME_LEN - 1) };
        match self.data_text(0, &format!("the new {what}"))? {
            b"" => Err(CodecError::invalid(format!("the new {what} is empty"))),
            new if new.len() > limit => {
                Err(CodecError::invalid(format!("the new {what} has {} bytes: at most {limit} fit", new.len())))
            }
            new => Ok(new),
        }
    }

    /// The sector and the text of [`Command::TargetMsg`].
    ///
    /// # Errors
    /// EINVAL: outside the buffer.
    pub fn message(&self) -> Result<(Sector, &'a [u8]), CodecError> {
        let message = self.data_text(8, "the message")?;
        let sector = read::<u64>(self.buf, self.header.data_start as usize);
        let sector = sector.ok_or_else(|| CodecError::invalid("the message's sector is outside the buffer"))?;
        Ok((Sector::new(sector), message))
    }

    /// The geometry of [`Command::DevSetGeometry`].
    ///
    /// # Errors
    /// EINVAL: not four numbers, or one past its limit.
    pub fn geometry(&self) -> Result<Geometry, CodecError> {
        let text = String::from_utf8_lossy(self.data_text(0, "the geometry")?);
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let numbers: Option<Vec<u64>> = words.iter().map(|w| w.parse().ok()).collect();
        let Some(&[cylinders, heads, sectors, start]) = numbers.as_deref() else {
            let message = format!("the geometry {text:?} is not four numbers: cylinders, heads, sectors, start");
            return Err(CodecError::invalid(message));
        };
        let limits =
            || CodecError::invalid(format!("the geometry {text:?} exceeds 65535 cylinders, 255 heads or 255 sectors"));
        Ok(Geometry {
            cylinders: cylinders.try_into().map_err(|_| limits())?,
            heads: heads.try_into().map_err(|_| limits())?,
            sectors: sectors.try_into().map_err(|_| limits())?,
            start: Sector::new(start),
        })
    }

    /// The text `skip` bytes into the data (`invalid_str`).
    fn data_text(&self, skip: usize, what: &str) -> Result<&'a [u8], CodecError> {
        let start = self.header.data_start as usize;
        let found = if start >= MIN_DATA_SIZE { text(self.buf, start.saturating_add(skip)) } else { None };
        found.ok_or_else(|| {
            CodecError::invalid(format!(
                "{what} lies outside the buffer or no zero byte ends it: data_start is {start} of {} bytes",
                self.buf.len()
            ))
        })
    }
}

/// The header at the front of `buf`, which has at least [`MIN_DATA_SIZE`] bytes.
pub(super) fn header_of(buf: &[u8]) -> DmIoctl {
    match DmIoctl::read_from_prefix(buf) {
        Ok((header, _)) => header,
        Err(_) => {
            let mut header = DmIoctl::new_zeroed();
            header.as_mut_bytes()[..MIN_DATA_SIZE].copy_from_slice(&buf[..MIN_DATA_SIZE]);
            header
        }
    }
}
