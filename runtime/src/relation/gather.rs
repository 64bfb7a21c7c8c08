//! What a region's root emits in one step, in bounded memory.
//!
//! ```text
//!   emitted ──▶ filling ─── full ───▶ a helper consolidates and writes ──▶ piece, piece, …  ─── step's end ───▶ one spilled run
//!                  └───────────────── never full (nearly all steps) ─────────────────────── step's end ───▶ a delta in memory
//! ```
//!
//! A join of many to many makes any number of rows of a single one, and none of them may be shown before the step's end: they wait on disk,
//! sorted, and are merged when the step closes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::merge::MergeScan;
use super::order::RowOrder;
use super::run::{Run, Spilling, rows_bytes};
use crate::dataflow::spill::{SpillDir, SpillWriter};
use crate::memory::{Governor, Holder, Share};
use crate::{Delta, Result, RuntimeError};

/// A piece takes this part of the share for runs: a task may have one that fills and one that is being written, at some four times its bytes.
const PIECE_PARTS: usize = 16;
const PIECE_BYTES_MIN: usize = 1 << 20;
const PIECE_BYTES_MAX: usize = 64 << 20;
/// A piece takes a second of a processor; a helper that has nearly none takes minutes.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);

/// The net change of a step.
#[derive(Debug)]
pub enum StepOutput {
    /// In memory.
    Resident(Delta),
    /// Too large for it; its epochs and its position are given by [`super::Relation::publish`].
    Spilled(Run),
}

impl StepOutput {
    /// Rows, retractions included.
    pub fn num_rows(&self) -> usize {
        match self {
            Self::Resident(delta) => delta.num_rows(),
            Self::Spilled(run) => run.num_rows(),
        }
    }

    /// Bytes, wherever they are.
    pub fn stored_bytes(&self) -> u64 {
        match self {
            Self::Resident(delta) => delta.bytes() as u64,
            Self::Spilled(run) => run.stored_bytes(),
        }
    }

    /// All rows in memory.
    ///
    /// # Errors
    /// A spill file cannot be read.
    pub fn into_delta(self) -> Result<Option<Delta>> {
        let run = match self {
            Self::Resident(delta) => return Ok(Some(delta)),
            Self::Spilled(run) => run,
        };
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < run.num_rows() {
            let part = run.piece(at, run.num_rows())?;
            at += part.num_rows();
            parts.push(part);
        }
        let Some(first) = parts.first() else { return Ok(None) };
        Delta::concat(&first.batch.schema(), &parts).map(Some)
    }
}

/// Where the tasks of a region's root put what a step may not keep in memory.
#[derive(Debug)]
pub(crate) struct Shelf {
    order: Arc<RowOrder>,
    dir: Arc<SpillDir>,
    memory: Arc<Governor>,
}

impl Shelf {
    /// For rows in this order.
    pub(crate) fn new(order: Arc<RowOrder>, dir: &Arc<SpillDir>, memory: &Arc<Governor>) -> Arc<Self> {
        Arc::new(Self {
            order,
            dir: Arc::clone(dir),
            memory: Arc::clone(memory),
        })
    }

    fn piece_bytes(&self) -> usize {
        (self.memory.share(Share::Runs) / PIECE_PARTS).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX)
    }

    /// Consolidates rows and writes them out.
    fn write(&self, deltas: &[Delta]) -> Result<Run> {
        let sum = Delta::consolidate(self.order.schema(), deltas, self.order.key())?;
        let mut spilling = Spilling::default();
        spilling.add(&self.order, &mut SpillWriter::new(&self.dir), &sum)?;
        Ok(spilling.finish(0, 0, 0))
    }

    /// The sum of what all tasks emitted in a step; none if nothing is left of it, or if `stopped` says that nobody wants it any more.
    ///
    /// # Errors
    /// A kernel fails, or a spill file cannot be read or written.
    pub(crate) fn finish(
        &self,
        deltas: &[Delta],
        mut pieces: Vec<Arc<Run>>,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Option<StepOutput>> {
        let rest = Delta::consolidate(self.order.schema(), deltas, self.order.key())?;
        if pieces.is_empty() {
            return Ok(Some(StepOutput::Resident(rest)).filter(|o| o.num_rows() > 0));
        }
        if rest.num_rows() > 0 {
            pieces.push(Arc::new(Run::new(0, 0, 0, rest, Some(&self.memory))));
        }
        let mut scan = MergeScan::new(&self.order, None, &pieces, None, None)?;
        drop(pieces);
        let mut writer = SpillWriter::new(&self.dir);
        let mut spilling = Spilling::default();
        while let Some(part) = scan.next()? {
            if stopped() {
                return Ok(None);
            }
            spilling.add(&self.order, &mut writer, &part)?;
        }
        Ok(Some(StepOutput::Spilled(spilling.finish(0, 0, 0))).filter(|o| o.num_rows() > 0))
    }
}

/// What one task of the root has emitted in the step that it works on.
#[derive(Debug)]
pub(crate) struct Gather {
    shelf: Arc<Shelf>,
    filling: Vec<Delta>,
    filling_bytes: usize,
    /// [`Shelf::piece_bytes`] when the step began.
    piece_bytes: usize,
    writing: Option<InHand>,
    pieces: Vec<Arc<Run>>,
    held: Holder,
}

#[derive(Debug)]
struct InHand {
    writing: Arc<Writing>,
    /// Then another helper gets it, too.
    due: Option<Instant>,
}

