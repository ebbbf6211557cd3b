//! Bios that come back to their target: after I/O, at a later time, after an event, after work.

mod every_second;
#[path = "../rig/mod.rs"]
mod rig;

use rig::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use udm_base::{ArgError, Sector, Sectors};
use udm_core::*;
use udm_io::*;

/// What a target of these tests does with bios, over one or two devices of which each maps to the same sector.
struct Any<B> {
    devices: Vec<TargetDevice>,
    behaviour: B,
}

trait Behaviour: Default + Send + Sync + 'static {
    fn map<'t>(&'t self, to: &'t [TargetDevice], cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'t>;
    fn end_io<'t>(&'t self, to: &'t [TargetDevice], bio: Bio, at: Sectors, context: u64) -> Map<'t> {
        let _ = (to, at, context);
        let status = bio.status();
        Map::Ended(bio, status)
    }
    fn resume_io<'t>(&'t self, to: &'t [TargetDevice], cx: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'t>;
    fn work(&self, bio: &mut Bio, at: Sectors, context: u64) -> u64 {
        let _ = (bio, at);
        context
    }
    fn presuspend(&self) {}
    fn chunk() -> Option<Sectors> {
        None
    }
}

/// Sends a bio on to a device.
fn on(to: &[TargetDevice], leg: usize, mut bio: Bio, at: Sectors) -> Map<'_> {
    bio.set_sector(to[leg].start + at);
    Map::Remapped(bio, &*to[leg].dev)
}

impl<B: Behaviour> Target for Any<B> {
    fn map(&self, cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'_> {
        self.behaviour.map(&self.devices, cx, bio, at)
    }
    fn end_io(&self, _: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'_> {
        self.behaviour.end_io(&self.devices, bio, at, context)
    }
    fn resume_io(&self, cx: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'_> {
        self.behaviour.resume_io(&self.devices, cx, bio, at, context)
    }
    fn work(&self, bio: &mut Bio, at: Sectors, context: u64) -> u64 {
        self.behaviour.work(bio, at, context)
    }
    fn status(&self, _: StatusKind) -> String {
        String::new()
    }
    fn presuspend(&self, _: bool) {
        self.behaviour.presuspend();
    }
}

fn ctr<B: Behaviour>(ctr: &mut Ctr<'_>) -> Result<NewTarget, ArgError> {
    let mut devices = Vec::new();
    while let Some(arg) = ctr.args.take() {
        devices.push(TargetDevice { dev: ctr.device(&arg, "no device")?, start: Sector::ZERO, len: ctr.len });
    }
    let made = NewTarget::new(Any { devices: devices.clone(), behaviour: B::default() });
    let made = made.maps_to(devices).takes_back().in_place();
    Ok(match B::chunk() {
        Some(chunk) => made.split_at(chunk),
        None => made,
    })
}

fn rig<B: Behaviour>(name: &'static str) -> Rig {
    let linear = *udm_targets::TARGETS.iter().find(|t| t.name == "linear").unwrap();
    let this = TargetType::new(name, [1, 0, 0], ctr::<B>);
    Rig::with_types(vec![Box::leak(Box::new(this)) as &TargetType, linear].leak())
}

/// A device of the target alone, one cut in parts, and one below another: each way that a bio has to it.
fn each_way(rig: &Rig, line: &str, check: impl Fn(&str, &Arc<MappedDevice>, &Arc<MappedDevice>)) {
    let whole = rig.device("whole", line);
    check("in place", &whole, &whole);
    whole.set_clone_always(true);
    check("by clones", &whole, &whole);
    whole.set_clone_always(false);
    let top = rig.device("top", "0 90 linear {whole} 5");
    check("compiled", &top, &whole);
    top.set_compile(false);
    check("not compiled", &top, &whole);
}

/// Reads from the second device what the first cannot give.
#[derive(Default)]
struct Mirror;

