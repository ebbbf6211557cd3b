//! A memory device over vhost-user and a front end in one thread's turns, for counting instructions:
//! `valgrind --tool=callgrind target/release/examples/vhost_mem REQUESTS DEPTH`. With `serve SOCKET MODE [MIB]` it
//! serves until killed. With `limit SECONDS` it serves nobody: two threads wake each other in turns by eventfds, and it
//! prints how many turns a second there were, which is what a request by interrupt at depth 1 cannot be faster than.

use rustix::event::{EventfdFlags, eventfd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use udm_base::Sectors;
use udm_export::NamedDevice;
use udm_export::vhost_user::Server;
use udm_export::vhost_user::front::{FrontEnd, FrontOptions, Kind, Part};
use udm_io::{Domain, MemoryDevice};

fn serve(path: &Path, mode: &str, mib: u64) -> Result<Server, Box<dyn std::error::Error>> {
    let exports = Arc::new(vec![NamedDevice("mem".into(), Arc::new(MemoryDevice::new(Sectors::in_bytes(mib << 20))?))]);
    Ok(Server::builder(path).queues(1).mode(mode.parse()?).start(&Domain::default(), exports, "mem")?)
}

/// Turns of two threads that sleep and wake each other, a second.
fn limit(time: Duration) -> Result<f64, Box<dyn std::error::Error>> {
    let bell = || eventfd(0, EventfdFlags::CLOEXEC);
    let (there, back) = (bell()?, bell()?);
    let (their_there, their_back) = (there.try_clone()?, back.try_clone()?);
    let answer = move || {
        let mut count = [0; 8];
        // More than one is the sign to end.
        while rustix::io::read(&their_there, &mut count).is_ok() && u64::from_ne_bytes(count) == 1 {
            if rustix::io::write(&their_back, &1u64.to_ne_bytes()).is_err() {
                return;
            }
        }
    };
    let domain = Domain::default();
    let joiner = domain.executor().spawn("answer", Box::new(answer))?;
    let start = domain.clock().now();
    let (mut turns, mut taken) = (0u64, 0);
    while u128::from(taken) < time.as_nanos() {
        rustix::io::write(&there, &1u64.to_ne_bytes())?;
        rustix::io::read(&back, &mut [0; 8])?;
        turns += 1;
        taken = domain.clock().now().since(start);
    }
    rustix::io::write(&there, &2u64.to_ne_bytes())?;
    joiner.join();
    Ok(turns as f64 * 1e9 / taken as f64)
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
        ["limit", seconds] => {
            println!("{:.1}", limit(Duration::from_secs_f64(seconds.parse()?))?);
            Ok(())
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
        _ => {
            Err("usage: vhost_mem REQUESTS DEPTH, vhost_mem serve SOCKET MODE [MIB], or vhost_mem limit SECONDS".into())
        }
    }
}
