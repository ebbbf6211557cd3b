//! `udm thin delta`: where two devices of a pool differ (`thin_delta`).

use std::io::Write;

use super::cursor::Cursor;
use super::{Error, Progress, Run, View};
use crate::thin::BlockTime;

/// A device's runs, of any time, one ahead.
struct Runs<'a> {
    cursor: Cursor<'a, BlockTime>,
    ahead: Option<Run>,
    now: Option<Run>,
    read: u64,
}

impl<'a> Runs<'a> {
    fn new(cursor: Cursor<'a, BlockTime>) -> Result<Self, Error> {
        let mut runs = Self { cursor, ahead: None, now: None, read: 0 };
        runs.ahead = runs.mapping()?;
        runs.advance()?;
        Ok(runs)
    }

    fn mapping(&mut self) -> Result<Option<Run>, Error> {
        let next = self.cursor.next()?;
        self.read += u64::from(next.is_some());
        Ok(next.map(|(block, to)| Run { block, data: to.block, len: 1, time: 0 }))
    }

    fn advance(&mut self) -> Result<(), Error> {
        self.now = self.ahead.take();
        while let Some(now) = &mut self.now {
            let mut now = *now;
            let next = self.mapping()?;
            let goes_on = next.as_ref().is_some_and(|next| now.extend(next));
            self.now = Some(now);
            if !goes_on {
                self.ahead = next;
                break;
            }
        }
        Ok(())
    }

    /// Takes `len` blocks off the run.
    fn consume(&mut self, len: u64) -> Result<(), Error> {
        match &mut self.now {
            Some(now) if now.len > len => {
                now.block += len;
                now.data += len;
                now.len -= len;
                Ok(())
            }
            _ => self.advance(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Left,
    Right,
    Different,
    Same,
}

impl Kind {
    fn tag(self) -> &'static str {
        match self {
            Self::Left => "left_only",
            Self::Right => "right_only",
            Self::Different => "different",
            Self::Same => "same",
        }
    }
}

/// What is being written: one element for blocks of one kind.
struct Diff<W> {
    out: W,
    verbose: bool,
    open: Option<(Kind, u64, u64)>,
}

impl<W: Write> Diff<W> {
    fn add(&mut self, kind: Kind, block: u64, data: &[(&str, u64)], len: u64) -> std::io::Result<()> {
        if self.verbose {
            if self.open.is_none_or(|(open, ..)| open != kind) {
                self.close()?;
                writeln!(self.out, "    <{}>", kind.tag())?;
                self.open = Some((kind, 0, 0));
            }
            write!(self.out, "      <range begin=\"{block}\"")?;
            for (name, data) in data {
                write!(self.out, " {name}=\"{data}\"")?;
            }
            return writeln!(self.out, " length=\"{len}\"/>");
        }
        match &mut self.open {
            Some((open, _, end)) if *open == kind && *end == block => *end += len,
            _ => {
                self.close()?;
                self.open = Some((kind, block, block + len));
            }
        }
        Ok(())
    }

    fn close(&mut self) -> std::io::Result<()> {
        match self.open.take() {
            Some((kind, ..)) if self.verbose => writeln!(self.out, "    </{}>", kind.tag()),
            Some((kind, from, to)) => {
                writeln!(self.out, "    <{} begin=\"{from}\" length=\"{}\"/>", kind.tag(), to - from)
            }
            None => Ok(()),
        }
    }
}

/// Writes thin_delta's XML. Reads both devices' leaves side by side and holds one block for each level of each. Blocks.
///
/// # Errors
/// When there is no such device, a block cannot be read or is damaged, or the result cannot be written.
pub fn delta(
    view: &View,
    (left, right): (u32, u32),
    verbose: bool,
    mut out: impl Write,
    progress: &mut dyn Progress,
) -> Result<(), Error> {
    let mut l = Runs::new(view.mappings(view.root(left)?))?;
    let mut r = Runs::new(view.mappings(view.root(right)?))?;
    let devices = view.details(None)?;
    let mapped = |dev: u32| devices.iter().find(|(id, _)| *id == dev).map_or(0, |(_, d)| d.mapped_blocks);
    let total = mapped(left).saturating_add(mapped(right));
    let disk = view.superblock.disk();
    let held = match disk.held_root.get() {
        0 => String::new(),
        at => format!(" metadata_snap=\"{at}\""),
    };
    let (time, transaction, size) = (disk.time.get(), disk.trans_id.get(), disk.data_block_size.get());
    let blocks = view.data_blocks();
    writeln!(
        out,
        "<superblock uuid=\"\" time=\"{time}\" transaction=\"{transaction}\" data_block_size=\"{size}\" \
         nr_data_blocks=\"{blocks}\"{held}>\n  <diff left=\"{left}\" right=\"{right}\">"
    )
    .map_err(Error::output)?;
    let mut diff = Diff { out, verbose, open: None };
    loop {
        let step = match (l.now, r.now) {
            (None, None) => break,
            (Some(a), None) => (Kind::Left, a.len),
            (None, Some(b)) => (Kind::Right, b.len),
            (Some(a), Some(b)) if a.block < b.block => (Kind::Left, a.len.min(b.block - a.block)),
            (Some(a), Some(b)) if a.block > b.block => (Kind::Right, b.len.min(a.block - b.block)),
            (Some(a), Some(b)) if a.data != b.data => (Kind::Different, a.len.min(b.len)),
            (Some(a), Some(b)) => (Kind::Same, a.len.min(b.len)),
        };
        let (kind, len) = step;
        let (a, b) = (l.now.or(r.now), r.now.or(l.now));
        let (Some(a), Some(b)) = (a, b) else { break };
        let written = match kind {
            Kind::Left | Kind::Same => diff.add(kind, a.block, &[("data_begin", a.data)], len),
            Kind::Right => diff.add(kind, b.block, &[("data_begin", b.data)], len),
            Kind::Different => {
                diff.add(kind, a.block, &[("left_data_begin", a.data), ("right_data_begin", b.data)], len)
            }
        };
        written.map_err(Error::output)?;
        if kind != Kind::Right {
            l.consume(len)?;
        }
        if kind != Kind::Left {
            r.consume(len)?;
        }
        progress.at(l.read + r.read, total.max(l.read + r.read));
    }
    diff.close().map_err(Error::output)?;
    let mut out = diff.out;
    writeln!(out, "  </diff>\n</superblock>").and_then(|()| out.flush()).map_err(Error::output)
}
