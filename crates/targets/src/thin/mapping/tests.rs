//! The cache against a plain map, with room and without, and with many readers.

use super::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

/// A generator of numbers, splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % below
    }
}

/// What a lookup has just read.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Step {
    Top,
    Node,
    Leaf,
    Entry,
}

type Hook = Box<dyn FnMut(Step)>;

thread_local!(static HOOK: std::cell::RefCell<Option<Hook>> = const { std::cell::RefCell::new(None) });

/// Where a reader can be overtaken. What this thread has hooked in here happens then, but not within itself.
pub(super) fn linger(step: Step) {
    if let Some(mut hook) = HOOK.take() {
        hook(step);
        HOOK.set(Some(hook));
    }
}

const MIB: usize = 1 << 20;

#[test]
fn tells_what_it_was_told() {
    let cache = MappingCache::new(MIB);
    let m = cache.volume(1 << 28);
    let at = |data, shared| Known::At(Place { data, shared });
    assert_eq!(m.lookup(7), Known::Unknown);
    m.set(7, at(99, false));
    m.set(8, Known::Unmapped);
    m.set((1 << 28) - 1, at((1 << 40) - 1, true));
    assert_eq!((m.lookup(7), m.lookup(8), m.lookup(9)), (at(99, false), Known::Unmapped, Known::Unknown));
    assert_eq!(m.lookup((1 << 28) - 1), at((1 << 40) - 1, true));
    m.share_all();
    assert_eq!(m.lookup(7), at(99, true));
    m.set(7, at(100, false));
    assert_eq!(m.lookup(7), at(100, false));
    m.clear(0..8);
    assert_eq!((m.lookup(7), m.lookup(8)), (Known::Unknown, Known::Unmapped));
    m.fill(1000, 600..2000, &[(1000, Place { data: 5, shared: false })]);
    assert_eq!((m.lookup(599), m.lookup(600), m.lookup(1999)), (Known::Unknown, Known::Unmapped, Known::Unmapped));
    assert_eq!((m.lookup(2000), m.lookup(1000)), (Known::Unknown, at(5, false)));
    m.forget_all();
    assert_eq!((m.lookup(1000), m.lookup(8), m.lookup(1500)), (Known::Unknown, Known::Unknown, Known::Unknown));
    // Far beyond what it was made for: never known, never wrong.
    m.set(u64::MAX, at(1, false));
    m.clear(5..u64::MAX);
    m.fill(u64::MAX, u64::MAX - 3..u64::MAX, &[]);
    assert_eq!(m.lookup(u64::MAX), Known::Unknown);
    drop(m);
    assert_eq!(cache.bytes(), 0, "a volume that is gone holds nothing");
}

#[test]
fn holds_more_than_it_has_eras() {
    let m = MappingCache::new(MIB).volume(1000);
    for round in 0..2 * entry::ERAS {
        m.set(round % 500, Known::At(Place { data: round, shared: false }));
        m.share_all();
        let known = m.lookup(round % 500);
        let shared = Known::At(Place { data: round, shared: true });
        assert!(known == shared || known == Known::Unknown, "{round}: {known:?}");
    }
}

/// Random changes of two volumes beside a plain map; with `must_know`, what was said last must still be known.
fn model(seed: u64, budget: usize, range: Range<u64>, steps: usize, must_know: bool) {
    let (base, blocks) = (range.start, range.end - range.start);
    println!("seed {seed}, budget {budget}");
    let mut random = Random(seed);
    let cache = MappingCache::new(budget);
    let volumes = [cache.volume(range.end), cache.volume(range.end)];
    let mut models: [BTreeMap<u64, Known>; 2] = Default::default();
    let (mut known, mut asked) = (0, 0);
    for step in 0..steps {
        let v = random.next(2) as usize;
        let (volume, model) = (&volumes[v], &mut models[v]);
        let block = base + random.next(blocks);
        let place = |random: &mut Random| Place { data: random.next(1 << 40), shared: random.next(2) == 0 };
        match random.next(100) {
            0..50 => {
                // Runs, so that leaves become dense.
                for block in block..(block + random.next(40)).min(range.end) {
                    let known = Known::At(place(&mut random));
                    volume.set(block, known);
                    model.insert(block, known);
                }
            }
            50..60 => {
                volume.set(block, Known::Unmapped);
                model.insert(block, Known::Unmapped);
            }
            60..75 => {
                let part = block..(block + 1 + random.next(3000)).min(range.end);
                let mut mapped = BTreeMap::new();
                for _ in 0..random.next(30) {
                    mapped.insert(part.start + random.next(part.end - part.start), place(&mut random));
                }
                let list: Vec<_> = mapped.iter().map(|(&b, &p)| (b, p)).collect();
                volume.fill(block, part.clone(), &list);
                for b in part {
                    model.insert(b, mapped.get(&b).map_or(Known::Unmapped, |&p| Known::At(p)));
                }
            }
            75..90 => {
                let part = block..(block + 1 + random.next(if step % 10 == 0 { blocks } else { 600 })).min(range.end);
                volume.clear(part.clone());
                let gone: Vec<u64> = model.range(part).map(|(&b, _)| b).collect();
                for block in gone {
                    model.remove(&block);
                }
            }
            90..95 => {
                volume.share_all();
                for known in model.values_mut() {
                    if let Known::At(place) = known {
                        place.shared = true;
                    }
                }
            }
            95 => {
                volume.forget_all();
                model.clear();
            }
            _ => {}
        }
        assert!(cache.bytes() <= budget, "{} bytes of {budget}", cache.bytes());
        for _ in 0..8 {
            let (v, block) = (random.next(2) as usize, base + random.next(blocks));
            let (found, expect) = (volumes[v].lookup(block), models[v].get(&block).copied().unwrap_or(Known::Unknown));
            asked += usize::from(expect != Known::Unknown);
            known += usize::from(found != Known::Unknown);
            assert!(
                found == expect || (found == Known::Unknown && !must_know),
                "{step}: {block}: {found:?}, not {expect:?}"
            );
        }
    }
    assert!(asked > 0 && known > asked / 50, "{known} of {asked}: it forgets nearly everything");
}

