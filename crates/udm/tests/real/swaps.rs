//! Tables swapped under load: no request fails, and no write is lost.
//!
//! By default for some swaps; `UDM_SWAP_SECONDS=30 cargo test -p udm --test real swaps -- --nocapture` for longer.

use crate::lab::Lab;
use crate::programs::fio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the device.
const SIZE: u64 = 16 << 20;
const SECTORS: u64 = SIZE / 512;
/// Swaps that there are at least.
const SWAPS: u64 = 60;
/// Clients, each on a connection of its own.
const JOBS: u64 = 4;

/// How long the load lasts at least.
fn long() -> Duration {
    let text = std::env::var("UDM_SWAP_SECONDS").ok();
    Duration::from_secs(text.map_or(0, |text| text.parse().expect("UDM_SWAP_SECONDS is a number")))
}

/// Swaps the table of `dev`, in turn and as fast as it goes, until told to stop; counts in `swaps`. The longest swap.
fn swap(lab: &Lab, tables: &[String], stop: &AtomicBool, swaps: &AtomicU64) -> Duration {
    let mut longest = Duration::ZERO;
    for table in tables.iter().cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
        let begun = Instant::now();
        lab.udm.ok(&["load", "dev", "--table", table]);
        lab.udm.ok(&["resume", "dev"]);
        longest = longest.max(begun.elapsed());
        swaps.fetch_add(1, Ordering::Relaxed);
    }
    longest
}

/// Verified load on the device while its tables are swapped, as long as it `goes_on` after so many swaps: whether fio
/// was content, and what it printed.
fn load_and_swap(lab: &Lab, tables: &[String], goes_on: impl Fn(u64) -> bool) -> (bool, String) {
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let (fio, longest) = std::thread::scope(|scope| {
        let swapping = scope.spawn(|| swap(lab, tables, &stop, &swaps));
        let goes_on = || !swapping.is_finished() && goes_on(swaps.load(Ordering::Relaxed));
        let fio = fio::verified_while(&lab.udm.uri("dev"), JOBS, SIZE, "4k-32k", goes_on);
        stop.store(true, Ordering::Relaxed);
        (fio, swapping.join().expect("the swaps succeed"))
    });
    println!("{} swaps, the longest of {} ms with both commands", swaps.into_inner(), longest.as_millis());
    println!("{}", fio.1);
    fio
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
    let (begun, long) = (Instant::now(), long());
    let goes_on = |swaps| swaps < SWAPS || begun.elapsed() < long;
    let (content, text) = load_and_swap(&lab, &[pieces, striped, stacked, whole], goes_on);
    assert!(content, "{text}");
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
    let (content, text) = load_and_swap(&lab, &tables, |swaps| swaps < SWAPS);
    assert!(!content && text.contains("verify"), "{text}");
}
