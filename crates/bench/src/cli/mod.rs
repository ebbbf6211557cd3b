//! The command `udm bench`.

mod numbers;
mod options;
mod progress;

use crate::report::{Report, human, json};
use crate::stack::Setting;
use crate::subject::MEMCPY;
use crate::{Error, Load, Stack, Subject, compare};
use clap::Parser;
use options::Options;
use progress::Progress;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use udm_core::HostRequest;
use udm_io::{BlockDevice, Domain};

/// Runs the command with the arguments that follow `bench`, and gives the exit code: 0, 1 when the measurement failed
/// or data was wrong, 2 when the arguments are. Prints to stdout and stderr. Blocks as long as the measurement takes.
pub fn run(args: impl IntoIterator<Item = OsString>) -> u8 {
    let words = std::iter::once(OsString::from("udm bench")).chain(args);
    let options = match Options::try_parse_from(words) {
        Ok(options) => options,
        Err(e) => {
            // Who closed the pipe does not want to read why.
            let _ = e.print();
            return if e.use_stderr() { 2 } else { 0 };
        }
    };
    match bench(&options, &mut io::stdout().lock()) {
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

fn bench(options: &Options, out: &mut impl Write) -> Result<(), Failure> {
    let load = options.load().map_err(Failure::Usage)?;
    load.check()?;
    let domain = Domain::default();
    let stack = options.concise.as_deref().map(|text| open_stack(&domain, text)).transpose()?;
    for text in &options.set {
        let (name, setting) = parse_set(text).map_err(Failure::Usage)?;
        stack_of(&stack, "--set")?.set(name, setting)?;
    }
    let (subject, against) = subjects(options, &load, stack.as_ref())?;
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

fn open_stack(domain: &Domain, concise: &str) -> Result<Stack, Error> {
    Stack::new(domain.clone(), udm_targets::TARGETS, Box::new(open_host), concise, Path::new("."))
}

fn open_host(request: &HostRequest<'_>) -> Result<std::sync::Arc<dyn BlockDevice>, udm_core::Error> {
    Err(udm_core::Error::new(udm_base::Errno::ENXIO, format!("{}: cannot be opened", request.spec)))
}

fn stack_of<'a>(stack: &'a Option<Stack>, option: &str) -> Result<&'a Stack, Failure> {
    let missing = || {
        Failure::Usage(format!(
            "{option} names a device of --concise, which is not given; devices of the daemon cannot be \
             measured from here"
        ))
    };
    stack.as_ref().ok_or_else(missing)
}

/// What is measured, and beside what. Plain copies get the size of the device beside them.
fn subjects(options: &Options, load: &Load, stack: Option<&Stack>) -> Result<(Subject, Option<Subject>), Failure> {
    const ALONE: u64 = 1 << 30;
    let device = |name: &str, option: &str| match stack {
        Some(stack) => stack.subject(name).map_err(Failure::Bench),
        None => Err(Failure::Usage(format!("{option} {name} names a device of --concise, which is not given"))),
    };
    let memcpy = |beside: Option<&Subject>| {
        let there = beside.map(|s| s.sectors().checked_bytes().unwrap_or(u64::MAX));
        Subject::memcpy(load.size.or(there).unwrap_or(ALONE)).map_err(Failure::Bench)
    };
    let against = options.against.as_deref();
    if options.device == MEMCPY {
        let other = against.filter(|name| *name != MEMCPY).map(|name| device(name, "--against")).transpose()?;
        let subject = memcpy(other.as_ref())?;
        let again = (against == Some(MEMCPY)).then(|| memcpy(None)).transpose()?;
        return Ok((subject, other.or(again)));
    }
    let subject = device(&options.device, "--device")?;
    let other = match against {
        None => None,
        Some(MEMCPY) => Some(memcpy(Some(&subject))?),
        Some(name) => Some(device(name, "--against")?),
    };
    Ok((subject, other))
}

/// `NAME:KEY=VALUE`; a name may have colons itself.
fn parse_set(text: &str) -> Result<(&str, Setting), String> {
    let expected = || format!("--set {text}: expected NAME:clone_always=0|1 or NAME:compile=0|1");
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
        for bad in ["", "a", "a:compile", "a:compile=2", "a:fast=1", "compile=1"] {
            assert!(parse_set(bad).unwrap_err().contains("expected NAME:clone_always"), "{bad}");
        }
    }
}
