//! udm's own commands: what dmsetup does not have.

use crate::beside;
use crate::connect;
use crate::daemon::{self, Begin};
use crate::places::Places;
use crate::run::{self, RunArgs};
use crate::snapshot::{self, SnapshotArgs};
use crate::thin::{self, ThinArgs};
use clap::{Args, CommandFactory, Parser, Subcommand};
use serde_json::Value;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use udm_bench::cli::Surroundings;
use udm_bench::cli::experiments::PROGRAM;
use udm_control::second::{
    Client, DebugDump, ExportEntry, Hello, NodeEntry, NodeKind, Request, Underway, VhostUserExport,
};

/// How long `udm daemon --stop` waits.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The device mapper in user space.
///
/// Besides the commands below it has all of dmsetup's: create, remove, ls, info, table, status, load, suspend, resume
/// and more, as in `udm create NAME --table TABLE`; `udm help` lists them.
#[derive(Parser)]
#[command(name = "udm", version, disable_help_subcommand = true)]
struct Own {
    /// The daemon's directory [default: $UDM_DIR, $XDG_RUNTIME_DIR/udm, or /run/udm for root]
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    command: OwnCommand,
}

#[derive(Subcommand)]
enum OwnCommand {
    /// Run the daemon in the foreground, end it, or ask how it is
    Daemon(DaemonArgs),
    /// Make and serve devices in this process, without a daemon
    Run(RunArgs),
    /// Serve a device over TCP or as a disk of a virtual machine, or list where devices can be reached
    Export(ExportArgs),
    /// Put a device into the file system, take it out, or list those that are there
    Node(NodeArgs),
    /// Change an option of a device
    Set(SetArgs),
    /// Tell who waits for what and since when
    Debug(DebugArgs),
    /// Check, dump, restore and look into a thin pool's metadata
    Thin(ThinArgs),
    /// Look into the COW device of a snapshot: what changed, and how full it is; or take a snapshot back
    Snapshot(SnapshotArgs),
    /// Measure how fast a device is; `udm bench --help` tells more
    #[command(disable_help_flag = true)]
    Bench(BenchArgs),
}

