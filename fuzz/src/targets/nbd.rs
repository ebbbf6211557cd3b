//! NBD: what a client says to the server, what a server says to the client, and the names of exports.

use udm_export::nbd::fuzz;
use udm_nbd::uri::Uri;

/// Magic numbers, options and commands.
pub const WORDS: &[&[u8]] = &[
    b"IHAVEOPT\0\0\0\x07",
    b"IHAVEOPT\0\0\0\x01",
    b"IHAVEOPT\0\0\0\x03\0\0\0\0",
    b"IHAVEOPT\0\0\0\x08\0\0\0\0",
    b"IHAVEOPT\0\0\0\x0a",
    b"base:allocation",
    b"\x25\x60\x95\x13\0\0\0\0",
    b"\x25\x60\x95\x13\0\0\0\x01",
    b"\x25\x60\x95\x13\0\0\0\x07",
    b"\0\0\0\0\0\x10\0\0",
    b"\x02\0\0\0",
];

/// Words of URIs.
pub const URI_WORDS: &[&[u8]] = &[b"nbd://", b"nbd+unix:///", b"?socket=", b"%00", b"%2F", b"[::1]", b":10809", b"@"];

/// A connection, from its first byte on.
pub fn fuzz_connection(data: &[u8]) {
    fuzz::connection(data);
}

/// The requests of a connection that has opened an export; the first byte says whether its replies are structured.
pub fn fuzz_requests(data: &[u8]) {
    let (structured, requests) = data.split_first().unwrap_or((&0, &[]));
    fuzz::requests(structured & 1 == 1, requests);
}

/// What a server says to the client.
pub fn fuzz_server(data: &[u8]) {
    udm_nbd::fuzz::server_says(data);
}

/// A URI that parses is printed so that it parses to the same.
pub fn fuzz_uri(data: &[u8]) {
    if let Ok(uri) = String::from_utf8_lossy(data).parse::<Uri>() {
        let printed = uri.to_string();
        assert_eq!(printed.parse(), Ok(uri), "{printed}");
        assert!(!printed.contains([' ', ',', ';', '\\']), "{printed} fits a table line and the concise format");
    }
}
