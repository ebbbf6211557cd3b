//! The same on what the machine has: a file with direct I/O, and block devices that have poll queues.

use super::{EXPERIMENT, INTERRUPT, MODES, POLL, Pace};
use crate::backing::Backing;
use crate::experiment::Setting;
use crate::row::{Row, Unit};
use crate::turns::{Way, turns};
use std::fs;
use udm_bench::{CompletionMode, Error, Fill, Lat, Load, Rw, Stack, Subject, measure};

/// Requests out.
const DEPTHS: [usize; 2] = [1, 32];

pub(super) fn rows(setting: &Setting<'_>, pace: &Pace) -> Result<Vec<Row>, Error> {
    let folder = setting.folder.expect("the experiment wants a folder");
    let bytes: u64 = setting.or_quick(256 << 20, 16 << 20);
    (setting.progress)("polling: writing a file");
    let file = Backing::on_disk(folder, bytes)?;
    let concise = format!("f,,,,0 {} loop {}", bytes / 512, udm_bench::stack::in_concise(&file.path)?);
    let stack = Stack::new(setting.domain, &concise)?;
    let mut rows = on(setting, pace, "a file with direct I/O", file.kind, &stack.subject("f")?, bytes)?;
    match with_poll_queues() {
        Some(name) => {
            let path = format!("/dev/{name}");
            let subject = Subject::open(setting.domain, &name, &path, true)?;
            let bytes = subject.sectors().checked_bytes().unwrap_or(bytes);
            rows.extend(on(setting, pace, "a block device with poll queues", &path, &subject, bytes)?);
        }
        None => {
            let row = row(setting, "a block device with poll queues: poll beside interrupt", "none");
            rows.push(row.skipped("no block device here has poll queues"));
        }
    }
    Ok(rows)
}

/// A block device that the kernel polls, if there is one.
fn with_poll_queues() -> Option<String> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let mut names: Vec<_> = devices.filter_map(|device| device.file_name().into_string().ok()).collect();
    names.sort();
    let polls = |name: &String| {
        let switch = fs::read_to_string(format!("/sys/block/{name}/queue/io_poll"));
        switch.is_ok_and(|text| text.trim() == "1") && fs::File::open(format!("/dev/{name}")).is_ok()
    };
    names.into_iter().find(polls)
}

fn row(setting: &Setting<'_>, what: &str, disk: &str) -> Row {
    Row {
        experiment: EXPERIMENT.name,
        row: what.to_owned(),
        disk: Some(disk.to_owned()),
        size: Some(4096),
        unit: Unit::RequestsPerSecond,
        command: setting.command.clone(),
        ..Row::default()
    }
}

/// Reads a device in each way. Nothing is written to it.
fn on(
    setting: &Setting<'_>,
    pace: &Pace,
    what: &str,
    disk: &str,
    subject: &Subject,
    bytes: u64,
) -> Result<Vec<Row>, Error> {
    let polls = subject.can_poll();
    let mut rows = Vec::new();
    for depth in DEPTHS {
        let load = Load {
            rw: Rw::RandRead,
            iodepth: depth,
            runtime: Some(pace.runtime * 2),
            size: Some(bytes),
            fill: Fill::No,
            lat: Lat::Off,
            ..Load::default()
        };
        let modes = MODES.into_iter().filter(|(_, mode)| polls || *mode != CompletionMode::Poll);
        let mut ways: Vec<Way<'_>> = modes
            .map(|(name, completion)| {
                let load = Load { completion, ..load.clone() };
                Way::new(name, move || Ok(measure(setting.domain, subject, &load)?.iops()))
            })
            .collect();
        let figures = turns(pace.rounds, &mut ways, |round| {
            (setting.progress)(&format!("polling: {what}, depth {depth}, round {round} of {}", pace.rounds));
        })?;
        for (name, _) in MODES.into_iter().filter(|(name, _)| *name != INTERRUPT) {
            let one = row(setting, &format!("{what}, depth {depth}: {name} beside {INTERRUPT}"), disk);
            rows.push(match figures.has(name) {
                true => one.compared(&figures, name, INTERRUPT, 1.0),
                false => one.skipped("it cannot be polled: the driver beneath has no poll queues"),
            });
        }
    }
    debug_assert!(rows.iter().any(|row| row.row.contains(POLL)), "polling is told of, measured or not");
    Ok(rows)
}
