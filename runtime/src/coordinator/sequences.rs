//! Sequences: values handed out from blocks that the log has reserved.
//!
//! The catalog (a fold of the log) holds how far each sequence is *reserved*; a value is given out only once a reservation that
//! covers it is durable, so no crash makes one come twice; it loses at most a block. A block is 32 values at first and doubles while
//! the sequence is busy, so that a bulk load syncs the log rarely and an idle sequence leaves small gaps. Sequences are outside of
//! transactions, as in PostgreSQL.

use std::collections::HashMap;
use std::sync::Arc;

use levee_planner::catalog::{CatalogObject, CatalogOp, ObjectKind, SequenceDef, SequenceState};
use levee_planner::plan::ObjectId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Engine;
use super::sequencer::{DdlRequest, Request};
use crate::{Result, RuntimeError};

/// Values reserved at first.
const BLOCK_MIN: i64 = 32;
/// Most values reserved at a time.
const BLOCK_MAX: i64 = 8192;
/// A reservation is computed anew when another change of the sequence came first, at most this often.
const TRIES: usize = 100;

/// The sequences in use.
pub(super) type Sequences = Mutex<HashMap<ObjectId, Arc<Mutex<Held>>>>;

/// What this process may still give out of one sequence.
pub(super) struct Held {
    /// The definition that the values were computed by.
    object: Arc<CatalogObject>,
    /// What the log has reserved.
    reserved: SequenceState,
    /// Values go on after this one.
    base: SequenceState,
    /// The last value given out since then.
    given: Option<i64>,
    /// The next value and how many there are from it on.
    next: i64,
    left: i64,
    /// Size of the next reservation.
    block: i64,
}

fn definition(object: &CatalogObject) -> Result<&SequenceDef> {
    match &object.kind {
        ObjectKind::Sequence(def) => Ok(def),
        _ => Err(RuntimeError::user(
            "42809",
            format!("\"{}\" is not a sequence", object.name),
        )),
    }
}

/// The next value after a state, and how many values there are from it on before the sequence ends or begins again.
fn following(def: &SequenceDef, state: SequenceState, name: &str) -> Result<(i64, i64)> {
    let next = if state.called {
        state.value.checked_add(def.increment)
    } else {
        Some(state.value)
    };
    let next = next.filter(|n| (def.min..=def.max).contains(n));
    let next = match next {
        Some(n) => n,
        None if def.cycle && def.increment > 0 => def.min,
        None if def.cycle => def.max,
        None => {
            let (word, limit) = if def.increment > 0 {
                ("maximum", def.max)
            } else {
                ("minimum", def.min)
            };
            return Err(RuntimeError::user(
                "2200H",
                format!("nextval: reached {word} value of sequence \"{name}\" ({limit})"),
            ));
        }
    };
    let room = if def.increment > 0 {
        i128::from(def.max) - i128::from(next)
    } else {
        i128::from(next) - i128::from(def.min)
    };
    let steps = room / i128::from(def.increment).abs() + 1;
    Ok((next, i64::try_from(steps).unwrap_or(i64::MAX)))
}

impl Engine {
    fn held(&self, object: &Arc<CatalogObject>) -> Result<Arc<Mutex<Held>>> {
        let def = definition(object)?;
        let mut all = self.sequences.lock();
        let held = all.entry(object.id).or_insert_with(|| {
            Arc::new(Mutex::new(Held {
                object: Arc::clone(object),
                reserved: SequenceState {
                    value: def.start,
                    called: false,
                },
                base: SequenceState {
                    value: def.start,
                    called: false,
                },
                given: None,
                next: 0,
                left: 0,
                block: BLOCK_MIN,
            }))
        });
        Ok(Arc::clone(held))
    }

    /// The next `n` values of a sequence. Blocks for a sync of the log now and then.
    ///
    /// # Errors
    /// 2200H at the end of the sequence; the log cannot be written.
    pub fn next_values(&self, id: ObjectId, n: usize) -> Result<Vec<i64>> {
        let mut out = Vec::with_capacity(n);
        for _ in 0..TRIES {
            let catalog = self.catalog();
            let object = catalog.shared(id).ok_or(RuntimeError::NoObject(id))?;
            let held = self.held(object)?;
            let mut held = held.lock();
            let state = catalog.sequence(id);
            held.follow(object, state)?;
            let def = definition(object)?;
            while out.len() < n && held.left > 0 {
                out.push(held.next);
                held.given = Some(held.next);
                held.left -= 1;
                held.next = held.next.saturating_add(def.increment);
            }
            if out.len() == n {
                return Ok(out);
            }
            let wanted = i64::try_from(n - out.len()).unwrap_or(i64::MAX);
            self.reserve(&mut held, def, state, wanted)?;
        }
        Err(RuntimeError::Conflict)
    }

