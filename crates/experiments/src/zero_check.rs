//! `zero-check`: how fast it is told that a write is all zero, and what asking costs when it is not.

use crate::chart::{Bar, Chart, Group, Tone};
use crate::experiment::{Experiment, Setting};
use crate::report::Report;
use crate::row::{Limit, Row, Unit};
use crate::turns::{Figures, Way, turns};
use std::any::Any;
use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use udm_base::{Sector, Sectors};
use udm_bench::Error;
use udm_io::{Bio, BlockDevice, Clock, Cx, DeviceId, Domain, Limits, Op, OpFlags, Status, is_zero, zero_kernel};

pub(super) const EXPERIMENT: Experiment =
    Experiment { name: "zero-check", about: "how fast it is told that a write is all zero", wants_folder: false, run };

/// Bytes that are asked about at a time.
const BLOCK: usize = 64 << 10;
/// Of blocks that stay in the second cache but not in the first.
const IN_CACHE: usize = 4 * BLOCK;
/// Bytes that are in no cache when they are read again, and bytes of them that a turn reads: about 1 ms.
const BEYOND_CACHES: usize = 256 << 20;
const PART: usize = 16 << 20;
/// What the seed's author measured, in MB/s, and how much more that was than memcmp against a page of zeroes.
const SEED: (f64, f64) = (8137.0, 5.0);

fn run(setting: &Setting<'_>) -> Result<Report, Error> {
    let clock = &**setting.domain.clock();
    // Short turns: what else runs on the machine then spoils some of them, and not every one a little.
    let rounds = setting.or_quick(151, 5);
    let (in_cache, beyond_caches) = (zeroes(IN_CACHE + PAGE), zeroes(BEYOND_CACHES + PAGE));
    let (in_cache, beyond_caches) = (pages(&in_cache, IN_CACHE), pages(&beyond_caches, BEYOND_CACHES));
    let took_turns = |place: &str, memory: &[u8], repeats: usize| {
        // Each turn goes on where the last one ended: what it reads has left the caches since it was read before.
        let next = Cell::new(0);
        let part = memory.len().min(PART);
        let way = |name, check: fn(&[u8]) -> bool| {
            let next = &next;
            Way::new(name, move || {
                let at = next.replace((next.get() + part) % memory.len());
                Ok(speed(clock, &memory[at..at + part], repeats, check))
            })
        };
        let mut ways = [way("udm", is_zero), way("memcmp", memcmp), way("seed", seed), way("read", plain_read)];
        turns(rounds, &mut ways, |n| (setting.progress)(&format!("zero-check in {place}, round {n} of {rounds}")))
    };
    let cached = took_turns("L2", in_cache, setting.or_quick(400, 40))?;
    let uncached = took_turns("RAM", beyond_caches, 1)?;

    let cost = cost_of_asking(setting, clock, rounds)?;

    let common = Row {
        experiment: EXPERIMENT.name,
        policy: Some(zero_kernel().to_owned()),
        size: Some(BLOCK as u64),
        command: setting.command.clone(),
        ..Row::default()
    };
    let compared = |place: &str, found: &Figures, by: &str, with: &str| Row {
        row: format!("zeroes in {place}, beside {with}"),
        disk: Some(place.to_owned()),
        baseline: Some(found.greatest(by)),
        figure: Some(found.greatest("udm")),
        ratio: Some(found.greatest("udm") / found.greatest(by)),
        rounds: found.ratios("udm", by),
        ..common.clone()
    };
    let megabytes = Row {
        row: "zeroes in L2, beside what the seed's author measured".to_owned(),
        disk: Some("L2".to_owned()),
        seed_figure: Some(SEED.0),
        seed_ratio: Some(SEED.1),
        figure: Some(cached.greatest("udm") * 1000.0),
        unit: Unit::MegabytesPerSecond,
        ..common.clone()
    };
    let asking = Row {
        row: "not zero, in L2: what asking adds to a bio".to_owned(),
        disk: Some("L2".to_owned()),
        baseline: Some(cost.median("without")),
        figure: Some(udm_bench::Spread::of(&differences(&cost)).median),
        unit: Unit::Nanoseconds,
        ..common.clone()
    };
    let rows = vec![
        compared("L2", &cached, "seed", "the seed's loop").judged(Limit::AtLeast(3.5)),
        compared("L2", &cached, "memcmp", "memcmp with a page of zeroes").judged(Limit::AtLeast(1.0)),
        megabytes.judged(Limit::AtLeast(SEED.0)),
        compared("RAM", &uncached, "read", "a plain read").judged(Limit::AtLeast(0.95)),
        compared("RAM", &uncached, "memcmp", "memcmp with a page of zeroes"),
        compared("RAM", &uncached, "seed", "the seed's loop"),
        asking.judged(Limit::AtMost(10.0)),
    ];
    Ok(Report {
        name: EXPERIMENT.name,
        title: "Telling that a write is all zero",
        method: vec![
            format!(
                "Blocks of 64 KiB of zeroes are asked about one after the other, in {} KiB that stay in the second cache and \
                 in {} MiB that fit none, by each way in turns, {rounds} rounds; figures are each way's best round: \
                 what else runs on the machine makes rounds slower, and none faster. `udm_io::is_zero` looks at three words \
                 and then reads all, here by {}. The seed's loop is its algorithm written afresh: three words, then 32 words of \
                 128 bits at a time, not vectorised, as a kernel is compiled: two chains of or's, each a word of 64 bits a \
                 cycle at best, as gcc 12 makes of the seed's C too. A plain read adds up all words.",
                IN_CACHE >> 10,
                beyond_caches.len() >> 20,
                zero_kernel()
            ),
            "The last row is of writes that are not zero: the time from submission to completion on a device that asks, less \
             that on one that does not (the baseline)."
                .to_owned(),
        ],
        charts: charts(&cached, &uncached),
        rows,
        quick: setting.quick,
        command: setting.command.clone(),
    })
}

