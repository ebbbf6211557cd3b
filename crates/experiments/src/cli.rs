//! `udm bench EXPERIMENT`.

use crate::experiment::{Experiment, Setting};
use crate::list::EXPERIMENTS;
use crate::report::Report;
use crate::seeds::{self, Outcome};
use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ffi::OsString;
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use udm_bench::Error;
use udm_bench::cli::experiments::LIST;
use udm_bench::cli::{Failure, complain, exit_code, refuse};
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
    /// Only the rows whose name has TEXT in it; `polling` measures no others
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
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
fn list() -> String {
    let all = EXPERIMENTS.iter().map(|e| (e.name, e.about)).chain([(ALL, "the five that were published, and a page")]);
    let lines = all.map(|(name, about)| format!("\n  {name:<14}{about}"));
    format!("Experiments, each `udm bench NAME [--quick] [--out DIR] [--json]`:{}", lines.collect::<String>())
}

/// The name of all the seeds' experiments together.
const ALL: &str = "seeds";

/// Runs the experiment that the first word names with the arguments that follow it, and gives the exit code: 0 when it
/// was done, also with figures beyond their limits, 1 when it could not be done, 2 when the arguments are wrong.
/// Blocks.
pub(crate) fn run(words: impl Iterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = words.collect();
    let Some((name, words)) = words.split_first() else {
        return complain(&format!("expected an experiment\n{}", list()), 2);
    };
    if name == LIST {
        println!("{}", list());
        return 0;
    }
    let name = name.to_string_lossy();
    let experiment = find(&name);
    if experiment.is_none() && name != ALL {
        return complain(&format!("{name}: expected an option of `udm bench`, or an experiment\n{}", list()), 2);
    }
    let line = std::iter::once(OsString::from(format!("udm bench {name}"))).chain(words.iter().cloned());
    let options = match Options::try_parse_from(line) {
        Ok(options) => options,
        Err(e) => return refuse(&e),
    };
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let command = format!("udm bench {name} {}", words.join(" ")).trim_end().to_owned();
    let out = &mut io::stdout().lock();
    exit_code(match experiment {
        Some(experiment) => alone(experiment, &options, command, out),
        None => all(&options, command, out),
    })
}

/// One experiment.
fn alone(
    experiment: &'static Experiment,
    options: &Options,
    command: String,
    out: &mut impl Write,
) -> Result<(), Failure> {
    if experiment.wants_folder && options.out.is_none() {
        let text = format!("{}: expected --out DIR, where it makes its files", experiment.name);
        return Err(Failure::Usage(text));
    }
    if let Some(folder) = &options.out {
        can_write(folder)?;
    }
    let engine = options.engine()?;
    let report = measured(experiment, options, engine.as_deref(), command)?;
    if let Some(folder) = &options.out {
        tell(report.write(folder)?);
    }
    let text = if options.json { report.json() } else { report.markdown() };
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// The seeds' experiments, and the page. One that cannot be done keeps no other from being done.
fn all(options: &Options, command: String, out: &mut impl Write) -> Result<(), Failure> {
    let Some(folder) = &options.out else {
        return Err(Failure::Usage(format!("{ALL}: expected --out DIR, where it writes its pages")));
    };
    if options.only.is_some() {
        return Err(Failure::Usage(format!(
            "{ALL}: --only is for one experiment; expected its name in place of {ALL}"
        )));
    }
    can_write(folder)?;
    let engine = options.engine()?;
    let domain = Domain::default();
    let mut outcomes = Vec::new();
    for experiment in seeds::SEEDS.iter().flat_map(|seed| seed.experiments).copied() {
        let start = domain.clock().now();
        let alone = command.replacen(ALL, experiment.name, 1);
        let found = measured(experiment, options, engine.as_deref(), alone);
        let found = found.and_then(|report| report.write(folder).map(|paths| (report, paths)));
        let found = found.map_err(|e| e.to_string()).map(|(report, paths)| {
            tell(paths);
            report
        });
        if let Err(why) = &found {
            complain(&format!("{}: {why}", experiment.name), 1);
        }
        let seconds = domain.clock().now().since(start) as f64 / 1e9;
        outcomes.push(Outcome { experiment, found, seconds });
    }
    let report = seeds::report(&outcomes, options.quick, command);
    tell(report.write(folder)?);
    tell([seeds::write_page(&outcomes, &report, folder)?]);
    let text = if options.json { report.json() } else { report.markdown() };
    out.write_all(text.as_bytes())?;
    out.flush()?;
    match outcomes.iter().find_map(|outcome| outcome.found.as_ref().err()) {
        None => Ok(()),
        Some(_) => {
            let failed = outcomes.iter().filter(|outcome| outcome.found.is_err()).map(|o| o.experiment.name);
            let source = io::Error::other("not done; the messages above say why");
            let what = failed.collect::<Vec<_>>().join(", ");
            Err(Failure::Bench(Error::System { what, source }))
        }
    }
}

fn tell(paths: impl IntoIterator<Item = PathBuf>) {
    for path in paths {
        eprintln!("udm bench: wrote {}", path.display());
    }
}

/// Makes the folder and a file in it, before minutes go by for nothing.
fn can_write(folder: &Path) -> Result<(), Error> {
    let what = || format!("--out {}: expected a folder that can be written", folder.display());
    let failed = |source| Error::System { what: what(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    let probe = folder.join(format!(".udm-bench-{}", std::process::id()));
    fs::File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(failed)
}

/// Runs an experiment, with a folder of its own if it wants one.
fn measured(
    experiment: &Experiment,
    options: &Options,
    fio_engine: Option<&Path>,
    command: String,
) -> Result<Report, Error> {
    let scratch = options.out.as_deref().filter(|_| experiment.wants_folder);
    let scratch = scratch.map(|out| Scratch::new(out, experiment.name)).transpose()?;
    let telling = Telling::new();
    let progress = |what: &str| telling.show(what);
    let setting = Setting {
        domain: &Domain::default(),
        quick: options.quick,
        folder: scratch.as_ref().map(|s| s.0.as_path()),
        fio_engine,
        only: options.only.as_deref(),
        progress: &progress,
        command,
    };
    let found = (experiment.run)(&setting);
    telling.end();
    let mut report = found?;
    report.rows.retain(|row| setting.wants(&row.row));
    match &options.only {
        Some(text) if report.rows.is_empty() => {
            Err(Error::Load(format!("--only {text:?}: {} has no row with that in its name", experiment.name)))
        }
        _ => Ok(report),
    }
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
        assert!(find("zero-check").is_some() && find(ALL).is_none() && find(LIST).is_none());
    }

    #[test]
    fn a_folder_that_cannot_be_written() {
        let out = tempfile::tempdir().unwrap();
        let file = out.path().join("file");
        fs::write(&file, "text").unwrap();
        for folder in [file.clone(), file.join("below"), PathBuf::from("/proc/nowhere")] {
            let error = can_write(&folder).unwrap_err().to_string();
            assert!(error.contains("--out") && error.contains("expected a folder"), "{error}");
        }
        assert!(can_write(&out.path().join("new/deep")).is_ok());
        assert_eq!(fs::read_dir(out.path().join("new/deep")).unwrap().count(), 0);
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
