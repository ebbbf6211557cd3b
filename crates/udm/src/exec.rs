//! `udm exec`: programs of the kernel's device mapper, unmodified, on this daemon.

use crate::connect;
use crate::daemon::Lock;
use crate::greet::nobody_listens;
use crate::places::Places;
use clap::Args;
use rustix::fs::{FlockOperation, flock};
use signal_hook::consts::{SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::Signals;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use udm_exec::WITHIN;
use udm_exec::outside::Outside;
use udm_exec::run::{Start, StartError, start};
use udm_exec::supervisor::{Settings, supervise};
use udm_io::ThreadExecutor;

/// The codes of what is not the program's own, as env(1) has them.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;
/// The variable by which libdevmapper does without udev.
const WITHOUT_UDEV: &str = "DM_DISABLE_UDEV";
/// How often a supervisor is looked for that others may have started, or that is ending.
const TRIES: usize = 16;
/// What a supervisor says when commands may come.
const READY: &str = "ready\n";

#[derive(Args)]
pub(crate) struct ExecArgs {
    /// A block device of the host that the program is to see; can be given several times
    #[arg(long, value_name = "PATH")]
    device: Vec<PathBuf>,
    /// Be the supervisor
    #[arg(long, hide = true)]
    supervise: bool,
    /// The program and its arguments
    #[arg(
        value_name = "COMMAND",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        required_unless_present = "supervise"
    )]
    words: Vec<OsString>,
}

/// Runs the program. Returns its exit code, or 125 to 127 when it could not be run.
pub(crate) fn main(places: Result<Places, String>, args: &ExecArgs) -> u8 {
    let ran = places.map_err(Failure::of_text).and_then(|places| match args.supervise {
        true => be_supervisor(&places).map(|()| 0).map_err(|e| Failure::of_text(e.to_string())),
        false => run(&places, args),
    });
    ran.unwrap_or_else(|Failure { code, message }| {
        eprintln!("udm exec: {message}");
        code
    })
}

struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    fn of_text(message: String) -> Self {
        Self { code: FAILED, message }
    }

    fn of_program(program: &OsString, error: &io::Error) -> Self {
        let code = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
        Self { code, message: format!("{}: {error}", program.display()) }
    }
}

fn run(places: &Places, args: &ExecArgs) -> Result<u8, Failure> {
    if let Some(within) = std::env::var_os(WITHIN) {
        return run_nested(places, &PathBuf::from(within), args);
    }
    places.make().map_err(Failure::of_text)?;
    let mut signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT, SIGWINCH])
        .map_err(|e| Failure::of_text(format!("signals cannot be passed on: {e}")))?;
    let (socket, words) = (places.exec_socket(), &args.words);
    let failed = |e: io::Error| Failure::of_text(e.to_string());
    let devices = args.device.iter().map(std::path::absolute).collect::<io::Result<Vec<_>>>().map_err(failed)?;
    let cwd = std::env::current_dir().map_err(failed)?;
    let mut variables = vec![(WITHIN, places.dir().into())];
    if std::env::var_os(WITHOUT_UDEV).is_none() {
        // Nobody is there who would tell that udev is done.
        variables.push((WITHOUT_UDEV, "1".into()));
    }
    let mut last = None;
    for _ in 0..TRIES {
        let child = start(&Start { socket: &socket, words, devices: &devices, cwd: &cwd, variables: &variables });
        let mut child = match child {
            Ok(child) => child,
            Err(StartError::NoSupervisor(_)) => {
                // Its parent is this process, which ends before it does.
                drop(connect::control(places).map_err(|e| Failure::of_text(e.to_string()))?);
                last = start_supervisor(places).err();
                continue;
            }
            Err(StartError::Program(error)) => return Err(Failure::of_program(&words[0], &error)),
            Err(StartError::Other(error)) => return Err(Failure::of_text(error.to_string())),
        };
        let pid = child.id();
        let handle = signals.handle();
        let pass_on = std::thread::spawn(move || {
            for signal in &mut signals {
                pass(signal, pid);
            }
        });
        let status = child.wait().map_err(|e| Failure::of_text(e.to_string()));
        handle.close();
        let _ = pass_on.join();
        return status.map(end_as);
    }
    let why = last.map_or_else(|| "it ends at once".to_owned(), |error| error.to_string());
    Err(Failure::of_text(format!("there is no supervisor: {why}")))
}

