//! The page: five cards on one screen, the pictures beneath.

use super::{Outcome, SEEDS, Seed, Verdicts};
use crate::experiment::chart::escape;
use crate::experiment::report::number;
use crate::experiment::{Bar, Chart, Group, Report, Row, Tone, machine};
use std::fmt::Write;

const STYLE: &str = "\
:root{--ink:#26303b;--soft:#66727f;--page:#f3f4f2;--card:#fdfdfc;--line:#e3e7eb;--ours:#1f6fd6;--seed:#b9651a;--pass:#1d7f4e;\
--fail:#c0392b}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#98a3af;--page:#0d1014;--card:#14181d;--line:#2a313a;--ours:#5a9cf0;\
--seed:#eaa04f;--pass:#58c08b;--fail:#ef6b5c}}\
*{box-sizing:border-box}body{margin:0;padding:18px 22px;background:var(--page);color:var(--ink);\
font:14px/1.4 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 18px;margin-bottom:14px}\
h1{font-size:22px;margin:0}h2{font-size:16px;margin:0}header p,footer{margin:0;color:var(--soft);font-size:13px}\
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(470px,1fr));gap:14px}\
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px;display:flex;flex-direction:column;gap:8px}\
.card h2 small{color:var(--soft);font-weight:500;margin-right:6px}.card p{margin:0;color:var(--soft);font-size:13px}\
.top{display:flex;justify-content:space-between;align-items:baseline}\
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}\
th{font-weight:500;color:var(--soft);text-align:right;padding:2px 0 2px 8px;border-bottom:1px solid var(--line)}\
td{text-align:right;padding:2px 0 2px 8px;white-space:nowrap}th:first-child,td:first-child{text-align:left;padding-left:0;white-space:normal}\
td small{color:var(--soft)}td.ours{color:var(--ours);font-weight:650}td.seed{color:var(--seed)}\
.pass{color:var(--pass);font-weight:600}.fail{color:var(--fail);font-weight:600}.SKIP{color:var(--soft)}\
.note{color:var(--fail);font-weight:600}\
.card svg{width:100%;height:auto;display:block}.card nav{margin-top:auto;font-size:12px}a{color:var(--ours)}\
section{margin-top:26px}section figure{margin:12px 0;max-width:900px}section svg{max-width:100%;height:auto}footer{margin-top:14px}";

/// The whole document.
pub(super) fn html(outcomes: &[Outcome], report: &Report) -> String {
    let mut out = String::new();
    let verdicts = Verdicts::of(report.rows.iter()).text();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body>\n\
         <header><h1>{title}</h1><p>{}</p><p>{verdicts}</p>{}</header>\n<div class=\"cards\">\n",
        escape(&machine::describe()),
        if report.quick { "<p class=\"note\">A quick run: its figures mean little.</p>" } else { "" },
        title = escape(report.title),
    );
    for seed in SEEDS {
        card(&mut out, seed, outcomes);
    }
    let _ = write!(
        out,
        "</div>\n<footer>× is the figure beside its baseline, measured in turns in this run; the seed's × beside its own. \
         <code>{}</code> measures it again. All rows: <a href=\"seeds.md\">table</a>, <a href=\"seeds.json\">JSON</a>.</footer>\n",
        escape(&report.command)
    );
    for report in outcomes.iter().filter_map(|outcome| outcome.found.as_ref().ok()) {
        if !report.charts.is_empty() {
            let picture = Chart::svg(report.title, &report.charts);
            let _ = writeln!(out, "<section id=\"{}\"><figure>{picture}</figure></section>", report.name);
        }
    }
    out.push_str("</body></html>\n");
    out
}

