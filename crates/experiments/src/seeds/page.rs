//! The page: five cards on one screen, the pictures beneath.

use super::{Outcome, SEEDS, Seed, Verdicts};
use crate::chart::Chart;
use crate::chart::escape;
use crate::machine;
use crate::report::Report;
use crate::report::number;
use crate::row::Row;
use std::fmt::Write;

const STYLE: &str = "\
:root{--ink:#26303b;--soft:#66727f;--page:#f3f4f2;--card:#fdfdfc;--line:#e3e7eb;--ours:#1f6fd6;--seed:#b9651a;--pass:#1d7f4e;\
--fail:#c0392b}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e8ec;--soft:#98a3af;--page:#0d1014;--card:#14181d;--line:#2a313a;--ours:#5a9cf0;\
--seed:#eaa04f;--pass:#58c08b;--fail:#ef6b5c}}\
*{box-sizing:border-box}body{margin:0;padding:14px 22px;background:var(--page);color:var(--ink);\
font:14px/1.4 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:4px 18px;margin-bottom:10px}\
h1{font-size:22px;margin:0}h2{font-size:16px;margin:0}header p{margin:0;color:var(--soft);font-size:13px}\
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(480px,1fr));gap:14px}\
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;display:flex;flex-direction:column;gap:6px}\
.card h2 small{display:inline;font-size:14px;font-weight:500;margin-right:6px}.card p{margin:0;color:var(--soft);font-size:13px}\
.top{display:flex;justify-content:space-between;align-items:baseline}\
.pick{display:grid;grid-template-columns:148px 1fr 128px 34px;gap:0 10px;align-items:center;padding:4px 0;\
border-top:1px solid var(--line);font-variant-numeric:tabular-nums}\
small{display:block;color:var(--soft);font-size:11.5px;line-height:1.25}.pick b{font-weight:600}\
.bars{position:relative}.bar{display:flex;align-items:center;gap:6px;height:15px;font-size:11.5px}\
.bar i{height:11px;border-radius:2px;min-width:1px}.bar.udm i{background:var(--ours)}.bar.seed i{background:var(--seed)}\
.bar span{white-space:nowrap;position:relative;z-index:1}.bar.udm span{font-weight:650}.bar.seed span{color:var(--seed)}\
.goal{position:absolute;top:-2px;bottom:-2px;border-left:1.5px dashed var(--fail)}.figure{text-align:right}\
.key span{display:inline-flex;align-items:center;gap:6px;margin-right:14px}.key i{width:22px;height:11px;border-radius:2px}\
.pass{color:var(--pass);font-weight:600}.fail{color:var(--fail);font-weight:600}.SKIP{color:var(--soft)}\
.note{color:var(--fail);font-weight:600}\
.card nav{margin-top:auto;font-size:12px}a{color:var(--ours)}\
section{margin-top:26px}section figure{margin:12px 0;max-width:900px}section svg{max-width:100%;height:auto}";

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
        "<article class=\"card\"><h2>How to read this</h2><p class=\"key\"><span><i style=\"background:var(--seed)\"></i>the seed's \
         author, on his machine</span><span><i style=\"background:var(--ours)\"></i>udm, here</span></p>\
         <p>A bar is a figure beside its baseline (×): ours measured in turns with it in this run, the seed's beside the author's own. \
         The dashed line is the goal that the row is judged by. Figures and baselines stand to the right.</p>\
         <p>Measured again by <code>{}</code>. All rows: <a href=\"seeds.md\">table</a>, <a href=\"seeds.json\">JSON</a>.</p>\
         </article>\n</div>\n",
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
    out.push_str("<div>");
    for pick in seed.picks {
        if let Some(row) = pick.find(seed.rows(outcomes)) {
            line(out, pick.label, pick.beside, row);
        }
    }
    out.push_str("</div>\n");
    out.push_str("<nav>");
    for experiment in seed.experiments {
        let name = experiment.name;
        let _ = write!(out, "{name}: <a href=\"#{name}\">plots</a> · <a href=\"{name}.md\">rows</a> · ");
        let _ = write!(out, "<a href=\"{name}.svg\">SVG</a> · <a href=\"{name}.json\">JSON</a> ");
    }
    out.push_str("</nav></article>\n");
}

/// A line of a card: the seed's bar and ours, and the figures behind them.
fn line(out: &mut String, label: &str, beside: &str, row: &Row) {
    let unit = row.unit.text();
    let of = |value: f64| format!("{} {unit}", short(value)).trim_end().to_owned();
    let _ = write!(
        out,
        "<div class=\"pick\"><div><b>{}</b><small>beside {}</small></div><div class=\"bars\">",
        escape(label),
        escape(beside)
    );
    bars(out, row);
    let beside = row.baseline.map(|value| format!("{} beside", short(value)));
    let seed = row.seed_figure.map(|value| format!("seed {}", short(value)));
    let small: Vec<String> = beside.into_iter().chain(seed).collect();
    let why = row.reason.as_ref().map_or_else(String::new, |why| format!(" title=\"{}\"", escape(why)));
    let verdict = row.verdict.unwrap_or("");
    let _ = writeln!(
        out,
        "</div><div class=\"figure\"><b>{}</b><small>{}</small></div><div class=\"{verdict}\"{why}>{verdict}</div></div>",
        escape(&row.figure.map_or_else(String::new, of)),
        escape(&small.join(", ")),
    );
}

/// The seed's ratio and ours, or their figures where there is no ratio, with a mark where the goal is.
fn bars(out: &mut String, row: &Row) {
    let (seed, ours) = match row.ratio {
        Some(ratio) => (row.seed_ratio, Some(ratio)),
        None => (row.seed_figure, row.figure),
    };
    let Some(ours) = ours.filter(|value| value.is_finite()) else {
        let _ = write!(out, "<small>{}</small>", escape(row.reason.as_deref().unwrap_or("not measured")));
        return;
    };
    let times = if row.ratio.is_some() { " ×" } else { "" };
    // The rest is for the figures.
    const LONGEST: f64 = 62.0;
    let longest = [Some(ours), seed, row.limit].into_iter().flatten().fold(f64::MIN_POSITIVE, f64::max);
    let width = |value: f64| value.max(0.0) / longest * LONGEST;
    for (class, value) in [("seed", seed), ("udm", Some(ours))] {
        let Some(value) = value else { continue };
        let _ = write!(
            out,
            "<div class=\"bar {class}\"><i style=\"width:{:.1}%\"></i><span>{}{times}</span></div>",
            width(value),
            short(value)
        );
    }
    if let Some(limit) = row.limit {
        let sign = row.limit_is.unwrap_or("exactly");
        let _ = write!(
            out,
            "<span class=\"goal\" style=\"left:{:.1}%\" title=\"goal: {sign} {}{times}\"></span>",
            width(limit),
            short(limit)
        );
    }
}

/// Thousands as such, since a card is narrow.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 2e4 => format!("{:.0}k", value / 1e3),
        _ => number(value),
    }
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
