//! Reads the rows of a backfill's pin ahead, on a thread of its own, so that neither disk nor decoding holds the coordinator up.

use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, sync_channel};

use levee_planner::plan::ObjectId;

use super::backfill::BACKFILL_ROWS;
use super::control::Event;
use crate::relation::RelationSnapshot;
use crate::{Delta, Result, RuntimeError};

/// Steps read ahead.
const AHEAD: usize = 2;

/// A step's rows.
#[derive(Debug)]
pub struct Piece {
    /// Rows in storage order.
    pub deltas: Vec<Delta>,
    /// How many.
    pub rows: u64,
    /// The last one, encoded.
    pub last: Vec<u8>,
}

/// What a reader has at hand.
pub enum Ready {
    /// A step's rows.
    Piece(Piece),
    /// The next step is still being read; an event will tell.
    Waiting,
    /// All rows have been handed out.
    End,
}

/// The reading end.
#[derive(Debug)]
pub struct Reader {
    pieces: Receiver<Result<Piece>>,
}

impl Reader {
    /// Starts reading the rows after `cursor` for `region`'s backfill.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        snapshot: RelationSnapshot,
        cursor: Option<Vec<u8>>,
        region: ObjectId,
        events: Sender<Event>,
    ) -> Result<Self> {
        let (sender, pieces) = sync_channel(AHEAD);
        super::spawn("levee-backfill", move || {
            if let Err(error) = read(&snapshot, cursor, region, &sender, &events)
                && sender.send(Err(error)).is_err()
            {
                tracing::debug!("a backfill was given up");
            }
            // The sender is gone before the coordinator looks.
            drop(sender);
            if events.send(Event::Backfill(region)).is_err() {
                tracing::debug!("a backfill was read to its end after the coordinator's");
            }
        })?;
        Ok(Self { pieces })
    }

    /// What is at hand.
    ///
    /// # Errors
    /// The rows could not be read.
    pub fn next(&self) -> Result<Ready> {
        match self.pieces.try_recv() {
            Ok(piece) => Ok(Ready::Piece(piece?)),
            Err(TryRecvError::Empty) => Ok(Ready::Waiting),
            Err(TryRecvError::Disconnected) => Ok(Ready::End),
        }
    }
}

fn read(
    snapshot: &RelationSnapshot,
    cursor: Option<Vec<u8>>,
    region: ObjectId,
    pieces: &SyncSender<Result<Piece>>,
    events: &Sender<Event>,
) -> Result<()> {
    // No encoded row is the beginning of another, so this is below the one after the cursor and above the cursor.
    let from = cursor.map(|mut row| {
        row.push(0);
        row
    });
    let mut scan = snapshot.scan(from.as_deref(), None)?;
    loop {
        let (mut deltas, mut rows) = (Vec::new(), 0);
        while rows < BACKFILL_ROWS {
            let Some(delta) = scan.next()? else { break };
            rows += delta.num_rows();
            deltas.push(delta);
        }
        let Some(delta) = deltas.last() else { return Ok(()) };
        let last = delta.batch.slice(delta.num_rows() - 1, 1);
        let last = snapshot.order().encode(&last)?.row(0).data().to_vec();
        let piece = Piece {
            deltas,
            rows: rows as u64,
            last,
        };
        if pieces.send(Ok(piece)).is_err() {
            return Ok(());
        }
        if events.send(Event::Backfill(region)).is_err() {
            return Err(RuntimeError::ShuttingDown);
        }
    }
}
