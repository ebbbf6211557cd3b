//! `table`, `status`, `measure`, and what `ls --target` and `--exec` need of them.

use crate::dmsetup::app::{App, Call, Done, Failed};
use crate::dmsetup::table_text::{TableLine, is_space};
use crate::dmsetup::task::{Answer, TaskType};
use std::fmt::Write;
use udm_base::concise;
use udm_control::codec::Flags;

/// The most words that `--exec` takes.
const MAX_EXEC_WORDS: usize = 255;

pub(super) fn status(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    if app.means_all(call) {
        return app.for_each_device(call, true, status);
    }
    let kind = if call.command.name == "table" { TaskType::Table } else { TaskType::Status };
    let mut task = app.state_task(kind, call.device())?;
    task.flags.set(Flags::SKIP_LOCKFS, false);
    task.flags.set(Flags::IMA_MEASUREMENT, call.command.name == "measure");
    let mut answer = app.run(&task)?;
    if !answer.exists {
        return Err(Failed::new(format!("there is no such device {}; `ls` lists them", call.device().unwrap_or(""))));
    }
    if kind == TaskType::Table && !app.options.show_keys {
        answer.lines.iter_mut().for_each(hide_keys);
    }
    let name = call.device().unwrap_or(&answer.name).to_owned();
    let matched = app.show_lines(call, &answer, &name)?;
    match app.options.exec.clone() {
        Some(command) if matched => app.exec(&command, &name),
        _ => Ok(()),
    }
}

impl App<'_, '_> {
    /// Print the lines whose target matches. Did one?
    fn show_lines(&mut self, call: &Call<'_>, answer: &Answer, name: &str) -> Done<bool> {
        let target = self.options.target.clone();
        let lines: Vec<&TableLine> =
            answer.lines.iter().filter(|l| target.as_ref().is_none_or(|t| *t == l.target)).collect();
        // A device without a table shows as an empty line, unless a target is asked for.
        if lines.is_empty() && (target.is_some() || !answer.lines.is_empty()) {
            return Ok(false);
        }
        let verbose = self.options.verbose;
        if self.options.exec.is_some() && verbose == 0 {
            return Ok(true);
        }
        if self.options.json {
            let device = self.json_lines(call.command.name, answer, &lines);
            self.json.push(device);
        } else if call.command.name == "ls" {
            let dev = answer.dev();
            self.print(format_args!("{name}\t({}, {})\n", dev.major, dev.minor));
        } else if call.command.name == "table" && self.options.concise {
            self.show_concise(answer, name, &lines);
        } else {
            if verbose > 0 {
                self.show_info(answer)?;
            }
            let mut text = String::new();
            let prefix = if call.one_of_many && verbose == 0 { format!("{name}: ") } else { String::new() };
            for line in &lines {
                let TableLine { start, len, target, params } = line;
                let _ = writeln!(text, "{prefix}{} {} {target} {params}", start.get(), len.get());
            }
            if lines.is_empty() {
                let _ = writeln!(text, "{prefix}");
            }
            if call.one_of_many && verbose > 0 {
                text.push('\n');
            }
            self.print(text);
        }
        Ok(true)
    }

    fn show_concise(&mut self, answer: &Answer, name: &str, lines: &[&TableLine]) {
        let mut text = String::new();
        if std::mem::replace(&mut self.concise_begun, true) {
            text.push(';');
        }
        let access = if answer.has(Flags::READONLY) { "ro" } else { "rw" };
        let (name, uuid) = (concise::quote(name), concise::quote(&answer.uuid));
        let _ = write!(text, "{name},{uuid},{},{access}", answer.dev().minor);
        for TableLine { start, len, target, params } in lines {
            let _ = write!(text, ",{} {} {target} {}", start.get(), len.get(), concise::quote(params));
        }
        self.print(text);
    }

    /// Run the words of `--exec` with the device's node behind them.
    fn exec(&mut self, command: &str, name: &str) -> Done {
        let mut words: Vec<String> = command.split(is_space).filter(|w| !w.is_empty()).map(str::to_owned).collect();
        if words.is_empty() {
            return Err(Failed::new("--exec has no command"));
        }
        if words.len() > MAX_EXEC_WORDS {
            return Err(Failed::new(format!("--exec has {} words: at most {MAX_EXEC_WORDS}", words.len())));
        }
        words.push(self.env.node_dir.join(name).to_string_lossy().into_owned());
        self.flush();
        // What comes of the program is its own affair, as in dmsetup.
        if let Err(e) = (self.env.exec)(&words) {
            self.complain(format!("cannot run {}: {e}", words[0]));
        }
        Ok(())
    }
}

/// Write zeros over the keys of crypt and integrity; a reference to a key in the kernel, which
/// begins with a colon, is no secret.
fn hide_keys(line: &mut TableLine) {
    match line.target.as_str() {
        "crypt" => {
            if let Some((cipher, rest)) = line.params.split_once(' ')
                && !rest.starts_with(':')
            {
                let end = rest.find(' ').unwrap_or(rest.len());
                line.params = format!("{cipher} {}{}", "0".repeat(end), &rest[end..]);
            }
        }
        "integrity" => {
            for option in ["internal_hash:", "journal_crypt:", "journal_mac:"] {
                hide_optional_key(&mut line.params, option);
            }
        }
        _ => {}
    }
}

/// `OPTION:ALGORITHM[:KEY]`.
fn hide_optional_key(params: &mut String, option: &str) {
    let Some(at) = params.find(option) else { return };
    let algorithm = at + option.len();
    let Some(colon) = params[algorithm..].find([' ', ':']).map(|i| algorithm + i) else { return };
    if params.as_bytes()[colon] == b':' {
        let key = colon + 1;
        let end = params[key..].find(' ').map_or(params.len(), |i| key + i);
        params.replace_range(key..end, &"0".repeat(end - key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let check = |target: &str, params: &str, expect: &str| {
            let mut line = TableLine {
                start: udm_base::Sector::ZERO,
                len: udm_base::Sectors::ZERO,
                target: target.into(),
                params: params.into(),
            };
            hide_keys(&mut line);
            assert_eq!(line.params, expect);
        };
        check("crypt", "aes-xts 0123abcd 0 7:0 0", "aes-xts 00000000 0 7:0 0");
        check("crypt", "aes-xts :32:logon:key 0 7:0 0", "aes-xts :32:logon:key 0 7:0 0");
        check("crypt", "aes-xts", "aes-xts");
        check(
            "integrity",
            "7:0 0 J 2 internal_hash:hmac(sha256):abcd x",
            "7:0 0 J 2 internal_hash:hmac(sha256):0000 x",
        );
        check("integrity", "internal_hash:crc32c journal_mac:sha:ff", "internal_hash:crc32c journal_mac:sha:00");
        check("integrity", "internal_hash:crc32c", "internal_hash:crc32c");
        check("linear", "aes-xts 0123", "aes-xts 0123");
    }
}
