//! What the kernel left in `tests/goldens`, taken up by udm: no guest is needed.

use crate::host::{Host, thin_check};
use std::path::Path;
use udm_sim::golden::{Record, pattern, sha256};

/// An image as a file: its name and its sectors; nothing when there is none.
fn image(record: &Record, dir: &Path, what: &str) -> Option<(String, u64)> {
    let image = record.image(what)?;
    let path = dir.join(what);
    std::fs::write(&path, &image).unwrap();
    Some((path.display().to_string(), image.len() as u64 / 512))
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn read(host: &Host, name: &str, sectors: u64) -> Vec<u8> {
    host.read(name, sectors as usize * 512)
}

pub(crate) fn pools() {
    for golden in Record::all("thin") {
        let (name, dir) = (&golden.name, directory());
        let image = |what: &str| image(&golden, dir.path(), what);
        let (Some((metadata, _)), Some((data, sectors))) = (image("meta"), image("data")) else {
            continue;
        };
        let host = Host::new(name);
        let created: Vec<_> = golden.text.lines().next().unwrap().split(' ').collect();
        let tail = created[10..].join(" ");
        host.create("pool", format!("0 {sectors} thin-pool {metadata} {data} {tail}").trim());
        // The fields that are the pool's own, and not how it was used last.
        let status = host.status("pool");
        let recorded = golden.lines("status").rfind(|words| words[1] == "pool").unwrap();
        let fields = |words: &[&str]| [words[0], words[2], words[3]].map(str::to_owned);
        let got: Vec<_> = status.split(' ').collect();
        assert_eq!(fields(&got[3..]), fields(&recorded[5..]), "{name}: {status}");
        let needs_check = recorded.contains(&"needs_check");
        assert_eq!(got.contains(&"needs_check"), needs_check, "{name}: {status}");

        let mut origin = String::new();
        if golden.text.contains("/dev/mapper/ext") {
            let path = dir.path().join("ext");
            std::fs::write(&path, pattern(9, 0, 10280, 1)).unwrap();
            origin = format!(" {}", path.display());
        }
        let volumes: Vec<_> = golden.lines("volume").collect();
        let start = |id: &str, sectors: &str| {
            host.create(&format!("t{id}"), &format!("0 {sectors} thin /dev/mapper/pool {id}{origin}"));
        };
        let compare = |except: &str, most: usize| {
            for words in volumes.iter().filter(|words| words[1] != except).take(most) {
                let got = sha256(&read(&host, &format!("t{}", words[1]), words[2].parse().unwrap()));
                assert_eq!(got, words[3], "{name}: volume {}", words[1]);
            }
        };
        volumes.iter().for_each(|words| start(words[1], words[2]));
        compare("", usize::MAX);
        if !needs_check {
            // What is written to one is seen in no other.
            let first = volumes[0][1];
            let bytes = pattern(77, 200, 300, 1);
            let full = got[5].split('/').collect::<Vec<_>>();
            if full[0] != full[1] {
                host.write(&format!("t{first}"), 200, &bytes);
                assert_eq!(read(&host, &format!("t{first}"), 500)[200 * 512..], bytes, "{name}");
                compare(first, 2);
            }
        }
        volumes.iter().for_each(|words| drop(host.udm(&["remove", &format!("t{}", words[1])])));
        host.udm(&["remove", "pool"]);
        drop(host);
        thin_check(Path::new(&metadata));
    }
}

pub(crate) fn stores() {
    for golden in Record::all("snapshot") {
        let (name, dir) = (&golden.name, directory());
        let image = |what: &str| image(&golden, dir.path(), what);
        let ((origin, sectors), (cow, _)) = (image("origin").unwrap(), image("cow").unwrap());
        let host = Host::new(name);
        let table = |target: &str| {
            let line = golden.text.lines().find(|line| line.contains(" snapshot /dev")).unwrap();
            let words: Vec<_> = line.split(' ').collect();
            format!("0 {sectors} {target} /dev/mapper/base {cow} {} {}", words[10], words[11])
        };
        host.create("base", &format!("0 {sectors} linear {origin} 0"));
        host.create("snap", &table("snapshot"));
        host.create("org", &format!("0 {sectors} snapshot-origin /dev/mapper/base"));
        let last = golden.lines("status").next_back().unwrap();
        if last[5] == "Invalid" {
            assert!(host.status("snap").ends_with("Invalid"), "{name}");
            continue;
        }
        let status = host.status("snap");
        if !name.starts_with("merged") {
            assert_eq!(status.split(' ').collect::<Vec<_>>()[3..], last[5..], "{name}: {status}");
        }
        if let (Some(org), Some(snap)) = (golden.sum("org"), golden.sum("snap")) {
            let now = golden.sum("merge").unwrap_or(org);
            assert_eq!(sha256(&read(&host, "org", sectors)), now, "{name}: origin");
            let before = read(&host, "snap", sectors);
            assert_eq!(sha256(&before), snap, "{name}: snapshot");
            // The store goes on where the kernel left it.
            if !status.contains("/4096 ") {
                host.write("org", 3, &pattern(1, 3, 5, 99));
                host.write("org", sectors - 5, &pattern(1, sectors - 5, 5, 99));
                assert_eq!(read(&host, "snap", sectors), before, "{name}: the snapshot changed with its origin");
            }
        }
        host.udm(&["remove", "snap"]);
        host.udm(&["remove", "org"]);
        if name.starts_with("half-merged") {
            host.create("merge", &table("snapshot-merge"));
            crate::common::until("the store is merged", || {
                let status = host.status("merge");
                let words: Vec<_> = status.split(' ').collect();
                words[3].split('/').next() == Some(words[4])
            });
            host.udm(&["remove", "merge"]);
            assert_eq!(sha256(&read(&host, "base", sectors)), golden.sum("snap").unwrap(), "{name}: merged");
        }
    }
}
