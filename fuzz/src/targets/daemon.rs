//! What a daemon does with what its clients send: whole sessions on both of its sockets, with devices behind them.

use std::path::Path;
use udm_base::Errno;
use udm_control::handler::{Caller, handle};
use udm_control::second::{
    Asker, Changed, ExportEntry, Hello, Next, Service, Underway, UnderwayGuard, VERSION, VhostUserExport, respond,
};
use udm_control::wire::{read_hello, read_request};
use udm_core::{Error, MappedDevice, Registry};
use udm_io::Domain;
use udm_targets::TARGETS;

/// Words of the second protocol.
pub const WORDS: &[&[u8]] = &[
    b"{\"op\":\"hello\",\"version\":1}\n",
    b"\"op\":\"stats\"",
    b"\"op\":\"set\"",
    b"\"key\":\"compile\"",
    b"\"value\":\"0\"",
    b"\"name\":\"vol\"",
    b"\"op\":\"shutdown\"",
    b"}\n",
];

/// Devices that stand on nothing of the host's.
fn registry() -> Registry {
    let nothing = |request: &udm_core::HostRequest<'_>| Err(Error::new(Errno::ENOENT, request.spec));
    Registry::new(Domain::default(), TARGETS, Box::new(nothing))
}

/// A connection to the control socket, whose requests are done.
pub fn fuzz_session(data: &[u8]) {
    let registry = registry();
    // What waits finds that its client has gone.
    let caller = Caller { cwd: Path::new("/"), cancel: &|| true, reap: &|| () };
    let mut stream = data;
    if read_hello(&mut stream).is_err() {
        return;
    }
    while let Ok(Some(request)) = read_request(&mut stream) {
        let outcome = handle(&registry, &caller, request.ioctl_cmd, &request.buf);
        assert!(outcome.answer.errno >= 0);
        assert!(!outcome.answer.buf.is_empty(), "even a refusal has the interface's version");
        assert_eq!(outcome.answer.errno == 0, outcome.answer.detail.is_empty(), "every refusal says why");
    }
    for md in registry.list() {
        assert_eq!(registry.by_devt(md.devt()).map(|d| d.device_name()), Some(md.device_name()));
    }
    // Nobody holds a device but tables, so all can go, those above first.
    while registry.list().iter().filter(|md| registry.remove(md, false).is_ok()).count() > 0 {}
    assert!(registry.list().is_empty(), "what was made can be removed");
}

/// A connection to the second socket.
pub fn fuzz_second(data: &[u8]) {
    let service = Nothing(registry());
    assert!(service.0.create("vol", "", None).is_ok());
    let mut asker = Asker::default();
    for line in data.split(|byte| *byte == b'\n') {
        let (answer, next) = respond(line, &service, &mut asker);
        assert_eq!(answer.lines().count(), 1, "{answer:?}");
        assert!(answer.starts_with("{\"ok\":") || answer.starts_with("{\"error\":"), "{answer}");
        if next != Next::Request {
            break;
        }
    }
}

/// A daemon without sockets.
struct Nothing(Registry);

impl Service for Nothing {
    fn registry(&self) -> &Registry {
        &self.0
    }
    fn hello(&self) -> Hello {
        Hello { version: VERSION, program: "fuzz".into(), pid: 1 }
    }
    fn exports(&self) -> Vec<ExportEntry> {
        Vec::new()
    }
    fn add_export(&self, name: &str, _: &str) -> Result<ExportEntry, Error> {
        Err(Error::new(Errno::EINVAL, name))
    }
    fn add_vhost_user(&self, name: &str, at: &VhostUserExport) -> Result<ExportEntry, Error> {
        let (socket, transport) = (at.socket.clone(), "vhost-user".into());
        Ok(ExportEntry { name: name.into(), transport, uri: format!("vhost-user:{socket}"), address: socket })
    }
    fn remove_export(&self, name: &str, _: Option<&str>, _: Option<&str>) -> Result<usize, Error> {
        Err(Error::new(Errno::ENXIO, name))
    }
    fn underway(&self) -> Vec<Underway> {
        Vec::new()
    }
    fn begin(&self, _: &str, _: &str, _: Option<u32>) -> Option<UnderwayGuard<'_>> {
        None
    }
    fn log_tail(&self, _: usize) -> Vec<String> {
        Vec::new()
    }
    fn may_change(&self) -> Result<(), Error> {
        Ok(())
    }
    fn changed(&self, _: Changed) -> Result<(), Error> {
        Ok(())
    }
    fn lost(&self, _: &MappedDevice) -> Option<String> {
        None
    }
    fn may_replace(&self, _: u32) -> Result<(), Error> {
        Ok(())
    }
    fn shut_down(&self, _: bool) {}
}
