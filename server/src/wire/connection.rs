//! One client's socket: a reader that cuts messages out of bytes and a writer that buffers answers.
//!
//! They are two values so that a statement can write rows and at the same time notice that the client has gone.

use bytes::{BufMut, Bytes, BytesMut};
use pgwire::messages::PgWireBackendMessage;
use pgwire::messages::response::{ErrorResponse, NoticeResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::frontend::{self, Frontend, StartupPacket};
use crate::error::{Result, Severity, SqlError};

/// First packets are small.
const STARTUP_BYTES_MAX: usize = 10_000;
/// While a statement runs, at most this much of what the client pipelines is taken in.
const READ_AHEAD_BYTES: usize = 1 << 20;
/// Output is handed to the socket in pieces of about this size.
pub const OUT_BYTES: usize = 64 << 10;

/// The receiving half.
#[derive(Debug)]
pub struct Reader {
    socket: OwnedReadHalf,
    buffer: BytesMut,
    message_bytes_max: usize,
}

impl Reader {
    /// Reads from `socket`; a message larger than `message_bytes_max` is a protocol violation.
    pub fn new(socket: OwnedReadHalf, message_bytes_max: usize) -> Self {
        Self {
            socket,
            buffer: BytesMut::with_capacity(8 << 10),
            message_bytes_max,
        }
    }

    /// The first packet; `None` if the client leaves before sending one.
    ///
    /// # Errors
    /// 08P01.
    pub async fn startup(&mut self) -> Result<Option<StartupPacket>> {
        if !self.fill(4).await? {
            return Ok(None);
        }
        let length = be_length(&self.buffer[..4]);
        if !(8..=STARTUP_BYTES_MAX).contains(&length) {
            return Err(SqlError::protocol("invalid length of startup packet"));
        }
        if !self.fill(length).await? {
            return Ok(None);
        }
        let mut packet = self.buffer.split_to(length).freeze();
        frontend::decode_startup(packet.split_off(4)).map(Some)
    }

    /// The next message; `None` when the client has closed the connection.
    ///
    /// # Errors
    /// 08P01.
    pub async fn message(&mut self) -> Result<Option<Frontend>> {
        if !self.fill(5).await? {
            return Ok(None);
        }
        let kind = self.buffer[0];
        let length = be_length(&self.buffer[1..5]);
        if length < 4 {
            return Err(SqlError::protocol("invalid message length"));
        }
        if length > self.message_bytes_max {
            let max = self.message_bytes_max;
            return Err(
                SqlError::protocol(format!("message of {length} bytes is longer than the limit of {max}"))
                    .hint("Send less at once, or raise the setting message_bytes_max."),
            );
        }
        if !kind.is_ascii_alphabetic() {
            return Err(SqlError::protocol(format!("invalid frontend message type {kind}")));
        }
        if !self.fill(1 + length).await? {
            return Ok(None);
        }
        let mut message: Bytes = self.buffer.split_to(1 + length).freeze();
        frontend::decode(kind, message.split_off(5)).map(Some)
    }

    /// Whether the next message is a Sync that has already arrived.
    pub fn sync_is_next(&self) -> bool {
        self.buffer.first() == Some(&b'S')
    }

    /// Makes at least `n` bytes available; false at the end of the stream.
    async fn fill(&mut self, n: usize) -> Result<bool> {
        if self.buffer.len() < n {
            self.buffer.reserve(n - self.buffer.len());
        }
        while self.buffer.len() < n {
            match self.socket.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Ok(false),
                Ok(_) => {}
            }
        }
        Ok(true)
    }

    /// Resolves when the client has closed the connection. What it pipelines meanwhile is kept for [`Self::message`].
    /// Dropping the future loses nothing.
    pub async fn closed(&mut self) {
        while self.buffer.len() < READ_AHEAD_BYTES {
            match self.socket.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        std::future::pending().await
    }
}

fn be_length(bytes: &[u8]) -> usize {
    let length = bytes.iter().fold(0u32, |n, &b| (n << 8) | u32::from(b));
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// The sending half.
#[derive(Debug)]
pub struct Writer {
    socket: OwnedWriteHalf,
    /// Encoded messages not yet sent.
    pub buffer: BytesMut,
}

impl Writer {
    /// Writes to `socket`.
    pub fn new(socket: OwnedWriteHalf) -> Self {
        Self {
            socket,
            buffer: BytesMut::with_capacity(8 << 10),
        }
    }

    /// Buffers a message.
    ///
    /// # Errors
    /// The message cannot be encoded.
    pub fn put(&mut self, message: &PgWireBackendMessage) -> Result<()> {
        message
            .encode(&mut self.buffer)
            .map_err(|e| SqlError::internal(format!("message cannot be encoded: {e}")))
    }

    /// Buffers a single byte (the answer to an encryption request).
    pub fn put_byte(&mut self, byte: u8) {
        self.buffer.put_u8(byte);
    }

    /// Buffers an error or notice.
    ///
    /// # Errors
    /// The message cannot be encoded.
    pub fn put_error(&mut self, error: &SqlError) -> Result<()> {
        let fields = error_fields(error);
        self.put(&match error.fields().severity {
            Severity::Error | Severity::Fatal => PgWireBackendMessage::ErrorResponse(ErrorResponse::new(fields)),
            Severity::Warning | Severity::Notice => PgWireBackendMessage::NoticeResponse(NoticeResponse::new(fields)),
        })
    }

    /// Sends the buffer if it has grown large.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn flush_if_large(&mut self) -> Result<()> {
        if self.buffer.len() >= OUT_BYTES {
            return self.flush().await;
        }
        Ok(())
    }

    /// Sends everything buffered. If the future is dropped half way, the rest stays buffered.
    ///
    /// # Errors
    /// The client has gone.
    pub async fn flush(&mut self) -> Result<()> {
        while !self.buffer.is_empty() {
            match self.socket.write_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Err(client_gone()),
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

/// The client has closed the connection: nobody to tell.
pub fn client_gone() -> SqlError {
    SqlError::fatal("08006", "connection to client lost")
}

fn error_fields(error: &SqlError) -> Vec<(u8, String)> {
    let f = error.fields();
    let severity = f.severity.as_str().to_owned();
    let mut fields = vec![
        (b'S', severity.clone()),
        (b'V', severity),
        (b'C', f.code.clone()),
        (b'M', error.message().to_owned()),
    ];
    let optional = [
        (b'D', f.detail.clone()),
        (b'H', f.hint.clone()),
        (b'P', f.position.map(|p| p.to_string())),
        (b'W', f.context.clone()),
        (b's', f.table.as_ref().map(|_| "public".to_owned())),
        (b't', f.table.clone()),
        (b'c', f.column.clone()),
        (b'n', f.constraint.clone()),
    ];
    fields.extend(optional.into_iter().filter_map(|(kind, text)| text.map(|t| (kind, t))));
    fields
}
