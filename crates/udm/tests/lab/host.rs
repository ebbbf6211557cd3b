//! udm's side: a daemon of the round's own, its devices used through their exports.

use crate::common::{Nbd, NbdHold, Place, stderr};
use std::path::Path;
use std::process::Command;

/// The largest request that is sent.
const PIECE: usize = 1 << 20;

pub(crate) struct Host {
    place: Place,
}

impl Host {
    pub(crate) fn new(what: &str) -> Self {
        println!("-- {what}: udm");
        Self { place: Place::new() }
    }

    /// Runs `udm` with these words, and expects success.
    pub(crate) fn udm(&self, words: &[&str]) -> String {
        let output = self.place.udm(words);
        assert!(output.status.success(), "udm {words:?}: {}\nlog: {}", stderr(&output), self.place.log());
        crate::common::stdout(&output)
    }

    pub(crate) fn create(&self, name: &str, table: &str) {
        self.udm(&["create", name, "--table", table]);
    }

    pub(crate) fn status(&self, name: &str) -> String {
        self.udm(&["status", name]).trim().to_owned()
    }

    fn open(&self, name: &str) -> NbdHold {
        NbdHold::open(&self.place.dir().join("nbd.sock"), name).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub(crate) fn read(&self, name: &str, bytes: usize) -> Vec<u8> {
        let mut nbd = self.open(name);
        let read = |at: usize| nbd.request(at as u64, &Nbd::Read(PIECE.min(bytes - at) as u32));
        (0..bytes).step_by(PIECE).map(read).collect::<Result<Vec<_>, _>>().expect("reading").concat()
    }

    pub(crate) fn write(&self, name: &str, sector: u64, data: &[u8]) {
        let mut nbd = self.open(name);
        for (i, piece) in data.chunks(PIECE).enumerate() {
            let at = sector * 512 + (i * PIECE) as u64;
            nbd.request(at, &Nbd::Write(piece)).unwrap_or_else(|e| panic!("{name} at {at}: error {e}"));
        }
    }

    pub(crate) fn discard(&self, name: &str, sector: u64, count: u64) {
        let result = self.open(name).request(sector * 512, &Nbd::Trim(count as u32 * 512));
        result.unwrap_or_else(|e| panic!("{name} at {sector}: error {e}"));
    }
}

/// Where two volumes differ, in words; nothing when they are equal.
pub(crate) fn difference(got: &[u8], expect: &[u8]) -> Option<String> {
    let sectors = got.chunks(512).zip(expect.chunks(512)).enumerate();
    let wrong: Vec<_> = sectors.filter(|(_, (a, b))| a != b).map(|(i, _)| i).collect();
    let first = *wrong.first().or((got.len() != expect.len()).then_some(&0))?;
    let show = |bytes: &[u8]| String::from_utf8_lossy(&bytes[first * 512..][..32]).into_owned();
    let lengths = (got.len(), expect.len());
    Some(format!(
        "{} sectors differ, the first is {first}, the last {:?}: {:?}, expected {:?}; lengths {lengths:?}",
        wrong.len(),
        wrong.last(),
        show(got),
        show(expect)
    ))
}

/// Debian's thin_check on metadata that nobody has open; without the program, says so.
pub(crate) fn thin_check(metadata: &Path) {
    match Command::new("thin_check").arg(metadata).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output() {
        Ok(output) => assert!(
            output.status.success(),
            "thin_check: {}{}",
            String::from_utf8_lossy(&output.stdout),
            stderr(&output)
        ),
        Err(e) => println!("SKIP thin_check: {e}"),
    }
}
