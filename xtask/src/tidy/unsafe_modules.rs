//! The modules that may hold `unsafe`: buffers, rings and shared memory. Tests aside, which may
//! call what is unsafe to call. A new name here wants a reason that a reviewer believes.

/// Paths from the workspace's root, and why.
pub(super) const UNSAFE_MODULES: &[(&str, &str)] = &[
    ("crates/base/src/aligned.rs", "memory with an alignment that Vec cannot have"),
    ("crates/core/src/mapped/plan.rs", "a lookup table of pointers into the tables that it holds"),
    ("crates/core/src/mapped/slot.rs", "a pointer that is replaced under grace periods"),
    ("crates/core/src/mapped/split.rs", "frames and redirections of clones"),
    ("crates/core/src/mapped/submit.rs", "frames and redirections of bios"),
    ("crates/export/src/nbd/inflight.rs", "bios that refer to receive chunks and payload buffers"),
    ("crates/export/src/nbd/pool.rs", "a receive chunk whose front is read while its rest is received into"),
    ("crates/io/src/bio/mod.rs", "a handle that owns a slot of a slab"),
    ("crates/io/src/bio/record.rs", "completion functions that take a private word"),
    ("crates/io/src/bio/segment.rs", "memory of the submitter, by address"),
    ("crates/io/src/blocking.rs", "lends a slice for as long as it waits"),
    ("crates/io/src/channel/core.rs", "the biased lock around one thread's state"),
    ("crates/io/src/channel/cx.rs", "the same state, seen from devices and frames"),
    ("crates/io/src/channel/mod.rs", "the same state, seen from the owner"),
    ("crates/io/src/channel/slab.rs", "slots that outlive their channel"),
    ("crates/io/src/channel/wait.rs", "the same state, before and after a sleep"),
    ("crates/io/src/file/guard.rs", "copies whose faults a signal handler answers"),
    ("crates/io/src/file/hold.rs", "OFD locks, which no safe wrapper has"),
    ("crates/io/src/file/mapped.rs", "a mapping of a file"),
    ("crates/io/src/file/ring.rs", "requests with the memory of bios, and bios as their user data"),
    ("crates/io/src/file/sync.rs", "preadv2 on the memory of bios, and ioctls of block devices"),
    ("crates/io/src/memory.rs", "a mapping of anonymous memory"),
    ("crates/io/src/null/poll.rs", "frames that count a channel's bios on a queue"),
    ("crates/io/src/null/queue.rs", "a lock-free list of records, and what a try-lock guards"),
    ("crates/io/src/nbd/client/driver.rs", "sends from the memory of bios"),
    ("crates/io/src/nbd/client/receive.rs", "receives into the memory of bios"),
    ("crates/udm/src/sigpipe.rs", "the action of a signal"),
];
