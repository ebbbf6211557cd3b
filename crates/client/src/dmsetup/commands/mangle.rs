//! `mangle`: bring names that other programs made into the form of the mangling mode.

use crate::dmsetup::app::{App, Call, Done, Failed};
use crate::dmsetup::mangle::{Mangling, Text, to_mangled, to_unmangled};
use crate::dmsetup::task::TaskType;

pub(super) fn mangle(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    if app.means_all(call) {
        return app.for_each_device(call, true, mangle);
    }
    let mut task = app.task(TaskType::Status);
    app.set_device(&mut task, call.device())?;
    let answer = app.run(&task)?;
    if !answer.exists {
        return Err(Failed::new(format!("there is no such device {}", call.device().unwrap_or(""))));
    }
    let name = call.device().unwrap_or(&answer.name);
    let uuid = &answer.uuid;
    let wanted = app.options.mangling.unwrap_or_default();
    if wanted == Mangling::Auto
        && let Some(twice) = [name, uuid.as_str()].into_iter().find(|t| t.contains("\\x5cx"))
    {
        return Err(Failed::new(format!(
            "{twice:?} is mangled more than once; rename the device by hand, with --manglename none"
        )));
    }
    let (new_name, new_uuid) = if wanted == Mangling::None {
        (to_unmangled(name.as_bytes()), to_unmangled(uuid.as_bytes()))
    } else {
        // The mode is none while this command runs, and that mangles as auto does.
        let mangled = |text, what| to_mangled(text, what, Mangling::None).map(|t| t.into_owned()).map_err(Failed::from);
        (mangled(name, Text::Name)?, mangled(uuid, Text::Uuid)?)
    };
    if *uuid != new_uuid {
        return Err(Failed::new(format!(
            "{name}: the uuid {uuid:?} should be {new_uuid:?}, but a uuid cannot be changed: remove the device and make it again"
        )));
    }
    if name == new_name {
        let (uuid, and) = if uuid.is_empty() { ("[no UUID]", "") } else { (uuid.as_str(), "and UUID ") };
        app.print(format_args!("{name}: {uuid}: name {and}already in correct form\n"));
        return Ok(());
    }
    app.print(format_args!("{name}: renaming to {new_name}\n"));
    app.rename_device(Some(name), &new_name, false)
}
