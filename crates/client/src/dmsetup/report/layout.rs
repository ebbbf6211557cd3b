//! How a report is laid out.

/// How a report is laid out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::dmsetup) struct Layout {
    /// Pad the columns.
    pub(in crate::dmsetup) aligned: bool,
    pub(in crate::dmsetup) headings: bool,
    /// Write `DM_FIELD=value` (`--nameprefixes`).
    pub(in crate::dmsetup) prefixes: bool,
    /// With prefixes: write the values in quotes.
    pub(in crate::dmsetup) quoted: bool,
    /// One line a field rather than one a row (`--rows`).
    pub(in crate::dmsetup) columns_as_rows: bool,
    pub(in crate::dmsetup) separator: String,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            aligned: true,
            headings: true,
            prefixes: false,
            quoted: true,
            columns_as_rows: false,
            separator: " ".into(),
        }
    }
}
