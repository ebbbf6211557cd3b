//! Questions for what ranges of a device hold, whose answers may come late.
//!
//! A device may have to read metadata, or ask a server or a file system, before it knows. So it is not asked as a
//! function is: it gets an [`ExtentsReply`], and who asked goes on. An event loop has [`Questions`] beside its channel;
//! tools wait ([`BlockingIo::extents`](crate::BlockingIo::extents)).
//!
//! # Invariants
//! - Every question is answered once, with at least its first sector: what is not known counts as data. So does the
//!   range of a reply that is dropped.
//! - Devices have no more than [`MOST`] questions of one asker. What is asked beyond that is answered at once, as data:
//!   a device that never answers does not collect questions, even if those who asked them have gone.

use crate::extents::{Inbox, data};
use crate::{BlockDevice, Channel, Extent, ExtentsReply, Question};
use std::sync::{Arc, Mutex};
use udm_base::{Sector, Sectors};

/// Questions of one asker that devices may have at a time.
const MOST: usize = 1024;

/// What one channel's thread has asked devices.
pub struct Questions {
    inbox: Arc<Inbox>,
    next: u64,
    /// Questions whose answers have not been taken.
    pending: usize,
}

impl Questions {
    /// For the thread of a channel, whose [`wait`](Channel::wait) an answer ends.
    pub fn new(channel: &Channel) -> Self {
        let waker = channel.waker();
        let inbox = Inbox { answered: Mutex::default(), wake: Box::new(move || waker.wake()) };
        Self { inbox: Arc::new(inbox), next: 0, pending: 0 }
    }

    /// Asks what a range of `dev` holds. Does not block. The answer is taken from [`next_answer`](Self::next_answer),
    /// and may be there at once. The device need not be held until then; as the channel's bios are, it must be of the
    /// channel's domain.
    pub fn ask(&mut self, channel: &Channel, dev: &dyn BlockDevice, sector: Sector, sectors: Sectors) -> Question {
        let question = Question(self.next);
        self.next += 1;
        self.pending += 1;
        let mut answered = self.inbox.lock();
        if answered.out == MOST {
            answered.answers.push_back((question, data(sectors)));
            return question;
        }
        answered.out += 1;
        answered.asking = Some(question);
        drop(answered);
        let reply = ExtentsReply { inbox: Some(self.inbox.clone()), question, most: sectors };
        channel.with_cx(|cx| dev.extents(cx, sector, sectors, reply));
        self.inbox.lock().asking = None;
        question
    }

    /// Asks and waits for the answer, on a channel of which nothing else is expected meanwhile. Blocks.
    pub fn wait_for(channel: &Channel, dev: &dyn BlockDevice, sector: Sector, sectors: Sectors) -> Vec<Extent> {
        let mut questions = Self::new(channel);
        questions.ask(channel, dev, sector, sectors);
        loop {
            if let Some((_, extents)) = questions.next_answer() {
                return extents;
            }
            if channel.poll() == 0 && channel.wait(None, &mut Vec::new()).is_err() {
                std::thread::yield_now();
            }
        }
    }

    /// The next answer: runs from the first sector of the question on, within its range, at least one. Costs next to
    /// nothing while nothing was asked.
    pub fn next_answer(&mut self) -> Option<(Question, Vec<Extent>)> {
        if self.pending == 0 {
            return None;
        }
        let answer = self.inbox.lock().answers.pop_front()?;
        self.pending -= 1;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Bio, Cx, DeviceId, Domain, ExtentKind, Limits, Status};
    use std::any::Any;
    use std::time::Duration;

    /// Keeps its questions.
    #[derive(Default)]
    struct Late(Mutex<Vec<ExtentsReply>>);

    impl BlockDevice for Late {
        fn submit(&self, _: &Cx<'_>, bio: Bio) -> Option<Bio> {
            bio.end(Status::Io);
            None
        }
        fn sectors(&self) -> Sectors {
            Sectors::new(1 << 20)
        }
        fn limits(&self) -> Limits {
            Limits::default()
        }
        fn id(&self) -> DeviceId {
            DeviceId::Anonymous(1)
        }
        fn name(&self) -> String {
            "late".into()
        }
        fn extents(&self, _: &Cx<'_>, _: Sector, _: Sectors, reply: ExtentsReply) {
            self.0.lock().unwrap().push(reply);
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    fn runs(sectors: &[u64]) -> Vec<Extent> {
        sectors.iter().map(|n| Extent { sectors: Sectors::new(*n), kind: ExtentKind::Hole }).collect()
    }

    #[test]
    fn who_asks_does_not_wait() {
        let channel = Domain::default().channel().unwrap();
        let (mut questions, late) = (Questions::new(&channel), Late::default());
        let asked = [10, 20, 30].map(|n| questions.ask(&channel, &late, Sector::ZERO, Sectors::new(n)));
        assert_eq!(questions.next_answer(), None);
        let mut replies = std::mem::take(&mut *late.0.lock().unwrap());
        // Another thread's answer ends the wait; one that is too long is cut, and one that is dropped is none.
        let last = replies.pop().unwrap().within(Sectors::new(25));
        let thread = std::thread::spawn(move || last.give(runs(&[20, 0, 20, 1])));
        channel.wait(Some(Duration::from_secs(20)), &mut Vec::new()).unwrap();
        assert_eq!(questions.next_answer(), Some((asked[2], runs(&[20, 5]))));
        thread.join().unwrap();
        drop(replies.pop());
        assert_eq!(questions.next_answer(), Some((asked[1], data(Sectors::new(20)))));
        replies.pop().unwrap().give(runs(&[4]));
        assert_eq!(questions.next_answer(), Some((asked[0], runs(&[4]))));
        assert_eq!(questions.next_answer(), None);
    }

    #[test]
    fn a_device_that_never_answers_is_not_asked_for_ever() {
        let channel = Domain::default().channel().unwrap();
        let (mut questions, late) = (Questions::new(&channel), Late::default());
        let mut ask = || questions.ask(&channel, &late, Sector::ZERO, Sectors::new(8));
        (0..MOST).for_each(|_| _ = ask());
        let (over, again) = (ask(), ask());
        assert_eq!(late.0.lock().unwrap().len(), MOST);
        assert_eq!(questions.next_answer(), Some((over, data(Sectors::new(8)))));
        assert_eq!(questions.next_answer(), Some((again, data(Sectors::new(8)))));
        late.0.lock().unwrap().pop();
        assert!(questions.next_answer().is_some());
        questions.ask(&channel, &late, Sector::ZERO, Sectors::new(8));
        assert_eq!(late.0.lock().unwrap().len(), MOST);
    }
}
