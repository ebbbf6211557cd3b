//! `qemu-img` and `qemu-io`: what virtual machines do with a disk.

use super::{fails, run, same};
use crate::disks::write_image;
use crate::kinds::{Nature, SIZE, Subject};
use serde_json::Value;

pub(super) fn check(subject: &Subject) {
    let disk = &subject.lab.disk;
    let (image, copy) = (disk.path("image"), disk.path("copy"));
    write_image(&image, SIZE as usize);
    let (from, to, uri) = (image.to_str().expect("text"), copy.to_str().expect("text"), subject.uri());
    let convert_in = ["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "16", from, &uri];
    let convert_out = ["convert", "-f", "raw", "-O", "raw", &uri, to];
    let compare = ["compare", "-f", "raw", "-F", "raw", from, &uri];
    let bench = ["bench", "-f", "raw", "-c", "1000", "-d", "32", "-s", "4096", &uri];
    let bench_write = ["bench", "-f", "raw", "-c", "1000", "-d", "32", "-w", "--flush-interval", "50", &uri];
    if subject.nature == Nature::Fails {
        for args in [&convert_in[..], &convert_out, &bench, &bench_write] {
            fails("qemu-img", args, &["Input/output error"]);
        }
        return;
    }
    match subject.nature {
        Nature::Keeps => drop(run("qemu-img", &convert_in)),
        Nature::ReadOnly => fails("qemu-img", &convert_in, &["Permission denied"]),
        _ => std::fs::write(&image, vec![0; SIZE as usize]).expect("room"),
    }
    assert!(run("qemu-img", &compare).contains("identical"));
    map_covers(&uri);
    run("qemu-img", &convert_out);
    assert!(same(&image, &copy), "what comes out is what went in");
    run("qemu-img", &bench);
    if subject.nature == Nature::Keeps {
        run("qemu-img", &bench_write);
        patterns(&uri);
    }
}

/// The extents of `map` follow each other to the end.
fn map_covers(uri: &str) {
    let text = run("qemu-img", &["map", "--output=json", "-f", "raw", uri]);
    let map: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    let end = map.iter().fold(0, |end, extent| {
        assert_eq!(extent["start"], end, "{text}");
        end + extent["length"].as_u64().expect("a length")
    });
    assert_eq!(end, SIZE, "{text}");
}

fn patterns(uri: &str) {
    let script = [
        "write -P 0x5a 1M 128k",
        "write -f -P 0xa5 1000k 48k",
        "write -z 1M 4k",
        "write -z -u 1032k 4k",
        "discard 2M 1M",
        "flush",
        "read -P 0xa5 1000k 24k",
        "read -P 0 1M 4k",
        "read -P 0xa5 1028k 4k",
        "read -P 0 1032k 4k",
        "read -P 0x5a 1048k 104k",
    ];
    let commands = script.iter().flat_map(|command| ["-c", command]);
    let args: Vec<&str> = ["-f", "raw"].into_iter().chain(commands).chain([uri]).collect();
    let text = run("qemu-io", &args);
    assert!(!text.contains("failed") && !text.contains("error"), "{text}");
}
