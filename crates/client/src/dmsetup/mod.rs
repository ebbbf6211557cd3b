//! The command line of dmsetup 1.02.185: its commands, options, standard output and exit codes.
//! Standard error is our own, and says more.
//!
//! [`main`] is the whole program; [`Env`] is the world it runs in. It speaks the ioctls of the
//! device mapper over a [`DmTransport`], so that a test, the daemon's socket and a kernel look the
//! same to it.
//!
//! Beyond dmsetup: `--json` on `info`, `table`, `status` and `ls`. Not offered: `stats`. Without
//! effect: `--uid`, `--gid`, `--mode`, cookies and all else that is udev's.
//!
//! Arguments and tables are UTF-8; anything else is refused.

mod app;
mod block_name;
mod commands;
mod env;
mod fields;
mod getopt;
mod json;
mod local;
mod mangle;
mod options;
mod report;
mod select;
mod split_name;
mod table_text;
mod task;
mod transport;
mod tree;

pub use env::{Clock, Env};
pub use local::LocalTransport;
pub use transport::{DmTransport, IoctlError, SocketTransport};

use app::App;
use options::Options;
use std::ffi::OsString;

/// Is `word` one of dmsetup's commands? For a program that has others besides.
pub fn is_command(word: &str) -> bool {
    commands::is_command(word)
}

/// Run a command. `argv` begins with the program's name: `devmap_name` is the program of that name,
/// every other is dmsetup. Blocks as long as the command does: `wait` until there is an event.
///
/// Returns the exit code: 0, or 1 when something failed, which standard error then tells.
pub fn main(argv: Vec<OsString>, env: &mut Env<'_>) -> i32 {
    let mut words = argv.into_iter();
    let path = words.next().unwrap_or_else(|| "dmsetup".into());
    let program =
        std::path::Path::new(&path).file_name().map_or_else(|| "dmsetup".into(), |n| n.to_string_lossy().into_owned());
    let mut args = Vec::new();
    for (i, word) in words.enumerate() {
        match word.into_string() {
            Ok(word) => args.push(word),
            Err(word) => {
                let _ = writeln!(env.stderr, "{program}: argument {} is not UTF-8: {}", i + 1, word.to_string_lossy());
                return 1;
            }
        }
    }
    let posix = env.vars.contains_key("POSIXLY_CORRECT");
    let parsed = if program == "devmap_name" { devmap_name(&args) } else { Options::parse(&args, posix) };
    let (options, words) = match parsed {
        Ok(parsed) => parsed,
        Err(message) => {
            let _ = writeln!(env.stderr, "{program}: {message}");
            return 1;
        }
    };
    let asked_for_help = options.help;
    let mut app = App::new(env, program, options);
    let result = app.run_command(&words);
    if let Err(failed) = &result {
        app.tell(failed);
    }
    // A reader that has gone has not seen the output: that is a failure too.
    let flushed = env.stdout.flush();
    i32::from(!asked_for_help && (result.is_err() || flushed.is_err()))
}

/// `devmap_name MAJOR MINOR` or `devmap_name MAJOR:MINOR`: the name of a device.
fn devmap_name(args: &[String]) -> Result<(Options, Vec<String>), String> {
    let (major, minor) = match args {
        [major, minor] => (options::atoi(major), options::atoi(minor)),
        [both] => {
            let number = |text: &str| text.trim().parse::<i32>().ok();
            let both = both.split_once(':').and_then(|(major, minor)| Some((number(major)?, number(minor)?)));
            both.ok_or("usage: devmap_name MAJOR MINOR")?
        }
        _ => return Err("usage: devmap_name MAJOR MINOR".into()),
    };
    let options = Options {
        columns: true,
        no_headings: true,
        options: Some("name".into()),
        major: Some(major),
        minor: Some(minor),
        ..Options::default()
    };
    Ok((options, vec!["info".into()]))
}
