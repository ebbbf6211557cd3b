//! The metadata device as the persistent data see it: blocks read and written by way of the outbox.

use crate::outbox::{Memory, Operation};
use crate::worker::{Service, Worker};
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_io::{BlockDevice, Op, OpFlags, Status};
use udm_pdata::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture};

/// A metadata block.
const METADATA_BLOCK: Sectors = Sectors::in_bytes(BLOCK_SIZE as u64);

/// The metadata device of a worker. What it gives is pending until the thread that polls the worker has sent what is in
/// the outbox.
pub struct MetadataIo<S: Service> {
    worker: Arc<Worker<S>>,
    dev: Arc<dyn BlockDevice>,
}

impl<S: Service> MetadataIo<S> {
    /// For what the worker itself holds, until it ends.
    pub fn new(worker: Arc<Worker<S>>, dev: Arc<dyn BlockDevice>) -> Arc<Self> {
        Arc::new(Self { worker, dev })
    }

    fn operation(&self, op: Op, flags: OpFlags, at: u64) -> Result<Operation, IoError> {
        if op != Op::Flush && at >= self.blocks() {
            return Err(IoError::PastEnd);
        }
        let sectors = if op == Op::Flush { Sectors::ZERO } else { METADATA_BLOCK };
        let sector = Sector::new(at * METADATA_BLOCK.get());
        Ok(Operation { dev: self.dev.clone(), op, flags, range: (sector, sectors) })
    }
}

impl<S: Service> BlockIo for MetadataIo<S> {
    fn blocks(&self) -> u64 {
        self.dev.sectors().get() / METADATA_BLOCK.get()
    }

    fn read(&self, at: u64, into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        Box::pin(async move {
            let operation = self.operation(Op::Read, OpFlags::NONE, at)?;
            block_of(self.worker.submit(operation, Memory::Block(into)).await)
        })
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        Box::pin(async move {
            let mut out = Vec::with_capacity(blocks.len());
            for (at, block) in blocks {
                let operation = self.operation(Op::Write, OpFlags::NONE, at);
                out.push((at, operation.map(|operation| self.worker.submit(operation, Memory::Block(block)))));
            }
            // Every one is awaited, whatever becomes of the others: nothing is in flight afterwards.
            let mut all = Ok(Vec::with_capacity(out.len()));
            for (at, one) in out {
                let block = match one {
                    Ok(awaited) => block_of(awaited.await),
                    Err(e) => Err(e),
                };
                all = all.and_then(|mut blocks| {
                    blocks.push((at, block?));
                    Ok(blocks)
                });
            }
            all
        })
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        Box::pin(async move {
            let operation = self.operation(Op::Flush, OpFlags::NONE, 0)?;
            match self.worker.submit(operation, Memory::None).await {
                (Status::Ok, _) => Ok(()),
                _ => Err(IoError::Failed),
            }
        })
    }

    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        Box::pin(async move {
            let fua = self.dev.limits().fua;
            let flags = if fua { OpFlags::FUA } else { OpFlags::NONE };
            let operation = self.operation(Op::Write, flags, at)?;
            let block = block_of(self.worker.submit(operation, Memory::Block(block)).await)?;
            if !fua {
                self.flush().await?;
            }
            Ok(block)
        })
    }
}

fn block_of(done: (Status, Memory)) -> Result<Box<Block>, IoError> {
    match done {
        (Status::Ok, Memory::Block(block)) => Ok(block),
        _ => Err(IoError::Failed),
    }
}
