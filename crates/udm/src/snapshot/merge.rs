//! `udm snapshot merge`: what lvm2 does to take a snapshot back, and what it then waits for.
//!
//! # Order
//! The snapshot is suspended, then the origin's device; `snapshot-merge` takes the place of the origin's table, and the
//! snapshot's device goes. When all is merged, the origin's own table comes back. What fails before the origin runs
//! again is undone. The merge is the daemon's: who follows it may leave and come back.

use crate::connect;
use crate::places::Places;
use crate::progress::Bar;
use clap::Args;
use serde_json::json;
use std::time::Duration;
use udm_base::{Errno, Sector, Sectors};
use udm_client::dmsetup::DmTransport;
use udm_control::codec::{Command, Flags, RequestBuilder, Response, TargetSpec};
use udm_formats::snapshot::size;
use udm_formats::thin::tools::Progress;

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_millis(100);
/// The largest answer that is taken.
const MAX_CAPACITY: usize = 16 << 20;

const ORIGIN: &str = "snapshot-origin";
const SNAPSHOT: &str = "snapshot";
const MERGE: &str = "snapshot-merge";

#[derive(Args)]
pub(super) struct MergeArgs {
    /// The snapshot's device; or the origin's, to follow a merge that is under way
    name: String,
    /// The origin's device, when several show it
    #[arg(long, value_name = "ORIGIN")]
    into: Option<String>,
    /// Leave it to the daemon; the same command with the origin's name follows it, and ends it
    #[arg(long)]
    detach: bool,
    /// For programs
    #[arg(long)]
    json: bool,
}

/// A table of one line.
#[derive(Clone)]
struct Line {
    start: Sector,
    len: Sectors,
    target: String,
    params: String,
}

impl Line {
    /// The parameters, as they are escaped.
    fn words(&self) -> Vec<&str> {
        let mut escaped = false;
        let is_gap = |c: char| {
            let gap = c == ' ' && !escaped;
            escaped = c == '\\' && !escaped;
            gap
        };
        self.params.split(is_gap).filter(|word| !word.is_empty()).collect()
    }

    /// What the target is of.
    fn origin(&self) -> &str {
        self.words().first().copied().unwrap_or_default()
    }

    /// The same place with another target.
    fn with(&self, target: &str, params: &str) -> Self {
        Self { target: target.into(), params: params.into(), ..*self }
    }
}

/// Sectors on the COW device that are still to go, by a status; or the status, when it cannot go on.
fn left(status: &str) -> Result<u64, String> {
    let number = |text: &str| text.parse::<u64>().ok();
    let parse = || {
        let (allocated, rest) = status.split_once('/')?;
        number(allocated)?.checked_sub(number(rest.split_once(' ')?.1)?)
    };
    parse().ok_or_else(|| status.to_owned())
}

/// The daemon, by its ioctls.
struct Daemon<T>(T);

impl<T: DmTransport> Daemon<T> {
    /// Asks for what a message calls `deed`. The answer's bytes, of which [`Response`] makes sense.
    fn ask(&mut self, deed: &str, name: &str, command: Command, request: RequestBuilder) -> Result<Vec<u8>, String> {
        let failed = |errno: Errno, detail: &str| {
            let gap = if detail.is_empty() { "" } else { "\n" };
            format!("cannot {deed} {name}: {errno}{gap}{detail}")
        };
        let request = if name.is_empty() { request } else { request.name(name.as_bytes()) };
        let mut capacity = 16 << 10;
        loop {
            let request = request.clone();
            let request = if command.has_data() { request.capacity(capacity) } else { request };
            let mut buf = request.build().map_err(|e| failed(e.errno, &e.message))?;
            self.0.ioctl(command.ioctl_number(), &mut buf).map_err(|e| failed(e.errno, &e.detail))?;
            let full = Response::parse(&buf).map_err(|e| format!("the daemon's answer cannot be read: {e}"))?.is_full();
            if !(full && command.has_data() && capacity < MAX_CAPACITY) {
                return Ok(buf);
            }
            capacity *= 2;
        }
    }

