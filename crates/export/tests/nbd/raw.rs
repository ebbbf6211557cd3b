//! A client made of the wire codec alone: it says exactly what a test wants said.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;
use udm_nbd::wire::consts::{base_allocation, chunk, opt, rep};
use udm_nbd::wire::option::{
    GREETING_LEN, Info, InfoRequest, MetaRequest, OPTION_REPLY_LEN, OptionReplyHeader, decode_greeting, put_option,
};
use udm_nbd::wire::reply::{ChunkHeader, ReplyHeader, StatusExtent, block_status, error_payload};
use udm_nbd::wire::request::Request;
use udm_nbd::wire::{Command, NbdError};

/// What a request was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Data(Vec<u8>),
    Status(Vec<StatusExtent>),
    Failed(NbdError),
}

/// A read: cookie, length, and the data that came in chunks, by offset.
type Pending = (u64, u32, Vec<(u64, Vec<u8>)>);

pub(crate) struct Raw {
    pub(crate) stream: UnixStream,
    pub(crate) size: u64,
    pub(crate) flags: u16,
    structured: bool,
    cookie: u64,
    /// Reads that are not answered yet.
    reads: Vec<Pending>,
}

impl Raw {
    /// Connects and takes the greeting.
    pub(crate) fn connect(socket: &Path) -> Self {
        let mut stream = UnixStream::connect(socket).expect("the server listens");
        // A test that waits in vain fails rather than hangs.
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        stream.set_write_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        let mut greeting = [0; GREETING_LEN];
        stream.read_exact(&mut greeting).expect("a greeting");
        assert_eq!(decode_greeting(&greeting), Ok(3));
        stream.write_all(&3u32.to_be_bytes()).expect("sent");
        Self { stream, size: 0, flags: 0, structured: false, cookie: 0, reads: Vec::new() }
    }

