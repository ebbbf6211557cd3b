//! The command line.

use clap::Parser;
use std::path::PathBuf;

/// Random operations on a daemon under verified load.
///
/// It ends with a table of what was done, and fails when something hangs, leaks, is refused that must not be, or reads
/// other bytes than were written. The seed fixes the mix of operations; the order in which threads come by is not
/// repeated.
#[derive(Parser, Clone, Debug)]
#[command(name = "cargo xtask soak")]
pub struct Options {
    /// How long operations go on
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// The mix
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only these operations
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub only: Vec<String>,
    /// All but these operations
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with = "only")]
    pub without: Vec<String>,
    /// The program under test
    #[arg(long, default_value = "udm")]
    pub udm: PathBuf,
    /// Threads that do operations
    #[arg(long, default_value_t = 4)]
    pub operators: u64,
    /// Seconds, of a harness that gets its CPU, without any progress, after which something hangs
    #[arg(long, default_value_t = 90)]
    pub patience: u64,
    /// Microseconds, on average, between two batches of a writer
    #[arg(long, default_value_t = 5000)]
    pub pace: u64,
    /// The table as JSON
    #[arg(long)]
    pub json: bool,
    /// Where the daemon's directory and files are made
    #[arg(long, default_value = "/tmp")]
    pub dir: PathBuf,
    /// Leave directory and files there
    #[arg(long)]
    pub keep: bool,
    /// List the operations
    #[arg(long)]
    pub list: bool,
    /// Tell of each operation
    #[arg(long, short)]
    pub verbose: bool,
}
