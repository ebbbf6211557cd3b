//! Thin provisioning: what the pool and its volumes share.

#![allow(dead_code, reason = "the targets that use these follow")]

mod inflight;
mod mapping;
