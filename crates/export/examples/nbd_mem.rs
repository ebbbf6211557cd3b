//! A memory device on a unix socket, for benchmarks: `nbd_mem SOCKET [MIB]`. Serves until killed.

use std::sync::Arc;
use udm_base::Sectors;
use udm_export::nbd::{Client, Export, ExportInfo, Exports, Listen, OpenError, Server};
use udm_io::{BlockDevice, Domain, MemoryDevice};

struct One(Arc<MemoryDevice>);

impl Exports for One {
    fn list(&self) -> Vec<ExportInfo> {
        vec![self.info()]
    }

    fn open(&self, name: &str, _: &Client) -> Result<Box<dyn Export>, OpenError> {
        match name {
            "" | "mem" => Ok(Box::new(Self(self.0.clone()))),
            _ => Err(OpenError::Unknown(name.into())),
        }
    }
}

impl Export for One {
    fn info(&self) -> ExportInfo {
        ExportInfo { name: "mem".into(), description: "memory".into() }
    }

    fn device(&self) -> Arc<dyn BlockDevice> {
        self.0.clone()
    }

    fn read_only(&self) -> bool {
        false
    }
}

fn main() -> std::io::Result<()> {
    let mut args = std::env::args().skip(1);
    let socket = args.next().ok_or_else(|| std::io::Error::other("usage: nbd_mem SOCKET [MIB]"))?;
    let mib = args.next().and_then(|mib| mib.parse().ok()).unwrap_or(1024u64);
    let device = Arc::new(MemoryDevice::new(Sectors::new(mib * 2048))?);
    let server =
        Server::builder().listen(Listen::Unix(socket.into())).start(&Domain::default(), Arc::new(One(device)))?;
    for bound in server.bound() {
        println!("listening on {bound}");
    }
    loop {
        std::thread::park();
    }
}
