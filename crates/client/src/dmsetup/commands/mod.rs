//! The commands, one file a family.

mod create;
mod deps;
mod help;
mod info;
mod ls;
mod mangle;
mod message;
mod order;
mod remove;
mod report;
mod state;
mod status;
mod udev;
mod version;

use super::app::{App, Call, CommandType, Done, Failed, Listing, Repeat};

const fn command(
    name: &'static str,
    usage: &'static str,
    arguments: (usize, usize),
    repeat: Repeat,
    run: fn(&mut App<'_, '_>, &Call<'_>) -> Done,
) -> CommandType {
    CommandType { name, usage, min: arguments.0, max: arguments.1, repeat, run }
}

const MANY: usize = usize::MAX;

/// Every command, with the counts of arguments of dmsetup 1.02.185.
static COMMANDS: &[CommandType] = &[
    command("help", "[-c]", (0, 0), Repeat::Never, help::help),
    command(
        "create",
        "NAME [FILE] [--table TABLE | -n] [-u UUID] [-j MAJOR -m MINOR] [-r]\n  create --concise [DEVICES]",
        (0, 2),
        Repeat::Never,
        create::create,
    ),
    command("remove", "[-f] [--retry] [--deferred] DEVICE...", (0, MANY), Repeat::EachOrSelected, remove::remove),
    command("remove_all", "[-f] [--deferred]", (0, 0), Repeat::Never, remove::remove_all),
    command("suspend", "[--noflush] [--nolockfs] DEVICE...", (0, MANY), Repeat::EachOrSelected, state::suspend),
    command("resume", "[--noflush] [--nolockfs] DEVICE...", (0, MANY), Repeat::EachOrSelected, state::resume),
    command("load", "DEVICE [FILE] [--table TABLE] [-r]", (0, 2), Repeat::Never, create::load),
    command("clear", "DEVICE...", (0, MANY), Repeat::EachOrSelected, state::clear),
    command("reload", "DEVICE [FILE] [--table TABLE] [-r]", (0, 2), Repeat::Never, create::load),
    command(
        "wipe_table",
        "[-f] [--noflush] [--nolockfs] DEVICE...",
        (0, MANY),
        Repeat::EachOrSelected,
        remove::wipe_table,
    ),
    command("rename", "DEVICE NEW-NAME\n  rename DEVICE --setuuid UUID", (1, 2), Repeat::Never, state::rename),
    command("measure", "[DEVICE...]", (0, MANY), Repeat::EachOrSelected, status::status),
    command("message", "DEVICE SECTOR MESSAGE...", (2, MANY), Repeat::Never, message::message),
    command("ls", "[--target TYPE] [--exec COMMAND] [--tree] [-o OPTIONS] [--json]", (0, 0), Repeat::Never, ls::ls),
    command(
        "info",
        "[-c [-o FIELDS] [-O KEYS] [-S SELECTION]] [--json] [DEVICE...]",
        (0, MANY),
        Repeat::Each,
        info::info,
    ),
    command("deps", "[-o devno|devname|blkdevname] [DEVICE...]", (0, MANY), Repeat::EachOrSelected, deps::deps),
    command("stats", "...", (1, MANY), Repeat::Each, help::stats),
    command(
        "status",
        "[--target TYPE] [--noflush] [--json] [DEVICE...]",
        (0, MANY),
        Repeat::EachOrSelected,
        status::status,
    ),
    command(
        "table",
        "[--target TYPE] [--concise] [--showkeys] [--inactive] [--json] [DEVICE...]",
        (0, MANY),
        Repeat::EachOrSelected,
        status::status,
    ),
    command("wait", "DEVICE [EVENT-NUMBER] [--noflush]", (0, 2), Repeat::Never, state::wait),
    command("mknodes", "[DEVICE...]", (0, MANY), Repeat::Each, udev::mknodes),
    command("mangle", "[DEVICE...]", (0, MANY), Repeat::Each, mangle::mangle),
    command("udevcreatecookie", "", (0, 0), Repeat::Never, udev::create_cookie),
    command("udevreleasecookie", "[COOKIE]", (0, 1), Repeat::Never, udev::release_cookie),
    command("udevflags", "COOKIE", (1, 1), Repeat::Never, udev::flags),
    command("udevcomplete", "COOKIE", (1, 1), Repeat::Never, udev::complete),
    command("udevcomplete_all", "[MINUTES]", (0, 1), Repeat::Never, udev::complete_all),
    command("udevcookies", "", (0, 0), Repeat::Never, udev::cookies),
    command("target-version", "TARGET...", (1, MANY), Repeat::Each, version::target_version),
    command("targets", "", (0, 0), Repeat::Never, version::targets),
    command("version", "", (0, 0), Repeat::Never, version::version),
    command("setgeometry", "DEVICE CYLINDERS HEADS SECTORS START", (5, 5), Repeat::Never, message::set_geometry),
    command("splitname", "NAME [SUBSYSTEM]", (1, 2), Repeat::Never, info::split_name),
];

/// The command of that name.
pub(super) fn find(name: &str) -> Option<&'static CommandType> {
    COMMANDS.iter().find(|c| c.name == name)
}