impl Behaviour for Mirror {
    fn map<'t>(&'t self, to: &'t [TargetDevice], _: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'t> {
        match on(to, 0, bio, at) {
            Map::Remapped(bio, dev) => Map::WithEndIo(bio, dev, 1),
            _ => unreachable!(),
        }
    }
    fn end_io<'t>(&'t self, to: &'t [TargetDevice], bio: Bio, at: Sectors, context: u64) -> Map<'t> {
        match bio.status() {
            Status::Io if context == 1 => match on(to, 1, bio, at) {
                Map::Remapped(bio, dev) => Map::WithEndIo(bio, dev, 2),
                _ => unreachable!(),
            },
            // So that it is seen who says what.
            Status::Io => Map::Ended(bio, Status::NoSpace),
            status => Map::Ended(bio, status),
        }
    }
    fn resume_io<'t>(&'t self, _: &'t [TargetDevice], _: &Cx<'_>, _: Bio, _: Sectors, _: u64) -> Map<'t> {
        unreachable!("nothing was kept")
    }
    fn chunk() -> Option<Sectors> {
        Some(Sectors::new(16))
    }
}

#[test]
fn what_failed_is_sent_elsewhere_and_ends_as_the_target_says() {
    let rig = rig::<Mirror>("mirror");
    let (a, b) = (rig.disk("/a", 1000), rig.disk("/b", 1000));
    each_way(&rig, "0 100 mirror /a /b", |way, md, _| {
        let io = rig.io(md);
        for failing in [false, true] {
            a.failing.store(failing, Ordering::Relaxed);
            // Across borders of chunks, too.
            for (sector, count) in [(1, 1), (3, 8), (0, 60)] {
                write(&io, sector, count, 7);
                assert!(read(&io, sector, count) == pattern(sector, count, 7), "{way}, failing {failing}");
            }
        }
        b.failing.store(true, Ordering::Relaxed);
        assert_eq!(io.read(Sector::ZERO, &mut [0; 4096]), Err(Status::NoSpace), "{way}");
        b.failing.store(false, Ordering::Relaxed);
        suspend(md);
        resume(md);
    });
}

/// Inverts what is read, by work on another thread.
#[derive(Default)]
struct Invert(AtomicU32);

impl Invert {
    fn invert(bio: &Bio) {
        let mut data = vec![0; bio.segments().bytes()];
        bio.copy_out(0, &mut data);
        data.iter_mut().for_each(|byte| *byte = !*byte);
        bio.copy_in(0, &data);
    }
}

impl Behaviour for Invert {
    fn map<'t>(&'t self, to: &'t [TargetDevice], _: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'t> {
        let read = bio.op() == Op::Read;
        match on(to, 0, bio, at) {
            Map::Remapped(bio, dev) if read => Map::WithEndIo(bio, dev, 0),
            map => map,
        }
    }
    fn end_io<'t>(&'t self, _: &'t [TargetDevice], bio: Bio, _: Sectors, context: u64) -> Map<'t> {
        match bio.status() {
            Status::Ok => Map::Work(bio, context),
            status => Map::Ended(bio, status),
        }
    }
    fn resume_io<'t>(&'t self, _: &'t [TargetDevice], _: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'t> {
        assert_eq!(context, at.get() + 1, "the work's answer");
        Map::Ended(bio, Status::Ok)
    }
    fn work(&self, bio: &mut Bio, at: Sectors, context: u64) -> u64 {
        assert_eq!(context, 0);
        self.0.fetch_add(1, Ordering::Relaxed);
        Self::invert(bio);
        at.get() + 1
    }
}

#[test]
fn data_is_changed_on_its_way_home_by_work_on_other_threads() {
    let rig = rig::<Invert>("invert");
    rig.disk("/a", 1000);
    each_way(&rig, "0 100 invert /a", |way, md, _| {
        let mut client = Client::new(&rig, md);
        let data = pattern(3, 20, 9);
        let written = client.write(3, data.clone(), OpFlags::NONE);
        assert_eq!(client.wait(written), Status::Ok);
        let reads: Vec<_> = (0..20).map(|at| client.read(3 + at, 1)).collect();
        for (at, token) in reads.into_iter().enumerate() {
            assert_eq!(client.wait(token), Status::Ok);
            let expect: Vec<u8> = data[at * 512..][..512].iter().map(|byte| !byte).collect();
            assert!(client.data(token) == expect, "{way}: sector {at}");
        }
    });
}

