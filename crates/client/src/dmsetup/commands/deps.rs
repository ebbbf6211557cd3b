//! `deps`: what a device stands on.

use crate::dmsetup::app::{App, Call, DevNames, Done};
use crate::dmsetup::task::TaskType;
use std::fmt::Write;

pub(super) fn deps(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    if app.means_all(call) {
        return app.for_each_device(call, true, deps);
    }
    let mut task = app.task(TaskType::Deps);
    app.set_device(&mut task, call.device())?;
    let answer = app.run(&task)?;
    let verbose = app.options.verbose > 0;
    app.show_if_verbose(&answer)?;
    let mut text = String::new();
    if call.one_of_many && !verbose {
        let _ = write!(text, "{}: ", call.device().unwrap_or(&answer.name));
    }
    let _ = write!(text, "{} dependencies\t:", answer.deps.len());
    for &dev in &answer.deps {
        let name = match app.listing.names {
            DevNames::Number => None,
            DevNames::Block => app.block_name(dev, false),
            DevNames::Given => app.block_name(dev, true),
        };
        let _ = match name {
            Some(name) => write!(text, " ({name})"),
            None => write!(text, " ({}, {})", dev.major, dev.minor),
        };
    }
    text.push('\n');
    if call.one_of_many && verbose {
        text.push('\n');
    }
    app.print(text);
    Ok(())
}
