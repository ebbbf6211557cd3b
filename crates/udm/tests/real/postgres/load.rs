//! Clients that note which of their transactions they were told are committed.

use super::client::Client;
use super::server::Server;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// How many clients there are.
pub(crate) const CLIENTS: usize = 4;

/// The tables of [`Load`].
pub(crate) const TABLES: &str = "create table told (client int, n bigint, padding text, primary key (client, n)); \
    create table latest (client int primary key, n bigint); \
    insert into latest select c, 0 from generate_series(0, 3) c";

/// What one client knows: transactions are numbered from 1.
#[derive(Default)]
struct Counts {
    /// The last that it has sent.
    sent: AtomicU64,
    /// The last of which it was told that it is committed.
    told: AtomicU64,
}

/// What all clients know, from the first server to the last.
#[derive(Clone)]
pub(crate) struct Known(Arc<[Counts; CLIENTS]>);

/// For each client the last transaction that may be there, or must.
pub(crate) type Numbers = [u64; CLIENTS];

impl Known {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn sent(&self) -> Numbers {
        std::array::from_fn(|c| self.0[c].sent.load(Ordering::SeqCst))
    }

    pub(crate) fn told(&self) -> Numbers {
        std::array::from_fn(|c| self.0[c].told.load(Ordering::SeqCst))
    }

    /// What is there after a crash counts as told: it was read.
    pub(crate) fn go_on_from(&self, there: Numbers) {
        for (counts, there) in self.0.iter().zip(there) {
            counts.sent.store(there, Ordering::SeqCst);
            counts.told.store(there, Ordering::SeqCst);
        }
    }
}

/// The load on a server: our clients, and pgbench.
pub(crate) struct Load {
    clients: Vec<JoinHandle<()>>,
    pgbench: Child,
}

impl Load {
    /// Begins, and goes on until the server ends.
    pub(crate) fn begin(server: &Server, known: &Known) -> Self {
        let clients = (0..CLIENTS).map(|c| {
            let (socket, known) = (server.socket(), known.clone());
            std::thread::spawn(move || commit_until_it_fails(&socket, c, &known.0[c]))
        });
        let clients = clients.collect();
        let mut pgbench = server.pgbench(&["-n", "-c", "2", "-T", "100000"]);
        let pgbench = pgbench.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it is installed");
        Self { clients, pgbench }
    }

    /// Waits until nobody waits for the server any more, which has ended.
    pub(crate) fn end(mut self) {
        let _ = self.pgbench.kill();
        let _ = self.pgbench.wait();
        self.clients.into_iter().for_each(|client| client.join().expect("a client's thread"));
    }
}

/// One transaction after the other. What it was told is noted before it goes on.
fn commit_until_it_fails(socket: &Path, number: usize, counts: &Counts) {
    let Ok(mut client) = Client::connect(socket) else { return };
    for n in counts.sent.load(Ordering::SeqCst) + 1.. {
        counts.sent.store(n, Ordering::SeqCst);
        let padding = "p".repeat(n as usize % 300);
        let transaction = format!(
            "begin; insert into told values ({number}, {n}, '{padding}'); \
             update latest set n = {n} where client = {number}; commit"
        );
        match client.query(&transaction) {
            Ok(answer) => assert_eq!(answer.tags, ["BEGIN", "INSERT 0 1", "UPDATE 1", "COMMIT"]),
            Err(_) => return,
        }
        counts.told.store(n, Ordering::SeqCst);
    }
}

/// Looks into a server: everything is there that `told` says, nothing is that was not sent, and every table is whole.
/// Returns what is there.
#[track_caller]
pub(crate) fn check(server: &Server, told: &Numbers, sent: &Numbers) -> Numbers {
    let rows = server.rows(
        "select l.client, l.n, count(t.n), coalesce(max(t.n), 0) from latest l left join told t using (client) \
         group by l.client, l.n order by l.client",
    );
    assert_eq!(rows.len(), CLIENTS);
    let there = std::array::from_fn(|c| {
        let [client, latest, count, max] =
            rows[c].iter().map(|n| n.parse::<u64>().expect("a number")).collect::<Vec<_>>()[..]
        else {
            panic!("four columns")
        };
        let (must, may) = (told[c], sent[c]);
        assert_eq!(client, c as u64);
        assert!(
            must <= max && max <= may && count == max && latest == max,
            "client {c}: {count} transactions, the last {max}, noted as {latest}; it was told of {must} and sent {may}"
        );
        max
    });
    // What pgbench adds to an account it adds to a teller, to a branch, and to the history.
    let sums = server.row(
        "select (select sum(abalance) from pgbench_accounts), (select sum(tbalance) from pgbench_tellers), \
         (select sum(bbalance) from pgbench_branches), (select coalesce(sum(delta), 0) from pgbench_history)",
    );
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    there
}

/// Looks into all indexes, where PostgreSQL has what it takes.
#[track_caller]
pub(crate) fn check_indexes(server: &Server) {
    let created = server.client().and_then(|mut client| client.query("create extension if not exists amcheck"));
    if let Err(error) = created {
        println!("SKIP amcheck: {error}");
        return;
    }
    let checked = server.row(
        "select count(bt_index_parent_check(i.indexrelid, true)) from pg_index i join pg_class c on c.oid = i.indexrelid \
         join pg_am a on a.oid = c.relam where a.amname = 'btree' and c.relpersistence = 'p' and i.indisvalid",
    );
    assert_ne!(checked[0], "0");
}

/// Where a server's data lies in a file system.
pub(crate) fn data(mounted: &Path) -> PathBuf {
    mounted.join("data")
}
