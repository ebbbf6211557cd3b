//! Conversations with clients on `control.sock` and `udm.sock`. When the daemon stops they end between two requests, and can go
//! on in the next; so can a command that was only waiting.

use super::Daemon;
use super::handover::Parcel;
use super::socket::{Connections, Peer};
use super::{control, second};
use serde::{Deserialize, Serialize};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tracing::warn;
use udm_control::wire::WireRequest;

/// The word of its parcels.
pub(super) const KIND: &str = "conversation";
/// The longest path of a caller's directory, and the longest request, are bounded where they are read; so far and no further.
const MAX_BYTES: usize = 64 << 20;

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

/// One that has ended where it can go on.
pub(super) struct Left {
    stream: UnixStream,
    conversation: Conversation,
}

/// What passes of it; its bytes are those of the directory and of the request.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Passed {
    Control { cwd: Option<usize>, request: Option<u32> },
    Second { greeted: bool },
}

impl Left {
    pub(super) fn parcel(self) -> Result<Parcel, String> {
        let (passed, bytes) = match self.conversation {
            Conversation::Second { greeted } => (Passed::Second { greeted }, Vec::new()),
            Conversation::Control { cwd, pending } => {
                let (length, request) = (cwd.as_ref().map(Vec::len), pending.as_ref().map(|p| p.ioctl_cmd));
                let mut bytes = cwd.unwrap_or_default();
                bytes.extend(pending.map(|p| p.buf).unwrap_or_default());
                (Passed::Control { cwd: length, request }, bytes)
            }
        };
        let mut parcel = Parcel::new(KIND, "", passed)?.with(self.stream.into());
        parcel.bytes = bytes;
        Ok(parcel)
    }

    pub(super) fn of_parcel(mut parcel: Parcel) -> Result<Self, String> {
        let mut bytes = std::mem::take(&mut parcel.bytes);
        let conversation = match parcel.read()? {
            Passed::Second { greeted } => Conversation::Second { greeted },
            Passed::Control { cwd, request } => {
                let length = cwd.unwrap_or_default();
                if length > bytes.len() || bytes.len() > MAX_BYTES || cwd.is_none() && request.is_some() {
                    return Err(format!("a conversation with {} bytes, {length} of a directory", bytes.len()));
                }
                let buf = bytes.split_off(length);
                let pending = request.map(|ioctl_cmd| WireRequest { ioctl_cmd, buf });
                Conversation::Control { cwd: cwd.map(|_| bytes), pending }
            }
        };
        Ok(Self { stream: parcel.fd()?.into(), conversation })
    }
}

impl Daemon {
    /// Talks with a client until one of the two ends it. One that can go on is kept as long as the daemon is being replaced.
    pub(super) fn talk(&self, stream: &UnixStream, peer: Peer, conversation: Conversation) {
        let left = match conversation {
            Conversation::Control { cwd, pending } => control::serve(self, stream, peer, cwd, pending),
            Conversation::Second { greeted } => second::serve(self, stream, peer, greeted),
        };
        if let (Some(conversation), true) = (left, self.is_being_replaced()) {
            match stream.try_clone() {
                Ok(stream) => self.left().push(Left { stream, conversation }),
                Err(error) => warn!("process {} is hung up on: {error}", peer.pid),
            }
        }
    }

    /// Goes on with conversations that have left off, here or in another daemon.
    pub(super) fn go_on(self: &Arc<Self>, all: Vec<Left>, connections: &Arc<Connections>) {
        for Left { stream, conversation } in all {
            let daemon = self.clone();
            let talk = move |stream: &UnixStream, peer| daemon.talk(stream, peer, conversation.clone());
            connections.serve(stream, &**self.registry.domain().executor(), Arc::new(talk));
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
            let left = Left { stream, conversation: conversation.clone() };
            let passed = Left::of_parcel(left.parcel().unwrap()).unwrap();
            assert_eq!(passed.conversation, conversation);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            r#"{"control":{"cwd":9,"request":null}}"#,
            r#"{"control":{"cwd":null,"request":1}}"#,
            r#"{"control":{"cwd":1}, "more":1}"#,
            r#"{"third":{}}"#,
        ] {
            let mut parcel = Parcel::new(KIND, "", serde_json::from_str::<serde_json::Value>(text).unwrap()).unwrap();
            parcel.bytes = vec![0; 4];
            parcel.fds = vec![UnixStream::pair().unwrap().0.into()];
            assert!(Left::of_parcel(parcel).is_err(), "{text}");
        }
    }
}
