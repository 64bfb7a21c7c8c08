//! Measures the figures of `docs/decisions/0002-delta-files.md` on this machine:
//! `cargo run -p levee-storage --example measure [DIRECTORY]` (default: the system's temporary directory).
#![allow(clippy::print_stdout, reason = "its output is the purpose")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use levee_storage::StorageError;
use levee_storage::checkpoint::{
    CheckpointStore, CheckpointTarget, FileMeta, Manifest, MergePlan, RegionVersion, Restore,
};
use levee_storage::delta_file::{DeltaBuilder, StateKey};
use levee_storage::fs::{FileSystem, OsFs};
use levee_storage::log::{Log, LogOptions};
use levee_storage::rocks::RocksShared;

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let base = std::env::args().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let dir = base.join(format!("levee-measure-{}", std::process::id()));
    let measured = delta_files(&dir).and_then(|()| log(&dir));
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn scramble(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ (mixed >> 27)
}

fn fill(rows: u64, from: u64) -> DeltaBuilder {
    let mut delta = DeltaBuilder::new();
    let mut key = [0; 9];
    let mut value = [0; 100];
    for number in from..from + rows {
        let id = scramble(number);
        key[1..].copy_from_slice(&id.to_be_bytes());
        value[..8].copy_from_slice(&number.to_le_bytes());
        value[40..48].copy_from_slice(&id.to_le_bytes());
        let (operator, table, vnode) = ((number % 3) as u32, 0, id as u8);
        delta.put(
            StateKey {
                region: 1,
                operator,
                table,
                vnode,
                key: &key,
            },
            &value,
        );
    }
    delta
}

/// Wall time and this thread's CPU time, which other work on the machine disturbs less.
struct Stopwatch {
    wall: Instant,
    cpu: Duration,
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            wall: Instant::now(),
            cpu: cpu_time(),
        }
    }

    fn report(&self, what: &str, rows: u64) {
        let (wall, cpu) = (self.wall.elapsed().as_secs_f64(), (cpu_time() - self.cpu).as_secs_f64());
        let rate = rows as f64 / cpu / 1e6;
        println!(
            "{what}: wall {:.1} ms, cpu {:.1} ms, {rate:.2} M rows per CPU second",
            wall * 1e3,
            cpu * 1e3
        );
    }
}

fn cpu_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    Duration::from_nanos(stat.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0))
}

fn delta_files(dir: &Path) -> Outcome {
    let fs: Arc<dyn FileSystem> = Arc::new(OsFs);
    let target = CheckpointTarget::Directory(dir.join("checkpoints"));
    let rocks = RocksShared::new(64 << 20);
    let store = CheckpointStore::open(&target, &fs, &dir.join("work"), rocks.clone(), 1)?;
    for rows in [50_000, 1_000_000] {
        let start = Stopwatch::start();
        let delta = fill(rows, 0);
        start.report(&format!("fill a builder of {rows} rows"), rows);
        let path = dir.join("work/measured.sst");
        let start = Stopwatch::start();
        delta.write(&rocks, &path)?;
        start.report(&format!("sort and write an SST of {rows} rows"), rows);
        println!("  {} bytes", std::fs::metadata(&path)?.len());
        std::fs::remove_file(&path)?;
        let delta = fill(rows, 0);
        let start = Stopwatch::start();
        store.put_delta(delta)?;
        start.report(&format!("put_delta of {rows} rows, durable"), rows);
    }
    let files = (0..9)
        .map(|tick| store.put_delta(fill(50_000, tick * 40_000)))
        .collect::<Result<Vec<_>, _>>()?;
    let manifest = manifest_of(&files);
    let start = Stopwatch::start();
    store.commit(&manifest)?;
    start.report("commit a manifest of 9 files", 1);
    for epoch in [1, 9] {
        let start = Stopwatch::start();
        let restore = Restore::open(&store, &manifest, &BTreeMap::from([(1, epoch)]))?;
        start.report(&format!("check and ingest {epoch} files of 50000 rows"), epoch * 50_000);
        let (start, mut rows) = (Stopwatch::start(), 0);
        for operator in restore.operators(1)? {
            restore.scan_region(1, operator, None, |_, _, _, _| {
                rows += 1;
                Ok::<(), StorageError>(())
            })?;
        }
        start.report(&format!("scan {rows} rows of {epoch} files"), rows);
    }
    let plan = MergePlan {
        inputs: files,
        regions: BTreeMap::from([(1, true)]),
    };
    let start = Stopwatch::start();
    store.merge(&plan)?;
    start.report("merge 9 files of 50000 rows", 450_000);
    Ok(())
}

fn manifest_of(files: &[FileMeta]) -> Manifest {
    let version = |count: usize| RegionVersion {
        epoch: count as u64,
        files: files[..count].iter().map(|file| file.id).collect(),
        meta: Vec::new(),
    };
    let regions = BTreeMap::from([(1, vec![version(1), version(9)])]);
    let files = files.iter().map(|file| (file.id, file.clone())).collect();
    Manifest {
        number: 1,
        term: 1,
        regions,
        files,
        ..Manifest::default()
    }
}

fn log(dir: &Path) -> Outcome {
    let (log, _) = Log::open(Arc::new(OsFs), &dir.join("log"), LogOptions::default())?;
    let small = [7; 200];
    let mut times = Vec::new();
    for _ in 0..500 {
        let start = Instant::now();
        log.append_sync(&[(1, &small)])?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    println!(
        "append and sync 200 bytes: median {:?}, p99 {:?}",
        times[250], times[495]
    );
    let start = Stopwatch::start();
    for _ in 0..100 {
        log.append_sync(&[(1, &small[..]); 1000])?;
    }
    start.report("append and sync 1000 records of 200 bytes a group", 100_000);
    let large = vec![3; 256 << 20];
    let start = Stopwatch::start();
    log.append_sync(&[(1, &large)])?;
    start.report("append and sync one record of 256 MB", 1);
    let start = Stopwatch::start();
    let mut bytes = 0;
    for record in log.read_from(1)? {
        bytes += record?.payload.len();
    }
    start.report(&format!("read {bytes} bytes back"), 101_000);
    Ok(())
}
