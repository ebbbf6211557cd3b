//! The way to the daemon, which is started when there is none.

use crate::daemon::{EXIT_HELD, EXIT_NONE, Lock, log_tail, open_log};
use crate::greet::{TRIES, greeted, nobody_listens, reach};
use crate::places::Places;
use crate::waiting::Waiting;
use rustix::net::sockopt;
use serde_json::Value;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use udm_base::DevT;
use udm_client::dmsetup::{DmTransport, IoctlError, SocketTransport};
use udm_control::second::{Client, ClientError, HostDevice, NodeKind, Request};

/// The daemon's option that a client starts it with, next to the command's name.
pub(crate) const DETACHED: &str = "--detached";
/// How long a daemon that was started may take until it answers.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a command may take before its user is told what it waits for.
const TELL: Duration = Duration::from_secs(1);
/// How often it is looked for.
const LOOK: Duration = Duration::from_millis(5);
/// How many lines of its log tell why it did not start.
const LOG_LINES: usize = 8;

/// Connects to `control.sock`, and starts a daemon when nobody answers there. Clients that do so at once end up with
/// one daemon: the others find its lock and go.
pub(crate) fn control(places: &Places) -> io::Result<UnixStream> {
    let deadline = Instant::now() + START_TIMEOUT;
    let mut started: Option<Child> = None;
    loop {
        match reach(places, &places.control()) {
            Ok(stream) => {
                if let Some(child) = started {
                    withdraw(child, &stream);
                }
                return Ok(stream);
            }
            Err(error) if nobody_listens(&error) => {}
            Err(error) => return Err(error),
        }
        if Instant::now() > deadline {
            let message = format!("the daemon does not answer after {} seconds", START_TIMEOUT.as_secs());
            return Err(with_log(places, &message));
        }
        let ended = match &mut started {
            Some(child) => child.try_wait()?,
            None => {
                started = Some(start(places)?);
                None
            }
        };
        match ended.map(|status| status.code()) {
            None => {}
            // Another was first, or one that is ending has not gone yet: then it takes another try.
            Some(Some(code)) if code == i32::from(EXIT_HELD) => started = None,
            Some(_) => return Err(with_log(places, "the daemon did not start")),
        }
        std::thread::sleep(LOOK);
    }
}

/// Greets the daemon on `udm.sock`; `None` when none runs.
pub(crate) fn second(places: &Places) -> Result<Option<Client<UnixStream>>, ClientError> {
    greeted(places, Client::connect)
}

/// As [`second`], and a daemon is started when there is none.
pub(crate) fn second_or_start(places: &Places) -> Result<Client<UnixStream>, ClientError> {
    for _ in 0..TRIES {
        control(places)?;
        if let Some(client) = second(places)? {
            return Ok(client);
        }
    }
    Err(ClientError::Io(io::Error::new(io::ErrorKind::NotConnected, "it has ended meanwhile")))
}

/// Whether a daemon has the directory, and its process.
pub(crate) fn holder(places: &Places) -> Option<Option<u32>> {
    Lock::holder(places)
}

/// The socket of the NBD exports, when whoever answers there may be talked to.
pub(crate) fn nbd(places: &Places) -> io::Result<PathBuf> {
    match reach(places, &places.nbd()) {
        Err(error) if !nobody_listens(&error) => Err(error),
        _ => Ok(places.nbd()),
    }
}

/// The daemon, detached: it makes a session of its own, and its output is the log.
fn start(places: &Places) -> io::Result<Child> {
    places.make().map_err(io::Error::other)?;
    let log = open_log(places)?;
    daemon_command(places, &["daemon", DETACHED, "--dir"])?
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("the daemon cannot be started: {e}")))
}

/// What a daemon says to who started it when it has taken over.
const REPLACED: &str = "replaced\n";

/// Starts a daemon that goes on in the place of the one that runs, and waits until it has; where none runs, starts one.
///
/// # Errors
/// What the new one says: the old one goes on, unless it was killed.
pub(crate) fn replace(places: &Places) -> io::Result<()> {
    places.make().map_err(io::Error::other)?;
    let log = open_log(places)?;
    let mut child = daemon_command(places, &["daemon", DETACHED, "--replace", "--dir"])?
        .stdout(log)
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| io::Error::new(e.kind(), format!("the daemon cannot be started: {e}")))?;
    let mut told = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        stderr.read_to_string(&mut told)?;
    }
    if told == REPLACED {
        return Ok(());
    }
    match child.wait()?.code() {
        Some(code) if code == i32::from(EXIT_NONE) => control(places).map(drop),
        _ => {
            let goes_on = match holder(places) {
                Some(_) => "the daemon that runs goes on",
                None => "and the one that ran does not run any more",
            };
            match told.trim() {
                "" => Err(with_log(places, &format!("the new daemon has died; {goes_on}"))),
                told => Err(io::Error::other(format!("{told}; {goes_on}"))),
            }
        }
    }
}

