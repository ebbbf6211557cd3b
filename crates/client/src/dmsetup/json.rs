//! `--json`: what the commands show, as JSON.

use super::app::{App, CommandType, Done, Failed};
use super::table_text::TableLine;
use super::task::{Answer, Listed};
use serde_json::{Map, Value, json};
use udm_control::codec::Flags;

impl App<'_, '_> {
    pub(super) fn check_json(&self, command: &CommandType) -> Done {
        let command = self.for_selected.unwrap_or(command).name;
        if !self.options.json {
            return Ok(());
        }
        if !matches!(command, "info" | "table" | "status" | "ls") {
            return Err(Failed::new(format!("{command} has no --json: info, table, status and ls have")));
        }
        if self.options.tree || self.options.concise || self.options.columns && self.for_selected.is_none() {
            return Err(Failed::new("--json does not go with --columns, --concise and --tree"));
        }
        Ok(())
    }

    /// Print the devices of this round together.
    pub(super) fn print_json(&mut self) {
        if self.options.json {
            let devices = std::mem::take(&mut self.json);
            self.print(format_args!("{}\n", json!({ "devices": devices })));
        }
    }

    /// A device of `info --json`: what the ioctl tells, then what only the daemon counts.
    pub(super) fn json_info(&mut self, answer: &Answer) -> Value {
        let mut device = identity(answer);
        let mut put = |key: &str, value: Value| device.insert(key.to_owned(), value);
        put("open", json!(answer.header.open_count));
        put("events", json!(answer.header.event_nr));
        put("state", json!(if answer.has(Flags::SUSPEND) { "SUSPENDED" } else { "ACTIVE" }));
        put("read_only", json!(answer.has(Flags::READONLY)));
        put("deferred_remove", json!(answer.has(Flags::DEFERRED_REMOVE)));
        put("live_table", json!(answer.has(Flags::ACTIVE_PRESENT)));
        put("inactive_table", json!(answer.has(Flags::INACTIVE_PRESENT)));
        put("targets", json!(answer.header.target_count));
        if let Some(Value::Object(stats)) = self.transport().device_stats(&answer.name) {
            device.extend(stats);
        }
        Value::Object(device)
    }

    /// A device of `table --json` or `status --json`.
    pub(super) fn json_lines(&self, command: &str, answer: &Answer, lines: &[&TableLine]) -> Value {
        let mut device = identity(answer);
        if command == "ls" {
            return Value::Object(device);
        }
        let key = if command == "table" { "params" } else { "status" };
        let lines = lines
            .iter()
            .map(|l| json!({ "start": l.start.get(), "length": l.len.get(), "target": l.target, key: l.params }));
        device.insert(command.to_owned(), lines.collect());
        Value::Object(device)
    }

    /// A device of `ls --json`.
    pub(super) fn json_name(&self, device: &Listed) -> Value {
        json!({ "name": device.name, "major": device.dev.major, "minor": device.dev.minor })
    }
}

fn identity(answer: &Answer) -> Map<String, Value> {
    let dev = answer.dev();
    let mut device = Map::new();
    device.insert("name".into(), json!(answer.name));
    device.insert("uuid".into(), json!(answer.uuid));
    device.insert("major".into(), json!(dev.major));
    device.insert("minor".into(), json!(dev.minor));
    device
}