    /// Makes the values after what is reserved durable, and takes them.
    fn reserve(&self, held: &mut Held, def: &SequenceDef, state: Option<SequenceState>, wanted: i64) -> Result<()> {
        let (next, room) = following(def, held.base, &held.object.name)?;
        let n = held.block.max(wanted).min(room);
        let last = next.saturating_add(def.increment.saturating_mul(n - 1));
        let reserved = SequenceState {
            value: last,
            called: true,
        };
        match self.put_sequence(&held.object, state, reserved) {
            Ok(()) => {
                (held.reserved, held.base) = (reserved, reserved);
                (held.next, held.left) = (next, n);
                held.block = (held.block * 2).min(BLOCK_MAX);
                Ok(())
            }
            // Another change came first: look again.
            Err(RuntimeError::Conflict) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// `setval`.
    ///
    /// # Errors
    /// 22003 outside of the sequence's bounds; the log cannot be written.
    pub fn set_sequence(&self, id: ObjectId, value: i64, called: bool) -> Result<()> {
        for _ in 0..TRIES {
            let catalog = self.catalog();
            let object = catalog.shared(id).ok_or(RuntimeError::NoObject(id))?;
            let def = definition(object)?;
            if !(def.min..=def.max).contains(&value) {
                return Err(RuntimeError::user(
                    "22003",
                    format!(
                        "setval: value {value} is out of bounds for sequence \"{}\" ({}..{})",
                        object.name, def.min, def.max
                    ),
                ));
            }
            let held = self.held(object)?;
            let mut held = held.lock();
            let state = SequenceState { value, called };
            match self.put_sequence(object, catalog.sequence(id), state) {
                Ok(()) => {
                    held.restart(object, state);
                    return Ok(());
                }
                Err(RuntimeError::Conflict) => {}
                Err(e) => return Err(e),
            }
        }
        Err(RuntimeError::Conflict)
    }

    /// `last_value` and `is_called` of a sequence.
    pub fn sequence_state(&self, object: &Arc<CatalogObject>) -> Result<SequenceState> {
        let def = definition(object)?;
        let reserved = self.catalog().sequence(object.id).unwrap_or(SequenceState {
            value: def.start,
            called: false,
        });
        let all = self.sequences.lock();
        let held = all.get(&object.id).map(Arc::clone);
        drop(all);
        let given = held.and_then(|h| {
            let h = h.lock();
            h.given.filter(|_| h.reserved == reserved)
        });
        Ok(given.map_or(reserved, |value| SequenceState { value, called: true }))
    }

    /// Writes a state to the log, if the one read and the definition are still current.
    fn put_sequence(
        &self,
        object: &Arc<CatalogObject>,
        read: Option<SequenceState>,
        state: SequenceState,
    ) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        let request = DdlRequest {
            ops: vec![CatalogOp::Sequence(object.id, state)],
            sequence: Some((Arc::clone(object), read)),
            ..DdlRequest::default()
        };
        self.requests
            .send(Request::Ddl(Box::new(request), reply))
            .map_err(|_| RuntimeError::ShuttingDown)?;
        let answer = futures::executor::block_on(answer);
        answer.map_err(|_| RuntimeError::ShuttingDown)?.map(|_| ())
    }
}

impl Held {
    /// Starts over if the sequence was altered or set by others since.
    fn follow(&mut self, object: &Arc<CatalogObject>, state: Option<SequenceState>) -> Result<()> {
        let def = definition(object)?;
        let state = state.unwrap_or(SequenceState {
            value: def.start,
            called: false,
        });
        if self.reserved == state && Arc::ptr_eq(&self.object, object) {
            return Ok(());
        }
        // After ALTER values go on behind the last one given out, if this process knows it.
        let last = self.given.filter(|_| self.reserved == state);
        self.restart(object, state);
        if let Some(value) = last {
            self.base = SequenceState { value, called: true };
            self.given = last;
        }
        Ok(())
    }

    fn restart(&mut self, object: &Arc<CatalogObject>, state: SequenceState) {
        *self = Self {
            object: Arc::clone(object),
            reserved: state,
            base: state,
            given: None,
            next: 0,
            left: 0,
            block: BLOCK_MIN,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn def(increment: i64, min: i64, max: i64, cycle: bool) -> SequenceDef {
        SequenceDef {
            data_type: "bigint".to_owned(),
            start: min,
            increment,
            min,
            max,
            cache: 1,
            cycle,
            owned_by: None,
            identity: false,
        }
    }

    #[test]
    fn values_end_at_the_bounds() {
        let at = |value, called| SequenceState { value, called };
        let up = def(3, 1, 10, false);
        assert_eq!(following(&up, at(1, false), "s").ok(), Some((1, 4)));
        assert_eq!(following(&up, at(7, true), "s").ok(), Some((10, 1)));
        assert!(following(&up, at(10, true), "s").is_err());
        let again = def(3, 1, 10, true);
        assert_eq!(following(&again, at(10, true), "s").ok(), Some((1, 4)));
        let down = def(-1, i64::MIN, -1, false);
        assert_eq!(following(&down, at(-1, false), "s").ok(), Some((-1, i64::MAX)));
        assert!(following(&def(1, 1, i64::MAX, false), at(i64::MAX, true), "s").is_err());
    }
}
