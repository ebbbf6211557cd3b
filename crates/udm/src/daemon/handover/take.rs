//! The new daemon's side.

use super::give::{Counts, FirstWords};
use super::{CLAIM, HandOverMessage, Link, VERSION};
use crate::daemon::beneath::Beneath;
use crate::daemon::lost::LostDevices;
use crate::daemon::own_writes;
use crate::daemon::restore::{Maker, Problem, restore};
use crate::daemon::secret::{self, HIDDEN};
use crate::daemon::state::State;
use crate::daemon::tcp::TcpExports;
use crate::greet::greeted;
use crate::places::Places;
use rustix::process::{Resource, getrlimit};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::io::{Read, Write};
use std::mem::ManuallyDrop;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};
use udm_base::Errno;
use udm_control::second::{self, ClientError};
use udm_core::{Error, LoadOptions, MappedDevice, Polls, Registry, TableLine, TableSlot, Totals};
use udm_files::Claims;
use udm_io::{BlockDevice, Domain};

/// How long the old daemon may take to stop and to give everything.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long what lies beneath may still be locked: by a process that is just ending.
const LOCKED: Duration = Duration::from_secs(5);
/// How long servers beneath may take to answer, all together: longer than one has, whose own error tells more.
const BENEATH: Duration = Duration::from_secs(25);
/// Files that a daemon may have open for a while, beside those that the one before has, when it takes over.
const BESIDE: usize = 32;
/// As many messages come at most.
const MAX_MESSAGES: usize = 1 << 20;

/// What was taken over. Nothing of it serves anybody yet.
pub(crate) struct Taken {
    pub(crate) registry: Registry,
    pub(crate) claims: Claims,
    /// None yet, but where the devices' opener looks.
    pub(crate) tcp: TcpExports,
    pub(crate) lost: LostDevices,
    pub(crate) state: State,
    /// What is left of the messages, by their kinds.
    pub(crate) messages: BTreeMap<String, Vec<HandOverMessage>>,
    pub(crate) problems: Vec<Problem>,
}

impl Taken {
    /// The messages of a kind.
    pub(crate) fn all(&mut self, kind: &str) -> Vec<HandOverMessage> {
        self.messages.remove(kind).unwrap_or_default()
    }

    /// The descriptor of the one that is called so.
    pub(crate) fn fd(&mut self, kind: &str, name: &str) -> Result<OwnedFd, String> {
        let found = self.messages.get_mut(kind).and_then(|all| all.iter_mut().find(|message| message.name == name));
        found.ok_or_else(|| format!("{kind} {name:?} has not come"))?.fd()
    }
}

/// What came from the daemon of the directory, and what is between the two until it has gone.
pub(crate) struct Asked {
    pub(crate) link: Link,
    pub(crate) messages: Vec<HandOverMessage>,
    pub(crate) liveness: LivenessPipe,
}

/// Asks the daemon of the directory for everything; `None` when no daemon runs.
pub(crate) fn ask_for(places: &Places) -> Result<Option<Asked>, String> {
    let hello = second::Request::Hello { version: second::VERSION };
    let greet = |stream: UnixStream| ask(&stream, &hello).map(|()| stream);
    let Some(stream) = greeted(places, greet).map_err(|e| e.to_string())? else { return Ok(None) };
    ask(&stream, &second::Request::Replace { version: VERSION }).map_err(|e| e.to_string())?;
    let hung_up = |e: std::io::Error| format!("the daemon does not answer: {e}");
    let link = Link::new(stream);
    let first = link.receive(PATIENCE).map_err(hung_up)?;
    if first.kind == "refused" {
        return Err(first.read()?);
    }
    if let Err(why) = has_room(&link).and_then(|()| understand(&first)) {
        let _ = link.send(&HandOverMessage::new("refused", "", &why)?, PATIENCE);
        return Err(why);
    }
    let ready = HandOverMessage::new("ready", "", ())?;
    // Where the old one cannot ask the kernel whether this process lives.
    let (ready, liveness) = match LivenessPipe::new() {
        Ok((liveness, pipe)) => (ready.with(pipe), liveness),
        Err(_) => (ready, LivenessPipe(None)),
    };
    link.send(&ready, PATIENCE).map_err(hung_up)?;
    let mut messages = Vec::new();
    loop {
        let message = link.receive(PATIENCE).map_err(hung_up)?;
        match message.kind.as_str() {
            "end" => return Ok(Some(Asked { link, messages, liveness })),
            "refused" => return Err(message.read()?),
            _ if messages.len() == MAX_MESSAGES => return Err("the daemon sends more and more".into()),
            _ => messages.push(message),
        }
    }
}

