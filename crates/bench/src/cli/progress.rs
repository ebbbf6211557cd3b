//! Telling how far it is: a line that changes on a terminal, lines elsewhere. On stderr, and between rounds only, so
//! that it takes no time from them.

use crate::report::human::rate;
use crate::{Round, Subject};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};

pub(super) struct Progress {
    /// On a terminal.
    bar: Option<ProgressBar>,
    name: String,
    against: Option<String>,
}

impl Progress {
    pub(super) fn new(subject: &Subject, against: Option<&Subject>) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{elapsed} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, name: subject.name().to_owned(), against: against.map(|s| s.name().to_owned()) }
    }

    /// `what` begins, or has ended with a round.
    pub(super) fn show(&self, what: &str, round: Option<&Round>) {
        let text = match (round, &self.against) {
            (None, _) => what.to_owned(),
            (Some(round), None) => format!("{what}: {} {}", self.name, rate(round.outcome.iops())),
            (Some(round), Some(other)) => {
                let against = round.against.as_ref().map_or(0.0, crate::Outcome::iops);
                let ratio = round.ratio().map_or(String::new(), |r| format!(", ratio {r:.3}"));
                format!("{what}: {} {}, {other} {}{ratio}", self.name, rate(round.outcome.iops()), rate(against))
            }
        };
        match &self.bar {
            Some(bar) => {
                bar.set_message(text);
                bar.tick();
            }
            None if round.is_some() || what.starts_with("filling") => eprintln!("{text}"),
            None => {}
        }
    }

    pub(super) fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
