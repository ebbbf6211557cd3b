//! A PostgreSQL server of a test's own.

use super::client::Client;
use crate::udm::wait_until;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Where the programs are, and who runs them: the server refuses to be root.
#[derive(Clone)]
pub(crate) struct Postgres {
    bin: PathBuf,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Postgres {
    /// `None`, and said so, where there is none.
    pub(crate) fn find() -> Option<Self> {
        let installed = |dir: &PathBuf| ["postgres", "initdb", "pgbench"].iter().all(|name| dir.join(name).exists());
        let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
        let mut dirs: Vec<_> = versions.map(|entry| entry.path().join("bin")).filter(installed).collect();
        dirs.sort();
        let Some(bin) = dirs.pop() else {
            println!("SKIP PostgreSQL is not installed");
            return None;
        };
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = |name: &str| {
            let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
            let mut numbers = line.split(':').skip(2).map(str::parse::<u32>);
            Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
        };
        let Some((uid, gid)) = user("postgres").or_else(|| user("nobody")) else {
            println!("SKIP there is no user who could run PostgreSQL");
            return None;
        };
        Some(Self { bin, uid, gid })
    }

    /// One of its programs, as its user.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.bin.join(program));
        command.uid(self.uid).gid(self.gid).env_clear().env("LC_ALL", "C").env("PATH", "/usr/bin:/bin");
        command.current_dir("/").stdin(Stdio::null());
        command
    }

    /// Runs one of its programs, which must succeed.
    #[track_caller]
    pub(crate) fn run(&self, program: &str, args: &[&str]) {
        let output = self.command(program).args(args).output().expect("it is installed");
        let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
        assert!(output.status.success(), "{program} {args:?}: {text}");
    }
}

/// A server; it ends with the value.
pub(crate) struct Server {
    postgres: Postgres,
    child: Child,
    sockets: PathBuf,
    port: u16,
    log: PathBuf,
}

impl Server {
    /// Starts one on a directory with data, and waits until it has recovered what there is to recover.
    #[track_caller]
    pub(crate) fn start(postgres: &Postgres, data: &Path, sockets: &Path, port: u16) -> Self {
        let log = sockets.join(format!("log.{port}"));
        let file = File::options().create(true).append(true).open(&log).expect("a log");
        let mut command = postgres.command("postgres");
        command.arg("-D").arg(data).arg("-k").arg(sockets).args(["-p", &port.to_string()]);
        command.args(["-c", "listen_addresses="]).stdout(Stdio::null()).stderr(file);
        let child = command.spawn().expect("it is installed");
        let mut server = Self { postgres: postgres.clone(), child, sockets: sockets.to_owned(), port, log };
        wait_until("the server is ready", || {
            if let Some(status) = server.child.try_wait().expect("a child") {
                panic!("the server has ended with {status}:\n{}", server.log());
            }
            server.client().is_ok()
        });
        server
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.sockets.join(format!(".s.PGSQL.{}", self.port))
    }

    pub(crate) fn client(&self) -> std::io::Result<Client> {
        Client::connect(&self.socket())
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The one row of a query.
    #[track_caller]
    pub(crate) fn row(&self, query: &str) -> Vec<String> {
        let rows = self.rows(query);
        assert_eq!(rows.len(), 1, "{query}: {rows:?}");
        rows.into_iter().flatten().collect()
    }

    /// The rows of a query without nulls.
    #[track_caller]
    pub(crate) fn rows(&self, query: &str) -> Vec<Vec<String>> {
        let answer = self.client().and_then(|mut client| client.query(query));
        let rows = answer.unwrap_or_else(|e| panic!("{query}: {e}\n{}", self.log())).rows;
        rows.into_iter().map(|row| row.into_iter().map(|value| value.expect("no null")).collect()).collect()
    }

    /// pgbench with these options, on this server.
    pub(crate) fn pgbench(&self, options: &[&str]) -> Command {
        let mut command = self.postgres.command("pgbench");
        command.arg("-h").arg(&self.sockets).args(["-p", &self.port.to_string(), "-U", "postgres"]);
        command.args(options).arg("postgres");
        command
    }

    /// Ends it in order: what is in its memory is written.
    #[track_caller]
    pub(crate) fn shut_down(mut self) {
        self.signal(Signal::INT);
        let status = self.child.wait().expect("a child");
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// Ends it at once, and all its processes.
    pub(crate) fn abort(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal(Signal::QUIT);
            let _ = self.child.wait();
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a process id");
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