#[test]
fn agrees_with_a_map() {
    for seed in 1..=2 {
        model(seed, 16 * MIB, 0..20_000, 700, true);
        model(seed, 16 * MIB, 0..3 << 18, 100, true);
        // Beyond what the directory has itself, in part.
        model(seed, 16 * MIB, (1 << 28) - 5000..(1 << 28) + 5000, 500, true);
    }
}

#[test]
fn agrees_with_a_map_where_it_knows_without_room() {
    for seed in 1..=2 {
        model(seed, 192 << 10, 0..60_000, 500, false);
        model(seed, 160 << 10, 0..1 << 20, 200, false);
        model(seed, 192 << 10, (1 << 28) - 30_000..(1 << 28) + 30_000, 500, false);
    }
}

/// A sixty-fourth of: 4 million mapped blocks, at random in 2^28, in 64 MiB.
#[test]
fn scattered_blocks_fit() {
    let (budget, blocks) = (MIB, 1 << 22);
    let mut random = Random(5);
    let mapped: BTreeMap<u64, Place> =
        (0..65_536).map(|_| (random.next(blocks), Place { data: random.next(1 << 40), shared: false })).collect();
    let cache = MappingCache::new(budget);
    let volume = cache.volume(blocks);
    // As leaves of the metadata's tree tell it, in any order.
    let list: Vec<(u64, Place)> = mapped.into_iter().collect();
    let leaves: Vec<&[(u64, Place)]> = list.chunks(168).collect();
    let mut order: Vec<usize> = (0..leaves.len()).collect();
    (1..order.len()).rev().for_each(|i| order.swap(i, random.next(i as u64 + 1) as usize));
    for at in order {
        let end = leaves.get(at + 1).map_or(blocks, |next| next[0].0);
        volume.fill(leaves[at][0].0, leaves[at][0].0..end, leaves[at]);
    }
    let known = list.iter().filter(|(b, p)| volume.lookup(*b) == Known::At(*p)).count();
    println!("{known} of {} in {} bytes", list.len(), cache.bytes());
    assert!(known == list.len(), "{known} of {} in {} bytes of {budget}", list.len(), cache.bytes());
}

/// What is used stays when what is not makes room.
#[test]
fn second_chance() {
    let cache = MappingCache::new(512 << 10);
    let (hot, cold) = (cache.volume(1 << 20), cache.volume(1 << 20));
    let place = |data| Known::At(Place { data, shared: false });
    (0..4096).for_each(|b| hot.set(b, place(b)));
    let mut lost = 0;
    for block in 0..200_000 {
        cold.set(block, place(block));
        if block % 16 == 0 {
            let b = block / 16 * 37 % 4096;
            if hot.lookup(b) == Known::Unknown {
                lost += 1;
                hot.set(b, place(b));
            }
        }
    }
    assert!(cold.lookup(0) == Known::Unknown, "there was no need to make room");
    assert!(lost < 600, "{lost} of 12500 looks at what is used found nothing");
}

/// A reader that is overtaken between any two of its steps, while its leaf, node or top becomes another volume's.
#[test]
fn a_reader_that_is_overtaken_looks_again() {
    // A block whose node the directory has itself, and one whose node is in a top.
    for base in [0, 1 << 29] {
        for step in [Step::Top, Step::Node, Step::Leaf, Step::Entry] {
            for whole in [false, true] {
                for dense in [1, 400] {
                    if base == 0 && step == Step::Top {
                        continue;
                    }
                    overtake(base, step, whole, dense);
                }
            }
        }
    }
}

