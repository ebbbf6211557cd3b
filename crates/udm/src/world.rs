//! The process's surroundings, as the dmsetup commands take them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use udm_client::dmsetup::{self, Clock, DmTransport, Env};

/// Runs a dmsetup command, `argv` beginning with the program's name. Returns its exit code.
pub(crate) fn dmsetup(argv: Vec<OsString>, transport: &mut dyn DmTransport, node_dir: PathBuf) -> i32 {
    let mut env = Env {
        stdin: &mut io::stdin().lock(),
        stdout: &mut BufWriter::new(io::stdout().lock()),
        stderr: &mut io::stderr(),
        transport,
        clock: &mut SystemClock(Instant::now()),
        exec: &mut execute,
        vars: vars(),
        cwd: std::env::current_dir().unwrap_or_default(),
        node_dir,
        sysfs: PathBuf::from("/sys"),
        columns: columns(),
    };
    dmsetup::main(argv, &mut env)
}

struct SystemClock(Instant);

impl Clock for SystemClock {
    fn now(&mut self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

fn execute(words: &[String]) -> io::Result<()> {
    let [program, args @ ..] = words else { return Ok(()) };
    Command::new(program).args(args).status().map(drop)
}

/// The variables whose name and value are UTF-8: no other is asked for.
fn vars() -> HashMap<String, String> {
    std::env::vars_os().filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?))).collect()
}

/// The terminal's width, when standard output is one.
fn columns() -> Option<u16> {
    let stdout = io::stdout();
    stdout
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(&stdout).ok().map(|size| size.ws_col))?
        .filter(|w| *w > 0)
}
