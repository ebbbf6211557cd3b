//! Who waits for what: devices, what they are busy with, and what lies in the channels. For people; nothing on a bio's
//! way is done for it, and nothing here waits for a lock that may be held for long.

use crate::registry::RegistryCore;
use crate::{MappedDevice, Registry};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;
use udm_base::{DevT, Sector, Sectors};
use udm_io::{BlockDevice, ChannelReport, Op, Outstanding};
use udm_kcopyd::{Workqueue, WorkqueueReport};

/// Everything.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The devices, in the order of their names.
    pub devices: Vec<DeviceReport>,
    /// What lies beneath and waits for somebody else.
    pub beneath: Vec<(String, Outstanding)>,
    /// Channels in which something lies, or that could not be looked into.
    pub channels: Vec<ChannelUse>,
    /// How many channels could still be had.
    pub channels_left: usize,
    /// What the workqueue has to do.
    pub workqueue: WorkqueueReport,
    /// Locks that could not be had in a tenth of a second.
    pub locks: Vec<String>,
}

/// A mapped device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceReport {
    /// Its name; empty when it could not be had.
    pub name: String,
    /// Its number.
    pub devt: DevT,
    /// `running`, `suspended`, `empty`, or `removed`.
    pub state: &'static str,
    /// Bios in flight.
    pub in_flight: u64,
    /// Of these, bios that wait for clones.
    pub parked: u64,
    /// Bios that are held until it is resumed.
    pub held: usize,
    /// Bios that have arrived since it was made.
    pub arrived: u64,
    /// What it is busy with, and for how many nanoseconds.
    pub doing: Vec<(String, u64)>,
    /// What its targets tell of themselves.
    pub notes: Vec<(&'static str, String)>,
}

/// What lies in a channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChannelUse {
    /// The channel without its bios.
    pub channel: ChannelReport,
    /// Its bios, those of one device and level and operation together.
    pub bios: Vec<BioGroup>,
}

/// Bios that are alike.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BioGroup {
    /// The device that they were sent to last; empty when it is not known any more.
    pub device: String,
    /// What they do.
    pub op: Op,
    /// 0: a submitter's; else clones of that level, or internal bios.
    pub level: usize,
    /// Internal bios.
    pub internal: bool,
    /// How many.
    pub count: usize,
    /// Where the first of them begins, and its length.
    pub first: (Sector, Sectors),
}

/// How often a lock is tried, and how long it is left alone in between.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(1);

/// A lock that is held for moments only, unless something is wrong.
pub(crate) fn patiently<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    for _ in 0..TRIES {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
    None
}

impl Registry {
    /// Looks at everything. Takes at most some tenths of a second, whatever waits. Not from inside a channel.
    pub fn inspect(&self) -> Inspection {
        let core = self.core();
        let mut locks = core.locks_held();
        let devices = core.devices_now().unwrap_or_else(|| {
            locks.push("the list of devices".into());
            Vec::new()
        });
        let reports = devices.iter().map(|md| md.inspect(&mut locks)).collect();
        let mut names = HashMap::new();
        let mut beneath = BTreeMap::new();
        for md in &devices {
            names.insert(address(&**md), md.devt().to_string());
            for dev in md.beneath_now().into_iter().filter(|dev| !is_mapped(&**dev)) {
                names.insert(address(&*dev), dev.name());
                beneath.insert(address(&*dev), dev);
            }
        }
        let beneath = beneath.into_values().filter_map(|dev| Some((dev.name(), dev.outstanding()?))).collect();
        let domain = self.domain();
        let channels = domain.inspect().into_iter().filter_map(|channel| usage(channel, &names)).collect();
        let (channels_left, workqueue) = (domain.channels_left(), Workqueue::of(domain).inspect());
        Inspection { devices: reports, beneath, channels, channels_left, workqueue, locks }
    }

