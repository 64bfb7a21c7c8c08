//! Readers that wait, behind the contract of readers that never do.

use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::sources::{RangePoll, RangeReader};
use crate::{Delta, Result, RuntimeError};

/// Threads on which waiting readers of one source run.
const THREADS_MAX: usize = 2;

/// A reader that may wait for its bytes.
pub(super) trait Pull: Send {
    /// The next rows, `None` at the end.
    fn pull(&mut self) -> Result<Option<Delta>>;
}

/// The threads of one source: one that drives the network, and some on which readers wait.
pub(super) struct Threads {
    runtime: Option<Runtime>,
}

impl Threads {
    pub(super) fn new() -> Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(THREADS_MAX)
            .thread_name("source-io")
            .enable_all()
            .build()
            .map_err(|e| RuntimeError::internal(format!("a source's threads cannot be started: {e}")))?;
        Ok(Self { runtime: Some(runtime) })
    }

    pub(super) fn handle(&self) -> Result<&Handle> {
        let stopped = || RuntimeError::internal("a source's threads have ended");
        self.runtime.as_ref().map(Runtime::handle).ok_or_else(stopped)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Waiting for the threads is not allowed everywhere where the last reader may be dropped.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs a reader in place: its bytes are at hand.
pub(super) struct Direct(pub(super) Box<dyn Pull>);

impl RangeReader for Direct {
    fn poll(&mut self, _waker: &Waker) -> Result<RangePoll> {
        Ok(self.0.pull()?.map_or(RangePoll::End, RangePoll::Ready))
    }
}

/// Runs a reader on another thread, one chunk ahead of who asks.
pub(super) struct Threaded {
    threads: Arc<Threads>,
    idle: Option<Box<dyn Pull>>,
    desk: Arc<Mutex<Desk>>,
    ended: bool,
}

#[derive(Default)]
struct Desk {
    done: Option<(Box<dyn Pull>, Result<Option<Delta>>)>,
    waker: Option<Waker>,
}

impl Threaded {
    pub(super) fn new(threads: Arc<Threads>, pull: Box<dyn Pull>) -> Self {
        Self {
            threads,
            idle: Some(pull),
            desk: Arc::default(),
            ended: false,
        }
    }

    fn send(&mut self) -> Result<()> {
        let Some(mut pull) = self.idle.take() else {
            return Ok(());
        };
        let desk = Arc::clone(&self.desk);
        self.threads.handle()?.spawn_blocking(move || {
            let answer = pull.pull();
            let waker = {
                let mut desk = desk.lock();
                desk.done = Some((pull, answer));
                desk.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        });
        Ok(())
    }
}

impl RangeReader for Threaded {
    fn poll(&mut self, waker: &Waker) -> Result<RangePoll> {
        if self.ended {
            return Ok(RangePoll::End);
        }
        self.send()?;
        let done = {
            let mut desk = self.desk.lock();
            let done = desk.done.take();
            if done.is_none() {
                desk.waker = Some(waker.clone());
            }
            done
        };
        match done {
            None => Ok(RangePoll::Pending),
            Some((pull, Ok(Some(delta)))) => {
                self.idle = Some(pull);
                self.send()?;
                Ok(RangePoll::Ready(delta))
            }
            Some((_, Ok(None))) => {
                self.ended = true;
                Ok(RangePoll::End)
            }
            Some((_, Err(error))) => {
                self.ended = true;
                Err(error)
            }
        }
    }
}
