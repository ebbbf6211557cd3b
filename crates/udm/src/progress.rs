//! Telling how far it is, on stderr: a bar on a terminal, a line every few seconds elsewhere, nothing for what is
//! short.

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
        if !stderr().is_terminal() {
            self.next = now + LINES;
            eprintln!("{}", self.line(done, total));
            return;
        }
        self.next = now + FRAMES;
        self.draw(done, total, ProgressDrawTarget::stderr);
    }
}

impl Bar {
    /// Of how much; what is done is never more.
    fn total(&self, done: u64, total: u64) -> u64 {
        self.total.unwrap_or(total).max(done).max(1)
    }

    fn line(&self, done: u64, total: u64) -> String {
        format!("{}: {} %", self.name, u128::from(done) * 100 / u128::from(self.total(done, total)))
    }

    fn draw(&mut self, done: u64, total: u64, on: impl FnOnce() -> ProgressDrawTarget) {
        let total = self.total(done, total);
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::with_draw_target(Some(total), on());
            if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}") {
                bar.set_style(style);
            }
            bar.set_message(self.name);
            bar
        });
        bar.set_length(total);
        bar.set_position(done);
        bar.tick();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use indicatif::TermLike;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// A terminal of one line: what stands in it, and what it has shown.
    #[derive(Clone, Default, Debug)]
    struct Screen(Arc<Mutex<(String, Vec<String>)>>);

    impl TermLike for Screen {
        fn width(&self) -> u16 {
            40
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().0.push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().0.clear();
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            let mut screen = self.0.lock().unwrap();
            let line = screen.0.clone();
            screen.1.push(line);
            Ok(())
        }
    }

    /// As `udm snapshot merge` tells it: sectors of all that there were.
    #[test]
    fn on_a_terminal_a_bar_grows_and_goes() {
        let screen = Screen::default();
        let mut bar = Bar::new("merge", None, false);
        let shown = |done, bar: &mut Bar| {
            bar.draw(done, 4096, || ProgressDrawTarget::term_like(Box::new(screen.clone())));
            let line = screen.0.lock().unwrap().1.last().cloned().unwrap_or_default();
            // How long it still takes is the day's.
            let (told, _) = line.split_once('%').unwrap_or_else(|| panic!("{line:?}"));
            let cells = |what| told.chars().filter(|c| *c == what).count();
            (told.starts_with("merge "), told.trim_end().rsplit(' ').next().map(str::to_owned), cells('█'), cells('░'))
        };
        let (name, percent, full, empty) = shown(0, &mut bar);
        assert_eq!((name, percent.as_deref(), full), (true, Some("0"), 0));
        let width = full + empty;
        assert!(width > 10, "{width} cells");
        let (_, percent, full, empty) = shown(2048, &mut bar);
        assert_eq!(percent.as_deref(), Some("50"));
        assert!(full.abs_diff(width / 2) <= 1 && full.abs_diff(empty) <= 3, "{full} cells of {width}");
        let (_, percent, _, empty) = shown(4096, &mut bar);
        assert_eq!((percent.as_deref(), empty), (Some("100"), 0));
        bar.clear();
        assert_eq!(screen.0.lock().unwrap().0, "", "the line is free again");
    }

    #[test]
    fn elsewhere_it_is_lines() {
        for (known, done, total, expect) in [
            (None, 0, 0, "merge: 0 %"),
            (None, 1, 3, "merge: 33 %"),
            (None, 5, 3, "merge: 100 %"),
            (Some(10), 5, 3, "merge: 50 %"),
            (None, u64::MAX - 1, u64::MAX, "merge: 99 %"),
        ] {
            assert_eq!(Bar::new("merge", known, false).line(done, total), expect);
        }
    }
}
