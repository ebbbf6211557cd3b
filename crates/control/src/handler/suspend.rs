//! Suspend and resume.

use super::Handler;
use super::error::Refusal;
use crate::codec::{Flags, Reply};
use udm_core::SuspendOptions;

impl Handler<'_> {
    /// `dev_suspend`: one command for both ways, as a flag tells.
    pub(super) fn suspend_or_resume(&self) -> Result<Reply, Refusal> {
        let md = self.device()?;
        let flags = self.request.flags();
        let options =
            SuspendOptions { noflush: flags.contains(Flags::NOFLUSH), nolockfs: flags.contains(Flags::SKIP_LOCKFS) };
        if flags.contains(Flags::SUSPEND) {
            md.suspend(options, self.caller.cancel)?;
        } else {
            md.resume(options, self.caller.cancel)?;
            *self.notice.borrow_mut() = md.notices().join("\n");
        }
        Ok(self.reply_about(&md))
    }
}
