//! Runs what was recorded of the real dmsetup on kernel 6.12 with udm in its place, and compares standard output and
//! exit codes. `GOLDEN=name` runs one scenario.
//!
//! # What is not compared
//! - `@ node` steps: udm has no block device nodes; `udm node add` makes something else, on demand.
//! - The columns of a step whose output has the kernel's name of a backing device, where udm has none to show: runs of
//!   spaces there count as one.
//! - The last word of a pool's status, which tells whether writes of zeroes are skipped: the kernel has none.
//! - What `exempt.txt` lists, each with its reason. A line that is not needed fails the test too.
//!
//! # What stands for the backing devices
//! Files of 128 MiB. A table shows a file by its path, where the kernel shows a block device by its number; lists of
//! dependencies have numbers only, in which a file has one of a major number of udm's own; and its name as a block
//! device is its path. So all three, in udm's output, count as the recording's `@DEVn_MM@`. To know the numbers, the
//! replay asks for the dependencies of a device over each file before it begins. The directory of nodes is in the
//! daemon's; `/dev/mapper` in an argument means the same.

mod exempt;
mod parse;

use crate::common::{Nbd, NbdHold, Place, stderr, stdout};
use exempt::Exemptions;
use parse::{Act, Step, parse, words};
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use udm_testing::eventually;

const DEVICES: usize = 4;
/// udm's major number, and that of the numbers which stand for files.
const DM_MAJOR: &str = "600";
const HOST_MAJOR: &str = "601";

struct Replay {
    place: Place,
    work: PathBuf,
    held: HashMap<String, NbdHold>,
    /// One has just been let go of.
    released: bool,
}

impl Replay {
    fn new() -> Self {
        let place = Place::new();
        let work = place.root().join("work");
        std::fs::create_dir(&work).unwrap();
        let this = Self { place, work, held: HashMap::new(), released: false };
        for i in 0..DEVICES {
            std::fs::File::create(this.device(i)).and_then(|f| f.set_len(128 << 20)).unwrap();
        }
        for i in 0..DEVICES {
            let table = format!("0 8 linear {} 0", this.device(i));
            for words in [["create", "warm", "--table", &table].as_slice(), &["deps", "warm"], &["remove", "warm"]] {
                let output = this.place.udm(words);
                assert!(output.status.success(), "{words:?}: {}", stderr(&output));
                let expect = format!("1 dependencies\t: ({HOST_MAJOR}, {i})\n");
                assert!(words[0] != "deps" || stdout(&output) == expect, "{}", stdout(&output));
            }
        }
        this
    }

    fn device(&self, i: usize) -> String {
        self.place.root().join(format!("dev{i}")).display().to_string()
    }

    /// A command line or standard input with the placeholders filled in.
    fn fill(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for i in 0..DEVICES {
            let device = self.device(i);
            for (what, value) in [
                ("", device.as_str()),
                ("_MM", device.as_str()),
                ("_MAJOR", HOST_MAJOR),
                ("_MINOR", &i.to_string()),
                ("_NAME", &format!("dev{i}")),
            ] {
                text = text.replace(&format!("@DEV{i}{what}@"), value);
            }
        }
        text.replace("@DM_MAJOR@", DM_MAJOR).replace("@NL@", "\n")
    }

    /// Output with what differs by nature made alike: udm's and the recording's.
    fn normal(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for i in 0..DEVICES {
            // In tables, in lists of dependencies of either form, and where a name is asked for.
            let token = format!("@DEV{i}_MM@");
            text = text.replace(&self.device(i), &token);
            text = text.replace(&format!("{HOST_MAJOR}:{i}"), &token);
            text = text.replace(&format!("({HOST_MAJOR}, {i})"), &format!("(@DEV{i}_MAJOR@, @DEV{i}_MINOR@)"));
            text = text.replace(&format!("@DEV{i}_NAME@"), &token);
        }
        let nodes = self.place.dir().join("dev").display().to_string();
        // What a pool says beyond the kernel's, at its line's end.
        let text = text.replace(" skip_zero_writes\n", " \n").replace(" enable_zero_writes\n", " \n");
        text.replace(&nodes, "@DM_DIR@").replace("/dev/mapper", "@DM_DIR@").replace("@DM_MAJOR@", DM_MAJOR)
    }

