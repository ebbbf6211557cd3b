//! A pool is commanded though clients have every channel that there is.

use super::pools::*;
use super::rig::*;
use udm_io::*;

/// Every channel that can be had.
fn all_channels(domain: &Domain) -> Vec<Channel> {
    std::iter::from_fn(|| domain.channel().ok()).collect()
}

#[test]
fn a_pool_is_commanded_without_a_channel() {
    let pool = Pool::new(64, "");
    let thin = pool.thin("thin", 0, 8);
    let mut client = Client::new(&pool.rig, &thin);
    let token = client.write(0, pattern(0, 8, 1), OpFlags::NONE);
    assert_eq!(client.wait(token), Status::Ok);
    let taken = all_channels(&pool.rig.domain);

    assert_eq!(pool.used(), 1);
    pool.ok("create_thin 1");
    suspend(&pool.md);
    pool.rig.log();
    let token = client.write(BLOCK, pattern(BLOCK, 8, 2), OpFlags::NONE);
    assert_eq!(client.status(token), None);
    assert_eq!(pool.rig.log(), Vec::<String>::new(), "a suspended pool is still");
    resume(&pool.md);
    assert_eq!(client.wait(token), Status::Ok);
    pool.rig.reload(&pool.md, &pool.table("1 error_if_no_space"));
    assert!(pool.status().contains("error_if_no_space"), "{}", pool.status());

    drop((taken, client));
    pool.check();
}

#[test]
fn a_pool_is_opened_and_closed_without_a_channel() {
    let rig = Rig::default();
    let taken = all_channels(&rig.domain);
    let pool = Pool::in_rig(rig, 64, "");
    let thin = pool.thin("thin", 0, 8);
    let io = pool.rig.io(&thin);
    write(&io, 3, 8, 1);
    io.flush().unwrap();
    assert_eq!(read(&io, 3, 8), pattern(3, 8, 1));
    assert_eq!(io.write(thin.sectors().from_start(), &pattern(0, 1, 1), OpFlags::NONE), Err(Status::Invalid));
    drop((io, thin));
    pool.remove("thin");
    pool.remove("pool");
    drop(taken);
    let Pool { rig, metadata, data, .. } = pool;
    let again = Pool::again(rig, metadata, data, 64);
    let thin = again.activate("thin", 0, 8);
    assert_eq!(read(&again.rig.io(&thin), 3, 8), pattern(3, 8, 1));
}
