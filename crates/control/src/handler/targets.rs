//! The target types, and messages to targets.

use super::Handler;
use super::error::{Refusal, utf8};
use crate::codec::{Reply, TargetVersion};
use udm_base::{Args, Errno};
use udm_core::{MappedDevice, TableSlot, TargetType};

impl Handler<'_> {
    /// `list_versions`
    pub(super) fn list_versions(&self) -> Result<Reply, Refusal> {
        let mut reply = Reply::to(self.request);
        reply.versions(self.registry.types().iter().map(|t| version_of(t)));
        Ok(reply)
    }

    /// `get_target_version`: the name is a target type's.
    pub(super) fn target_version(&self) -> Result<Reply, Refusal> {
        let name = self.request.name();
        let found = self.registry.types().iter().find(|t| t.name.as_bytes() == name);
        let kind = found.ok_or_else(|| {
            let known: Vec<_> = self.registry.types().iter().map(|t| t.name).collect();
            let message =
                format!("no target is called {:?}: known are {}", String::from_utf8_lossy(name), known.join(", "));
            Refusal::new(Errno::EINVAL, message)
        })?;
        let mut reply = Reply::to(self.request);
        reply.versions([version_of(kind)]);
        Ok(reply)
    }

    /// `target_message`
    pub(super) fn message(&self) -> Result<Reply, Refusal> {
        let md = self.device()?;
        self.send_message(&md).map_err(|error| self.about_text(error))
    }

    fn send_message(&self, md: &MappedDevice) -> Result<Reply, Refusal> {
        let (sector, text) = self.request.message()?;
        let mut args = Args::parse(utf8("the message", text)?);
        let words: Vec<String> = std::iter::from_fn(|| args.take()).map(|arg| arg.text).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let output = match words.as_slice() {
            [] => return Err(Refusal::new(Errno::EINVAL, "Empty message received.: expected at least one word")),
            [first, rest @ ..] if first.starts_with('@') => self.message_for_core(md, first, rest)?,
            // As in the kernel, where a device without a table takes any message and does nothing.
            _ if md.table(TableSlot::Active).is_none() => String::new(),
            words => md.message(sector, words)?,
        };
        let mut reply = self.reply_about(md);
        if !output.is_empty() {
            reply.message_output(output.as_bytes());
        }
        Ok(reply)
    }

    /// `message_for_md`: messages that begin with `@` are not the target's.
    fn message_for_core(&self, md: &MappedDevice, word: &str, rest: &[&str]) -> Result<String, Refusal> {
        match (word.eq_ignore_ascii_case("@cancel_deferred_remove"), rest) {
            (true, []) => {
                md.cancel_deferred_remove();
                Ok(String::new())
            }
            (true, _) => {
                let message =
                    format!("Invalid arguments for @cancel_deferred_remove: expected none, found {}", rest.len());
                Err(Refusal::new(Errno::EINVAL, message))
            }
            (false, _) => {
                let message = format!("Unsupported message sent to DM core: {word}; known is @cancel_deferred_remove");
                Err(Refusal::new(Errno::EINVAL, message))
            }
        }
    }
}

fn version_of(kind: &'static TargetType) -> TargetVersion<'static> {
    TargetVersion { name: kind.name.as_bytes(), version: kind.version }
}
