//! The daemon replaced under load: no request fails, and no write is lost.
//!
//! By default for some replacements; `UDM_REPLACE_SECONDS=60 cargo test -p udm --test real replace -- --nocapture` for
//! longer.

use crate::disks::write_image;
use crate::lab::Lab;
use crate::programs::{self, fio, same};
use crate::udm::wait_until;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of the device.
const SIZE: u64 = 32 << 20;
const SECTORS: u64 = SIZE / 512;
/// Replacements that there are at least under each load.
const REPLACEMENTS: u64 = 6;

/// How long a load lasts at least.
fn long() -> Duration {
    let text = std::env::var("UDM_REPLACE_SECONDS").ok();
    Duration::from_secs(text.map_or(0, |text| text.parse().expect("UDM_REPLACE_SECONDS is a number")))
}

/// Replaces the daemon again and again, until told to stop, whenever `device` was written to since the last time;
/// counts in `count`. The longest time of the command.
fn replace(lab: &Lab, device: &str, stop: &AtomicBool, count: &AtomicU64) -> Duration {
    let mut longest = Duration::ZERO;
    let stops = || stop.load(Ordering::Relaxed);
    while !stops() {
        let begun = Instant::now();
        lab.udm.ok(&["daemon", "--replace"]);
        longest = longest.max(begun.elapsed());
        count.fetch_add(1, Ordering::Relaxed);
        let writes = lab.udm.number(device, "writes");
        wait_until("the load goes on", || stops() || lab.udm.number(device, "writes") != writes);
    }
    longest
}

#[track_caller]
fn check(lab: &Lab, device: &str) {
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let (begun, long) = (Instant::now(), long());
    let ((content, text), longest) = std::thread::scope(|scope| {
        let replacing = scope.spawn(|| replace(lab, device, &stop, &count));
        let few = || count.load(Ordering::Relaxed) < REPLACEMENTS || begun.elapsed() < long;
        let goes_on = || !replacing.is_finished() && few();
        let done = fio::verified_while(&lab.udm.uri(device), 4, SIZE, "4k-64k", goes_on);
        stop.store(true, Ordering::Relaxed);
        (done, replacing.join().expect("the replacements succeed"))
    });
    println!("{} replacements, the longest of {} ms", count.into_inner(), longest.as_millis());
    assert!(content, "{device}: {text}");
    assert!(lab.udm.number(device, "writes") > 100, "{device}: there was a load");
}

#[test]
fn no_write_is_lost_between_daemons() {
    if !fio::installed() {
        return;
    }
    let lab = Lab::new();
    let half = SECTORS / 2;
    let file = lab.disk.file("backing", SIZE / 2);
    lab.udm.create("memory", &format!("0 {half} ram"));
    lab.udm.create("dev", &format!("0 {half} linear /dev/mapper/memory 0\n{half} {half} linear {file} 0"));
    check(&lab, "dev");
    let (meta, data) = (lab.disk.file("meta", 4 << 20), lab.disk.file("data", SIZE));
    lab.udm.create("pool", &format!("0 {SECTORS} thin-pool {meta} {data} 128 0"));
    lab.udm.ok(&["message", "pool", "0", "create_thin 0"]);
    lab.udm.create("thin", &format!("0 {SECTORS} thin /dev/mapper/pool 0"));
    check(&lab, "thin");
}

#[test]
fn an_image_is_copied_across_daemons() {
    if !programs::installed("nbdcopy") {
        return;
    }
    let lab = Lab::new();
    lab.udm.create("dev", &format!("0 {SECTORS} ram"));
    let (image, copy) = (lab.disk.path("image"), lab.disk.path("copy"));
    write_image(&image, SIZE as usize);
    let (from, to, uri) = (image.to_str().expect("text"), copy.to_str().expect("text"), lab.udm.uri("dev"));
    let stop = AtomicBool::new(false);
    let copies = std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let mut copies = 0;
            while !stop.load(Ordering::Relaxed) {
                programs::run("nbdcopy", &["--request-size=4096", "--flush", from, &uri]);
                programs::run("nbdcopy", &["--request-size=4096", &uri, to]);
                assert!(same(&image, &copy), "copy {copies} is not what went in");
                copies += 1;
            }
            copies
        });
        for _ in 0..4 {
            lab.udm.ok(&["daemon", "--replace"]);
        }
        stop.store(true, Ordering::Relaxed);
        copying.join().expect("the copies are right")
    });
    assert!(copies > 0);
}
