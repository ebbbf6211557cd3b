//! The daemon's side of a conversation.

use super::{
    DebugDump, DeviceStats, ExportEntry, Hello, HostDevice, MAX_LINE, NodeEntry, NodeKind, Request, Underway,
    UnderwayGuard, VERSION, VhostUserExport, set_option,
};
use serde_json::{Value, json};
use udm_base::Errno;
use udm_core::{Error, MappedDevice, Registry};

/// What a request has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Changed {
    /// The device of that minor number.
    Device(u32),
    /// Where devices can be reached.
    Exports,
}

/// What the daemon has to offer. Called from many threads; may block.
pub trait Service: Send + Sync {
    /// The devices.
    fn registry(&self) -> &Registry;
    /// Who answers.
    fn hello(&self) -> Hello;
    /// Where devices can be reached.
    fn exports(&self) -> Vec<ExportEntry>;
    /// Serves the device of that name on a TCP address.
    ///
    /// # Errors
    /// ENXIO without such a device; EINVAL for an address that is none; what the system says to listening there.
    fn add_export(&self, name: &str, tcp: &str) -> Result<ExportEntry, Error>;
    /// Serves the device of that name over vhost-user.
    ///
    /// # Errors
    /// ENXIO without such a device; EINVAL for numbers that cannot be; what the system says to listening there.
    fn add_vhost_user(&self, name: &str, at: &VhostUserExport) -> Result<ExportEntry, Error>;
    /// Ends exports over TCP and vhost-user of a device: at one address, on one socket, or at all. Returns how many
    /// there were.
    ///
    /// # Errors
    /// ENXIO when there were none.
    fn remove_export(&self, name: &str, tcp: Option<&str>, vhost_user: Option<&str>) -> Result<usize, Error>;
    /// The devices that are in the file system.
    fn nodes(&self) -> Vec<NodeEntry> {
        Vec::new()
    }
    /// Puts the device of that name into the file system. `None` when it is to have no node. A service without nodes
    /// need not have these three.
    ///
    /// # Errors
    /// ENXIO without such a device; EOPNOTSUPP for what cannot be had here, with what to do.
    fn add_node(&self, name: &str, kind: NodeKind, mapper: bool) -> Result<Option<NodeEntry>, Error> {
        let _ = (kind, mapper);
        Err(Error::new(Errno::EOPNOTSUPP, format!("{name}: there are no nodes here")))
    }
    /// Takes the device of that name out of the file system.
    ///
    /// # Errors
    /// ENXIO without such a node; EBUSY for a block device that somebody has open.
    fn remove_node(&self, name: &str) -> Result<(), Error> {
        Err(Error::new(Errno::ENXIO, format!("{name} has no node")))
    }
    /// Commands under way.
    fn underway(&self) -> Vec<Underway>;
    /// A request begins, which is to be in that list as long as what is returned lives. `device` is empty for all.
    fn begin(&self, command: &str, device: &str, pid: Option<u32>) -> Option<UnderwayGuard<'_>>;
    /// Who waits for what. Never waits for long itself.
    fn debug(&self) -> DebugDump {
        DebugDump::of(self.registry(), self.underway())
    }
    /// The last lines of the log, at most `lines`.
    fn log_tail(&self, lines: usize) -> Vec<String>;
    /// Called before something changes that is to be remembered.
    ///
    /// # Errors
    /// It could not be remembered: nothing may change.
    fn may_change(&self) -> Result<(), Error>;
    /// Something that is to be remembered has changed: a device, or where devices can be reached.
    ///
    /// # Errors
    /// It is not remembered.
    fn changed(&self, what: Changed) -> Result<(), Error>;
    /// Why the device has an error table in the place of its own, if it has.
    fn lost(&self, device: &MappedDevice) -> Option<String>;
    /// Whether another daemon, which passes things on by that version, may go on in the place of this one.
    ///
    /// # Errors
    /// Why not.
    fn may_replace(&self, version: u32) -> Result<(), Error>;
    /// Begins to end the daemon. Does not wait for it. `forget`: the next one is to begin without devices.
    fn shut_down(&self, forget: bool);
}

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asker {
    /// Its hello has come.
    pub greeted: bool,
    /// Its process, if that is known.
    pub pid: Option<u32>,
}

/// What follows an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Another request.
    Request,
    /// Nothing: where the next request would begin is not known.
    HangUp,
    /// The client is another daemon, which goes on in the place of this one: what follows on the stream is theirs.
    Replace,
}

/// Answers a line, which may have its newline, with one; whether the client's hello has come, in this line or before,
/// is noted. Blocks as long as the request takes.
pub fn respond(line: &[u8], service: &dyn Service, asker: &mut Asker) -> (String, Next) {
    let broken = |message: String| (refusal(Errno::EPROTO, &message), Next::HangUp);
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.len() >= MAX_LINE {
        return broken(format!("a line has more than {MAX_LINE} bytes"));
    }
    let Ok(line) = std::str::from_utf8(line) else { return broken("a line is not UTF-8".into()) };
    let mut replace = false;
    match answer(line, asker, &mut replace, service) {
        Ok(value) => {
            let next = if replace { Next::Replace } else { Next::Request };
            (format!("{}\n", json!({ "ok": value })), next)
        }
        Err(error) => (refusal(error.errno, &error.message), Next::Request),
    }
}

