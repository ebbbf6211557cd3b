//! Names of remote exports: `nbd://HOST[:PORT]/NAME` and `nbd+unix:///NAME?socket=PATH`.
//!
//! The export name is the path without its first `/`, percent-decoded; it may be empty. Host names are not looked up
//! here. TLS schemes and user names are refused with a reason. Source: the NBD project's `doc/uri.md`, RFC 3986.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::wire::consts::{DEFAULT_PORT, MAX_STRING};

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A TCP port.
    Tcp {
        /// Name or address, IPv6 without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// A unix socket; a path that starts with NUL is in the abstract namespace.
    Unix(PathBuf),
}

/// A parsed URI. `Display` gives the canonical form, which parses to an equal value.
///
/// ```
/// use udm_nbd::uri::Uri;
/// let uri: Uri = "nbd+unix:///my%20disk?socket=/run/x.sock".parse()?;
/// assert_eq!(uri.export, "my disk");
/// # Ok::<(), udm_nbd::uri::UriError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// The server.
    pub endpoint: Endpoint,
    /// The export's name.
    pub export: String,
}

/// Why a URI was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// The scheme is not one of NBD's.
    #[error("{0}: expected nbd://HOST[:PORT]/NAME or nbd+unix:///NAME?socket=PATH")]
    Scheme(String),
    /// A scheme that needs TLS.
    #[error("{0}: TLS is not supported; use nbd:// or nbd+unix:// and a tunnel")]
    Tls(String),
    /// `user@host`.
    #[error("{0}: user names are for TLS, which is not supported")]
    User(String),
    /// No host in `nbd://`, or one in `nbd+unix://`.
    #[error("{0}: nbd:// needs a host, nbd+unix:// must have none (three slashes)")]
    Host(String),
    /// The port is no number from 1 to 65535.
    #[error("{0}: port expected, a number from 1 to 65535")]
    Port(String),
    /// `nbd+unix://` without one `socket=`.
    #[error("{0}: nbd+unix:// needs socket=PATH once, after a question mark")]
    Socket(String),
    /// A query parameter that is not known.
    #[error("{uri}: unknown parameter {key:?}; socket is the only one")]
    Parameter {
        /// The whole URI.
        uri: String,
        /// The parameter's name.
        key: String,
    },
    /// A `%` without two hexadecimal digits, or text that is no UTF-8 or holds a NUL when decoded.
    #[error("{0}: bad percent-encoding, or a name that is not UTF-8 without NUL of at most {MAX_STRING} bytes")]
    Encoding(String),
}

impl std::str::FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let whole = || text.to_owned();
        let (scheme, rest) = text.split_once("://").ok_or_else(|| UriError::Scheme(whole()))?;
        let unix = match scheme.to_ascii_lowercase().as_str() {
            "nbd" => false,
            "nbd+unix" => true,
            "nbds" | "nbds+unix" => return Err(UriError::Tls(whole())),
            _ => return Err(UriError::Scheme(whole())),
        };
        // A fragment has no meaning here; a literal '#' in a name must be written %23.
        if rest.contains('#') {
            return Err(UriError::Encoding(whole()));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));

        let export = decode(path).and_then(|bytes| String::from_utf8(bytes).ok());
        let export = export.filter(|name| name.len() <= MAX_STRING && !name.contains('\0'));
        let export = export.ok_or_else(|| UriError::Encoding(whole()))?;

        let mut socket = None;
        for parameter in query.into_iter().flat_map(|query| query.split('&')).filter(|p| !p.is_empty()) {
            let (key, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            if key != "socket" || !unix {
                return Err(UriError::Parameter { uri: whole(), key: key.to_owned() });
            }
            let path = decode(value).ok_or_else(|| UriError::Encoding(whole()))?;
            if path.is_empty() || path[1..].contains(&0) || socket.replace(path).is_some() {
                return Err(UriError::Socket(whole()));
            }
        }

        let endpoint = if unix {
            if !authority.is_empty() {
                return Err(UriError::Host(whole()));
            }
            let path = socket.ok_or_else(|| UriError::Socket(whole()))?;
            Endpoint::Unix(PathBuf::from(OsString::from_vec(path)))
        } else {
            tcp(authority, text)?
        };
        Ok(Self { endpoint, export })
    }
}

/// Splits `HOST[:PORT]`; an IPv6 address stands in brackets.
fn tcp(authority: &str, text: &str) -> Result<Endpoint, UriError> {
    if authority.contains('@') {
        return Err(UriError::User(text.to_owned()));
    }
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, after)) => (host, Some(after.strip_prefix(':').ok_or_else(|| UriError::Port(text.to_owned()))?)),
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let host = decode(host).and_then(|bytes| String::from_utf8(bytes).ok());
    let host = host.filter(|host| !host.is_empty() && !host.contains('\0'));
    let host = host.ok_or_else(|| UriError::Host(text.to_owned()))?;
    let port = match port {
        // RFC 3986 allows an empty port, which means the default.
        None | Some("") => DEFAULT_PORT,
        Some(digits) => match digits.parse() {
            Ok(port) if port != 0 && digits.bytes().all(|b| b.is_ascii_digit()) => port,
            _ => return Err(UriError::Port(text.to_owned())),
        },
    };
    Ok(Endpoint::Tcp { host, port })
}

