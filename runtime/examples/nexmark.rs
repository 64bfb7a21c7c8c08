//! How fast the Nexmark source generates, per second of CPU time:
//! `CARGO_PROFILE_DEV_OPT_LEVEL=3 cargo run -p levee-runtime --example nexmark [EVENTS]`.

#![allow(clippy::print_stdout, reason = "what it prints is its result")]

use std::collections::BTreeMap;
use std::task::Waker;

use levee_runtime::Result;
use levee_runtime::sources::nexmark::driver;
use levee_runtime::sources::{RangePoll, Share, SplitRange};

fn main() -> Result<()> {
    let events: u64 = std::env::args()
        .nth(1)
        .and_then(|a| a.parse().ok())
        .unwrap_or(3_000_000);
    let cases: [(&str, &str, &[usize]); 8] = [
        ("bid", "all columns", &[0, 1, 2, 3, 4, 5, 6]),
        ("bid", "numbers and time", &[0, 1, 2, 5]),
        ("bid", "auction, price", &[0, 2]),
        ("bid", "channel, url", &[3, 4]),
        ("bid", "time", &[5]),
        ("auction", "all columns", &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("auction", "id, category, times", &[0, 5, 6, 8]),
        ("person", "all columns", &[0, 1, 2, 3, 4, 5, 6, 7]),
    ];
    for (kind, what, projection) in cases {
        let options = BTreeMap::from([
            ("nexmark.event.type".to_owned(), kind.to_owned()),
            ("nexmark.event.time.rate".to_owned(), "100000".to_owned()),
            ("nexmark.splits".to_owned(), "1".to_owned()),
        ]);
        let source = driver(&options)?;
        let warm_up = SplitRange::unchecked(0, 0, 1000);
        source.open(&warm_up, Share::ALL, projection)?.poll(Waker::noop())?;
        let started = cpu_seconds();
        let mut reader = source.open(&SplitRange::unchecked(0, 0, events), Share::ALL, projection)?;
        let (mut rows, mut bytes) = (0, 0);
        while let RangePoll::Ready(delta) = reader.poll(Waker::noop())? {
            rows += delta.num_rows();
            bytes += delta.bytes();
        }
        let seconds = cpu_seconds() - started;
        println!(
            "{kind:8} {what:20} {:6.2} M events/s  {:6.2} M rows/s  {:5.0} ns a row  {:4} B a row",
            events as f64 / seconds / 1e6,
            rows as f64 / seconds / 1e6,
            seconds * 1e9 / rows as f64,
            bytes / rows.max(1),
        );
    }
    Ok(())
}

/// CPU time of this thread, so that a busy machine does not matter.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds: f64 = stat.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(f64::NAN);
    nanoseconds / 1e9
}
