//! The targets `thin-pool` and `thin`, as a table and a client see them.

mod channels;
mod commits;
mod deletions;
mod discards;
mod doubts;
mod failures;
mod lifecycle;
mod many;
mod messages;
mod origins;
mod pools;
mod reuse;
mod shortage;
mod snapshots;
mod space;
mod stillness;
mod suspension;
mod tables;
mod threads;
mod zero_skip;
mod zero_writes;
