//! Debian's thin-provisioning-tools, where they are installed.

use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The program `name`, or a line that says what is skipped.
pub(crate) fn program(name: &str) -> Option<Command> {
    let there = ["/usr/sbin", "/sbin", "/usr/bin"].iter().any(|dir| Path::new(dir).join(name).exists());
    if !there {
        println!("SKIP {name}: thin-provisioning-tools are not installed");
    }
    there.then(|| {
        let mut command = Command::new(name);
        command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
        command
    })
}

/// `image` in a file.
pub(crate) fn file(image: &[u8]) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(image).expect("an image is written");
    file
}

/// Asserts that thin_check finds `image` clean.
pub(crate) fn thin_check(image: &[u8]) {
    let Some(mut command) = program("thin_check") else { return };
    let file = file(image);
    let output = command.arg(file.path()).output().expect("thin_check runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "thin_check: {}{}", text(&output.stdout), text(&output.stderr));
}

/// The image that thin_restore makes of `xml`, on a device of `blocks` blocks.
pub(crate) fn thin_restore(xml: &str, blocks: usize) -> Option<Vec<u8>> {
    let mut command = program("thin_restore")?;
    let input = file(xml.as_bytes());
    let output = file(&vec![0; blocks * udm_pdata::BLOCK_SIZE]);
    let done = command.arg("-q").arg("-i").arg(input.path()).arg("-o").arg(output.path()).output().expect("it runs");
    assert!(done.status.success(), "thin_restore: {}", String::from_utf8_lossy(&done.stderr));
    Some(std::fs::read(output.path()).expect("the image can be read"))
}