/// The line that refuses a request.
pub fn refusal(errno: Errno, message: &str) -> String {
    format!("{}\n", json!({ "error": { "errno": errno.get(), "message": message } }))
}

fn answer(line: &str, asker: &mut Asker, replace: &mut bool, service: &dyn Service) -> Result<Value, Error> {
    let request: Request = serde_json::from_str(line)
        .map_err(|e| Error::new(Errno::EPROTO, format!("the request cannot be understood: {e}")))?;
    match &request {
        Request::Hello { version: VERSION } => {
            asker.greeted = true;
            Ok(json!(service.hello()))
        }
        Request::Hello { version } => {
            let message = format!("the client speaks version {version} of the protocol, this daemon {VERSION}");
            Err(Error::new(Errno::EPROTO, message))
        }
        _ if !asker.greeted => {
            let message = format!("expected {{\"op\":\"hello\",\"version\":{VERSION}}} before any other request");
            Err(Error::new(Errno::EPROTO, message))
        }
        request => {
            let _underway = request.command().and_then(|(command, device)| service.begin(command, device, asker.pid));
            let answer = perform(request, service)?;
            *replace = matches!(request, Request::Replace { .. });
            Ok(answer)
        }
    }
}

fn perform(request: &Request, service: &dyn Service) -> Result<Value, Error> {
    let device = |name: &str| {
        let missing = || Error::new(Errno::ENXIO, format!("no device has the name {name:?}"));
        service.registry().by_name(name).ok_or_else(missing)
    };
    let nodes = std::cell::OnceCell::new();
    let stats = |md: &MappedDevice| {
        let name = md.device_name();
        let node = nodes.get_or_init(|| service.nodes()).iter().find(|node| node.name == name).cloned();
        DeviceStats { lost: service.lost(md), node, ..DeviceStats::of(md) }
    };
    match request {
        Request::Hello { .. } | Request::Ping => Ok(Value::Null),
        Request::Stats { name: Some(name) } => Ok(json!({ "devices": [stats(&*device(name)?)] })),
        Request::Stats { name: None } => {
            let devices: Vec<_> = service.registry().list().iter().map(|md| stats(md)).collect();
            Ok(json!({ "devices": devices }))
        }
        Request::Set { name, key, value } => {
            let md = device(name)?;
            service.may_change()?;
            set_option(&md, key, value)?;
            service.changed(Changed::Device(md.devt().minor))?;
            Ok(Value::Null)
        }
        Request::HostDevices => {
            let devices = service.registry().host_devices().into_iter();
            let devices: Vec<_> =
                devices.map(|(dev, name)| HostDevice { major: dev.major, minor: dev.minor, name }).collect();
            Ok(json!({ "devices": devices }))
        }
        Request::ExportList => Ok(json!({ "exports": service.exports() })),
        Request::ExportAdd { name, tcp } => {
            service.may_change()?;
            let entry = service.add_export(name, tcp)?;
            service.changed(Changed::Exports)?;
            Ok(json!(entry))
        }
        Request::ExportAddVhostUser { name, at } => {
            service.may_change()?;
            let entry = service.add_vhost_user(name, at)?;
            service.changed(Changed::Exports)?;
            Ok(json!(entry))
        }
        Request::ExportRemove { name, tcp, vhost_user } => {
            service.may_change()?;
            let removed = service.remove_export(name, tcp.as_deref(), vhost_user.as_deref())?;
            service.changed(Changed::Exports)?;
            Ok(json!({ "removed": removed }))
        }
        Request::NodeList => Ok(json!({ "nodes": service.nodes() })),
        Request::NodeAdd { name, kind, mapper } => {
            let minor = device(name)?.devt().minor;
            service.may_change()?;
            let entry = service.add_node(name, *kind, *mapper)?;
            service.changed(Changed::Device(minor))?;
            Ok(json!(entry))
        }
        Request::NodeRemove { name } => {
            service.may_change()?;
            service.remove_node(name)?;
            // Its device may have gone before it.
            let minor = service.registry().by_name(name).map(|md| md.devt().minor);
            minor.map_or(Ok(()), |minor| service.changed(Changed::Device(minor)))?;
            Ok(Value::Null)
        }
        Request::Progress => Ok(json!({ "underway": service.underway() })),
        Request::Debug => Ok(json!(service.debug())),
        Request::Log { lines } => Ok(json!({ "lines": service.log_tail(*lines) })),
        Request::Replace { version } => {
            service.may_replace(*version)?;
            Ok(Value::Null)
        }
        Request::Shutdown { forget } => {
            service.shut_down(*forget);
            Ok(Value::Null)
        }
    }
}
