//! One run of the program: its options, its world, and what it has printed so far.

use super::commands::{CommandType, Listing};
use super::mangle::Mangling;
use super::options::Options;
use super::report::Report;
use super::tree::Tree;
use super::{DmTransport, Env};
use std::fmt::Display;

/// A command failed. Its text goes to standard error; empty when that has been done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Failed(String);

/// What a command comes to.
pub(super) type Done<T = ()> = Result<T, Failed>;

impl Failed {
    /// A failure that is still to be told.
    pub(super) fn new(message: impl Display) -> Self {
        Self(message.to_string())
    }

    /// A failure that has been told.
    pub(super) fn told() -> Self {
        Self(String::new())
    }
}

impl From<String> for Failed {
    fn from(message: String) -> Self {
        Self(message)
    }
}

/// What a command works with.
pub(super) struct App<'a, 'e> {
    pub(super) env: &'a mut Env<'e>,
    /// The name the program was called by, for messages.
    pub(super) program: String,
    pub(super) options: Options,
    pub(super) mangling: Mangling,
    /// The report of `-c`, filled by `info` and `splitname`.
    pub(super) report: Option<Report>,
    /// The command that `-S` runs for each device selected, in place of reporting it.
    pub(super) for_selected: Option<&'static CommandType>,
    /// The devices and what they stand on, once a field or `ls --tree` has asked for it.
    pub(super) tree: Option<Tree>,
    /// The devices of `--json`, printed together at the end.
    pub(super) json: Vec<serde_json::Value>,
    /// The `-o` of `ls` and `deps`.
    pub(super) listing: Listing,
    /// Has `table --concise` printed a device?
    pub(super) concise_begun: bool,
}

impl<'a, 'e> App<'a, 'e> {
    pub(super) fn new(env: &'a mut Env<'e>, program: String, options: Options) -> Self {
        let by_default = env.vars.get("DM_DEFAULT_NAME_MANGLING_MODE").and_then(|mode| Mangling::parse(mode));
        let mangling = options.mangling.or(by_default).unwrap_or_default();
        Self {
            env,
            program,
            options,
            mangling,
            report: None,
            for_selected: None,
            tree: None,
            json: Vec::new(),
            listing: Listing::default(),
            concise_begun: false,
        }
    }

    pub(super) fn transport(&mut self) -> &mut dyn DmTransport {
        self.env.transport
    }

    /// Print to standard output. An error there (a reader that has gone) is found at the end, by
    /// [`flush`](Self::flush).
    pub(super) fn print(&mut self, text: impl Display) {
        let _ = write!(self.env.stdout, "{text}");
    }

    /// Flush standard output, so that it keeps its order with standard error and with other
    /// programs' output.
    pub(super) fn flush(&mut self) {
        let _ = self.env.stdout.flush();
    }

    /// Print to standard error.
    pub(super) fn complain(&mut self, text: impl Display) {
        self.flush();
        let _ = writeln!(self.env.stderr, "{}: {text}", self.program);
    }

    /// Print a list or a usage text to standard error, as it stands.
    pub(super) fn explain(&mut self, text: impl Display) {
        self.flush();
        let _ = write!(self.env.stderr, "{text}");
    }

    /// Tell a failure, unless that has been done.
    pub(super) fn tell(&mut self, failed: &Failed) {
        if !failed.0.is_empty() {
            self.complain(&failed.0);
        }
    }
}
