//! What the seeds' authors published, and which rows stand beside it.

use super::{Pick, Seed};
use crate::{loop_ram, no_clone, polling, zero_check, zero_skip};

/// The five, in their order.
pub(crate) static SEEDS: &[Seed] = &[
    Seed {
        number: "000",
        title: "No clone",
        claim: "dm-linear and dm-striped pass the submitter's own bio down and restore two fields when it comes back: 1970 MiB/s \
                became 2238 of the ram disk's 2449, and a larger record cost 93 of them.",
        experiments: &[&no_clone::EXPERIMENT],
        picks: &[
            Pick { label: "linear", beside: "ram", words: &["sequential, 12 jobs", ": linear"] },
            Pick { label: "enlarged record", beside: "ram", words: &["sequential, 12 jobs", "enlarged"] },
            Pick { label: "cloning forced", beside: "ram", words: &["sequential, 12 jobs", "cloning forced"] },
            Pick { label: "own bio", beside: "cloning", words: &["sequential, 12 jobs", "beside cloning"] },
            Pick { label: "eight linears", beside: "ram", words: &["sequential, 12 jobs", "eight"] },
        ],
    },
    Seed {
        number: "001",
        title: "Zero skip",
        claim: "A thin pool that skips writes of zeroes to blocks without data: a copied file system takes 18.33 % of its volume where \
                the original takes 22.04 %, and zeroes are told at 8137 MB/s.",
        experiments: &[&zero_skip::EXPERIMENT, &zero_check::EXPERIMENT],
        picks: &[
            Pick { label: "copy that skips", beside: "its origin", words: &["copy that skips"] },
            Pick { label: "blocks of the copy", beside: "those not zero", words: &["skipping, 64 KiB writes"] },
            Pick { label: "telling zeroes", beside: "memcmp", words: &["zeroes in L2", "memcmp"] },
            Pick { label: "telling zeroes", beside: "the seed's rate", words: &["zeroes in L2", "author measured"] },
        ],
    },
    Seed {
        number: "002",
        title: "Loop and RAM",
        claim: "dm-loop maps files at twice the speed of the loop driver (850k against 451k IOPS at 4K, 220k against 111k at 32K), \
                and dm-ram is memory as a target, faster than brd and null_blk.",
        experiments: &[&loop_ram::EXPERIMENT],
        picks: &[
            Pick { label: "loop on tmpfs, 4K", beside: "loop driver", words: &["4K, 99", "engine, tmpfs"] },
            Pick { label: "loop on tmpfs, 32K", beside: "loop driver", words: &["32K, 2", "engine, tmpfs"] },
            Pick { label: "loop on disk, 4K", beside: "bare file", words: &["4K, 99", "engine, disk", "on the file"] },
            Pick { label: "loop on disk, 32K", beside: "loop driver", words: &["32K, 2", "engine, disk", "driver"] },
            Pick { label: "ram, 32K", beside: "plain copies", words: &["32K, 99", "ram, beside plain copies"] },
        ],
    },
    Seed {
        number: "003",
        title: "Snapshot COW order",
        claim: "kcopyd puts a job that finds no pages back at the head of its queue, not at the tail: writes of 4 KiB with fsync to an \
                origin go from 8 to 29 MB/s, writes of 1 MiB from 1.1 to 9.6.",
        experiments: &[&crate::snapshot_cow::EXPERIMENT],
        picks: &[
            Pick {
                label: "patch, 4K writes",
                beside: "tail requeue",
                words: &["the patch", "100M by 4096", "8K chunks, same"],
            },
            Pick {
                label: "patch, 1M writes",
                beside: "tail requeue",
                words: &["the patch", "100M by 1048576", "8K chunks, same"],
            },
            Pick {
                label: "udm, 8K chunks",
                beside: "the disk's best",
                words: &["the limit", "100M by 4096", "8K chunks, same"],
            },
            Pick {
                label: "udm, own disk",
                beside: "the disks' best",
                words: &["the limit", "100M by 4096", "8K chunks, own"],
            },
        ],
    },
    Seed {
        number: "004",
        title: "I/O polling",
        claim: "Polling through device mapper: linear over three NVMe devices goes from 212k to 284k IOPS with one process, striped from \
                307k to 412k with three, and skipping queues that another poller holds turns a loss of a fifth into a gain.",
        experiments: &[&polling::EXPERIMENT],
        picks: &[
            Pick {
                label: "linear, depth 1",
                beside: "interrupt, 5 µs",
                words: &["linear over three, 1 job, depth 1,", "5 µs: poll beside interrupt"],
            },
            Pick {
                label: "striped, depth 1",
                beside: "interrupt, 5 µs",
                words: &["striped over three, 1 job, depth 1,", "5 µs: poll beside interrupt"],
            },
            Pick {
                label: "linear, depth 128",
                beside: "interrupt, 5 µs",
                words: &["linear over three, 1 job, depth 128", "5 µs: poll beside interrupt"],
            },
            Pick {
                label: "3 jobs, own queues",
                beside: "interrupt, 5 µs",
                words: &["striped over three, 3 jobs, a queue", "5 µs: poll beside interrupt"],
            },
            Pick { label: "skip busy queues", beside: "wait for them", words: &["busy queues skipped"] },
        ],
    },
];
