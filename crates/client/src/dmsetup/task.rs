//! One ioctl: what is asked, and the answer in plain types.

use super::app::{App, Done, Failed};
use super::mangle::{self, Text};
use super::table_text::{TableLine, escape_params};
use std::time::Duration;
use udm_base::{DevT, Errno, Sector};
use udm_control::codec::{CodecError, Command, DmIoctl, Flags, RequestBuilder, Response, TargetSpec};

/// The largest buffer that is tried, when a result does not fit a smaller one.
const MAX_CAPACITY: usize = 16 << 20;
/// The room for a result at first.
const CAPACITY: usize = 16 << 10;
/// `remove --retry`: how often and how far apart (`libdm-iface.c`, 1.02.185).
const RETRIES: u32 = 25;
const RETRY_DELAY: Duration = Duration::from_millis(200);

/// What is asked: the ioctls under the names that libdevmapper's messages give them, since one
/// ioctl serves several.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TaskType {
    Create,
    Reload,
    Remove,
    RemoveAll,
    Suspend,
    Resume,
    Info,
    Deps,
    Rename,
    Version,
    Status,
    Table,
    WaitEvent,
    List,
    Clear,
    MkNodes,
    ListVersions,
    Message,
    SetGeometry,
    TargetVersion,
}

impl TaskType {
    fn command(self) -> Command {
        match self {
            Self::Create => Command::DevCreate,
            Self::Reload => Command::TableLoad,
            Self::Remove => Command::DevRemove,
            Self::RemoveAll => Command::RemoveAll,
            Self::Suspend | Self::Resume => Command::DevSuspend,
            Self::Info | Self::MkNodes => Command::DevStatus,
            Self::Deps => Command::TableDeps,
            Self::Rename => Command::DevRename,
            Self::Version => Command::Version,
            Self::Status | Self::Table => Command::TableStatus,
            Self::WaitEvent => Command::DevWait,
            Self::List => Command::ListDevices,
            Self::Clear => Command::TableClear,
            Self::ListVersions => Command::ListVersions,
            Self::Message => Command::TargetMsg,
            Self::SetGeometry => Command::DevSetGeometry,
            Self::TargetVersion => Command::GetTargetVersion,
        }
    }

    /// What could not be done, for a message: "cannot … DEVICE".
    fn deed(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Reload => "load a table for",
            Self::Remove => "remove",
            Self::RemoveAll => "remove all devices",
            Self::Suspend => "suspend",
            Self::Resume => "resume",
            Self::Info | Self::MkNodes => "look up",
            Self::Deps => "ask what lies beneath",
            Self::Rename => "rename",
            Self::Version => "ask for the version",
            Self::Status => "get the status of",
            Self::Table => "get the table of",
            Self::WaitEvent => "wait for an event of",
            Self::List => "list the devices",
            Self::Clear => "clear the inactive table of",
            Self::ListVersions => "list the targets",
            Self::Message => "send a message to",
            Self::SetGeometry => "set the geometry of",
            Self::TargetVersion => "ask for the version of target",
        }
    }

    /// A device that is not there is an answer, not an error.
    fn may_be_missing(self) -> bool {
        matches!(self, Self::Info | Self::MkNodes | Self::Status)
    }
}

/// One ioctl to be.
#[derive(Clone, Debug)]
pub(super) struct Task {
    kind: TaskType,
    /// As given, for messages.
    shown: String,
    name: String,
    uuid: String,
    dev: Option<DevT>,
    pub(super) flags: Flags,
    pub(super) event_nr: u32,
    pub(super) lines: Vec<TableLine>,
    text: Option<String>,
    sector: Sector,
    pub(super) retry: bool,
}

/// A device of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Listed {
    pub(super) dev: DevT,
    pub(super) name: String,
}