/// Percent-decodes; `None` when a `%` is not followed by two hexadecimal digits.
fn decode(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
        // Two hexadecimal digits are at most 255.
        out.push((high * 16 + low) as u8);
    }
    Some(out)
}

/// Writes `bytes`, percent-encoding all but unreserved characters and those in `keep`.
fn encode(f: &mut fmt::Formatter<'_>, bytes: &[u8], keep: &[u8]) -> fmt::Result {
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.contains(&byte) {
            write!(f, "{}", char::from(byte))?;
        } else {
            write!(f, "%{byte:02X}")?;
        }
    }
    Ok(())
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.endpoint {
            Endpoint::Tcp { host, port } => {
                let (open, close) = if host.contains(':') { ("[", "]") } else { ("", "") };
                write!(f, "nbd://{open}")?;
                encode(f, host.as_bytes(), b":")?;
                write!(f, "{close}")?;
                if *port != DEFAULT_PORT {
                    write!(f, ":{port}")?;
                }
                write!(f, "/")?;
                encode(f, self.export.as_bytes(), b"/:")
            }
            Endpoint::Unix(path) => {
                write!(f, "nbd+unix:///")?;
                encode(f, self.export.as_bytes(), b"/:")?;
                write!(f, "?socket=")?;
                encode(f, path.as_os_str().as_bytes(), b"/:")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp_uri(host: &str, port: u16, export: &str) -> Uri {
        Uri { endpoint: Endpoint::Tcp { host: host.into(), port }, export: export.into() }
    }

    fn unix_uri(path: &str, export: &str) -> Uri {
        Uri { endpoint: Endpoint::Unix(path.into()), export: export.into() }
    }

    /// Parses, and parses again what is printed.
    #[track_caller]
    fn check(text: &str, expect: Uri, canonical: &str) {
        assert_eq!(text.parse(), Ok(expect.clone()));
        assert_eq!(expect.to_string(), canonical);
        assert_eq!(canonical.parse(), Ok(expect));
    }

    #[test]
    fn uris_of_the_specification() {
        check("nbd://example.com/disk", tcp_uri("example.com", 10809, "disk"), "nbd://example.com/disk");
        check("nbd://example.com:10810/", tcp_uri("example.com", 10810, ""), "nbd://example.com:10810/");
        check("nbd://example.com", tcp_uri("example.com", 10809, ""), "nbd://example.com/");
        check("NBD://example.com:/x", tcp_uri("example.com", 10809, "x"), "nbd://example.com/x");
        check("nbd://example.com//disk", tcp_uri("example.com", 10809, "/disk"), "nbd://example.com//disk");
        check("nbd://h/hello%20world", tcp_uri("h", 10809, "hello world"), "nbd://h/hello%20world");
        check("nbd://[::1]:99/é", tcp_uri("::1", 99, "é"), "nbd://[::1]:99/%C3%A9");
        check("nbd://[fe80::2]/a", tcp_uri("fe80::2", 10809, "a"), "nbd://[fe80::2]/a");
        check("nbd+unix:///disk?socket=sock", unix_uri("sock", "disk"), "nbd+unix:///disk?socket=sock");
        check("nbd+unix://?socket=/a/b", unix_uri("/a/b", ""), "nbd+unix:///?socket=/a/b");
        check("nbd+unix:///?socket=%00/abstract", unix_uri("\0/abstract", ""), "nbd+unix:///?socket=%00/abstract");
        check("nbd+unix:///a%3fb?socket=/s%26t", unix_uri("/s&t", "a?b"), "nbd+unix:///a%3Fb?socket=/s%26t");
    }

    #[test]
    fn refused_uris() {
        #[track_caller]
        fn check(text: &str, expect: fn(String) -> UriError) {
            assert_eq!(text.parse::<Uri>(), Err(expect(text.to_owned())));
        }
        check("", UriError::Scheme);
        check("http://x/", UriError::Scheme);
        check("nbd:x", UriError::Scheme);
        check("nbds://x/", UriError::Tls);
        check("nbds+unix:///?socket=/s", UriError::Tls);
        check("nbd://me@x/", UriError::User);
        check("nbd:///disk", UriError::Host);
        check("nbd+unix://host/disk?socket=/s", UriError::Host);
        for port in ["0", "65536", "x", "-1", "+1", "1 "] {
            check(&format!("nbd://h:{port}/"), UriError::Port);
        }
        check("nbd://[::1]x/", UriError::Port);
        check("nbd+unix:///disk", UriError::Socket);
        check("nbd+unix:///disk?socket=", UriError::Socket);
        check("nbd+unix:///disk?socket=a&socket=b", UriError::Socket);
        check("nbd+unix:///disk?socket=a%00b", UriError::Socket);
        for name in ["%", "%2", "%zz", "%ff", "a%00b", "a#b"] {
            check(&format!("nbd://h/{name}"), UriError::Encoding);
        }
        check(&format!("nbd://h/{}", "x".repeat(MAX_STRING + 1)), UriError::Encoding);
        let error = "nbd://h/?tls-type=psk".parse::<Uri>();
        assert!(matches!(error, Err(UriError::Parameter { key, .. }) if key == "tls-type"));
    }
}
