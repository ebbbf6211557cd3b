//! Telling how far it is, on stderr: a bar on a terminal, a line every few seconds elsewhere, nothing for what is short.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use udm_formats::thin::tools::Progress;

/// What takes less is not told about.
const SHORT: Duration = Duration::from_secs(1);
/// Between two lines.
const LINES: Duration = Duration::from_secs(5);
/// Between two looks of a bar.
const FRAMES: Duration = Duration::from_millis(100);

pub(crate) struct Bar {
    name: &'static str,
    /// Where whoever counts does not know.
    total: Option<u64>,
    quiet: bool,
    next: Instant,
    bar: Option<ProgressBar>,
}

impl Bar {
    pub(crate) fn new(name: &'static str, total: Option<u64>, quiet: bool) -> Self {
        Self { name, total, quiet, next: Instant::now() + SHORT, bar: None }
    }

    /// Takes the bar away, so that something else can be printed.
    pub(crate) fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Progress for Bar {
    fn at(&mut self, done: u64, total: u64) {
        let now = Instant::now();
        if self.quiet || now < self.next {
            return;
        }
        let total = self.total.unwrap_or(total).max(done).max(1);
        if !stderr().is_terminal() {
            self.next = now + LINES;
            let percent = u128::from(done) * 100 / u128::from(total);
            eprintln!("{}: {percent} %", self.name);
            return;
        }
        self.next = now + FRAMES;
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}") {
                bar.set_style(style);
            }
            bar.set_message(self.name);
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
    }
}
