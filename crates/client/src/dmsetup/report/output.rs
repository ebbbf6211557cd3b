//! Rows as text.

use super::{Column, Report};
use crate::dmsetup::fields::{FieldType, Value};
use std::fmt::Write;

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

impl Report {
    /// The rows so far as text, which end with it. With `repeat` the headings stand over every
    /// output, not only over the first.
    pub(in crate::dmsetup) fn output(&mut self, repeat: bool) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        self.sort();
        let text = if self.layout.columns_as_rows { self.as_rows() } else { self.as_columns(repeat) };
        self.rows.clear();
        text
    }

    fn shown(&self) -> impl Iterator<Item = (usize, &Column)> {
        self.columns.iter().enumerate().filter(|(_, c)| !c.hidden)
    }

    /// Widths are in bytes, as in libdevmapper.
    fn widths(&self) -> Vec<usize> {
        let width = |(i, column): (usize, &Column)| {
            self.rows.iter().map(|r| r.values[i].text().len()).max().unwrap_or(0).max(column.field.width)
        };
        self.columns.iter().enumerate().map(width).collect()
    }

    fn as_columns(&mut self, repeat: bool) -> String {
        let widths = self.widths();
        let mut text = String::new();
        if self.layout.headings && (repeat || !self.headings_printed) {
            let cells = self.shown().map(|(i, column)| {
                let heading = column.field.heading;
                if self.layout.aligned { pad(heading, widths[i], false) } else { heading.to_owned() }
            });
            line(&mut text, cells, &self.layout.separator);
        }
        for row in &self.rows {
            let cells = self.shown().map(|(i, column)| self.cell(column, &row.values[i], widths[i]));
            line(&mut text, cells, &self.layout.separator);
        }
        self.headings_printed = true;
        text
    }

    fn as_rows(&self) -> String {
        let mut text = String::new();
        for (i, column) in self.shown() {
            let heading = self.layout.headings.then(|| column.field.heading.to_owned());
            let cells = self.rows.iter().map(|row| self.cell(column, &row.values[i], 0));
            line(&mut text, heading.into_iter().chain(cells), &self.layout.separator);
        }
        text
    }

    fn cell(&self, column: &Column, value: &Value, width: usize) -> String {
        let field = column.field;
        let text = if self.layout.aligned && !self.layout.columns_as_rows {
            pad(value.text(), width, field.kind == FieldType::Number)
        } else {
            value.text().to_owned()
        };
        match (self.layout.prefixes, self.layout.quoted) {
            (false, _) => text,
            (true, false) => format!("DM_{}={text}", field.name.to_ascii_uppercase()),
            (true, true) => format!("DM_{}='{text}'", field.name.to_ascii_uppercase()),
        }
    }
}

fn line(text: &mut String, cells: impl Iterator<Item = String>, separator: &str) {
    for (i, cell) in cells.enumerate() {
        if i > 0 {
            text.push_str(separator);
        }
        text.push_str(&cell);
    }
    text.push('\n');
}

