//! The report of `-c`: rows of fields, selected, sorted and laid out as libdevmapper does it
//! (`libdm-report.c`, 1.02.185).

mod output;

pub(super) use output::Layout;

use super::fields::{self, FIELDS, Field, FieldId, Found, Group, Value, field};
use super::select::{self, Selection};

/// A column, shown or only there to sort or select by.
#[derive(Clone, Debug)]
struct Column {
    field: &'static Field,
    hidden: bool,
}

#[derive(Clone, Debug)]
struct Row {
    values: Vec<Value>,
}

/// A key of `-O`.
#[derive(Clone, Copy, Debug)]
struct SortKey {
    column: usize,
    descending: bool,
}

/// A report and the rows it has so far.
#[derive(Debug)]
pub(super) struct Report {
    columns: Vec<Column>,
    keys: Vec<SortKey>,
    selection: Selection,
    layout: Layout,
    rows: Vec<Row>,
    headings_printed: bool,
    /// Rows are not wanted: help was, or statistics, of which there are none.
    silent: bool,
}

/// A report cannot be made: what to say, and what list to print before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ReportError {
    pub(super) message: String,
    pub(super) help: String,
}

/// A new report, and the help that was asked for in place of rows.
pub(super) struct NewReport {
    pub(super) report: Report,
    pub(super) help: String,
}

impl Report {
    /// A report of the fields `options`, sorted by `keys`, of what `selection` selects. `groups`
    /// holds those that `all` stands for; none means every one there is.
    pub(super) fn build(
        options: &str,
        keys: &str,
        selection: Option<&str>,
        groups: Option<Group>,
        layout: Layout,
    ) -> Result<NewReport, ReportError> {
        let mut report = Self {
            columns: Vec::new(),
            keys: Vec::new(),
            selection: Selection::default(),
            layout,
            rows: Vec::new(),
            headings_printed: false,
            silent: false,
        };
        // `all` stands for the groups of the other fields, so these are found first.
        let mut bits = groups.map_or(0, Group::bit);
        let words: Vec<&str> = split(options).collect();
        for word in &words {
            match report.look_up(word, bits, groups)? {
                Found::Field(field) => bits |= field.group.bit(),
                Found::All(more) => bits |= more,
                Found::Statistics => {}
            }
        }
        for key in split(keys) {
            bits |= sort_field(key)?.0.group.bit();
        }
        for word in &words {
            match report.look_up(word, bits, groups)? {
                Found::Field(field) => report.columns.push(Column { field, hidden: false }),
                Found::All(bits) => {
                    let fields = FIELDS.iter().filter(|f| f.group != Group::Special && f.group.bit() & bits != 0);
                    report.columns.extend(fields.map(|field| Column { field, hidden: false }));
                }
                Found::Statistics => report.silent = true,
            }
        }
        for key in split(keys) {
            let (field, descending) = sort_field(key)?;
            let column = report.column(field);
            if !report.keys.iter().any(|k| k.column == column) {
                report.keys.push(SortKey { column, descending });
            }
        }
        let mut help = String::new();
        if report.columns.iter().any(|c| c.field.id == FieldId::Help) {
            help = fields::help(false);
        }
        match selection.unwrap_or("") {
            "" => {}
            "?" => help = select::help(),
            word if word.eq_ignore_ascii_case("help") => help = select::help(),
            text => {
                report.selection = select::parse(text, &mut |field| report.column(field)).map_err(|e| ReportError {
                    message: e.message,
                    help: if e.unknown_field { fields::help(true) } else { String::new() },
                })?;
            }
        }
        report.silent |= !help.is_empty();
        Ok(NewReport { report, help })
    }

    fn look_up(&self, word: &str, bits: u32, groups: Option<Group>) -> Result<Found, ReportError> {
        if word.eq_ignore_ascii_case("all") {
            // With no other field, `all` takes in statistics too, as in dmsetup.
            return Ok(match groups {
                Some(group) => Found::All(group.bit()),
                None if bits == 0 => Found::Statistics,
                None => Found::All(bits),
            });
        }
        fields::find(word).ok_or_else(|| unknown_field(word))
    }

    /// The column of a field, a hidden one where it is not shown.
    fn column(&mut self, field: &'static Field) -> usize {
        self.columns.iter().position(|c| std::ptr::eq(c.field, field)).unwrap_or_else(|| {
            self.columns.push(Column { field, hidden: true });
            self.columns.len() - 1
        })
    }

    /// The fields that a row has a value for, in their order.
    pub(super) fn fields(&self) -> Vec<&'static Field> {
        if self.silent { Vec::new() } else { self.columns.iter().map(|c| c.field).collect() }
    }

    /// Has it a field of that group?
    pub(super) fn wants(&self, group: Group) -> bool {
        !self.silent && self.columns.iter().any(|c| c.field.group == group)
    }

    /// Are rows of no use?
    pub(super) fn is_silent(&self) -> bool {
        self.silent
    }

    /// Add a row of one value a field, in the order of [`fields`](Self::fields); `keep` says
    /// whether it is to be shown. True when it is selected.
    pub(super) fn add(&mut self, mut values: Vec<Value>, keep: bool) -> bool {
        if self.silent {
            return true;
        }
        let selected = self.selection.matches(&values);
        let mut shown = selected;
        for (column, value) in self.columns.iter().zip(&mut values) {
            if column.field.id == FieldId::Selected {
                *value = Value::number(i32::from(selected));
                shown |= !column.hidden;
            }
        }
        if keep && shown {
            self.rows.push(Row { values });
        }
        selected
    }

    fn sort(&mut self) {
        let keys = &self.keys;
        self.rows.sort_by(|a, b| {
            let mut orders = keys.iter().map(|key| {
                let order = match (&a.values[key.column], &b.values[key.column]) {
                    (Value::Number(a, _), Value::Number(b, _)) => a.cmp(b),
                    (a, b) => a.text().as_bytes().cmp(b.text().as_bytes()),
                };
                if key.descending { order.reverse() } else { order }
            });
            orders.find(|o| o.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
        });
    }
}

/// The words between commas; several commas count as one.
fn split(words: &str) -> impl Iterator<Item = &str> {
    // A comma at the end leaves an empty word, which is no field, as in dmsetup.
    let ends_in_comma = words.ends_with(',');
    words.split(',').filter(|w| !w.is_empty()).chain(ends_in_comma.then_some(""))
}

fn sort_field(key: &str) -> Result<(&'static Field, bool), ReportError> {
    let (name, descending) = match key.strip_prefix('-') {
        Some(name) => (name, true),
        None => (key.strip_prefix('+').unwrap_or(key), false),
    };
    field(name).map(|field| (field, descending)).ok_or_else(|| unknown_field(key))
}

fn unknown_field(word: &str) -> ReportError {
    let message = match word {
        "" => "a comma ends the list of fields: a field must follow".to_owned(),
        word => format!("there is no field {word:?}: those there are stand above"),
    };
    ReportError { message, help: fields::help(false) }
}
