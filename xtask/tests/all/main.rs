//! Chores that are tests as well, in one program.

mod header;
mod tidy;
