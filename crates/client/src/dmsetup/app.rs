//! One run of the program: its options, its world, what it has printed so far, and what a command of it is.

use super::mangle::Mangling;
use super::options::Options;
use super::report::Report;
use super::task::Listed;
use super::tree::{Drawing, Tree};
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

/// A command.
pub(super) struct CommandType {
    pub(super) name: &'static str,
    /// Its arguments, for the usage text.
    pub(super) usage: &'static str,
    pub(super) min: usize,
    pub(super) max: usize,
    pub(super) repeat: Repeat,
    pub(super) run: fn(&mut App<'_, '_>, &Call<'_>) -> Done,
}

/// What several arguments mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repeat {
    /// The command has its own use for them.
    Never,
    /// The command is run for each.
    Each,
    /// So it is, and `-S` can choose devices in their place.
    EachOrSelected,
}

/// One call of a command.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) command: &'static CommandType,
    /// The arguments from this one on.
    pub(super) args: &'a [String],
    /// The device, when the command is run for each of the list.
    pub(super) listed: Option<&'a Listed>,
    /// Is it one of several devices? Then what is printed says which.
    pub(super) one_of_many: bool,
}

impl<'a> Call<'a> {
    /// The device's name: from the list, or the first argument.
    pub(super) fn device(&self) -> Option<&'a str> {
        match self.listed {
            Some(listed) => Some(&listed.name),
            None => self.args.first().map(String::as_str),
        }
    }
}

/// What stands for a device in `ls` and `deps`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum DevNames {
    /// Major and minor.
    #[default]
    Number,
    /// The name as a block device.
    Block,
    /// A mapped device's own name.
    Given,
}

/// The `-o` of `ls` and `deps`.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) names: DevNames,
    pub(super) tree: Option<Drawing>,
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