/// The terminal sends its signals to the program as well as to this process, and what others send to this one is meant
/// for the program.
fn pass(signal: i32, pid: u32) {
    let of_terminal = matches!(signal, SIGINT | SIGQUIT | SIGWINCH | SIGCONT);
    let process = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    if let (false, Some(process), Some(signal)) =
        (of_terminal, process, rustix::process::Signal::from_named_raw(signal))
    {
        let _ = rustix::process::kill_process(process, signal);
    }
}

/// Ends as the program did: by its code, or by its signal.
fn end_as(status: ExitStatus) -> u8 {
    if let Some(signal) = status.signal() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return 128 + signal as u8;
    }
    status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

/// Within the namespace the program just runs.
fn run_nested(places: &Places, within: &PathBuf, args: &ExecArgs) -> Result<u8, Failure> {
    if within != places.dir() {
        let (here, there) = (within.display(), places.dir().display());
        return Err(Failure::of_text(format!(
            "this program runs on the daemon in {here} already: a program has one device mapper, so run it for {there} from outside"
        )));
    }
    if !args.device.is_empty() {
        return Err(Failure::of_text("--device: devices of the host cannot be reached from within".into()));
    }
    let error = Command::new(&args.words[0]).args(&args.words[1..]).exec();
    Err(Failure::of_program(&args.words[0], &error))
}

/// Starts a supervisor, and waits until commands may come; when another was first, that will do.
fn start_supervisor(places: &Places) -> io::Result<()> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg0("udm")
        .args(["exec", "--supervise", "--dir"])
        .arg(places.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .current_dir("/")
        .spawn()?;
    let mut told = String::new();
    if let Some(stdout) = &mut child.stdout {
        stdout.read_to_string(&mut told)?;
    }
    match told == READY {
        true => Ok(()),
        false => {
            let _ = child.wait();
            Err(io::Error::other(told.trim().to_owned()))
        }
    }
}

/// The supervisor's life.
fn be_supervisor(places: &Places) -> io::Result<()> {
    let dir = places.exec();
    fs::create_dir_all(&dir)?;
    let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(dir.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if nobody_meets(places) {
        let _ = rustix::process::setsid();
        let outside = Outside::here()?;
        let (of_connect, of_look) = (places.clone(), places.clone());
        let settings = Settings {
            socket: places.exec_socket(),
            dir,
            connect: Box::new(move || connect::control_from(&of_connect, Some(&outside))),
            executor: Arc::new(ThreadExecutor),
            has_daemon: Box::new(move || Lock::holder(&of_look).is_some()),
        };
        return supervise(settings, || {
            let _ = flock(&lock, FlockOperation::Unlock);
            say_ready(places);
        })
        .inspect_err(|error| println!("{error}"));
    }
    say_ready(places);
    Ok(())
}

fn nobody_meets(places: &Places) -> bool {
    reach_meeting(places).is_err_and(|error| nobody_listens(&error))
}

fn reach_meeting(places: &Places) -> io::Result<()> {
    udm_exec::run::is_supervised(&places.exec_socket())
}

/// Tells who started this process, and lets go of them: from now on it writes to the log.
fn say_ready(places: &Places) {
    let mut stdout = io::stdout();
    let _ = stdout.write_all(READY.as_bytes()).and_then(|()| stdout.flush());
    if let Ok(log) = open_log(places) {
        let _ = rustix::stdio::dup2_stdout(&log);
        let _ = rustix::stdio::dup2_stderr(&log);
    }
}

fn open_log(places: &Places) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(places.exec().join("log"))
}