/// An answer. What the ioctl does not give is empty.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    /// Is there such a device?
    pub(super) exists: bool,
    pub(super) header: DmIoctl,
    pub(super) name: String,
    pub(super) uuid: String,
    pub(super) lines: Vec<TableLine>,
    pub(super) deps: Vec<DevT>,
    pub(super) names: Vec<Listed>,
    pub(super) versions: Vec<(String, [u32; 3])>,
    pub(super) message: Option<String>,
}

impl Answer {
    pub(super) fn has(&self, flag: Flags) -> bool {
        self.header.flags.contains(flag)
    }

    pub(super) fn dev(&self) -> DevT {
        DevT::from_huge(self.header.dev)
    }

    /// As the kernel, which gives a device a name and a directory in sysfs with its first table.
    pub(super) fn has_table(&self) -> bool {
        self.has(Flags::ACTIVE_PRESENT) || self.has(Flags::INACTIVE_PRESENT)
    }
}

impl Task {
    /// A task without options of the command line.
    pub(super) fn bare(kind: TaskType) -> Self {
        let flags = match kind {
            TaskType::Table => Flags::STATUS_TABLE,
            TaskType::Suspend => Flags::SUSPEND,
            _ => Flags::default(),
        };
        Self {
            kind,
            shown: String::new(),
            name: String::new(),
            uuid: String::new(),
            dev: None,
            flags,
            event_nr: 0,
            lines: Vec::new(),
            text: None,
            sector: Sector::ZERO,
            retry: false,
        }
    }

    /// Ask something else about the same device.
    pub(super) fn be(&mut self, kind: TaskType) {
        self.kind = kind;
        self.flags = Self::bare(kind).flags;
    }

    /// Give the name as it is sent.
    pub(super) fn raw_name(&mut self, name: &str) {
        self.name = name.to_owned();
        self.shown = name.to_owned();
    }

    /// The number that was given.
    pub(super) fn wanted_dev(&self) -> Option<DevT> {
        self.dev
    }

    /// What messages call the device.
    pub(super) fn show_as(&mut self, name: &str) {
        self.shown = name.to_owned();
    }

    pub(super) fn dev(&mut self, dev: DevT) {
        self.dev = Some(dev);
        if self.shown.is_empty() {
            self.shown = dev.to_string();
        }
    }

    /// The text of a rename or of a geometry.
    pub(super) fn text(&mut self, text: impl Into<String>) {
        self.text = Some(text.into());
    }

    pub(super) fn message(&mut self, sector: Sector, text: String) {
        self.sector = sector;
        self.text = Some(text);
    }

    fn request(&self, capacity: usize) -> Result<Vec<u8>, CodecError> {
        let mut builder =
            RequestBuilder::new(self.kind.command()).name(self.name.as_bytes()).uuid(self.uuid.as_bytes());
        builder = builder.flags(self.flags).event_nr(self.event_nr);
        if self.kind.command().has_data() {
            builder = builder.capacity(capacity);
        }
        if let Some(dev) = self.dev {
            builder = builder.dev(dev);
        }
        match &self.text {
            Some(text) if self.kind == TaskType::Message => builder = builder.message(self.sector, text.as_bytes()),
            Some(text) => builder = builder.text(text.as_bytes()),
            None => {}
        }
        let params: Vec<String> = self.lines.iter().map(|l| escape_params(&l.params)).collect();
        let specs = self.lines.iter().zip(&params);
        builder.targets(specs.map(|(l, p)| TargetSpec::new(l.start, l.len, l.target.as_bytes(), p.as_bytes()))).build()
    }
}

impl App<'_, '_> {
    /// A task with the options that concern all.
    pub(super) fn task(&self, kind: TaskType) -> Task {
        let mut task = Task::bare(kind);
        task.flags.set(Flags::SKIP_BDGET, self.options.no_open_count);
        task.flags.set(Flags::QUERY_INACTIVE_TABLE, self.options.inactive);
        task
    }

