//! Requests under way: their bios, their memory, and their answers.
//!
//! # Invariants
//! - Memory that a bio refers to stays until the bio has completed.
//! - A request is answered on the connection that it came by, or with the entry that it has come in.
//! - A device stays attached until its last bio here has completed.

use super::links::{LEAST, Links};
use super::search::{Found, Search};
use super::steps::{Part, Range, Step};
use super::tree::{Node, lock};
use super::uring::Uring;
use super::wire::{LseekOut, OutHeader, WriteOut};
use crate::slots::Slots;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Arc;
use udm_base::{AlignedBuf, Errno, Sector, Sectors};
use udm_io::{Attached, BlockDevice, Channel, Completion, Domain, Limits, Op, OpFlags, Question, Questions, Status};
use zerocopy::IntoBytes;

/// The most bytes that one request reads or writes.
pub(super) const MAX_TRANSFER: usize = 1 << 20;
/// Where the data lies in memory that is received into: behind a page that ends with the request's head.
pub(super) const DATA_AT: usize = 4096;
/// The length of memory that is received into. A read may cover two blocks more than it has bytes.
pub(super) const RECEIVE_LEN: usize = DATA_AT + MAX_TRANSFER;
const LARGE: usize = RECEIVE_LEN + 128 * 1024;
/// What is at most this long is copied out of the memory that was received into: a page's copy costs less than to touch
/// other memory for each request.
const SMALL: usize = 32 * 1024;
/// Idle buffers that are kept.
const KEEP_SMALL: usize = 256;
const KEEP_LARGE: usize = 32;
/// The channel's slots.
const DEPTH: usize = 1 << 16;
/// A request's memory.
pub(super) struct Buf {
    memory: AlignedBuf,
    /// Where its data begins.
    at: usize,
    /// It is the payload of the request's entry.
    lent: bool,
}

/// Which request an answer is for.
#[derive(Clone, Copy)]
pub(super) struct Tag {
    /// The connection that it came by.
    pub(super) link: u32,
    pub(super) unique: u64,
    /// Where it has come by io_uring.
    pub(super) entry: Option<u32>,
}

impl Buf {
    fn len(&self) -> usize {
        self.memory.len() - self.at
    }
}

/// What is answered when all went well.
enum Answer {
    /// Bytes of the buffer.
    Data {
        skip: usize,
        len: usize,
    },
    /// A write's length.
    Written(u32),
    /// A place.
    At(u64),
    Empty,
}

struct Job {
    tag: Tag,
    node: Arc<Node>,
    device: u32,
    step: Step,
    /// What follows, the next at the end.
    rest: Vec<Step>,
    buf: Option<Buf>,
    /// What the device is asked.
    search: Option<Search>,
    /// The block of which a part changes.
    block: Option<AlignedBuf>,
    /// How it has entered its node's gate: whether alone.
    gate: Option<bool>,
    /// Bytes of memory that it counts for.
    held: usize,
    answer: Answer,
}

/// A device that is attached.
struct Use {
    node: Arc<Node>,
    version: u64,
    attached: Attached,
    device: Arc<dyn BlockDevice>,
    limits: Limits,
    jobs: usize,
    /// Jobs begin here; otherwise the device has changed meanwhile.
    current: bool,
}

/// What a device is like, for who makes requests of it.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    device: u32,
    pub(super) size: u64,
    pub(super) block: u32,
    pub(super) fua: bool,
    pub(super) discards: bool,
}

/// A worker's channel, its memory, and what is under way.
pub(super) struct Engine {
    pub(super) channel: Channel,
    pub(super) links: Links,
    /// Requests by io_uring, where that can be.
    pub(super) uring: Option<Uring>,
    /// The worker's number, by which gates know it.
    number: usize,
    devices: Slots<Use>,
    jobs: Slots<Job>,
    small: Vec<AlignedBuf>,
    large: Vec<AlignedBuf>,
    /// What devices were asked, and for which jobs.
    questions: Questions,
    asked: HashMap<Question, u32>,
    /// Writes that other workers' jobs have waited for, to be told: worker and slot.
    pub(super) admitted: Vec<(usize, u32)>,
}

