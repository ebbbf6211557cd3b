//! The command `udm bench`.

mod experiments;
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
use udm_io::nbd::uri::{Endpoint, Uri};

/// Runs the command with the arguments that follow `bench`, and gives the exit code: 0, 1 when the measurement failed
/// or data was wrong, 2 when the arguments are. `nbd_socket` is the daemon's, where devices that it serves are found
/// by name; it need not exist. Prints to stdout and stderr. Blocks as long as the measurement takes.
pub fn run(args: impl IntoIterator<Item = OsString>, nbd_socket: Option<&Path>) -> u8 {
    let mut args = args.into_iter().peekable();
    if let Some(name) = args.next_if(|word| word.to_str().is_some_and(experiments::is_one)) {
        return experiments::run(&name, args);
    }
    let words = std::iter::once(OsString::from("udm bench")).chain(args);
    let command = Options::command().after_help(experiments::list());
    let options = match command.try_get_matches_from(words).and_then(|m| Options::from_arg_matches(&m)) {
        Ok(options) => options,
        Err(e) => {
            // Who closed the pipe does not want to read why.
            let _ = e.print();
            return if e.use_stderr() { 2 } else { 0 };
        }
    };
    match bench(&options, nbd_socket, &mut io::stdout().lock()) {
        Ok(()) => 0,
        Err(Failure::Usage(text)) => complain(&text, 2),
        Err(Failure::Bench(e @ (Error::Load(_) | Error::Stack(_)))) => complain(&e.to_string(), 2),
        Err(Failure::Bench(e)) => complain(&e.to_string(), 1),
        // The reader has gone: it has what it wanted.
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(Failure::Output(e)) => complain(&format!("writing the result: {e}"), 1),
    }
}

fn complain(text: &str, code: u8) -> u8 {
    eprintln!("udm bench: {text}");
    code
}

enum Failure {
    Usage(String),
    Bench(Error),
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
