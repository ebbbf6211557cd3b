//! `suspend`, `resume`, `clear`, `wait`, `rename`: commands that are one ioctl.

use crate::dmsetup::app::{App, Call, Done, Failed};
use crate::dmsetup::mangle::{self, Text};
use crate::dmsetup::options::atoi;
use crate::dmsetup::task::{Answer, Task, TaskType};
use udm_base::DevT;
use udm_control::codec::Flags;

impl App<'_, '_> {
    /// A task about the state of a device, with the options that concern it.
    pub(super) fn state_task(&mut self, kind: TaskType, name: Option<&str>) -> Done<Task> {
        let mut task = self.task(kind);
        self.set_device(&mut task, name)?;
        task.flags.set(Flags::NOFLUSH, self.options.no_flush);
        task.flags.set(Flags::SKIP_LOCKFS, self.options.no_lockfs);
        Ok(task)
    }

    fn change_state(&mut self, kind: TaskType, name: Option<&str>, event_nr: u32) -> Done {
        let mut task = self.state_task(kind, name)?;
        task.event_nr = event_nr;
        if kind == TaskType::Suspend && self.options.checks {
            self.warn_of_suspended(&task)?;
        }
        let answer = self.run(&task)?;
        if kind == TaskType::Resume {
            self.set_read_ahead(&answer);
        }
        self.show_if_verbose(&answer)
    }

    /// With `-v`, what the ioctl said of the device.
    pub(super) fn show_if_verbose(&mut self, answer: &Answer) -> Done {
        if self.options.verbose > 0 { self.show_info(answer) } else { Ok(()) }
    }

    /// `--checks`: I/O could be trapped between a device and a suspended one beneath it.
    fn warn_of_suspended(&mut self, task: &Task) -> Done {
        let mut task = task.clone();
        task.be(TaskType::Deps);
        let top = self.run(&task)?;
        let major = top.dev().major;
        let mut pending: Vec<DevT> = if top.has(Flags::SUSPEND) { Vec::new() } else { top.deps };
        let mut seen = Vec::new();
        while let Some(dev) = pending.pop() {
            if dev.major != major || seen.contains(&dev) {
                continue;
            }
            seen.push(dev);
            let mut task = Task::bare(TaskType::Deps);
            task.dev(dev);
            let below = self.run(&task)?;
            if below.has(Flags::SUSPEND) {
                let (above, below) = (&top.name, &below.name);
                self.complain(format!("warning: {above} stands on {below}, which is suspended already"));
            } else {
                pending.extend(below.deps);
            }
        }
        Ok(())
    }

    /// Give a device another name or, with `to_uuid`, a uuid.
    pub(super) fn rename_device(&mut self, name: Option<&str>, new: &str, to_uuid: bool) -> Done {
        let mut task = self.task(TaskType::Rename);
        self.set_device(&mut task, name)?;
        let what = if to_uuid { Text::Uuid } else { Text::Name };
        if !to_uuid && new.contains('/') {
            return Err(Failed::new(format!("a device's name has no \"/\" in it: got {new:?}")));
        }
        if !to_uuid && new.is_empty() {
            return Err(Failed::new("the new name is empty"));
        }
        task.text(mangle::mangle(new, what, self.mangling)?);
        task.flags.set(Flags::UUID, to_uuid);
        self.run(&task).map(|_| ())
    }
}

pub(super) fn suspend(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    app.change_state(TaskType::Suspend, call.device(), 0)
}

pub(super) fn resume(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    app.change_state(TaskType::Resume, call.device(), 0)
}

pub(super) fn clear(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    app.change_state(TaskType::Clear, call.device(), 0)
}

pub(super) fn wait(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let mut args = call.args;
    let mut name = None;
    if app.options.uuid.is_none() && app.options.major.is_none() {
        name = args.first().map(String::as_str);
        args = args.get(1..).unwrap_or(&[]);
    }
    let event_nr = args.last().map_or(0, |n| atoi(n)) as u32;
    app.change_state(TaskType::WaitEvent, name, event_nr)
}

pub(super) fn rename(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let (name, new) = match call.args {
        [name, new] => (Some(name.as_str()), new),
        [new] => (None, new),
        _ => return Err(Failed::new("rename takes a device and its new name")),
    };
    let to_uuid = app.options.set_uuid;
    app.rename_device(name, new, to_uuid)
}