/// Asks, as a client does that is followed on the stream by messages.
fn ask(mut stream: &UnixStream, request: &second::Request) -> Result<(), ClientError> {
    let mut line = serde_json::to_string(request).map_err(|e| ClientError::Protocol(e.to_string()))?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let answer: serde_json::Value =
        serde_json::from_str(&read_line(stream)?).map_err(|e| ClientError::Protocol(e.to_string()))?;
    match answer.get("error") {
        None => Ok(()),
        Some(error) => {
            let message = error["message"].as_str().unwrap_or("the daemon refuses").to_owned();
            Err(ClientError::Refused { errno: Errno::EIO, message })
        }
    }
}

/// A line, without what follows it: that is messages.
fn read_line(mut stream: &UnixStream) -> std::io::Result<String> {
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            return String::from_utf8(line).map_err(|e| std::io::Error::new(std::io::ErrorKind::InvalidData, e));
        }
        line.push(byte[0]);
        if line.len() > second::MAX_LINE {
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "a line without end"));
        }
    }
}

/// The end of a pipe that tells the old daemon, which has the other end, whether this process lives. Nobody else has
/// it, and to drop it closes nothing: whatever goes wrong here, it lasts as long as the process.
pub(crate) struct LivenessPipe(Option<ManuallyDrop<OwnedFd>>);

impl LivenessPipe {
    /// And the other end.
    fn new() -> std::io::Result<(Self, OwnedFd)> {
        let (read, write) = std::io::pipe()?;
        Ok((Self(Some(ManuallyDrop::new(write.into()))), read.into()))
    }

    /// The old daemon has gone, and nobody asks any more.
    pub(crate) fn cut(self) {
        drop(self.0.map(ManuallyDrop::into_inner));
    }
}

/// Whether this process may open what the running one has open, as far as the system lets it look.
fn has_room(link: &Link) -> Result<(), String> {
    let most = getrlimit(Resource::Nofile).current;
    let open = link.peer().and_then(|pid| Some(std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()));
    match (most, open) {
        (Some(most), Some(open)) if most < (open + BESIDE) as u64 => Err(format!(
            "the running daemon has {open} files open, and this one may open {most} files, of which it needs {BESIDE} beside: \
             raise the limit (`ulimit -n`)"
        )),
        _ => Ok(()),
    }
}

/// Whether this daemon could go on with all of it, as far as that can be told before anything has stopped.
fn understand(first: &HandOverMessage) -> Result<(), String> {
    let FirstWords { version, state, files } = first.read()?;
    if version != VERSION {
        return Err(format!("the running daemon passes things on by version {version}, this one by {VERSION}"));
    }
    let state = State::of_value(state)?;
    let types = udm_stack::registry(Domain::default()).types();
    for device in &state.devices {
        for table in [&device.active, &device.inactive].into_iter().flatten() {
            for line in &table.lines {
                let known = |line: &TableLine| types.iter().any(|target| target.name == line.target);
                match TableLine::parse(line) {
                    Ok(line) if known(&line) || device.lost.is_some() => {}
                    Ok(line) => return Err(format!("{}: this udm has no target {:?}", device.name, line.target)),
                    Err(_) if table.secret => return Err(format!("{}: a table that is none: {HIDDEN}", device.name)),
                    Err(e) => return Err(format!("{}: {e} in {line:?}", device.name)),
                }
            }
        }
    }
    for (name, device, inode) in files {
        let found = std::fs::metadata(&name).map(|meta| (meta.dev(), meta.ino()));
        if found.as_ref().ok() != Some(&(device, inode)) {
            return Err(format!("{name} is not the file that the running daemon has open: it was moved or replaced"));
        }
    }
    Ok(())
}

