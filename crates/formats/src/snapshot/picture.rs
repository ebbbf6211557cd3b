//! What changed, as a picture: where on the origin, and in what order.
//!
//! The size of the picture does not depend on the size of the devices: cells stand for as many chunks as they must.

use super::{Changes, ChunkSize, Exception, Usage};
use std::fmt::Write;
use udm_base::Sectors;

/// What the picture shows.
#[derive(Clone, Debug)]
pub struct Picture<'a> {
    /// The COW device's name.
    pub title: &'a str,
    /// The origin's size.
    pub origin: Sectors,
    /// Whether that is known, or only how far the changes reach.
    pub origin_is_known: bool,
    /// The chunk size.
    pub chunk: ChunkSize,
    /// What changed.
    pub changes: &'a Changes,
    /// The exceptions, in the order in which they were made.
    pub exceptions: &'a [Exception],
    /// How full the COW device is.
    pub usage: Usage,
}

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 84.0;
const MAP_WIDTH: f64 = WIDTH - LEFT - 24.0;
const COLUMNS: u64 = 128;
const MOST_ROWS: u64 = 64;
const CELL: f64 = MAP_WIDTH / COLUMNS as f64;
/// The plot of the order: this many bins each way.
const TIMES: u64 = 224;
const PLACES: u64 = 80;
const PLOT_HEIGHT: f64 = 240.0;
/// From little to all.
const HEAT: [&str; 9] =
    ["#fde9c6", "#fcd39b", "#fbb871", "#f79a52", "#ee7b43", "#dd5a44", "#c23a4e", "#9c2259", "#6d1560"];
const NOTHING: &str = "#eceef1";

