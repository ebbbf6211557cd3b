//! Pictures of a report: panels of bars or lines beneath each other, as SVG that is readable by day and by night.

use crate::report::number;
use std::fmt::Write;

/// One panel.
pub(crate) enum Chart {
    /// Horizontal bars, in groups.
    Bars { title: String, unit: &'static str, groups: Vec<Group> },
    /// Figures over something that grows.
    #[cfg_attr(not(test), expect(dead_code, reason = "for experiments over time or depth"))]
    Lines { title: String, unit: &'static str, across: &'static str, series: Vec<Series> },
}

/// Bars that belong together.
pub(crate) struct Group {
    pub(crate) label: String,
    pub(crate) bars: Vec<Bar>,
    /// What ours has to reach, and what to call that.
    pub(crate) goal: Option<(f64, String)>,
}

impl Group {
    /// Whether its label and those of its bars do not fit beside each other.
    fn is_crowded(&self) -> bool {
        let longest = self.bars.iter().map(|bar| bar.label.chars().count()).max().unwrap_or(0);
        let label = self.label.chars().count();
        label > 0 && (label + longest) as f64 * LETTER > LEFT - MARGIN - 24.0
    }
}

pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    pub(crate) tone: Tone,
}

pub(crate) struct Series {
    pub(crate) label: String,
    pub(crate) tone: Tone,
    /// In ascending order.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Whose figure it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tone {
    /// What the experiment is about.
    Ours,
    /// The seed's way.
    Seed,
    /// What else it is compared with.
    Other,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Seed => "seed",
            Self::Other => "other",
        }
    }
}

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 24.0;
/// Where bars and axes begin and end.
const LEFT: f64 = 200.0;
const RIGHT: f64 = WIDTH - 120.0;
/// How wide a letter is, about.
const LETTER: f64 = 6.8;
const BAR: f64 = 20.0;
const GAP: f64 = 5.0;
const PLOT: f64 = 240.0;

