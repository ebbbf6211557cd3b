//! Runs inputs in a process of their own, so that an abort, a hang or an allocation without
//! bound is caught as surely as a panic.
//!
//! The worker writes the number of the input it is about to try to a file of eight bytes. When
//! it dies, or stays at one number too long, the monitor makes that input again and keeps it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Target;
use crate::corpus::{Corpus, here};

/// Address space a worker may have, in bytes.
pub const MEMORY_LIMIT: u64 = 1 << 30;

/// An input that takes longer has hung; honest ones take microseconds.
const HANG: Duration = Duration::from_secs(10);

/// What one run is to do.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Whose parser.
    pub target: &'static Target,
    /// Names the inputs.
    pub seed: u64,
    /// How long to go on.
    pub time: Duration,
}

/// An input that a target does not survive.
#[derive(Debug, PartialEq, Eq)]
pub struct Crash {
    /// Number of the input under the plan's seed.
    pub index: u64,
    /// The input.
    pub input: Vec<u8>,
    /// How the worker ended.
    pub how: String,
}

/// Runs `plan` in a child process that `command` starts (this program with the worker's
/// options). Returns how many inputs were tried, or the first crash. Blocks for the plan's time.
///
/// # Errors
/// When the child cannot be started, or the file of progress not be used.
pub fn monitor(plan: Plan, command: impl FnOnce(&Path) -> Command) -> io::Result<Result<u64, Crash>> {
    let folder = artifacts(plan.target)?;
    let path = folder.join(format!("progress-{}-{}", std::process::id(), plan.seed));
    let progress = File::options().read(true).write(true).create(true).truncate(true).open(&path)?;
    let ended = command(&path).stdin(Stdio::null()).spawn().and_then(|child| wait(child, &progress));
    std::fs::remove_file(&path)?;
    let how = match ended? {
        None => return Ok(Ok(read(&progress)?)),
        Some(how) => how,
    };
    let index = read(&progress)?;
    let input = plan.target.input(&Corpus::load(plan.target.name)?, plan.seed, index);
    Ok(Err(Crash { index, input, how }))
}

/// How the child failed, if it did.
fn wait(mut child: Child, progress: &File) -> io::Result<Option<String>> {
    let mut last = (0, Instant::now());
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((!status.success()).then(|| status.to_string()));
        }
        let now = read(progress)?;
        if now != last.0 {
            last = (now, Instant::now());
        } else if last.1.elapsed() > HANG {
            child.kill()?;
            child.wait()?;
            return Ok(Some(format!("still at work after {} s", HANG.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn read(progress: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match progress.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(u64::from_le_bytes(bytes)),
        // The worker has not come to its first input.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        Err(error) => Err(error),
    }
}

/// The worker: tries inputs until the plan's time is over, telling the file at `progress` where
/// it is. Panics, aborts or hangs when the target does.
///
/// # Errors
/// When the corpus cannot be read, the file not be written, or the limit not be set.
pub fn work(plan: Plan, progress: &Path) -> io::Result<()> {
    let limit = Rlimit { current: Some(MEMORY_LIMIT), maximum: getrlimit(Resource::As).maximum };
    setrlimit(Resource::As, limit)?;
    let corpus = Corpus::load(plan.target.name)?;
    let progress = File::options().write(true).open(progress)?;
    let start = Instant::now();
    for index in 0.. {
        progress.write_all_at(&u64::to_le_bytes(index), 0)?;
        (plan.target.run)(&plan.target.input(&corpus, plan.seed, index));
        if start.elapsed() >= plan.time {
            break;
        }
    }
    Ok(())
}

/// Keeps `crash` and returns what to tell the person at the terminal.
///
/// # Errors
/// When the file cannot be written.
pub fn keep(plan: Plan, crash: &Crash) -> io::Result<String> {
    let name = plan.target.name;
    let path = artifacts(plan.target)?.join(format!("{}-{}.bin", plan.seed, crash.index));
    std::fs::write(&path, &crash.input)?;
    let Crash { index, how, input } = crash;
    let (seed, kept) = (plan.seed, path.display());
    let literal = input.escape_ascii();
    Ok(format!(
        "{name}: input {index} of seed {seed}: {how}\n\
         kept as {kept}; try it alone with\n\n    cargo xtask fuzz --target {name} --input {kept}\n\n\
         When it is mended, copy it to fuzz/seeds/{name}/ under a name that tells what it was, and add\n\n    \
         #[test]\n    fn {name}_found_{index}() {{\n        \
         (udm_fuzz::Target::find(\"{name}\").unwrap().run)(b\"{literal}\");\n    }}\n"
    ))
}

fn artifacts(target: &Target) -> io::Result<PathBuf> {
    let folder = here().join("artifacts").join(target.name);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker made of a shell script, whose `$1` is the file of progress.
    fn run(seed: u64, script: &str) -> Result<u64, Crash> {
        let plan = Plan { target: &crate::TARGETS[0], seed, time: Duration::ZERO };
        let shell = |progress: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh"]).arg(progress);
            command
        };
        monitor(plan, shell).expect("the shell can be started")
    }

    #[test]
    fn a_worker_that_ends_well_tells_how_far_it_came() {
        assert_eq!(run(1, r"printf '\003\001\0\0\0\0\0\0' > $1"), Ok(0x103));
        assert_eq!(run(2, "true"), Ok(0));
    }

    #[test]
    fn a_worker_that_dies_leaves_the_input_that_killed_it() {
        let crash = run(7, r"printf '\011\0\0\0\0\0\0\0' > $1; kill -ABRT $$").expect_err("it died");
        let target = &crate::TARGETS[0];
        let input = target.input(&Corpus::load(target.name).expect("seeds"), 7, 9);
        assert_eq!((crash.index, crash.input), (9, input));
        assert!(crash.how.contains("signal: 6"), "{}", crash.how);
        assert_eq!(run(8, "exit 101").expect_err("it panicked").index, 0);
    }
}
