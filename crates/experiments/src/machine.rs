//! What a figure was measured on.

use std::fs;
use std::thread::available_parallelism;

/// The CPU, how many of it, and the kernel; as far as the system tells.
pub(crate) fn describe() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("a CPU that does not say its name", |(_, name)| name.trim());
    let cpus = available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{model}, {cpus} CPUs, Linux {}, {}", kernel.trim(), std::env::consts::ARCH)
}
