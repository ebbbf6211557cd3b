//! A report and its files.

use crate::chart::Chart;
use crate::machine;
use crate::row::Row;
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use udm_bench::{Error, Spread};

/// What an experiment found.
pub(crate) struct Report {
    /// The experiment's name, and that of its files.
    pub(crate) name: &'static str,
    /// What it is about, for the head of the page.
    pub(crate) title: &'static str,
    /// How it was measured, and what the rows mean: paragraphs.
    pub(crate) method: Vec<String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) charts: Vec<Chart>,
    /// With `--quick`: the figures mean little.
    pub(crate) quick: bool,
    pub(crate) command: String,
}

#[derive(Serialize)]
struct Document<'a> {
    experiment: &'a str,
    version: &'static str,
    machine: String,
    quick: bool,
    command: &'a str,
    rows: &'a [Row],
}

impl Report {
    /// JSON: `rows` and what they were measured on.
    pub(crate) fn json(&self) -> String {
        let document = Document {
            experiment: self.name,
            version: env!("CARGO_PKG_VERSION"),
            machine: machine::describe(),
            quick: self.quick,
            command: &self.command,
            rows: &self.rows,
        };
        let mut text = serde_json::to_string_pretty(&document).expect("rows have no maps, and floats become null");
        text.push('\n');
        text
    }

    /// Markdown, with the picture if there is one.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        if self.quick {
            text.push_str("*A quick run: it shows that the experiment works; its figures mean little.*\n\n");
        }
        for paragraph in &self.method {
            text.push_str(paragraph);
            text.push_str("\n\n");
        }
        if !self.charts.is_empty() {
            let _ = write!(text, "![{}]({}.svg)\n\n", self.title, self.name);
        }
        text.push_str(&table(&self.rows));
        let _ = write!(text, "\nMeasured on {}, by `{}`.\n", machine::describe(), self.command);
        text
    }

    /// Writes `name.json`, `name.md` and, if there are charts, `name.svg` into `folder`, which is made if it is
    /// missing. Blocks.
    pub(crate) fn write(&self, folder: &Path) -> Result<Vec<PathBuf>, Error> {
        let mut files = vec![("json", self.json()), ("md", self.markdown())];
        if !self.charts.is_empty() {
            files.push(("svg", Chart::svg(self.title, &self.charts)));
        }
        let failed = |what: &Path| {
            let what = format!("writing {}", what.display());
            |source| Error::System { what, source }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let mut written = Vec::new();
        for (extension, text) in files {
            let path = folder.join(format!("{}.{extension}", self.name));
            std::fs::write(&path, text).map_err(failed(&path))?;
            written.push(path);
        }
        Ok(written)
    }
}

/// The rows, as a table with the columns that any of them has.
pub(crate) fn table(rows: &[Row]) -> String {
    type Column = (&'static str, fn(&Row) -> Option<String>);
    let columns: [Column; 13] = [
        ("row", |r| Some(r.row.clone())),
        ("policy", |r| r.policy.clone()),
        ("disk", |r| r.disk.clone()),
        ("chunk", |r| r.chunk.map(bytes)),
        ("size", |r| r.size.map(bytes)),
        ("seed", |r| {
            let figure = r.seed_figure.map(|f| with_unit(f, r));
            let ratio = r.seed_ratio.map(|f| format!("{} ×", number(f)));
            let both: Vec<String> = figure.into_iter().chain(ratio).collect();
            (!both.is_empty()).then(|| both.join(", "))
        }),
        ("baseline", |r| Some(with_unit(r.baseline?, r))),
        ("figure", |r| Some(with_unit(r.figure?, r))),
        ("ratio", |r| Some(number(r.ratio?))),
        ("limit", |r| {
            let sign = match r.limit_is? {
                "at least" => "≥",
                "at most" => "≤",
                _ => "=",
            };
            Some(format!("{sign} {}", number(r.limit?)))
        }),
        ("seeks", |r| Some(r.seeks?.to_string())),
        ("spread", |r| {
            let spread = (r.rounds.len() > 1).then(|| Spread::of(&r.rounds))?;
            Some(format!("{} .. {}", number(spread.min), number(spread.max)))
        }),
        ("verdict", |r| {
            let verdict = r.verdict?;
            Some(r.reason.as_ref().map_or_else(|| verdict.to_owned(), |why| format!("{verdict}: {why}")))
        }),
    ];
    let used: Vec<_> = columns.into_iter().filter(|(_, of)| rows.iter().any(|r| of(r).is_some())).collect();
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(used.iter().map(|(name, _)| (*name).to_owned()).collect());
    let numbers = |name: &str| matches!(name, "chunk" | "size" | "baseline" | "figure" | "ratio" | "limit" | "seeks");
    text += &line(used.iter().map(|(name, _)| if numbers(name) { "---:" } else { "---" }.to_owned()).collect());
    for row in rows {
        text += &line(used.iter().map(|(_, of)| of(row).unwrap_or_default().replace('|', "\\|")).collect());
    }
    text
}

fn with_unit(value: f64, row: &Row) -> String {
    format!("{} {}", number(value), row.unit.text()).trim_end().to_owned()
}

/// With three digits that count, and no more than needed.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        _ if value.fract() == 0.0 && value.abs() < 1e15 => 0,
        v if v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

fn bytes(n: u64) -> String {
    match n {
        0 => "0".to_owned(),
        n if n % (1 << 30) == 0 => format!("{} GiB", n >> 30),
        n if n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Limit, Unit};

    fn report() -> Report {
        let row = Row {
            experiment: "thing",
            row: "a | b".into(),
            size: Some(65536),
            figure: Some(12.345),
            baseline: Some(3.0),
            ratio: Some(4.115),
            unit: Unit::GigabytesPerSecond,
            command: "udm bench thing".into(),
            ..Row::default()
        };
        Report {
            name: "thing",
            title: "A thing",
            method: vec!["How.".into()],
            rows: vec![row.clone().judged(Limit::AtLeast(4.0)), Row { row: "c".into(), ..row }],
            charts: vec![],
            quick: true,
            command: "udm bench thing".into(),
        }
    }

    #[test]
    fn tables_have_what_rows_have() {
        let text = table(&report().rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "| row | size | baseline | figure | ratio | limit | verdict |");
        assert_eq!(lines[2], "| a \\| b | 64 KiB | 3 GB/s | 12.3 GB/s | 4.12 | ≥ 4 | pass |");
        assert_eq!(lines[3], "| c | 64 KiB | 3 GB/s | 12.3 GB/s | 4.12 |  |  |");
    }

    #[test]
    fn files() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("new");
        let names: Vec<_> = report().write(&out).unwrap().iter().map(|p| p.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["thing.json", "thing.md"]);
        let json: serde_json::Value = serde_json::from_slice(&std::fs::read(out.join("thing.json")).unwrap()).unwrap();
        assert_eq!(json["rows"][0]["verdict"], "pass");
        assert_eq!(json["rows"][0]["unit"], "GB/s");
        assert!(json["rows"][1]["limit"].is_null());
        let text = std::fs::read_to_string(out.join("thing.md")).unwrap();
        assert!(text.starts_with("# A thing\n") && text.contains("quick run") && text.contains("`udm bench thing`"));
    }
}