#[test]
fn a_channel_may_go_while_work_is_done_on_its_bios() {
    let rig = rig::<Invert>("invert");
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 invert /a");
    for _ in 0..50 {
        let buffers: Vec<_> = (0..8).map(|_| vec![0u8; 512]).collect();
        let channel = rig.domain.channel().unwrap();
        let dev = channel.attach(md.clone());
        for (token, buffer) in buffers.iter().enumerate() {
            let segment = buffer.clone().leak();
            // SAFETY: the memory is leaked.
            assert!(unsafe { channel.submit(dev, Op::Read, OpFlags::NONE, Sector::ZERO, segment, token as u64) });
        }
        drop(channel);
    }
    // Each is given back, when its last bio is home.
    rig.domain.drain(|| rig.domain.channels_left() == CHANNELS);
}

/// Delays what it is asked: a read by an hour, a write by a millisecond.
#[derive(Default)]
struct Delay;

impl Behaviour for Delay {
    fn map<'t>(&'t self, _: &'t [TargetDevice], cx: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'t> {
        let nanos = if bio.op() == Op::Read { 3_600_000_000_000 } else { 1_000_000 };
        Map::Delayed(bio, Until::At(cx.now().after(nanos)), at.get() + 3)
    }
    fn resume_io<'t>(&'t self, to: &'t [TargetDevice], _: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'t> {
        assert_eq!(context, at.get() + 3);
        on(to, 0, bio, at)
    }
}

#[test]
fn a_delayed_bio_goes_on_in_time_or_when_the_device_is_suspended() {
    let rig = rig::<Delay>("delay");
    rig.disk("/a", 1000);
    each_way(&rig, "0 100 delay /a", |way, md, below| {
        let mut client = Client::new(&rig, md);
        let written = client.write(2, pattern(2, 3, 4), OpFlags::NONE);
        assert_eq!(client.wait(written), Status::Ok, "{way}");
        let read = client.read(2, 3);
        assert_eq!(client.status(read), None, "{way}: an hour has not passed");
        suspend(below);
        assert_eq!(client.status(read), Some(Status::Ok), "{way}");
        assert!(client.data(read) == pattern(2, 3, 4), "{way}");
        resume(below);
        // One that another thread has to be woken for.
        let (domain, there, before) = (rig.domain.clone(), md.clone(), below.totals().reads);
        let reader = std::thread::spawn(move || {
            let io = BlockingIo::new(&domain, there).unwrap();
            io.read(Sector::new(2), &mut [0; 512])
        });
        while below.totals().reads == before {
            std::thread::yield_now();
        }
        suspend(below);
        assert_eq!(reader.join().unwrap(), Ok(()), "{way}");
        resume(below);
    });
}

#[test]
fn a_delayed_bio_does_not_hold_up_a_removal_nor_the_end_of_its_channel() {
    let rig = rig::<Delay>("delay");
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 delay /a");
    let mut client = Client::new(&rig, &md);
    let read = client.read(2, 3);
    assert_eq!(client.status(read), None);
    drop(client);
    suspend(&md);
    resume(&md);
    let mut client = Client::new(&rig, &md);
    let read = client.read(2, 3);
    assert_eq!(rig.registry.remove(&md, false).unwrap(), Removal::Done);
    assert_eq!(client.status(read), Some(Status::Ok));
}

/// Keeps bios until it is told otherwise.
#[derive(Default)]
struct Valve {
    open: AtomicBool,
    held: Held,
}

impl Valve {
    fn look<'t>(&'t self, to: &'t [TargetDevice], bio: Bio, at: Sectors) -> Map<'t> {
        let ticket = self.held.ticket();
        if self.open.load(Ordering::SeqCst) {
            return on(to, 0, bio, at);
        }
        Map::Delayed(bio, Until::Released(&self.held, ticket), at.get())
    }
}