impl Picture<'_> {
    /// The picture as SVG. Cost: exceptions and ranges once each; the text has a few hundred kilobytes at most.
    pub fn svg(&self) -> String {
        let mut body = String::new();
        let mut y = 34.0;
        text(&mut body, 24.0, y, "t", "start", &format!("What changed since the snapshot on {}", self.title));
        y += 22.0;
        text(&mut body, 24.0, y, "s", "start", &self.summary());
        y += 20.0;
        self.fill(&mut body, &mut y);
        self.map(&mut body, &mut y);
        self.order(&mut body, &mut y);
        let height = y + 16.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
             height=\"{height}\" font-family=\"system-ui, sans-serif\">\n<style>text{{fill:#2b3440;font-size:12px}}\
             .t{{font-size:19px;font-weight:600}}.s{{font-size:13px;fill:#55606e}}.h{{font-size:14px;font-weight:600}}\
             .a{{font-size:11px;fill:#6b7684}}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
        )
    }

    fn summary(&self) -> String {
        let total = self.changes.total();
        let of = if self.origin_is_known { "of the origin's" } else { "of the first" };
        format!(
            "{} {of} {} ({}) in {} range{} and {} chunk{} of {}",
            size(total),
            size(self.origin),
            percent(total.get(), self.origin.get()),
            self.changes.ranges().len(),
            plural(self.changes.ranges().len()),
            self.exceptions.len(),
            plural(self.exceptions.len()),
            size(self.chunk.sectors()),
        )
    }

    /// A bar: how full the COW device is.
    fn fill(&self, out: &mut String, y: &mut f64) {
        let share = |part: Sectors| ratio(part.get(), self.usage.total.get()).min(1.0) * MAP_WIDTH;
        let (used, metadata) = (share(self.usage.allocated), share(self.usage.metadata));
        text(out, LEFT - 8.0, *y + 11.0, "a", "end", "COW device");
        rect(out, LEFT, *y, MAP_WIDTH, 14.0, NOTHING);
        rect(out, LEFT, *y, used, 14.0, "#5b8db8");
        rect(out, LEFT, *y, metadata, 14.0, "#2f5d84");
        let label = format!(
            "{} of {} used, {} of it metadata",
            percent(self.usage.allocated.get(), self.usage.total.get()),
            size(self.usage.total),
            size(self.usage.metadata)
        );
        *y += 28.0;
        text(out, LEFT, *y, "a", "start", &label);
        *y += 30.0;
    }

    /// The origin, line by line, each cell as hot as much of it has changed.
    fn map(&self, out: &mut String, y: &mut f64) {
        let chunk = self.chunk.sectors().get();
        let chunks = self.origin.get().div_ceil(chunk).max(1);
        let cell = chunks.div_ceil(COLUMNS * MOST_ROWS).next_power_of_two() * chunk;
        let cells = self.origin.get().div_ceil(cell).max(1);
        text(out, LEFT, *y, "h", "start", &format!("Where: a cell is {} of the origin", size(Sectors::new(cell))));
        legend(out, *y);
        *y += 12.0;
        let heat = heat(self.changes, cell, cells as usize);
        for row in 0..cells.div_ceil(COLUMNS) {
            let top = *y + row as f64 * CELL;
            if row % 4 == 0 {
                let label = size(Sectors::new(row * COLUMNS * cell));
                text(out, LEFT - 8.0, top + CELL, "a", "end", &label);
            }
            let line = &heat[(row * COLUMNS) as usize..cells.min((row + 1) * COLUMNS) as usize];
            squares(out, LEFT, top, line);
        }
        *y += cells.div_ceil(COLUMNS) as f64 * CELL + 36.0;
    }

    /// Each exception by its time and its place: a line where the writer went on and on, a cloud where it jumped.
    fn order(&self, out: &mut String, y: &mut f64) {
        text(out, LEFT, *y, "h", "start", "When: the order in which chunks were copied, and where they are");
        *y += 12.0;
        rect(out, LEFT, *y, MAP_WIDTH, PLOT_HEIGHT, "#f7f8f9");
        let bins = self.bins();
        let most = bins.iter().copied().max().unwrap_or(0).max(1);
        let (w, h) = (MAP_WIDTH / TIMES as f64, PLOT_HEIGHT / PLACES as f64);
        for (at, count) in bins.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (place, time) = (at as u64 / TIMES, at as u64 % TIMES);
            // By the logarithm: one jump away from a long line is to be seen.
            let warmth = ((*count as f64).ln_1p() / (most as f64).ln_1p() * 5.0).round() as usize + 3;
            rect(out, LEFT + time as f64 * w, *y + place as f64 * h, w, h, HEAT[warmth.min(HEAT.len() - 1)]);
        }
        text(out, LEFT - 8.0, *y + 10.0, "a", "end", "0");
        text(out, LEFT - 8.0, *y + PLOT_HEIGHT, "a", "end", &size(self.origin));
        *y += PLOT_HEIGHT + 18.0;
        text(out, LEFT, *y, "a", "start", "first");
        text(out, LEFT + MAP_WIDTH, *y, "a", "end", "last copied");
    }

    /// How many exceptions are in each bin of the plot, a row for each place.
    fn bins(&self) -> Vec<u32> {
        let mut bins = vec![0u32; (TIMES * PLACES) as usize];
        let chunks = self.origin.get().div_ceil(self.chunk.sectors().get()).max(1);
        let count = self.exceptions.len() as u64;
        for (number, exception) in (0u64..).zip(self.exceptions) {
            let time = u128::from(number) * u128::from(TIMES) / u128::from(count);
            let place = u128::from(exception.old.min(chunks - 1)) * u128::from(PLACES) / u128::from(chunks);
            let bin = &mut bins[place as usize * TIMES as usize + time as usize];
            *bin = bin.saturating_add(1);
        }
        bins
    }
}

/// The share of each cell that has changed, as an index into the colours; `None` for nothing.
fn heat(changes: &Changes, cell: u64, cells: usize) -> Vec<Option<usize>> {
    let mut changed = vec![0u64; cells];
    for change in changes.ranges() {
        let range = change.range();
        let (mut at, end) = (range.start, range.end.min(cell.saturating_mul(cells as u64)));
        while at < end {
            let next = ((at / cell + 1) * cell).min(end);
            changed[(at / cell) as usize] += next - at;
            at = next;
        }
    }
    changed.into_iter().map(|n| (n > 0).then(|| (ratio(n, cell) * HEAT.len() as f64).ceil() as usize - 1)).collect()
}

