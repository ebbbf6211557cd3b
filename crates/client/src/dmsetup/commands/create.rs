//! `create` and `load`: where a table comes from, and what becomes of it.

use super::order;
use crate::dmsetup::app::{App, Call, Done, Failed};
use crate::dmsetup::options::atoi;
use crate::dmsetup::table_text::{TableLine, parse_table};
use crate::dmsetup::task::{Answer, Task, TaskType};
use std::io::Read;
use udm_base::DevT;
use udm_base::concise::{ConciseDevice, parse_concise};
use udm_control::codec::Flags;

/// The longest table that is read, in bytes: what fits one message to the daemon.
const MAX_TABLE: u64 = 16 << 20;

/// A device to be made.
struct NewDevice<'a> {
    name: &'a str,
    uuid: Option<&'a str>,
    /// The minor number that is wanted; the major is the daemon's.
    minor: Option<u32>,
    read_only: bool,
    /// `None` for a device without a table.
    table: Option<Vec<TableLine>>,
}

pub(super) fn create(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    if app.options.concise {
        return create_concise(app, call.args);
    }
    let Some(name) = call.args.first() else {
        return Err(Failed::new("which name shall the new device have? Give: create NAME"));
    };
    // The name first: a table that is waited for on standard input is for nothing if it is wrong.
    let o = app.options.clone();
    app.set_name(&mut app.task(TaskType::Create), name)?;
    let table = if o.no_table { None } else { Some(app.read_table(call.args.get(1).map(String::as_str))?) };
    let minor = o.minor.and_then(|minor| u32::try_from(minor).ok());
    app.create_device(&NewDevice { name, uuid: o.uuid.as_deref(), minor, read_only: o.read_only, table })
}

fn create_concise(app: &mut App<'_, '_>, args: &[String]) -> Done {
    let o = app.options.clone();
    if args.len() > 1 {
        return Err(Failed::new(format!(
            "create --concise takes one argument, all devices together: got {}",
            args.len()
        )));
    }
    if o.table.is_some() || o.minor.is_some() || o.uuid.is_some() || o.no_table || o.inactive {
        let message = "--concise holds table, minor and uuid itself: give it without --table, --notable, --minor, --uuid and --inactive";
        return Err(Failed::new(message));
    }
    let text = match args.first() {
        Some(text) => text.clone(),
        None => app.read_stdin()?,
    };
    let (devices, result) = parse_concise(&text);
    for i in order::order(&devices) {
        let ConciseDevice { name, uuid, minor, read_only, table } = &devices[i];
        let lines = parse_table(table).map_err(|e| Failed::new(format!("device {name:?}: {e}")))?;
        let minor = (!minor.is_empty()).then(|| atoi(minor)).and_then(|minor| u32::try_from(minor).ok());
        app.create_device(&NewDevice {
            name,
            uuid: Some(uuid.as_str()).filter(|u| !u.is_empty()),
            minor,
            // As in dmsetup, --readonly is for the first.
            read_only: *read_only || i == 0 && o.read_only,
            table: Some(lines),
        })?;
    }
    result.map_err(Failed::from)
}

pub(super) fn load(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    if app.options.no_table {
        return Err(Failed::new("load without a table does nothing: --notable is for create"));
    }
    let mut args = call.args;
    let mut name = None;
    if app.options.uuid.is_none() && app.options.major.is_none() {
        name = args.first().map(String::as_str);
        args = args.get(1..).unwrap_or(&[]);
    } else if args.len() > 1 {
        return Err(Failed::new(
            "load got a device by number or uuid and two arguments: it takes the table's file alone",
        ));
    }
    let mut task = app.task(TaskType::Reload);
    app.set_device(&mut task, name)?;
    task.lines = app.read_table(args.first().map(String::as_str))?;
    task.flags.set(Flags::READONLY, app.options.read_only);
    let answer = app.run(&task)?;
    app.show_if_verbose(&answer)
}

impl App<'_, '_> {
    /// The table of `--table`, of a file, or of standard input.
    fn read_table(&mut self, file: Option<&str>) -> Done<Vec<TableLine>> {
        let text = match (&self.options.table, file) {
            (Some(table), _) => table.clone(),
            (None, Some(file)) => {
                let path = self.env.cwd.join(file);
                let open = std::fs::File::open(&path);
                let mut file =
                    open.map_err(|e| Failed::new(format!("cannot read the table in {}: {e}", path.display())))?;
                read_text(&mut file, &path.display().to_string())?
            }
            (None, None) => self.read_stdin()?,
        };
        parse_table(&text).map_err(Failed::new)
    }

