//! The handshake of the server: fixed newstyle, as a state machine over bytes.
//!
//! [`Negotiation::step`] takes what has been received, handles at most one message and says how much of the input
//! that message was. It neither reads nor writes a socket, and it answers at most one option a call, so that its
//! caller can stop while a client does not take its replies.
//!
//! Option data beyond [`MAX_OPTION_DATA`] is skipped as it comes, without being kept, and answered with
//! `REP_ERR_TOO_BIG`. TLS is not offered: `OPT_STARTTLS` is answered `REP_ERR_UNSUP`.

use super::session::Session;
use crate::exports::{Client, Exports, OpenError, OpenExport};
use udm_nbd::wire::consts::{EXPORT_NAME_PADDING, MAX_OPTION_DATA, MAX_STRING, base_allocation, handshake, opt, rep};
use udm_nbd::wire::option::{
    GREETING_LEN, Info, InfoRequest, MetaRequest, OPTION_LEN, OptionHeader, greeting, put_counted, put_reply,
};
use udm_nbd::wire::{Cursor, WireError};

/// The id of `base:allocation`, the one metadata context there is.
pub const ALLOCATION_ID: u32 = 1;

const SERVER_FLAGS: u16 = handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES;

enum State {
    /// The client's flags come next.
    Flags,
    /// An option comes next.
    Option,
    /// The data of an option that is too long is being skipped.
    Skip { option: u32, left: u32 },
    /// Over.
    Done,
}

/// What one step came to.
pub enum Step {
    /// More input is needed.
    More,
    /// A message was handled: call again with the rest of the input.
    Again,
    /// The session ends once the replies are out.
    Close,
    /// Transmission begins.
    Start(Box<Started>),
}

/// An export that a client chose.
pub struct Started {
    /// Keeps the export open.
    pub export: OpenExport,
    /// What was agreed on.
    pub session: Session,
}

/// Where a handshake is, for another process.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NegotiationState {
    /// The client's flags have come.
    flags: bool,
    /// The option whose data is being skipped, and how much is left.
    skip: Option<(u32, u32)>,
    done: bool,
    no_zeroes: bool,
    structured: bool,
    allocation: Option<String>,
}

/// A handshake in progress.
pub struct Negotiation {
    state: State,
    client: Client,
    no_zeroes: bool,
    structured: bool,
    /// The export that `base:allocation` was selected for.
    allocation: Option<String>,
    shutdown: bool,
    /// Why the client gets nothing.
    refusal: Option<String>,
}

impl Negotiation {
    /// Begins; the bytes are the server's greeting, to be sent at once.
    pub fn new(client: Client) -> (Self, [u8; GREETING_LEN]) {
        let this = Self {
            state: State::Flags,
            client,
            no_zeroes: false,
            structured: false,
            allocation: None,
            shutdown: false,
            refusal: None,
        };
        (this, greeting(SERVER_FLAGS))
    }

    /// Goes on where another process left off.
    pub fn resume(client: Client, state: NegotiationState) -> Self {
        let NegotiationState { flags, skip, done, no_zeroes, structured, allocation } = state;
        let state = match (done, skip, flags) {
            (true, ..) => State::Done,
            (_, Some((option, left)), _) => State::Skip { option, left },
            (_, _, true) => State::Option,
            _ => State::Flags,
        };
        Self { state, client, no_zeroes, structured, allocation, shutdown: false, refusal: None }
    }

    /// Where it is.
    pub fn state(&self) -> NegotiationState {
        NegotiationState {
            flags: !matches!(self.state, State::Flags),
            skip: if let State::Skip { option, left } = self.state { Some((option, left)) } else { None },
            done: matches!(self.state, State::Done),
            no_zeroes: self.no_zeroes,
            structured: self.structured,
            allocation: self.allocation.clone(),
        }
    }

    /// Who negotiates.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// From now on every option but `ABORT` is answered `REP_ERR_SHUTDOWN`.
    pub fn shut_down(&mut self) {
        self.shutdown = true;
    }

    /// Every option but `ABORT` is answered with why the client gets nothing; then the server hangs up.
    pub fn refuse(&mut self, why: String) {
        self.refusal = Some(why);
    }

