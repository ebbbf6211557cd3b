//! The client's side of the handshake: fixed newstyle, structured replies and `base:allocation` if they are offered,
//! then `OPT_GO`. Blocks on the stream it is given; a timeout is the stream's matter.

use crate::wire::WireError;
use crate::wire::consts::{EXPORT_NAME_PADDING, MAX_OPTION_DATA, base_allocation, handshake, opt, rep, transmission};
use crate::wire::option::{
    BlockSizes, GREETING_LEN, Info, InfoRequest, MetaRequest, OPTION_REPLY_LEN, OptionReplyHeader, decode_greeting,
    decode_meta_context, put_option,
};
use std::io::{self, Read, Write};

/// Replies to one option that are read before the server is given up: far more than any export has contexts.
const MAX_REPLIES: usize = 1024;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    /// Bytes of the export.
    pub(super) size: u64,
    /// Transmission flags.
    pub(super) flags: u16,
    /// What the server asks requests to keep to; `None` when it did not say.
    pub(super) block_sizes: Option<BlockSizes>,
    /// Replies to reads are structured.
    pub(super) structured: bool,
    /// The id of `base:allocation`, if the server has it.
    pub(super) allocation: Option<u32>,
}

/// Why there is no agreement.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("not an NBD server, or not one that speaks newstyle: {0}")]
    Greeting(WireError),
    #[error("the server breaks the protocol: {0}")]
    Wire(#[from] WireError),
    #[error("the server asks for block sizes that cannot be: {0}")]
    Sizes(String),
    #[error("the server does not know the export {0:?}; `nbdinfo --list` shows those it has")]
    Unknown(String),
    #[error("the server refuses the export {name:?}: {message} (error {kind:#x})")]
    Refused { name: String, kind: u32, message: String },
    #[error("the server demands TLS, which is not supported; use a tunnel")]
    Tls,
    #[error("the server breaks the protocol: {0}")]
    Protocol(&'static str),
}

/// Negotiates for the export `name` over a stream that has just been connected.
pub(super) fn negotiate(stream: &mut (impl Read + Write), name: &str) -> Result<Agreed, HandshakeError> {
    let mut greeting = [0; GREETING_LEN];
    stream.read_exact(&mut greeting)?;
    let offered = decode_greeting(&greeting).map_err(HandshakeError::Greeting)?;
    let flags = offered & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES);
    stream.write_all(&u32::from(flags).to_be_bytes())?;
    if flags & handshake::FIXED_NEWSTYLE == 0 {
        return export_name(stream, name, flags);
    }

    let structured = ask(stream, opt::STRUCTURED_REPLY, &[], |_, _| Ok(()))?.is_ok();
    let mut allocation = None;
    if structured {
        let mut data = Vec::new();
        MetaRequest::put(&mut data, name, &[base_allocation::NAME]);
        // A refusal only means that there is no such context; what is wrong with the name, GO will say.
        let _ = ask(stream, opt::SET_META_CONTEXT, &data, |kind, data| {
            if kind == rep::META_CONTEXT {
                let (id, name) = decode_meta_context(data)?;
                if name == base_allocation::NAME {
                    allocation = Some(id);
                }
            }
            Ok(())
        })?;
    }

    let mut data = Vec::new();
    InfoRequest { name, wants_name: false, wants_description: false, wants_block_size: true }.put(&mut data);
    let (mut export, mut block_sizes) = (None, None);
    let outcome = ask(stream, opt::GO, &data, |kind, data| {
        if kind == rep::INFO {
            match Info::decode(data)? {
                Info::Export { size, flags } => export = Some((size, flags)),
                Info::BlockSize(sizes) => block_sizes = Some(sizes),
                Info::Name(_) | Info::Description(_) | Info::Other(_) => {}
            }
        }
        Ok(())
    })?;
    match outcome {
        Ok(()) => {
            let (size, flags) = export.ok_or(HandshakeError::Protocol("GO was granted without a size"))?;
            block_sizes.map_or(Ok(()), check).map_err(HandshakeError::Sizes)?;
            Ok(Agreed { size, flags, block_sizes, structured, allocation })
        }
        // A server older than GO.
        Err((rep::ERR_UNSUP, _)) => {
            let agreed = export_name(stream, name, flags)?;
            Ok(Agreed { structured, allocation, ..agreed })
        }
        Err((rep::ERR_UNKNOWN, _)) => Err(HandshakeError::Unknown(name.to_owned())),
        Err((rep::ERR_TLS_REQD, _)) => Err(HandshakeError::Tls),
        Err((kind, message)) => Err(HandshakeError::Refused { name: name.to_owned(), kind, message }),
    }
}

