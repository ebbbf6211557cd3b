//! What it takes to go on with a connection in another process.
//!
//! A server is paused: it takes no connection and no request, and finishes what is under way. Then every connection is
//! between two requests, or between two pieces of long ones, and what there is to know of it is what was agreed on,
//! what is left of long requests, what has been received of the next, and the replies that its client has not taken.
//! The client notices nothing.

use super::extents::Survey;
use super::long::{Kind, Long};
use super::negotiate::NegotiationState;
use super::pool::CHUNK;
use super::session::{Durability, Session};
use super::transmission::CONNECTION_REQUESTS;
use crate::exports::{Client, Exports, OpenExport};
use crate::listener::Listen;
use rustix::fd::OwnedFd;
use serde::{Deserialize, Serialize};
use udm_base::{Sector, Sectors};
use udm_io::{Op, OpFlags};
use udm_nbd::wire::consts::{MAX_OPTION_DATA, MAX_PAYLOAD};
use udm_nbd::wire::option::{BlockSizes, OPTION_LEN};
use udm_nbd::wire::request::REQUEST_LEN;

/// Replies that wait may be that long: what a connection may hold, and one request that is larger.
const MAX_UNSENT: usize = 64 << 20;

/// All that a server gives to the next.
#[derive(Default)]
pub struct Handed {
    /// The sockets that it listens on. Their files stay.
    pub listeners: Vec<(Listen, OwnedFd)>,
    /// Its clients.
    pub connections: Vec<HandedConnection>,
}

/// A connection on its way to another server.
pub struct HandedConnection {
    /// Its socket.
    pub socket: OwnedFd,
    /// What is known of it.
    pub state: ConnectionState,
    /// What was received of a request, or of an option, that is not complete or has not been looked at.
    pub input: Vec<u8>,
    /// Replies that the client has not taken.
    pub unsent: Vec<u8>,
}

/// What is known of a connection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionState {
    pub(super) client: Client,
    /// The client has closed its side, and takes its last replies.
    pub(super) ended: bool,
    pub(super) phase: PhaseState,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum PhaseState {
    Handshake(NegotiationState),
    Transmission {
        export: String,
        session: Session,
        receiving: ReceivingState,
        /// Not told by servers that finished all requests first.
        #[serde(default)]
        longs: Vec<LongState>,
    },
}

/// What is left of a long request, in sectors.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LongState {
    cookie: u64,
    start: u64,
    length: u64,
    durability: Durability,
    what: LongKind,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum LongKind {
    /// A read that is answered in chunks, or else in one.
    Read {
        chunks: bool,
    },
    Trim,
    /// `keep`: what is zeroed stays allocated. `fast`: zeroes must not be written.
    Zero {
        keep: bool,
        fast: bool,
    },
    /// Zeroes that are written.
    Written,
    Status {
        one: bool,
    },
}

/// What the next bytes are.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum ReceivingState {
    Header,
    /// The rest of a write's payload; the input is what has come of it, and maybe of what follows. In sectors.
    Payload {
        cookie: u64,
        start: u64,
        length: u64,
        durability: Durability,
        /// What a piece before has failed with.
        #[serde(default)]
        failed: Option<u32>,
    },
    /// The rest of the payload of a write that is refused, some of which may be in the input.
    Skip {
        cookie: u64,
        left: usize,
        error: u32,
    },
}

/// Why a connection cannot be taken over.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a connection of {client} cannot be gone on with: {why}")]
pub struct TakeError {
    pub(super) client: Client,
    pub(super) why: String,
}

/// A connection that was checked, with its export open: nothing of it can fail any more.
pub struct Prepared {
    pub(super) socket: OwnedFd,
    pub(super) client: Client,
    pub(super) ended: bool,
    pub(super) phase: PreparedPhase,
    pub(super) input: Vec<u8>,
    pub(super) unsent: Vec<u8>,
}

pub(super) enum PreparedPhase {
    Handshake(NegotiationState),
    Transmission { export: OpenExport, session: Session, receiving: ReceivingState, longs: Vec<LongState> },
}

impl HandedConnection {
    /// Checks what another process says, and opens the export. May block as that does.
    pub fn prepare(self, exports: &dyn Exports) -> Result<Prepared, TakeError> {
        let Self { socket, state: ConnectionState { client, ended, phase }, input, unsent } = self;
        let fail = |why: String| TakeError { client: client.clone(), why };
        if unsent.len() > MAX_UNSENT {
            return Err(fail(format!("{} bytes of replies", unsent.len())));
        }
        let phase = match phase {
            PhaseState::Handshake(negotiation) => {
                if input.len() > OPTION_LEN + MAX_OPTION_DATA + CHUNK {
                    return Err(fail(format!("{} bytes of options", input.len())));
                }
                PreparedPhase::Handshake(negotiation)
            }
            PhaseState::Transmission { export, session, receiving, longs } => {
                session.check().map_err(fail)?;
                receiving.check(&session, input.len()).map_err(fail)?;
                if longs.len() > CONNECTION_REQUESTS {
                    return Err(fail(format!("{} long requests", longs.len())));
                }
                longs.iter().try_for_each(|long| long.check(&session)).map_err(fail)?;
                let export = exports.open(&export, &client).map_err(|e| fail(e.to_string()))?;
                PreparedPhase::Transmission { export, session, receiving, longs }
            }
        };
        Ok(Prepared { socket, client, ended, phase, input, unsent })
    }
}