/// Makes the devices from messages. What could not be made is among the problems, and an error table.
pub(crate) fn take_over(mut messages: Vec<HandOverMessage>, places: &Places) -> Result<Taken, String> {
    let mut by_kind: BTreeMap<String, Vec<HandOverMessage>> = BTreeMap::new();
    let mut state = None;
    let mut memory: Memories = BTreeMap::new();
    for mut message in messages.drain(..) {
        match message.kind.as_str() {
            "state" => state = Some(State::of_value(message.state)?),
            "memory" => {
                let (minor, index, beneath): (u32, usize, String) = message.read()?;
                memory.insert((minor, index), (beneath, message.fd()?));
            }
            _ => by_kind.entry(message.kind.clone()).or_default().push(message),
        }
    }
    let state = state.ok_or("the state has not come")?;
    let domain = own_writes::domain();
    let armed = Arc::new(Armed::default());
    let (claims, tcp) = (Claims::default(), TcpExports::default());
    // Until the devices that they are for are open.
    let _claimed = by_kind
        .remove(CLAIM)
        .unwrap_or_default()
        .into_iter()
        .map(|mut message| claims.adopt(message.fd()?).map_err(|e| format!("a claim on a block device: {e}")));
    let _claimed = _claimed.collect::<Result<Vec<_>, String>>()?;
    let registry = {
        let open = Beneath::new(&domain, &claims, places, tcp.listening()).opener();
        let armed = armed.clone();
        udm_stack::registry_over(
            domain,
            Box::new(move |request| {
                let dev = open(request)?;
                armed.fill(&*dev)?;
                Ok(dev)
            }),
        )
    };
    let lost = LostDevices::default();
    let tables = state.devices.iter().flat_map(|d| [(d.minor, true, &d.active), (d.minor, false, &d.inactive)]);
    let secret = tables.filter(|(.., table)| table.as_ref().is_some_and(|table| table.secret));
    let secret = secret.map(|(minor, live, _)| (minor, live)).collect();
    let maker = WithMemory { memory: Mutex::new(memory), armed, secret, deadline: OnceLock::new() };
    let problems = restore(&registry, &lost, &state, &maker);
    for message in by_kind.remove("counts").unwrap_or_default() {
        let (events, counts): (u32, Vec<Counts>) = message.read()?;
        let made: HashMap<u32, Arc<MappedDevice>> =
            registry.list().into_iter().map(|md| (md.devt().minor, md)).collect();
        for Counts { minor, events, totals } in counts {
            let [reads, read_sectors, writes, write_sectors, others, remapped, cloned, fast, sub, default] = totals;
            let polls = Polls { fast, sub, default };
            if let Some(md) = made.get(&minor) {
                let did = Totals { reads, read_sectors, writes, write_sectors, others, remapped, cloned, polls };
                md.carry(did, events);
            }
        }
        registry.carry_events(events);
    }
    Ok(Taken { registry, claims, tcp, lost, state, messages: by_kind, problems })
}

/// Memory for the `null:` devices that the tables which are being loaded name: one table on each thread, which opens
/// what it names.
#[derive(Default)]
struct Armed(Mutex<HashMap<ThreadId, Laid>>);

/// What is laid out for one table.
#[derive(Default)]
struct Laid {
    /// By the names of the devices.
    files: HashMap<String, VecDeque<OwnedFd>>,
    /// Something of it has been given.
    touched: bool,
}

impl Armed {
    fn lock(&self) -> MutexGuard<'_, HashMap<ThreadId, Laid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lays out memory for the table that this thread loads next, in the place of what there was for another.
    fn lay(&self, files: HashMap<String, VecDeque<OwnedFd>>) {
        self.lock().insert(thread::current().id(), Laid { files, touched: false });
    }

    /// Whether nothing of it has been given.
    fn is_whole(&self) -> bool {
        self.lock().get(&thread::current().id()).is_none_or(|laid| !laid.touched)
    }

