//! `udm bench EXPERIMENT`.

use super::{Failure, complain};
use crate::Error;
use crate::experiment::{EXPERIMENTS, Experiment, Report, Setting};
use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use udm_io::Domain;

/// What all experiments take.
#[derive(Parser, Debug)]
#[command(disable_version_flag = true, args_override_self = true)]
struct Options {
    /// Less of everything: shows that it works; the figures mean little
    #[arg(long)]
    quick: bool,
    /// Write EXPERIMENT.json, .md and .svg into this folder
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// udm's fio engine, for the experiments that use fio [default: out/fio-engine/libudm_fio.so, if it is there]
    #[arg(long, value_name = "FILE")]
    fio_engine: Option<PathBuf>,
}

/// Where `make fio-engine` puts it, beneath the folder of the sources.
const FIO_ENGINE: &str = "out/fio-engine/libudm_fio.so";

impl Options {
    /// The fio engine that was named, or the one that is there.
    fn engine(&self) -> Result<Option<PathBuf>, Failure> {
        match &self.fio_engine {
            Some(file) if !file.is_file() => {
                let text = format!("--fio-engine {}: no such file; make fio-engine makes it", file.display());
                Err(Failure::Usage(text))
            }
            Some(file) => Ok(Some(file.clone())),
            None => Ok(Some(PathBuf::from(FIO_ENGINE)).filter(|file| file.is_file())),
        }
    }
}

fn find(name: &str) -> Option<&'static Experiment> {
    EXPERIMENTS.iter().find(|e| e.name == name)
}

/// For the help of `udm bench`.
pub(super) fn list() -> String {
    let lines = EXPERIMENTS.iter().map(|e| format!("\n  {:<14}{}", e.name, e.about));
    format!("Experiments, each `udm bench NAME [--quick] [--out DIR] [--json]`:{}", lines.collect::<String>())
}

/// Whether there is an experiment of this name.
pub(super) fn is_one(name: &str) -> bool {
    find(name).is_some()
}

/// Runs the experiment `name` with the arguments that follow it, and gives the exit code: 0 when it was done, also with
/// figures beyond their limits, 1 when it could not be done, 2 when the arguments are wrong. Blocks.
pub(super) fn run(name: &OsStr, args: impl Iterator<Item = OsString>) -> u8 {
    let Some(experiment) = name.to_str().and_then(find) else { return complain("no such experiment", 2) };
    let words: Vec<OsString> = args.collect();
    let line = std::iter::once(OsString::from(format!("udm bench {}", experiment.name))).chain(words.iter().cloned());
    let options = match Options::try_parse_from(line) {
        Ok(options) => options,
        Err(e) => {
            // Who closed the pipe does not want to read why.
            let _ = e.print();
            return if e.use_stderr() { 2 } else { 0 };
        }
    };
    match experiment_with(experiment, &options, &words, &mut io::stdout().lock()) {
        Ok(()) => 0,
        Err(Failure::Usage(text)) => complain(&text, 2),
        Err(Failure::Bench(e)) => complain(&e.to_string(), 1),
        Err(Failure::Output(e)) if e.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(Failure::Output(e)) => complain(&format!("writing the result: {e}"), 1),
    }
}

fn experiment_with(
    experiment: &Experiment,
    options: &Options,
    words: &[OsString],
    out: &mut impl Write,
) -> Result<(), Failure> {
    if experiment.wants_folder && options.out.is_none() {
        let text = format!("{}: expected --out DIR, where it makes its files", experiment.name);
        return Err(Failure::Usage(text));
    }
    let scratch = options.out.as_deref().filter(|_| experiment.wants_folder);
    let scratch = scratch.map(|out| Scratch::new(out, experiment.name)).transpose()?;
    let engine = options.engine()?;
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let command = format!("udm bench {} {}", experiment.name, words.join(" ")).trim_end().to_owned();
    let telling = Telling::new();
    let progress = |what: &str| telling.show(what);
    let setting = Setting {
        domain: &Domain::default(),
        quick: options.quick,
        folder: scratch.as_ref().map(|s| s.0.as_path()),
        fio_engine: engine.as_deref(),
        progress: &progress,
        command,
    };
    let found = (experiment.run)(&setting);
    telling.end();
    let report: Report = found?;
    if let Some(folder) = &options.out {
        for path in report.write(folder)? {
            eprintln!("udm bench: wrote {}", path.display());
        }
    }
    let text = if options.json { report.json() } else { report.markdown() };
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// A folder for an experiment's files, which goes with them.
struct Scratch(PathBuf);

impl Scratch {
    fn new(out: &Path, name: &str) -> Result<Self, Error> {
        let path = out.join(format!("{name}.tmp"));
        let failed = |source| Error::System { what: format!("making {}", path.display()), source };
        fs::create_dir_all(out).map_err(failed)?;
        // Not made if it is there: nobody's files are to be lost, nor mixed with those of another run.
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self(path)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let text = "it is there: another run uses it, or one was stopped; then delete it";
                let source = io::Error::new(e.kind(), text);
                Err(Error::System { what: format!("making {}", path.display()), source })
            }
            Err(e) => Err(failed(e)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_dir_all(&self.0) {
            eprintln!("udm bench: deleting {}: {e}", self.0.display());
        }
    }
}

/// On a terminal a line that changes; elsewhere a line for each thing that begins, without its rounds.
struct Telling {
    bar: Option<ProgressBar>,
    last: std::cell::RefCell<String>,
}

impl Telling {
    fn new() -> Self {
        let bar = io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{elapsed} {msg}") {
                bar.set_style(style);
            }
            bar
        });
        Self { bar, last: Default::default() }
    }

    fn show(&self, what: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(what.to_owned());
                bar.tick();
            }
            None => {
                let thing = what.split(", round ").next().unwrap_or(what);
                if *self.last.borrow() != thing {
                    eprintln!("{thing}");
                    thing.clone_into(&mut self.last.borrow_mut());
                }
            }
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn consistent() {
        Options::command().debug_assert();
        let mut names: Vec<_> = EXPERIMENTS.iter().map(|e| e.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), EXPERIMENTS.len());
        assert!(is_one("zero-check") && !is_one("--device"));
    }

    #[test]
    fn a_folder_of_its_own() {
        let out = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(out.path(), "x").unwrap();
        fs::write(scratch.0.join("file"), "text").unwrap();
        let error = Scratch::new(out.path(), "x").err().unwrap().to_string();
        assert!(error.contains("x.tmp") && error.contains("another run"), "{error}");
        drop(scratch);
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
    }
}
