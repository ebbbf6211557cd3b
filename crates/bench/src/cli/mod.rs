//! The command `udm bench`.

pub mod experiments;
mod numbers;
mod options;
mod progress;

use crate::report::{Report, human, json};
use crate::stack::Setting;
use crate::subject::MEMCPY;
use crate::{Error, Fill, Load, Stack, Subject, compare};
use clap::{CommandFactory, FromArgMatches};
use options::Options;
use progress::Progress;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use udm_io::Domain;
use udm_nbd::uri::{Endpoint, Uri};

/// What the command finds around it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// The daemon's NBD socket, where devices that it serves are found by name; it need not exist.
    pub nbd_socket: Option<&'a Path>,
    /// The program with the experiments, if it was found.
    pub experiments: Option<&'a Path>,
}

/// Runs the command with the arguments that follow `bench`, and gives the exit code: 0, 1 when the measurement failed
/// or data was wrong, 2 when the arguments are. Prints to stdout and stderr. Blocks as long as the measurement takes. A
/// first word that is no option names an experiment: the program with the experiments takes the place of this process.
pub fn run(args: impl IntoIterator<Item = OsString>, around: Surroundings<'_>) -> u8 {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.first().is_some_and(|word| !word.as_encoded_bytes().starts_with(b"-")) {
        return complain(&experiments::take_over(around.experiments, &args), 1);
    }
    let words = std::iter::once(OsString::from("udm bench")).chain(args);
    let command = Options::command().after_help(experiments::list(around.experiments));
    let options = match command.try_get_matches_from(words).and_then(|m| Options::from_arg_matches(&m)) {
        Ok(options) => options,
        Err(e) => return refuse(&e),
    };
    exit_code(bench(&options, around.nbd_socket, &mut io::stdout().lock()).map_err(|failure| match failure {
        // What does not fit was said in the options.
        Failure::Bench(e @ (Error::Load(_) | Error::Stack(_))) => Failure::Usage(e.to_string()),
        other => other,
    }))
}

/// Prints what clap has to say of the arguments, and gives the exit code: 2 when they are wrong, 0 when help was asked
/// for.
pub fn refuse(error: &clap::Error) -> u8 {
    // The reader of a pipe that is closed does not want to read why.
    let _ = error.print();
    if error.use_stderr() { 2 } else { 0 }
}

/// Prints why a command failed, and gives its exit code.
pub fn exit_code(done: Result<(), Failure>) -> u8 {
    match done {
        Ok(()) => 0,
        Err(Failure::Usage(text)) => complain(&text, 2),
        Err(Failure::Bench(e)) => complain(&e.to_string(), 1),
        // The reader has gone: it has what it wanted.
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(Failure::Output(e)) => complain(&format!("writing the result: {e}"), 1),
    }
}

/// Prints a complaint of the command's; gives `code`.
pub fn complain(text: &str, code: u8) -> u8 {
    eprintln!("udm bench: {text}");
    code
}

/// Why the command failed.
#[derive(Debug)]
pub enum Failure {
    /// The arguments are wrong.
    Usage(String),
    /// The measurement failed.
    Bench(Error),
    /// The result cannot be written.
    Output(io::Error),
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Self::Bench(e)
    }
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Self {
        Self::Output(e)
    }
}

fn bench(options: &Options, nbd_socket: Option<&Path>, out: &mut impl Write) -> Result<(), Failure> {
    let load = options.load();
    load.check()?;
    let domain = Domain::default();
    domain.poll_as(options.polling());
    let stack = options.concise.as_deref().map(|text| Stack::new(&domain, text)).transpose()?;
    for text in &options.set {
        let (name, setting) = parse_set(text).map_err(Failure::Usage)?;
        let missing = || Failure::Usage(format!("--set {text}: names a device of --concise, which is not given"));
        stack.as_ref().ok_or_else(missing)?.set(name, setting)?;
    }
    let read_only = !load.rw.writes() && load.fill != Fill::Yes;
    let finder = Finder { domain: &domain, stack, nbd_socket, read_only };
    let (subject, against) = finder.subjects(options, &load)?;
    let progress = Progress::new(&subject, against.as_ref());
    let found = compare(&domain, &subject, against.as_ref(), &load, options.rounds, |what, round| {
        progress.show(what, round);
    });
    progress.end();
    let report = Report { load: &load, subject: &subject, against: against.as_ref(), found: &found? };
    if options.json {
        json::write(&report, out)?;
    } else {
        human::write(&report, out)?;
    }
    Ok(out.flush()?)
}

