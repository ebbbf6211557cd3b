//! Why a command is refused.

use super::Handler;
use crate::codec::CodecError;
use udm_base::Errno;
use udm_core::Error;

/// An error on its way to the caller, from whichever layer.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Error);

impl Refusal {
    pub(super) fn new(errno: Errno, message: impl Into<String>) -> Self {
        Self(Error::new(errno, message))
    }
}

/// What is said in the place of an error that may quote what was to be kept secret.
const HIDDEN: &str =
    "it is refused; as DM_SECURE_DATA asks for it, neither the arguments nor what is wrong with them is shown";

impl Handler<'_> {
    /// An error about the request's text.
    pub(super) fn about_text(&self, error: Refusal) -> Refusal {
        if self.request.is_secure() { Refusal::new(error.0.errno, HIDDEN) } else { error }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl From<CodecError> for Refusal {
    fn from(error: CodecError) -> Self {
        Self::new(error.errno, error.message)
    }
}

/// The text that a field holds.
pub(super) fn utf8<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str, Refusal> {
    std::str::from_utf8(bytes).map_err(|_| {
        let text = String::from_utf8_lossy(bytes);
        Refusal::new(Errno::EINVAL, format!("{what} {text:?} is not UTF-8"))
    })
}