#[derive(Args)]
struct BenchArgs {
    #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

#[derive(Args)]
struct DaemonArgs {
    /// End the daemon: drain what is in flight, flush, and wait until it has gone. The next one makes the devices again
    #[arg(long, conflicts_with = "status")]
    stop: bool,
    /// With --stop: forget the devices, so that the next daemon begins without any. Their data stays where it is
    #[arg(long, requires = "stop")]
    forget: bool,
    /// Begin without the devices of the daemon before; their tables are kept in state.json.last
    #[arg(long, conflicts_with_all = ["stop", "status"])]
    no_restore: bool,
    /// Tell which daemon runs, what it has under way, and the end of its log
    #[arg(long)]
    status: bool,
    /// Start another daemon that goes on in the place of the one that runs: with its devices, and with its clients,
    /// which notice nothing. If it cannot, the one that runs stays
    #[arg(long, conflicts_with_all = ["stop", "status", "no_restore"])]
    replace: bool,
    /// How long a thread that serves devices polls before it sleeps, in microseconds; 0 sleeps at once [default: 20]
    #[arg(long, value_name = "MICROSECONDS", conflicts_with_all = ["stop", "status"])]
    poll_budget: Option<u32>,
    /// Put every device into the file system: auto, ublk, fuse, loop or none
    #[arg(long, value_name = "KIND", default_value = "none", conflicts_with_all = ["stop", "status"])]
    node: NodeKind,
    /// Read requests to nodes from FUSE's descriptor, even where the kernel offers io_uring: such nodes stay in use
    /// across --replace
    #[arg(long, conflicts_with_all = ["stop", "status"])]
    no_fuse_io_uring: bool,
    /// Run as the child of a client: in a session of its own, with the log as output
    #[arg(long, hide = true)]
    detached: bool,
}

#[derive(Args)]
struct ExportArgs {
    /// The device; without one, all exports are listed
    name: Option<String>,
    /// Serve it here; without a port on 10809, with port 0 on a free one. There is no password: who reaches it has the
    /// data
    #[arg(long, value_name = "ADDR[:PORT]", requires = "name")]
    tcp: Option<String>,
    /// Serve it on this unix socket to a virtual machine (vhost-user-blk)
    #[arg(long, value_name = "SOCKET", requires = "name", conflicts_with = "tcp")]
    vhost_user: Option<PathBuf>,
    /// Queues that the virtual machine may use [default: the number of CPUs, at most 8]
    #[arg(long, value_name = "N", requires = "vhost_user", conflicts_with = "remove")]
    queues: Option<u16>,
    /// Entries that a queue may have, a power of two [default: 1024]
    #[arg(long, value_name = "N", requires = "vhost_user", conflicts_with = "remove")]
    queue_size: Option<u16>,
    /// How it waits for requests: interrupt, adaptive or polled [default: adaptive]
    #[arg(long, value_name = "MODE", requires = "vhost_user", conflicts_with = "remove")]
    mode: Option<String>,
    /// End its exports over TCP and vhost-user, or that at --tcp or --vhost-user
    #[arg(long, requires = "name")]
    remove: bool,
}

#[derive(Args)]
struct NodeArgs {
    #[command(subcommand)]
    command: Option<NodeCommand>,
}

#[derive(Subcommand)]
enum NodeCommand {
    /// Put a device into the file system; prints the path
    Add {
        /// The device
        name: String,
        /// As what: auto, ublk, fuse (a file), loop (a block device on top of it) or none
        #[arg(long, value_name = "KIND", default_value = "auto")]
        kind: NodeKind,
        /// With a link in /dev/mapper, too; needs root
        #[arg(long)]
        mapper: bool,
    },
    /// Take a device out of the file system
    Remove {
        /// The device
        name: String,
    },
}

#[derive(Args)]
struct SetArgs {
    /// The device
    name: String,
    /// What to change; an unknown KEY lists those that there are
    #[arg(value_name = "KEY=VALUE", required = true)]
    settings: Vec<String>,
}

#[derive(Args)]
struct DebugArgs {
    #[command(subcommand)]
    command: DebugCommand,
}

#[derive(Subcommand)]
enum DebugCommand {
    /// Print commands under way, devices, what lies beneath, channels and locks of the daemon
    Dump {
        /// As one object of JSON
        #[arg(long)]
        json: bool,
    },
}

/// Is this word one of udm's own commands?
pub(crate) fn is_command(word: &str) -> bool {
    Own::command().get_subcommands().any(|command| command.get_name() == word)
}

/// Runs one of udm's own commands, or prints its help. Returns the exit code.
pub(crate) fn main(argv: Vec<OsString>) -> u8 {
    let own = match Own::try_parse_from(thin::attach_values(argv)) {
        Ok(own) => own,
        Err(error) => {
            let _ = error.print();
            return u8::from(error.use_stderr());
        }
    };
    let places = || Places::find(own.dir.as_deref());
    let result = match &own.command {
        OwnCommand::Daemon(args) if args.stop => places().and_then(|places| stop(&places, args.forget)),
        OwnCommand::Daemon(args) if args.status => places().and_then(|places| status(&places)),
        OwnCommand::Daemon(args) if args.replace && !args.detached => {
            places().and_then(|places| connect::replace(&places).map_err(|e| e.to_string())).map(|()| 0)
        }
        OwnCommand::Daemon(args) => return serve(places(), args),
        OwnCommand::Run(args) => run::run(args),
        OwnCommand::Export(args) => places().and_then(|places| export(&places, args)),
        OwnCommand::Bench(args) => {
            // Without a directory there is no daemon, and its devices are the only ones that are out of reach.
            let socket = places().ok().and_then(|places| {
                connect::nbd(&places).inspect_err(|why| eprintln!("udm: its devices are out of reach: {why}")).ok()
            });
            let experiments = beside::find(PROGRAM);
            let around = Surroundings { nbd_socket: socket.as_deref(), experiments: experiments.as_deref() };
            return udm_bench::cli::run(args.words.clone(), around);
        }
        OwnCommand::Thin(args) => thin::run(args),
        OwnCommand::Snapshot(args) => snapshot::run(args, &places()),
        OwnCommand::Node(args) => places().and_then(|places| node(&places, args)),
        OwnCommand::Debug(DebugArgs { command: DebugCommand::Dump { json } }) => {
            places().and_then(|places| dump(&places, *json))
        }
        OwnCommand::Set(args) => places().and_then(|places| set(&places, args)),
    };
    result.unwrap_or_else(|message| {
        eprintln!("udm: {message}");
        1
    })
}

fn serve(places: Result<Places, String>, args: &DaemonArgs) -> u8 {
    if args.replace {
        return match places.map_err(Into::into).and_then(|places| daemon::replace(places, connect::say_replaced)) {
            Ok(true) => 0,
            Ok(false) => daemon::EXIT_NONE,
            Err(error) => {
                eprintln!("{}", error.message);
                1
            }
        };
    }
    let begin = Begin {
        detached: args.detached,
        fresh: args.no_restore,
        poll_budget: args.poll_budget,
        node: args.node,
        rings: !args.no_fuse_io_uring,
    };
    match places.map_err(Into::into).and_then(|places| daemon::run(places, begin)) {
        Ok(()) => 0,
        Err(error) => {
            // A client that started one too many needs no word in the log.
            if !(begin.detached && error.held) {
                eprintln!("udm: {}", error.message);
            }
            if error.held { daemon::EXIT_HELD } else { 1 }
        }
    }
}

fn stop(places: &Places, forget: bool) -> Result<u8, String> {
    let dir = places.dir().display();
    let Some(mut client) = connect::second(places).map_err(|e| e.to_string())? else {
        return match connect::holder(places) {
            None => {
                if forget {
                    daemon::forget(places)?;
                }
                println!("no daemon runs in {dir}");
                Ok(0)
            }
            Some(pid) => {
                let pid = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                Err(format!("the daemon of {dir}{pid} does not answer; it may be ending, or hang: kill it"))
            }
        };
    };
    client.ask(&Request::Shutdown { forget }).map_err(|e| e.to_string())?;
    let deadline = Instant::now() + STOP_TIMEOUT;
    let pid = client.daemon().pid;
    while connect::holder(places).is_some_and(|holder| holder.is_none_or(|holder| holder == pid)) {
        if Instant::now() > deadline {
            return Err(format!("the daemon with process id {pid} has not ended after {} s", STOP_TIMEOUT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(0)
}

fn status(places: &Places) -> Result<u8, String> {
    let Some(mut client) = connect::second(places).map_err(|e| e.to_string())? else {
        println!("no daemon runs in {}", places.dir().display());
        return Ok(1);
    };
    let Hello { program, pid, .. } = client.daemon().clone();
    let stats = ask(&mut client, &Request::Stats { name: None })?;
    let devices = stats.get("devices").and_then(Value::as_array).map_or(0, Vec::len);
    // Who reads the first line only does not want to hear that the others could not be written.
    crate::startup::restore_sigpipe();
    println!("{program}, process {pid}, serves {} with {devices} devices", places.dir().display());
    for device in stats.get("devices").and_then(Value::as_array).into_iter().flatten() {
        if let (Some(name), Some(why)) = (device["name"].as_str(), device["lost"].as_str()) {
            println!("lost: {name}: {why}");
        }
    }
    let underway: Vec<Underway> = list(&mut client, &Request::Progress, "underway")?;
    for u in underway {
        let why = u.waits_for.map_or_else(String::new, |what| format!(": {what}"));
        println!("under way for {} ms: {} {}{why}", u.elapsed_ms, u.command, u.device);
    }
    let lines: Vec<String> = list(&mut client, &Request::Log { lines: 10 }, "lines")?;
    lines.iter().for_each(|line| println!("log: {line}"));
    Ok(0)
}

fn dump(places: &Places, json: bool) -> Result<u8, String> {
    let Some(mut client) = connect::second(places).map_err(|e| e.to_string())? else {
        return Err(format!("no daemon runs in {}", places.dir().display()));
    };
    let answer = ask(&mut client, &Request::Debug)?;
    if json {
        println!("{answer}");
        return Ok(0);
    }
    let dump: DebugDump =
        serde_json::from_value(answer).map_err(|e| format!("the daemon's answer cannot be understood: {e}"))?;
    print!("{dump}");
    Ok(0)
}

fn export(places: &Places, args: &ExportArgs) -> Result<u8, String> {
    let mut client = connect::second_or_start(places).map_err(|e| e.to_string())?;
    // The daemon's directory is another one.
    let socket = |path: &PathBuf| {
        let path = std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
        path.into_os_string().into_string().map_err(|path| format!("{path:?}: expected a path in UTF-8"))
    };
    let socket = args.vhost_user.as_ref().map(socket).transpose()?;
    match (&args.name, &args.tcp, args.remove) {
        (Some(name), tcp, true) => {
            let (name, tcp) = (name.clone(), tcp.clone());
            ask(&mut client, &Request::ExportRemove { name, tcp, vhost_user: socket })?;
        }
        (Some(name), None, false) if socket.is_some() => {
            let (queues, queue_size, mode) = (args.queues, args.queue_size, args.mode.clone());
            let at = VhostUserExport { socket: socket.unwrap_or_default(), queues, queue_size, mode };
            let entry = ask(&mut client, &Request::ExportAddVhostUser { name: name.clone(), at })?;
            let entry: ExportEntry = serde_json::from_value(entry).map_err(|e| e.to_string())?;
            println!("{}", entry.uri);
        }
        (Some(name), Some(tcp), false) => {
            let entry = ask(&mut client, &Request::ExportAdd { name: name.clone(), tcp: tcp.clone() })?;
            let entry: ExportEntry = serde_json::from_value(entry).map_err(|e| e.to_string())?;
            println!("{}", entry.uri);
        }
        (name, None, false) => {
            let entries: Vec<ExportEntry> = list(&mut client, &Request::ExportList, "exports")?;
            let chosen: Vec<_> = entries.iter().filter(|e| name.as_ref().is_none_or(|n| *n == e.name)).collect();
            if let (Some(name), true) = (name, chosen.is_empty()) {
                return Err(format!("{name:?} is not exported: there is no such device, or it has no active table"));
            }
            chosen.iter().for_each(|entry| println!("{}\t{}", entry.name, entry.uri));
        }
        (None, ..) => return Err("expected a device's name".into()),
    }
    Ok(0)
}

fn node(places: &Places, args: &NodeArgs) -> Result<u8, String> {
    let mut client = connect::second_or_start(places).map_err(|e| e.to_string())?;
    match &args.command {
        Some(NodeCommand::Add { name, kind, mapper }) => {
            let request = Request::NodeAdd { name: name.clone(), kind: *kind, mapper: *mapper };
            let entry: Option<NodeEntry> =
                serde_json::from_value(ask(&mut client, &request)?).map_err(|e| e.to_string())?;
            if let Some(entry) = entry {
                println!("{}", entry.path);
                entry.note.iter().for_each(|note| eprintln!("udm: it is a file only: {note}"));
            }
        }
        Some(NodeCommand::Remove { name }) => {
            ask(&mut client, &Request::NodeRemove { name: name.clone() })?;
        }
        None => {
            let entries: Vec<NodeEntry> = list(&mut client, &Request::NodeList, "nodes")?;
            for NodeEntry { name, kind, path, device, mapper, .. } in entries {
                let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
                println!("{name}\t{kind}\t{path}\t{}\t{}", or_none(device), or_none(mapper));
            }
        }
    }
    Ok(0)
}

fn set(places: &Places, args: &SetArgs) -> Result<u8, String> {
    let split = |setting: &String| match setting.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("{setting:?}: expected KEY=VALUE")),
    };
    let settings = args.settings.iter().map(split).collect::<Result<Vec<_>, _>>()?;
    let mut client = connect::second_or_start(places).map_err(|e| e.to_string())?;
    for (key, value) in settings {
        ask(&mut client, &Request::Set { name: args.name.clone(), key, value })?;
    }
    Ok(0)
}

fn ask<S: Read + std::io::Write>(client: &mut Client<S>, request: &Request) -> Result<Value, String> {
    client.ask(request).map_err(|e| e.to_string())
}

/// The list that an answer has under `key`.
fn list<T: serde::de::DeserializeOwned>(
    client: &mut Client<UnixStream>,
    request: &Request,
    key: &str,
) -> Result<Vec<T>, String> {
    let mut answer = ask(client, request)?;
    let list = answer.get_mut(key).map(Value::take).unwrap_or_default();
    serde_json::from_value(list).map_err(|e| format!("the daemon's answer cannot be understood: {e}"))
}
