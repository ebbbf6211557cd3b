//! The daemon replaced under load: no request fails, and no write is lost.
//!
//! By default for a few seconds; `UDM_REPLACE_SECONDS=60 cargo test -p udm --test real replace -- --nocapture` for
//! longer.

use crate::disks::write_image;
use crate::lab::Lab;
use crate::programs::{self, fio, same};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of the device.
const SIZE: u64 = 32 << 20;
const SECTORS: u64 = SIZE / 512;
/// From the end of one replacement to the next.
const PERIOD: Duration = Duration::from_millis(500);

fn seconds() -> u64 {
    std::env::var("UDM_REPLACE_SECONDS").ok().map_or(4, |text| text.parse().expect("UDM_REPLACE_SECONDS is a number"))
}

/// Replaces the daemon again and again until told to stop; how often, and the longest time of the command.
fn replace(lab: &Lab, stop: &AtomicBool) -> (u64, Duration) {
    let (mut count, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let begun = std::time::Instant::now();
        lab.udm.ok(&["daemon", "--replace"]);
        longest = longest.max(begun.elapsed());
        count += 1;
        std::thread::sleep(PERIOD);
    }
    (count, longest)
}

/// Runs a program while the daemon is replaced. What it printed, and how often there was another daemon.
fn under_replacement<T: Send>(lab: &Lab, work: impl FnOnce() -> T + Send) -> (T, u64) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let replacing = scope.spawn(|| replace(lab, &stop));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let (count, longest) = replacing.join().expect("the replacements succeed");
        println!("{count} replacements, the longest of {} ms", longest.as_millis());
        (done, count)
    })
}

#[track_caller]
fn check(lab: &Lab, device: &str) {
    let mut options = fio::options(&lab.udm.uri(device), 4, SIZE);
    options.extend(
        ["--rw=randrw", "--bsrange=4k-64k", "--verify=crc32c", "--verify_backlog=64", "--fsync=32", "--time_based"]
            .map(Into::into),
    );
    options.push(format!("--runtime={}", seconds()));
    let args: Vec<&str> = options.iter().map(String::as_str).collect();
    let ((content, text), count) = under_replacement(lab, || programs::outcome("fio", &args));
    assert!(content && !text.contains("verify:") && text.contains("err= 0"), "{device}: {text}");
    assert!(count >= 2, "{device}: {count} replacements");
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
            std::thread::sleep(PERIOD / 5);
        }
        stop.store(true, Ordering::Relaxed);
        copying.join().expect("the copies are right")
    });
    assert!(copies > 0);
}
