//! Measures the figures of the decision record on the cold tier on this machine:
//! `cargo run -p levee-storage --example tier [DIRECTORY] [FILES] [ROWS]` (default: 60 files of 50,000 rows over as many keys as a
//! third of all rows, in the system's temporary directory).
#![allow(clippy::print_stdout, reason = "its output is the purpose")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use levee_storage::delta_file::{DeltaBuilder, STATE_KEY_PREFIX_BYTES, StateKey};
use levee_storage::rocks::{Compaction, RocksShared};
use levee_storage::tier::Tier;

type Outcome = Result<(), Box<dyn Error>>;

const VALUE_BYTES: usize = 60;
const CACHE_BYTES: usize = 64 << 20;

fn main() -> Outcome {
    let mut args = std::env::args().skip(1);
    let base = args.next().map_or_else(std::env::temp_dir, PathBuf::from);
    let files = args.next().map_or(Ok(60), |n| n.parse())?;
    let rows = args.next().map_or(Ok(50_000), |n| n.parse())?;
    let dir = base.join(format!("levee-tier-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let measured = [Compaction::Universal, Compaction::Levelled]
        .into_iter()
        .try_for_each(|compaction| measure(&dir, compaction, files, rows));
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn scramble(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ (mixed >> 27)
}

/// Keys begin with a hash, two rows have the same.
fn key(number: u64) -> Vec<u8> {
    let hash = scramble(number / 2);
    let mut own = hash.to_be_bytes().to_vec();
    own.extend_from_slice(&number.to_be_bytes());
    let mut key = Vec::new();
    StateKey {
        region: 1,
        operator: 1,
        table: 0,
        vnode: hash as u8,
        key: &own,
    }
    .encode(&mut key);
    key
}

fn measure(dir: &Path, compaction: Compaction, files: u64, rows: u64) -> Outcome {
    let rocks = RocksShared::new(CACHE_BYTES).with_compaction(compaction);
    let tier = Tier::open(&rocks, &dir.join("tier"))?;
    let keys = files * rows / 3;
    let (mut taken, mut bytes, mut slowest) = (Duration::ZERO, 0, Duration::ZERO);
    let whole = Instant::now();
    for file in 0..files {
        let mut delta = DeltaBuilder::new();
        let mut value = [0; VALUE_BYTES];
        for row in 0..rows {
            let number = scramble(file * rows + row) % keys;
            value[..8].copy_from_slice(&scramble(number ^ row).to_le_bytes());
            let key = key(number);
            let parts = StateKey::decode(&key).ok_or("a key is too short")?;
            delta.put(parts, &value);
        }
        let path = dir.join("delta.sst");
        delta.write(&rocks, &path)?;
        bytes += std::fs::metadata(&path)?.len();
        let start = Instant::now();
        tier.ingest(std::slice::from_ref(&path))?;
        slowest = slowest.max(start.elapsed());
        taken += start.elapsed();
        std::fs::remove_file(&path)?;
    }
    println!(
        "{compaction:?}: {files} files, {} MB, {:.1} s in all, ingestion {:.0} ms a file, slowest {:.0} ms",
        bytes >> 20,
        whole.elapsed().as_secs_f64(),
        taken.as_secs_f64() * 1e3 / files as f64,
        slowest.as_secs_f64() * 1e3,
    );
    reads(&tier, keys, "while it compacts")?;
    while tier.stats().compactions > 0 {
        std::thread::park_timeout(Duration::from_millis(50));
    }
    let stats = tier.stats();
    println!(
        "  at rest: {} MB on disk, {} runs in level 0, compaction wrote {:.1} times what came in",
        stats.bytes >> 20,
        stats.level0_files,
        tier.compacted_bytes() as f64 / bytes as f64
    );
    reads(&tier, keys, "at rest")?;
    println!("  cache {} MB of {}", rocks.used_bytes() >> 20, CACHE_BYTES >> 20);
    Ok(())
}

fn reads(tier: &std::sync::Arc<Tier>, keys: u64, when: &str) -> Outcome {
    let snapshot = tier.snapshot();
    for (what, from) in [("present", 0), ("absent", keys)] {
        let (start, mut found) = (Instant::now(), 0);
        const BATCHES: u64 = 40;
        for batch in 0..BATCHES {
            let wanted: Vec<Vec<u8>> = (0..512).map(|i| key(from + scramble(batch * 512 + i) % keys)).collect();
            snapshot.get_many(&wanted, &mut |_, _| {
                found += 1;
                Ok(())
            })?;
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / (BATCHES * 512) as f64;
        println!("  {when}: {us:.1} us a key of get_many, {what}, {found} found");
        let (start, mut found) = (Instant::now(), 0);
        const SCANS: u64 = 10_000;
        let mut scan = snapshot.scan(&key(0)[..STATE_KEY_PREFIX_BYTES + 8], None)?;
        for i in 0..SCANS {
            let key = key(from + scramble(i) % keys);
            scan.seek(&key[..STATE_KEY_PREFIX_BYTES + 8], None)?;
            while scan.next()?.is_some() {
                found += 1;
            }
        }
        let us = start.elapsed().as_secs_f64() * 1e6 / SCANS as f64;
        println!("  {when}: {us:.1} us a scan of a prefix, {what}, {found} found");
    }
    let (start, mut rows) = (Instant::now(), 0_u64);
    let mut scan = snapshot.scan(&1_u32.to_be_bytes(), None)?;
    while scan.next()?.is_some() {
        rows += 1;
    }
    let rate = rows as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("  {when}: {rate:.1} M rows/s in a scan of all {rows}");
    Ok(())
}
