//! dmsetup's commands on an open stack.

use crate::error::{Failure, answer};
use crate::stack::{UdmStack, text};
use std::collections::HashMap;
use std::ffi::{CString, OsString, c_char, c_int};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use udm_base::Errno;
use udm_client::dmsetup::{self, DmTransport, Env, IoctlError, LocalTransport};
use udm_io::{Domain, Nanos};

/// As many words as a command may have.
const MAX_WORDS: usize = 4096;

/// The registry of a stack, which remembers the number of the last failure: the exit code does not tell it.
struct Remembering {
    inner: LocalTransport,
    failed: Option<Errno>,
}

impl DmTransport for Remembering {
    fn ioctl(&mut self, cmd: u32, buf: &mut Vec<u8>) -> Result<(), IoctlError> {
        let result = self.inner.ioctl(cmd, buf);
        if let Err(e) = &result {
            self.failed = Some(e.errno);
        }
        result
    }

    fn said(&mut self) -> String {
        self.inner.said()
    }
}

struct DomainClock<'a>(&'a Domain);

impl dmsetup::Clock for DomainClock<'_> {
    fn now(&mut self) -> Duration {
        Duration::from_nanos(self.0.clock().now().since(Nanos::default()))
    }

    fn sleep(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Runs a command; what it prints, or why it failed.
fn run(stack: &UdmStack, words: Vec<OsString>) -> Result<Vec<u8>, Failure> {
    let cwd = std::fs::canonicalize(".").unwrap_or_else(|_| PathBuf::from("/"));
    let inner = LocalTransport::new(stack.stack.registry(), cwd.clone());
    let mut transport = Remembering { inner, failed: None };
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut env = Env {
        stdin: &mut io::empty(),
        stdout: &mut stdout,
        stderr: &mut stderr,
        transport: &mut transport,
        clock: &mut DomainClock(&stack.domain),
        exec: &mut |_| Err(io::Error::new(io::ErrorKind::Unsupported, "a library runs no programs")),
        // A library's answers do not depend on its user's surroundings.
        vars: HashMap::new(),
        cwd,
        node_dir: PathBuf::from("/dev/mapper"),
        sysfs: PathBuf::from("/sys"),
        columns: None,
    };
    let code = dmsetup::main(std::iter::once("udm".into()).chain(words).collect(), &mut env);
    if code == 0 {
        return Ok(stdout);
    }
    let told = String::from_utf8_lossy(&stderr);
    let told = told.trim_end();
    Err(Failure::new(transport.failed.unwrap_or(Errno::EINVAL), told.strip_prefix("udm: ").unwrap_or(told)))
}

/// # Safety
/// `argv` leads to texts that end with a zero, the last followed by null.
unsafe fn words(argv: *const *const c_char) -> Result<Vec<OsString>, Failure> {
    if argv.is_null() {
        return Err(Failure::null("the command"));
    }
    let mut words = Vec::new();
    loop {
        // SAFETY: the caller's promise; none before was null.
        let word = unsafe { *argv.add(words.len()) };
        if word.is_null() {
            return Ok(words);
        }
        if words.len() == MAX_WORDS {
            return Err(Failure::new(Errno::E2BIG, format!("more than {MAX_WORDS} words without a null at their end")));
        }
        // SAFETY: the caller's promise.
        words.push(unsafe { text(word, "a word of the command") }?.into());
    }
}

/// Runs one of dmsetup's commands on the stack: create, load, suspend, resume, message, status, table, info, remove and
/// the others, with their options. `argv` are its words, the last followed by null:
///
/// ```c
///     const char *const argv[] = { "create", "vol", "--table", "0 2097152 ram", NULL };
/// ```
///
/// `*output` gets what it prints, to be freed by udm_text_free; null when nobody wants it. With `--json`, info, table,
/// status and ls print JSON. What goes wrong is an errno negated, with the command's words in udm_error(). Any thread
/// may call it. It blocks as long as the command does: `wait` until there is an event. A device with an open queue is
/// not removed (-EBUSY).
///
/// # Safety
/// `stack` is open; `argv` leads to texts that end with a zero, the last followed by null; `output` is null or leads to
/// a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_command(
    stack: *mut UdmStack,
    argv: *const *const c_char,
    output: *mut *mut c_char,
) -> c_int {
    answer((|| {
        // SAFETY: the caller's promise.
        let stack = unsafe { stack.as_ref() }.ok_or_else(|| Failure::null("the stack"))?;
        // SAFETY: the caller's promise.
        let printed = run(stack, unsafe { words(argv) }?)?;
        if !output.is_null() {
            // A table may hold anything but a zero.
            let text = CString::new(printed).map_err(|_| Failure::new(Errno::EILSEQ, "the answer has a zero byte"))?;
            // SAFETY: not null, and the caller's promise.
            unsafe { *output = text.into_raw() };
        }
        Ok(0)
    })())
}

/// Frees a text of udm_command. Null is allowed.
///
/// # Safety
/// `text` comes from `udm_command` and is freed once; or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn udm_text_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the caller's promise: it came from `CString::into_raw`.
        drop(unsafe { CString::from_raw(text) });
    }
}
