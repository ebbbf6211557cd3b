//! Conversations with clients on `control.sock` and `udm.sock`. When the daemon stops they end between two requests,
//! and can go on in the next; so can a command that was only waiting.

use super::Daemon;
use super::handover::HandOverMessage;
use super::socket::Peer;
use super::{control, second};
use serde::{Deserialize, Serialize};
use std::os::unix::net::UnixStream;
use udm_control::codec::{Command, Flags, Request};
use udm_control::wire::WireRequest;

/// The word of its messages.
pub(super) const KIND: &str = "conversation";
/// The longest path of a caller's directory, and the longest request, are bounded where they are read; so far and no
/// further.
const MAX_BYTES: usize = 96 << 20;
/// The longest answer that passes.
pub(super) const MAX_UNTAKEN: usize = 48 << 20;

/// Where one is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Conversation {
    /// On `control.sock`.
    Control {
        /// The caller's directory, once the hello has come.
        cwd: Option<Vec<u8>>,
        /// A command that was begun, and is to be begun again.
        pending: Option<WireRequest>,
    },
    /// On `udm.sock`.
    Second {
        /// The hello has come.
        greeted: bool,
    },
}

impl Conversation {
    pub(super) const CONTROL: Self = Self::Control { cwd: None, pending: None };
    pub(super) const SECOND: Self = Self::Second { greeted: false };
}

impl Conversation {
    /// A command that was begun and is to be begun again.
    pub(super) fn take_pending(&mut self) -> Option<Task> {
        match self {
            Self::Control { cwd: Some(cwd), pending } => {
                pending.take().map(|request| Task::Ioctl { cwd: cwd.clone(), request })
            }
            _ => None,
        }
    }
}

/// A request.
pub(super) enum Task {
    /// A command, and the caller's directory.
    Ioctl { cwd: Vec<u8>, request: WireRequest },
    /// A line. `greeted`: the hello has come before.
    Line { line: Vec<u8>, greeted: bool },
}

impl Task {
    /// Whether it may wait for what other commands bring about.
    pub(super) fn may_wait(&self) -> bool {
        let Self::Ioctl { request, .. } = self else { return false };
        let parsed = Request::parse(request.ioctl_cmd, &request.buf);
        parsed.is_ok_and(|parsed| match parsed.command() {
            Command::DevWait | Command::TableLoad | Command::TargetMsg | Command::TableStatus => true,
            Command::DevSuspend => parsed.flags().contains(Flags::SUSPEND),
            _ => false,
        })
    }
}

/// What came of it.
pub(super) enum Done {
    /// What goes to the client. `ends`: nothing follows.
    Answer { bytes: Vec<u8>, ends: bool, greeted: bool },
    /// It has done nothing but wait, and is to be begun again in another daemon.
    Again(WireRequest),
    /// The connection is used for something else.
    Taken,
    /// The thread has died.
    Broken,
}

/// One that has ended where it can go on.
pub(super) struct Left {
    pub(super) stream: UnixStream,
    pub(super) conversation: Conversation,
    /// What has come of the next request.
    pub(super) input: Vec<u8>,
    /// What has not gone of the last answer.
    pub(super) output: Vec<u8>,
}

/// What passes of it; its bytes are those of the directory, of the request, so many of the next request, and so many of
/// an answer.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Passed {
    Control {
        cwd: Option<usize>,
        request: Option<u32>,
        #[serde(default, skip_serializing_if = "is_zero")]
        input: usize,
        #[serde(default, skip_serializing_if = "is_zero")]
        output: usize,
    },
    Second {
        greeted: bool,
        #[serde(default, skip_serializing_if = "is_zero")]
        input: usize,
        #[serde(default, skip_serializing_if = "is_zero")]
        output: usize,
    },
}

