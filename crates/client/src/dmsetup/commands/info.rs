//! `info`, long and in columns, and `splitname`.

use crate::dmsetup::app::{App, Call, Done, Failed};
use crate::dmsetup::split_name::SplitName;
use crate::dmsetup::task::{Answer, TaskType};
use std::fmt::Write;
use udm_control::codec::Flags;

pub(super) fn info(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    if app.means_all(call) {
        return app.for_each_device(call, true, info);
    }
    let mut task = app.task(TaskType::Info);
    app.set_device(&mut task, call.device())?;
    let answer = app.run(&task)?;
    app.show_info(&answer)
}

impl App<'_, '_> {
    /// Show a device as `info` and `-v` do.
    pub(super) fn show_info(&mut self, answer: &Answer) -> Done {
        if !answer.exists {
            let name = if answer.name.is_empty() { String::new() } else { format!(" {}", answer.name) };
            return Err(Failed::new(format!("there is no such device{name}; `ls` lists them")));
        }
        if self.options.columns {
            return self.report_device(answer);
        }
        if self.options.json {
            let device = self.json_info(answer);
            self.json.push(device);
            return Ok(());
        }
        let read_ahead = self.read_ahead(answer);
        self.print(long_form(answer, read_ahead));
        Ok(())
    }
}

fn long_form(answer: &Answer, read_ahead: Option<u64>) -> String {
    let dev = answer.dev();
    let flag = |flag, text| if answer.has(flag) { text } else { "" };
    let mut text = format!(
        "Name:              {}\nState:             {}{}{}\n",
        answer.name,
        if answer.has(Flags::SUSPEND) { "SUSPENDED" } else { "ACTIVE" },
        flag(Flags::READONLY, " (READ-ONLY)"),
        flag(Flags::DEFERRED_REMOVE, " (DEFERRED REMOVE)"),
    );
    let tables = match (answer.has(Flags::ACTIVE_PRESENT), answer.has(Flags::INACTIVE_PRESENT)) {
        (false, false) => "None",
        (true, false) => "LIVE",
        (false, true) => "INACTIVE",
        (true, true) => "LIVE & INACTIVE",
    };
    let mut line = |name: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{name:<19}{value}");
    };
    if let Some(sectors) = read_ahead {
        line("Read Ahead:", &sectors);
    }
    line("Tables present:", &tables);
    if answer.header.open_count != -1 {
        line("Open count:", &answer.header.open_count);
    }
    line("Event number:", &answer.header.event_nr);
    line("Major, minor:", &format!("{}, {}", dev.major, dev.minor));
    line("Number of targets:", &answer.header.target_count);
    if !answer.uuid.is_empty() {
        let _ = writeln!(text, "UUID: {}", answer.uuid);
    }
    text.push('\n');
    text
}

pub(super) fn split_name(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let subsystem = call.args.get(1).map_or("LVM", String::as_str);
    let name = call.args.first().map_or("", String::as_str);
    app.report_split_name(&SplitName::new(subsystem, name))
}
