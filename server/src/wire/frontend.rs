//! Decodes what clients send. Every length is checked against the message before it is used.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};

use crate::error::{Result, SqlError};

/// First packet of a connection, which has no type byte.
#[derive(Debug)]
pub enum StartupPacket {
    /// Wants TLS.
    Ssl,
    /// Wants GSSAPI encryption.
    Gss,
    /// Cancel the statement of another connection.
    Cancel {
        /// Its process id.
        pid: i32,
        /// Its key.
        secret: i32,
    },
    /// Start a session.
    Startup {
        /// Protocol version as major << 16 | minor.
        version: u32,
        /// `user`, `database` and settings.
        parameters: BTreeMap<String, String>,
    },
}

/// A message of a running session.
#[derive(Debug)]
pub enum Frontend {
    /// Simple query.
    Query(String),
    /// Parse.
    Parse {
        /// Statement name, `""` for the unnamed one.
        name: String,
        /// SQL.
        sql: String,
        /// Parameter type OIDs; 0 is unspecified.
        types: Vec<u32>,
    },
    /// Bind.
    Bind {
        /// Portal name.
        portal: String,
        /// Statement name.
        statement: String,
        /// Parameter formats: none, one for all, or one each.
        formats: Vec<i16>,
        /// Parameters; `None` is NULL.
        parameters: Vec<Option<Bytes>>,
        /// Result formats: none, one for all, or one each.
        result_formats: Vec<i16>,
    },
    /// Describe a statement.
    DescribeStatement(String),
    /// Describe a portal.
    DescribePortal(String),
    /// Execute.
    Execute {
        /// Portal name.
        portal: String,
        /// Row limit; 0 is none.
        limit: usize,
    },
    /// Close a statement.
    CloseStatement(String),
    /// Close a portal.
    ClosePortal(String),
    /// Flush.
    Flush,
    /// Sync.
    Sync,
    /// A piece of COPY data.
    CopyData(Bytes),
    /// End of COPY data.
    CopyDone,
    /// The client gives up a COPY.
    CopyFail(String),
    /// Goodbye.
    Terminate,
    /// Any answer to an authentication request.
    Password,
}

impl Frontend {
    /// Belongs to the extended protocol: after its error, messages up to Sync are skipped.
    pub fn is_extended(&self) -> bool {
        matches!(
            self,
            Self::Parse { .. }
                | Self::Bind { .. }
                | Self::DescribeStatement(_)
                | Self::DescribePortal(_)
                | Self::Execute { .. }
                | Self::CloseStatement(_)
                | Self::ClosePortal(_)
        )
    }
}

/// Reads fields off a message body.
struct Body(Bytes);

impl Body {
    fn need(&self, n: usize) -> Result<()> {
        if self.0.remaining() < n {
            return Err(SqlError::protocol("insufficient data left in message"));
        }
        Ok(())
    }

    fn u8(&mut self) -> Result<u8> {
        self.need(1)?;
        Ok(self.0.get_u8())
    }

    fn i16(&mut self) -> Result<i16> {
        self.need(2)?;
        Ok(self.0.get_i16())
    }

    fn u32(&mut self) -> Result<u32> {
        self.need(4)?;
        Ok(self.0.get_u32())
    }

    fn i32(&mut self) -> Result<i32> {
        self.need(4)?;
        Ok(self.0.get_i32())
    }

    /// A count that the protocol sends as 16 bits, of elements of `size` bytes or more.
    fn count(&mut self, size: usize) -> Result<usize> {
        self.need(2)?;
        let n = usize::from(self.0.get_u16());
        self.need(n * size)?;
        Ok(n)
    }

    fn string(&mut self) -> Result<String> {
        let Some(end) = self.0.iter().position(|&b| b == 0) else {
            return Err(SqlError::protocol("invalid string in message"));
        };
        let raw = self.0.split_to(end);
        self.0.advance(1);
        match std::str::from_utf8(&raw) {
            Ok(s) => Ok(s.to_owned()),
            Err(e) => Err(invalid_utf8(&raw, e.valid_up_to())),
        }
    }

    fn end(&self) -> Result<()> {
        if self.0.has_remaining() {
            return Err(SqlError::protocol("invalid message format"));
        }
        Ok(())
    }
}

/// 22021, naming the first bad bytes as PostgreSQL does.
pub fn invalid_utf8(raw: &[u8], at: usize) -> SqlError {
    let bad: Vec<String> = raw[at..].iter().take(4).map(|b| format!("0x{b:02x}")).collect();
    SqlError::new(
        "22021",
        format!("invalid byte sequence for encoding \"UTF8\": {}", bad.join(" ")),
    )
}

const CANCEL: u32 = 80_877_102;
const SSL: u32 = 80_877_103;
const GSS: u32 = 80_877_104;