    fn names(&mut self) -> Result<Vec<String>, String> {
        let answer = self.ask("list", "", Command::ListDevices, RequestBuilder::new(Command::ListDevices))?;
        let names = Response::parse(&answer).and_then(|r| r.names()).map_err(|e| e.to_string())?;
        Ok(names.iter().map(|entry| String::from_utf8_lossy(entry.name).into_owned()).collect())
    }

    /// The lines of the active table, with their parameters or their status.
    fn lines(&mut self, name: &str, flags: Flags) -> Result<Vec<Line>, String> {
        let request = RequestBuilder::new(Command::TableStatus).flags(flags);
        let answer = self.ask("look at", name, Command::TableStatus, request)?;
        let targets = Response::parse(&answer).and_then(|r| r.targets()).map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let line = |t: TargetSpec<'_>| Line {
            start: t.start,
            len: t.len,
            target: text(t.target_type),
            params: text(t.params),
        };
        Ok(targets.into_iter().map(line).collect())
    }

    /// The table, if it has one line.
    fn table(&mut self, name: &str) -> Result<Option<Line>, String> {
        let lines = self.lines(name, Flags::STATUS_TABLE)?;
        Ok(<[Line; 1]>::try_from(lines).ok().map(|[line]| line))
    }

    fn left(&mut self, name: &str) -> Result<Result<u64, String>, String> {
        let lines = self.lines(name, Flags::NOFLUSH)?;
        match lines.first().filter(|line| line.target == MERGE) {
            Some(line) => Ok(left(&line.params)),
            None => Err(format!("{name} has another table by now: somebody else has ended the merge, or changed it")),
        }
    }

    fn open_count(&mut self, name: &str) -> Result<i32, String> {
        let answer = self.ask("look at", name, Command::DevStatus, RequestBuilder::new(Command::DevStatus))?;
        Response::parse(&answer).map(|r| r.header().open_count).map_err(|e| e.to_string())
    }

    fn suspend(&mut self, name: &str) -> Result<(), String> {
        let request = RequestBuilder::new(Command::DevSuspend).flags(Flags::SUSPEND);
        self.ask("suspend", name, Command::DevSuspend, request).map(drop)
    }

    fn resume(&mut self, name: &str) -> Result<(), String> {
        self.ask("resume", name, Command::DevSuspend, RequestBuilder::new(Command::DevSuspend)).map(drop)
    }

    fn load(&mut self, name: &str, line: &Line) -> Result<(), String> {
        let spec = TargetSpec::new(line.start, line.len, line.target.as_bytes(), line.params.as_bytes());
        let request = RequestBuilder::new(Command::TableLoad).targets([spec]);
        self.ask("load a table for", name, Command::TableLoad, request).map(drop)
    }

    fn simple(&mut self, deed: &str, name: &str, command: Command) -> Result<(), String> {
        self.ask(deed, name, command, RequestBuilder::new(command)).map(drop)
    }

    /// Puts `snapshot-merge` in the place of the origin's table. Returns the origin's device, and how many sectors go.
    fn begin(&mut self, name: &str, line: &Line, into: Option<&str>) -> Result<(String, Option<u64>), String> {
        if line.words().get(2).is_some_and(|store| *store == "N") {
            return Err(format!("{name} is a transient snapshot: expected one with a store P or PO"));
        }
        if self.lines(name, Flags::NOFLUSH)?.first().is_some_and(|line| line.params == "Invalid") {
            return Err(format!("{name} is Invalid: what it shows is not what the origin was; remove it"));
        }
        let open = self.open_count(name)?;
        if open > 0 {
            return Err(format!("{name} is open, {open} times, by clients or devices above it: close it first"));
        }
        let top = self.top_of(name, line, into)?;
        self.suspend(name)?;
        if let Err(why) = self.suspend(&top) {
            let _ = self.resume(name);
            return Err(why);
        }
        // Now it grows no more.
        let all = self.lines(name, Flags::NOFLUSH)?.first().and_then(|line| left(&line.params).ok());
        let merge = line.with(MERGE, &line.params);
        if let Err(why) = self.load(&top, &merge).and_then(|()| self.resume(&top)) {
            let _ = self.simple("clear", &top, Command::TableClear);
            let _ = self.resume(&top);
            let _ = self.resume(name);
            return Err(why);
        }
        self.simple("remove", name, Command::DevRemove)?;
        Ok((top, all))
    }

    /// The device that shows the origin of a snapshot.
    fn top_of(&mut self, name: &str, line: &Line, into: Option<&str>) -> Result<String, String> {
        let mut tops = Vec::new();
        for other in self.names()? {
            // One that goes meanwhile is none.
            let Ok(Some(table)) = self.table(&other) else { continue };
            if table.target == ORIGIN && table.origin() == line.origin() && table.len == line.len {
                tops.push(other);
            }
        }
        let shown = || format!("{name}'s origin {}, with {} sectors,", line.origin(), line.len);
        match (into, tops.as_slice()) {
            (Some(into), tops) if tops.iter().any(|top| top == into) => Ok(into.to_owned()),
            (Some(into), _) => Err(format!("{into} does not show {} by snapshot-origin", shown())),
            (None, [top]) => Ok(top.clone()),
            (None, []) => Err(format!("no device shows {} by snapshot-origin: make one", shown())),
            (None, many) => Err(format!("{} is shown by {}: choose one by --into", shown(), many.join(", "))),
        }
    }

    /// Waits until all is merged, and puts the origin's own table back. Returns how many sectors were to go, `all` or
    /// as many as there are left now.
    fn follow(&mut self, top: &str, mut all: Option<u64>, quiet: bool) -> Result<u64, String> {
        let line = self.table(top)?.filter(|line| line.target == MERGE);
        let line = line.ok_or_else(|| format!("{top} has no merge under way"))?;
        let mut bar = Bar::new("merge", None, quiet);
        loop {
            let left = self.left(top)?.map_err(|status| {
                format!(
                    "{top}: {status}: the merge has stopped; suspend the device, see to what failed, and begin again"
                )
            })?;
            let all = *all.get_or_insert(left);
            bar.at(all.saturating_sub(left), all);
            if left == 0 {
                bar.clear();
                self.suspend(top)?;
                let own = line.with(ORIGIN, line.origin());
                if let Err(why) = self.load(top, &own).and_then(|()| self.resume(top)) {
                    let _ = self.resume(top);
                    return Err(why);
                }
                return Ok(all);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Runs the command. Returns the exit code.
pub(super) fn run(args: &MergeArgs, places: &Places) -> Result<u8, String> {
    use std::os::unix::ffi::OsStringExt;
    let cwd = std::env::current_dir().unwrap_or_default().into_os_string().into_vec();
    let mut daemon = Daemon(connect::transport(places, cwd, None));
    let plain = |name: &str| name.strip_prefix("/dev/mapper/").unwrap_or(name).to_owned();
    let (name, into) = (plain(&args.name), args.into.as_deref().map(plain));
    let line = daemon.table(&name)?;
    let ((top, all), snapshot) = match line {
        Some(line) if line.target == SNAPSHOT => (daemon.begin(&name, &line, into.as_deref())?, Some(name)),
        Some(line) if line.target == MERGE && into.is_none() => ((name, None), None),
        Some(line) => {
            return Err(format!(
                "{name} has the target {}: expected snapshot, or snapshot-merge to follow",
                line.target
            ));
        }
        None => return Err(format!("{name} has no active table of one line: expected a snapshot")),
    };
    let merged = if args.detach { None } else { Some(daemon.follow(&top, all, args.json)?) };
    if args.json {
        println!("{}", json!({"origin": top, "snapshot": snapshot, "merged": merged}));
        return Ok(0);
    }
    let from = snapshot.map_or_else(String::new, |name| format!("{name} "));
    match merged {
        Some(merged) => println!("merged {from}into {top}: {}", size(Sectors::new(merged))),
        None => println!("merging {from}into {top}: udm snapshot merge {top} follows it"),
    }
    Ok(0)
}