    /// Name the device of a task: by `name`, else by `--uuid`, else by `--major` and `--minor`.
    pub(super) fn set_device(&mut self, task: &mut Task, name: Option<&str>) -> Done {
        if let Some(name) = name {
            self.set_name(task, name)
        } else if let Some(uuid) = self.options.uuid.clone() {
            self.set_uuid(task, &uuid)
        } else if let (Some(major), Some(minor)) = (self.options.major, self.options.minor) {
            match (u32::try_from(major), u32::try_from(minor)) {
                (Ok(major @ 1..), Ok(minor)) => {
                    task.dev(DevT::new(major, minor));
                    Ok(())
                }
                _ => Err(Failed::new(format!(
                    "{major}:{minor} is no device number: the major is 1 or more, the minor 0 or more"
                ))),
            }
        } else {
            Err(Failed::new("which device? Give its name, or --uuid, or --major and --minor"))
        }
    }

    pub(super) fn set_name(&mut self, task: &mut Task, name: &str) -> Done {
        if name.contains('/') {
            if task.kind == TaskType::Create {
                return Err(Failed::new(format!("a device's name has no \"/\" in it: got {name:?}")));
            }
            let found = self.name_of_path(name)?;
            task.raw_name(&found);
        } else {
            task.name = mangle::mangle(name, Text::Name, self.mangling)?.into_owned();
        }
        task.shown = name.to_owned();
        Ok(())
    }

    pub(super) fn set_uuid(&mut self, task: &mut Task, uuid: &str) -> Done {
        task.uuid = mangle::mangle(uuid, Text::Uuid, self.mangling)?.into_owned();
        if task.shown.is_empty() {
            task.shown = format!("uuid {uuid}");
        }
        Ok(())
    }

    /// The name, as the daemon has it, of the device with that node: in `/dev/mapper`, in the
    /// daemon's own directory, or `/dev/dm-N`. As dmsetup, `mapper/NAME` alone will do.
    fn name_of_path(&mut self, path: &str) -> Done<String> {
        let not_found = || Failed::new(format!("{path} is no mapped device; `ls` lists them"));
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        let in_dev = |sub: &str| dir == format!("/dev{sub}") || (!sub.is_empty() && format!("/{dir}") == sub);
        let mut task = Task::bare(TaskType::Info);
        if in_dev("/mapper") || self.env.node_dir.to_str() == Some(dir) {
            task.raw_name(last);
            return if self.run(&task)?.exists { Ok(last.to_owned()) } else { Err(not_found()) };
        }
        let minor = last.strip_prefix("dm-").filter(|_| dir == "/dev").and_then(|n| n.parse::<u32>().ok());
        let minor = minor.ok_or_else(not_found)?;
        let listed = self.listed()?;
        let Some(device) = listed.iter().find(|d| d.dev.minor == minor) else { return Err(not_found()) };
        task.dev(device.dev);
        let answer = self.run(&task)?;
        Ok(mangle::printable(answer.header.name()))
    }

    /// All devices, in the daemon's order.
    pub(super) fn listed(&mut self) -> Done<Vec<Listed>> {
        Ok(self.run(&Task::bare(TaskType::List))?.names)
    }

    /// Run the ioctl, with ever larger buffers until the result fits.
    pub(super) fn run(&mut self, task: &Task) -> Done<Answer> {
        let mut capacity = CAPACITY;
        let mut tries = 1;
        loop {
            let mut buf = task.request(capacity).map_err(|e| self.failure(task, e.errno, &e.message))?;
            match self.transport().ioctl(task.kind.command().ioctl_number(), &mut buf) {
                Ok(()) => {
                    let said = self.transport().said();
                    said.lines().for_each(|line| self.complain(line));
                }
                Err(e) if e.errno == Errno::ENXIO && task.kind.may_be_missing() => {
                    return Ok(Answer {
                        exists: false,
                        header: DmIoctl::new(),
                        name: task.name.clone(),
                        uuid: String::new(),
                        lines: Vec::new(),
                        deps: Vec::new(),
                        names: Vec::new(),
                        versions: Vec::new(),
                        message: None,
                    });
                }
                Err(e) if e.errno == Errno::EBUSY && task.retry && tries < RETRIES => {
                    tries += 1;
                    self.env.clock.sleep(RETRY_DELAY);
                    continue;
                }
                Err(e) => return Err(self.failure(task, e.errno, &e.detail)),
            }
            let broken = |e: CodecError| Failed::new(format!("the daemon's answer cannot be read: {e}"));
            let response = Response::parse(&buf).map_err(broken)?;
            // Where there is no data to fit, the flag means nothing.
            if response.is_full() && task.kind.command().has_data() {
                if capacity >= MAX_CAPACITY {
                    return Err(Failed::new(format!("the result needs more than {} MiB", MAX_CAPACITY >> 20)));
                }
                capacity *= 2;
                continue;
            }
            return self.answer(task, &response).map_err(broken)?;
        }
    }