    /// Sends an option and reads its replies.
    pub(crate) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut bytes = Vec::new();
        put_option(&mut bytes, option, data);
        self.stream.write_all(&bytes).expect("sent");
        self.replies(option)
    }

    /// The replies to an option that was sent.
    pub(crate) fn replies(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let mut header = [0; OPTION_REPLY_LEN];
            self.stream.read_exact(&mut header).expect("a reply");
            let header = OptionReplyHeader::decode(&header).expect("a reply");
            assert_eq!(header.option, option);
            let mut data = vec![0; header.length as usize];
            self.stream.read_exact(&mut data).expect("its data");
            let last = header.kind == rep::ACK || header.kind & rep::ERROR_BIT != 0;
            replies.push((header.kind, data));
            if last {
                return replies;
            }
        }
    }

    /// Goes to an export, with structured replies and `base:allocation` or without.
    pub(crate) fn go(socket: &Path, export: &str, structured: bool) -> Self {
        let mut this = Self::connect(socket);
        if structured {
            assert_eq!(this.option(opt::STRUCTURED_REPLY, b""), [(rep::ACK, vec![])]);
            let mut data = Vec::new();
            MetaRequest::put(&mut data, export, &[base_allocation::NAME]);
            assert_eq!(this.option(opt::SET_META_CONTEXT, &data).len(), 2);
            this.structured = true;
        }
        let mut data = Vec::new();
        InfoRequest { name: export, wants_name: false, wants_description: false, wants_block_size: true }
            .put(&mut data);
        let replies = this.option(opt::GO, &data);
        assert_eq!(replies.last().map(|r| r.0), Some(rep::ACK), "{replies:?}");
        for (_, data) in &replies[..replies.len() - 1] {
            if let Ok(Info::Export { size, flags }) = Info::decode(data) {
                (this.size, this.flags) = (size, flags);
            }
        }
        this
    }

    /// A request's header with the next cookie, not sent.
    pub(crate) fn header(&mut self, kind: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
        self.cookie += 1;
        if kind == Command::Read as u16 {
            self.reads.push((self.cookie, length, Vec::new()));
        }
        Request { flags, kind, cookie: self.cookie, offset, length }.encode().to_vec()
    }

    /// Sends a request; returns its cookie.
    pub(crate) fn send(&mut self, command: Command, flags: u16, offset: u64, length: u32, payload: &[u8]) -> u64 {
        let mut bytes = self.header(command as u16, flags, offset, length);
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes).expect("sent");
        self.cookie
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the rest of a reply");
        bytes
    }

    /// The next answer, whichever request it is to.
    pub(crate) fn answer(&mut self) -> (u64, Answer) {
        loop {
            if let Some(answer) = self.reply() {
                return answer;
            }
        }
    }

    /// The next reply; `None` for a chunk that is not the last of its answer.
    fn reply(&mut self) -> Option<(u64, Answer)> {
        let mut bytes = self.bytes(16);
        let header = match ReplyHeader::decode(&bytes).expect("a reply") {
            Some((header, _)) => header,
            None => {
                bytes.extend(self.bytes(4));
                ReplyHeader::decode(&bytes).expect("a chunk").expect("whole").0
            }
        };
        match header {
            ReplyHeader::Simple { error, cookie } => {
                let read = self.reads.iter().position(|(c, ..)| *c == cookie);
                let length = read.map(|i| self.reads.swap_remove(i).1);
                assert!(length.is_none() || !self.structured, "a simple reply to a read");
                Some(match (error, length) {
                    (0, Some(length)) => (cookie, Answer::Data(self.bytes(length as usize))),
                    (0, None) => (cookie, Answer::Done),
                    (error, _) => (cookie, Answer::Failed(NbdError::from_wire(error))),
                })
            }
            ReplyHeader::Chunk(ChunkHeader { flags, kind, cookie, length }) => {
                assert!(self.structured, "a chunk that was not agreed on");
                let payload = self.bytes(length as usize);
                let last = flags & chunk::FLAG_DONE != 0;
                let read = self.reads.iter().position(|(c, ..)| *c == cookie);
                assert!(last || kind == chunk::OFFSET_DATA, "only data comes in several chunks");
                if let (chunk::OFFSET_DATA, Some(read)) = (kind, read) {
                    let at = u64::from_be_bytes(payload[..8].try_into().expect("eight bytes"));
                    self.reads[read].2.push((at, payload[8..].to_vec()));
                }
                if !last {
                    return None;
                }
                let read = read.map(|i| self.reads.swap_remove(i));
                let answer = match kind {
                    chunk::OFFSET_DATA => Answer::Data(whole(read.expect("a read"))),
                    chunk::NONE => Answer::Done,
                    chunk::BLOCK_STATUS => Answer::Status(block_status(&payload).expect("a status").1.collect()),
                    kind => {
                        let (error, message) = error_payload(kind, &payload).expect("an error");
                        assert!(!message.is_empty(), "an error says why");
                        Answer::Failed(error)
                    }
                };
                Some((cookie, answer))
            }
        }
    }

    /// Sends a request and takes its answer.
    #[track_caller]
    pub(crate) fn ask(&mut self, command: Command, flags: u16, offset: u64, length: u32, payload: &[u8]) -> Answer {
        let sent = self.send(command, flags, offset, length, payload);
        let (cookie, answer) = self.answer();
        assert_eq!(cookie, sent);
        answer
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        assert_eq!(self.ask(Command::Write, 0, offset, data.len() as u32, data), Answer::Done);
    }

    pub(crate) fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        match self.ask(Command::Read, 0, offset, length, b"") {
            Answer::Data(data) => data,
            other => panic!("{other:?}"),
        }
    }

    /// Whether the server hangs up without another word.
    pub(crate) fn is_hung_up(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0))
            || self.stream.read(&mut [0; 1]).is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset)
    }
}

/// The data of a read, whose chunks together are all of it, each byte once.
fn whole((_, length, mut chunks): Pending) -> Vec<u8> {
    chunks.sort_by_key(|(at, _)| *at);
    for two in chunks.windows(2) {
        assert_eq!(two[0].0 + two[0].1.len() as u64, two[1].0, "chunks are neighbours");
    }
    let data = match <[_; 1]>::try_from(chunks) {
        Ok([(_, data)]) => data,
        Err(chunks) => chunks.into_iter().map(|(_, data)| data).collect::<Vec<_>>().concat(),
    };
    assert_eq!(data.len(), length as usize);
    data
}