fn charts(cached: &Figures, uncached: &Figures) -> Vec<Chart> {
    let group = |label: &str, found: &Figures, goal: Option<(f64, String)>| {
        let bar = |label: &str, name: &str, tone| Bar { label: label.to_owned(), value: found.greatest(name), tone };
        Group {
            label: label.to_owned(),
            bars: vec![
                bar("udm", "udm", Tone::Ours),
                bar("memcmp", "memcmp", Tone::Other),
                bar("plain read", "read", Tone::Other),
                bar("the seed's loop", "seed", Tone::Seed),
            ],
            goal,
        }
    };
    let goal = 3.5 * cached.greatest("seed");
    let goal = Some((goal.max(cached.greatest("memcmp")), "goal: 3.5 × the seed's loop, and memcmp".to_owned()));
    let panel = |title: &str, groups| Chart::Bars { title: title.to_owned(), unit: "GB/s", groups };
    vec![
        panel("64 KiB blocks of zeroes in the second cache", vec![group("in L2", cached, goal)]),
        panel(
            "64 KiB blocks of zeroes in memory",
            vec![group(
                "in RAM",
                uncached,
                Some((0.95 * uncached.greatest("read"), "goal: 0.95 of a plain read".to_owned())),
            )],
        ),
    ]
}

/// Zeroes in pages of their own: untouched ones are all the same page, which stays in the first cache.
fn zeroes(bytes: usize) -> Vec<u8> {
    let mut memory = vec![1; bytes];
    black_box(&mut memory).fill(0);
    memory
}

const PAGE: usize = 4096;

/// So many bytes from where a page begins, as buffers for I/O do: memcmp is slower elsewhere.
fn pages(memory: &[u8], bytes: usize) -> &[u8] {
    &memory[memory.as_ptr().align_offset(PAGE)..][..bytes]
}

/// GB/s at which `check` takes all blocks for zero.
fn speed(clock: &dyn Clock, memory: &[u8], repeats: usize, check: fn(&[u8]) -> bool) -> f64 {
    let start = clock.now();
    for _ in 0..repeats {
        for block in black_box(memory).chunks_exact(BLOCK) {
            assert!(check(black_box(block)), "zeroes are zero");
        }
    }
    let nanos = (clock.now().0 - start.0).max(1);
    (repeats * memory.len()) as f64 / nanos as f64
}

fn memcmp(block: &[u8]) -> bool {
    static ZEROES: [u8; PAGE] = [0; PAGE];
    block.chunks_exact(PAGE).all(|part| part == black_box(&ZEROES))
}

/// All words, added up.
fn plain_read(block: &[u8]) -> bool {
    let (words, []) = block.as_chunks::<8>() else { return false };
    let sum = words.iter().fold(0u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(*word)));
    black_box(sum) == 0
}

/// A device that ends every bio, and asks first whether it is all zero, or does not.
struct Asking {
    asks: bool,
}

impl BlockDevice for Asking {
    fn submit(&self, cx: &Cx<'_>, bio: Bio) -> Option<Bio> {
        if self.asks {
            black_box(bio.is_zero());
        }
        cx.end(bio, Status::Ok);
        None
    }