impl Engine {
    /// That of worker `number` of `workers`.
    pub(super) fn new(domain: &Domain, (number, workers): (usize, usize)) -> io::Result<Self> {
        let channel = domain.channel()?;
        channel.set_depth(DEPTH);
        channel.set_adaptive(true);
        let questions = Questions::new(&channel);
        Ok(Self {
            channel,
            questions,
            asked: HashMap::new(),
            links: Links::new((number, workers)),
            uring: None,
            number,
            devices: Slots::default(),
            jobs: Slots::default(),
            small: Vec::new(),
            large: Vec::new(),
            admitted: Vec::new(),
        })
    }

    /// Requests under way.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Memory to receive into.
    pub(super) fn take_large(&mut self) -> AlignedBuf {
        self.large.pop().unwrap_or_else(|| AlignedBuf::zeroed(LARGE))
    }

    fn take(&mut self, len: usize) -> Buf {
        if len <= SMALL {
            Buf { memory: self.small.pop().unwrap_or_else(|| AlignedBuf::zeroed(SMALL)), at: 0, lent: false }
        } else {
            Buf { memory: self.take_large(), at: DATA_AT, lent: false }
        }
    }

    fn give(&mut self, buf: Buf) {
        let (list, keep) =
            if buf.memory.len() == SMALL { (&mut self.small, KEEP_SMALL) } else { (&mut self.large, KEEP_LARGE) };
        if list.len() < keep {
            list.push(buf.memory);
        }
    }

    /// The memory of the payload of a request that came by io_uring.
    fn payload(&mut self, tag: Tag) -> Option<Buf> {
        let memory = self.uring.as_mut()?.take(tag.entry?)?;
        Some(Buf { memory, at: 0, lent: true })
    }

    /// Whether memory is kept for later.
    pub(super) fn is_warm(&self) -> bool {
        !self.small.is_empty() || !self.large.is_empty()
    }

    /// Gives idle memory back to the system.
    pub(super) fn trim(&mut self) {
        self.small = Vec::new();
        self.large = Vec::new();
    }

    /// The node's device as it is now, for a request that came by `link`.
    pub(super) fn shape(&mut self, link: u32, node: &Arc<Node>) -> Shape {
        let version = node.version();
        let is = |used: &Use| used.current && Arc::ptr_eq(&used.node, node);
        // A connection is mostly that of one device.
        let last = self.links.of_request(link).device;
        let known = self.devices.get(last).filter(|used| is(used)).map(|_| last);
        let index = match known.or_else(|| Some(self.devices.iter().find(|(_, used)| is(used))?.0)) {
            Some(index) => {
                let used = &mut self.devices[index];
                if used.version == version && used.device.sectors() == used.attached.sectors() {
                    index
                } else {
                    used.current = false;
                    self.let_go_if_idle(index);
                    self.attach(node, version)
                }
            }
            None => self.attach(node, version),
        };
        self.links.of_request(link).device = index;
        let used = &self.devices[index];
        Shape {
            device: index,
            size: used.attached.sectors().checked_bytes().unwrap_or(!0x1ff),
            block: used.limits.logical_block_size,
            fua: used.limits.fua,
            discards: !used.limits.max_discard.is_zero(),
        }
    }

    fn attach(&mut self, node: &Arc<Node>, version: u64) -> u32 {
        let device = node.device.device();
        let attached = self.channel.attach(device.clone());
        let limits = device.limits();
        self.devices.insert(Use { node: node.clone(), version, attached, device, limits, jobs: 0, current: true })
    }

    fn let_go_if_idle(&mut self, index: u32) {
        if self.devices[index].jobs == 0
            && let Some(used) = self.devices.remove(index)
        {
            // SAFETY: every bio to this attachment belongs to one of its jobs, of which there are none.
            unsafe { self.channel.detach_idle(used.attached) };
        }
    }

    /// Lets go of devices that nobody has open.
    pub(super) fn let_go_of_closed(&mut self) {
        for index in self.devices.numbers() {
            if let Some(used) = self.devices.get_mut(index).filter(|used| !used.node.is_open()) {
                used.current = false;
                self.let_go_if_idle(index);
            }
        }
    }

