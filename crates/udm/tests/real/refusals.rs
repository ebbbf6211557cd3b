//! Bad input on the command line: the whole text of what is said, the exit code, and that nothing is left of it.
//! The cases are in `refusals.txt`.

use crate::disks::Disk;
use crate::udm::Udm;
use std::os::unix::net::UnixListener;
use std::path::Path;

const CASES: &str = include_str!("refusals.txt");
const DEVICES: &str = "a\t(600:0)\nc\t(600:1)\n";

/// What tables might name by mistake, in one directory.
fn strange_files(dir: &Path) {
    std::fs::create_dir(dir.join("directory")).expect("a directory");
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, dir.join("fifo"), fifo, 0o600.into(), 0).expect("a fifo");
    UnixListener::bind(dir.join("socket")).expect("a socket");
}

/// The words of a command: apart by spaces but in quotes, where `\n` is a line's end. N is a word of 128 letters.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in command.split('"').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.replace("\\n", "\n")),
        }
    }
    words.into_iter().map(|word| word.replace('N', &"n".repeat(128))).collect()
}

#[test]
fn bad_input_is_refused_in_clear_words() {
    let udm = Udm::new();
    // Not beside the build, whose path may be too long for a socket.
    let disk = Disk::at("/tmp").expect("a directory in /tmp");
    disk.file("small", 1 << 20);
    disk.file("odd", 1000);
    let dir = disk.path("");
    strange_files(&dir);
    let dir_name = dir.to_str().expect("text").trim_end_matches('/');
    udm.ok(&["create", "a", "--uuid", "U1", "--table", "0 8 zero"]);
    udm.create("c", "0 8 zero");

    let (mut ran, mut wrong) = (0, String::new());
    for case in CASES.split("\n$ ").skip(1) {
        let (command, expect) = case.split_once('\n').expect("a command and what is said");
        let output = udm.command().args(words(command)).current_dir(&dir).output().expect("udm can be run");
        let text = |bytes| String::from_utf8(bytes).expect("udm prints text");
        let (stdout, stderr) = (text(output.stdout), text(output.stderr));
        let said = stderr.replace(dir_name, "DIR").replace(&"n".repeat(128), "N");
        if said.trim_end() != expect.trim_end() || output.status.code() != Some(1) || !stdout.is_empty() {
            wrong += &format!("$ {command}\n{said}({}, {stdout:?} on standard output)\n\n", output.status);
        }
        assert_eq!(udm.ok(&["ls"]), DEVICES, "after udm {command}");
        ran += 1;
    }
    assert!(wrong.is_empty(), "other than in refusals.txt:\n{wrong}");
    assert!(ran > 80, "{ran} cases");
}
