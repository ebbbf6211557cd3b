//! Metadata in memory, Debian's programs, and the tools with their output as text.

use std::future::ready;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use udm_formats::thin::tools::check::{self, Depth, Fault, Listener, Outcome, Severity};
use udm_formats::thin::tools::{Emit, Error, Human, Progress, View, Which, Xml, delta, dump, ls, restore, rmap};
use udm_pdata::{BLOCK_SIZE, Block, BlockIo, IoError, IoFuture};

/// A device in memory. Clones are the same device.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Mutex<Vec<u8>>>);

impl Memory {
    pub(crate) fn of(image: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(image)))
    }

    pub(crate) fn new(blocks: usize) -> Self {
        Self::of(vec![0; blocks * BLOCK_SIZE])
    }

    pub(crate) fn io(&self) -> Arc<dyn BlockIo> {
        Arc::new(self.clone())
    }

    pub(crate) fn image(&self) -> Vec<u8> {
        self.0.lock().expect("nobody panics with it").clone()
    }

    fn put(&self, at: u64, block: &Block) -> Result<(), IoError> {
        let mut image = self.0.lock().expect("nobody panics with it");
        let from = at as usize * BLOCK_SIZE;
        image.get_mut(from..from + BLOCK_SIZE).ok_or(IoError::PastEnd)?.copy_from_slice(&block.0);
        Ok(())
    }
}

impl BlockIo for Memory {
    fn blocks(&self) -> u64 {
        (self.0.lock().expect("nobody panics with it").len() / BLOCK_SIZE) as u64
    }

    fn read(&self, at: u64, mut into: Box<Block>) -> IoFuture<'_, Box<Block>> {
        let image = self.0.lock().expect("nobody panics with it");
        let bytes = usize::try_from(at).ok().and_then(|at| at.checked_mul(BLOCK_SIZE));
        let bytes = bytes.and_then(|from| image.get(from..from.checked_add(BLOCK_SIZE)?));
        Box::pin(ready(bytes.ok_or(IoError::PastEnd).map(|bytes| {
            into.0.copy_from_slice(bytes);
            into
        })))
    }

    fn write(&self, blocks: Vec<(u64, Box<Block>)>) -> IoFuture<'_, Vec<(u64, Box<Block>)>> {
        let done = blocks.iter().try_for_each(|(at, block)| self.put(*at, block));
        Box::pin(ready(done.map(|()| blocks)))
    }

    fn flush(&self) -> IoFuture<'_, ()> {
        Box::pin(ready(Ok(())))
    }

    fn write_fua(&self, at: u64, block: Box<Block>) -> IoFuture<'_, Box<Block>> {
        Box::pin(ready(self.put(at, &block).map(|()| block)))
    }
}

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