    /// Reads `len` bytes that begin `skip` bytes into the range.
    pub(super) fn read(
        &mut self,
        tag: Tag,
        node: &Arc<Node>,
        shape: Shape,
        range: Range,
        skip: usize,
        len: usize,
    ) -> Result<(), Errno> {
        if range.sectors.as_len() > LARGE - DATA_AT {
            // Only with blocks larger than any device has.
            return Err(Errno::EINVAL);
        }
        // Whole blocks are read to where the kernel takes them from.
        let lent = if skip == 0 && range.sectors.as_len() <= MAX_TRANSFER { self.payload(tag) } else { None };
        let buf = lent.unwrap_or_else(|| self.take(range.sectors.as_len()));
        let answer = Answer::Data { skip, len };
        self.begin(tag, node, shape, (Step::Read(range), Vec::new()), Some(buf), None, answer);
        Ok(())
    }

    /// Writes what was received: `len` bytes at `DATA_AT` of `received`, or of the payload of a request by io_uring.
    /// The memory is taken, or stays with the caller.
    pub(super) fn write(
        &mut self,
        tag: Tag,
        node: &Arc<Node>,
        shape: Shape,
        steps: (Step, Vec<Step>, bool),
        received: &mut AlignedBuf,
        len: usize,
    ) {
        let buf = if let Some(payload) = self.payload(tag) {
            payload
        } else if len <= SMALL {
            let mut buf = self.take(len);
            buf.memory[..len].copy_from_slice(&received[DATA_AT..DATA_AT + len]);
            buf
        } else {
            let next = self.take_large();
            Buf { memory: std::mem::replace(received, next), at: DATA_AT, lent: false }
        };
        let (first, rest, whole) = steps;
        // A request has at most MAX_TRANSFER bytes.
        let answer = Answer::Written(len as u32);
        self.begin(tag, node, shape, (first, rest), Some(buf), Some(!whole), answer);
    }

    /// Changes without data.
    pub(super) fn change(&mut self, tag: Tag, node: &Arc<Node>, shape: Shape, steps: (Step, Vec<Step>, bool)) {
        let (first, rest, whole) = steps;
        self.begin(tag, node, shape, (first, rest), None, Some(!whole), Answer::Empty);
    }

    /// Finds where data, or a hole, is next from a byte on.
    pub(super) fn seek(
        &mut self,
        tag: Tag,
        node: &Arc<Node>,
        shape: Shape,
        from: u64,
        hole: bool,
    ) -> Result<(), Errno> {
        let device = &self.devices[shape.device].device;
        // Refused before anything is under way.
        Search::next(device.sectors(), from, hole)?;
        self.begin(tag, node, shape, (Step::Seek(from, hole), Vec::new()), None, None, Answer::Empty);
        Ok(())
    }

    pub(super) fn flush(&mut self, tag: Tag, node: &Arc<Node>, shape: Shape) {
        self.begin(tag, node, shape, (Step::Flush, Vec::new()), None, None, Answer::Empty);
    }

    #[expect(clippy::too_many_arguments, reason = "a request is made of these, once")]
    fn begin(
        &mut self,
        tag: Tag,
        node: &Arc<Node>,
        shape: Shape,
        steps: (Step, Vec<Step>),
        buf: Option<Buf>,
        gate: Option<bool>,
        answer: Answer,
    ) {
        let (device, (step, rest)) = (shape.device, steps);
        self.devices[device].jobs += 1;
        // An entry's payload is there anyway.
        let held = buf.as_ref().filter(|buf| !buf.lent).map_or(0, Buf::len).max(LEAST);
        self.links.begin(tag.link, held);
        let slot = self.jobs.insert(Job {
            tag,
            node: node.clone(),
            device,
            step,
            rest,
            buf,
            search: None,
            block: None,
            gate,
            held,
            answer,
        });
        let admitted = gate.is_none_or(|alone| lock(&node.gate).enter(alone, (self.number, slot)));
        if admitted {
            self.submit(slot);
        }
    }

    /// Begins a job that has waited at its gate.
    pub(super) fn admit(&mut self, slot: u32) {
        self.submit(slot);
    }

