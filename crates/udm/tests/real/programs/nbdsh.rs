//! `nbdsh`: single requests, good and bad.

use super::{outcome, run};
use crate::kinds::Subject;

/// It is a Python program, whose module the first python3 on the path may not have.
const PATH: &str = "PATH=/usr/bin:/bin";
const REQUESTS: &str = include_str!("requests.py");

/// Whether it is there; says so if not.
pub(crate) fn installed() -> bool {
    let (found, _) = outcome("env", &[PATH, "nbdsh", "-c", "pass"]);
    if !found {
        println!("SKIP nbdsh is not installed");
    }
    found
}

/// Runs a script, which finds the export's URI as `uri`. It must succeed.
#[track_caller]
pub(crate) fn script(uri: &str, set: &str, script: &str) -> String {
    run("env", &[PATH, "nbdsh", "-c", &format!("uri = {uri:?}; {set}"), "-c", script])
}

pub(super) fn check(subject: &Subject) {
    script(&subject.uri(), &format!("nature = '{:?}'", subject.nature), REQUESTS);
}
