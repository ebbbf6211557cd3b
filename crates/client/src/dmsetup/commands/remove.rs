//! `remove`, `remove_all` and `wipe_table`.

use crate::dmsetup::app::{App, Call, Done, Failed};
use crate::dmsetup::table_text::TableLine;
use crate::dmsetup::task::{Task, TaskType};
use udm_base::{Sector, Sectors};
use udm_control::codec::Flags;

pub(super) fn remove(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    // With --force what is open fails from now on, whether or not the device can be removed.
    if app.options.force
        && !call.args.is_empty()
        && let Err(failed) = wipe_table(app, call)
    {
        app.tell(&failed);
    }
    let mut task = app.state_task(TaskType::Remove, call.device())?;
    task.flags.set(Flags::DEFERRED_REMOVE, app.options.deferred);
    task.retry = app.options.retry;
    app.run(&task).map(|_| ())
}

pub(super) fn remove_all(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let closed = remove_closed(app);
    if !app.options.force || app.listed()?.is_empty() {
        return closed;
    }
    let wiped = app.for_each_device(call, false, wipe_table);
    let closed = remove_closed(app);
    let left = app.listed()?.len();
    if left > 0 {
        app.complain(format!("{left} devices are open and stay; what has them open now meets errors"));
    }
    wiped.or(closed)
}

/// As dmsetup, which takes it for success when the devices can be listed afterwards.
fn remove_closed(app: &mut App<'_, '_>) -> Done {
    let mut task = app.task(TaskType::RemoveAll);
    task.flags.set(Flags::DEFERRED_REMOVE, app.options.deferred);
    if let Err(failed) = app.run(&task) {
        app.tell(&failed);
    }
    app.listed().map(|_| ())
}

/// Put an error target in the place of the whole table.
pub(super) fn wipe_table(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let Some(name) = call.device().filter(|n| !n.is_empty()) else {
        return Err(Failed::new("which device? Give its name"));
    };
    // A device that cannot be asked has length 0, and the load says why.
    let mut task = app.task(TaskType::Table);
    app.set_device(&mut task, Some(name))?;
    let len: u64 = app.run(&task)?.lines.iter().map(|l| l.len.get()).fold(0, u64::saturating_add);

    let mut task = app.task(TaskType::Reload);
    app.set_device(&mut task, Some(name))?;
    task.flags.set(Flags::READONLY, app.options.read_only);
    task.lines =
        vec![TableLine { start: Sector::ZERO, len: Sectors::new(len), target: "error".into(), params: String::new() }];
    app.run(&task)?;
    if app.options.force {
        // A flush could wait for ever for what the table is wiped for.
        app.options.no_lockfs = true;
        app.options.no_flush = true;
    }
    let task = app.state_task(TaskType::Resume, Some(name))?;
    app.run(&task).map(|_| ()).inspect_err(|_| clear_quietly(app, name))
}

/// After a resume that failed, the table that was loaded for it goes.
fn clear_quietly(app: &mut App<'_, '_>, name: &str) {
    let mut task = Task::bare(TaskType::Clear);
    if app.set_device(&mut task, Some(name)).is_ok() {
        let _ = app.run(&task);
    }
}