    /// Submits the bio of the job's step.
    fn submit(&mut self, slot: u32) {
        let job = &mut self.jobs[slot];
        let device = self.devices[job.device].attached;
        let (channel, token) = (&self.channel, u64::from(slot));
        let submitted = match job.step {
            Step::Read(Range { start, sectors }) => {
                let buf = job.buf.as_mut().expect("a read has memory");
                let memory = &mut buf.memory[buf.at..buf.at + sectors.as_len()];
                // SAFETY: the memory belongs to the job, and is touched by nobody until its completion has been taken;
                // `drop` sees to it when the worker ends before.
                unsafe { channel.submit(device, Op::Read, OpFlags::NONE, start, memory, token) }
            }
            Step::Write(Range { start, sectors }, from, flags) => {
                let buf = job.buf.as_mut().expect("a write has memory");
                let from = buf.at + from;
                let memory = &mut buf.memory[from..from + sectors.as_len()];
                // SAFETY: as above.
                unsafe { channel.submit(device, Op::Write, flags, start, memory, token) }
            }
            Step::Load(Part { block: Range { start, sectors }, .. }) => {
                let block = job.block.insert(AlignedBuf::zeroed(sectors.as_len()));
                // SAFETY: as above.
                unsafe { channel.submit(device, Op::Read, OpFlags::NONE, start, block, token) }
            }
            Step::Store(Part { block: Range { start, .. }, skip, len, from }) => {
                let block = job.block.as_mut().expect("loaded before");
                let part = &mut block[skip..skip + len];
                match (from, &job.buf) {
                    (Some(from), Some(buf)) => part.copy_from_slice(&buf.memory[buf.at + from..][..len]),
                    _ => part.fill(0),
                }
                // SAFETY: as above.
                unsafe { channel.submit(device, Op::Write, OpFlags::NONE, start, block, token) }
            }
            Step::Discard(Range { start, sectors }) => {
                channel.submit_range(device, Op::Discard, OpFlags::NONE, start, sectors, token)
            }
            Step::Zero(Range { start, sectors }, flags) => {
                channel.submit_range(device, Op::WriteZeroes, flags, start, sectors, token)
            }
            Step::ZeroData(range) => {
                job.search = Some(Search::runs(range));
                return self.ask(slot);
            }
            Step::Seek(from, hole) => {
                let size = self.devices[job.device].device.sectors();
                // It may have become smaller.
                let Ok(search) = Search::next(size, from, hole) else { return self.finish(slot, Err(Errno::ENXIO)) };
                job.search = Some(search);
                return self.ask(slot);
            }
            Step::Flush => channel.submit_range(device, Op::Flush, OpFlags::NONE, Sector::ZERO, Sectors::ZERO, token),
        };
        // One bio a job, and no more jobs than the channel has slots.
        assert!(submitted, "the channel has a slot for each request");
    }

    /// Asks the device what the job has to know next, or goes on with what it found. Does not wait.
    fn ask(&mut self, slot: u32) {
        let job = &mut self.jobs[slot];
        let search = job.search.as_mut().expect("it has something to ask");
        if let Some((sector, sectors)) = search.question() {
            let device = &self.devices[job.device].device;
            let question = self.questions.ask(&self.channel, &**device, sector, sectors);
            self.asked.insert(question, slot);
            return;
        }
        match job.search.take().map(Search::found) {
            Some(Found::Runs(runs)) => {
                job.rest.extend(runs.into_iter().map(|range| Step::Zero(range, OpFlags::NONE)));
                self.next_step(slot);
            }
            Some(Found::At(Ok(at))) => {
                job.answer = Answer::At(at);
                self.finish(slot, Ok(()));
            }
            Some(Found::At(Err(error))) => self.finish(slot, Err(error)),
            None => unreachable!("it was there above"),
        }
    }

    /// Completes what is done: answers, or goes on with the next step. Returns how many bios had completed.
    pub(super) fn work(&mut self) -> usize {
        let mut count = 0;
        self.channel.poll();
        while let Some(Completion { token, status }) = self.channel.completed() {
            count += 1;
            // Tokens are slots.
            self.step_done(token as u32, status);
        }
        while let Some((question, extents)) = self.questions.next_answer() {
            count += 1;
            let slot = self.asked.remove(&question).expect("each question is a job's");
            let job = &mut self.jobs[slot];
            job.search.as_mut().expect("it has asked").answered(&extents);
            self.ask(slot);
        }
        count
    }

