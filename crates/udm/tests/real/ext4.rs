//! A file system made by `mke2fs`, copied in and out.

use crate::disks::write_image;
use crate::kinds::{self, Kind, SIZE};
use crate::programs::{installed_as, run, same};
use std::fs;

#[track_caller]
fn check(kind: Kind) {
    if !["mke2fs", "e2fsck"].iter().all(|program| installed_as(program, "-V")) || !installed_as("nbdcopy", "--version")
    {
        return;
    }
    let Some(subject) = kind() else { return };
    let disk = &subject.lab.disk;
    let tree = disk.path("tree");
    fs::create_dir_all(tree.join("a/b/c")).expect("a tree");
    fs::write(tree.join("a/hello"), "hello\n").expect("a file");
    fs::write(tree.join("a/b/empty"), "").expect("a file");
    write_image(&tree.join("a/b/c/big"), 3 << 20);
    for n in 0..200 {
        fs::write(tree.join(format!("a/b/small-{n}")), format!("{n}\n").repeat(n)).expect("a file");
    }
    std::os::unix::fs::symlink("a/hello", tree.join("link")).expect("a link");

    let (image, copy) = (disk.path("image"), disk.path("copy"));
    let names = [&tree, &image, &copy].map(|path| path.to_str().expect("text"));
    let [tree_name, image_name, copy_name] = names;
    let uri = subject.uri();
    let size = format!("{}k", SIZE / 1024);
    run("mke2fs", &["-q", "-F", "-t", "ext4", "-d", tree_name, image_name, &size]);
    run("nbdcopy", &["--flush", image_name, &uri]);
    run("nbdcopy", &[&uri, copy_name]);
    run("e2fsck", &["-f", "-n", copy_name]);
    assert!(same(&image, &copy), "what comes out is what went in");
    if installed_as("debugfs", "-V") {
        let back = disk.path("big");
        run("debugfs", &["-R", &format!("dump a/b/c/big {}", back.display()), copy_name]);
        assert!(same(&tree.join("a/b/c/big"), &back), "the file in it is whole");
    }
}

#[test]
fn on_a_file() {
    check(kinds::linear_over_a_file);
}

#[test]
fn on_a_stack() {
    check(kinds::a_stack);
}

#[test]
fn on_two_file_systems() {
    check(kinds::loop_of_two_file_systems);
}

#[test]
fn on_a_remote_export() {
    check(kinds::linear_over_another_udm);
}
