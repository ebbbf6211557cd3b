//! Waiting for events.

use super::Handler;
use super::error::Refusal;
use crate::codec::Reply;

impl Handler<'_> {
    /// `dev_wait`: sleeps until the event number is another than the caller knows, then tells the status, since that is
    /// what the caller would ask for next.
    pub(super) fn wait(&self) -> Result<Reply, Refusal> {
        let md = self.device()?;
        md.wait_event(self.request.header().event_nr, self.caller.cancel)?;
        Ok(self.reply_with_status(&md))
    }

    /// `dev_arm_poll`
    pub(super) fn arm_poll(&self) -> Result<Reply, Refusal> {
        let mut reply = Reply::to(self.request);
        reply.header_mut().event_nr = self.registry.event_nr();
        Ok(reply)
    }
}
