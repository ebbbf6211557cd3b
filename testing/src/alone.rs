//! Tests that want a process for themselves: they look at its memory, change its limits, or end it.

use std::process::{Command, Stdio};

/// Set in that process.
const ALONE: &str = "UDM_TEST_ALONE";

/// Whether the test that calls is alone in its process. Where it is not, the test is run in another process, and there
/// is nothing more to do for the caller. `module` is its `module_path!()`, `name` its own.
///
/// # Panics
/// When the test fails in the other process.
#[track_caller]
pub fn alone(module: &str, name: &str) -> bool {
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    // The first part is the program's, which the names of tests leave out.
    let test = module.split_once("::").map_or(name.to_owned(), |(_, module)| format!("{module}::{name}"));
    let mut command = Command::new(std::env::current_exe().expect("a test has a path"));
    command.args(["--exact", &test, "--nocapture", "--include-ignored"]).env(ALONE, "1").stdin(Stdio::null());
    let output = command.output().expect("the program of this test can be started again");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // Moved in, so that who reads what tests print counts this one once, and takes a SKIP as its own.
    said.lines().for_each(|line| println!("    {line}"));
    assert!(output.status.success(), "{test}, in a process of its own: {}", output.status);
    assert!(said.contains("test result: ok. 1 passed"), "there is no test {test}");
    false
}

#[cfg(test)]
mod tests {
    use super::alone;

    /// It would end the other tests with it.
    #[test]
    fn ends_its_process() {
        if alone(module_path!(), "ends_its_process") {
            println!("test result: ok. 1 passed");
            std::process::exit(0);
        }
    }

    #[test]
    #[should_panic(expected = "in a process of its own")]
    fn what_fails_there_fails_here() {
        assert!(!alone(module_path!(), "fails"));
    }

    #[test]
    #[should_panic(expected = "there is no test")]
    fn what_is_not_there_is_not_passed() {
        alone(module_path!(), "no_such_test");
    }

    #[test]
    #[ignore = "it is run by another test"]
    fn fails() {
        panic!("it does")
    }
}
