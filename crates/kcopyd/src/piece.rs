//! What goes as one read and one write to each place.

use super::pages::PageRange;
use std::ops::Range;
use udm_base::Sectors;
use udm_io::{Segment, Status};

/// Part of a job, or several jobs together, on its way.
pub(super) struct Piece {
    pub(super) jobs: Vec<usize>,
    /// Where it begins in the first job.
    pub(super) at: Sectors,
    pub(super) sectors: Sectors,
    pub(super) runs: Vec<PageRange>,
    pub(super) segs: Vec<Segment>,
    /// Lists for places that get a part only, or more, one after the other, and where each begins.
    pub(super) cut: Vec<Segment>,
    pub(super) cuts: Vec<Range<usize>>,
    /// Zeroes behind what each place gets.
    pub(super) pads: Vec<Sectors>,
    /// Reads or writes that are out or ready.
    pub(super) left: usize,
    pub(super) read: Status,
    pub(super) writes: Vec<Status>,
    pub(super) write_out: bool,
}

impl Piece {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            jobs: Vec::new(),
            at: Sectors::ZERO,
            sectors: Sectors::ZERO,
            runs: Vec::new(),
            segs: Vec::new(),
            cut: Vec::new(),
            cuts: Vec::new(),
            pads: Vec::new(),
            left: 0,
            read: Status::Ok,
            writes: Vec::new(),
            write_out: false,
        })
    }
}