/// Is there a command of that name?
pub(super) fn is_command(name: &str) -> bool {
    find(name).is_some()
}

impl App<'_, '_> {
    /// Run the command of `words`, as often as `--count` says. The exit code.
    pub(super) fn run_command(&mut self, words: &[String]) -> Done {
        if self.options.help {
            return help::help(self, &call_of("help", &[])?);
        }
        if self.options.version {
            // The exit code is 0 whatever comes of it.
            let told = version::version(self, &call_of("version", &[])?);
            return told.or_else(|failed| {
                self.tell(&failed);
                Ok(())
            });
        }
        let Some((name, args)) = words.split_first() else {
            self.explain(help::usage(&self.program));
            return Err(Failed::told());
        };
        let Some(mut command) = find(name) else {
            let (near, program) = (help::near(name), &self.program);
            return Err(Failed::new(format!("unknown command {name:?}{near}\n`{program} help` lists the commands")));
        };
        if !(command.min..=command.max).contains(&args.len()) {
            let (name, usage, program) = (command.name, command.usage, &self.program);
            return Err(Failed::new(format!(
                "{name} got {} arguments; usage:\n  {program} {name} {usage}",
                args.len()
            )));
        }
        self.options.columns |= command.name == "splitname";
        if command.name == "mangle" {
            self.mangling = super::mangle::Mangling::None;
        }
        let listing = self.listing_options()?;
        // With -S the devices that `info` selects are the command's.
        if self.options.select.is_some() && command.repeat == Repeat::EachOrSelected {
            self.for_selected = Some(command);
            self.options.columns = true;
            command = find("info").ok_or_else(|| Failed::new("there is no info"))?;
        }
        if self.options.columns {
            self.start_report(command.name)?;
        }
        self.check_json(command)?;
        self.repeat(command, args, listing)
    }

    fn repeat(&mut self, command: &'static CommandType, args: &[String], listing: Listing) -> Done {
        self.listing = listing;
        let many = command.repeat != Repeat::Never
            && args.len() != 1
            && (!args.is_empty() || self.options.uuid.is_none() && self.options.major.is_none());
        let mut rounds = self.rounds();
        let interval = std::time::Duration::from_secs(self.options.interval.unwrap_or(1).max(1) as u64);
        let mut next = self.env.clock.now();
        loop {
            let result = self.run_for_arguments(command, args, many);
            if std::mem::take(&mut self.concise_begun) {
                self.print("\n");
            }
            self.print_json();
            let repeat = self.options.count != Some(1);
            let reported = self.report.as_mut().map(|report| report.output(repeat));
            if let Some(text) = &reported {
                self.print(text);
            }
            self.flush();
            result?;
            rounds -= 1;
            if rounds == 0 {
                return Ok(());
            }
            if reported.is_some() {
                self.print("\n");
            }
            // Without a report dmsetup does not wait between rounds; for ever, it had better.
            if reported.is_some() || rounds > u64::from(u32::MAX) {
                self.flush();
                // From start to start: what a round takes is not added to the interval.
                next += interval;
                let now = self.env.clock.now();
                self.env.clock.sleep(next.saturating_sub(now));
            }
        }
    }

    /// How often: `--count` times, for ever with 0 or with `--interval` alone, once for help.
    fn rounds(&self) -> u64 {
        if self.report.is_some() && self.asks_for_help() {
            return 1;
        }
        match (self.options.count, self.options.interval) {
            (Some(count @ 1..), _) => count as u64,
            (None, None) => 1,
            _ => u64::MAX,
        }
    }

    fn run_for_arguments(&mut self, command: &'static CommandType, args: &[String], one_of_many: bool) -> Done {
        let mut args = args;
        loop {
            let call = Call { command, args, listed: None, one_of_many };
            (command.run)(self, &call)?;
            if command.repeat == Repeat::Never || args.len() <= 1 {
                return Ok(());
            }
            args = &args[1..];
        }
    }

    /// Run a command for each device there is. A failure is told, and the rest are tried.
    fn for_each_device(&mut self, call: &Call<'_>, say_none: bool, run: impl Fn(&mut Self, &Call<'_>) -> Done) -> Done {
        let listed = self.listed()?;
        if listed.is_empty() && say_none && !self.options.json {
            self.print("No devices found\n");
        }
        let mut result = Ok(());
        for device in &listed {
            if let Err(failed) = run(self, &Call { listed: Some(device), one_of_many: true, ..*call }) {
                self.tell(&failed);
                result = Err(Failed::told());
            }
        }
        result
    }

    /// Does the command concern every device: was none named?
    fn means_all(&self, call: &Call<'_>) -> bool {
        call.listed.is_none() && call.args.is_empty() && self.options.uuid.is_none() && self.options.major.is_none()
    }
}

fn call_of(name: &str, args: &'static [String]) -> Done<Call<'static>> {
    let command = find(name).ok_or_else(|| Failed::new(format!("there is no command {name}")))?;
    Ok(Call { command, args, listed: None, one_of_many: false })
}
