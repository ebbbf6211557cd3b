//! `message` and `setgeometry`.

use crate::dmsetup::app::{App, Call, Done, Failed};
use crate::dmsetup::table_text::is_space;
use crate::dmsetup::task::{Task, TaskType};
use udm_base::Sector;

impl App<'_, '_> {
    /// The device: by `--uuid` or number, else the first argument. And the arguments after it.
    fn device_and_rest<'a>(&mut self, task: &mut Task, call: &Call<'a>) -> Done<&'a [String]> {
        if self.options.uuid.is_some() || self.options.major.is_some() {
            self.set_device(task, None)?;
            return Ok(call.args);
        }
        let Some((name, rest)) = call.args.split_first() else {
            return Err(Failed::new("which device? Give its name, or --uuid, or --major and --minor"));
        };
        self.set_device(task, Some(name))?;
        Ok(rest)
    }
}

pub(super) fn message(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let mut task = app.task(TaskType::Message);
    let rest = app.device_and_rest(&mut task, call)?;
    let Some((sector, words)) = rest.split_first() else {
        return Err(Failed::new("to which sector's target does the message go? Give 0 for the first"));
    };
    let digits = sector.trim_start_matches(is_space);
    let number =
        digits.parse::<u64>().map_err(|_| Failed::new(format!("the sector is {sector:?}: expected a number")))?;
    if words.is_empty() {
        app.complain("the message is empty");
    }
    task.message(Sector::new(number), words.join(" "));
    let answer = app.run(&task)?;
    if let Some(text) = answer.message {
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        app.print(format_args!("{text}{end}"));
    }
    Ok(())
}

pub(super) fn set_geometry(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let mut task = app.task(TaskType::SetGeometry);
    let rest = app.device_and_rest(&mut task, call)?;
    if rest.len() < 4 {
        return Err(Failed::new("a geometry is four numbers: cylinders, heads, sectors, start"));
    }
    task.text(rest[..4].join(" "));
    app.run(&task).map(|_| ())
}
