//! `version`, `targets` and `target-version`.

use crate::dmsetup::app::{App, Call, Done};
use crate::dmsetup::task::{Task, TaskType};

/// The version of dmsetup whose output and exit codes these are.
const LIBRARY_VERSION: &str = "1.02.185 (2022-05-18)";

pub(super) fn version(app: &mut App<'_, '_>, _: &Call<'_>) -> Done {
    app.print(format_args!("Library version:   {LIBRARY_VERSION}\n"));
    let [major, minor, patch] = app.run(&Task::bare(TaskType::Version))?.header.version;
    app.print(format_args!("Driver version:    {major}.{minor}.{patch}\n"));
    Ok(())
}

pub(super) fn targets(app: &mut App<'_, '_>, _: &Call<'_>) -> Done {
    let answer = app.run(&Task::bare(TaskType::ListVersions))?;
    print(app, &answer.versions);
    Ok(())
}

pub(super) fn target_version(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let mut task = Task::bare(TaskType::TargetVersion);
    app.set_name(&mut task, call.args.first().map_or("", String::as_str))?;
    let answer = app.run(&task)?;
    print(app, &answer.versions[..answer.versions.len().min(1)]);
    Ok(())
}

fn print(app: &mut App<'_, '_>, versions: &[(String, [u32; 3])]) {
    for (name, [major, minor, patch]) in versions {
        app.print(format_args!("{name:<16} v{major}.{minor}.{patch}\n"));
    }
}
