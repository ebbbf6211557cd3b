//! Floor 3: tables, targets' interface, mapped devices and the registry of them.
//!
//! # Invariants
//! - Core splits, checks ranges and alignment, counts bios in flight and fans out flushes; targets never repeat that.
//! - What a running channel reads of a device hangs on one pointer, its *plan*. A plan is replaced, never changed; the
//!   old one is freed after a grace period and once no bio refers to it.
//! - A bio is counted in flight by each device that it passes through, or by the compiled path that stands for
//!   them, or it ends within the channel's section; so a suspension that has waited for sections and counts has
//!   waited for every bio.
//! - Names of targets appear here nowhere.

mod activity;
mod capabilities;
mod counters;
mod ctr;
mod error;
mod events;
mod handle;
mod held;
mod inspect;
mod mapped;
mod opener;
mod registry;
mod table;
mod target;

pub use capabilities::{NewTarget, TargetDevice};
pub use counters::Totals;
pub use ctr::{Constructor, Ctr, TargetType};
pub use error::{Error, TableError};
pub use events::Cancel;
pub use handle::OpenDevice;
pub use held::{Held, Ticket};
pub use inspect::{BioGroup, ChannelUse, DeviceReport, Inspection};
pub use mapped::{Geometry, Info, LoadOptions, MappedDevice, Polls, SuspendOptions, ZeroSkips};
pub use opener::{Alone, DeviceOpener, HostOpener, HostRequest};
pub use registry::{HOST_MAJOR, MAJOR, NAME_MAX, Registry, Removal, UUID_MAX};
pub use table::{Table, TableLine, TableSlot};
pub use target::{Attributes, Failed, Map, StatusKind, Target, Until};
