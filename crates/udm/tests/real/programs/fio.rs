//! `fio` with its NBD engine: many requests in flight, all verified.

use super::{fails, outcome, run};
use crate::kinds::{Nature, Subject};

/// Whether it is there with an engine for NBD; says so if not.
pub(crate) fn installed() -> bool {
    if !super::installed("fio") {
        return false;
    }
    let (_, engines) = outcome("fio", &["--enghelp"]);
    let found = engines.lines().any(|line| line.trim() == "nbd");
    if !found {
        println!("SKIP fio has no nbd engine");
    }
    found
}

/// Options of every run: `jobs` connections, each with its own part of the device.
pub(crate) fn options(uri: &str, jobs: u64, size: u64) -> Vec<String> {
    let part = size / jobs;
    [
        "--name=job".to_owned(),
        "--ioengine=nbd".into(),
        format!("--uri={uri}"),
        format!("--numjobs={jobs}"),
        format!("--size={part}"),
        format!("--offset_increment={part}"),
        "--iodepth=32".into(),
        "--group_reporting".into(),
        // No file of its own in the working directory.
        "--verify_state_save=0".into(),
    ]
    .into()
}

pub(super) fn check(subject: &Subject) {
    let options = options(&subject.uri(), 2, crate::kinds::SIZE);
    let with = |more: &[&'static str]| -> Vec<&str> {
        options.iter().map(String::as_str).chain(more.iter().copied()).collect()
    };
    match subject.nature {
        Nature::Keeps => {
            run("fio", &with(&["--rw=randwrite", "--bs=4k", "--verify=crc32c"]));
            run(
                "fio",
                &with(&[
                    "--rw=randrw",
                    "--bsrange=512-64k",
                    "--bs_unaligned=0",
                    "--verify=crc32c",
                    "--verify_backlog=32",
                ]),
            );
            run("fio", &with(&["--rw=write", "--bs=1m", "--verify=crc32c", "--fsync=4"]));
        }
        // What it wrote was zeroes, so it finds what it wrote.
        Nature::Zeroes => {
            drop(run("fio", &with(&["--rw=randwrite", "--bs=4k", "--verify=pattern", "--verify_pattern=0x00"])))
        }
        Nature::ReadOnly => {
            run("fio", &with(&["--rw=randread", "--bs=4k"]));
            fails("fio", &with(&["--rw=randwrite", "--bs=4k"]), &["read-only", "not permitted"]);
        }
        Nature::Fails => {
            fails("fio", &with(&["--rw=randread", "--bs=4k"]), &["Input/output error"]);
            fails("fio", &with(&["--rw=randwrite", "--bs=4k"]), &["Input/output error"]);
        }
    }
}
