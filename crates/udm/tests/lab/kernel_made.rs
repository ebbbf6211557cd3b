//! What the kernel left in `tests/goldens`, taken up by udm: no guest is needed.

use crate::host::{Host, sha256, thin_check};
use std::path::{Path, PathBuf};
use udm_sim::golden::{pattern, unpack};

/// The record of a golden, and its images as files.
struct Golden {
    dir: tempfile::TempDir,
    directory: PathBuf,
    name: String,
    text: String,
}

impl Golden {
    fn all(directory: &str) -> Vec<Self> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens").join(directory);
        let names = std::fs::read_dir(&directory).unwrap().filter_map(|entry| {
            let path = entry.unwrap().path();
            (path.extension()? == "txt").then(|| path.file_stem().unwrap().to_string_lossy().into_owned())
        });
        let mut names: Vec<_> = names.collect();
        names.sort();
        let golden = |name: String| Self {
            dir: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            text: std::fs::read_to_string(directory.join(format!("{name}.txt"))).unwrap(),
            directory: directory.clone(),
            name,
        };
        names.into_iter().map(golden).collect()
    }

    /// The image's file and its sectors; nothing when there is none.
    fn image(&self, what: &str) -> Option<(String, u64)> {
        let packed = std::fs::read(self.directory.join(format!("{}.{what}.pages.gz", self.name))).ok()?;
        let image = unpack(&packed).unwrap();
        let path = self.dir.path().join(what);
        std::fs::write(&path, &image).unwrap();
        Some((path.display().to_string(), image.len() as u64 / 512))
    }

    /// The words of the lines that begin with this one.
    fn lines(&self, word: &str) -> Vec<Vec<&str>> {
        let words = self.text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        words.filter(|words| words[0] == word).collect()
    }

    /// The last checksum of a volume.
    fn sum(&self, volume: &str) -> Option<&str> {
        self.lines("volume").iter().rfind(|words| words[1] == volume).map(|words| words[3])
    }
}

fn read(host: &Host, name: &str, sectors: u64) -> Vec<u8> {
    host.read(name, sectors as usize * 512)
}

pub(crate) fn pools() {
    for golden in Golden::all("thin") {
        let name = &golden.name;
        let (Some((metadata, _)), Some((data, sectors))) = (golden.image("meta"), golden.image("data")) else {
            continue;
        };
        let host = Host::new(name);
        let created: Vec<_> = golden.text.lines().next().unwrap().split(' ').collect();
        let tail = created[10..].join(" ");
        host.create("pool", format!("0 {sectors} thin-pool {metadata} {data} {tail}").trim());
        // The fields that are the pool's own, and not how it was used last.
        let status = host.status("pool");
        let recorded = golden.lines("status").into_iter().rfind(|words| words[1] == "pool").unwrap();
        let fields = |words: &[&str]| [words[0], words[2], words[3]].map(str::to_owned);
        let got: Vec<_> = status.split(' ').collect();
        assert_eq!(fields(&got[3..]), fields(&recorded[5..]), "{name}: {status}");
        let needs_check = recorded.contains(&"needs_check");
        assert_eq!(got.contains(&"needs_check"), needs_check, "{name}: {status}");

        let mut origin = String::new();
        if golden.text.contains("/dev/mapper/ext") {
            let path = golden.dir.path().join("ext");
            std::fs::write(&path, pattern(9, 0, 10280, 1)).unwrap();
            origin = format!(" {}", path.display());
        }
        let volumes = golden.lines("volume");
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
    for golden in Golden::all("snapshot") {
        let name = &golden.name;
        let ((origin, sectors), (cow, _)) = (golden.image("origin").unwrap(), golden.image("cow").unwrap());
        let host = Host::new(name);
        let table = |target: &str| {
            let line = golden.text.lines().find(|line| line.contains(" snapshot /dev")).unwrap();
            let words: Vec<_> = line.split(' ').collect();
            format!("0 {sectors} {target} /dev/mapper/base {cow} {} {}", words[10], words[11])
        };
        host.create("base", &format!("0 {sectors} linear {origin} 0"));
        host.create("snap", &table("snapshot"));
        host.create("org", &format!("0 {sectors} snapshot-origin /dev/mapper/base"));
        let last = golden.lines("status").pop().unwrap();
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
