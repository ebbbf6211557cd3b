//! Telling on standard error what a command waits for that takes long. The daemon knows.

use crate::greet::greeted;
use crate::places::Places;
use std::time::Duration;
use udm_control::second::{Client, Request, Underway};

/// How long the daemon may take to say it: the command's own answer may come meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);
/// After how many looks the same is told again: the first time, and from then on.
const AGAIN: [u32; 2] = [10, 60];

/// What has been told of one command.
pub(crate) struct Waiting {
    places: Places,
    /// The last text without its numbers, which grow.
    told: String,
    looks: u32,
    next: u32,
}

impl Waiting {
    pub(crate) fn new(places: Places) -> Self {
        Self { places, told: String::new(), looks: 0, next: AGAIN[0] }
    }

    /// Called every second as long as an answer does not come.
    pub(crate) fn look(&mut self) {
        self.looks += 1;
        let Some(text) = self.ask() else { return };
        let kind: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
        let is_due = self.looks >= self.next;
        if kind != self.told || is_due {
            self.told = kind;
            self.next = self.looks + AGAIN[usize::from(is_due)];
            eprintln!("udm: {text}");
        }
    }

    /// What this process's commands wait for.
    fn ask(&self) -> Option<String> {
        let greet = |stream: std::os::unix::net::UnixStream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            Client::connect(stream)
        };
        let mut answer = greeted(&self.places, greet).ok()??.ask(&Request::Progress).ok()?;
        let underway: Vec<Underway> = serde_json::from_value(answer.get_mut("underway")?.take()).ok()?;
        let mine = underway.into_iter().find(|command| command.pid == Some(std::process::id()))?;
        Some(format!("{} {}", mine.device, mine.waits_for?))
    }
}
