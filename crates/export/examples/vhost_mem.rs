//! A memory device over vhost-user and a front end in one thread's turns, for counting instructions:
//! `valgrind --tool=callgrind target/release/examples/vhost_mem REQUESTS DEPTH`. With `serve SOCKET MODE [MIB]` it serves until killed.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use udm_base::Sectors;
use udm_export::nbd::{Client, Export, ExportInfo, Exports, OpenError};
use udm_export::vhost_user::Server;
use udm_export::vhost_user::front::{FrontEnd, FrontOptions, Kind, Part};
use udm_io::{BlockDevice, Domain, MemoryDevice};

struct One(Arc<MemoryDevice>);

impl Exports for One {
    fn list(&self) -> Vec<ExportInfo> {
        vec![self.info()]
    }
    fn open(&self, _: &str, _: &Client) -> Result<Box<dyn Export>, OpenError> {
        Ok(Box::new(Self(self.0.clone())))
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

fn serve(path: &Path, mode: &str, mib: u64) -> Result<Server, Box<dyn std::error::Error>> {
    let exports = Arc::new(One(Arc::new(MemoryDevice::new(Sectors::in_bytes(mib << 20))?)));
    Ok(Server::builder(path).queues(1).mode(mode.parse()?).start(&Domain::default(), exports, "mem")?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", socket, mode, ref mib @ ..] => {
            let _server = serve(Path::new(socket), mode, mib.first().map_or(Ok(1024), |mib| mib.parse())?)?;
            loop {
                std::thread::sleep(Duration::from_secs(3600));
            }
        }
        [requests, depth] => {
            let (requests, depth): (u64, u64) = (requests.parse()?, depth.parse()?);
            let path = std::env::temp_dir().join(format!("vhost-mem-{}", std::process::id()));
            let _server = serve(&path, "interrupt", 64)?;
            let options = FrontOptions { queue_size: 256, memory: depth << 12, ..FrontOptions::default() };
            let (front, mut queues) = FrontEnd::connect(&path, options)?;
            let queue = &mut queues[0];
            let mut sent = 0;
            let mut done = 0;
            while done < requests {
                while sent < requests && sent - done < depth {
                    let data = [Part { guest: front.data_guest((sent % depth) << 12), len: 4096 }];
                    queue.submit(Kind::Read, sent * 8 % (64 << 11), &data, sent);
                    sent += 1;
                }
                queue.kick();
                let before = done;
                while queue.completed().is_some() {
                    done += 1;
                }
                if done == before {
                    queue.wait(Duration::from_secs(10))?;
                }
            }
            Ok(())
        }
        _ => Err("usage: vhost_mem REQUESTS DEPTH, or vhost_mem serve SOCKET MODE [MIB]".into()),
    }
}
