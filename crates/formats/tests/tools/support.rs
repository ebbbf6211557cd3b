//! Debian's programs, and the tools with their output as text.

use std::io::Write;
use std::path::Path;
use std::process::Command;

use udm_formats::thin::tools::check::{self, Depth, Fault, Listener, Outcome, Severity};
use udm_formats::thin::tools::{Emit, Error, Human, Progress, View, Which, Xml, delta, dump, ls, restore, rmap};
use udm_pdata::BLOCK_SIZE;
pub(crate) use udm_pdata::Memory;

/// What a check said.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) faults: Vec<Fault>,
}

impl Said {
    /// Whether a fault that counts has all these words.
    pub(crate) fn names(&self, words: &[&str]) -> bool {
        let counts = |fault: &&Fault| fault.severity > Severity::Note;
        self.faults.iter().filter(counts).any(|fault| words.iter().all(|word| fault.text.contains(word)))
    }
}

impl Progress for Said {
    fn at(&mut self, done: u64, total: u64) {
        assert!(done <= total);
    }
}

impl Listener for Said {
    fn stage(&mut self, _: &str) {}

    fn fault(&mut self, fault: &Fault) {
        self.faults.push(fault.clone());
    }

    fn head(&mut self, _: u64, _: u64) {}
}

pub(crate) fn check(memory: &Memory) -> (Outcome, Said) {
    check_of(memory, Which::Main)
}

pub(crate) fn check_of(memory: &Memory, which: Which) -> (Outcome, Said) {
    let mut said = Said::default();
    let options = check::Options { which, depth: Depth::All, ignore_non_fatal: false };
    let outcome = check::check(&memory.io(), options, &mut said).expect("damage is no error");
    (outcome, said)
}

/// Asserts that nothing is wrong but hints.
pub(crate) fn clean(memory: &Memory) {
    let (outcome, said) = check(memory);
    assert!(outcome.is_good(false), "{:?}", said.faults);
}

pub(crate) fn restored(xml: &str, blocks: usize) -> Result<Memory, Error> {
    let memory = Memory::new(blocks);
    restore::restore(&memory.io(), &mut xml.as_bytes(), restore::Overrides::default(), &mut ())?;
    Ok(memory)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("the tools print UTF-8")
}

/// The arguments of a Debian tool, done by udm.
pub(crate) fn udm(memory: &Memory, tool: &str, args: &[&str]) -> Result<String, Error> {
    let which = if args.contains(&"-m") { Which::Held } else { Which::Main };
    let view = View::open(memory.io(), which)?;
    let after = |name: &str| {
        let at = args.iter().position(|arg| *arg == name)?;
        args.get(at + 1).copied()
    };
    let number = |name: &str| after(name).map(|text| text.parse().expect("a number"));
    let mut out = Vec::new();
    match tool {
        "thin_dump" => {
            let options = dump::Options {
                devices: number("--dev-id").into_iter().collect(),
                skip_mappings: args.contains(&"--skip-mappings"),
            };
            let (mut xml, mut human);
            let emit: &mut dyn Emit = if after("-f") == Some("human_readable") {
                human = Human(&mut out);
                &mut human
            } else {
                xml = Xml(&mut out);
                &mut xml
            };
            dump::dump(&view, &options, emit, &mut ())?;
        }
        "thin_ls" => {
            let fields = after("-o").unwrap_or(ls::DEFAULT);
            let fields: Vec<ls::Field> = fields.split(',').map(|field| field.parse().expect("a field")).collect();
            ls::ls(&view, &fields, !args.contains(&"--no-headers"), &mut out, &mut ())?;
        }
        "thin_delta" => {
            let ids = (number("--thin1").expect("a device"), number("--thin2").expect("a device"));
            delta::delta(&view, ids, args.contains(&"--verbose"), &mut out, &mut ())?;
        }
        "thin_rmap" => {
            let (from, to) = after("--region").and_then(|region| region.split_once("..")).expect("a region");
            let region = from.parse().expect("a number")..to.parse().expect("a number");
            rmap::rmap(&view, &[region], &mut out, &mut ())?;
        }
        other => panic!("{other} is not done by udm"),
    }
    Ok(text(out))
}

/// Whether Debian's tools are there; a line says that they are not.
pub(crate) fn has_debian() -> bool {
    let there = program_path("thin_check").is_some();
    if !there {
        println!("SKIP thin-provisioning-tools are not installed: udm's are not held against them");
    }
    there
}

fn program_path(name: &str) -> Option<std::path::PathBuf> {
    ["/usr/sbin", "/sbin", "/usr/bin"].iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists())
}

pub(crate) fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("it is written");
    file
}

/// Runs one of Debian's tools on an image: whether it succeeded, and what it printed.
pub(crate) fn debian(image: &Path, tool: &str, args: &[&str]) -> (bool, String) {
    let path = program_path(tool).expect("the caller asked whether it is there");
    let output = Command::new(path).args(args).arg(image).output().expect("it runs");
    (output.status.success(), text(output.stdout))
}

/// An image that thin_restore made.
pub(crate) fn debian_restored(xml: &str, blocks: usize) -> Memory {
    let (input, output) = (file(xml.as_bytes()), file(&vec![0; blocks * BLOCK_SIZE]));
    let path = program_path("thin_restore").expect("the caller asked whether it is there");
    let done = Command::new(path).arg("-q").arg("-i").arg(input.path()).arg("-o").arg(output.path()).output();
    let done = done.expect("it runs");
    assert!(done.status.success(), "thin_restore: {}\n{xml}", String::from_utf8_lossy(&done.stderr));
    Memory::of(std::fs::read(output.path()).expect("the image can be read"))
}