/// Enters transmission the old way: a server that refuses hangs up.
fn export_name(stream: &mut (impl Read + Write), name: &str, flags: u16) -> Result<Agreed, HandshakeError> {
    let mut request = Vec::new();
    put_option(&mut request, opt::EXPORT_NAME, name.as_bytes());
    stream.write_all(&request)?;
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => HandshakeError::Unknown(name.to_owned()),
        _ => error.into(),
    })?;
    if flags & handshake::NO_ZEROES == 0 {
        stream.read_exact(&mut [0; EXPORT_NAME_PADDING])?;
    }
    let [s0, s1, s2, s3, s4, s5, s6, s7, f0, f1] = reply;
    Ok(Agreed {
        size: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
        flags: u16::from_be_bytes([f0, f1]),
        block_sizes: None,
        structured: false,
        allocation: None,
    })
}

/// The outcome of an option: what kind of error, and its message.
type Granted = Result<(), (u32, String)>;

/// Sends an option and reads its replies up to the last, an ACK or an error; `each` gets those between.
fn ask(
    stream: &mut (impl Read + Write),
    option: u32,
    data: &[u8],
    mut each: impl FnMut(u32, &[u8]) -> Result<(), WireError>,
) -> Result<Granted, HandshakeError> {
    let mut request = Vec::new();
    put_option(&mut request, option, data);
    stream.write_all(&request)?;
    for _ in 0..MAX_REPLIES {
        let mut header = [0; OPTION_REPLY_LEN];
        stream.read_exact(&mut header)?;
        let header = OptionReplyHeader::decode(&header)?;
        if header.option != option {
            return Err(HandshakeError::Protocol("a reply to another option"));
        }
        if header.length as usize > MAX_OPTION_DATA {
            return Err(HandshakeError::Protocol("a reply of more than 64 KiB"));
        }
        let mut data = vec![0; header.length as usize];
        stream.read_exact(&mut data)?;
        if header.kind & rep::ERROR_BIT != 0 {
            let text = String::from_utf8_lossy(&data).chars().filter(|c| !c.is_control()).collect();
            return Ok(Err((header.kind, text)));
        }
        if header.kind == rep::ACK {
            return Ok(Ok(()));
        }
        each(header.kind, &data)?;
    }
    Err(HandshakeError::Protocol("an option without an end of replies"))
}

/// Checks the size constraints against what the protocol demands of them, and says what is wrong.
fn check(sizes: BlockSizes) -> Result<(), String> {
    let BlockSizes { minimum, preferred, maximum } = sizes;
    if !minimum.is_power_of_two() || minimum > 65536 {
        return Err(format!("the minimum is {minimum} bytes, expected a power of two of at most 65536"));
    }
    if !preferred.is_power_of_two() || preferred < minimum.max(512) {
        let least = minimum.max(512);
        return Err(format!("the preferred size is {preferred} bytes, expected a power of two of at least {least}"));
    }
    if maximum < preferred {
        return Err(format!("the maximum is {maximum} bytes, less than the preferred size of {preferred}"));
    }
    Ok(())
}

/// Flags that stand for no more than a hint, or are not used here, are not looked at.
pub(super) fn has(flags: u16, flag: u16) -> bool {
    // A server that does not set HAS_FLAGS says nothing at all.
    flags & transmission::HAS_FLAGS != 0 && flags & flag != 0
}

#[cfg(test)]
mod tests;
