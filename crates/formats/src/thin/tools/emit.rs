//! A pool's mappings as text: thin_dump's XML, and what it calls human readable.

use std::io::{Result, Write};

use crate::thin::Details;

/// What a pool's superblock says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// Nobody sets it: empty, or the bytes up to the first zero.
    pub uuid: String,
    /// The pool's clock.
    pub time: u32,
    /// For user space.
    pub transaction: u64,
    /// [`NEEDS_CHECK`](crate::thin::superblock::NEEDS_CHECK).
    pub flags: u32,
    /// 1 or 2.
    pub version: u32,
    /// In sectors.
    pub data_block_size: u32,
    /// Data blocks; 0 where it is not known.
    pub data_blocks: u64,
}

/// Virtual blocks that follow each other and lie behind each other, mapped at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first virtual block.
    pub block: u64,
    /// The first data block.
    pub data: u64,
    /// How many; never 0.
    pub len: u64,
    /// The pool's time when they were mapped.
    pub time: u32,
}

impl Run {
    /// Takes a mapping in, if it goes on where this ends.
    pub(super) fn extend(&mut self, next: &Self) -> bool {
        let goes_on =
            self.block + self.len == next.block && self.data + self.len == next.data && self.time == next.time;
        if goes_on {
            self.len += next.len;
        }
        goes_on
    }
}

/// Takes a pool apart, in order: a head, then devices with their runs.
pub trait Emit {
    /// The pool begins.
    ///
    /// # Errors
    /// All of these fail when the result cannot be written.
    fn begin(&mut self, head: &Head) -> Result<()>;
    /// A device begins.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    fn device(&mut self, dev: u32, details: &Details) -> Result<()>;
    /// A run of the device.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    fn run(&mut self, run: &Run) -> Result<()>;
    /// The device ends.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    fn end_device(&mut self) -> Result<()>;
    /// The pool ends.
    ///
    /// # Errors
    /// See [`begin`](Self::begin).
    fn end(&mut self) -> Result<()>;
}

/// thin_dump's XML.
pub struct Xml<W>(pub W);

/// Text as an attribute's value.
pub(super) fn quoted(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

impl<W: Write> Emit for Xml<W> {
    fn begin(&mut self, head: &Head) -> Result<()> {
        let Head { uuid, time, transaction, flags, version, data_block_size, data_blocks } = head;
        writeln!(
            self.0,
            "<superblock uuid=\"{}\" time=\"{time}\" transaction=\"{transaction}\" flags=\"{flags}\" \
             version=\"{version}\" data_block_size=\"{data_block_size}\" nr_data_blocks=\"{data_blocks}\">",
            quoted(uuid)
        )
    }

    fn device(&mut self, dev: u32, details: &Details) -> Result<()> {
        let Details { mapped_blocks, transaction_id, creation_time, snapshotted_time } = details;
        writeln!(
            self.0,
            "  <device dev_id=\"{dev}\" mapped_blocks=\"{mapped_blocks}\" transaction=\"{transaction_id}\" \
             creation_time=\"{creation_time}\" snap_time=\"{snapshotted_time}\">"
        )
    }

    fn run(&mut self, run: &Run) -> Result<()> {
        let Run { block, data, len, time } = run;
        match len {
            1 => {
                writeln!(self.0, "    <single_mapping origin_block=\"{block}\" data_block=\"{data}\" time=\"{time}\"/>")
            }
            _ => writeln!(
                self.0,
                "    <range_mapping origin_begin=\"{block}\" data_begin=\"{data}\" length=\"{len}\" time=\"{time}\"/>"
            ),
        }
    }

    fn end_device(&mut self) -> Result<()> {
        writeln!(self.0, "  </device>")
    }

    fn end(&mut self) -> Result<()> {
        writeln!(self.0, "</superblock>")?;
        self.0.flush()
    }
}

/// thin_dump's `human_readable`.
pub struct Human<W>(pub W);

impl<W: Write> Emit for Human<W> {
    fn begin(&mut self, head: &Head) -> Result<()> {
        let Head { uuid, time, transaction, flags, version, data_block_size, data_blocks } = head;
        writeln!(
            self.0,
            "begin superblock: \"{uuid}\", {time}, {transaction}, {flags}, {version}, {data_block_size}, {data_blocks}"
        )
    }

    fn device(&mut self, dev: u32, details: &Details) -> Result<()> {
        let Details { mapped_blocks, transaction_id, creation_time, snapshotted_time } = details;
        writeln!(self.0, "device: {dev}\nmapped_blocks: {mapped_blocks}\ntransaction: {transaction_id}")?;
        writeln!(self.0, "creation time: {creation_time}\nsnap time: {snapshotted_time}")
    }

    fn run(&mut self, run: &Run) -> Result<()> {
        let Run { block, data, len, time } = run;
        match len {
            1 => writeln!(self.0, "    {block} -> {data}, {time}"),
            _ => {
                let (last, last_data) = (block + (len - 1), data + (len - 1));
                writeln!(self.0, "    ({block}..{last}) -> ({data}..{last_data}), {time}")
            }
        }
    }

    fn end_device(&mut self) -> Result<()> {
        writeln!(self.0)
    }

    fn end(&mut self) -> Result<()> {
        writeln!(self.0, "end superblock")?;
        self.0.flush()
    }
}