    /// Handles the message at the front of `input`, appending what is to be sent to `out`. Returns how many bytes
    /// of the input are done with, and what came of them. An error means that the client does not speak the
    /// protocol, or asked in the one way that cannot be answered with an error: close the connection.
    pub fn step(&mut self, input: &[u8], out: &mut Vec<u8>, exports: &dyn Exports) -> Result<(usize, Step), Refusal> {
        match self.state {
            State::Flags => self.flags(input),
            State::Option => self.option(input, out, exports),
            State::Skip { option, left } => Ok(self.skip(option, left, input, out)),
            State::Done => Ok((0, Step::Close)),
        }
    }

    fn flags(&mut self, input: &[u8]) -> Result<(usize, Step), Refusal> {
        let mut cursor = Cursor::new(input);
        let Ok(flags) = cursor.u32("client flags") else { return Ok((0, Step::More)) };
        // The protocol asks for a hang-up on flags that were not offered.
        if flags & !u32::from(SERVER_FLAGS) != 0 {
            return Err(WireError::Range { field: "client flags", found: flags.into() }.into());
        }
        self.no_zeroes = flags & u32::from(handshake::NO_ZEROES) != 0;
        self.state = State::Option;
        Ok((4, Step::Again))
    }

    fn option(&mut self, input: &[u8], out: &mut Vec<u8>, exports: &dyn Exports) -> Result<(usize, Step), Refusal> {
        let Some(header) = input.first_chunk::<OPTION_LEN>() else { return Ok((0, Step::More)) };
        let OptionHeader { option, length } = OptionHeader::decode(header)?;
        if length as usize > MAX_OPTION_DATA {
            if option == opt::EXPORT_NAME {
                return Err(WireError::String { field: "export name", max: MAX_STRING }.into());
            }
            self.state = State::Skip { option, left: length };
            return Ok((OPTION_LEN, Step::Again));
        }
        let end = OPTION_LEN + length as usize;
        let Some(data) = input.get(OPTION_LEN..end) else { return Ok((0, Step::More)) };
        Ok((end, self.answer(option, data, out, exports)?))
    }

    fn skip(&mut self, option: u32, left: u32, input: &[u8], out: &mut Vec<u8>) -> (usize, Step) {
        let taken = input.len().min(left as usize);
        // `taken` is at most `left`.
        let left = left - taken as u32;
        if left > 0 {
            self.state = State::Skip { option, left };
            return (taken, Step::More);
        }
        self.state = State::Option;
        let text = format!("at most {MAX_OPTION_DATA} bytes of option data are taken");
        put_reply(out, option, rep::ERR_TOO_BIG, text.as_bytes());
        (taken, Step::Again)
    }

    fn answer(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>, exports: &dyn Exports) -> Result<Step, Refusal> {
        if option == opt::EXPORT_NAME {
            return self.export_name(data, out, exports);
        }
        if option == opt::ABORT {
            put_reply(out, option, rep::ACK, b"");
            self.state = State::Done;
            return Ok(Step::Close);
        }
        if self.shutdown {
            put_reply(out, option, rep::ERR_SHUTDOWN, b"the server is shutting down");
            return Ok(Step::Again);
        }
        if let Some(why) = &self.refusal {
            put_reply(out, option, rep::ERR_POLICY, why.as_bytes());
            self.state = State::Done;
            return Ok(Step::Close);
        }
        let before = out.len();
        match self.reply(option, data, out, exports) {
            Ok(step) => Ok(step),
            Err(error) => {
                // What an option sent before it failed is void; only the error goes out.
                out.truncate(before);
                put_reply(out, option, error.kind, error.text.as_bytes());
                Ok(Step::Again)
            }
        }
    }

    fn reply(
        &mut self,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
        exports: &dyn Exports,
    ) -> Result<Step, OptionError> {
        match option {
            opt::LIST => {
                no_data(data)?;
                for export in exports.list() {
                    let mut entry = Vec::new();
                    put_counted(&mut entry, &export.name());
                    entry.extend_from_slice(export.description().as_bytes());
                    put_reply(out, option, rep::SERVER, &entry);
                }
            }
            opt::STRUCTURED_REPLY => {
                no_data(data)?;
                self.structured = true;
            }
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(option, data, out, exports)?,
            opt::INFO | opt::GO => {
                let started = self.info(option, data, out, exports)?;
                put_reply(out, option, rep::ACK, b"");
                if option == opt::GO {
                    self.state = State::Done;
                    return Ok(Step::Start(Box::new(started)));
                }
                return Ok(Step::Again);
            }
            opt::STARTTLS => {
                no_data(data)?;
                return Err(OptionError::new(rep::ERR_UNSUP, "TLS is not offered; use a unix socket or a tunnel"));
            }
            _ => return Err(OptionError::new(rep::ERR_UNSUP, format!("option {option} is not known"))),
        }
        put_reply(out, option, rep::ACK, b"");
        Ok(Step::Again)
    }

