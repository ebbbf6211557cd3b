//! What dmsetup does with udev and with nodes. udm has no udev to wait for: cookies can be made
//! and released, and nothing comes of it.

use crate::dmsetup::app::{App, Call, Done, Failed};
use crate::dmsetup::task::TaskType;
use std::fmt::Write;

/// The upper half of a cookie (`DM_COOKIE_MAGIC`, `libdevmapper.h`, 1.02.185).
const COOKIE_MAGIC: u32 = 0x0d4d;
/// The flags in a cookie begin here; its lower half of them is the device mapper's.
const FLAGS_SHIFT: u32 = 16;
const FLAG_NAMES: [&str; 7] = [
    "DISABLE_DM_RULES",
    "DISABLE_SUBSYSTEM_RULES",
    "DISABLE_DISK_RULES",
    "DISABLE_OTHER_RULES",
    "LOW_PRIORITY",
    "DISABLE_LIBRARY_FALLBACK",
    "PRIMARY_SOURCE",
];

/// A cookie as `strtoul` reads it with base 0: `0x` for hexadecimal, `0` for octal.
fn cookie(text: &str) -> Done<u32> {
    let digits = text.trim_start_matches(crate::dmsetup::table_text::is_space);
    let number = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) => u32::from_str_radix(hex, 16),
        None if digits.len() > 1 && digits.starts_with('0') => u32::from_str_radix(&digits[1..], 8),
        None => digits.parse(),
    };
    number
        .ok()
        .filter(|&n| n != 0)
        .ok_or_else(|| Failed::new(format!("{text:?} is no udev cookie: expected a number from 1 to 0xffffffff")))
}

pub(super) fn mknodes(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    // The daemon keeps the nodes; what is left is to say whether it can be asked.
    let Some(name) = call.device() else { return app.listed().map(|_| ()) };
    let mut task = app.task(TaskType::MkNodes);
    app.set_name(&mut task, name)?;
    app.run(&task).map(|_| ())
}

pub(super) fn create_cookie(_: &mut App<'_, '_>, _: &Call<'_>) -> Done {
    Ok(())
}

pub(super) fn release_cookie(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let given = call.args.first().or(app.options.udev_cookie.as_ref());
    let by_default = app.env.vars.get("DM_UDEV_COOKIE").filter(|c| !c.is_empty());
    match given.or(by_default) {
        Some(text) => cookie(text).map(|_| ()),
        None => Err(Failed::new("which udev cookie? Give it, or --udevcookie, or DM_UDEV_COOKIE")),
    }
}

pub(super) fn flags(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let flags = cookie(&call.args[0])? >> FLAGS_SHIFT;
    let mut text = String::new();
    for bit in (0..16).filter(|bit| flags & 1 << bit != 0) {
        let _ = match FLAG_NAMES.get(bit) {
            Some(name) => writeln!(text, "DM_UDEV_{name}_FLAG='1'"),
            None if bit < 8 => writeln!(text, "DM_UDEV_FLAG{bit}='1'"),
            None => writeln!(text, "DM_SUBSYSTEM_UDEV_FLAG{}='1'", bit - 8),
        };
    }
    app.print(text);
    Ok(())
}

pub(super) fn complete(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    let cookie = cookie(&call.args[0])?;
    app.print(format_args!("DM_COOKIE_COMPLETED=0x{cookie:<10x}\n"));
    Ok(())
}

pub(super) fn complete_all(app: &mut App<'_, '_>, call: &Call<'_>) -> Done {
    if let Some(age) = call.args.first()
        && !age.trim_start().starts_with(|c: char| c.is_ascii_digit() || c == '+' || c == '-')
    {
        return Err(Failed::new(format!("the age is {age:?}: expected a number of minutes")));
    }
    if !app.options.yes && !confirmed(app)? {
        app.print(format_args!(
            "Semaphores with keys prefixed by {COOKIE_MAGIC} (0x{COOKIE_MAGIC:x}) NOT destroyed.\n"
        ));
        return Ok(());
    }
    app.print(format_args!(
        "0 semaphores with keys prefixed by {COOKIE_MAGIC} (0x{COOKIE_MAGIC:x}) destroyed. 0 skipped.\n"
    ));
    Ok(())
}

/// Ask until a line has a `y` or an `n`; the end of the input means no.
fn confirmed(app: &mut App<'_, '_>) -> Done<bool> {
    loop {
        app.print("Do you really want to continue? [y/n]: ");
        app.flush();
        let mut line = String::new();
        // A line without end is read no further than this.
        let mut limited = std::io::Read::take(&mut *app.env.stdin, 4096);
        let read = std::io::BufRead::read_line(&mut limited, &mut line);
        let read = read.map_err(|e| Failed::new(format!("cannot read the answer: {e}")))?;
        let answer = line.to_lowercase().chars().rfind(|c| matches!(c, 'y' | 'n'));
        match answer {
            Some(answer) if line.ends_with('\n') => return Ok(answer == 'y'),
            _ if read == 0 || !line.ends_with('\n') => {
                app.print("\n");
                return Ok(false);
            }
            _ => {}
        }
    }
}

pub(super) fn cookies(app: &mut App<'_, '_>, _: &Call<'_>) -> Done {
    app.print("Cookie       Semid      Value      Last semop time           Last change time\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookie_numbers() {
        for (text, n) in [("0xd4d1234", 0x0d4d_1234), ("017", 15), ("12", 12), (" 1", 1), ("0xffffffff", u32::MAX)] {
            assert_eq!(cookie(text), Ok(n), "{text}");
        }
        for bad in ["", "0", "0x", "x", "12x", "0x100000000", "09"] {
            assert!(cookie(bad).is_err(), "{bad}");
        }
    }
}
