//! A whole connection to the control socket: hello, then requests until the stream ends.

use udm_control::codec::Request;
use udm_control::wire::{read_answer, read_hello, read_request, write_request};

/// Words of the framing.
pub const WORDS: &[&[u8]] = &[b"UDMC\x01\0\0\0", b"\0\0\0\x01", b"\xff\xff\xff\xff"];

/// Bytes as a client sends them; and as a daemon would answer.
pub fn fuzz_control(data: &[u8]) {
    let _ = read_answer(&mut &*data);
    let mut stream = data;
    if let Ok(directory) = read_hello(&mut stream) {
        assert!(directory.len() <= data.len(), "no more is kept than came");
    }
    while let Ok(Some(request)) = read_request(&mut stream) {
        assert!(request.buf.len() <= data.len(), "no more is kept than came");
        let mut again = Vec::new();
        write_request(&mut again, request.ioctl_cmd, &request.buf).expect("a request that was read can be sent");
        assert_eq!(read_request(&mut &*again).expect("and read again"), Some(request.clone()));
        let _ = Request::parse(request.ioctl_cmd, &request.buf);
    }
}
