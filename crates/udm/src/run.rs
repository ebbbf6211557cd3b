//! `udm run`: the devices of one table in one foreground process.

use crate::daemon::{Stop, flush_all, parse_address, tcp_uri};
use crate::exports::MappedExports;
use crate::world;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use udm_client::dmsetup::LocalTransport;
use udm_core::Registry;
use udm_export::Listen;
use udm_export::nbd::Server;
use udm_io::Domain;
use udm_nbd::uri::{Endpoint, Uri};

/// How long clients may take to receive their last answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// What `udm run` is given.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// Serve every device on this unix socket, by its name [default: one in the temporary directory]
    #[arg(long, value_name = "SOCKET")]
    nbd: Option<PathBuf>,
    /// Serve every device on this TCP address, too; without --nbd, on it alone
    #[arg(long, value_name = "ADDR[:PORT]")]
    tcp: Option<String>,
    /// The devices, as `dmsetup create --concise` takes them: NAME,UUID,MINOR,FLAGS,TABLE[,TABLE…][;…]
    #[arg(value_name = "CONCISE")]
    concise: String,
}

/// Makes the devices, serves them until SIGINT or SIGTERM, and takes them down. Returns the exit code.
pub(crate) fn run(args: &RunArgs) -> Result<u8, String> {
    let stop = Stop::new().and_then(|stop| stop.on_signals().map(|()| stop));
    let stop = stop.map_err(|e| format!("cannot wait for signals: {e}"))?;
    let mut listen = Vec::new();
    if let Some(tcp) = &args.tcp {
        listen.push(Listen::Tcp(parse_address(tcp)?));
    }
    match &args.nbd {
        Some(path) => listen.push(Listen::Unix(std::path::absolute(path).map_err(|e| e.to_string())?)),
        None if args.tcp.is_none() => {
            listen.push(Listen::Unix(std::env::temp_dir().join(format!("udm-run-{}.sock", std::process::id()))));
        }
        None => {}
    }
    let registry = udm_stack::registry(Domain::default());
    if !create(&registry, &args.concise) {
        return Ok(1);
    }
    if !registry.list().iter().any(|md| md.info().active) {
        return Err(format!(
            "nothing to serve: {:?} names no device; expected NAME,UUID,MINOR,FLAGS,TABLE, as 'disk,,,,0 2097152 ram'",
            args.concise
        ));
    }
    let builder = listen.into_iter().fold(Server::builder(), |builder, l| builder.listen(l));
    let exports = Arc::new(MappedExports::all(&registry));
    let server = builder.start(registry.domain(), exports).map_err(|e| e.to_string())?;
    announce(&registry, &server);
    stop.wait(None);
    server.shut_down(PATIENCE);
    flush_all(&registry, PATIENCE);
    Ok(0)
}

/// The devices of the concise specification; what is wrong has been told when this is false.
fn create(registry: &Registry, concise: &str) -> bool {
    let cwd = std::env::current_dir().unwrap_or_default();
    let mut transport = LocalTransport::new(registry, cwd);
    let argv = ["udm run", "create", "--concise", concise].map(Into::into).to_vec();
    world::dmsetup(argv, &mut transport, PathBuf::from("/dev/mapper")) == 0
}

/// Tells where the devices are, and how to read one.
fn announce(registry: &Registry, server: &Server) {
    let names: Vec<String> = registry.list().iter().filter(|md| md.info().active).map(|md| md.device_name()).collect();
    let uri = |listen: &Listen, name: &str| match listen {
        Listen::Unix(path) => Uri { endpoint: Endpoint::Unix(path.clone()), export: name.to_owned() }.to_string(),
        Listen::Tcp(address) => tcp_uri(*address, name),
    };
    let mut text = String::new();
    for name in &names {
        for listen in server.bound() {
            text += &format!("{name}: {}\n", uri(listen, name));
        }
    }
    if let (Some(name), Some(listen)) = (names.first(), server.bound().first()) {
        text += &format!("Read it with: nbdcopy '{}' FILE\nEnd it with Ctrl-C.\n", uri(listen, name));
    }
    // One write, so that a reader of the pipe has all of it at once.
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
