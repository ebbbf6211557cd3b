//! The kinds of devices: one function each, which makes it in a lab.

use crate::lab::Lab;

/// Bytes of every device.
pub(crate) const SIZE: u64 = 16 << 20;
/// The same in sectors.
const SECTORS: u64 = SIZE / 512;

/// What a device does with data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Nature {
    /// Keeps it.
    Keeps,
    /// Keeps it, and refuses to change it.
    ReadOnly,
    /// Takes it and forgets it; reads zeroes.
    Zeroes,
    /// Fails every request.
    Fails,
}

/// A device under test: `dev` of the lab's udm.
pub(crate) struct Subject {
    pub(crate) lab: Lab,
    pub(crate) nature: Nature,
}

impl Subject {
    /// How programs name it.
    pub(crate) fn uri(&self) -> String {
        self.lab.udm.uri("dev")
    }
}

/// Makes the device; `None` when something for it is not there, which has been said then.
pub(crate) type Kind = fn() -> Option<Subject>;

fn made(lab: Lab, nature: Nature, table: &str) -> Option<Subject> {
    lab.udm.create("dev", table);
    Some(Subject { lab, nature })
}

pub(crate) fn linear_over_a_file() -> Option<Subject> {
    let lab = Lab::new();
    let file = lab.disk.file("backing", SIZE + 4096);
    made(lab, Nature::Keeps, &format!("0 {SECTORS} linear {file} 8"))
}

pub(crate) fn linear_over_a_file_of_tmpfs() -> Option<Subject> {
    let mut lab = Lab::new();
    let file = lab.tmpfs()?.file("backing", SIZE + 4096);
    made(lab, Nature::Keeps, &format!("0 {SECTORS} linear {file} 8"))
}

pub(crate) fn striped_over_loop_and_ram() -> Option<Subject> {
    let lab = Lab::new();
    let (file, half) = (lab.disk.file("backing", SIZE / 2), SECTORS / 2);
    lab.udm.create("file", &format!("0 {half} loop {file}"));
    lab.udm.create("memory", &format!("0 {half} ram"));
    made(lab, Nature::Keeps, &format!("0 {SECTORS} striped 2 128 /dev/mapper/file 0 /dev/mapper/memory 0"))
}

pub(crate) fn zero() -> Option<Subject> {
    made(Lab::new(), Nature::Zeroes, &format!("0 {SECTORS} zero"))
}

pub(crate) fn error() -> Option<Subject> {
    made(Lab::new(), Nature::Fails, &format!("0 {SECTORS} error"))
}

pub(crate) fn ram() -> Option<Subject> {
    made(Lab::new(), Nature::Keeps, &format!("0 {SECTORS} ram"))
}

/// The border of the segments is at an odd sector, so that requests are split there.
pub(crate) fn loop_of_two_file_systems() -> Option<Subject> {
    let mut lab = Lab::new();
    let border = SECTORS / 3;
    let first = lab.disk.file("first", border * 512);
    let second = lab.tmpfs()?.file("second", (SECTORS - border + 8) * 512);
    let table = format!("0 {border} loop {first}\n{border} {} loop {second} 8", SECTORS - border);
    made(lab, Nature::Keeps, &table)
}

pub(crate) fn linear_over_null_with_memory() -> Option<Subject> {
    made(Lab::new(), Nature::Keeps, &format!("0 {SECTORS} linear null:size={SIZE}:queues=2:memory=1 0"))
}

/// Linear in two segments, over striped, over linear, over a file and memory.
pub(crate) fn a_stack() -> Option<Subject> {
    let lab = Lab::new();
    let (file, half, odd) = (lab.disk.file("backing", SIZE / 2), SECTORS / 2, SECTORS / 5);
    lab.udm.create("memory", &format!("0 {half} ram"));
    lab.udm.create("low", &format!("0 {half} linear /dev/mapper/memory 0"));
    lab.udm.create("middle", &format!("0 {SECTORS} striped 2 8 /dev/mapper/low 0 {file} 0"));
    let rest = SECTORS - odd;
    // The halves change places, so that what goes astray is seen.
    let table = format!("0 {odd} linear /dev/mapper/middle {rest}\n{odd} {rest} linear /dev/mapper/middle 0");
    made(lab, Nature::Keeps, &table)
}

pub(crate) fn linear_over_another_udm() -> Option<Subject> {
    let mut lab = Lab::new();
    let far = lab.far();
    far.create("far", &format!("0 {SECTORS} ram"));
    let uri = far.uri("far");
    made(lab, Nature::Keeps, &format!("0 {SECTORS} linear {uri} 0"))
}

pub(crate) fn linear_over_nbdkit() -> Option<Subject> {
    let mut lab = Lab::new();
    let uri = lab.nbdkit_memory(SIZE)?;
    made(lab, Nature::Keeps, &format!("0 {SECTORS} linear {uri} 0"))
}

pub(crate) fn read_only() -> Option<Subject> {
    let lab = Lab::new();
    let file = lab.disk.path("backing");
    crate::disks::write_image(&file, SIZE as usize);
    let table = format!("0 {SECTORS} loop {}", crate::disks::in_table(&file));
    lab.udm.ok(&["create", "dev", "--readonly", "--table", &table]);
    Some(Subject { lab, nature: Nature::ReadOnly })
}
