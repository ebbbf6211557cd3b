//! An NBD server that does not do what it should: what a device beneath may be.
//!
//! It has one export of memory, whatever it is asked for, and each connection behaves in one way for as long as it is
//! there.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::watch::lock;

/// How it behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    /// As it should, though each answer takes so many milliseconds.
    Slow(u64),
    /// It takes connections and says nothing.
    Silent,
    /// It sends a byte of its greeting from time to time.
    Dripping,
    /// It hangs up instead of its greeting.
    Gone,
    /// It has blocks of a size that cannot be.
    Impossible,
    /// It answers requests that nobody made.
    Confused,
}

/// Manners in which nobody can have a device.
pub const USELESS: &[Manner] = &[Manner::Silent, Manner::Dripping, Manner::Gone, Manner::Impossible];

/// A server on a unix socket; it ends with the value.
pub struct Liar {
    path: PathBuf,
    over: Arc<AtomicBool>,
    asked: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<UnixStream>>>,
    listener: Option<JoinHandle<()>>,
}

impl Liar {
    /// Serves so many bytes of memory at `path`.
    pub fn new(path: &Path, bytes: usize, manner: Manner) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        let over = Arc::new(AtomicBool::new(false));
        let connections: Arc<Mutex<Vec<UnixStream>>> = Arc::default();
        let asked = Arc::new(AtomicBool::new(false));
        let (ends, known, begun) = (over.clone(), connections.clone(), asked.clone());
        let memory = Arc::new(Mutex::new(vec![0; bytes]));
        let accept = move || {
            let mut served = Vec::new();
            while let Ok((stream, _)) = listener.accept() {
                if ends.load(Ordering::SeqCst) {
                    break;
                }
                begun.store(true, Ordering::SeqCst);
                lock(&known).extend(stream.try_clone());
                let (memory, ends) = (memory.clone(), ends.clone());
                served.push(std::thread::spawn(move || drop(serve(stream, manner, &memory, &ends))));
            }
            lock(&known).drain(..).for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
            served.into_iter().for_each(|thread| drop(thread.join()));
        };
        let listener = Some(std::thread::spawn(accept));
        Ok(Self { path: path.to_owned(), over, asked, connections, listener })
    }

    /// How a table names it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///liar?socket={}", self.path.display())
    }

    /// Whether anybody has come.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }

    /// Hangs up on everybody, and goes on listening.
    pub fn hang_up(&self) {
        lock(&self.connections).drain(..).for_each(|stream| drop(stream.shutdown(std::net::Shutdown::Both)));
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // It is waiting for the next.
        let _ = UnixStream::connect(&self.path);
        self.listener.take().map(JoinHandle::join);
        let _ = std::fs::remove_file(&self.path);
    }
}

fn number<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn nap(milliseconds: u64, over: &AtomicBool) {
    for _ in 0..milliseconds.div_ceil(10) {
        if over.load(Ordering::SeqCst) {
            return;
        }
        std::thread::sleep(Duration::from_millis(milliseconds.min(10)));
    }
}

fn serve(mut stream: UnixStream, manner: Manner, memory: &Mutex<Vec<u8>>, over: &AtomicBool) -> io::Result<()> {
    let mut greeting = b"NBDMAGICIHAVEOPT".to_vec();
    greeting.extend(3u16.to_be_bytes());
    match manner {
        Manner::Gone => return Ok(()),
        // Until the other end, or the harness, has had enough.
        Manner::Silent => return number::<65536>(&mut stream).map(drop),
        Manner::Dripping => {
            for byte in greeting.into_iter().cycle() {
                stream.write_all(&[byte])?;
                nap(2000, over);
                if over.load(Ordering::SeqCst) {
                    break;
                }
            }
            return Ok(());
        }
        Manner::Slow(_) | Manner::Impossible | Manner::Confused => stream.write_all(&greeting)?,
    }
    number::<4>(&mut stream)?;
    negotiate(&mut stream, manner, lock(memory).len() as u64)?;
    loop {
        let head = number::<28>(&mut stream)?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (command, length) = (word(4) & 0xffff, word(24) as usize);
        let offset = (u64::from(word(16)) << 32 | u64::from(word(20))) as usize;
        let mut reply = 0x6744_6698u32.to_be_bytes().to_vec();
        reply.extend([0; 4]);
        reply.extend(&head[8..16]);
        let mut data = Vec::new();
        if command == 1 {
            data.resize(length, 0);
            stream.read_exact(&mut data)?;
        }
        if let Manner::Slow(milliseconds) = manner {
            nap(milliseconds, over);
        }
        {
            let mut memory = lock(memory);
            match (command, memory.get_mut(offset..offset.saturating_add(length))) {
                (0, Some(bytes)) => data = bytes.to_vec(),
                (1, Some(bytes)) => bytes.copy_from_slice(&data),
                (2, _) => return Ok(()),
                (3, _) => {}
                _ => reply[4..8].copy_from_slice(&22u32.to_be_bytes()),
            }
        }
        if manner == Manner::Confused {
            reply[8..16].copy_from_slice(&[0xee; 8]);
        }
        stream.write_all(&reply)?;
        if command == 0 && reply[4..8] == [0; 4] {
            stream.write_all(&data)?;
        }
    }
}

/// Answers options until one of them begins the transmission.
fn negotiate(stream: &mut UnixStream, manner: Manner, size: u64) -> io::Result<()> {
    let reply = |stream: &mut UnixStream, option: u32, kind: u32, data: &[u8]| {
        let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.extend(data);
        stream.write_all(&bytes)
    };
    loop {
        let head = number::<16>(stream)?;
        let word = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (option, length) = (word(8), word(12).min(1 << 16) as usize);
        let mut data = vec![0; length];
        stream.read_exact(&mut data)?;
        match option {
            // GO and INFO.
            6 | 7 => {
                let mut export = vec![0, 0];
                export.extend(size.to_be_bytes());
                // Flags are there, flushes are taken.
                export.extend(5u16.to_be_bytes());
                reply(stream, option, 3, &export)?;
                if manner == Manner::Impossible {
                    let sizes = [0xffff_ffffu32, 3, 7];
                    let mut blocks = vec![0, 3];
                    sizes.iter().for_each(|size| blocks.extend(size.to_be_bytes()));
                    reply(stream, option, 3, &blocks)?;
                }
                reply(stream, option, 1, &[])?;
                if option == 7 {
                    return Ok(());
                }
            }
            2 => return Ok(()),
            _ => reply(stream, option, 0x8000_0001, &[])?,
        }
    }
}
