//! Entries for fuzzers: a connection that is fed any bytes, without threads and without a listener.
//!
//! Whatever comes, the connection must not panic, must come to an end once its client has closed, and must give back
//! all memory.

use super::connection::Connection;
use super::inflight::Engine;
use crate::exports::{Client, Export, Exports, NamedDevice, OpenError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use udm_base::Sectors;
use udm_io::{Domain, MemoryDevice};
use udm_nbd::wire::consts::{base_allocation, opt};
use udm_nbd::wire::option::{InfoRequest, MetaRequest, put_option};

/// Feeds a connection from its first byte on.
///
/// # Panics
/// When the connection breaks a promise, or the system has no memory or descriptors left.
pub fn connection(bytes: &[u8]) {
    feed(bytes);
}

/// Feeds a connection that has opened an export of 1 MiB, with structured replies if `structured`.
///
/// # Panics
/// As [`connection`].
pub fn requests(structured: bool, bytes: &[u8]) {
    let mut said = 3u32.to_be_bytes().to_vec();
    if structured {
        put_option(&mut said, opt::STRUCTURED_REPLY, b"");
        let mut data = Vec::new();
        MetaRequest::put(&mut data, "", &[base_allocation::NAME]);
        put_option(&mut said, opt::SET_META_CONTEXT, &data);
    }
    let mut data = Vec::new();
    InfoRequest { name: "", wants_name: false, wants_description: false, wants_block_size: false }.put(&mut data);
    put_option(&mut said, opt::GO, &data);
    said.extend_from_slice(bytes);
    feed(&said);
}

/// One device, whatever the name but `locked`.
struct One(NamedDevice);

impl Exports for One {
    fn list(&self) -> Vec<Arc<dyn Export>> {
        vec![Arc::new(self.0.clone())]
    }

    fn find(&self, name: &str, _: &Client) -> Result<Arc<dyn Export>, OpenError> {
        match name {
            "locked" => Err(OpenError::Unknown(name.to_owned())),
            _ => Ok(Arc::new(self.0.clone())),
        }
    }
}

fn feed(mut bytes: &[u8]) {
    static DOMAIN: OnceLock<Domain> = OnceLock::new();
    let domain = DOMAIN.get_or_init(Domain::default);
    let device = Arc::new(MemoryDevice::new(Sectors::in_bytes(1 << 20)).expect("a mebibyte of memory"));
    let exports = One(NamedDevice("one".into(), device));
    let mut engine = Engine::new(domain, 64 << 20).expect("a channel");
    let (mut client, server) = UnixStream::pair().expect("two descriptors");
    client.set_nonblocking(true).expect("a socket can be set so");
    let mut connection = Connection::new(0, server.into(), Client::Internal, None, engine.channel.now());
    // Every round moves bytes one way or the other, and there is a bounded number of both: a request of 28 bytes is
    // answered with 1 MiB at most.
    let mut idle = 0;
    let mut open = true;
    while !connection.is_over() {
        let mut moved = false;
        while !bytes.is_empty() {
            match client.write(bytes) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The server has hung up.
                Err(_) => bytes = &[],
            }
            moved = true;
        }
        if bytes.is_empty() && std::mem::take(&mut open) {
            // Fails only if the server has hung up already.
            let _ = client.shutdown(std::net::Shutdown::Write);
            moved = true;
        }
        moved |= turn(&mut connection, &mut engine, &exports);
        let mut sink = [0; 65536];
        while client.read(&mut sink).is_ok_and(|got| got > 0) {
            moved = true;
        }
        idle = if moved { 0 } else { idle + 1 };
        assert!(idle < 10, "the connection neither moves nor ends");
    }
    assert_eq!(connection.in_flight(), 0, "a connection that is over has nothing under way");
    connection.close(&mut engine);
    let held = (engine.len(), engine.pool.in_use(), engine.pool.budget.used());
    assert_eq!(held, (0, 0, 0), "memory was not given back");
    engine.pool.trim();
    assert!(!engine.pool.is_warm() && engine.pool.chunks_in_use() == 0, "a chunk was not given back");
}

/// What a worker does with an event.
fn turn(connection: &mut Connection, engine: &mut Engine, exports: &dyn Exports) -> bool {
    let before = connection.unsent();
    let mut moved = false;
    match connection.receive(engine, exports) {
        Ok(more) => moved |= more,
        Err(_) => connection.end(engine),
    }
    engine.channel.poll();
    while let Some(finished) = engine.next_finished() {
        connection.finish(finished, engine);
        moved = true;
    }
    while let Some((_, long, extents)) = engine.next_answer() {
        connection.answered(long, &extents, engine);
        moved = true;
    }
    connection.send(engine);
    if connection.wants_turn(engine) {
        connection.go_on(engine);
        moved = true;
    }
    if connection.resume(engine, exports).is_err() {
        connection.end(engine);
    }
    connection.send(engine);
    moved || connection.is_waiting() || connection.unsent() != before
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use udm_nbd::wire::request::{REQUEST_LEN, Request};

    #[test]
    fn a_whole_session_comes_to_an_end() {
        let mut bytes = Vec::new();
        for (kind, length) in [(0, 4096), (1, 512), (3, 0), (7, 4096), (1, 1 << 20), (2, 0)] {
            bytes.extend_from_slice(&Request { flags: 0, kind, cookie: 1, offset: 0, length }.encode());
            bytes.resize(bytes.len() + if kind == 1 { length as usize } else { 0 }, 5);
        }
        for structured in [false, true] {
            requests(structured, &bytes);
            for end in (0..REQUEST_LEN * 4).chain([bytes.len() - 40, bytes.len() - 28]) {
                requests(structured, &bytes[..end]);
            }
        }
    }

    proptest! {
        #[test]
        fn any_requests(
            all in proptest::collection::vec(
                (0u16..10, 0u16..32, 0u64..3000, 0u32..2100, any::<bool>(), 0usize..3000), 0..40),
            structured in any::<bool>(),
        ) {
            let mut bytes = Vec::new();
            for (kind, flags, sector, sectors, odd, payload) in all {
                let length = sectors * 512 + u32::from(odd);
                bytes.extend_from_slice(
                    &Request { flags, kind, cookie: sector, offset: sector * 512, length }.encode());
                // Mostly whole payloads: otherwise the first write would swallow all the rest.
                let payload = if payload < 2950 { length as usize } else { payload };
                bytes.resize(bytes.len() + if kind == 1 { payload } else { 0 }, 5);
            }
            requests(structured, &bytes);
        }

        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            connection(&bytes);
            requests(true, &bytes);
        }
    }
}