    fn step_done(&mut self, slot: u32, status: Status) {
        let job = &mut self.jobs[slot];
        match (job.step, status) {
            (Step::Load(part), Status::Ok) => {
                job.step = Step::Store(part);
                self.submit(slot);
            }
            // A hint: what is left is zeroed.
            (Step::Discard(_), Status::NotSupported) | (_, Status::Ok) => self.next_step(slot),
            _ => self.finish(slot, Err(errno(status))),
        }
    }

    /// Goes on with the next step, if there is one.
    fn next_step(&mut self, slot: u32) {
        let job = &mut self.jobs[slot];
        match job.rest.pop() {
            Some(step) => {
                job.step = step;
                self.submit(slot);
            }
            None => self.finish(slot, Ok(())),
        }
    }

    fn finish(&mut self, slot: u32, result: Result<(), Errno>) {
        let job = self.jobs.remove(slot).expect("a job that ends");
        if let Some(alone) = job.gate {
            // Before the answer: who has it may write the same place again.
            let next = lock(&job.node.gate).leave(alone);
            self.admitted.extend(next);
        }
        let mut buf = job.buf;
        let lent = buf.take_if(|buf| buf.lent);
        let is_lent = lent.is_some();
        if let (Some(Buf { memory, .. }), Some(uring), Some(entry)) = (lent, &mut self.uring, job.tag.entry) {
            uring.give(entry, memory);
        }
        match (result, &job.answer) {
            (Err(error), _) => self.fail(job.tag, error),
            (Ok(()), Answer::Data { len, .. }) if is_lent => {
                if let (Some(uring), Some(entry)) = (&mut self.uring, job.tag.entry) {
                    uring.commit(entry, job.tag.unique, None, *len);
                }
            }
            (Ok(()), Answer::Data { skip, len }) => {
                let buf = buf.as_ref().expect("a read has memory");
                self.answer(job.tag, &buf.memory[buf.at + skip..][..*len]);
            }
            (Ok(()), Answer::Written(size)) => self.answer(job.tag, WriteOut { size: *size, pad: 0 }.as_bytes()),
            (Ok(()), Answer::At(offset)) => self.answer(job.tag, LseekOut { offset: *offset }.as_bytes()),
            (Ok(()), Answer::Empty) => self.answer(job.tag, &[]),
        }
        if let Some(buf) = buf {
            self.give(buf);
        }
        self.links.finish(job.tag.link, job.held);
        let used = &mut self.devices[job.device];
        used.jobs -= 1;
        if !used.current || !used.node.is_open() {
            self.let_go_if_idle(job.device);
        }
    }

    /// Answers a request.
    pub(super) fn answer(&mut self, tag: Tag, data: &[u8]) {
        self.send(tag, None, data);
    }

    /// Answers a request with an error.
    pub(super) fn fail(&mut self, tag: Tag, error: Errno) {
        self.send(tag, Some(error), &[]);
    }

    fn send(&mut self, Tag { link, unique, entry }: Tag, error: Option<Errno>, data: &[u8]) {
        if let (Some(uring), Some(entry)) = (&mut self.uring, entry) {
            uring.answer(entry, unique, error, data);
            return;
        }
        let error = error.map_or(0, |error| -error.get());
        // At most MAX_TRANSFER.
        let header = OutHeader { len: (size_of::<OutHeader>() + data.len()) as u32, error, unique };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(data)];
        let Some(link) = self.links.get(link) else { return };
        match rustix::io::retry_on_intr(|| rustix::io::writev(link.connection.fd(), &parts)) {
            Ok(_) => {}
            // Who asked was killed, or everything is unmounted.
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NODEV) => {}
            Err(error) => tracing::warn!("a request of the kernel cannot be answered: {error}"),
        }
    }
}

/// What a caller is told of a status.
fn errno(status: Status) -> Errno {
    match status {
        // Would be taken for a call that may be tried again without waiting.
        Status::Again | Status::Requeue => Errno::EIO,
        other => other.errno().unwrap_or(Errno::EIO),
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.channel.outstanding() > 0 {
            // A device still has bios, and it may write to their memory: it stays, with all that is beside it.
            tracing::warn!("{} requests of nodes are left behind", self.jobs.len());
            std::mem::forget(std::mem::take(&mut self.jobs));
            std::mem::forget(std::mem::take(&mut self.devices));
        }
    }
}
