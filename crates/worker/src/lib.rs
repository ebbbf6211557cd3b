//! Floor 3: workers. A worker changes what a device's I/O goes by (mappings, exceptions, counts) and what of it is on
//! disk, one thing after the other.
//!
//! # How a worker runs
//! A [`Worker`] is one future, and no thread. Whatever it has to do is an *event* in its inbox. A thread that leaves
//! one *kicks* the worker: it polls the future inside its own channel, if no other thread does. On an idle device that
//! is the submitter itself, so that nobody is woken. What the worker wants sent it leaves in the *outbox*, for the
//! thread that polls. When no thread comes by, the domain's workqueue goes on with it.
//!
//! Beside the events it may have *tasks*: futures that await I/O and end as an event, while the worker goes on.
//!
//! # What readers share with it
//! The worker derefs to its [`Service`]: what is read without a lock by bios on their way, and written by the worker
//! only. A bio that looks something up there [enters](Worker::enter) an epoch first; after a change the worker
//! [drains](Worker::drain), and then nobody uses any more what was so before.
//!
//! # Invariants
//! - The worker is polled by one thread at a time. Whoever leaves something for it and kicks it has it looked at: the
//!   rule is in `inbox.rs`, and a worker cannot get it wrong, because [`Events::idle`] is the only wait for events.
//! - Nothing here blocks but [`Worker::call`], [`Worker::wait_for`] and [`Worker::new`]; no lock is held over I/O or
//!   a call to anybody, but that of the worker itself, which is only tried.
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
mod copies;
mod flights;
mod frames;
mod inbox;
mod metadata_io;
#[cfg(loom)]
mod models;
mod outbox;
mod sync;
mod worker;

pub use call::Reply;
pub use cells::Cells;
pub use flights::{Epoch, Ticket};
pub use inbox::Events;
pub use metadata_io::MetadataIo;
pub use outbox::{Awaited, Copies, Memory, Operation};
pub use worker::{Service, Worker};

use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