/// A line of cells.
fn squares(out: &mut String, x: f64, y: f64, line: &[Option<usize>]) {
    for (column, heat) in line.iter().enumerate() {
        let colour = heat.map_or(NOTHING, |heat| HEAT[heat.min(HEAT.len() - 1)]);
        rect(out, x + column as f64 * CELL, y, CELL - 1.0, CELL - 1.0, colour);
    }
}

fn legend(out: &mut String, y: f64) {
    let step = 16.0;
    let left = LEFT + MAP_WIDTH - step * (HEAT.len() + 1) as f64 - 34.0;
    text(out, left - 6.0, y, "a", "end", "nothing");
    for (i, colour) in [NOTHING].iter().chain(&HEAT).enumerate() {
        rect(out, left + i as f64 * step, y - 10.0, step - 1.0, 11.0, colour);
    }
    text(out, LEFT + MAP_WIDTH, y, "a", "end", "all");
}

fn rect(out: &mut String, x: f64, y: f64, w: f64, h: f64, colour: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{colour}\"/>",
        w.max(0.6),
        h.max(0.6)
    );
}

fn text(out: &mut String, x: f64, y: f64, class: &str, anchor: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace(|c: char| c.is_control(), "\u{fffd}");
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"{anchor}\">{text}</text>");
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn percent(part: u64, whole: u64) -> String {
    match ratio(part, whole) * 100.0 {
        p if part > 0 && p < 0.1 => "< 0.1 %".into(),
        p if p < 10.0 => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 { "" } else { "s" }
}

/// A length as people say it: `512 B`, `8 KiB`, `1.5 GiB`.
pub fn size(sectors: Sectors) -> String {
    let mut n = sectors.get() as f64 * udm_base::SECTOR_SIZE as f64;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].iter().peekable();
    while n >= 1024.0 && units.len() > 1 {
        n /= 1024.0;
        units.next();
    }
    let unit = units.next().unwrap_or(&"");
    if n < 10.0 && n.fract() > 0.049 { format!("{n:.1} {unit}") } else { format!("{n:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(olds: &[u64], origin: u64) -> String {
        let chunk = ChunkSize::new(Sectors::new(16)).unwrap();
        let exceptions: Vec<_> = olds.iter().zip(2..).map(|(old, new)| Exception { old: *old, new }).collect();
        let changes = Changes::of_exceptions(&exceptions, chunk, None);
        let usage = Usage { allocated: Sectors::new(64), total: Sectors::new(1000), metadata: Sectors::new(32) };
        let origin = Sectors::new(origin);
        let title = "a <b> & \u{1b}";
        Picture { title, origin, origin_is_known: true, chunk, changes: &changes, exceptions: &exceptions, usage }.svg()
    }

    #[test]
    fn of_any_device() {
        for (olds, origin) in [
            (vec![], 0),
            (vec![0], 16),
            (vec![1, 2, 3], 1000),
            (vec![9, 3, 1 << 40], 1 << 45),
            ((0..5000).collect(), 1 << 20),
            (vec![100], 16),
        ] {
            let svg = picture(&olds, origin);
            assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
            assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
            assert!(svg.len() < 2_000_000, "{}", svg.len());
            assert!(svg.contains("a &lt;b> &amp; \u{fffd}") && !svg.contains("NaN") && !svg.contains("inf"));
        }
    }

    #[test]
    fn heat_is_the_share_that_changed() {
        let mut changes = Changes::new();
        changes.push(udm_base::Sector::new(10), Sectors::new(1));
        changes.push(udm_base::Sector::new(95), Sectors::new(205));
        assert_eq!(heat(&changes, 100, 4), [Some(0), Some(8), Some(8), None]);
    }

    #[test]
    fn sizes() {
        for (sectors, expect) in [
            (0, "0 B"),
            (1, "512 B"),
            (16, "8 KiB"),
            (3072, "1.5 MiB"),
            (204_800, "100 MiB"),
            (u64::MAX >> 9, "16 EiB"),
        ] {
            assert_eq!(size(Sectors::new(sectors)), expect);
        }
    }
}
