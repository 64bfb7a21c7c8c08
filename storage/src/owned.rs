//! RocksDB snapshots and iterators that keep their database alive, instead of borrowing it.
//!
//! The `rocksdb` crate ties both to a `&DB`. A checkpoint's snapshot outlives the call that took it and moves between
//! threads, so here the borrow is replaced by a counted reference, which is the only unsafe code of this crate.

#![allow(
    unsafe_code,
    reason = "one lifetime is extended, by a reference count that lasts as long"
)]

use std::sync::Arc;

use rocksdb::{DB, DBRawIterator, ReadOptions, Snapshot};

/// A view of the database as it was when this was made.
pub(crate) struct OwnedSnapshot {
    // Fields are dropped in this order: the snapshot is released before its database may close.
    snapshot: Snapshot<'static>,
    db: Arc<DB>,
}

/// An iterator over such a view.
pub(crate) struct OwnedIterator {
    // As above: iterator, snapshot, database.
    iterator: DBRawIterator<'static>,
    _snapshot: Arc<OwnedSnapshot>,
}

/// The database behind `db`, for as long as the caller keeps a clone of `db`.
fn extended(db: &Arc<DB>) -> &'static DB {
    // SAFETY: the pointer is to the `DB` inside the `Arc`'s allocation, which neither moves nor is freed while a clone of
    // the `Arc` exists. Both callers store such a clone (directly, or in the snapshot they hold) beside the borrower, in
    // a field that is dropped after it, and hand out neither the reference nor anything that borrows for longer than
    // themselves. Nobody has `&mut` access to a `DB` in an `Arc` that is shared.
    unsafe { &*Arc::as_ptr(db) }
}

impl OwnedSnapshot {
    /// Takes a snapshot now.
    pub(crate) fn take(db: &Arc<DB>) -> Self {
        Self {
            snapshot: extended(db).snapshot(),
            db: Arc::clone(db),
        }
    }

    /// The database.
    pub(crate) fn db(&self) -> &DB {
        &self.db
    }

    /// Makes reads with `options` see this snapshot.
    pub(crate) fn use_in(&self, options: &mut ReadOptions) {
        options.set_snapshot(&self.snapshot);
    }

    /// An iterator of its own; not positioned yet.
    pub(crate) fn iterator(self: &Arc<Self>, mut options: ReadOptions) -> OwnedIterator {
        self.use_in(&mut options);
        OwnedIterator {
            iterator: extended(&self.db).raw_iterator_opt(options),
            _snapshot: Arc::clone(self),
        }
    }
}

impl OwnedIterator {
    /// The iterator, borrowed for no longer than this.
    pub(crate) fn get(&mut self) -> &mut DBRawIterator<'static> {
        &mut self.iterator
    }

    /// Key and value here, if there are any.
    pub(crate) fn item(&self) -> Option<(&[u8], &[u8])> {
        self.iterator.item()
    }
}
