//! The `udm` program: dmsetup's commands, udm's own, and the daemon.
//!
//! Called as `dmsetup` or `devmap_name` it is that program, and has no commands but its.

mod beside;
mod connect;
mod daemon;
mod exports;
mod greet;
mod own;
mod places;
mod progress;
mod run;
mod snapshot;
mod startup;
mod thin;
mod waiting;
mod world;

use places::Places;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use udm_control::second::NodeKind;

fn main() -> ExitCode {
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    if argv.get(2).is_some_and(|word| word == connect::DETACHED) {
        startup::close_inherited();
    }
    let program = argv.first().map(Path::new).and_then(Path::file_name).unwrap_or_default().to_owned();
    let is_udm = program != "dmsetup" && program != "devmap_name";
    let word = first_word(&argv).filter(|_| is_udm);
    // These have clients, which hang up as they like.
    if !matches!(word, Some("daemon" | "run" | "bench")) {
        startup::restore_sigpipe();
    } else {
        startup::survive_file_limit();
    }
    if word.is_some_and(|word| matches!(word, "-h" | "--help" | "-V" | "--version") || own::is_command(word)) {
        return own::main(argv).into();
    }
    let node = if word == Some("create") { take_node(&mut argv) } else { Ok(None) };
    let node = match node {
        Ok(node) => node,
        Err(message) => {
            eprintln!("udm: {message}");
            return ExitCode::FAILURE;
        }
    };
    let dir = if is_udm { take_dir(&mut argv) } else { Ok(None) };
    let places = dir.and_then(|dir| Places::find(dir.as_deref()));
    let places = match places {
        Ok(places) => places,
        Err(message) => {
            eprintln!("{}: {message}", program.display());
            return ExitCode::FAILURE;
        }
    };
    let cwd = std::env::current_dir().unwrap_or_default().into_os_string().into_vec();
    let mut transport = connect::transport(&places, cwd, node);
    let code = world::dmsetup(argv, &mut transport, places.nodes());
    u8::try_from(code).unwrap_or(1).into()
}

/// The command: the first word that is neither `--dir` nor its value.
fn first_word(argv: &[OsString]) -> Option<&str> {
    let mut words = argv.iter().skip(1);
    loop {
        match words.next()?.to_str()? {
            "--dir" => drop(words.next()),
            word if word.starts_with("--dir=") => {}
            word => return Some(word),
        }
    }
}

/// Takes `--node[=KIND]` from a `create`, wherever it stands before `--`. dmsetup has no such option.
fn take_node(argv: &mut Vec<OsString>) -> Result<Option<NodeKind>, String> {
    let end = argv.iter().position(|word| word == "--").unwrap_or(argv.len());
    let kind = |word: &OsString| match word.to_str()? {
        "--node" => Some(Ok(NodeKind::Auto)),
        word => word.strip_prefix("--node=").map(|kind| kind.parse().map_err(|e| format!("--node={e}"))),
    };
    let mut node = None;
    let mut index = 0;
    let mut result = Ok(());
    argv.retain(|word| {
        index += 1;
        let Some(kind) = kind(word).filter(|_| index <= end) else { return true };
        match kind {
            Ok(kind) => node = Some(kind),
            Err(message) => result = Err(message),
        }
        false
    });
    result.map(|()| node)
}

/// Takes `--dir DIR` from a dmsetup command, wherever it stands before `--`.
fn take_dir(argv: &mut Vec<OsString>) -> Result<Option<PathBuf>, String> {
    let mut dir = None;
    let mut i = 1;
    while let Some(word) = argv.get(i).cloned() {
        if word == "--" {
            break;
        } else if word == "--dir" {
            let value = argv.get(i + 1).cloned().ok_or("--dir: expected a directory after it")?;
            argv.drain(i..i + 2);
            dir = Some(value.into());
        } else if let Some(value) = word.as_bytes().strip_prefix(b"--dir=") {
            dir = Some(OsStr::from_bytes(value).into());
            argv.remove(i);
        } else {
            i += 1;
        }
    }
    Ok(dir)
}
