//! A memory device on a unix socket, for benchmarks: `nbd_mem SOCKET [MIB]`. Serves until killed.

use std::sync::Arc;
use udm_base::Sectors;
use udm_export::nbd::Server;
use udm_export::{Listen, NamedDevice};
use udm_io::{Domain, MemoryDevice};

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let socket = args.next().ok_or_else(|| std::io::Error::other("usage: nbd_mem SOCKET [MIB]"))?;
    let mib = args.next().and_then(|mib| mib.parse().ok()).unwrap_or(1024u64);
    let device = Arc::new(MemoryDevice::new(Sectors::new(mib * 2048))?);
    let exports = Arc::new(vec![NamedDevice("mem".into(), device)]);
    let server = Server::builder().listen(Listen::Unix(socket.into())).start(&Domain::default(), exports)?;
    for bound in server.bound() {
        println!("listening on {bound}");
    }
    loop {
        std::thread::park();
    }
}