/// Older daemons know nothing of what there is none of.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl Left {
    pub(super) fn message(self) -> Result<HandOverMessage, String> {
        let (input, output) = (self.input.len(), self.output.len());
        let (passed, mut bytes) = match self.conversation {
            Conversation::Second { greeted } => (Passed::Second { greeted, input, output }, Vec::new()),
            Conversation::Control { cwd, pending } => {
                let (length, request) = (cwd.as_ref().map(Vec::len), pending.as_ref().map(|p| p.ioctl_cmd));
                let mut bytes = cwd.unwrap_or_default();
                bytes.extend(pending.map(|p| p.buf).unwrap_or_default());
                (Passed::Control { cwd: length, request, input, output }, bytes)
            }
        };
        bytes.extend(self.input);
        bytes.extend(self.output);
        let mut message = HandOverMessage::new(KIND, "", passed)?.with(self.stream.into());
        message.bytes = bytes;
        Ok(message)
    }

    pub(super) fn of_message(mut message: HandOverMessage) -> Result<Self, String> {
        let mut bytes = std::mem::take(&mut message.bytes);
        let (passed, len) = (message.read()?, bytes.len());
        let (Passed::Control { input, output, .. } | Passed::Second { input, output, .. }) = passed;
        let at = len.checked_sub(output).and_then(|at| Some((at, at.checked_sub(input)?)));
        let Some((output, input)) = at.filter(|_| len <= MAX_BYTES) else {
            return Err(format!("a conversation with {len} bytes, {input} of a request, {output} of an answer"));
        };
        let output = bytes.split_off(output);
        let input = bytes.split_off(input);
        let conversation = match passed {
            Passed::Second { greeted, .. } => Conversation::Second { greeted },
            Passed::Control { cwd, request, .. } => {
                let length = cwd.unwrap_or_default();
                if length > bytes.len() || cwd.is_none() && request.is_some() {
                    return Err(format!("a conversation with {} bytes, {length} of a directory", bytes.len()));
                }
                let buf = bytes.split_off(length);
                let pending = request.map(|ioctl_cmd| WireRequest { ioctl_cmd, buf });
                Conversation::Control { cwd: cwd.map(|_| bytes), pending }
            }
        };
        Ok(Self { stream: message.fd()?.into(), conversation, input, output })
    }
}

impl Daemon {
    /// Does what a client asks for. Blocks as long as that takes, at most until the daemon stops or the client hangs
    /// up.
    pub(super) fn perform(&self, stream: &UnixStream, peer: Peer, task: Task) -> Done {
        match task {
            Task::Ioctl { cwd, request } => control::perform(self, stream, peer, cwd, request),
            Task::Line { line, greeted } => second::perform(self, stream, peer, &line, greeted),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_the_same() {
        let request = WireRequest { ioctl_cmd: 7, buf: vec![1, 2, 3] };
        for conversation in [
            Conversation::CONTROL,
            Conversation::Second { greeted: true },
            Conversation::Control { cwd: Some(Vec::new()), pending: None },
            Conversation::Control { cwd: Some(b"/here".to_vec()), pending: None },
            Conversation::Control { cwd: Some(b"/here".to_vec()), pending: Some(request) },
        ] {
            let (stream, _other) = UnixStream::pair().unwrap();
            let left = Left { stream, conversation: conversation.clone(), input: b"half".to_vec(), output: vec![9; 3] };
            let passed = Left::of_message(left.message().unwrap()).unwrap();
            assert_eq!((passed.conversation, passed.input), (conversation, b"half".to_vec()));
            assert_eq!(passed.output, [9; 3]);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            r#"{"control":{"cwd":9,"request":null}}"#,
            r#"{"control":{"cwd":null,"request":1}}"#,
            r#"{"control":{"cwd":1}, "more":1}"#,
            r#"{"control":{"cwd":1,"request":null,"input":5}}"#,
            r#"{"second":{"greeted":true,"input":5}}"#,
            r#"{"second":{"greeted":true,"output":5}}"#,
            r#"{"second":{"greeted":true,"input":3,"output":2}}"#,
            r#"{"second":{"greeted":true,"input":18446744073709551615,"output":2}}"#,
            r#"{"third":{}}"#,
        ] {
            let mut message =
                HandOverMessage::new(KIND, "", serde_json::from_str::<serde_json::Value>(text).unwrap()).unwrap();
            message.bytes = vec![0; 4];
            message.fds = vec![UnixStream::pair().unwrap().0.into()];
            assert!(Left::of_message(message).is_err(), "{text}");
        }
    }
}