    /// The answer in plain types: the outer error is the codec's, the inner the names'.
    fn answer(&mut self, task: &Task, response: &Response<'_>) -> Result<Done<Answer>, CodecError> {
        let header = response.header().clone();
        let mode = self.mangling;
        let show = |bytes: &[u8], what| mangle::unmangle(bytes, what, mode).map_err(Failed::from);
        let name = match show(header.name(), Text::Name) {
            Ok(name) => name,
            Err(failed) => return Ok(Err(failed)),
        };
        // A removed device's uuid is what was asked by, or rubbish (`_do_dm_ioctl`).
        let uuid = match show(header.uuid(), Text::Uuid) {
            Ok(uuid) => uuid,
            Err(_) if task.kind == TaskType::Remove => String::new(),
            Err(failed) => return Ok(Err(failed)),
        };
        let mut answer = Answer {
            exists: true,
            header,
            name,
            uuid,
            lines: Vec::new(),
            deps: Vec::new(),
            names: Vec::new(),
            versions: Vec::new(),
            message: None,
        };
        match task.kind {
            TaskType::Status | TaskType::Table | TaskType::WaitEvent => {
                answer.lines = response.targets()?.into_iter().map(line).collect();
            }
            TaskType::Deps => answer.deps = response.deps()?,
            TaskType::List => {
                for entry in response.names()? {
                    let name = match show(entry.name, Text::Name) {
                        Ok(name) => name,
                        Err(failed) => return Ok(Err(failed)),
                    };
                    answer.names.push(Listed { dev: entry.dev, name });
                }
            }
            TaskType::ListVersions | TaskType::TargetVersion => {
                let versions = response.versions()?.into_iter();
                answer.versions = versions.map(|v| (mangle::printable(v.name), v.version)).collect();
            }
            TaskType::Message => answer.message = response.message_output()?.map(mangle::printable),
            _ => {}
        }
        Ok(Ok(answer))
    }

    /// What to say of an ioctl that failed: one line, then what the daemon knows better.
    fn failure(&self, task: &Task, errno: Errno, detail: &str) -> Failed {
        let space = if task.shown.is_empty() { "" } else { " " };
        let mut text = format!("cannot {}{space}{}: {errno}", task.kind.deed(), task.shown);
        let hint = match (errno, task.kind) {
            (_, TaskType::Create | TaskType::Reload | TaskType::RemoveAll) => "",
            (Errno::ENXIO, _) => "there is no such device: `ls` lists them",
            (Errno::EBUSY, TaskType::Remove) => {
                "it is open, by a client or a device above it: `info` shows how often; --deferred removes it when it is closed"
            }
            _ => "",
        };
        let more = if detail.is_empty() { hint } else { detail };
        if !more.is_empty() {
            text.push('\n');
            text.push_str(more);
        }
        Failed::new(text)
    }
}

fn line(spec: TargetSpec<'_>) -> TableLine {
    TableLine {
        start: spec.start,
        len: spec.len,
        target: mangle::printable(spec.target_type),
        params: mangle::printable(spec.params),
    }
}
