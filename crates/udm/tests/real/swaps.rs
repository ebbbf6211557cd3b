//! Tables swapped under load: no request fails, and no write is lost.
//!
//! By default for a few seconds; `UDM_SWAP_SECONDS=30 cargo test -p udm --test real swaps -- --nocapture` for longer.

use crate::lab::Lab;
use crate::programs::{self, fio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the device.
const SIZE: u64 = 16 << 20;
const SECTORS: u64 = SIZE / 512;
/// From one swap to the next.
const PERIOD: Duration = Duration::from_millis(50);
/// Clients, each on a connection of its own.
const JOBS: u64 = 4;

/// How long the load lasts.
fn seconds() -> u64 {
    std::env::var("UDM_SWAP_SECONDS").ok().map_or(6, |text| text.parse().expect("UDM_SWAP_SECONDS is a number"))
}

/// Swaps the table of `dev` every [`PERIOD`], in turn, until told to stop. How often, and the longest swap.
fn swap(lab: &Lab, tables: &[String], stop: &AtomicBool) -> (u64, Duration) {
    let (mut swaps, mut longest) = (0, Duration::ZERO);
    let mut next = Instant::now() + PERIOD;
    for table in tables.iter().cycle() {
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        next += PERIOD;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let begun = Instant::now();
        lab.udm.ok(&["load", "dev", "--table", table]);
        lab.udm.ok(&["resume", "dev"]);
        longest = longest.max(begun.elapsed());
        swaps += 1;
    }
    (swaps, longest)
}

/// Verified load on the device while its tables are swapped: whether fio was content, what it printed, and how many
/// swaps there were.
fn load_and_swap(lab: &Lab, tables: &[String], seconds: u64) -> (bool, String, u64) {
    let mut options = fio::options(&lab.udm.uri("dev"), JOBS, SIZE);
    options.extend(
        ["--rw=randrw", "--bsrange=4k-32k", "--verify=crc32c", "--verify_backlog=64", "--time_based"].map(Into::into),
    );
    options.push(format!("--runtime={seconds}"));
    let args: Vec<&str> = options.iter().map(String::as_str).collect();
    let stop = AtomicBool::new(false);
    let (fio, (swaps, longest)) = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| swap(lab, tables, &stop));
        let fio = programs::outcome("fio", &args);
        stop.store(true, Ordering::Relaxed);
        (fio, swapping.join().expect("the swaps succeed"))
    });
    println!("{swaps} swaps in {seconds} s, the longest of {} ms with both commands", longest.as_millis());
    println!("{}", fio.1);
    (fio.0, fio.1, swaps)
}

#[test]
fn no_write_is_lost_between_tables() {
    if !fio::installed() {
        return;
    }
    let lab = Lab::new();
    lab.udm.create("memory", &format!("0 {} ram", SECTORS / 2));
    let file = lab.disk.file("backing", SIZE / 2);
    // The same sectors in the same places, by other ways: in one piece, in many, with a stripe that is one, over
    // another device.
    let half = SECTORS / 2;
    let whole = format!("0 {half} linear /dev/mapper/memory 0\n{half} {half} linear {file} 0");
    let pieces = (0..16).map(|n| {
        let (piece, start) = (half / 8, n * half / 8);
        let beneath = if n < 8 { "/dev/mapper/memory" } else { &file };
        format!("{start} {piece} linear {beneath} {}\n", start % half)
    });
    let pieces: String = pieces.collect();
    let striped = format!("0 {half} striped 1 8 /dev/mapper/memory 0\n{half} {half} loop {file}");
    lab.udm.create("below", &whole);
    let stacked = format!("0 {SECTORS} linear /dev/mapper/below 0");
    lab.udm.create("dev", &whole);
    let seconds = seconds();
    let (content, text, swaps) = load_and_swap(&lab, &[pieces, striped, stacked, whole], seconds);
    assert!(content && !text.contains("verify:") && text.contains("err= 0"), "{text}");
    // A machine with other work does fewer; far fewer would mean that it is not the swaps that were tested.
    assert!(swaps >= seconds * 2, "{swaps} swaps");
    assert!(lab.udm.number("dev", "writes") > 100, "there was a load");
}

/// The same with tables that lead elsewhere: that must be noticed, or the test above proves nothing.
#[test]
fn a_lost_write_would_be_noticed() {
    if !fio::installed() {
        return;
    }
    let lab = Lab::new();
    lab.udm.create("one", &format!("0 {SECTORS} ram"));
    lab.udm.create("other", &format!("0 {SECTORS} ram"));
    let tables = ["one", "other"].map(|name| format!("0 {SECTORS} linear /dev/mapper/{name} 0"));
    lab.udm.create("dev", &tables[0]);
    let (content, text, swaps) = load_and_swap(&lab, &tables, 2);
    assert!(swaps > 0 && !content && text.contains("verify"), "{text}");
}
