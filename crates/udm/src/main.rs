//! The `udm` program: dmsetup's commands, udm's own, and the daemon.
//!
//! Called as `dmsetup` or `devmap_name` it is that program, and has no commands but its.

mod connect;
mod daemon;
mod engine;
mod exports;
mod local;
mod own;
mod places;
mod run;
mod sigpipe;
mod world;

use places::Places;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut argv: Vec<OsString> = std::env::args_os().collect();
    let program = argv.first().map(Path::new).and_then(Path::file_name).unwrap_or_default().to_owned();
    let is_udm = program != "dmsetup" && program != "devmap_name";
    let serves = is_udm && matches!(argv.get(1).and_then(|w| w.to_str()), Some("daemon" | "run"));
    if !serves {
        sigpipe::restore();
    }
    if is_udm && wants_own(&argv) {
        return own::main(argv).into();
    }
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
    let mut transport = connect::transport(&places, cwd);
    let code = world::dmsetup(argv, &mut transport, places.nodes());
    u8::try_from(code).unwrap_or(1).into()
}

/// Whether the words are for udm's own commands: the first one that is neither `--dir` nor its value tells.
fn wants_own(argv: &[OsString]) -> bool {
    let mut words = argv.iter().skip(1);
    loop {
        match words.next().and_then(|word| word.to_str()) {
            Some("--dir") => drop(words.next()),
            Some(word) if word.starts_with("--dir=") => {}
            Some("-h" | "--help" | "-V" | "--version") => return true,
            Some(word) => return own::is_command(word),
            // Neither does dmsetup know what to do without a command; its list is the longer one.
            None => return false,
        }
    }
}

/// Takes `--dir DIR` from before a dmsetup command.
fn take_dir(argv: &mut Vec<OsString>) -> Result<Option<PathBuf>, String> {
    let mut dir = None;
    while let Some(word) = argv.get(1).cloned() {
        if word == "--dir" {
            let value = argv.get(2).cloned().ok_or("--dir: expected a directory after it")?;
            argv.drain(1..3);
            dir = Some(value.into());
        } else if let Some(value) = word.as_bytes().strip_prefix(b"--dir=") {
            dir = Some(OsStr::from_bytes(value).into());
            argv.remove(1);
        } else {
            break;
        }
    }
    Ok(dir)
}
