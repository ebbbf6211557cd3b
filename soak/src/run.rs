//! A soak from its start to its end.

use crate::operations::{OPERATIONS, Operation, Outcome, have_a_loop_device_once};
use crate::options::Options;
use crate::world::{Turn, World};
use crate::{load, report, stacks};
use rustix::process::Pid;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use udm_io::MAX_CHANNELS;
use udm_sim::Rng;

/// KiB of memory that may be left at the end beside what was in use at the start.
const MEMORY_LEFT: u64 = 64 << 10;

/// Runs the soak that the options say.
#[must_use]
pub fn run(options: Options) -> ExitCode {
    if options.list {
        OPERATIONS.iter().for_each(|op| println!("{:<18} {}", op.name, op.what));
        return ExitCode::SUCCESS;
    }
    match prepare(&options) {
        Ok((operations, root)) => soak(options, operations, root),
        Err(text) => {
            eprintln!("soak: {text}");
            ExitCode::from(2)
        }
    }
}

fn prepare(options: &Options) -> Result<(Vec<Operation>, tempfile::TempDir), String> {
    for name in options.only.iter().chain(&options.without) {
        if !OPERATIONS.iter().any(|op| op.name == name) {
            return Err(format!("no operation is called {name:?}; --list shows them"));
        }
    }
    let wanted = |op: &&Operation| {
        (options.only.is_empty() || options.only.iter().any(|name| name == op.name))
            && !options.without.iter().any(|name| name == op.name)
    };
    let operations: Vec<Operation> = OPERATIONS.iter().filter(wanted).copied().collect();
    let root = tempfile::Builder::new().prefix("udm-soak.").tempdir_in(&options.dir);
    Ok((operations, root.map_err(|e| format!("{}: {e}", options.dir.display()))?))
}

fn soak(options: Options, operations: Vec<Operation>, root: tempfile::TempDir) -> ExitCode {
    let keep = options.keep;
    let json = options.json;
    println!("soak: seed {}, {} s, {}", options.seed, options.seconds, options.udm.display());
    let world = World::new(options, root.path().to_owned());
    let over = Arc::new(AtomicBool::new(false));
    told_of_panics(&world);
    let begun = Instant::now();
    let director = {
        let (world, over) = (world.clone(), over.clone());
        std::thread::spawn(move || {
            if let Err(text) = direct(&world, &operations) {
                world.fail(text);
            }
            over.store(true, Ordering::SeqCst);
        })
    };
    let stuck = world.watch.watch(world.options.patience, || over.load(Ordering::SeqCst) || world.has_failed());
    if let Some(stuck) = stuck {
        let seconds = stuck.since.as_secs();
        world.fail(format!("HANG: {} does not move for {seconds} s: {}", stuck.who, stuck.doing));
    }
    let failure = world.failure();
    if failure.is_some() {
        println!("{}", report::under_way(&world));
        let name = format!("udm-soak.{}.{}.report", world.options.seed, std::process::id());
        let path = world.options.dir.join(name);
        match std::fs::write(&path, report::all(&world)) {
            Ok(()) => println!("more is in {}", path.display()),
            Err(error) => println!("{}: {error}", path.display()),
        }
    } else {
        drop(director.join());
    }
    let table = world.stats.table();
    println!("{table}");
    if json {
        let mut stats = world.stats.json();
        stats["seed"] = world.options.seed.into();
        stats["seconds"] = begun.elapsed().as_secs().into();
        stats["failure"] = failure.clone().into();
        println!("{stats}");
    }
    end(&world);
    if keep {
        println!("soak: left in {}", root.keep().display());
    } else {
        drop(root);
    }
    let seconds = begun.elapsed().as_secs();
    match failure {
        None => {
            println!("soak: seed {} is clean after {seconds} s", world.options.seed);
            ExitCode::SUCCESS
        }
        Some(text) => {
            println!("soak: FAILED after {seconds} s, seed {}: {text}", world.options.seed);
            // Threads may hang; they go with the process.
            std::process::exit(1)
        }
    }
}

/// A thread of the harness that panics fails the soak.
fn told_of_panics(world: &Arc<World>) {
    let (world, usual) = (world.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        usual(info);
        world.fail(format!("a thread of the harness panics: {info}"));
    }));
}

/// Ends the daemon, whatever state it is in, and what would be left of it.
fn end(world: &World) {
    world.daemon.kill();
    // Known by their files, as long as these are to be seen.
    for device in report::loops(&world.root) {
        let _ = std::process::Command::new("losetup").arg("-d").arg(device).status();
    }
    let _ = rustix::mount::unmount(world.daemon.dir().join("dev"), rustix::mount::UnmountFlags::DETACH);
}

