//! Experiments: measurements that answer a question, with their own devices, rounds, limits and a picture.
//!
//! `list.rs` is the one list of them. Each gives a report: rows, charts and what was done, which is written as JSON,
//! Markdown and SVG. What a row's fields mean is told at `row::Row`. `udm bench NAME` runs this program, which holds
//! what only measurements need: the simulator and the modelled disk are not in udm itself.
//!
//! # Invariants
//! - What is compared takes turns: `turns` runs each of several ways once a round, and figures are medians of rounds.
//! - A row says what was compared, its limit and the verdict; a report without a limit has no verdict.
//! - A run leaves nothing outside of its folder.

mod backing;
mod chart;
mod cli;
mod experiment;
mod fio;
mod list;
mod loop_ram;
mod machine;
mod no_clone;
mod pass;
mod polling;
mod report;
mod row;
mod seeds;
mod snapshot;
mod snapshot_cow;
mod source_tree;
mod thin;
mod turns;
mod zero_check;
mod zero_skip;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run(std::env::args_os().skip(1)).into()
}