impl Behaviour for Valve {
    fn map<'t>(&'t self, to: &'t [TargetDevice], _: &Cx<'_>, bio: Bio, at: Sectors) -> Map<'t> {
        self.look(to, bio, at)
    }
    fn resume_io<'t>(&'t self, to: &'t [TargetDevice], _: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'t> {
        assert_eq!(context, at.get());
        self.look(to, bio, at)
    }
    fn presuspend(&self) {
        self.open.store(true, Ordering::SeqCst);
        self.held.release_all();
    }
}

#[test]
fn what_is_held_for_an_event_goes_on_with_it() {
    let rig = rig::<Valve>("valve");
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 valve /a");
    let mut client = Client::new(&rig, &md);
    let tokens: Vec<_> = (0..40).map(|at| client.read(at, 1)).collect();
    assert!(tokens.iter().all(|token| client.status(*token).is_none()));
    suspend(&md);
    assert!(tokens.iter().all(|token| client.wait(*token) == Status::Ok));
}

/// Keeps each bio for some moments, again and again.
#[derive(Default)]
struct Again(AtomicU64);

impl Behaviour for Again {
    fn map<'t>(&'t self, _: &'t [TargetDevice], cx: &Cx<'_>, bio: Bio, _: Sectors) -> Map<'t> {
        Map::Delayed(bio, Until::At(cx.now()), 0)
    }
    fn resume_io<'t>(&'t self, to: &'t [TargetDevice], cx: &Cx<'_>, bio: Bio, at: Sectors, context: u64) -> Map<'t> {
        self.0.fetch_add(1, Ordering::Relaxed);
        match context {
            0..5 => Map::Delayed(bio, Until::At(cx.now().after(1000)), context + 1),
            _ => on(to, 0, bio, at),
        }
    }
}

#[test]
fn a_bio_may_be_kept_again_and_again_and_is_pushed_back_by_a_suspension() {
    let rig = rig::<Again>("again");
    rig.disk("/a", 1000);
    let md = rig.device("x", "0 100 again /a");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let io = rig.io(&md);
                while !stop.load(Ordering::SeqCst) {
                    assert_eq!(io.read(Sector::new(1), &mut [0; 512]), Ok(()));
                }
            });
        }
        for _ in 0..100 {
            md.suspend(SuspendOptions { noflush: true, ..Default::default() }, &|| false).unwrap();
            resume(&md);
        }
        stop.store(true, Ordering::SeqCst);
    });
}

/// The target of the book's page.
#[test]
fn every_second_bio_is_delayed() {
    static TYPES: [&TargetType; 1] = [&every_second::TYPE];
    let rig = Rig::with_types(&TYPES);
    rig.disk("/a", 1000);
    let hour = 3_600_000;
    let md = rig.device("x", &format!("0 100 every-second /a 5 {hour}"));
    assert_eq!(md.table(TableSlot::Active).unwrap().lines(StatusKind::Table)[0].params, format!("/a 5 {hour}"));
    let mut client = Client::new(&rig, &md);
    let tokens: Vec<_> = (0..6).map(|at| client.read(at, 1)).collect();
    let ended = |client: &mut Client| tokens.iter().filter(|token| client.status(**token).is_some()).count();
    assert_eq!(ended(&mut client), 3);
    // The others need not wait for an hour when the device is suspended.
    suspend(&md);
    assert_eq!(ended(&mut client), 6);
    resume(&md);
    let error = rig.load(&md, "0 100 every-second /a 5", false).unwrap_err();
    assert!(error.message.contains("Invalid argument count"), "{error}");
}

#[test]
fn the_book_has_it_as_it_is() {
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src/write-a-target.md")).unwrap();
    let code = include_str!("every_second.rs");
    assert!(
        page.contains(&format!("```rust,ignore\n{code}```")),
        "docs/src/write-a-target.md and every_second.rs differ"
    );
}
