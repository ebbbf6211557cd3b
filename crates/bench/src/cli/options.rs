//! The options, by fio's names.

use super::numbers;
use crate::{CompletionMode, Fill, Lat, Load, Rw, Verify};
use clap::Parser;
use std::time::Duration;
use udm_io::PollPolicy;

/// Measures a device, and perhaps another in turns with it.
#[derive(Parser, Debug)]
#[command(name = "udm bench", disable_version_flag = true, args_override_self = true)]
pub(super) struct Options {
    /// Devices that live as long as the measurement: NAME,UUID,MINOR,FLAGS,TABLE[,TABLE…][;NAME,…]
    #[arg(long, value_name = "CONCISE")]
    pub(super) concise: Option<String>,
    /// What is measured: a device of --concise or of the daemon, a path or URI, vhost-user:SOCKET, or memcpy: the same
    /// as plain copies
    #[arg(long, value_name = "NAME")]
    pub(super) device: String,
    /// Measure this too, in turns, and print the ratio
    #[arg(long, value_name = "NAME|memcpy")]
    pub(super) against: Option<String>,
    /// How many rounds
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) rounds: usize,
    /// Before measuring: NAME:clone_always=1 clones every bio, NAME:compile=0 goes down step by step, NAME:io_poll=0
    /// does not poll
    #[arg(long, value_name = "NAME:KEY=VALUE")]
    pub(super) set: Vec<String>,
    /// read, write, randread, randwrite, rw (readwrite) or randrw
    #[arg(long, alias = "readwrite", value_name = "PATTERN", default_value = "read", value_parser = rw)]
    rw: Rw,
    /// Bytes of a request
    #[arg(long, value_name = "BYTES", default_value = "4k", value_parser = numbers::bytes)]
    bs: u64,
    /// Requests that each job has in flight
    #[arg(long, value_name = "N", default_value_t = 1)]
    iodepth: usize,
    /// Jobs, a thread each
    #[arg(long, value_name = "N", default_value_t = 1)]
    numjobs: usize,
    /// How long a round lasts; 3 s unless --number-ios is given
    #[arg(long, value_name = "SECONDS", value_parser = numbers::time)]
    runtime: Option<Duration>,
    /// How many requests each job does at most
    #[arg(long, alias = "number_ios", value_name = "N")]
    number_ios: Option<u64>,
    /// How much of the device is used, from its start [default: all of it]
    #[arg(long, value_name = "BYTES", value_parser = numbers::bytes)]
    size: Option<u64>,
    /// Per cent of reads in a mix
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    rwmixread: u8,
    /// How jobs wait: interrupt sleeps, poll polls (as fio's hipri), adaptive polls briefly and then sleeps
    #[arg(long, value_name = "HOW", default_value = "interrupt", value_parser = completion)]
    completion: CompletionMode,
    /// The same as --completion=poll
    #[arg(long, conflicts_with = "completion")]
    hipri: bool,
    /// 0: a request that was not split has more than the queue that it is on polled
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    poll_fast_path: u8,
    /// 0: pollers wait in turn for a queue that another holds, rather than skip it
    #[arg(long, value_name = "0|1", default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    poll_skip_busy: u8,
    /// How long --completion=adaptive polls before it sleeps, in microseconds
    #[arg(long, value_name = "MICROSECONDS")]
    poll_budget: Option<u32>,
    /// Of the random places and contents
    #[arg(long, alias = "randseed", value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Check every read, and at the end all that was written: crc32c (also without a value) or pattern
    #[arg(long, value_name = "KIND", value_parser = verify, num_args = 0..=1, require_equals = true,
          default_missing_value = "crc32c")]
    verify: Option<Verify>,
    /// Do not write the device before it is read
    #[arg(long)]
    no_fill: bool,
    /// Write all of it first, also before writes and when it is none of --concise: what it holds is lost
    #[arg(long, overrides_with = "no_fill")]
    fill: bool,
    /// Whose latency is measured, at 50 ns each: off, all or sample:N, one in N
    #[arg(long, value_name = "WHICH", default_value = "sample:64", value_parser = numbers::lat)]
    lat: Lat,
    /// Print JSON with fio's field names
    #[arg(long)]
    pub(super) json: bool,
}

impl Options {
    /// How channels poll.
    pub(super) fn polling(&self) -> PollPolicy {
        let policy = PollPolicy::default();
        PollPolicy {
            fast_path: self.poll_fast_path == 1,
            skip_busy: self.poll_skip_busy == 1,
            budget: self.poll_budget.map_or(policy.budget, |us| Duration::from_micros(us.into())),
            ..policy
        }
    }

    /// The load that they describe.
    pub(super) fn load(&self) -> Load {
        let runtime = match (self.runtime, self.number_ios) {
            (None, None) => Some(Duration::from_secs(3)),
            (time, _) => time,
        };
        Load {
            rw: self.rw,
            bs: self.bs,
            iodepth: self.iodepth,
            numjobs: self.numjobs,
            runtime,
            number_ios: self.number_ios,
            size: self.size,
            rwmixread: self.rwmixread,
            completion: if self.hipri { CompletionMode::Poll } else { self.completion },
            seed: self.seed,
            verify: self.verify,
            fill: match (self.fill, self.no_fill) {
                (true, _) => Fill::Yes,
                (_, true) => Fill::No,
                _ => Fill::BeforeReads,
            },
            lat: self.lat,
        }
    }
}

fn completion(text: &str) -> Result<CompletionMode, String> {
    one_of(CompletionMode::NAMES, text)
}

fn rw(text: &str) -> Result<Rw, String> {
    one_of(Rw::NAMES, text)
}

fn verify(text: &str) -> Result<Verify, String> {
    one_of(Verify::NAMES, text)
}

fn one_of<T: Copy>(names: &[(&str, T)], text: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
    found.ok_or_else(|| format!("expected {}", names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn consistent() {
        Options::command().debug_assert();
    }

    fn parse(words: &str) -> Result<Load, String> {
        let words = ["udm bench", "--device=d"].into_iter().chain(words.split_whitespace());
        Ok(Options::try_parse_from(words).map_err(|e| e.to_string())?.load())
    }

    #[test]
    fn loads() {
        assert_eq!(parse(""), Ok(Load::default()));
        let load = Load { rw: Rw::RandRw, bs: 8192, number_ios: Some(7), runtime: None, ..Load::default() };
        assert_eq!(parse("--rw randrw --bs=8k --number_ios=7"), Ok(load));
        assert_eq!(parse("--rw=readwrite").unwrap().rw, Rw::ReadWrite);
        assert_eq!(parse("--rw=rw --lat=all --no-fill").unwrap().fill, Fill::No);
        for (words, kind) in
            [("", None), ("--verify", Some(Verify::Crc32c)), ("--verify=pattern", Some(Verify::Pattern))]
        {
            assert_eq!(parse(words).unwrap().verify, kind, "{words}");
        }
    }

    #[test]
    fn refused() {
        for (words, expect) in [
            ("--rw=sideways", "expected read, write, randread"),
            ("--bs=x", "expected bytes"),
            ("--iodepth=-1", "--iodepth"),
            ("--verify=md5", "expected pattern, crc32c"),
            ("--frobnicate", "--frobnicate"),
            ("--runtime=x", "expected a time"),
        ] {
            let error = parse(words).unwrap_err();
            assert!(error.contains(expect), "{words}: {error}");
        }
    }
}