/// Tells who started this daemon that it has taken over, and lets go of them: standard error becomes the log.
pub(crate) fn say_replaced() {
    eprint!("{REPLACED}");
    let _ = rustix::stdio::dup2_stderr(io::stdout());
}

/// The program with those words and the directory.
fn daemon_command(places: &Places, words: &[&str]) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // Not what this one is called by, which may be dmsetup.
    command.arg0("udm").args(words).arg(places.dir()).stdin(Stdio::null());
    Ok(command)
}

/// Ends a daemon that was started when another was first. Else it would still be about to take the directory when that
/// one ends, and nobody would know of it.
fn withdraw(mut child: Child, stream: &UnixStream) {
    let serves = sockopt::socket_peercred(stream).is_ok_and(|peer| peer.pid.as_raw_pid() as u32 == child.id());
    if !serves {
        let _ = child.kill();
        let _ = child.wait();
    }
}

fn with_log(places: &Places, message: &str) -> io::Error {
    let mut text = format!("{message}; the last lines of {}:", places.log().display());
    for line in log_tail(places, LOG_LINES) {
        text += "\n  ";
        text += &line;
    }
    io::Error::other(text)
}

/// Ioctls over `control.sock`, and what they have no word for over `udm.sock`.
pub(crate) struct DaemonTransport<'a, C> {
    places: &'a Places,
    ioctls: SocketTransport<C>,
    second: Option<Client<UnixStream>>,
    /// The node of devices that are made.
    node: Option<NodeKind>,
}

/// A transport that connects when it is first used. `node`: what devices that it makes are to be in the file system.
pub(crate) fn transport<'a>(
    places: &'a Places,
    cwd: Vec<u8>,
    node: Option<NodeKind>,
) -> DaemonTransport<'a, impl FnMut() -> io::Result<UnixStream> + 'a> {
    let mut waiting = Waiting::new(places.clone());
    let ioctls = SocketTransport::new(cwd, || control(places)).while_waiting(TELL, move || waiting.look());
    DaemonTransport { places, ioctls, second: None, node }
}

impl<C> DaemonTransport<'_, C> {
    /// Asks on `udm.sock`; `None` where no daemon runs, or when it refuses.
    fn ask(&mut self, request: &Request) -> Option<Value> {
        if self.second.is_none() {
            self.second = second(self.places).ok()?;
        }
        match self.second.as_mut()?.ask(request) {
            Ok(answer) => Some(answer),
            Err(ClientError::Refused { .. }) => None,
            Err(_) => {
                self.second = None;
                None
            }
        }
    }
}

impl<C: FnMut() -> io::Result<UnixStream>> DmTransport for DaemonTransport<'_, C> {
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError> {
        self.ioctls.ioctl(cmd, buf)
    }

    fn said(&mut self) -> String {
        self.ioctls.said()
    }

    fn device_stats(&mut self, name: &str) -> Option<Value> {
        let mut answer = self.ask(&Request::Stats { name: Some(name.to_owned()) })?;
        Some(answer.get_mut("devices")?.get_mut(0)?.take())
    }

    fn created(&mut self, name: &str) -> Result<(), String> {
        let Some(kind) = self.node else { return Ok(()) };
        let request = Request::NodeAdd { name: name.to_owned(), kind, mapper: false };
        let asked = second(self.places).map_err(|e| e.to_string()).and_then(|client| match client {
            Some(mut client) => client.ask(&request).map_err(|e| e.to_string()),
            None => Err("the daemon has ended".to_owned()),
        });
        asked.map(drop).map_err(|e| format!("{name} is made, but has no node: {e}"))
    }

    fn set_read_ahead(&mut self, name: &str, sectors: u32) {
        let (key, value) = ("read_ahead".to_owned(), sectors.to_string());
        // It is for show: a device that has gone meanwhile is no error.
        let _ = self.ask(&Request::Set { name: name.to_owned(), key, value });
    }

    fn host_devices(&mut self) -> Vec<(DevT, String)> {
        let devices = self.ask(&Request::HostDevices).and_then(|mut answer| Some(answer.get_mut("devices")?.take()));
        let devices: Vec<HostDevice> = devices.and_then(|d| serde_json::from_value(d).ok()).unwrap_or_default();
        devices.into_iter().map(|d| (DevT::new(d.major, d.minor), d.name)).collect()
    }
}
