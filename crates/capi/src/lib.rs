//! Floor 7: `libudm`, a stack of devices in a program of one's own, for C and whoever speaks it.
//!
//! `include/udm.h` is made from what is public here by `cargo xtask header`: the words in C are those of the
//! documentation.
//!
//! # In C
//! libudm: the Linux device mapper in user space, in a program of one's own.
//!
//! A stack is the devices of one concise specification, as `udm create --concise` takes it; any thread may use it. A
//! queue is one thread's way to one device: only the thread that opened it uses and closes it.
//!
//! ```c
//!     udm_stack *stack;
//!     udm_queue *queue;
//!     if (udm_stack_open("disk,,,,0 2097152 ram", &stack) < 0) errx(1, "%s", udm_error());
//!     if (udm_queue_open(stack, "disk", 32, &queue) < 0) errx(1, "%s", udm_error());
//!     struct iovec memory = { buffer, 4096 };
//!     struct udm_request read = { .op = UDM_READ, .offset = 0, .length = 4096, .iov = &memory, .iovcnt = 1, .token = 7 };
//!     struct udm_completion done;
//!     udm_queue_submit(queue, &read);
//!     udm_queue_wait(queue, &done, 1, 1, UDM_FOREVER);
//! ```
//!
//! Calls answer 0 or a count, or an errno negated, whose text udm_error() has.
//!
//! # Invariants
//! - No call panics across the border: what a caller can get wrong is an errno with a text.
//! - A pointer that is null where one is needed is EINVAL. Other nonsense in place of a pointer cannot be found out.

pub mod command;
pub mod error;
pub mod queue;
pub mod stack;
