//! `udm run`.

use crate::common::{NbdHold, Place, stderr};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

#[test]
fn serves_until_it_is_told_to_end() {
    for signal in [Signal::INT, Signal::TERM] {
        let place = Place::new();
        let socket = place.root().join("s");
        let concise = "ram,,,,0 2048 ram;top,,,ro,0 1024 linear /dev/mapper/ram 0";
        let mut command = place.command("udm");
        let mut child =
            command.args(["run", "--nbd"]).arg(&socket).arg(concise).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let uri = |name: &str| format!("nbd+unix:///{name}?socket={}", socket.display());
        assert_eq!(lines.next(), Some(format!("ram: {}", uri("ram"))));
        assert_eq!(lines.next(), Some(format!("top: {}", uri("top"))));
        assert_eq!(lines.next(), Some(format!("Read it with: nbdcopy '{}' FILE", uri("ram"))));
        let hold = NbdHold::open(&socket, "top").unwrap();
        assert!(NbdHold::open(&socket, "").is_err_and(|e| e.contains("ram, top")));
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert!(child.wait().unwrap().success());
        assert!(!socket.exists());
        assert!(!place.dir().exists(), "no daemon was started");
        drop(hold);
    }
}

#[test]
fn what_is_refused() {
    let place = Place::new();
    let check = |words: &[&str], code: i32, expect: &str| {
        let output = place.udm([&["run"], words].concat());
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        assert!(stderr(&output).contains(expect), "{} lacks {expect}", stderr(&output));
    };
    check(&["d,,,,0 8 rom"], 1, "\n  0 8 rom\n      ^^^\n");
    check(&["d,,,,0 8 linear /nonexistent 0"], 1, "line 1: linear: Device lookup failed");
    check(&["d,,,,0 8 ram;d,,,,0 8 ram"], 1, "d");
    check(&["--tcp", "nowhere", "d,,,,0 8 ram"], 1, "is no TCP address");
    check(&[], 1, "CONCISE");
}
