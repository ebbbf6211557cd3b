//! Random input against everything that reads bytes from outside: a table, a socket, a disk.
//!
//! Coverage-guided fuzzing needs a nightly compiler. This does without: input number `i` of seed
//! `s` is a function of `s`, `i` and the committed seed corpus, so every crash can be made again
//! from two numbers. README.md beside this crate tells how to add a target.

pub mod corpus;
pub mod driver;
mod mutate;
mod rng;
pub mod targets;

use corpus::Corpus;

/// Something to feed.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// As in `cargo xtask fuzz --target NAME`; its seeds are in `seeds/NAME/`.
    pub name: &'static str,
    /// Takes any bytes. To panic, to abort, to hang or to take more than
    /// [`driver::MEMORY_LIMIT`] is to fail.
    pub run: fn(&[u8]),
    /// Words of the format, which chance would not spell.
    pub words: &'static [&'static [u8]],
}

/// The one list of targets.
pub const TARGETS: &[Target] = &[
    Target { name: "answer", run: targets::ioctl::fuzz_answer, words: targets::ioctl::WORDS },
    Target { name: "args", run: targets::args::fuzz_args, words: targets::args::WORDS },
    Target { name: "concise", run: targets::concise::fuzz_concise, words: targets::concise::WORDS },
    Target { name: "control", run: targets::control::fuzz_control, words: targets::control::WORDS },
    Target { name: "daemon-second", run: targets::daemon::fuzz_second, words: targets::daemon::WORDS },
    Target { name: "daemon-session", run: targets::daemon::fuzz_session, words: targets::ioctl::WORDS },
    Target { name: "ioctl", run: targets::ioctl::fuzz_ioctl, words: targets::ioctl::WORDS },
    Target { name: "nbd-connection", run: targets::nbd::fuzz_connection, words: targets::nbd::WORDS },
    Target { name: "nbd-requests", run: targets::nbd::fuzz_requests, words: targets::nbd::WORDS },
    Target { name: "nbd-server", run: targets::nbd::fuzz_server, words: targets::nbd::WORDS },
    Target { name: "nbd-uri", run: targets::nbd::fuzz_uri, words: targets::nbd::URI_WORDS },
    Target { name: "pdata", run: targets::pdata::fuzz_pdata, words: targets::pdata::WORDS },
    Target { name: "snapshot-areas", run: targets::snapshot::fuzz_areas, words: targets::snapshot::WORDS },
    Target { name: "snapshot-header", run: targets::snapshot::fuzz_header, words: targets::snapshot::WORDS },
    Target { name: "table", run: targets::table::fuzz_table, words: targets::table::WORDS },
    Target { name: "thin-check", run: targets::thin_tools::fuzz_check, words: &[] },
    Target { name: "thin-pool", run: targets::thin::fuzz_thin_pool, words: &[] },
    Target { name: "thin-superblock", run: targets::thin::fuzz_thin_superblock, words: targets::thin::WORDS },
    Target { name: "thin-xml", run: targets::thin_tools::fuzz_xml, words: targets::thin_tools::WORDS },
    Target { name: "vhost-user-messages", run: targets::vhost_user::fuzz_messages, words: targets::vhost_user::WORDS },
    Target { name: "vhost-user-ring", run: targets::vhost_user::fuzz_ring, words: targets::vhost_user::WORDS },
];

impl Target {
    /// The target called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        TARGETS.iter().find(|target| target.name == name)
    }

    /// Input number `index` of `seed`: first the corpus as it is, then mutations of it.
    #[must_use]
    pub fn input(&self, corpus: &Corpus, seed: u64, index: u64) -> Vec<u8> {
        match usize::try_from(index).ok().and_then(|i| corpus.get(i)) {
            Some(as_it_is) => as_it_is.to_vec(),
            None => mutate::input(corpus, self.words, rng::Rng::new(seed, index)),
        }
    }
}