/// Everything in its order.
fn direct(world: &Arc<World>, operations: &[Operation]) -> Result<(), String> {
    let director = world.watch.actor("director");
    let mut rng = Rng::new(world.options.seed);
    let mut turn = Turn { world, rng: &mut rng, actor: &director, name: "build" };
    turn.ok(&["version"])?;
    stacks::build(&turn)?;
    turn.pause(1000);
    have_a_loop_device_once(&turn)?;
    take_down(&mut turn)?;
    let before = Measure::of(world).ok_or("the daemon cannot be looked at")?;
    stacks::build(&turn)?;
    director.idle();
    let until = Instant::now() + Duration::from_secs(world.options.seconds);
    std::thread::scope(|scope| {
        for number in 0..world.options.operators {
            let seed = turn.rng.next();
            scope.spawn(move || operate(world, operations, number, seed, until));
        }
    });
    if world.has_failed() {
        return Ok(());
    }
    turn.name = "end";
    have_a_loop_device_once(&turn)?;
    take_down(&mut turn)?;
    settle(&turn, &before)
}

/// One thread of operations.
fn operate(world: &Arc<World>, operations: &[Operation], number: u64, seed: u64, until: Instant) {
    let actor = world.watch.actor(format!("operator {number}"));
    let mut rng = Rng::new(seed);
    let weights: u64 = operations.iter().map(|op| op.weight).sum();
    while Instant::now() < until && !world.has_failed() && weights > 0 {
        let mut at = rng.below(weights);
        let chosen = operations.iter().find(|op| {
            let here = at < op.weight;
            at = at.saturating_sub(op.weight);
            here
        });
        let Some(op) = chosen else { continue };
        let begun = Instant::now();
        if world.options.verbose {
            println!("{} begins {}", actor.who(), op.name);
        }
        let mut turn = Turn { world, rng: &mut rng, actor: &actor, name: op.name };
        let outcome = if op.alone {
            let _alone = world.era.write();
            (op.run)(&mut turn)
        } else {
            let _beside = world.era.read();
            (op.run)(&mut turn)
        };
        match outcome {
            Ok(outcome) => world.stats.ended(op.name, outcome == Outcome::Done, begun.elapsed()),
            Err(text) => return world.fail(format!("{}: {text}", op.name)),
        }
        actor.idle();
        std::thread::sleep(Duration::from_millis(rng.below(50)));
    }
}

/// Has all writers end, reads everything once more, and removes every device.
fn take_down(turn: &mut Turn<'_>) -> Result<(), String> {
    let world = turn.world;
    turn.actor.begin(format!("{}: has all load end", turn.name));
    let volumes = world.volumes();
    world.stop(&volumes);
    if world.has_failed() {
        return Ok(());
    }
    for volume in &volumes {
        load::check(world, volume, turn.actor)?;
    }
    // What stands on another goes first.
    let (above, beneath): (Vec<_>, Vec<_>) = world.devices().into_iter().partition(|device| device.on.is_some());
    for device in above.iter().chain(&beneath) {
        turn.remove([&device.name])?;
        world.forget(device);
    }
    turn.actor.idle();
    Ok(())
}

/// What a daemon without devices has.
struct Measure {
    pid: Pid,
    descriptors: std::collections::BTreeMap<String, u64>,
    threads: u64,
    memory: u64,
    loops: usize,
}

impl Measure {
    fn of(world: &World) -> Option<Self> {
        let pid = world.daemon.pid()?;
        Some(Self {
            pid,
            descriptors: report::descriptors(pid),
            threads: report::count_threads(pid),
            memory: report::status(pid, "VmRSS"),
            loops: report::loops(&world.root).len(),
        })
    }

    /// What there is more of than there was.
    fn leaks(&self, before: &Self) -> Vec<String> {
        let mut leaks = Vec::new();
        for (kind, count) in &self.descriptors {
            let had = before.descriptors.get(kind).copied().unwrap_or(0);
            // A channel's number is used again and never freed, and its bell with it.
            let slack = if kind.contains("[eventfd]") { MAX_CHANNELS as u64 } else { 0 };
            if *count > had + slack {
                leaks.push(format!("descriptors of {kind}: {had} before, {count} now"));
            }
        }
        let mut more = |what: &str, had: u64, has: u64, slack: u64| {
            if has > had + slack {
                leaks.push(format!("{what}: {had} before, {has} now"));
            }
        };
        more("threads", before.threads, self.threads, 0);
        more("KiB of memory", before.memory, self.memory, MEMORY_LEFT);
        more("loop devices", before.loops as u64, self.loops as u64, 0);
        leaks
    }
}

/// Waits until the daemon has given everything back.
fn settle(turn: &Turn<'_>, before: &Measure) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let now = Measure::of(turn.world).ok_or("the daemon has gone")?;
        let leaks = now.leaks(before);
        if leaks.is_empty() {
            println!(
                "at the end process {} has {} threads and {} KiB, as process {} had {} and {} at the start",
                now.pid.as_raw_nonzero(),
                now.threads,
                now.memory,
                before.pid.as_raw_nonzero(),
                before.threads,
                before.memory
            );
            return Ok(());
        }
        if begun.elapsed() > Duration::from_secs(turn.world.options.patience) || turn.world.has_failed() {
            return Err(format!("LEAK: {}", leaks.join("; ")));
        }
        turn.actor.begin(format!("end: waits until this is given back: {}", leaks.join("; ")));
        std::thread::sleep(Duration::from_millis(100));
    }
}
