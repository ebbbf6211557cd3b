//! What is told when something is wrong: who waits for what, in the harness and in the daemon.

use crate::world::World;
use rustix::process::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is under way in the harness.
pub fn under_way(world: &World) -> String {
    let mut text = String::from("== under way in the harness, longest first\n");
    for line in world.watch.under_way() {
        text += &format!("{:>8.1} s  {}: {}\n", line.since.as_secs_f64(), line.who, line.doing);
    }
    text
}

/// Everything that may help.
pub fn all(world: &World) -> String {
    let mut text = format!("{}\n{}", world.failure().unwrap_or_default(), under_way(world));
    if let Some(pid) = world.daemon.pid() {
        text += &format!("== threads of the daemon, process {}\n", pid.as_raw_nonzero());
        text += &threads(pid);
    }
    for words in [&["debug", "dump"][..], &["daemon", "--status"]] {
        text += &format!("== udm {}\n{}\n", words.join(" "), bounded(world.daemon.command(words), 10));
    }
    if let Some(pid) = world.daemon.pid() {
        let mut gdb = Command::new("gdb");
        gdb.args(["-p", &pid.as_raw_nonzero().to_string(), "-batch", "-ex", "set print frame-arguments none", "-ex"]);
        gdb.arg("thread apply all bt 24").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        text += &format!("== backtraces of the daemon, by gdb\n{}\n", bounded(gdb, 60));
    }
    text + &format!("== the end of the daemon's log\n{}\n", world.daemon.log(60))
}

/// What each thread of a process waits for, as the kernel knows.
fn threads(pid: Pid) -> String {
    let mut text = String::new();
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let state = read("stat").rsplit(')').next().unwrap_or_default().trim_start().chars().next().unwrap_or('?');
        let stack: Vec<String> = read("stack").lines().take(6).map(str::to_owned).collect();
        text += &format!(
            "{} {:<16} {state} {} {}\n",
            task.file_name().to_string_lossy(),
            read("comm").trim(),
            read("wchan"),
            stack.join(" < ")
        );
    }
    text
}

/// Runs a command, but not for longer than so many seconds. What it printed.
fn bounded(mut command: Command, seconds: u64) -> String {
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return format!("cannot be run: {error}"),
    };
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = std::thread::spawn(move || out.map(std::io::read_to_string));
    let err = std::thread::spawn(move || err.map(std::io::read_to_string));
    let begun = Instant::now();
    while child.try_wait().is_ok_and(|ended| ended.is_none()) {
        if begun.elapsed() > Duration::from_secs(seconds) {
            let _ = child.kill();
            let _ = child.wait();
            return format!("says nothing for {seconds} s");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = |thread: std::thread::JoinHandle<Option<std::io::Result<String>>>| {
        thread.join().ok().flatten().and_then(Result::ok).unwrap_or_default()
    };
    text(out) + &text(err)
}

/// Descriptors of a process, by what they are.
pub fn descriptors(pid: Pid) -> std::collections::BTreeMap<String, u64> {
    let mut kinds = std::collections::BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).into_iter().flatten().flatten() {
        let target = fs::read_link(entry.path()).unwrap_or_default();
        let name = target.to_string_lossy();
        let kind = match name.split_once(':') {
            Some((kind @ ("socket" | "pipe"), _)) => kind.to_owned(),
            _ => name.into_owned(),
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// Threads of a process, without those that the kernel starts for io_uring, which come and go.
pub fn count_threads(pid: Pid) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).into_iter().flatten().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| !name.starts_with("iou-")).count() as u64
}

/// A number of `/proc/PID/status`, in its unit.
pub fn status(pid: Pid, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.trim_start_matches(':').split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Loop devices over files beneath `root`.
pub fn loops(root: &Path) -> Vec<PathBuf> {
    let on_root = |block: &Path| {
        let backing = fs::read_to_string(block.join("loop/backing_file"));
        backing.is_ok_and(|path| Path::new(path.trim()).starts_with(root))
    };
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten().filter(|block| on_root(&block.path()));
    blocks.map(|block| Path::new("/dev").join(block.file_name())).collect()
}
