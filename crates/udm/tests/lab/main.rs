//! udm and the kernel take turns with the same devices: what one of them wrote, the other reads, writes on, and hands
//! back. The kernel runs in the guest of `tests/lab`.
//!
//! A test takes a minute or two, so they run by name only:
//! `cargo test --package udm --test lab -- --ignored --nocapture`. `UDM_LAB_SEED=N` chooses other operations; the seed is
//! printed. Where there can be no guest, a test prints SKIP and passes.
//!
//! Each round checks every byte of every volume against a model that both sides' operations are applied to, so that two
//! programs with the same mistake do not agree with each other.

#[path = "../common/mod.rs"]
mod common;
mod guest;
mod host;
mod kernel_made;
mod model;
mod snapshot;
mod thin;

/// The seed of this run.
fn seed() -> u64 {
    let seed = std::env::var("UDM_LAB_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("UDM_LAB_SEED={seed}");
    seed
}

#[test]
fn pools_that_the_kernel_made() {
    kernel_made::pools();
}

#[test]
fn stores_that_the_kernel_made() {
    kernel_made::stores();
}

#[test]
#[ignore = "boots a guest four times: a minute or two"]
fn thin_pools_go_to_the_kernel_and_back() {
    if guest::available() {
        for (block, seed) in [(128, seed()), (2048, seed() + 1)] {
            thin::there_and_back(block, seed);
        }
    }
}

#[test]
#[ignore = "boots a guest six times: two minutes"]
fn exception_stores_go_to_the_kernel_and_back() {
    if guest::available() {
        for (kind, chunk, seed) in [("P", 16, seed()), ("PO", 32, seed() + 1)] {
            snapshot::there_and_back(kind, chunk, seed);
        }
    }
}
