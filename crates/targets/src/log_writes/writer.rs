//! What writes a log: a worker that gives each block its place on the log device, in order.

use super::order::{Block, Event, Shared, complete};
use std::collections::VecDeque;
use std::sync::Arc;
use udm_base::{AlignedBuf, Sector, Sectors};
use udm_formats::log_writes::{Flags, Layout, Superblock};
use udm_io::{Bio, Op, Status};
use udm_worker::{Awaited, Events, Memory, Operation, Worker};

/// Writes to the log device that are under way at most.
const OUT: usize = 32;

pub(super) struct Writer {
    worker: Arc<Worker<Shared>>,
    layout: Layout,
    /// Writes under way, and how many bytes of memory each lets go of.
    out: VecDeque<(Awaited<(Status, Memory)>, u64)>,
}

/// Writes what is left, until the worker is stopped.
pub(super) async fn run(mut writer: Writer, mut events: Events<Event>) {
    loop {
        while let Some(event) = events.next() {
            match event {
                Event::Log(blocks) => {
                    for block in blocks {
                        writer.log(block).await;
                    }
                }
                Event::FlushAfter(number, bio) => writer.flush(number, bio),
                Event::Flushed(number, bio, status) => writer.flushed(number, bio, status),
                Event::Settled(reply) => {
                    writer.settle().await;
                    reply.give(());
                }
            }
        }
        // What is out holds memory that writes may wait for.
        writer.settle().await;
        events.idle(None).await;
    }
}

impl Writer {
    pub(super) fn new(worker: Arc<Worker<Shared>>, layout: Layout) -> Self {
        Self { worker, layout, out: VecDeque::new() }
    }

    /// Has a device without FUA flushed, beside the log.
    fn flush(&self, number: u64, bio: Bio) {
        let worker = self.worker.clone();
        self.worker.spawn(async move {
            let (status, _) = worker.submit(Operation::flush(&worker.dev), Memory::None).await;
            Event::Flushed(number, bio, status)
        });
    }
}

impl Writer {
    /// The flush that stood for FUA is done.
    fn flushed(&self, number: u64, bio: Bio, status: Status) {
        complete(&self.worker, number);
        bio.end(status);
    }

    /// Gives a block its place and begins to write it (`log_writes_kthread`, `log_one_block`).
    async fn log(&mut self, block: Block) {
        let bytes = block.memory.len() as u64;
        if !self.worker.is_enabled() {
            return self.worker.written(bytes);
        }
        let unit = self.worker.block;
        let mut memory = block.memory;
        let placed = self.layout.place(Sectors::in_bytes(bytes) - unit.sectors());
        self.worker.placed(&self.layout);
        let at = match placed {
            Ok(at) => at,
            Err(full) => {
                self.worker.disable(&full.to_string());
                return self.worker.written(bytes);
            }
        };
        let (entry, _) = memory.split_at_mut(unit.bytes() as usize);
        block.entry.encode(entry);
        self.write(at, memory).await;
        if block.entry.flags.intersects(Flags::FUA.with(Flags::MARK)) {
            self.superblock().await;
        }
    }

    /// Counts the entries so far, all of which are on the device before (`log_super`).
    async fn superblock(&mut self) {
        self.settle().await;
        if !self.worker.is_enabled() {
            return;
        }
        let unit = self.layout.block();
        let mut memory = AlignedBuf::zeroed(unit.bytes() as usize);
        let superblock = Superblock { entries: self.layout.entries(), block: unit }.encode();
        memory[..superblock.len()].copy_from_slice(&superblock);
        self.submit(Sector::ZERO, memory, 0);
        self.settle().await;
    }

    /// Begins to write, in pieces as long as the device takes.
    async fn write(&mut self, at: Sector, memory: AlignedBuf) {
        while self.out.len() >= OUT {
            self.wait().await;
        }
        let (bytes, longest) = (memory.len() as u64, self.worker.longest());
        if Sectors::in_bytes(bytes) <= longest {
            return self.submit(at, memory, bytes);
        }
        let mut at = at;
        let mut pieces = memory.chunks(longest.as_len()).peekable();
        while let Some(piece) = pieces.next() {
            let mut copy = AlignedBuf::zeroed(piece.len());
            copy.copy_from_slice(piece);
            // The last one stands for all.
            self.submit(at, copy, if pieces.peek().is_none() { bytes } else { 0 });
            at += Sectors::in_bytes(piece.len() as u64);
        }
    }

    fn submit(&mut self, at: Sector, memory: AlignedBuf, frees: u64) {
        let range = (at, Sectors::in_bytes(memory.len() as u64));
        let operation = Operation::new(&self.worker.log, Op::Write, range);
        self.out.push_back((self.worker.submit(operation, Memory::Buffer(memory)), frees));
    }

    /// Waits for the oldest write that is out.
    async fn wait(&mut self) {
        let Some((awaited, frees)) = self.out.pop_front() else { return };
        let (status, _) = awaited.await;
        if !status.is_ok() {
            self.worker.disable(&format!("Error writing log block, error={status:?}"));
        }
        self.worker.written(frees);
    }

    /// Waits for all writes that are out.
    async fn settle(&mut self) {
        while !self.out.is_empty() {
            self.wait().await;
        }
    }
}
