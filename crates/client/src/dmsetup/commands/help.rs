//! `help`, and what is said to a command that is not there.

use super::COMMANDS;
use crate::dmsetup::app::{App, Call, Done, Failed};
use std::fmt::Write;

const OPTIONS: &str = "
A DEVICE is given by its name, or alone by --uuid UUID, or by --major MAJOR --minor MINOR.
A TABLE has one line a target: START LENGTH TARGET PARAMETERS, in sectors of 512 bytes. It comes
from --table, from FILE, or from standard input.
DEVICES of --concise: NAME,UUID,MINOR,FLAGS,TABLE[,TABLE-LINE...][;NAME,...]; FLAGS are ro or rw;
a backslash takes the next character as it stands.

Options:
  -c, --columns           a report in columns (info, splitname); -S without it chooses devices
  -o FIELDS               fields of a report, or with + more fields; help lists them
  -O, --sort KEYS         fields to sort by, - before one for descending
  -S, --select SELECTION  what devices: as in -S 'open=0 && name=~^vg'; help explains
      --noheadings, --separator TEXT, --nameprefixes, --unquoted, --rows
      --count N, --interval SECONDS
      --json              the same as JSON (info, table, status, ls)
  -o for ls and deps: devno, devname, blkdevname
  -o for ls --tree: ascii, utf, vt100, compact, inverted, notrunc, blkdevname, [no]device, active,
     open, rw, uuid
      --manglename none|auto|hex
  -r, --readonly   -f, --force   -y, --yes   -v   --inactive   --noflush   --nolockfs
      --noopencount, --checks, --retry, --deferred
  -h, --help, --version
      --readahead auto|none|[+]SECTORS
Taken and without effect: --uid, --gid, --mode, --addnodeon..., --udev..., --noudev...
";

/// What the program has besides, which it handles before it comes here.
const OWN: &str = "
Commands of udm's own, each with a --help:
  run [--nbd SOCKET] [--tcp ADDR[:PORT]] DEVICES
  daemon [--stop | --replace | --status]
  export [DEVICE [--tcp ADDR[:PORT] | --vhost-user SOCKET] [--remove]]
  node [add DEVICE [--kind KIND] [--mapper] | remove DEVICE]
  set DEVICE KEY=VALUE...
  snapshot info|ls|diff|merge
  thin check|dump|restore|repair|delta|ls|rmap|metadata-size
  bench --device DEVICE [OPTIONS]
create takes --node[=auto|ublk|fuse|loop|none], too.
With --dir DIRECTORY any command goes to the daemon of that directory.
";

pub(super) fn usage(program: &str) -> String {
    let mut text = format!("Usage: {program} [OPTIONS] COMMAND [ARGUMENTS]\n\n");
    for command in COMMANDS.iter().filter(|c| c.name != "stats") {
        let _ = writeln!(text, "  {} {}", command.name, command.usage);
    }
    // Under dmsetup's own name there are none but dmsetup's.
    if program == "udm" {
        text.push_str(OWN);
    }
    text.push_str(OPTIONS);
    text
}

pub(super) fn help(app: &mut App<'_, '_>, _: &Call<'_>) -> Done {
    app.explain(usage(&app.program));
    if app.options.columns {
        app.explain("\n");
        app.list_fields();
    }
    Ok(())
}

pub(super) fn stats(_: &mut App<'_, '_>, _: &Call<'_>) -> Done {
    Err(Failed::new("the statistics of `dmsetup stats` are not offered; `info --json` has the counters of a device"))
}

/// "; did you mean …?" with the commands that the word is a slip of.
pub(super) fn near(word: &str) -> String {
    let near: Vec<&str> = COMMANDS.iter().map(|c| c.name).filter(|n| is_near(word, n)).collect();
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) }
}

fn is_near(word: &str, name: &str) -> bool {
    let word = word.to_ascii_lowercase();
    let slips = if name.len() > 4 { 2 } else { 1 };
    word.len() > 1 && (name.starts_with(&word) || distance(&word, name, slips))
}

/// Do at most `slips` letters have to be put in, taken out or changed?
fn distance(a: &str, b: &str, slips: usize) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(32).collect(), b.chars().collect());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let best = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], best);
        }
    }
    row[b.len()] <= slips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips() {
        assert_eq!(near("inf"), "; did you mean info?");
        assert_eq!(near("LS"), "; did you mean ls?");
        assert_eq!(near("craete"), "; did you mean create?");
        assert_eq!(near("nonsense"), "");
        assert_eq!(near(""), "");
    }

    #[test]
    fn every_command_is_in_the_usage_text() {
        let text = usage("udm");
        for command in COMMANDS.iter().filter(|c| c.name != "stats") {
            assert!(text.contains(&format!("  {} ", command.name)), "{}", command.name);
        }
        assert!(text.contains("\n  bench "));
        assert!(!usage("dmsetup").contains("\n  bench "));
    }
}
