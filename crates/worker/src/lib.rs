//! Floor 3: workers. A worker changes the state that a device's I/O depends on (mappings, exceptions, counts), in
//! memory and on disk, one change after the other.
//!
//! # How a worker runs
//! A [`Worker`] is one future, not a thread. Everything that it has to do is an *event* in its inbox. A thread that
//! leaves one *kicks* the worker: it polls the future inside its own channel, if no other thread does. On an idle
//! device that is the submitter's thread, so no other thread has to be woken. The worker leaves bios and operations to
//! be submitted in the *outbox*, for the thread that polls. When no thread comes by, the domain's workqueue polls the
//! worker.
//!
//! Besides events it may have *tasks*: futures that await I/O while the worker goes on, and whose end is an event.
//!
//! # State shared with readers
//! The worker derefs to its [`Service`]: state that bios read without a lock, and that only the worker writes. A bio
//! that looks something up there [enters](Worker::enter) an epoch first. After a change the worker
//! [drains](Worker::drain); when that is over, no bio uses the old state.
//!
//! # Invariants
//! - The worker is polled by one thread at a time. An event that is left and kicked for is handled: the rule is in
//!   `run_lock.rs`, and a worker cannot get it wrong, because [`Events::idle`] is the only wait for events.
//! - Nothing here blocks but [`Worker::call`], [`Worker::wait_for`] and [`Worker::new`]; no lock is held over I/O or a
//!   call to other code, except the worker's own lock, which is only tried.
//!
//! # A worker
//! One that keeps a number, on a device:
//!
//! ```
//! use std::sync::Arc;
//! use udm_base::{AlignedBuf, Sector, Sectors};
//! use udm_io::{BlockDevice, Domain, MemoryDevice, Op, Status};
//! use udm_worker::{Events, Memory, Operation, Reply, Service, Worker};
//!
//! struct Counter {
//!     dev: Arc<dyn BlockDevice>,
//! }
//!
//! enum Event {
//!     Add(u64),
//!     /// Write the number, and say it.
//!     Commit(Reply<Result<u64, Status>>),
//! }
//!
//! impl Service for Counter {
//!     type Event = Event;
//!     const NAME: &'static str = "counter";
//! }
//!
//! async fn count(counter: Arc<Worker<Counter>>, mut events: Events<Event>) {
//!     let mut number: u64 = 0;
//!     loop {
//!         while let Some(event) = events.next() {
//!             match event {
//!                 Event::Add(more) => number += more,
//!                 Event::Commit(reply) => {
//!                     let mut sector = AlignedBuf::zeroed(512);
//!                     sector[..8].copy_from_slice(&number.to_le_bytes());
//!                     let write = Operation::new(&counter.dev, Op::Write, (Sector::ZERO, Sectors::new(1)));
//!                     // Events that come meanwhile wait for the next turn.
//!                     let (status, _) = counter.submit(write, Memory::Buffer(sector)).await;
//!                     reply.give(if status.is_ok() { Ok(number) } else { Err(status) });
//!                 }
//!             }
//!         }
//!         events.idle(None).await;
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let domain = Domain::default();
//! let dev = Arc::new(MemoryDevice::new(Sectors::new(8))?);
//! let counter = Worker::new(&domain, Counter { dev }, &[])?;
//! counter.start(|events| count(counter.clone(), events))?;
//! // A bio on its way would `post`, from inside its channel.
//! counter.leave(Event::Add(2));
//! counter.leave(Event::Add(40));
//! assert!(matches!(counter.call(Event::Commit)?, Ok(42)));
//! counter.stop();
//! # Ok(())
//! # }
//! ```

mod call;
mod cells;
mod flights;
mod frames;
mod inbox;
mod metadata_io;
#[cfg(loom)]
mod models;
mod outbox;
mod outgoing;
mod run_lock;
mod slot;
mod sync;
mod worker;

pub use call::Reply;
pub use cells::Cells;
pub use flights::{Epoch, Ticket};
pub use inbox::Events;
pub use metadata_io::MetadataIo;
pub use outbox::{Copies, Operation};
pub use outgoing::{Done, Memory, SendOn};
pub use slot::Awaited;
pub use worker::{Service, Worker};

use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
