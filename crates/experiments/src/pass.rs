//! One thread's requests at given places of a device, as fast as it takes them.

use crate::experiment::Setting;
use std::path::Path;
use std::sync::Arc;
use udm_bench::lane::ChannelLane;
use udm_bench::queue::Queue;
use udm_bench::{CompletionMode, Error};
use udm_core::{MappedDevice, Registry, SuspendOptions, TableLine};
use udm_io::{Op, Status};

/// What a refusal says: which device, and why.
pub(super) fn refused(what: &str) -> impl Fn(udm_core::Error) -> Error + '_ {
    move |e| Error::Stack(format!("{what}: {}", e.message))
}

/// Makes a device live.
pub(super) fn device(registry: &Registry, name: &str, table: &str) -> Result<Arc<MappedDevice>, Error> {
    let md = registry.create(name, "", None).map_err(refused(name))?;
    load(&md, name, table)?;
    Ok(md)
}

/// Gives a device a table, also one that is live.
pub(super) fn load(md: &Arc<MappedDevice>, name: &str, table: &str) -> Result<(), Error> {
    let lines = TableLine::parse_all(table).map_err(|e| Error::Stack(format!("{name}: {e}")))?;
    md.load(&lines, false, Path::new("/")).map_err(refused(name))?;
    md.resume(SuspendOptions::default(), &|| false).map_err(refused(name))
}

/// Does a request of `len` bytes at each of these bytes, `depth` at a time. Gives nanoseconds for each. Writes write no
/// zeroes.
pub(super) fn pass(
    setting: &Setting<'_>,
    md: &Arc<MappedDevice>,
    op: Op,
    order: &[u64],
    len: usize,
    depth: usize,
) -> Result<f64, Error> {
    let system = |source| Error::System { what: "a channel".to_owned(), source };
    let channel = setting.domain.channel().map_err(system)?;
    let lane = ChannelLane::new(channel, md.clone(), depth, CompletionMode::Interrupt);
    let clock = setting.domain.clock();
    let mut next = order.iter();
    let mut bad = None;
    let fill = |memory: &mut [u8]| memory.fill(0x5a);
    let nanos = Queue::run(lane, depth, len, fill, |queue, slots| {
        let start = clock.now();
        queue.pump(slots, |queue, slot, status: Option<Status>| {
            if let Some(status) = status.filter(|status| !status.is_ok()) {
                bad = Some(status);
            }
            if let Some(at) = next.next().filter(|_| bad.is_none()) {
                queue.submit(slot, op, *at);
            }
            Ok::<(), std::io::Error>(())
        })?;
        Ok(clock.now().since(start))
    });
    let nanos: u64 = nanos.map_err(system)?;
    match bad {
        Some(status) => {
            let (device, op) = (md.device_name(), if op == Op::Read { "read" } else { "write" });
            Err(Error::Io { device, op, offset: order[0], bytes: len, status })
        }
        None => Ok(nanos as f64 / order.len() as f64),
    }
}