    /// The one option whose failure is a hang-up.
    fn export_name(&mut self, data: &[u8], out: &mut Vec<u8>, exports: &dyn Exports) -> Result<Step, Refusal> {
        if self.shutdown {
            return Err(OpenError::Refused("the server is shutting down".into()).into());
        }
        if let Some(why) = &self.refusal {
            return Err(OpenError::Refused(why.clone()).into());
        }
        let name = Cursor::new(data).string(data.len(), "export name")?;
        let started = self.open(name, exports)?;
        out.extend_from_slice(&started.session.size.to_be_bytes());
        out.extend_from_slice(&started.session.transmission_flags().to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; EXPORT_NAME_PADDING]);
        }
        self.state = State::Done;
        Ok(Step::Start(Box::new(started)))
    }

    fn info(&self, option: u32, data: &[u8], out: &mut Vec<u8>, exports: &dyn Exports) -> Result<Started, OptionError> {
        let request = InfoRequest::decode(data)?;
        let started = self.open(request.name, exports)?;
        let session = &started.session;
        let mut put = |info: Info<'_>| {
            let mut data = Vec::new();
            info.put(&mut data);
            put_reply(out, option, rep::INFO, &data);
        };
        put(Info::Export { size: session.size, flags: session.transmission_flags() });
        if request.wants_name {
            put(Info::Name(&started.export.name()));
        }
        let description = started.export.description();
        if request.wants_description && !description.is_empty() {
            put(Info::Description(&description));
        }
        if request.wants_block_size {
            put(Info::BlockSize(session.block_sizes));
        }
        Ok(started)
    }

    fn meta_context(
        &mut self,
        option: u32,
        data: &[u8],
        out: &mut Vec<u8>,
        exports: &dyn Exports,
    ) -> Result<(), OptionError> {
        let select = option == opt::SET_META_CONTEXT;
        if select {
            // Even an attempt that fails drops the old selection.
            self.allocation = None;
        }
        if !self.structured {
            return Err(OptionError::new(rep::ERR_INVALID, "metadata contexts need OPT_STRUCTURED_REPLY first"));
        }
        let request = MetaRequest::decode(data)?;
        self.open(request.name, exports)?;
        // No query at all lists everything, but selects nothing. `base:` is a wildcard for lists alone.
        let found = (!select && request.count == 0)
            || request.queries().any(|query| query == base_allocation::NAME || (!select && query == "base:"));
        if found {
            let id = if select { ALLOCATION_ID } else { 0 };
            let mut entry = id.to_be_bytes().to_vec();
            entry.extend_from_slice(base_allocation::NAME.as_bytes());
            put_reply(out, option, rep::META_CONTEXT, &entry);
            if select {
                self.allocation = Some(request.name.to_owned());
            }
        }
        Ok(())
    }

    fn open(&self, name: &str, exports: &dyn Exports) -> Result<Started, OpenError> {
        let export = exports.open(name, &self.client)?;
        let device = export.device();
        let mut session = Session::new(device.sectors(), &device.limits(), export.read_only() || device.read_only());
        session.structured = self.structured;
        session.allocation = self.structured && self.allocation.as_deref() == Some(name);
        Ok(Started { export, session })
    }
}

fn no_data(data: &[u8]) -> Result<(), OptionError> {
    match data {
        [] => Ok(()),
        _ => Err(OptionError::new(rep::ERR_INVALID, "this option takes no data")),
    }
}

/// Why a connection is closed during the handshake.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The client does not speak the protocol.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// `OPT_EXPORT_NAME` asked for what cannot be had.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// An error that an option is answered with.
struct OptionError {
    kind: u32,
    text: String,
}

impl OptionError {
    fn new(kind: u32, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl From<WireError> for OptionError {
    fn from(error: WireError) -> Self {
        Self::new(rep::ERR_INVALID, error.to_string())
    }
}

impl From<OpenError> for OptionError {
    fn from(error: OpenError) -> Self {
        let kind = match error {
            OpenError::Unknown(_) => rep::ERR_UNKNOWN,
            OpenError::Refused(_) => rep::ERR_POLICY,
        };
        Self::new(kind, error.to_string())
    }
}

#[cfg(test)]
mod tests;
