//! The client's side of a conversation.

use super::{Hello, MAX_LINE, Request, VERSION, read_line};
use serde_json::Value;
use std::io::{self, BufReader, Read, Write};
use udm_base::Errno;

/// Why a request came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon refused it.
    #[error("{message}")]
    Refused {
        /// The error number.
        errno: Errno,
        /// Why, and what to do.
        message: String,
    },
    /// The conversation broke.
    #[error("the daemon cannot be talked to: {0}")]
    Io(#[from] io::Error),
    /// The daemon answered what this client does not understand.
    #[error("the daemon's answer cannot be understood: {0}")]
    Protocol(String),
}

/// A client that has been greeted. Its calls block until the daemon answers.
pub struct Client<S: Read + Write> {
    stream: BufReader<S>,
    hello: Hello,
}

impl<S: Read + Write> Client<S> {
    /// Greets the daemon at the other end.
    ///
    /// # Errors
    /// The stream's, and the daemon's refusal of this version.
    pub fn connect(stream: S) -> Result<Self, ClientError> {
        let hello = Hello { version: VERSION, program: String::new(), pid: 0 };
        let mut this = Self { stream: BufReader::new(stream), hello };
        let answer = this.ask(&Request::Hello { version: VERSION })?;
        this.hello = serde_json::from_value(answer).map_err(|e| ClientError::Protocol(e.to_string()))?;
        Ok(this)
    }

    /// Who answers.
    pub fn daemon(&self) -> &Hello {
        &self.hello
    }

    /// Asks, and returns what is in the answer's `ok`.
    ///
    /// # Errors
    /// The daemon's refusal, or what broke the conversation.
    pub fn ask(&mut self, request: &Request) -> Result<Value, ClientError> {
        let mut line = serde_json::to_string(request).map_err(|e| ClientError::Protocol(e.to_string()))?;
        line.push('\n');
        let sent = self.stream.get_mut().write_all(line.as_bytes());
        let line = match (sent, read_line(&mut self.stream, MAX_LINE)) {
            (_, Ok(Some(line))) => line,
            // Who hung up before this was sent may have said why.
            (Err(unsent), _) => return Err(unsent.into()),
            (Ok(()), answer) => {
                answer?;
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it hung up").into());
            }
        };
        let mut answer: Value = serde_json::from_str(&line).map_err(|e| ClientError::Protocol(e.to_string()))?;
        if let Some(error) = answer.get("error") {
            let errno = error.get("errno").and_then(Value::as_i64).and_then(|n| i32::try_from(n).ok());
            let message = error.get("message").and_then(Value::as_str).unwrap_or("it did not say why").to_owned();
            return Err(ClientError::Refused { errno: errno.map_or(Errno::EIO, Errno::new), message });
        }
        match answer.get_mut("ok") {
            Some(value) => Ok(value.take()),
            None => Err(ClientError::Protocol(format!("neither \"ok\" nor \"error\" in {line}"))),
        }
    }
}
