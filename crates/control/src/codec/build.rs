//! The client's side: building a request.

use super::header::HEADER_LEN;
use super::records::{RawTargetSpec, patch_next, push_text};
use super::{CodecError, Command, DM_MAX_TYPE_NAME, DM_NAME_LEN, DM_UUID_LEN, DmIoctl, Flags, TargetSpec};
use udm_base::{DevT, Sector};
use zerocopy::IntoBytes;

/// The room that libdevmapper gives a result at first (`_flatten`, `libdm-iface.c`, 1.02.185).
const DEFAULT_CAPACITY: usize = 16 * 1024;

/// Builds the buffer of one ioctl.
#[derive(Clone, Debug)]
pub struct RequestBuilder {
    header: DmIoctl,
    data: Vec<u8>,
    capacity: usize,
    fault: Option<CodecError>,
}

impl RequestBuilder {
    /// A request of `command`, with room for 16 KiB where the command answers with data.
    pub fn new(command: Command) -> Self {
        let capacity = if command.has_data() { DEFAULT_CAPACITY } else { HEADER_LEN };
        Self { header: DmIoctl::new(), data: Vec::new(), capacity, fault: None }
    }

    /// The device's name; for [`Command::GetTargetVersion`] the target type's.
    #[must_use]
    pub fn name(mut self, name: &[u8]) -> Self {
        if !self.header.set_name(name) {
            self.fail(format!("a name has at most {} bytes and no zero: got {}", DM_NAME_LEN - 1, name.len()));
        }
        self
    }

    /// The device's uuid.
    #[must_use]
    pub fn uuid(mut self, uuid: &[u8]) -> Self {
        if !self.header.set_uuid(uuid) {
            self.fail(format!("a uuid has at most {} bytes and no zero: got {}", DM_UUID_LEN - 1, uuid.len()));
        }
        self
    }

    /// The device's number.
    #[must_use]
    pub fn dev(mut self, dev: DevT) -> Self {
        self.header.set_device(Some(dev));
        self
    }

    /// Flags, added to those that are set.
    #[must_use]
    pub fn flags(mut self, flags: Flags) -> Self {
        self.header.flags |= flags;
        self
    }

    /// The event number to wait past, or a udev cookie.
    #[must_use]
    pub fn event_nr(mut self, event_nr: u32) -> Self {
        self.header.event_nr = event_nr;
        self
    }

    /// The lowest size of the whole buffer, to leave room for the result.
    #[must_use]
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.capacity = bytes.max(HEADER_LEN);
        self
    }

    /// The lines of the table that [`Command::TableLoad`] loads.
    #[must_use]
    pub fn targets<'a>(mut self, targets: impl IntoIterator<Item = TargetSpec<'a>>) -> Self {
        let mut count = 0;
        for spec in targets {
            count += 1;
            if spec.target_type.len() >= DM_MAX_TYPE_NAME || spec.target_type.contains(&0) {
                let name = String::from_utf8_lossy(spec.target_type);
                self.fail(format!("a target type's name has at most {} bytes: got {name:?}", DM_MAX_TYPE_NAME - 1));
                continue;
            }
            if spec.params.contains(&0) {
                self.fail(format!("the parameters of target {count} have a zero byte in them"));
                continue;
            }
            let at = self.data.len();
            let mut target_type = [0; DM_MAX_TYPE_NAME];
            target_type[..spec.target_type.len()].copy_from_slice(spec.target_type);
            let raw = RawTargetSpec {
                sector_start: spec.start.get(),
                length: spec.len.get(),
                status: spec.status,
                next: 0,
                target_type,
            };
            self.data.extend_from_slice(raw.as_bytes());
            push_text(&mut self.data, spec.params);
            let next = self.data.len() - at;
            patch_next(&mut self.data, at, std::mem::offset_of!(RawTargetSpec, next), next);
        }
        self.header.target_count = count;
        self
    }

    /// The text of [`Command::DevRename`] and [`Command::DevSetGeometry`].
    #[must_use]
    pub fn text(mut self, text: &[u8]) -> Self {
        if text.contains(&0) {
            self.fail("the text has a zero byte in it".into());
        }
        push_text(&mut self.data, text);
        self
    }

    /// The message of [`Command::TargetMsg`] and the sector whose target gets it.
    #[must_use]
    pub fn message(mut self, sector: Sector, message: &[u8]) -> Self {
        self.data.extend_from_slice(&sector.get().to_ne_bytes());
        self.text(message)
    }

    /// The buffer.
    ///
    /// # Errors
    /// What was given does not fit its field.
    pub fn build(mut self) -> Result<Vec<u8>, CodecError> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let size = self.capacity.max(HEADER_LEN + self.data.len());
        self.header.data_size = u32::try_from(size)
            .map_err(|_| CodecError::invalid(format!("a buffer has less than 4 GiB: this one needs {size} bytes")))?;
        let mut buf = Vec::with_capacity(size);
        buf.extend_from_slice(self.header.as_bytes());
        buf.extend_from_slice(&self.data);
        buf.resize(size, 0);
        Ok(buf)
    }

    fn fail(&mut self, message: String) {
        self.fault.get_or_insert_with(|| CodecError::invalid(message));
    }
}