impl Session {
    /// Whether it is what another server could have agreed on.
    fn check(&self) -> Result<(), String> {
        let BlockSizes { minimum, maximum, .. } = self.block_sizes;
        let sound = minimum.is_power_of_two() && (512..=65536).contains(&minimum) && maximum <= MAX_PAYLOAD;
        match sound && self.size.is_multiple_of(512) {
            true => Ok(()),
            false => Err(format!("a size of {}, blocks of {minimum} to {maximum} bytes", self.size)),
        }
    }
}

impl LongState {
    /// What another process has to do of a request that has nothing under way; `None` of a write, which goes along as
    /// what is received.
    pub(super) fn of(long: &Long) -> Option<Self> {
        let mut start = long.next;
        let what = match &long.kind {
            Kind::Write { .. } => return None,
            Kind::Chunks => LongKind::Read { chunks: true },
            // Read once more.
            Kind::Whole { start: from, .. } => {
                start = *from;
                LongKind::Read { chunks: false }
            }
            Kind::Range { op: Op::Discard, .. } => LongKind::Trim,
            Kind::Range { flags, fast, .. } => LongKind::Zero { keep: flags.contains(OpFlags::NO_UNMAP), fast: *fast },
            Kind::Zeroes => LongKind::Written,
            Kind::Status(survey) => LongKind::Status { one: survey.is_one() },
        };
        let length = long.end.checked_since(start)?.get();
        Some(Self { cookie: long.cookie, start: start.get(), length, durability: long.durability, what })
    }

    fn check(&self, session: &Session) -> Result<(), String> {
        let end = self.start.checked_add(self.length).and_then(|end| end.checked_mul(512));
        let most = match self.what {
            LongKind::Read { .. } => u64::from(MAX_PAYLOAD) >> 9,
            _ => u64::from(u32::MAX) >> 9,
        };
        let sound = end.is_some_and(|end| end <= session.size) && (1..=most).contains(&self.length);
        let writes = !matches!(self.what, LongKind::Read { .. } | LongKind::Status { .. });
        match sound && !(writes && session.read_only) {
            true => Ok(()),
            false => Err(format!("a request of {} sectors at {}", self.length, self.start)),
        }
    }

    /// The request, to be gone on with. It has been checked.
    pub(super) fn begin(&self) -> Long {
        let (start, length) = (Sector::new(self.start), Sectors::new(self.length));
        let kind = match self.what {
            LongKind::Read { chunks: false } => return Long::whole(self.cookie, start, length),
            LongKind::Read { chunks: true } => Kind::Chunks,
            LongKind::Trim => Kind::Range { op: Op::Discard, flags: OpFlags::NONE, fast: false },
            LongKind::Zero { keep, fast } => {
                let flags = if keep { OpFlags::NO_UNMAP } else { OpFlags::NONE };
                Kind::Range { op: Op::WriteZeroes, flags, fast }
            }
            LongKind::Written => Kind::Zeroes,
            LongKind::Status { one } => Kind::Status(Survey::new(start, length, one)),
        };
        Long::new(self.cookie, kind, start, length, self.durability)
    }
}

impl ReceivingState {
    fn check(&self, session: &Session, input: usize) -> Result<(), String> {
        match self {
            Self::Header if input <= CHUNK => Ok(()),
            Self::Skip { left, .. } if input <= CHUNK && u32::try_from(*left).is_ok() => Ok(()),
            Self::Payload { start, length, .. } => {
                let bytes = length.checked_mul(512).filter(|bytes| *bytes <= u64::from(MAX_PAYLOAD));
                let end = start.checked_add(*length).and_then(|end| end.checked_mul(512));
                let within = end.is_some_and(|end| end <= session.size);
                match bytes {
                    // At most a chunk waits beside the piece that is being received.
                    Some(bytes) if within && (input as u64) < bytes + CHUNK as u64 => Ok(()),
                    _ => Err(format!("{input} bytes of a write of {length} sectors at {start}")),
                }
            }
            _ => Err(format!("{input} bytes of input, {REQUEST_LEN} of a request")),
        }
    }
}