const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;fill:#26303b}\
.page{fill:#fdfdfc}.h1{font-size:19px;font-weight:650}.h2{font-size:14px;font-weight:600}\
.soft{fill:#66727f;font-size:12px}.value{font-variant-numeric:tabular-nums;font-weight:600;paint-order:stroke;stroke:#fdfdfc;stroke-width:4px}\
.ours{fill:#1f6fd6;stroke:#1f6fd6}.seed{fill:#d9822b;stroke:#d9822b}.other{fill:#a9b4bf;stroke:#a9b4bf}\
.grid{stroke:#e3e7eb}.axis{stroke:#aab3bd}.goal{stroke:#c0392b;stroke-width:1.5;stroke-dasharray:4 3}\
.goaltext{fill:#c0392b;font-size:12px}\
rect.ours,rect.seed,rect.other,circle{stroke:none}polyline{fill:none!important;stroke-width:2.2;stroke-linejoin:round}\
@media(prefers-color-scheme:dark){text{fill:#e4e8ec}.page{fill:#14181d}.value{stroke:#14181d}.soft{fill:#98a3af}.grid{stroke:#2a313a}\
.axis{stroke:#5a6673}.ours{fill:#5a9cf0;stroke:#5a9cf0}.seed{fill:#eaa04f;stroke:#eaa04f}\
.other{fill:#66727f;stroke:#66727f}.goal{stroke:#ef6b5c}.goaltext{fill:#ef6b5c}}";

impl Chart {
    /// All panels with a heading, as one document.
    pub(crate) fn svg(heading: &str, charts: &[Self]) -> String {
        let mut body = String::new();
        let mut y = MARGIN + 22.0;
        text(&mut body, "h1", MARGIN, y, "start", heading);
        y += 26.0;
        for chart in charts {
            y = chart.panel(&mut body, y) + 22.0;
        }
        let height = y + MARGIN - 22.0;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
             height=\"{height:.0}\" role=\"img\"><title>{}</title><style>{STYLE}</style>\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{height:.0}\"/>\n",
            escape(heading)
        );
        svg.push_str(&body);
        svg.push_str("</svg>\n");
        svg
    }

    /// Draws from `y` on, and gives where it ends.
    fn panel(&self, out: &mut String, y: f64) -> f64 {
        match self {
            Self::Bars { title, unit, groups } => bars(out, y, title, unit, groups),
            Self::Lines { title, unit, across, series } => lines(out, y, title, unit, across, series),
        }
    }
}

fn bars(out: &mut String, mut y: f64, title: &str, unit: &str, groups: &[Group]) -> f64 {
    let values = groups.iter().flat_map(|g| g.bars.iter().map(|b| b.value).chain(g.goal.iter().map(|(v, _)| *v)));
    let scale = Scale::new(values.filter(|v| v.is_finite()).fold(0.0, f64::max));
    let x = |value: f64| LEFT + (RIGHT - LEFT) * scale.share(value);
    y += 14.0;
    text(out, "h2", MARGIN, y, "start", title);
    text(out, "soft", RIGHT, y, "end", unit);
    y += 12.0;
    let top = y;
    // Goals first, so that no line runs through a figure.
    let (mut goals, mut rows) = (String::new(), String::new());
    let above = groups.iter().any(Group::is_crowded);
    for group in groups {
        y += 10.0;
        if above {
            text(&mut rows, "", MARGIN, y + 9.0, "start", &group.label);
            y += 16.0;
        }
        let first = y;
        for (index, bar) in group.bars.iter().enumerate() {
            let middle = y + BAR / 2.0 + 4.5;
            if index == 0 && !above {
                text(&mut rows, "", MARGIN, middle, "start", &group.label);
            }
            text(&mut rows, "soft", LEFT - 8.0, middle, "end", &bar.label);
            let end = x(bar.value);
            let _ = writeln!(
                rows,
                "<rect class=\"{}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" rx=\"2\"/>",
                bar.tone.class(),
                (end - LEFT).max(1.0)
            );
            text(&mut rows, "value", end + 6.0, middle, "start", &number(bar.value));
            y += BAR + GAP;
        }
        if let Some((goal, label)) = &group.goal {
            let at = x(*goal);
            line(&mut goals, "goal", (at, first - 4.0), (at, y - GAP + 4.0));
            let anchor = if at > (LEFT + RIGHT) / 2.0 { "end" } else { "start" };
            y += 11.0;
            text(&mut goals, "goaltext", at, y, anchor, label);
            y += 4.0;
        }
    }
    y += 6.0;
    for step in scale.steps() {
        line(out, if step == 0.0 { "axis" } else { "grid" }, (x(step), top), (x(step), y));
        text(out, "soft", x(step), y + 15.0, "middle", &number(step));
    }
    // Between the bars and their figures.
    let is_bar = |line: &&str| line.starts_with("<rect");
    let (bars, texts): (Vec<_>, Vec<_>) = rows.lines().partition(is_bar);
    for part in [bars.join("\n"), goals, texts.join("\n")] {
        out.push_str(part.trim_end());
        out.push('\n');
    }
    y + 20.0
}

fn lines(out: &mut String, mut y: f64, title: &str, unit: &str, across: &str, series: &[Series]) -> f64 {
    let points = || series.iter().flat_map(|s| &s.points).filter(|(x, y)| x.is_finite() && y.is_finite());
    let scale = Scale::new(points().map(|p| p.1).fold(0.0, f64::max));
    let reach = Scale::new(points().map(|p| p.0).fold(0.0, f64::max));
    let left = MARGIN + 46.0;
    y += 14.0;
    text(out, "h2", MARGIN, y, "start", title);
    text(out, "soft", RIGHT, y, "end", unit);
    y += 16.0;
    let (top, bottom) = (y, y + PLOT);
    let at = |(px, py): (f64, f64)| (left + (RIGHT - left) * reach.share(px), bottom - PLOT * scale.share(py));
    for step in scale.steps() {
        let (_, py) = at((0.0, step));
        line(out, if step == 0.0 { "axis" } else { "grid" }, (left, py), (RIGHT, py));
        text(out, "soft", left - 8.0, py + 4.0, "end", &number(step));
    }
    for step in reach.steps() {
        text(out, "soft", at((step, 0.0)).0, bottom + 17.0, "middle", &number(step));
    }
    text(out, "soft", RIGHT, bottom + 33.0, "end", across);
    let mut labels: Vec<(f64, &Series)> = Vec::new();
    for one in series {
        let path: Vec<(f64, f64)> = one.points.iter().map(|&p| at(p)).collect();
        let text: Vec<String> = path.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(out, "<polyline class=\"{}\" points=\"{}\"/>", one.tone.class(), text.join(" "));
        if path.len() <= 40 {
            for (x, y) in &path {
                let _ = writeln!(out, "<circle class=\"{}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>", one.tone.class());
            }
        }
        labels.extend(path.last().map(|p| (p.1, one)));
    }
    // Beside where they end, but never on each other.
    labels.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = top;
    for (end, one) in labels {
        let here = (end + 4.0).max(free);
        text(out, "soft", RIGHT + 8.0, here, "start", &one.label);
        free = here + 15.0;
    }
    bottom + 38.0
}

/// From zero to a round number above the greatest value.
struct Scale {
    top: f64,
    step: f64,
}

impl Scale {
    fn new(greatest: f64) -> Self {
        if greatest <= 0.0 {
            return Self { top: 1.0, step: 1.0 };
        }
        let rough = greatest / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|n| n * power).find(|s| *s >= rough * 0.999);
        let step = step.unwrap_or(rough);
        Self { top: (greatest / step - 1e-9).ceil() * step, step }
    }

    fn share(&self, value: f64) -> f64 {
        if value.is_finite() { (value / self.top).clamp(0.0, 1.0) } else { 0.0 }
    }

    fn steps(&self) -> impl Iterator<Item = f64> {
        let (step, count) = (self.step, (self.top / self.step).round() as usize);
        // Rounded: ten times 0.1 is not 1.
        (0..=count).map(move |n| ((n as f64 * step) * 1e9).round() / 1e9)
    }
}

fn text(out: &mut String, class: &str, x: f64, y: f64, anchor: &str, what: &str) {
    let what = escape(what);
    let _ = writeln!(out, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{what}</text>");
}

fn line(out: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(out, "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>");
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_round() {
        for (greatest, top, step) in
            [(97.0, 100.0, 20.0), (1.0, 1.0, 0.2), (8137.0, 10000.0, 2000.0), (0.0, 1.0, 1.0), (0.3, 0.3, 0.1)]
        {
            let scale = Scale::new(greatest);
            assert!(
                (scale.top - top).abs() < 1e-9 && (scale.step - step).abs() < 1e-9,
                "{greatest}: {} {}",
                scale.top,
                scale.step
            );
        }
        assert_eq!(Scale::new(0.3).steps().collect::<Vec<_>>(), [0.0, 0.1, 0.2, 0.3]);
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        let bar = |label: &str, value, tone| Bar { label: label.into(), value, tone };
        let chart = Chart::Bars {
            title: "a < b".into(),
            unit: "GB/s",
            groups: vec![Group {
                label: "L2".into(),
                bars: vec![
                    bar("ours", 100.0, Tone::Ours),
                    bar("seed", 25.0, Tone::Seed),
                    bar("none", f64::NAN, Tone::Other),
                ],
                goal: Some((50.0, "goal".into())),
            }],
        };
        let svg = Chart::svg("x & y", &[chart]);
        let width = |class: &str| {
            let rest = svg.split(&format!("<rect class=\"{class}\"")).nth(1)?;
            rest.split("width=\"").nth(1)?.split('"').next()?.parse::<f64>().ok()
        };
        assert_eq!(width("ours"), width("seed").map(|w| w * 4.0));
        assert!(svg.contains("a &lt; b") && svg.contains("x &amp; y") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn lines_stay_within() {
        let series = vec![
            Series { label: "a".into(), tone: Tone::Ours, points: vec![(1.0, 10.0), (32.0, 400.0)] },
            Series { label: "b".into(), tone: Tone::Other, points: vec![(1.0, 9.0), (32.0, 399.0)] },
        ];
        let svg = Chart::svg("x", &[Chart::Lines { title: "t".into(), unit: "k", across: "depth", series }]);
        let points = svg.split("points=\"").skip(1).flat_map(|p| p.split('"').next().unwrap().split(' '));
        for point in points {
            let (x, y) = point.split_once(',').unwrap();
            assert!((MARGIN..=WIDTH).contains(&x.parse().unwrap()) && y.parse::<f64>().unwrap() > 0.0, "{point}");
        }
    }
}
