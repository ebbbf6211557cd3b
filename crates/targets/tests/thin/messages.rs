//! Messages: what they change, and what is refused with which number.

use super::pools::*;
use super::rig::*;
use udm_base::Errno;

#[test]
fn messages_are_refused_as_the_kernel_refuses_them() {
    let pool = Pool::new(16, "");
    pool.ok("create_thin 0");
    pool.ok("CREATE_SNAP 1 0");
    for (message, errno, text) in [
        ("create_thin", Errno::EINVAL, "Message received with 1 arguments instead of 2"),
        ("create_thin 1 2", Errno::EINVAL, "Message received with 3 arguments instead of 2"),
        ("create_thin x", Errno::EINVAL, "Message received with invalid device id: x"),
        ("create_thin -1", Errno::EINVAL, "Message received with invalid device id: -1"),
        ("create_thin 16777216", Errno::EINVAL, "Message received with invalid device id: 16777216"),
        ("create_thin 0", Errno::EEXIST, "thin device 0 is there already"),
        ("create_snap 0 1", Errno::EEXIST, "thin device 0 is there already"),
        ("create_snap 5 9", Errno::ENODATA, "there is no thin device 9"),
        ("create_snap 5", Errno::EINVAL, "instead of 3"),
        ("delete 9", Errno::ENODATA, "there is no thin device 9"),
        ("set_transaction_id 1 2", Errno::EINVAL, "transaction id is 0, not 1"),
        ("set_transaction_id x 2", Errno::EINVAL, "set_transaction_id message: Unrecognised id x"),
        ("set_transaction_id 0 y", Errno::EINVAL, "set_transaction_id message: Unrecognised new id y"),
        ("release_metadata_snap", Errno::EINVAL, "no metadata snapshot"),
        ("frobnicate", Errno::EINVAL, "Unrecognised thin pool target message received: frobnicate"),
    ] {
        let e = pool.message(message).unwrap_err();
        assert_eq!(e.errno, errno, "{message}: {e}");
        assert!(e.message.contains(text), "{message}: {e}");
    }
    pool.check();
}

#[test]
fn what_a_message_changed_is_durable() {
    let pool = Pool::new(16, "");
    pool.ok("create_thin 16777215");
    pool.ok("set_transaction_id 0 18446744073709551615");
    pool.ok("reserve_metadata_snap");
    assert_eq!(pool.message("reserve_metadata_snap").unwrap_err().errno, Errno::EBUSY);
    let status = pool.status();
    let after = pool.as_after_power_cut();
    assert_eq!(after.status(), status);
    assert!(status.starts_with("18446744073709551615 "), "{status}");
    let root: u64 = status.split(' ').nth(3).unwrap().parse().unwrap();
    assert!(root > 0);
    after.activate("thin", 16_777_215, 4);
    after.ok("release_metadata_snap");
    assert_eq!(after.status().split(' ').nth(3), Some("-"));
    after.check();
    pool.check();
}

/// The metadata snapshot stays as it is while the pool goes on.
#[test]
fn a_metadata_snapshot_lasts() {
    let pool = Pool::new(64, "");
    let io = pool.rig.io(&pool.thin("thin", 0, 64));
    write(&io, 0, 8 * BLOCK, 1);
    pool.ok("reserve_metadata_snap");
    write(&io, 8 * BLOCK, 8 * BLOCK, 1);
    discard(&io, 0, 2 * BLOCK);
    write(&io, 0, 8, 2);
    io.flush().unwrap();
    check_metadata(&pool.rig, &pool.metadata);
    pool.ok("release_metadata_snap");
    assert_eq!(pool.used(), 15);
    drop(io);
    pool.check();
}
