//! A client of PostgreSQL, of the few messages that it takes to know what the server has answered, and when (PostgreSQL
//! 15, "Frontend/Backend Protocol", version 3.0, simple queries, no password).

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The longest message that is expected of a server.
const MAX_MESSAGE: usize = 16 << 20;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Client(UnixStream);

/// What a query came to: the tags of the statements that completed, and the rows.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) tags: Vec<String>,
    pub(crate) rows: Vec<Vec<Option<String>>>,
}

impl Client {
    /// Connects to the server whose socket this is, and waits until it is ready for queries.
    pub(crate) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut client = Self(stream);
        let mut startup = 196_608_u32.to_be_bytes().to_vec();
        startup.extend(b"user\0postgres\0database\0postgres\0\0");
        client.0.write_all(&(startup.len() as u32 + 4).to_be_bytes())?;
        client.0.write_all(&startup)?;
        client.answer()?;
        Ok(client)
    }

    /// Sends statements, and waits until the server is ready for others. An error of one of them is an error.
    pub(crate) fn query(&mut self, statements: &str) -> io::Result<Answer> {
        let mut message = vec![b'Q'];
        message.extend((statements.len() as u32 + 5).to_be_bytes());
        message.extend(statements.as_bytes());
        message.push(0);
        self.0.write_all(&message)?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let (mut answer, mut error) = (Answer::default(), None);
        loop {
            let (kind, body) = self.message()?;
            match kind {
                b'Z' => return error.map_or(Ok(answer), Err),
                b'C' => answer.tags.push(text(body.split(|byte| *byte == 0).next().unwrap_or_default())),
                b'D' => answer.rows.push(row(&body)),
                // Fields that begin with a letter; `M` is the message.
                b'E' => {
                    let message = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&b'M'));
                    error = Some(io::Error::other(text(&message.unwrap_or_default()[1..])));
                }
                b'R' if body != [0; 4] => return Err(io::Error::other("the server asks for a password")),
                _ => {}
            }
        }
    }

    fn message(&mut self) -> io::Result<(u8, Vec<u8>)> {
        let mut head = [0; 5];
        self.0.read_exact(&mut head)?;
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        assert!((4..MAX_MESSAGE).contains(&len), "a message of {len} bytes");
        let mut body = vec![0; len - 4];
        self.0.read_exact(&mut body)?;
        Ok((head[0], body))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A count of columns, and each with its length, which is -1 for a null.
fn row(body: &[u8]) -> Vec<Option<String>> {
    let (count, mut rest) = body.split_at(2);
    let column = |_| {
        let (len, tail) = rest.split_at(4);
        let len = i32::from_be_bytes(len.try_into().expect("four bytes"));
        let (value, tail) = tail.split_at(usize::try_from(len).unwrap_or(0));
        rest = tail;
        (len >= 0).then(|| text(value))
    };
    (0..u16::from_be_bytes([count[0], count[1]])).map(column).collect()
}
