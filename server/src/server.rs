//! What all sessions share, and the loop that accepts them.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use datafusion::execution::SessionState;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use levee_planner::sql::pg_session_state;
use levee_runtime::coordinator::Engine;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::error::{Result, SqlError};
use crate::memory::GovernedPool;
use crate::metrics::Metrics;
use crate::session;

/// Shared by all sessions.
#[derive(Debug)]
pub struct Server {
    /// The engine.
    pub engine: Arc<Engine>,
    /// Settings of the process.
    pub config: Config,
    /// Counters.
    pub metrics: Metrics,
    /// Fires when the server stops.
    pub stop: CancellationToken,
    /// Bytes that one statement's or block's writes may hold.
    pub write_bytes_max: usize,
    /// Where queries run: apart from the sessions' threads, which so stay free to hear a cancel request.
    pub queries: tokio::runtime::Handle,
    base: Arc<SessionState>,
    sessions: Mutex<HashMap<i32, (i32, Arc<Cancel>)>>,
    next_pid: AtomicI32,
    connections: AtomicUsize,
    last_write: AtomicU64,
    secret: Mutex<u64>,
}

impl Server {
    /// Around an open engine.
    ///
    /// # Errors
    /// The directory for spilled query data cannot be used.
    pub fn new(
        engine: Arc<Engine>,
        config: Config,
        stop: CancellationToken,
        queries: tokio::runtime::Handle,
    ) -> Result<Arc<Self>> {
        // A write is sorted and encoded on its way into the log, which takes about four times its size for a moment.
        let write_bytes_max = (config.memory_limit / 8).max(16 << 20);
        let spill = config.data_dir.join("query-spill");
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::new(GovernedPool(Arc::clone(engine.memory()))))
            .with_disk_manager_builder(
                DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![spill])),
            )
            .build_arc()?;
        let base = pg_session_state(config.parallelism.min(4), Some(runtime));
        Ok(Arc::new(Self {
            engine,
            metrics: Metrics::new(),
            stop,
            write_bytes_max,
            queries,
            base: Arc::new(base),
            sessions: Mutex::default(),
            next_pid: AtomicI32::new(1),
            connections: AtomicUsize::new(0),
            last_write: AtomicU64::new(0),
            secret: Mutex::new(seed()),
            config,
        }))
    }

    /// The session state that every statement starts from.
    pub fn base_state(&self) -> Arc<SessionState> {
        Arc::clone(&self.base)
    }

    /// Newest epoch that a client's acknowledged write entered.
    pub fn last_write(&self) -> u64 {
        self.last_write.load(Ordering::Acquire)
    }

    /// A write has entered an epoch.
    pub fn wrote(&self, epoch: u64) {
        self.last_write.fetch_max(epoch, Ordering::AcqRel);
    }

    /// Connections now.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Registers a session: its process id, its secret key and its cancel switch.
    pub fn register(&self) -> (i32, i32, Arc<Cancel>) {
        let pid = self.next_pid.fetch_add(1, Ordering::Relaxed).max(1);
        let secret = {
            let mut state = self.secret.lock();
            // SplitMix64: enough to keep clients from cancelling each other by mistake; the port is trusted anyway.
            *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = *state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let bytes = (z ^ (z >> 31)).to_le_bytes();
            i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        };
        let cancel = Arc::new(Cancel::default());
        self.sessions.lock().insert(pid, (secret, Arc::clone(&cancel)));
        (pid, secret, cancel)
    }

    /// Forgets a session.
    pub fn unregister(&self, pid: i32) {
        self.sessions.lock().remove(&pid);
    }

    /// Cancels the statement that another session runs, if the key is right. `pg_cancel_backend` passes no key.
    pub fn cancel(&self, pid: i32, secret: Option<i32>) -> bool {
        let found = self.sessions.lock().get(&pid).cloned();
        match found {
            Some((key, cancel)) if secret.is_none_or(|s| s == key) => {
                cancel.request();
                true
            }
            _ => false,
        }
    }
}

fn seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// A session's cancel switch.
#[derive(Debug, Default)]
pub struct Cancel {
    requested: AtomicBool,
    notify: Notify,
}

impl Cancel {
    /// A new statement: requests that came while idle do not count.
    pub fn reset(&self) {
        self.requested.store(false, Ordering::Release);
    }

    /// Asks the running statement to stop.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Release);
        self.notify.notify_waiters();
    }

    /// Resolves when a request has come.
    pub async fn wait(&self) {
        loop {
            let notified = self.notify.notified();
            if self.requested.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }
}

/// Counts a connection while it lives.
struct Permit(Arc<Server>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Accepts clients until the server stops, then waits for their sessions to end.
pub async fn accept(server: Arc<Server>, listener: TcpListener) {
    let mut sessions = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = server.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
            Some(ended) = sessions.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "session ended abnormally");
                }
                continue;
            }
        };
        match accepted {
            Ok((socket, peer)) => {
                sessions.spawn(serve(Arc::clone(&server), socket, peer));
            }
            Err(error) => {
                tracing::warn!(%error, "connection could not be accepted");
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        }
    }
    while sessions.join_next().await.is_some() {}
}

async fn serve(server: Arc<Server>, socket: TcpStream, peer: SocketAddr) {
    let before = server.connections.fetch_add(1, Ordering::Relaxed);
    let permit = Permit(Arc::clone(&server));
    let refused = if before >= server.config.connections_max {
        Some(
            SqlError::fatal("53300", "sorry, too many clients already").hint(format!(
                "The setting connections_max allows {} connections.",
                server.config.connections_max
            )),
        )
    } else if !peer.ip().is_loopback() && !server.config.trust_remote {
        Some(
            SqlError::fatal("28000", format!("connections from {} are not allowed", peer.ip()))
                .hint("Connect from the same machine, or set trust_remote."),
        )
    } else {
        None
    };
    configure(&socket);
    session::serve(server, socket, refused).await;
    drop(permit);
}

/// No delay for small answers; a dead peer is noticed within some minutes.
fn configure(socket: &TcpStream) {
    use std::os::fd::AsRawFd;
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY could not be set");
    }
    let fd = socket.as_raw_fd();
    let options = [
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 6),
    ];
    for (level, name, value) in options {
        set_option(fd, level, name, value);
    }
}

#[allow(unsafe_code, reason = "the standard library has no keep-alive options")]
fn set_option(fd: i32, level: i32, name: i32, value: libc::c_int) {
    let size = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: `fd` is an open socket for the whole call, and the pointer is to a live c_int of the size given.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size) };
    if result != 0 {
        tracing::debug!(name, "socket option could not be set");
    }
}