    fn read_stdin(&mut self) -> Done<String> {
        self.flush();
        read_text(&mut self.env.stdin, "standard input")
    }

    /// Make a device, load its table and resume it. When the table cannot be loaded, the device
    /// goes again.
    fn create_device(&mut self, device: &NewDevice<'_>) -> Done {
        let mut task = Task::bare(TaskType::Create);
        self.set_name(&mut task, device.name)?;
        if let Some(uuid) = device.uuid {
            self.set_uuid(&mut task, uuid)?;
        }
        if let Some(minor) = device.minor {
            // The kernel looks at the minor alone, but some major must be there.
            let major = self.options.major.and_then(|major| u32::try_from(major).ok()).filter(|&m| m > 0);
            if major.is_none() && self.options.major.is_some() {
                return Err(Failed::new("--major is 0 or less: a device's major number is 1 or more"));
            }
            task.dev(DevT::new(major.unwrap_or(1), minor));
            task.flags |= Flags::PERSISTENT_DEV;
        }
        let table = device.table.clone().unwrap_or_default();
        if table.is_empty() {
            task.flags.set(Flags::READONLY, device.read_only);
            let answer = self.run(&task)?;
            self.transport().created(&answer.name).map_err(Failed::new)?;
            return self.show_if_verbose(&answer);
        }
        let created = self.run(&task)?;
        let wanted = task.wanted_dev().filter(|_| self.options.major.is_some());
        if let Some(wanted) = wanted.filter(|wanted| *wanted != created.dev()) {
            return self.wrong_number(device, &created, wanted, table);
        }
        match self.load_and_resume(device, &created, table) {
            Ok(answer) => {
                self.set_read_ahead(&answer);
                self.transport().created(&answer.name).map_err(Failed::new)?;
                self.show_if_verbose(&answer)
            }
            Err(failed) => {
                let mut task = Task::bare(TaskType::Remove);
                task.dev(created.dev());
                if let Err(failed) = self.run(&task) {
                    self.complain("the device that was made could not be removed again:");
                    self.tell(&failed);
                }
                Err(failed)
            }
        }
    }

    /// Mapped devices have a major number of their own. dmsetup goes on with the number that was
    /// asked for, cannot resume, and leaves the device with its table inactive.
    fn wrong_number(&mut self, device: &NewDevice<'_>, created: &Answer, wanted: DevT, table: Vec<TableLine>) -> Done {
        self.load(device, created, table)?;
        let (name, dev) = (device.name, created.dev());
        Err(Failed::new(format!(
            "{name} is {dev} rather than {wanted}: mapped devices have the major number {}\n\
             it has its table, but is not resumed: `resume {name}` does that, `remove {name}` removes it",
            dev.major
        )))
    }

    fn load(&mut self, device: &NewDevice<'_>, created: &Answer, table: Vec<TableLine>) -> Done {
        let mut task = Task::bare(TaskType::Reload);
        task.show_as(device.name);
        task.dev(created.dev());
        task.lines = table;
        task.flags.set(Flags::READONLY, device.read_only);
        self.run(&task).map(|_| ())
    }

    fn load_and_resume(&mut self, device: &NewDevice<'_>, created: &Answer, table: Vec<TableLine>) -> Done<Answer> {
        self.load(device, created, table)?;
        let mut task = self.task(TaskType::Resume);
        task.show_as(device.name);
        task.dev(created.dev());
        task.flags.set(Flags::READONLY, device.read_only);
        self.run(&task)
    }
}

fn read_text(from: &mut dyn Read, place: &str) -> Done<String> {
    let mut bytes = Vec::new();
    from.take(MAX_TABLE + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Failed::new(format!("cannot read the table from {place}: {e}")))?;
    if bytes.len() as u64 > MAX_TABLE {
        return Err(Failed::new(format!("the table from {place} has more than {} MiB", MAX_TABLE >> 20)));
    }
    String::from_utf8(bytes).map_err(|e| {
        Failed::new(format!("the table from {place} is not UTF-8: see byte {}", e.utf8_error().valid_up_to()))
    })
}
