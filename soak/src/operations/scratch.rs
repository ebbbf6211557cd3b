//! Devices that nobody uses come, change and go.

use super::{Operation, Outcome};
use crate::world::Turn;

pub(super) const OPERATION: Operation = Operation {
    name: "scratch",
    what: "makes a device, renames it, asks for its state, and removes it",
    weight: 15,
    alone: false,
    run,
};

fn run(turn: &mut Turn<'_>) -> Result<Outcome, String> {
    let name = format!("scratch{}", turn.world.number());
    let sectors = 1 + turn.rng.below(1 << 12);
    // One that is always there, and large enough.
    let below = "/dev/mapper/linear";
    let table = match turn.rng.below(9) {
        0 => format!("0 {sectors} ram"),
        1 => format!("0 {sectors} zero"),
        2 => format!("0 {sectors} delay {below} 0 0 {below} 0 uniform:1ms-5ms"),
        3 => format!("0 {sectors} dust {below} 0 512"),
        4 => format!("0 {sectors} ebs {below} 0 1 8"),
        5 => format!("0 {sectors} flakey {below} 0 1 1 5 corrupt_bio_byte 1 r 7 0"),
        6 => format!("0 {sectors} switch 2 8 0 {below} 0 {below} 8"),
        7 => format!("0 {sectors} unstriped 2 1 1 {below} 0"),
        _ => format!("0 {sectors} error"),
    };
    turn.ok(&["create", &name, "--table", &table])?;
    let messages: &[&str] = match &table {
        table if table.contains("dust") => &["addbadblock 0 3", "enable", "listbadblocks", "clearbadblocks"],
        table if table.contains("switch") => &["set_region_mappings 0:1"],
        _ => &[],
    };
    for message in messages {
        let words = message.split(' ');
        turn.ok(&["message", &name, "0"].into_iter().chain(words).collect::<Vec<_>>())?;
    }
    if table.contains("delay") || table.contains("flakey") {
        turn.ok(&["set", &name, &format!("fault-seed={sectors}")])?;
    }
    let other = format!("{name}-x");
    turn.ok(&["rename", &name, &other])?;
    for command in ["info", "table", "status", "deps"] {
        if turn.rng.one_in(3) {
            turn.ok(&[command, &other])?;
        }
    }
    turn.ok(&["remove", &other])?;
    // Commands on missing devices are refused, with the right error.
    if turn.may(&["remove", &other], &["No such device or address"])? {
        return Err(format!("{other}: removed twice"));
    }
    Ok(Outcome::Done)
}
