//! What a call answers: 0 or more, or an errno negated, whose text the thread keeps until its next failure.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use udm_base::Errno;
use udm_io::Status;
use udm_stack::StackError;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Why a call failed.
pub(crate) struct Failure {
    errno: Errno,
    text: String,
}

impl Failure {
    pub(crate) fn new(errno: Errno, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }

    /// A pointer of the caller's that must not be null.
    pub(crate) fn null(what: &str) -> Self {
        Self::new(Errno::EINVAL, format!("{what} is a null pointer"))
    }
}

impl From<StackError> for Failure {
    fn from(e: StackError) -> Self {
        Self::new(e.errno, e.message)
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Self {
        Self::new(Errno::of(&e), e.to_string())
    }
}

/// A result as C gets it.
pub(crate) fn answer(result: Result<c_int, Failure>) -> c_int {
    result.unwrap_or_else(|failure| {
        // A text from an argument may hold anything but a zero, which ended it.
        let text = CString::new(failure.text.replace('\0', " ")).unwrap_or_default();
        LAST.with(|last| last.replace(text));
        -failure.errno.get()
    })
}

/// A bio's end as C gets it: 0, or an errno negated.
pub(crate) fn ended(status: Status) -> c_int {
    status.errno().map_or(0, |errno| -errno.get())
}

/// What went wrong in this thread's last call that failed: which device, what was expected, what was found. Stays until
/// the thread's next failure. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn udm_error() -> *const c_char {
    LAST.with(|last| last.borrow().as_ptr())
}
