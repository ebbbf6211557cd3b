//! The client's side: reading an answer.

use super::header::{HEADER_LEN, MIN_DATA_SIZE, until_zero};
use super::records::{RawNameList, RawNameTail, RawTargetDeps, RawTargetSpec, RawTargetVersions, align, read, text};
use super::request::header_of;
use super::{CodecError, DmIoctl, Flags, NameEntry, NameListFlags, TargetSpec, TargetVersion};
use udm_base::{DevT, Errno, Sector, Sectors};

/// An answer. The payload is checked by the method that reads it, which is for the command asked.
#[derive(Clone, Debug)]
pub struct Response<'a> {
    header: DmIoctl,
    buf: &'a [u8],
}

impl<'a> Response<'a> {
    /// The answer in `buf`.
    ///
    /// # Errors
    /// EPROTO when it is shorter than a header.
    pub fn parse(buf: &'a [u8]) -> Result<Self, CodecError> {
        if buf.len() < MIN_DATA_SIZE {
            return Err(broken(format!("an answer has at least {MIN_DATA_SIZE} bytes: got {}", buf.len())));
        }
        Ok(Self { header: header_of(buf), buf })
    }

    /// The header.
    pub fn header(&self) -> &DmIoctl {
        &self.header
    }

    /// Was the request's buffer too small for the result?
    pub fn is_full(&self) -> bool {
        self.header.flags.contains(Flags::BUFFER_FULL)
    }

    fn data(&self) -> &'a [u8] {
        self.buf.get((self.header.data_start as usize).max(MIN_DATA_SIZE)..).unwrap_or(&[])
    }

    /// The list of devices.
    ///
    /// # Errors
    /// EPROTO when a record lies outside the answer.
    pub fn names(&self) -> Result<Vec<NameEntry<'a>>, CodecError> {
        let data = self.data();
        let mut names = Vec::new();
        let mut at = 0;
        loop {
            let bad = || broken(format!("entry {} of the list of devices reaches past the answer", names.len() + 1));
            let Some(raw) = read::<RawNameList>(data, at) else {
                return if at == 0 && data.len() < 8 { Ok(names) } else { Err(bad()) };
            };
            if raw.dev == 0 {
                return Ok(names);
            }
            let name_at = at + size_of::<RawNameList>();
            let name = text(data, name_at).ok_or_else(bad)?;
            let tail_at = align(name_at + name.len() + 1);
            let tail: RawNameTail = read(data, tail_at).ok_or_else(bad)?;
            let uuid = if tail.flags & NameListFlags::HAS_UUID.0 != 0 {
                Some(text(data, tail_at + size_of::<RawNameTail>()).ok_or_else(bad)?)
            } else {
                None
            };
            let next = raw.next as usize;
            if next != 0 && next < tail_at - at {
                return Err(broken(format!("entry {} of the list of devices overlaps the next", names.len() + 1)));
            }
            names.push(NameEntry { dev: DevT::from_huge(raw.dev), name, event_nr: tail.event_nr, uuid });
            if next == 0 {
                return Ok(names);
            }
            at += next;
        }
    }

    /// Each target's line or status.
    ///
    /// # Errors
    /// EPROTO when a record lies outside the answer.
    pub fn targets(&self) -> Result<Vec<TargetSpec<'a>>, CodecError> {
        let data = self.data();
        let mut targets = Vec::new();
        let mut at = 0;
        for i in 0..self.header.target_count {
            let bad = |what: &str| broken(format!("target {} of {}: {what}", i + 1, self.header.target_count));
            let raw: RawTargetSpec = read(data, at).ok_or_else(|| bad("its record reaches past the answer"))?;
            let params_at = at + size_of::<RawTargetSpec>();
            let params = text(data, params_at).ok_or_else(|| bad("no zero byte ends its text"))?;
            let type_at = at + std::mem::offset_of!(RawTargetSpec, target_type);
            targets.push(TargetSpec {
                start: Sector::new(raw.sector_start),
                len: Sectors::new(raw.length),
                status: raw.status,
                target_type: until_zero(&data[type_at..params_at]),
                params,
            });
            // From the first record, unlike in a request.
            let next = raw.next as usize;
            if next <= params_at && i + 1 < self.header.target_count {
                return Err(bad("the next record overlaps it"));
            }
            at = next;
        }
        Ok(targets)
    }

    /// The devices beneath.
    ///
    /// # Errors
    /// EPROTO when the array reaches past the answer.
    pub fn deps(&self) -> Result<Vec<DevT>, CodecError> {
        let data = self.data();
        if data.is_empty() {
            return Ok(Vec::new());
        }
        let bad = || broken("the list of devices beneath reaches past the answer".into());
        let head: RawTargetDeps = read(data, 0).ok_or_else(bad)?;
        let array = &data[size_of::<RawTargetDeps>()..];
        let array = (head.count as usize).checked_mul(8).and_then(|len| array.get(..len)).ok_or_else(bad)?;
        Ok((0..head.count as usize).filter_map(|i| read::<u64>(array, i * 8)).map(DevT::from_huge).collect())
    }

    /// Target types and their versions.
    ///
    /// # Errors
    /// EPROTO when a record lies outside the answer.
    pub fn versions(&self) -> Result<Vec<TargetVersion<'a>>, CodecError> {
        let data = self.data();
        let mut types = Vec::new();
        let mut at = 0;
        loop {
            let bad = || broken(format!("entry {} of the list of targets reaches past the answer", types.len() + 1));
            let Some(raw) = read::<RawTargetVersions>(data, at) else {
                return if at == 0 && data.is_empty() { Ok(types) } else { Err(bad()) };
            };
            let name_at = at + size_of::<RawTargetVersions>();
            let name = text(data, name_at).ok_or_else(bad)?;
            let next = raw.next as usize;
            if next != 0 && next < name_at - at + name.len() + 1 {
                return Err(broken(format!("entry {} of the list of targets overlaps the next", types.len() + 1)));
            }
            types.push(TargetVersion { name, version: raw.version });
            if next == 0 {
                return Ok(types);
            }
            at += next;
        }
    }

    /// The text with which a message answered; `None` when it did not.
    ///
    /// # Errors
    /// EPROTO when no zero byte ends it.
    pub fn message_output(&self) -> Result<Option<&'a [u8]>, CodecError> {
        if !self.header.flags.contains(Flags::DATA_OUT) || self.is_full() {
            return Ok(None);
        }
        let end = self.buf.len().min(self.header.data_size as usize);
        let start = (self.header.data_start as usize).max(HEADER_LEN);
        let found = self.buf.get(start..end).and_then(|data| text(data, 0));
        found.map(Some).ok_or_else(|| broken("no zero byte ends the message's answer".into()))
    }
}

fn broken(message: String) -> CodecError {
    CodecError::new(Errno::EPROTO, message)
}
