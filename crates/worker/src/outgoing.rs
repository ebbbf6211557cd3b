//! What a worker wants sent, and where it is told how that went.

use crate::slot::Filler;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use udm_base::AlignedBuf;
use udm_io::{Bio, Cx, InternalIo, IoBuffer, IoMemory, Status};
use udm_kcopyd::{Copied, CopyJob};
use udm_pdata::Block;

/// A copy, and who is told of its end.
pub(crate) type Awaiting = (Box<CopyJob>, Arc<dyn Copied>);

/// Sends on a bio that a worker gives back: the volume that it came through.
pub trait SendOn: Send + Sync {
    /// Sends a bio of this channel to a device beneath, if its way is known by now, or ends it. Otherwise it is given
    /// back, to be submitted in a later section to the device that it points at. It is not left to the worker again: a
    /// bio about which this and the worker disagree would keep the section open. Must not block.
    fn send_on(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio>;
}

/// What is to be sent.
pub(crate) enum Outgoing<E: 'static> {
    /// A client's bio, to the device that it points at.
    Bio(Bio),
    /// A client's bio, by who knows its way.
    Back(Bio, Arc<dyn SendOn>),
    /// An operation of the worker's own.
    InternalIo(Box<InternalIo<Load<E>>>),
    /// A copy, by one of its copiers.
    Copy(usize, Awaiting),
    /// Something to be done beside the worker.
    Task(Pin<Box<dyn Future<Output = E> + Send>>),
}

/// The memory of an operation of the worker's own.
pub enum Memory {
    /// There is none: flushes, discards, zeroes.
    None,
    /// A metadata block.
    Block(Box<Block>),
    /// Some sectors.
    Buffer(AlignedBuf),
}

/// How an operation went, and the memory back.
pub type Done = (Status, Memory);

/// The memory, and who waits for it.
pub(crate) struct Load<E> {
    pub(crate) memory: Memory,
    pub(crate) to: Destination<E>,
}

pub(crate) enum Destination<E> {
    /// It is awaited.
    Slot(Filler<Done>),
    /// An event, made of a job's number.
    Event(fn(u64, Status) -> E, u64),
}

impl<E: 'static> IoMemory for Load<E> {
    fn buffer(&mut self) -> IoBuffer<'_> {
        match &mut self.memory {
            Memory::None => IoBuffer::None,
            Memory::Block(block) => IoBuffer::In(&mut block.0),
            Memory::Buffer(buffer) => IoBuffer::In(buffer),
        }
    }
}