/// Decodes the first packet's body (after its length).
///
/// # Errors
/// 08P01 for a malformed packet.
pub fn decode_startup(body: Bytes) -> Result<StartupPacket> {
    let mut b = Body(body);
    let packet = match b.u32()? {
        SSL => StartupPacket::Ssl,
        GSS => StartupPacket::Gss,
        CANCEL => StartupPacket::Cancel {
            pid: b.i32()?,
            secret: b.i32()?,
        },
        version => {
            let mut parameters = BTreeMap::new();
            loop {
                let key = b.string()?;
                if key.is_empty() {
                    break;
                }
                parameters.insert(key, b.string()?);
            }
            StartupPacket::Startup { version, parameters }
        }
    };
    b.end()?;
    Ok(packet)
}

/// Decodes a message's body.
///
/// # Errors
/// 08P01 for an unknown type or a body that does not have the type's form.
pub fn decode(kind: u8, body: Bytes) -> Result<Frontend> {
    let mut b = Body(body);
    let message = match kind {
        b'Q' => Frontend::Query(b.string()?),
        b'P' => {
            let name = b.string()?;
            let sql = b.string()?;
            let n = b.count(4)?;
            let types = (0..n).map(|_| b.u32()).collect::<Result<_>>()?;
            Frontend::Parse { name, sql, types }
        }
        b'B' => decode_bind(&mut b)?,
        b'D' | b'C' => match (kind, b.u8()?) {
            (b'D', b'S') => Frontend::DescribeStatement(b.string()?),
            (b'D', b'P') => Frontend::DescribePortal(b.string()?),
            (_, b'S') => Frontend::CloseStatement(b.string()?),
            (_, b'P') => Frontend::ClosePortal(b.string()?),
            (_, other) => return Err(SqlError::protocol(format!("invalid message subtype {other}"))),
        },
        b'E' => {
            let portal = b.string()?;
            let limit = usize::try_from(b.i32()?).unwrap_or(0);
            Frontend::Execute { portal, limit }
        }
        b'H' => Frontend::Flush,
        b'S' => Frontend::Sync,
        b'd' => return Ok(Frontend::CopyData(b.0)),
        b'c' => Frontend::CopyDone,
        b'f' => Frontend::CopyFail(b.string()?),
        b'X' => return Ok(Frontend::Terminate),
        b'p' => return Ok(Frontend::Password),
        b'F' => {
            return Err(SqlError::new(
                "0A000",
                "the fast-path function protocol is not supported",
            ));
        }
        other => {
            return Err(SqlError::protocol(format!("invalid frontend message type {other}")));
        }
    };
    b.end()?;
    Ok(message)
}

fn decode_bind(b: &mut Body) -> Result<Frontend> {
    let portal = b.string()?;
    let statement = b.string()?;
    let n = b.count(2)?;
    let formats = (0..n).map(|_| b.i16()).collect::<Result<_>>()?;
    let n = b.count(4)?;
    let mut parameters = Vec::with_capacity(n);
    for _ in 0..n {
        let length = b.i32()?;
        if length == -1 {
            parameters.push(None);
            continue;
        }
        let length =
            usize::try_from(length).map_err(|_| SqlError::protocol("invalid parameter length in bind message"))?;
        b.need(length)?;
        parameters.push(Some(b.0.split_to(length)));
    }
    let n = b.count(2)?;
    let result_formats = (0..n).map(|_| b.i16()).collect::<Result<_>>()?;
    Ok(Frontend::Bind {
        portal,
        statement,
        formats,
        parameters,
        result_formats,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_and_padded_messages_are_protocol_violations() {
        let good: &[(u8, &[u8])] = &[
            (b'Q', b"select 1\0"),
            (b'P', b"s\0select 1\0\0\x01\0\0\0\x17"),
            (b'B', b"p\0s\0\0\x01\0\x01\0\x01\0\0\0\x02ab\0\x01\0\0"),
            (b'D', b"Ss\0"),
            (b'E', b"p\0\0\0\0\x05"),
            (b'f', b"stop\0"),
        ];
        for (kind, body) in good {
            assert!(decode(*kind, Bytes::copy_from_slice(body)).is_ok(), "{}", *kind as char);
            for cut in 0..body.len() {
                let error = decode(*kind, Bytes::copy_from_slice(&body[..cut])).expect_err("cut message");
                assert_eq!(error.code(), "08P01");
            }
            let mut long = body.to_vec();
            long.push(0);
            assert_eq!(decode(*kind, Bytes::from(long)).expect_err("padded").code(), "08P01");
        }
    }

    #[test]
    fn counts_larger_than_the_message_are_refused() {
        let error = decode(b'B', Bytes::from_static(b"\0\0\xff\xff")).expect_err("count");
        assert_eq!(error.code(), "08P01");
    }
}