/// A piece on its way to disk.
struct Writing {
    deltas: Vec<Delta>,
    shelf: Arc<Shelf>,
    piece: Mutex<Option<Result<Run>>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Writing {
    /// Whoever is done first has done it.
    fn work(&self) {
        let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.shelf.write(&self.deltas)));
        let written = written.unwrap_or_else(|_| Err(RuntimeError::internal("panic while a step was written out")));
        self.piece.lock().get_or_insert(written);
        (self.wake)();
    }
}

impl std::fmt::Debug for Writing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writing").finish_non_exhaustive()
    }
}

impl Gather {
    pub(crate) fn new(shelf: &Arc<Shelf>) -> Self {
        Self {
            filling: Vec::new(),
            filling_bytes: 0,
            piece_bytes: shelf.piece_bytes(),
            writing: None,
            pieces: Vec::new(),
            held: shelf.memory.holder(Share::Runs),
            shelf: Arc::clone(shelf),
        }
    }

    /// Takes rows.
    pub(crate) fn push(&mut self, delta: Delta) {
        self.filling_bytes += rows_bytes(&delta);
        self.filling.push(delta);
    }

    /// It should take no more before [`Gather::write_out`].
    pub(crate) fn is_full(&self) -> bool {
        self.filling_bytes >= self.piece_bytes
    }

    /// The job of writing out what is gathered, for a helper; `wake` is called when it is done. Nothing else may be [being written](Self::settled).
    pub(crate) fn write_out(&mut self, wake: impl Fn() + Send + Sync + 'static) -> Box<dyn FnOnce() + Send> {
        let writing = Arc::new(Writing {
            deltas: std::mem::take(&mut self.filling),
            shelf: Arc::clone(&self.shelf),
            piece: Mutex::new(None),
            wake: Box::new(wake),
        });
        self.held.set(self.filling_bytes + self.piece_bytes);
        self.filling_bytes = 0;
        let job = Arc::clone(&writing);
        self.writing = Some(InHand {
            writing,
            due: Some(Instant::now() + WRITE_PATIENCE),
        });
        Box::new(move || job.work())
    }

    /// What is being written should be done by now: the same job for another helper, once. Before that: when.
    pub(crate) fn overdue(&mut self, now: Instant) -> std::result::Result<Option<Box<dyn FnOnce() + Send>>, Instant> {
        let Some(hand) = &mut self.writing else { return Ok(None) };
        match hand.due {
            Some(due) if now < due => Err(due),
            Some(_) => {
                hand.due = None;
                let job = Arc::clone(&hand.writing);
                Ok(Some(Box::new(move || job.work())))
            }
            None => Ok(None),
        }
    }

    /// Whether nothing is being written.
    ///
    /// # Errors
    /// The last piece could not be written.
    pub(crate) fn settled(&mut self) -> Result<bool> {
        let Some(hand) = &self.writing else { return Ok(true) };
        let Some(piece) = hand.writing.piece.lock().take() else {
            return Ok(false);
        };
        self.writing = None;
        self.held.set(0);
        let piece = piece?;
        if piece.num_rows() > 0 {
            self.pieces.push(Arc::new(piece));
        }
        Ok(true)
    }

    /// Ends a step that has [`Gather::settled`]: what is still in memory, and what is not.
    pub(crate) fn take(&mut self) -> (Vec<Delta>, Vec<Arc<Run>>) {
        self.filling_bytes = 0;
        self.piece_bytes = self.shelf.piece_bytes();
        (std::mem::take(&mut self.filling), std::mem::take(&mut self.pieces))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    /// A helper that gets no processor is not waited for: another one does the same once more, and the piece is there once.
    #[test]
    fn what_is_not_written_in_time_is_given_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false)]));
        let order = Arc::new(RowOrder::new(Arc::clone(&schema), vec![0]).unwrap());
        let shelf = Shelf::new(
            order,
            &SpillDir::open(dir.path().join("spill")).unwrap(),
            &Governor::new(64 << 20),
        );
        let mut gather = Gather::new(&shelf);
        let rows = Int64Array::from_iter_values((0..100_000).rev());
        gather.push(Delta::inserts(
            RecordBatch::try_new(schema, vec![Arc::new(rows)]).unwrap(),
        ));
        assert!(gather.is_full());
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let started = Instant::now();
        let slow = gather.write_out(move || {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        assert!(!gather.is_full() && !gather.settled().unwrap());
        assert!(
            gather
                .overdue(started)
                .is_err_and(|due| due >= started + WRITE_PATIENCE)
        );
        let later = Instant::now() + WRITE_PATIENCE;
        let quick = gather.overdue(later).unwrap().unwrap();
        assert!(gather.overdue(later).is_ok_and(|again| again.is_none()));
        quick();
        assert!(gather.settled().unwrap() && gather.overdue(later).is_ok_and(|job| job.is_none()));
        slow();
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        let (deltas, pieces) = gather.take();
        assert!(deltas.is_empty());
        assert_eq!(pieces.iter().map(|p| p.num_rows()).collect::<Vec<_>>(), [100_000]);
        let whole = shelf
            .finish(&deltas, pieces, &|| false)
            .unwrap()
            .unwrap()
            .into_delta()
            .unwrap()
            .unwrap();
        let values = whole.batch.column(0).as_any().downcast_ref::<Int64Array>().unwrap();
        assert!(values.values().iter().copied().eq(0..100_000));
    }
}