fn overtake(base: u64, step: Step, whole: bool, dense: u64) {
    let cache = MappingCache::new(MIB);
    let volumes = Arc::new([cache.volume(1 << 28), cache.volume(1 << 28)]);
    let mine = |b| Known::At(Place { data: b, shared: false });
    let other = |b| Known::At(Place { data: 7000 + b, shared: false });
    (0..dense).for_each(|b| volumes[0].set(base + b, mine(b)));
    let (hooked, mut once) = (volumes.clone(), true);
    HOOK.set(Some(Box::new(move |now| {
        if now == step && std::mem::take(&mut once) {
            if whole {
                hooked[0].forget_all();
            } else {
                hooked[0].clear(base..base + 512);
            }
            (0..dense).for_each(|b| hooked[1].set(base + b, other(b)));
        }
    })));
    let found = volumes[0].lookup(base);
    HOOK.set(None);
    assert_eq!(volumes[1].lookup(base), other(0));
    assert_eq!(found, Known::Unknown, "after {step:?} from {base}, all of it: {whole}, {dense} entries");
}

/// Every volume of a pool that has so many, and every part of one that is that large, is known as well as the first.
#[test]
fn many_volumes_and_far_blocks_are_known() {
    let place = |data| Known::At(Place { data, shared: false });
    let cache = MappingCache::new(64 * MIB);
    let volumes: Vec<Mappings> = (0..5000).map(|_| cache.volume(1 << 14)).collect();
    (0..).zip(&volumes).for_each(|(data, volume)| volume.set(data, place(data)));
    assert!((0..).zip(&volumes).all(|(data, volume)| volume.lookup(data) == place(data)), "{} bytes", cache.bytes());
    println!("{} bytes a volume", cache.bytes() / volumes.len());
    drop(volumes);
    assert_eq!(cache.bytes(), 0);
    let far = cache.volume(4000 << 27);
    (0..4000).for_each(|top| far.set((top << 27) + 5, place(top)));
    assert!((0..4000).all(|top| far.lookup((top << 27) + 5) == place(top)), "{} bytes", cache.bytes());
    far.clear(1 << 27..3999 << 27);
    assert_eq!((far.lookup(5), far.lookup((3999 << 27) + 5)), (place(0), place(3999)));
    assert!((1..3999).all(|top| far.lookup((top << 27) + 5) == Known::Unknown));
}

/// Trap: what cannot be forgotten takes all there is. Tops and nodes make room, too.
#[test]
fn far_blocks_make_room_for_each_other() {
    let place = |data| Known::At(Place { data, shared: false });
    let cache = MappingCache::new(MIB);
    let volumes = [cache.volume(4000 << 27), cache.volume(4000 << 27)];
    for round in 0..4000u64 {
        let volume = &volumes[round as usize % 2];
        let block = ((round % 1000) << 27) + ((round << 18) & ((1 << 27) - 1));
        volume.set(block, place(round));
        assert_eq!(volume.lookup(block), place(round), "what was noted last is known");
        assert!(cache.bytes() <= MIB);
    }
}

/// Readers never see a block's data as another's while leaves grow, move and make room beneath them.
#[test]
fn readers_see_their_own_block() {
    let blocks = 1 << 20;
    let cache = MappingCache::new(192 << 10);
    let volumes = [cache.volume(blocks), cache.volume(blocks)];
    // Data tells which block of which volume it is of.
    let place = |v: usize, b: u64, r: u64| Place { data: r << 22 | b << 1 | v as u64, shared: false };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|seed| {
                let (volumes, stop) = (&volumes, &stop);
                scope.spawn(move || {
                    let mut lookups = 0u32;
                    HOOK.set(Some(Box::new(move |_| {
                        lookups += 1;
                        if lookups.is_multiple_of(7) {
                            std::thread::yield_now();
                        }
                    })));
                    let (mut random, mut known) = (Random(seed), 0u64);
                    while !stop.load(Ordering::Relaxed) || known == 0 {
                        let v = random.next(2) as usize;
                        let b = random.next(3) * (1 << 18) + random.next(4096);
                        if let Known::At(place) = volumes[v].lookup(b) {
                            assert_eq!(place.data & ((1 << 22) - 1), b << 1 | v as u64, "another's data");
                            known += 1;
                        }
                    }
                    known
                })
            })
            .collect();
        let mut random = Random(77);
        for round in 0..4_000 {
            let v = random.next(2) as usize;
            let b = random.next(3) * (1 << 18) + random.next(4096);
            match random.next(12) {
                0 => volumes[v].clear(b..b + random.next(2000)),
                1 => {
                    volumes[v].fill(b, b..b + 700, &[(b + 3, place(v, b + 3, round)), (b + 9, place(v, b + 9, round))])
                }
                2 => volumes[v].share_all(),
                // Nodes and all, so that their pages become leaves and those of others.
                3 => volumes[v].forget_all(),
                _ => (b..b + random.next(30)).for_each(|b| volumes[v].set(b, Known::At(place(v, b, round)))),
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(readers.into_iter().all(|r| r.join().is_ok_and(|known| known > 0)));
    });
}
