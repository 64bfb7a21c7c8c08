//! Between the cold tier and the operators.

use std::sync::Arc;

use levee_storage::StorageError;
use levee_storage::tier::{TierScan, TierSnapshot};
use parking_lot::RwLock;

use crate::operators::cold::{ColdReader, ColdScan};
use crate::{Result, RuntimeError};

/// A snapshot of the tier, as operators read it.
pub(crate) struct TierReader(pub(crate) Arc<TierSnapshot>);

impl ColdReader for TierReader {
    fn get_many(&self, keys: &[&[u8]], f: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        // The tier's errors are storage's; the caller's own goes around.
        let mut failed = None;
        let read = self.0.get_many(keys, &mut |i, value| {
            if failed.is_none() {
                failed = f(i, value).err();
            }
            Ok::<(), StorageError>(())
        });
        match failed {
            Some(error) => Err(error),
            None => read.map_err(RuntimeError::from),
        }
    }

    fn scan(&self) -> Result<Box<dyn ColdScan>> {
        Ok(Box::new(TierScanner {
            snapshot: Arc::clone(&self.0),
            scan: None,
        }))
    }
}

struct TierScanner {
    snapshot: Arc<TierSnapshot>,
    scan: Option<TierScan>,
}

impl ColdScan for TierScanner {
    fn seek(&mut self, prefix: &[u8], from: &[u8]) -> Result<()> {
        match &mut self.scan {
            Some(scan) => scan.seek(prefix, Some(from))?,
            None => self.scan = Some(self.snapshot.scan(prefix, Some(from))?),
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        match &mut self.scan {
            Some(scan) => Ok(scan.next()?),
            None => Ok(None),
        }
    }
}

/// A region's cold state as of one checkpoint. Later checkpoints that hold nothing new of the region bring newer readers of the same state:
/// taking them lets the tier forget older versions of other regions' entries.
pub(crate) struct CheckpointReader {
    reader: RwLock<Arc<dyn ColdReader>>,
}

impl CheckpointReader {
    pub(crate) fn new(reader: Arc<dyn ColdReader>) -> Arc<Self> {
        Arc::new(Self {
            reader: RwLock::new(reader),
        })
    }

    /// Takes a newer reader of the same state.
    pub(crate) fn replace(&self, reader: Arc<dyn ColdReader>) {
        *self.reader.write() = reader;
    }

    fn current(&self) -> Arc<dyn ColdReader> {
        Arc::clone(&self.reader.read())
    }
}

impl ColdReader for CheckpointReader {
    fn get_many(&self, keys: &[&[u8]], f: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
        self.current().get_many(keys, f)
    }

    fn scan(&self) -> Result<Box<dyn ColdScan>> {
        self.current().scan()
    }
}
