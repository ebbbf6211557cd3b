//! The numbers of the NBD protocol, by the names of its `doc/proto.md` (prefix `NBD_` dropped).

/// First eight bytes of a server: `NBDMAGIC`.
pub const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second eight bytes of a newstyle server, and the start of each option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Start of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Start of each request of the transmission phase.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Start of each simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Start of each structured reply chunk.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// The port that IANA assigned to NBD.
pub const DEFAULT_PORT: u16 = 10809;
/// Longest string (export name, description, error message) in bytes.
pub const MAX_STRING: usize = 4096;
/// Most option data, in bytes, that either side of udm takes in. The protocol sets no limit; the longest sensible
/// option (a full name and some hundred queries) fits well.
pub const MAX_OPTION_DATA: usize = 64 * 1024;
/// The largest payload, in bytes, that any client may count on (2^25), and what udm's server advertises.
pub const MAX_PAYLOAD: u32 = 32 * 1024 * 1024;
/// Zero bytes after the reply to `OPT_EXPORT_NAME`, unless both sides set `NO_ZEROES`.
pub const EXPORT_NAME_PADDING: usize = 124;

/// Handshake flags: server to client, and the same bits back (`FLAG_*`, `FLAG_C_*`).
pub mod handshake {
    /// The server answers every option, known or not.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zero bytes after `OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the handshake (`OPT_*`).
pub mod opt {
    /// Choose an export and start; cannot report an error.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Start TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start.
    pub const GO: u32 = 7;
    /// Answer with structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of option replies (`REP_*`).
pub mod rep {
    /// Done, without error.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error type.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The option is unknown.
    pub const ERR_UNSUP: u32 = ERROR_BIT | 1;
    /// The option is forbidden.
    pub const ERR_POLICY: u32 = ERROR_BIT | 2;
    /// The option's data is malformed.
    pub const ERR_INVALID: u32 = ERROR_BIT | 3;
    /// The option needs what this build lacks.
    pub const ERR_PLATFORM: u32 = ERROR_BIT | 4;
    /// TLS must come first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT | 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT | 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT | 7;
    /// The client must ask for block sizes first.
    pub const ERR_BLOCK_SIZE_REQD: u32 = ERROR_BIT | 8;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT | 9;
}

/// Pieces of information on an export (`INFO_*`).
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum and preferred block size, maximum payload.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do (`FLAG_*`).
pub mod transmission {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `CMD_FLUSH` is known.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `CMD_FLAG_FUA` is known.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The medium rotates.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `CMD_TRIM` is known.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `CMD_WRITE_ZEROES` is known.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `CMD_FLAG_DF` is known; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers what was answered on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CMD_CACHE` is known.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `CMD_FLAG_FAST_ZERO` is known.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request (`CMD_FLAG_*`).
pub mod cmd_flag {
    /// Answer only when what this request wrote is durable.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must stay provisioned.
    pub const NO_HOLE: u16 = 1 << 1;
    /// At most one content chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent a context.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail at once when zeroing is no faster than writing.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Types and flags of structured reply chunks (`REPLY_TYPE_*`, `REPLY_FLAG_*`).
pub mod chunk {
    /// Flag: the last chunk of its reply.
    pub const FLAG_DONE: u16 = 1 << 0;
    /// No payload.
    pub const NONE: u16 = 0;
    /// An offset and the data there.
    pub const OFFSET_DATA: u16 = 1;
    /// An offset and the length of a hole there.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of one metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error type.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// An error and a message.
    pub const ERROR: u16 = ERROR_BIT | 1;
    /// An error, a message and the offset it happened at.
    pub const ERROR_OFFSET: u16 = ERROR_BIT | 2;
}

/// The metadata context `base:allocation`.
pub mod base_allocation {
    /// Its name.
    pub const NAME: &str = "base:allocation";
    /// Flag: not allocated.
    pub const STATE_HOLE: u32 = 1 << 0;
    /// Flag: reads as zeroes.
    pub const STATE_ZERO: u32 = 1 << 1;
}
