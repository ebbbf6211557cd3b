//! The throttle of copies in simulated time: it holds copies back, and no suspension.

use std::path::Path;
use std::sync::Arc;
use udm_base::{Errno, Sector, Sectors};
use udm_core::{Error, HostRequest, MappedDevice, Registry, SuspendOptions, TableLine};
use udm_io::{BlockDevice, Op, OpFlags};
use udm_sim::{Sim, SimDevice, SimOptions};
use udm_targets::TARGETS;

const SIZE: u64 = 4096;
const CHUNK: u64 = 8;
/// To every second chunk, so that each is copied by itself.
const WRITES: u64 = SIZE / CHUNK / 2;

/// The nanoseconds until a device is suspended whose chunks are all being copied. `merged`: the snapshot is merged;
/// else the origin is written to. `remove`: a merge is removed instead.
fn suspension(percent: u32, merged: bool, remove: bool) -> u64 {
    let sim = Sim::new(3);
    let domain = sim.domain();
    let disk = |size| Arc::new(SimDevice::new(&sim, SimOptions::new(Sectors::new(size))));
    let (origin, cow) = (disk(SIZE), disk(2 * SIZE));
    let host = move |request: &HostRequest<'_>| -> Result<Arc<dyn BlockDevice>, Error> {
        match request.spec {
            "origin" => Ok(origin.clone()),
            "cow" => Ok(cow.clone()),
            other => Err(Error::new(Errno::ENOENT, other)),
        }
    };
    let registry = Registry::new(domain.clone(), TARGETS, Box::new(host));
    let load = |md: &Arc<MappedDevice>, target: &str| {
        md.load(&TableLine::parse_all(&format!("0 {SIZE} {target}")).unwrap(), false, Path::new("/")).unwrap();
        md.resume(SuspendOptions::default(), &|| false).unwrap();
    };
    let (top, snapshot) = (registry.create("top", "", None).unwrap(), registry.create("snap", "", None).unwrap());
    load(&top, "snapshot-origin origin");
    load(&snapshot, "snapshot origin cow P 8");
    let channel = domain.channel().unwrap();
    let written = channel.attach(if merged { snapshot.clone() } else { top.clone() });
    let mut memory = vec![7; 512];
    let mut write = |at: u64| {
        // SAFETY: the memory stays until everything has completed, and nobody looks into it.
        let taken =
            unsafe { channel.submit(written, Op::Write, OpFlags::NONE, Sector::new(2 * at * CHUNK), &mut memory, at) };
        assert!(taken);
    };
    channel.set_depth(WRITES as usize);
    let mut left = WRITES;
    let settle = |left: &mut u64| {
        while *left > 0 {
            channel.poll();
            while let Some(done) = channel.completed() {
                assert!(done.status.is_ok());
                *left -= 1;
            }
            if *left > 0 {
                channel.wait(None, &mut Vec::new()).unwrap();
            }
        }
    };
    let throttle = |md: &Arc<MappedDevice>| {
        md.message(Sector::ZERO, &["copy_throttle", &percent.to_string()]).unwrap();
    };
    (0..WRITES).for_each(&mut write);
    if merged {
        settle(&mut left);
        top.suspend(SuspendOptions::default(), &|| false).unwrap();
        snapshot.suspend(SuspendOptions::default(), &|| false).unwrap();
        throttle(&snapshot);
        load(&top, "snapshot-merge origin cow P 8");
        channel.detach(written);
        registry.remove(&snapshot, false).unwrap();
    } else {
        throttle(&snapshot);
    }
    for _ in 0..4 {
        channel.poll();
    }
    let before = domain.clock().now();
    if remove && merged {
        registry.remove(&top, false).unwrap();
    } else {
        top.suspend(SuspendOptions::default(), &|| false).unwrap();
    }
    let took = domain.clock().now().since(before);
    settle(&mut left);
    took
}

#[test]
fn a_suspension_waits_for_no_throttle() {
    for (merged, remove) in [(false, false), (true, false), (true, true)] {
        let (free, throttled) = (suspension(100, merged, remove), suspension(1, merged, remove));
        println!("merged {merged}, removed {remove}: {throttled} ns, {free} without a throttle");
        assert!(throttled <= 3 * free, "merged {merged}, removed {remove}: {throttled} ns, {free} without a throttle");
    }
}
