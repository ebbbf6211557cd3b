//! udm and the kernel take turns with the same devices: what one of them wrote, the other reads, writes on, and hands
//! back. The kernel runs in the guest of `tests/lab`.
//!
//! A test takes minutes, so they run by name only, and one at a time, for an emulator wants the CPUs for itself:
//! `cargo xtask guests`. `UDM_LAB_SEED=N` chooses other operations; the seed is printed. Where there can be no guest, a
//! test prints SKIP and passes.
//!
//! Each round checks every byte of every volume against a model that both sides' operations are applied to, so that two
//! programs with the same mistake do not agree with each other.

#[path = "../common/mod.rs"]
mod common;
mod guest;
mod host;
mod kernel_made;
mod model;
mod polled;
mod snapshot;
mod thin;
mod ublk;
mod vhost;

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
#[ignore = "boots a guest twice: a minute or two"]
fn a_pool_of_small_blocks_goes_to_the_kernel_and_back() {
    if guest::available() {
        thin::there_and_back(128, seed());
    }
}

#[test]
#[ignore = "boots a guest twice: a minute or two"]
fn a_pool_of_large_blocks_goes_to_the_kernel_and_back() {
    if guest::available() {
        thin::there_and_back(2048, seed() + 1);
    }
}

#[test]
#[ignore = "boots a guest four times: two minutes"]
fn a_persistent_store_goes_to_the_kernel_and_back() {
    if guest::available() {
        snapshot::there_and_back("P", 16, seed());
    }
}

#[test]
#[ignore = "boots a guest four times: two minutes"]
fn a_store_that_may_overflow_goes_to_the_kernel_and_back() {
    if guest::available() {
        snapshot::there_and_back("PO", 32, seed() + 1);
    }
}

#[test]
#[ignore = "boots a guest: four minutes"]
fn polled_disks_interrupt_nobody() {
    if guest::available() {
        polled::disks_interrupt_nobody();
    }
}

#[test]
#[ignore = "boots a guest: two or three minutes"]
fn a_guest_has_its_disk_over_vhost_user() {
    if guest::available() {
        vhost::a_disk();
    }
}

#[test]
#[ignore = "boots a guest: two or three minutes"]
fn the_guest_has_devices_over_ublk() {
    if guest::available() {
        ublk::a_device();
    }
}