/// Finds what the options name.
struct Finder<'a> {
    domain: &'a Domain,
    stack: Option<Stack>,
    nbd_socket: Option<&'a Path>,
    read_only: bool,
}

impl Finder<'_> {
    /// A device of --concise, a path or URI, or a device of the daemon.
    fn device(&self, option: &str, name: &str) -> Result<Subject, Failure> {
        if let Some(stack) = self.stack.as_ref().filter(|stack| stack.has(name)) {
            return Ok(stack.subject(name)?);
        }
        if let Some(socket) = name.strip_prefix(crate::front::PREFIX) {
            return Ok(Subject::vhost_user(name, Path::new(socket))?);
        }
        if name.contains(['/', ':']) {
            return Ok(Subject::open(self.domain, name, name, self.read_only)?);
        }
        if let Some(stack) = &self.stack {
            return Ok(stack.subject(name)?);
        }
        let Some(socket) = self.nbd_socket.filter(|socket| socket.exists()) else {
            let text = format!(
                "{option} {name}: expected a device of --concise, which is not given, or of a running daemon; none runs"
            );
            return Err(Failure::Usage(text));
        };
        let uri = Uri { endpoint: Endpoint::Unix(socket.to_owned()), export: name.to_owned() };
        Ok(Subject::open(self.domain, name, &uri.to_string(), self.read_only)?)
    }

    /// What is measured, and beside what. Plain copies get the size of the device beside them.
    fn subjects(&self, options: &Options, load: &Load) -> Result<(Subject, Option<Subject>), Failure> {
        const ALONE: u64 = 1 << 30;
        let find = |option: &str, name: &str| (name != MEMCPY).then(|| self.device(option, name)).transpose();
        let subject = find("--device", &options.device)?;
        let against = options.against.as_deref().map(|name| find("--against", name)).transpose()?;
        let beside = subject.as_ref().or(against.as_ref().and_then(Option::as_ref));
        let there = beside.map_or(ALONE, |s| s.sectors().checked_bytes().unwrap_or(u64::MAX));
        let memcpy = || Subject::memcpy(load.size.unwrap_or(there));
        let or_memcpy = |found: Option<Subject>| found.map_or_else(memcpy, Ok);
        Ok((or_memcpy(subject.clone())?, against.map(or_memcpy).transpose()?))
    }
}

/// `NAME:KEY=VALUE`; a name may have colons itself.
fn parse_set(text: &str) -> Result<(&str, Setting), String> {
    let expected = || format!("--set {text}: expected NAME:clone_always=0|1, NAME:compile=0|1 or NAME:io_poll=0|1");
    let (name, setting) = text.rsplit_once(':').ok_or_else(expected)?;
    let (key, value) = setting.split_once('=').ok_or_else(expected)?;
    let on = match value {
        "0" => false,
        "1" => true,
        _ => return Err(expected()),
    };
    match key {
        "clone_always" => Ok((name, Setting::CloneAlways(on))),
        "compile" => Ok((name, Setting::Compile(on))),
        "io_poll" => Ok((name, Setting::IoPoll(on))),
        _ => Err(expected()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings() {
        assert_eq!(parse_set("a:b:clone_always=1"), Ok(("a:b", Setting::CloneAlways(true))));
        assert_eq!(parse_set("a:compile=0"), Ok(("a", Setting::Compile(false))));
        assert_eq!(parse_set("a:io_poll=0"), Ok(("a", Setting::IoPoll(false))));
        for bad in ["", "a", "a:compile", "a:compile=2", "a:fast=1", "compile=1"] {
            assert!(parse_set(bad).unwrap_err().contains("expected NAME:clone_always"), "{bad}");
        }
    }
}
