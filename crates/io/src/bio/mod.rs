//! What a bio is made of: its operation, its memory, its status. The bio itself is the channel's.

mod op;
mod segment;
mod status;
mod zero;

pub use op::{Op, OpFlags};
pub use segment::{Segment, Segments};
pub use status::Status;
pub use zero::{is_zero, zero_kernel};