    /// What a command on a device waits for, as far as it can be told: what the device is busy with, and what beneath
    /// it holds bios or does not answer. `key`: its name, uuid or number; one that is being removed is found, too.
    /// `None` when there is nothing to tell. Takes at most some tenths of a second.
    pub fn waits_for(&self, key: &str) -> Option<String> {
        let number = key.parse().ok();
        let is_meant = |md: &Arc<MappedDevice>| {
            md.names_now().is_some_and(|(name, uuid)| name == key || (!uuid.is_empty() && uuid == key))
                || number.is_some_and(|number| md.devt() == number)
        };
        let md = self.core().devices_now()?.into_iter().find(is_meant)?;
        let mut parts: Vec<String> = md.doing().into_iter().map(|(what, _)| what).collect();
        let report = md.inspect(&mut Vec::new());
        if report.in_flight > 0 && !parts.is_empty() {
            let bios = if report.in_flight == 1 { "bio" } else { "bios" };
            parts.push(format!("{} {bios} of {} in flight", report.in_flight, report.name));
        }
        let mut seen = vec![md.devt()];
        let mut next = md.beneath_now();
        while let Some(dev) = next.pop() {
            match dev.as_any().downcast_ref::<MappedDevice>() {
                Some(below) if !seen.contains(&below.devt()) => {
                    seen.push(below.devt());
                    let report = below.inspect(&mut Vec::new());
                    if report.held > 0 {
                        parts.push(format!("beneath: {} is suspended and holds {} bios", report.name, report.held));
                    }
                    next.extend(below.beneath_now());
                }
                Some(_) => {}
                None => parts.extend(dev.outstanding().and_then(|out| unanswered(&dev.name(), out))),
            }
        }
        parts.dedup();
        Some(parts.join("; ")).filter(|text| !text.is_empty())
    }
}

/// What there is to say of a device beneath that keeps others waiting.
fn unanswered(name: &str, out: Outstanding) -> Option<String> {
    const SECOND: u64 = 1_000_000_000;
    let requests = if out.requests == 1 { "request" } else { "requests" };
    if out.requests > 0 && out.silent_ns >= SECOND {
        let seconds = out.silent_ns / SECOND;
        return Some(format!(
            "beneath: {name} has not answered for {seconds} s, {} {requests} under way",
            out.requests
        ));
    }
    (out.oldest_ns >= SECOND)
        .then(|| format!("beneath: {name} has not answered a request for {} s", out.oldest_ns / SECOND))
}

/// The channel with its bios in groups; `None` when nothing lies in it.
fn usage(mut channel: ChannelReport, names: &HashMap<usize, String>) -> Option<ChannelUse> {
    let mut bios: Vec<BioGroup> = Vec::new();
    for bio in channel.content.iter_mut().flat_map(|content| std::mem::take(&mut content.bios)) {
        let device = names.get(&bio.device).cloned().unwrap_or_default();
        let like =
            |g: &&mut BioGroup| (&g.device, g.op, g.level, g.internal) == (&device, bio.op, bio.level, bio.internal);
        match bios.iter_mut().find(like) {
            Some(group) => group.count += 1,
            None => bios.push(BioGroup {
                device,
                op: bio.op,
                level: bio.level,
                internal: bio.internal,
                count: 1,
                first: (bio.sector, bio.sectors),
            }),
        }
    }
    let idle = channel.content.as_ref().is_some_and(|c| c.parked == 0 && c.untaken == 0 && c.timer.is_none());
    (!idle || !bios.is_empty() || channel.mail || channel.orphan).then_some(ChannelUse { channel, bios })
}

fn is_mapped(dev: &dyn BlockDevice) -> bool {
    dev.as_any().is::<MappedDevice>()
}

fn address(dev: &dyn BlockDevice) -> usize {
    std::ptr::from_ref(dev).cast::<()>() as usize
}

impl RegistryCore {
    /// The registry's own locks that are held for long, which none of them should be.
    fn locks_held(&self) -> Vec<String> {
        let mut held = Vec::new();
        if patiently(&self.loads).is_none() {
            held.push("the lock of tables that are put in place".to_owned());
        }
        if patiently(&self.plans).is_none() {
            held.push("the lock of plans: somebody waits for a section that does not end".to_owned());
        }
        held
    }
}

impl MappedDevice {
    /// How it is. Waits for no lock.
    pub(crate) fn inspect(&self, locks: &mut Vec<String>) -> DeviceReport {
        let (name, tables) = match self.look() {
            Some(found) => found,
            None => {
                locks.push(format!("the control lock of {}", self.devt()));
                Default::default()
            }
        };
        let Some((state, held)) = self.mode_now() else {
            locks.push(format!("the lock of bios held by {}", self.devt()));
            return DeviceReport {
                name,
                devt: self.devt(),
                state: "unknown",
                in_flight: 0,
                parked: 0,
                held: 0,
                arrived: 0,
                doing: self.doing(),
                notes: Vec::new(),
            };
        };
        let (parked, in_flight, arrived) = self.counts().unwrap_or_else(|| {
            locks.push(format!("the lock of paths of {}", self.devt()));
            (0, 0, 0)
        });
        let notes = tables.iter().flat_map(|t| t.attributes()).flat_map(|attributes| attributes.inspect()).collect();
        DeviceReport { name, devt: self.devt(), state, in_flight, parked, held, arrived, doing: self.doing(), notes }
    }

    fn beneath_now(&self) -> Vec<Arc<dyn BlockDevice>> {
        let (_, tables) = self.look().unwrap_or_default();
        tables.iter().flat_map(|t| t.devices()).cloned().collect()
    }
}
