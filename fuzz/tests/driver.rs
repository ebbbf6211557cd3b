//! The driver at its command line.

use std::process::{Command, Output};

fn fuzz(args: &[&str]) -> (bool, String) {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_udm-fuzz")).args(args).output().expect("the driver starts");
    (status.success(), String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned())
}

#[test]
fn a_run_tells_its_seed_and_what_it_did() {
    let (success, said) = fuzz(&["--target", "args", "--seconds", "0", "--seed", "5"]);
    assert!(success && said.contains("args: 1 inputs of seed 5 survived"), "{said}");
}

#[test]
fn one_input_can_be_tried_alone() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/seeds/args/odd");
    let (success, said) = fuzz(&["--target", "args", "--input", file]);
    assert!(success && said.contains("survives"), "{said}");
}

#[test]
fn wrong_options_say_what_is_right() {
    let check = |args: &[&str], expect: &str| {
        let (success, said) = fuzz(args);
        assert!(!success && said.contains(expect), "{args:?}: {said}");
    };
    check(&["--target", "nope"], "there are: answer, args");
    check(&["--seconds", "soon"], "`soon` is not a number");
    check(&["--seed"], "needs a value");
    check(&["--colour", "red"], "no option is called `--colour`");
    check(&["--input", "x"], "needs `--target`");
    check(&["--target", "args", "--input", "/nonexistent/x"], "/nonexistent/x: ");
}