    /// What differs, if anything does.
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match &step.act {
            // The daemon hears of a client's end a moment later, where the kernel's close(2) has done all by its
            // return.
            Act::Command(line) if std::mem::take(&mut self.released) => {
                let mut outcome = Ok(());
                eventually(|| {
                    outcome = self.command(step, line);
                    outcome.is_ok()
                });
                outcome
            }
            Act::Command(line) => self.command(step, line),
            Act::Other(word, name) => match word.as_str() {
                "file" => {
                    let text: String = step.input.iter().map(|line| self.fill(line) + "\n").collect();
                    std::fs::write(self.work.join(name), text).map_err(|e| e.to_string())
                }
                "hold" => {
                    let hold = NbdHold::open(&self.place.dir().join("nbd.sock"), name)?;
                    self.held.insert(name.clone(), hold);
                    Ok(())
                }
                "release" => {
                    self.released = true;
                    self.held.remove(name).map(drop).ok_or_else(|| format!("{name} is not held"))
                }
                "node" => Ok(()),
                "write" | "read" | "discard" => self.data(step, word, name),
                "until" => {
                    let (name, text) = name.split_once(' ').ok_or("expected a name and a text")?;
                    let mut last = String::new();
                    let came = eventually(|| {
                        last = stdout(&self.place.udm(["status", name]));
                        last.contains(text)
                    });
                    if came { Ok(()) } else { Err(format!("  never {text:?}, but {last:?}\n")) }
                }
                other => Err(format!("there is no step {other:?}")),
            },
        }
    }

    /// Reads, writes or discards through the device's export. The arguments: name, sector, count, and what to write.
    fn data(&self, step: &Step, what: &str, line: &str) -> Result<(), String> {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| -> Result<u64, String> {
            words.get(at).and_then(|w| w.parse().ok()).ok_or_else(|| format!("word {at} of {line:?} is no number"))
        };
        let (sector, count) = (number(1)?, number(2)?);
        let outcome = match NbdHold::open(&self.place.dir().join("nbd.sock"), words[0]) {
            Err(_) => "absent".into(),
            Ok(mut nbd) => {
                let bytes = count as u32 * 512;
                let result = match what {
                    "read" => nbd.request(sector * 512, &Nbd::Read(bytes)),
                    "discard" => nbd.request(sector * 512, &Nbd::Trim(bytes)),
                    _ => put(&mut nbd, sector, count, number(3)? as u32),
                };
                match (result, what) {
                    (Ok(data), "read") => {
                        let mut sum = flate2::Crc::new();
                        sum.update(&data);
                        format!("crc32 {:08x}", sum.sum())
                    }
                    (Ok(_), _) => "ok".into(),
                    (Err(28), _) => "ENOSPC".into(),
                    (Err(5), _) => "EIO".into(),
                    (Err(95), _) => "EOPNOTSUPP".into(),
                    (Err(errno), _) => format!("error {errno}"),
                }
            }
        };
        let (got, expect) = (format!("{outcome}\n"), &step.stdout);
        if !step.compare_stdout || got == *expect { Ok(()) } else { Err(difference(expect, &got)) }
    }

    fn command(&self, step: &Step, line: &str) -> Result<(), String> {
        let mut words = words(line).into_iter().map(|word| self.fill(&word)).peekable();
        let mut vars = Vec::new();
        while let Some((key, value)) = words.peek().and_then(|word| word.split_once('=')) {
            vars.push((key.to_owned(), value.to_owned()));
            words.next();
        }
        let program = words.next().ok_or("no program")?;
        let mut command = self.place.command(&program);
        command.args(words).envs(vars).env("DM_DISABLE_UDEV", "1").current_dir(&self.work);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| e.to_string())?;
        let input: String = step.input.iter().map(|line| self.fill(line) + "\n").collect();
        // One that does not read its input hangs up: that is no difference.
        let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output().map_err(|e| e.to_string())?;
        let mut told = String::new();
        let code = output.status.code().unwrap_or(-1);
        if step.compare_code && step.code.is_some_and(|expect| expect != code) {
            told += &format!("  exit code {code}, expected {}\n", step.code.unwrap_or_default());
        }
        if step.compare_stdout && step.code.is_some() {
            let squeeze = step.stdout.contains("_NAME@");
            let shape = |text: String| if squeeze { squeezed(&text) } else { text };
            let (got, expect) = (shape(self.normal(&stdout(&output))), shape(self.normal(&step.stdout)));
            if got != expect {
                told += &difference(&expect, &got);
            }
        }
        if told.is_empty() { Ok(()) } else { Err(format!("{told}  stderr: {}", stderr(&output))) }
    }
}

