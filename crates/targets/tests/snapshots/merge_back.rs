//! Snapshots that are merged no further: a plain one takes over from a merge (`snapshot_resume`,
//! `drivers/md/dm-snap.c`, 6.12).

use super::*;

/// A world whose origin is a merge, which has begun and is suspended; and how much of it is left, as the status has it.
fn merging(is_to_end: bool) -> (World, String) {
    let w = world(&[4096]);
    // 32 exceptions an area, so that there are many rounds.
    let snap = w.snap("s", 0, "P 1");
    w.write(&snap, 0, SIZE, 2);
    suspend(&snap);
    w.disk.holding.store(!is_to_end, Ordering::Relaxed);
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 1"));
    w.rig.registry.remove(&snap, false).unwrap();
    while if is_to_end { status(&w.origin) != "2/4096 2" } else { w.disk.held() == 0 } {
        std::thread::yield_now();
    }
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            suspend(&w.origin);
            done.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            w.disk.release();
            std::thread::yield_now();
        }
    });
    w.disk.holding.store(false, Ordering::Relaxed);
    let left = status(&w.origin);
    (w, left)
}

fn heir(w: &World) -> Arc<MappedDevice> {
    let back = w.rig.registry.create("back", "", None).unwrap();
    w.rig.load(&back, &format!("0 {SIZE} snapshot /o /c0 P 1"), false).unwrap();
    back
}

/// Trap: it gets exceptions, which a store that is merged does not; and where others have theirs they must not lie.
fn take_back(is_to_end: bool) -> String {
    let (w, left) = merging(is_to_end);
    let back = heir(&w);
    resume(&back);
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-origin /o"));
    let mut expect = pattern(0, SIZE, 2);
    assert!(w.read(&back, 0, SIZE) == expect, "{left}");
    w.write(&w.origin, 30, 100, 4);
    assert!(w.read(&back, 0, SIZE) == expect, "{left}");
    w.write(&back, 200, 5, 5);
    expect[200 * 512..205 * 512].copy_from_slice(&pattern(200, 5, 5));
    assert!(w.read(&back, 0, SIZE) == expect, "{left}");
    assert_eq!(w.read(&w.origin, 30, 100), pattern(30, 100, 4));
    // What is on the device says the same.
    w.rig.registry.remove(&back, false).unwrap();
    let again = w.snap("again", 0, "P 1");
    w.write(&w.origin, 0, 10, 6);
    assert!(w.read(&again, 0, SIZE) == expect, "{left}");
    left
}

#[test]
fn a_snapshot_takes_over_from_a_merge() {
    take_back(true);
    // The merge may come to its end before the thread that suspends it has a CPU; not every time.
    assert!((0..50).any(|_| !take_back(false).starts_with("2/")), "it goes on to the end each time");
}

#[test]
fn a_snapshot_does_not_take_over_from_a_merge_that_failed() {
    let w = world(&[4096]);
    let snap = w.snap("s", 0, "P 1");
    w.write(&snap, 0, SIZE, 2);
    suspend(&snap);
    *w.cows[0].fail_if.lock().unwrap() = Some(Box::new(|bio| bio.op().is_write()));
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 1"));
    w.rig.registry.remove(&snap, false).unwrap();
    while status(&w.origin) != "Merge failed" {
        std::thread::yield_now();
    }
    *w.cows[0].fail_if.lock().unwrap() = None;
    let back = heir(&w);
    suspend(&w.origin);
    let e = back.resume(SuspendOptions::default(), &|| false).unwrap_err().to_string();
    assert!(e.contains("whose merge has failed"), "{e}");
    w.rig.registry.remove(&back, false).unwrap();
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-origin /o"));
    assert!(w.read(&w.snap("again", 0, "P 1"), 0, SIZE) == pattern(0, SIZE, 2));
}

/// A list whose exceptions lie past the end of the origin, as damage or a larger origin leave it.
#[test]
fn exceptions_past_the_end_of_the_origin_are_merged_away() {
    let w = world(&[4096]);
    let snap = w.snap("s", 0, "P 8");
    w.write(&snap, 0, 16, 2);
    w.rig.registry.remove(&snap, false).unwrap();
    let cow = BlockingIo::new(&w.rig.domain, w.cows[0].clone()).unwrap();
    let mut area = read(&cow, 8, 8);
    for (entry, old) in [(2, SIZE / 8), (3, SIZE / 8 + 1), (4, 1 << 40)] {
        area[entry * 16..entry * 16 + 8].copy_from_slice(&old.to_le_bytes());
        area[entry * 16 + 8..entry * 16 + 16].copy_from_slice(&(entry as u64 + 2).to_le_bytes());
    }
    cow.write(Sector::new(8), &area, OpFlags::NONE).unwrap();
    w.rig.reload(&w.origin, &format!("0 {SIZE} snapshot-merge /o /c0 P 8"));
    while !["16/4096 16", "Merge failed"].contains(&&*status(&w.origin)) {
        std::thread::yield_now();
    }
    assert_eq!(w.read(&w.origin, 0, SIZE), [pattern(0, 16, 2), pattern(16, SIZE - 16, 1)].concat());
}