    /// How much of it nobody has wanted; nothing is laid out any more.
    fn clear(&self) -> usize {
        self.lock().remove(&thread::current().id()).unwrap_or_default().files.values().map(VecDeque::len).sum()
    }

    /// Gives a device that has just been opened the memory that waits for it: before anybody reads it.
    fn fill(&self, dev: &dyn BlockDevice) -> Result<(), Error> {
        let Some(memory) = dev.memory() else { return Ok(()) };
        let mut all = self.lock();
        let Some(laid) = all.get_mut(&thread::current().id()) else { return Ok(()) };
        let Some(file) = laid.files.get_mut(&dev.name()).and_then(VecDeque::pop_front) else { return Ok(()) };
        laid.touched = true;
        drop(all);
        memory.adopt(file).map_err(|e| Error::new(Errno::of(&e), e.to_string()))
    }
}

/// By the minor of the device, and the place among its table's memories: the device beneath, empty for a target, and
/// the memory.
type Memories = BTreeMap<(u32, usize), (String, OwnedFd)>;

/// Makes tables over the memory of another process.
struct WithMemory {
    memory: Mutex<Memories>,
    armed: Arc<Armed>,
    /// Tables that are to be shown nowhere: the minors of their devices, and whether they are live.
    secret: BTreeSet<(u32, bool)>,
    /// Until then what does not answer is waited for, all devices together, from when that is first so: nobody serves
    /// meanwhile.
    deadline: OnceLock<Instant>,
}

impl WithMemory {
    /// Lays out what is for devices beneath, and returns what is for targets, in order.
    fn arm(&self, minor: u32) -> Vec<OwnedFd> {
        let mut all = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut armed, mut for_targets) = (HashMap::<_, VecDeque<_>>::new(), Vec::new());
        for index in 0.. {
            match all.remove(&(minor, index)) {
                None => break,
                Some((beneath, file)) if beneath.is_empty() => for_targets.push(file),
                Some((beneath, file)) => armed.entry(beneath).or_default().push_back(file),
            }
        }
        drop(all);
        self.armed.lay(armed);
        for_targets
    }
}

impl WithMemory {
    /// Waits for what a process that is just ending still has.
    fn load_when_free(
        &self,
        md: &Arc<MappedDevice>,
        lines: &[TableLine],
        options: &LoadOptions<'_>,
    ) -> Result<(), Error> {
        let deadline = Instant::now() + LOCKED;
        loop {
            match md.load_as(lines, options) {
                // What was laid out for a device that was opened before this one would be gone at another try.
                Err(e) if e.errno == Errno::EBUSY && self.armed.is_whole() && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(10));
                }
                Err(e) if (options.cancel)() => {
                    let message = format!("{}; there are {} s for all that lies beneath", e.message, BENEATH.as_secs());
                    return Err(Error::new(e.errno, message));
                }
                other => return other,
            }
        }
    }
}

impl Maker for WithMemory {
    fn load(&self, md: &Arc<MappedDevice>, lines: &[TableLine], read_only: bool, live: bool) -> Result<(), Error> {
        let for_targets = if live { self.arm(md.devt().minor) } else { Vec::new() };
        let secret = self.secret.contains(&(md.devt().minor, live));
        let cancel = || Instant::now() > *self.deadline.get_or_init(|| Instant::now() + BENEATH);
        let options = LoadOptions { read_only, cwd: Path::new("/"), cancel: &cancel, secret };
        let loaded = self.load_when_free(md, lines, &options);
        let mut unused = self.armed.clear();
        loaded?;
        let table = md.table(TableSlot::Inactive);
        if secret {
            table.iter().for_each(secret::mark);
        }
        let mut memories = table.iter().flat_map(|table| table.target_memories());
        for file in for_targets {
            match memories.next() {
                Some(memory) => memory.adopt(file).map_err(|e| Error::new(Errno::of(&e), e.to_string()))?,
                None => unused += 1,
            }
        }
        if unused > 0 {
            return Err(Error::new(Errno::EINVAL, format!("{unused} pieces of its memory have no place")));
        }
        Ok(())
    }

    fn has_memory(&self) -> bool {
        true
    }
}
