//! The daemon's side: building an answer.

use super::header::{HEADER_LEN, MIN_DATA_SIZE};
use super::records::{RawNameList, RawNameTail, RawTargetDeps, RawTargetSpec, RawTargetVersions};
use super::records::{align, patch_next, push_text};
use super::{DM_MAX_TYPE_NAME, DmIoctl, Flags, NameListFlags, Request, TargetSpec, TargetVersion};
use udm_base::DevT;
use zerocopy::IntoBytes;

/// One device of a list (`struct dm_name_list`).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameEntry<'a> {
    /// Its number.
    pub dev: DevT,
    /// Its name.
    pub name: &'a [u8],
    /// Its event number.
    pub event_nr: u32,
    /// Its uuid, where it was asked for ([`Flags::UUID`]) and there is one.
    pub uuid: Option<&'a [u8]>,
}

/// Builds the answer to one request.
///
/// It begins as the request's header: the daemon fills in what it knows of the device by
/// [`header_mut`](Self::header_mut), then adds at most one payload. A payload that does not fit
/// the caller's buffer raises [`Flags::BUFFER_FULL`], and the caller asks again with a larger one.
#[derive(Clone, Debug)]
pub struct Reply {
    header: DmIoctl,
    data: Vec<u8>,
    used: usize,
    room: usize,
    with_uuids: bool,
}

impl Reply {
    /// The answer to `request`, so far without data.
    pub fn to(request: &Request<'_>) -> Self {
        let mut header = request.header().clone();
        header.data_size = MIN_DATA_SIZE as u32;
        Self {
            with_uuids: header.flags.contains(Flags::UUID),
            header,
            data: Vec::new(),
            used: 0,
            room: request.capacity().saturating_sub(HEADER_LEN),
        }
    }

    /// What even a refused request gets: the interface's version and nothing else.
    pub fn version_only() -> Vec<u8> {
        DmIoctl { data_size: MIN_DATA_SIZE as u32, ..DmIoctl::new() }.as_bytes().to_vec()
    }

    /// The header as it will be sent; `data_size` and `data_start` are set by [`finish`](Self::finish).
    pub fn header_mut(&mut self) -> &mut DmIoctl {
        &mut self.header
    }

    /// Did the payload not fit?
    pub fn is_full(&self) -> bool {
        self.header.flags.contains(Flags::BUFFER_FULL)
    }

    /// The list of devices (`list_devices`), which the kernel orders by name. None at all fits
    /// only where a record's first field does.
    pub fn names<'a>(&mut self, devices: impl IntoIterator<Item = NameEntry<'a>>) {
        let mut last = None;
        for device in devices {
            let at = self.data.len();
            if let Some(last) = last {
                patch_next(&mut self.data, last, std::mem::offset_of!(RawNameList, next), at - last);
            }
            last = Some(at);
            self.data.extend_from_slice(RawNameList { dev: device.dev.to_huge(), next: 0 }.as_bytes());
            push_text(&mut self.data, device.name);
            let flags = match (self.with_uuids, device.uuid) {
                (false, _) => 0,
                (true, None) => NameListFlags::DOESNT_HAVE_UUID.0,
                (true, Some(_)) => NameListFlags::HAS_UUID.0,
            };
            self.data.extend_from_slice(RawNameTail { event_nr: device.event_nr, flags }.as_bytes());
            if let (true, Some(uuid)) = (self.with_uuids, device.uuid) {
                push_text(&mut self.data, uuid);
            }
        }
        if self.data.is_empty() {
            // `nl->dev = 0` says that there are none; it is written but not counted.
            self.data.extend_from_slice(&[0; 16]);
            self.all_or_nothing(0, 8);
        } else {
            self.all_or_nothing(self.data.len(), self.data.len());
        }
    }

    /// Each target's line or status (`retrieve_status`). What fits is sent, and the count of
    /// targets is set, even when the buffer is full.
    pub fn targets<'a>(&mut self, targets: impl IntoIterator<Item = TargetSpec<'a>>) {
        let mut count = 0;
        for spec in targets {
            count += 1;
            if self.is_full() {
                continue;
            }
            let at = self.data.len();
            let end = at + size_of::<RawTargetSpec>() + spec.params.len() + 1;
            if end >= self.room || align(end) > self.room {
                self.header.flags |= Flags::BUFFER_FULL;
                continue;
            }
            let mut target_type = [0; DM_MAX_TYPE_NAME];
            let len = spec.target_type.len().min(DM_MAX_TYPE_NAME);
            target_type[..len].copy_from_slice(&spec.target_type[..len]);
            let raw = RawTargetSpec {
                sector_start: spec.start.get(),
                length: spec.len.get(),
                status: spec.status,
                // From the first record, unlike in a request.
                next: align(end) as u32,
                target_type,
            };
            self.data.extend_from_slice(raw.as_bytes());
            push_text(&mut self.data, spec.params);
            self.used = end;
        }
        self.header.target_count = count;
    }

    /// The devices beneath (`retrieve_deps`).
    pub fn deps(&mut self, devices: &[DevT]) {
        self.data.extend_from_slice(RawTargetDeps { count: devices.len() as u32, padding: 0 }.as_bytes());
        for dev in devices {
            self.data.extend_from_slice(&dev.to_huge().to_ne_bytes());
        }
        self.all_or_nothing(self.data.len(), self.data.len());
    }

    /// Target types (`list_versions`, `get_target_version`).
    pub fn versions<'a>(&mut self, types: impl IntoIterator<Item = TargetVersion<'a>>) {
        let mut last = None;
        for kind in types {
            let at = self.data.len();
            if let Some(last) = last {
                patch_next(&mut self.data, last, std::mem::offset_of!(RawTargetVersions, next), at - last);
            }
            last = Some(at);
            self.data.extend_from_slice(RawTargetVersions { next: 0, version: kind.version }.as_bytes());
            push_text(&mut self.data, kind.name);
        }
        self.all_or_nothing(self.data.len(), self.data.len());
    }

    /// The text with which a message answers (`target_message`).
    pub fn message_output(&mut self, text: &[u8]) {
        self.header.flags |= Flags::DATA_OUT;
        self.data.extend_from_slice(text);
        self.data.push(0);
        // As in `buffer_test_overflow`, a text that fills the room may have been cut.
        self.all_or_nothing(self.data.len(), self.data.len() + 1);
    }

    /// The buffer: header and data.
    pub fn finish(mut self) -> Vec<u8> {
        self.header.data_start = HEADER_LEN as u32;
        if self.used > 0 {
            self.header.data_size = (HEADER_LEN + self.used) as u32;
        }
        let mut buf = self.header.as_bytes().to_vec();
        buf.extend_from_slice(&self.data);
        buf
    }

    fn all_or_nothing(&mut self, used: usize, needed: usize) {
        if needed > self.room {
            self.header.flags |= Flags::BUFFER_FULL;
            self.data.clear();
        } else {
            self.used = used;
        }
    }
}
