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

fn rate(what: &str, rows: u64, took: Duration) {
    let seconds = took.as_secs_f64();
    println!(
        "{what}: {:.1} ms, {:.2} M rows/s",
        seconds * 1e3,
        rows as f64 / seconds / 1e6
    );
}

fn delta_files(dir: &Path) -> Outcome {
    let fs: Arc<dyn FileSystem> = Arc::new(OsFs);
    let target = CheckpointTarget::Directory(dir.join("checkpoints"));
    let rocks = RocksShared::new(64 << 20);
    let store = CheckpointStore::open(&target, &fs, &dir.join("work"), rocks.clone(), 1)?;
    for rows in [50_000, 1_000_000] {
        let start = Instant::now();
        let delta = fill(rows, 0);
        rate(&format!("fill a builder of {rows} rows"), rows, start.elapsed());
        let path = dir.join("work/measured.sst");
        let start = Instant::now();
        delta.write(&rocks, &path)?;
        let took = start.elapsed();
        rate(&format!("sort and write an SST of {rows} rows"), rows, took);
        let bytes = std::fs::metadata(&path)?.len();
        println!(
            "  {} bytes, {:.0} MB/s of rows",
            bytes,
            rows as f64 * 120.0 / took.as_secs_f64() / 1e6
        );
        std::fs::remove_file(&path)?;
        let delta = fill(rows, 0);
        let start = Instant::now();
        store.put_delta(delta)?;
        rate(&format!("put_delta of {rows} rows, durable"), rows, start.elapsed());
    }
    let files = (0..9)
        .map(|tick| store.put_delta(fill(50_000, tick * 40_000)))
        .collect::<Result<Vec<_>, _>>()?;
    let manifest = manifest_of(&files);
    let start = Instant::now();
    store.commit(&manifest)?;
    rate("commit a manifest of 9 files", 1, start.elapsed());
    for epoch in [1, 9] {
        let start = Instant::now();
        let restore = Restore::open(&store, &manifest, &BTreeMap::from([(1, epoch)]))?;
        let ingested = start.elapsed();
        rate(
            &format!("check and ingest {epoch} files of 50000 rows"),
            epoch * 50_000,
            ingested,
        );
        let (start, mut rows) = (Instant::now(), 0);
        for operator in restore.operators(1)? {
            restore.scan_region(1, operator, None, |_, _, _, _| {
                rows += 1;
                Ok::<(), StorageError>(())
            })?;
        }
        rate(&format!("scan {rows} rows of {epoch} files"), rows, start.elapsed());
    }
    let plan = MergePlan {
        inputs: files,
        regions: BTreeMap::from([(1, true)]),
    };
    let start = Instant::now();
    store.merge(&plan)?;
    rate("merge 9 files of 50000 rows", 450_000, start.elapsed());
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
    let start = Instant::now();
    for _ in 0..100 {
        log.append_sync(&[(1, &small[..]); 1000])?;
    }
    rate(
        "append and sync 1000 records of 200 bytes a group",
        100_000,
        start.elapsed(),
    );
    let large = vec![3; 256 << 20];
    let start = Instant::now();
    log.append_sync(&[(1, &large)])?;
    println!("append and sync one record of 256 MB: {:?}", start.elapsed());
    let start = Instant::now();
    let mut bytes = 0;
    for record in log.read_from(1)? {
        bytes += record?.payload.len();
    }
    println!("read {bytes} bytes back: {:?}", start.elapsed());
    Ok(())
}