    fn sectors(&self) -> Sectors {
        Sectors::in_bytes(IN_CACHE as u64)
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn id(&self) -> DeviceId {
        DeviceId::Anonymous(std::ptr::from_ref(self).addr())
    }

    fn name(&self) -> String {
        "asking".to_owned()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Nanoseconds that a write takes which is not zero, on a device that asks and on one that does not.
fn cost_of_asking(setting: &Setting<'_>, clock: &dyn Clock, rounds: usize) -> Result<Figures, Error> {
    let bios = setting.or_quick(40_000, 4_000);
    let way = |name, asks| {
        let mut memory = vec![7; IN_CACHE];
        let domain: &Domain = setting.domain;
        Way::new(name, move || {
            let system = |source| Error::System { what: "a channel".to_owned(), source };
            let channel = domain.channel().map_err(system)?;
            let dev = channel.attach(Arc::new(Asking { asks }));
            let start = clock.now();
            for n in 0..bios {
                let block = &mut memory[n % (IN_CACHE / BLOCK) * BLOCK..][..BLOCK];
                // SAFETY: the device ends the bio before `submit` returns, so that the memory is ours again.
                let sent = unsafe { channel.submit(dev, Op::Write, OpFlags::default(), Sector::ZERO, block, 0) };
                assert!(sent && channel.completed().is_some(), "the device ends bios at once");
            }
            Ok((clock.now().0 - start.0) as f64 / bios as f64)
        })
    };
    turns(rounds, &mut [way("with", true), way("without", false)], |n| {
        (setting.progress)(&format!("zero-check of what is not zero, round {n} of {rounds}"));
    })
}

fn differences(cost: &Figures) -> Vec<f64> {
    cost.of("with").iter().zip(cost.of("without")).map(|(with, without)| with - without).collect()
}

/// The seed's algorithm: bytes up to where words are aligned; the first, middle and last word; then 32 words of 128
/// bits at a time, and the bytes that are left.
fn seed(block: &[u8]) -> bool {
    let any = |bytes: &[u8]| bytes.iter().any(|b| *b != 0);
    let (head, rest) = block.split_at(block.as_ptr().align_offset(16).min(block.len()));
    let (words, tail) = rest.split_at(rest.len() / 512 * 512);
    if any(head) {
        return false;
    }
    let word = |at: usize| any(&rest[at * 16..][..16]);
    if !words.is_empty() && (word(0) || word(rest.len() / 32) || word(rest.len() / 16 - 1)) {
        return false;
    }
    words.chunks_exact(512).all(|chunk| combined(chunk) == 0) && !any(tail)
}

/// 32 words of 128 bits, or-ed by halves. A kernel may not use vector registers, so that its compiler has none here;
/// volatile reads keep ours from using them.
#[inline]
fn combined(chunk: &[u8]) -> u64 {
    let words: *const u64 = chunk[..512].as_ptr().cast();
    let half = |at: usize| {
        // SAFETY: within the 512 bytes, and aligned: the chunk begins at an address that `seed` has rounded up to 16.
        unsafe { words.add(at).read_volatile() }
    };
    let (mut low, mut high) = (half(0), half(1));
    for at in 1..32 {
        low |= half(2 * at);
        high |= half(2 * at + 1);
    }
    low | high
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is measured beside each other gives the same answers.
    #[test]
    fn all_ways_agree() {
        let mut memory = zeroes(BLOCK);
        for at in [None, Some(0), Some(7), Some(BLOCK / 2), Some(BLOCK / 3), Some(BLOCK - 1), Some(BLOCK - 9000)] {
            at.into_iter().for_each(|at| memory[at] = 0x10);
            for (name, way) in
                [("udm", is_zero as fn(&[u8]) -> bool), ("memcmp", memcmp), ("seed", seed), ("read", plain_read)]
            {
                assert_eq!(way(&memory), at.is_none(), "{name}: {at:?}");
            }
            at.into_iter().for_each(|at| memory[at] = 0);
        }
        memory[5] = 1;
        assert!(seed(&memory[6..9000]) && !seed(&memory[5..9000]) && seed(&memory[6..100]));
    }

    #[test]
    fn a_quick_run() {
        let domain = Domain::default();
        let progress = |_: &str| ();
        let setting = Setting {
            domain: &domain,
            quick: true,
            folder: None,
            fio_engine: None,
            only: None,
            progress: &progress,
            command: "udm bench".into(),
        };
        let report = run(&setting).unwrap();
        assert_eq!(report.rows.len(), 7);
        assert!(report.rows.iter().all(|r| r.figure.is_some_and(f64::is_finite)));
        assert_eq!(report.rows.iter().filter(|r| r.verdict.is_some()).count(), 5);
        assert!(report.markdown().contains("zero-check.svg"));
    }
}
