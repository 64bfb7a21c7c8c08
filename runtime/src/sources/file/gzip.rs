//! Gzip files as if they were not packed. Offsets are those of the unpacked text, which can only be had from the start on: one unpacker
//! a file stands where it was read last, and blocks behind it come from the cache, or from unpacking once more.

use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parking_lot::Mutex;

use super::blocks::{BLOCK_BYTES, Blocks};
use super::store::{Content, Reading, Trouble};
use crate::RuntimeError;

/// The unpacked text of a packed file.
pub(super) struct GzipFile {
    split: u32,
    name: String,
    packed: Arc<dyn Content>,
    blocks: Arc<Blocks>,
    unpacker: Mutex<Unpacker>,
}

#[derive(Default)]
struct Unpacker {
    decoder: Option<MultiGzDecoder<Sequential>>,
    /// Block that it gives next.
    next: u64,
}

impl GzipFile {
    /// `blocks` must be for unpacked text only.
    pub(super) fn new(split: u32, name: &str, packed: Arc<dyn Content>, blocks: Arc<Blocks>) -> Self {
        Self {
            split,
            name: name.to_owned(),
            packed,
            blocks,
            unpacker: Mutex::default(),
        }
    }

    /// Unpacks up to block `wanted`; past the end it is empty.
    fn unpack(&self, wanted: u64) -> Reading<Bytes> {
        let mut unpacker = self.unpacker.lock();
        // Another reader may have come by while this one waited.
        if let Some(bytes) = self.blocks.get(self.split, wanted) {
            return Ok(bytes);
        }
        if unpacker.decoder.is_none() || unpacker.next > wanted {
            *unpacker = Unpacker {
                decoder: Some(MultiGzDecoder::new(Sequential {
                    content: Arc::clone(&self.packed),
                    at: 0,
                    trouble: None,
                })),
                next: 0,
            };
        }
        loop {
            let Unpacker { decoder, next } = &mut *unpacker;
            let Some(reader) = decoder else {
                return Err(Trouble::Permanent(RuntimeError::internal("a gzip file has no reader")));
            };
            let mut block = Vec::new();
            if let Err(e) = reader.by_ref().take(BLOCK_BYTES).read_to_end(&mut block) {
                let trouble = reader.get_mut().trouble.take();
                *unpacker = Unpacker::default();
                return Err(trouble.unwrap_or_else(|| self.damaged(&e)));
            }
            let number = *next;
            *next += 1;
            let bytes = Bytes::from(block);
            self.blocks.put(self.split, number, &bytes);
            if number == wanted || bytes.is_empty() {
                return Ok(bytes);
            }
        }
    }

    fn damaged(&self, error: &std::io::Error) -> Trouble {
        Trouble::Permanent(RuntimeError::User {
            code: "22023",
            message: format!("file \"{}\" is not readable gzip: {error}", self.name),
            hint: Some("Remove it, or leave it out with match_pattern, and create the source again.".to_owned()),
        })
    }
}

impl Content for GzipFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Reading<usize> {
        let block = offset / BLOCK_BYTES;
        let bytes = match self.blocks.get(self.split, block) {
            Some(bytes) => bytes,
            None => self.unpack(block)?,
        };
        Ok(super::blocks::copy(&bytes, offset % BLOCK_BYTES, buffer))
    }
}

/// Content read from its start.
struct Sequential {
    content: Arc<dyn Content>,
    at: u64,
    /// What was behind the last IO error.
    trouble: Option<Trouble>,
}

impl Read for Sequential {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self.content.read_at(self.at, buffer) {
            Ok(n) => {
                self.at += n as u64;
                Ok(n)
            }
            Err(trouble) => {
                self.trouble = Some(trouble);
                Err(std::io::Error::other("the packed file cannot be read"))
            }
        }
    }
}