fn card(out: &mut String, seed: &Seed, outcomes: &[Outcome]) {
    let verdicts = Verdicts::of(seed.rows(outcomes));
    let kind = if verdicts.fail > 0 { "fail" } else { "pass" };
    let _ = writeln!(
        out,
        "<article class=\"card\"><div class=\"top\"><h2><small>{}</small>{}</h2><span class=\"{kind}\">{}</span></div><p>{}</p>",
        seed.number,
        escape(seed.title),
        verdicts.text(),
        escape(seed.claim)
    );
    for outcome in outcomes {
        let is_ours = seed.experiments.iter().any(|e| e.name == outcome.experiment.name);
        if let (true, Err(why)) = (is_ours, &outcome.found) {
            let _ = write!(out, "<p class=\"note\">{}: not measured: {}</p>", outcome.experiment.name, escape(why));
        }
    }
    out.push_str(
        "<table><tr><th></th><th>the seed</th><th>beside</th><th>udm</th><th>×</th><th>goal</th><th></th></tr>\n",
    );
    let mut groups = Vec::new();
    for pick in seed.picks {
        let Some(row) = pick.find(seed.rows(outcomes)) else { continue };
        line(out, pick.label, pick.beside, row);
        groups.extend(group(pick.label, row));
    }
    out.push_str("</table>\n");
    if !groups.is_empty() {
        let chart = Chart::Bars { title: "times its baseline".to_owned(), unit: "×", groups };
        out.push_str(&Chart::svg_bare(&[chart]));
    }
    out.push_str("<nav>");
    for experiment in seed.experiments {
        let name = experiment.name;
        let _ = write!(out, "{name}: <a href=\"#{name}\">plots</a> · <a href=\"{name}.md\">rows</a> · ");
        let _ = write!(out, "<a href=\"{name}.svg\">SVG</a> · <a href=\"{name}.json\">JSON</a> ");
    }
    out.push_str("</nav></article>\n");
}

/// A line of a card's table.
fn line(out: &mut String, label: &str, beside: &str, row: &Row) {
    let unit = row.unit.text();
    let with_unit = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{} {unit}", short(v)));
    let times = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{} ×", number(v)));
    let seed: Vec<String> =
        [with_unit(row.seed_figure), times(row.seed_ratio)].into_iter().filter(|t| !t.is_empty()).collect();
    let goal = row.limit.map_or_else(String::new, |limit| {
        let sign = match row.limit_is {
            Some("at most") => "≤",
            Some("at least") => "≥",
            _ => "=",
        };
        format!("{sign} {}", short(limit))
    });
    let verdict = row.verdict.unwrap_or("");
    let why = row.reason.as_ref().map_or_else(String::new, |why| format!(" title=\"{}\"", escape(why)));
    let _ = writeln!(
        out,
        "<tr><td>{} <small>/ {}</small></td><td class=\"seed\">{}</td><td>{}</td><td class=\"ours\">{}</td>\
         <td class=\"ours\">{}</td><td>{goal}</td><td class=\"{verdict}\"{why}>{verdict}</td></tr>",
        escape(label),
        escape(beside),
        escape(&seed.join(", ")),
        escape(&with_unit(row.baseline)),
        escape(&with_unit(row.figure)),
        row.ratio.map_or_else(String::new, number),
    );
}

/// Thousands as such, since a card is narrow.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 2e4 => format!("{:.0}k", value / 1e3),
        _ => number(value),
    }
}

/// The seed's ratio and ours, with the goal.
fn group(label: &str, row: &Row) -> Option<Group> {
    let bar = |label: &str, value, tone| Bar { label: label.to_owned(), value, tone };
    let ours = row.ratio.filter(|ratio| ratio.is_finite())?;
    let mut bars = vec![bar("udm", ours, Tone::Ours)];
    if let Some(seed) = row.seed_ratio {
        bars.insert(0, bar("the seed", seed, Tone::Seed));
    }
    let goal = row.limit.filter(|_| row.limit_is == Some("at least"));
    Some(Group { label: label.to_owned(), bars, goal: goal.map(|goal| (goal, String::new())) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        for (value, text) in [(1272e3, "1.27M"), (110_700.0, "111k"), (8137.0, "8137"), (2.0, "2"), (0.914, "0.914")] {
            assert_eq!(short(value), text);
        }
    }
}
