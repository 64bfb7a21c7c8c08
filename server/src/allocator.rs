//! How the allocators give memory back to the system.
//!
//! Rust's allocations are mimalloc's, RocksDB's are glibc's. Both keep what is freed for a while, because it is usually wanted again at
//! once: mimalloc for a second, glibc in up to eight arenas a core. With a budget of gigabytes that is noise and speed; with a small
//! one it is what decides whether the process stays near its budget. So below [`SMALL_BYTES`] mimalloc gives freed pages back
//! after a tenth of a second, and there are no huge pages, of which a single small allocation keeps two megabytes.
//!
//! Measured with a budget of 128 MB and 2 million rows: 1,140 MB at the peak, 840 MB with both, 1,000 and 1,070 MB with either
//! (`docs/decisions/0009-cold-tier.md`).

#![allow(unsafe_code, reason = "three settings of C libraries, which have no safe interface")]

use std::ffi::{c_int, c_long};

// Links mimalloc's library wherever this module is, also where it is not the global allocator.
use mimalloc as _;

/// Budgets below this are kept to at the cost of some speed.
const SMALL_BYTES: usize = 4 << 30;
/// mimalloc's number of the option `purge_delay`: the 16th of `mi_option_t`, in all of its versions 2 and 3.
const PURGE_DELAY: c_int = 15;
const PURGE_DELAY_MS: c_long = 100;
/// glibc's arenas: enough that a few threads do not wait for each other.
const ARENAS_MAX: c_int = 2;

unsafe extern "C" {
    fn mi_option_set(option: c_int, value: c_long);
}

/// Sets the allocators up for a memory budget; before other threads start.
pub(crate) fn set_up(memory_limit: usize) {
    // SAFETY: `mallopt` takes two integers, and no other thread allocates from glibc yet.
    let limited = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX) } == 1;
    if !limited {
        tracing::debug!("glibc's arenas cannot be limited");
    }
    if memory_limit >= SMALL_BYTES {
        return;
    }
    // SAFETY: the option exists, and is an atomic that is read whenever something is freed.
    unsafe { mi_option_set(PURGE_DELAY, PURGE_DELAY_MS) };
    // SAFETY: this sets a flag of the process and takes no pointers.
    let disabled = unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } == 0;
    if !disabled {
        tracing::debug!("huge pages cannot be turned off");
    }
}