/// Writes the pattern of volume 0 in the pieces in which `put` of `tests/lab/guest-lib.sh` does: up to the next whole
/// 64 KiB, those one by one, the rest. The first error ends it.
fn put(nbd: &mut NbdHold, sector: u64, count: u64, generation: u32) -> Result<Vec<u8>, u32> {
    let end = sector + count;
    let mut at = sector;
    while at < end {
        let next = ((at / 128 + 1) * 128).min(end);
        nbd.request(at * 512, &Nbd::Write(&udm_sim::golden::pattern(0, at, next - at, generation)))?;
        at = next;
    }
    Ok(Vec::new())
}

fn squeezed(text: &str) -> String {
    let line = |line: &str| line.split(' ').filter(|w| !w.is_empty()).collect::<Vec<_>>().join(" ");
    text.lines().map(|l| line(l) + "\n").collect()
}

/// The lines around the first that differ.
fn difference(expect: &str, got: &str) -> String {
    let (expect, got): (Vec<_>, Vec<_>) = (expect.split('\n').collect(), got.split('\n').collect());
    let first = expect.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let show = |sign: char, lines: &[&str]| -> String {
        lines.iter().skip(first).take(3).map(|line| format!("  {sign} {line:?}\n")).collect()
    };
    format!("  output from line {}:\n{}{}", first + 1, show('-', &expect), show('+', &got))
}

fn goldens() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/dmsetup");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "golden"))
        .collect();
    paths.sort();
    paths
}

/// What differs in a scenario: the step, and how.
fn replay(path: &Path) -> Vec<(Step, String)> {
    let steps = parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut replay = Replay::new();
    steps.into_iter().filter_map(|step| replay.step(&step).err().map(|why| (step, why))).collect()
}

#[test]
fn dmsetup_as_recorded() {
    let exempt = Exemptions::parse(include_str!("exempt.txt")).unwrap();
    let only = std::env::var("GOLDEN").ok();
    let name = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
    let chosen: Vec<_> = goldens().into_iter().filter(|p| only.as_ref().is_none_or(|only| *only == name(p))).collect();
    assert!(!chosen.is_empty(), "no golden is called {only:?}");
    // Each scenario has a daemon and a directory of its own, so they can run side by side.
    let mut results: Vec<(String, Vec<(Step, String)>)> = std::thread::scope(|scope| {
        let workers: Vec<_> = chosen
            .chunks(chosen.len().div_ceil(4))
            .map(|part| scope.spawn(|| part.iter().map(|p| (name(p), replay(p))).collect::<Vec<_>>()))
            .collect();
        workers.into_iter().flat_map(|w| w.join().unwrap()).collect()
    });
    let mut told = String::new();
    for (scenario, differences) in &mut results {
        for (step, why) in differences {
            let (sign, line) = match &step.act {
                Act::Command(line) => ('$', line.clone()),
                Act::Other(word, name) => ('@', format!("{word} {name}")),
            };
            if !exempt.allows(scenario, &line) {
                told += &format!("{scenario}.golden:{} {sign} {line}\n{why}\n", step.line);
            }
        }
    }
    let ran: Vec<_> = results.into_iter().map(|(scenario, _)| scenario).collect();
    for unused in exempt.unused(&ran) {
        told += &format!("exempt.txt: not needed: {unused}\n");
    }
    assert!(told.is_empty(), "these differ:\n{told}");
}

#[test]
fn words_of_a_command_line() {
    let check = |line: &str, expect: &[&str]| assert_eq!(words(line), expect, "{line}");
    check("dmsetup ls", &["dmsetup", "ls"]);
    check("A=1 dmsetup  create '' \"a b\"c", &["A=1", "dmsetup", "create", "", "a bc"]);
    check("x 'it\"s'", &["x", "it\"s"]);
}

#[test]
fn differences_are_seen() {
    assert_eq!(difference("a\nb\n", "a\nc\n"), "  output from line 2:\n  - \"b\"\n  - \"\"\n  + \"c\"\n  + \"\"\n");
    assert_ne!(squeezed("a  b\n"), squeezed("ab\n"));
    let steps = parse("$ dmsetup ls\n| x\n\\\n? 1\n@ hold a\n").unwrap();
    assert_eq!((steps[0].stdout.as_str(), steps[0].code, steps.len()), ("x", Some(1), 2));
}
