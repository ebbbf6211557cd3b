//! What was done, how often it was refused, and what took longest.

use crate::watch::lock;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What became of one operation.
#[derive(Clone, Default)]
struct Row {
    done: u64,
    /// There was nothing to do it on.
    skipped: u64,
    refusals: BTreeMap<String, u64>,
    longest: Duration,
    /// The longest command of it.
    command: (Duration, String),
}

/// Rows of operations, and the load.
#[derive(Default)]
pub struct Stats {
    rows: Mutex<BTreeMap<&'static str, Row>>,
    requests: AtomicU64,
    failed: AtomicU64,
}

impl Stats {
    /// A request of the load was answered.
    pub fn answered(&self, ok: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if !ok {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// An operation has ended.
    pub fn ended(&self, name: &'static str, done: bool, time: Duration) {
        let mut rows = lock(&self.rows);
        let row = rows.entry(name).or_default();
        *(if done { &mut row.done } else { &mut row.skipped }) += 1;
        if done {
            row.longest = row.longest.max(time);
        }
    }

    /// A command of an operation has ended.
    pub fn command(&self, name: &'static str, words: &str, time: Duration) {
        let mut rows = lock(&self.rows);
        let row = rows.entry(name).or_default();
        if time > row.command.0 {
            row.command = (time, words.to_owned());
        }
    }

    /// A command was refused, as it may be.
    pub fn refused(&self, name: &'static str, error: &str) {
        *lock(&self.rows).entry(name).or_default().refusals.entry(error.to_owned()).or_default() += 1;
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut text = format!("{:<22} {:>7} {:>7} {:>10}  refused\n", "operation", "done", "skipped", "longest");
        for (name, row) in lock(&self.rows).iter() {
            let refusals: Vec<String> = row.refusals.iter().map(|(error, count)| format!("{count} {error}")).collect();
            let longest = format!("{} ms", row.longest.as_millis());
            text += &format!("{name:<22} {:>7} {:>7} {longest:>10}  {}\n", row.done, row.skipped, refusals.join(", "));
            if row.command.0.as_secs() >= 1 {
                text +=
                    &format!("{:<22} its longest command, {} ms: {}\n", "", row.command.0.as_millis(), row.command.1);
            }
        }
        let (requests, failed) = (self.requests.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed));
        text + &format!("{requests} requests of the load were answered, {failed} of them with an error that may be\n")
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let rows = lock(&self.rows);
        let rows = rows.iter().map(|(name, row)| {
            json!({
                "operation": name,
                "done": row.done,
                "skipped": row.skipped,
                "refused": row.refusals,
                "longest_ms": row.longest.as_millis() as u64,
                "longest_command_ms": row.command.0.as_millis() as u64,
                "longest_command": row.command.1,
            })
        });
        json!({
            "operations": rows.collect::<Vec<_>>(),
            "requests": self.requests.load(Ordering::Relaxed),
            "failed_requests": self.failed.load(Ordering::Relaxed),
        })
    }
}