fn pad(text: &str, width: usize, right: bool) -> String {
    let fill = width.saturating_sub(text.len());
    let mut out = String::with_capacity(width);
    let space = |out: &mut String| {
        let _ = write!(out, "{:fill$}", "");
    };
    if right {
        space(&mut out);
    }
    out.push_str(text);
    if !right {
        space(&mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{NewReport, Report, ReportError, Value};
    use super::*;

    fn new(options: &str, keys: &str, selection: Option<&str>, layout: Layout) -> Result<NewReport, ReportError> {
        Report::build(options, keys, selection, None, layout)
    }

    /// The rows `(name, minor)` reported.
    fn report(options: &str, keys: &str, selection: Option<&str>, layout: Layout) -> String {
        let mut report = new(options, keys, selection, layout).unwrap_or_else(|e| panic!("{e:?}")).report;
        for (name, minor) in [("b", 2), ("a-long-name-of-a-device", 10), ("ä", 1)] {
            let values = report.fields().into_iter().map(|f| match f.name {
                "name" => Value::String(name.into()),
                "minor" => Value::number(minor),
                "selected" => Value::number(1),
                other => panic!("{other}"),
            });
            let values = values.collect();
            report.add(values, true);
        }
        report.output(false)
    }

    #[test]
    fn columns() {
        let plain = Layout::default;
        let text = report("name,minor", "", None, plain());
        assert_eq!(
            text,
            "Name                    Min\nb                         2\na-long-name-of-a-device  10\nä                        1\n"
        );
        let bare = Layout { aligned: false, headings: false, separator: ":".into(), ..plain() };
        assert_eq!(report("minor,name", "", None, bare.clone()), "2:b\n10:a-long-name-of-a-device\n1:ä\n");
        assert_eq!(report("name", "-minor", None, bare.clone()), "a-long-name-of-a-device\nb\nä\n");
        assert_eq!(report("minor", "+name", None, bare.clone()), "10\n2\n1\n");
        assert_eq!(report("minor", "", Some("name=b||minor=10"), bare.clone()), "2\n10\n");
        assert_eq!(report("minor,selected", "", Some("minor>1"), bare.clone()), "2:1\n10:1\n1:0\n");
        assert_eq!(report("minor", "", Some("selected=1,minor<10"), bare), "2\n1\n");
    }

    #[test]
    fn prefixes_and_rows() {
        let layout = |quoted, columns_as_rows, headings| Layout {
            aligned: false,
            headings,
            prefixes: true,
            quoted,
            columns_as_rows,
            separator: " ".into(),
        };
        assert_eq!(
            report("name,minor", "minor", None, layout(true, false, false)),
            "DM_NAME='ä' DM_MINOR='1'\nDM_NAME='b' DM_MINOR='2'\nDM_NAME='a-long-name-of-a-device' DM_MINOR='10'\n"
        );
        assert_eq!(
            report("name,minor", "minor", Some("minor<3"), layout(false, true, true)),
            "Name DM_NAME=ä DM_NAME=b\nMin DM_MINOR=1 DM_MINOR=2\n"
        );
        let rows = Layout { columns_as_rows: true, ..Layout::default() };
        assert_eq!(report("minor,name", "minor", Some("minor<3"), rows), "Min 1 2\nName ä b\n");
    }

    #[test]
    fn refused() {
        let check = |options: &str, keys: &str, selection: Option<&str>, expect: &str| {
            let Err(error) = new(options, keys, selection, Layout::default()) else { panic!("{options} {keys}") };
            assert!(error.message.contains(expect), "{error:?}");
        };
        check("name,nonsense", "", None, "\"nonsense\"");
        check("name,", "", None, "comma");
        check("name", "--minor", None, "\"--minor\"");
        check("name", "", Some("nonsense=1"), "nonsense");
    }

    #[test]
    fn groups() {
        let names = |options: &str| -> Vec<&str> {
            let new = new(options, "", None, Layout::default()).unwrap_or_else(|e| panic!("{e:?}"));
            new.report.fields().iter().map(|f| f.name).collect()
        };
        assert_eq!(names("splitname_all"), ["subsystem", "vg_name", "lv_name", "lv_layer"]);
        assert_eq!(names("vg_name,,all")[..2], ["vg_name", "subsystem"]);
        assert_eq!(names("all"), [""; 0]);
        assert_eq!(names("name,stats_all"), [""; 0]);
        assert_eq!(names("name,name"), ["name", "name"]);
        let help = new("name,help", "", None, Layout::default()).unwrap_or_else(|e| panic!("{e:?}")).help;
        assert!(help.contains("devnos_used"));
    }

    #[test]
    fn headings_again_for_each_output() {
        let mut report = new("minor", "", None, Layout::default()).unwrap_or_else(|e| panic!("{e:?}")).report;
        let mut output = |repeat| {
            report.add(vec![Value::number(1)], true);
            report.output(repeat)
        };
        assert_eq!(output(false), "Min\n  1\n");
        assert_eq!(output(false), "  1\n");
        assert_eq!(output(true), "Min\n  1\n");
    }
}
