use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::*;
use crate::fs::{FaultFs, OsFs};

const DIR: &str = "/db/log";

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: 400,
        term_min: 0,
    }
}

fn open(fs: &FaultFs) -> Result<(Log, u64)> {
    Log::open(Arc::new(fs.clone()), Path::new(DIR), options())
}

fn payload(number: u64) -> Vec<u8> {
    (0..number * 7 % 90).map(|at| (number * 31 + at) as u8).collect()
}

/// All payloads from a sequence number on; fails at the first error.
fn read(log: &Log, from: u64) -> Result<Vec<(u64, Vec<u8>)>> {
    log.read_from(from)?
        .map(|record| record.map(|record| (record.seq, record.payload.to_vec())))
        .collect()
}

/// What a run of the workload was promised.
#[derive(Default)]
struct Run {
    tried: u64,
    acked: u64,
    needed_from: u64,
}

/// Groups of one to three records, numbered from `run.tried`, synced group by group, with a truncation on the way.
fn workload(fs: &FaultFs, run: &mut Run, groups: u64) -> Result<()> {
    let (log, _) = open(fs)?;
    for group in 0..groups {
        let numbers: Vec<u64> = (run.tried..run.tried + 1 + group % 3).collect();
        let payloads: Vec<Vec<u8>> = numbers.iter().map(|number| payload(*number)).collect();
        let records: Vec<(u8, &[u8])> = payloads.iter().map(|bytes| (1, bytes.as_slice())).collect();
        run.tried += numbers.len() as u64;
        log.append_sync(&records)?;
        run.acked = run.tried;
        if group == groups * 2 / 3 {
            let half = run.acked / 2;
            let seq = log
                .read_from(log.first_seq())?
                .nth(half as usize)
                .transpose()?
                .map_or(1, |record| record.seq);
            run.needed_from = half;
            log.truncate_before(seq)?;
        }
    }
    Ok(())
}

/// The surviving records are a stretch of the numbers tried, with all that were promised and still needed.
fn check(fs: &FaultFs, run: &Run, at: &str) -> Log {
    let (log, _) = open(fs).unwrap_or_else(|error| panic!("{at}: {error}"));
    let records = read(&log, log.first_seq()).unwrap_or_else(|error| panic!("{at}: {error}"));
    let found: Vec<&Vec<u8>> = records.iter().map(|(_, payload)| payload).collect();
    let fits = (0..=run.needed_from).any(|first| {
        let end = first + found.len() as u64;
        end >= run.acked
            && end <= run.tried
            && (first..end)
                .zip(&found)
                .all(|(number, found)| **found == payload(number))
    });
    assert!(
        fits,
        "{at}: {} records of {} acked, {} tried",
        found.len(),
        run.acked,
        run.tried
    );
    log
}

#[test]
fn acked_records_survive_power_loss_at_every_step() {
    let clean = FaultFs::new(0);
    workload(&clean, &mut Run::default(), 20).unwrap();
    let steps = clean.steps();
    assert!(steps > 60, "{steps}");
    for step in 1..=steps {
        for seed in 0..6 {
            let fs = FaultFs::new(seed);
            let mut run = Run::default();
            fs.crash_at(step);
            workload(&fs, &mut run, 20).unwrap_err();
            // The next open loses power too, at some step of its own.
            let fs = fs.recover();
            fs.crash_at(1 + (step + seed) % 7);
            open(&fs).ok();
            let fs = fs.recover();
            let log = check(&fs, &run, &format!("step {step}, seed {seed}"));
            log.append_sync(&[(2, b"after")]).unwrap();
            drop(log);
            let fs = fs.recover();
            let (log, _) = open(&fs).unwrap();
            assert_eq!(read(&log, log.first_seq()).unwrap().last().unwrap().1, b"after");
        }
    }
}

#[test]
fn every_flipped_byte_is_found_or_in_the_unprovable_last_frame() {
    let clean = FaultFs::new(1);
    workload(&clean, &mut Run::default(), 9).unwrap();
    let whole = {
        let copy = FaultFs::new(1);
        workload(&copy, &mut Run::default(), 9).unwrap();
        let (log, _) = open(&copy).unwrap();
        read(&log, log.first_seq()).unwrap()
    };
    let files = clean.files();
    assert!(files.len() > 2);
    for (path, len) in &files {
        for offset in 0..*len {
            let fs = FaultFs::new(1);
            workload(&fs, &mut Run::default(), 9).unwrap();
            assert!(fs.corrupt(path, offset, 0x10));
            match open(&fs).and_then(|(log, _)| read(&log, log.first_seq())) {
                Ok(found) => {
                    let last_file = Some(path) == files.last().map(|file| &file.0);
                    assert!(last_file && found.len() >= whole.len() - 3, "{path:?} {offset}");
                    assert_eq!(found[..], whole[..found.len()]);
                }
                Err(StorageError::Corrupt { file, .. }) => assert!(file.contains(".log"), "{file}"),
                Err(error) => panic!("{path:?} {offset}: {error}"),
            }
        }
    }
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let fs = FaultFs::new(3);
    let (log, _) = open(&fs).unwrap();
    let mut acked = Vec::new();
    for number in 0..200 {
        // Room comes and goes so that every kind of write meets the limit.
        fs.set_capacity(Some(fs.used() + number * 5 % 97));
        let bytes = payload(number);
        match log.append_sync(&[(1, &bytes)]) {
            Ok(seq) => acked.push((seq, bytes)),
            Err(StorageError::Full { .. }) => {}
            Err(error) => panic!("{number}: {error}"),
        }
    }
    fs.set_capacity(None);
    acked.push((log.append_sync(&[(1, b"room")]).unwrap(), b"room".to_vec()));
    assert!(acked.len() > 20 && acked.len() < 190, "{}", acked.len());
    assert_eq!(read(&log, 1).unwrap(), acked);
    drop(log);
    let (log, _) = open(&fs.recover()).unwrap();
    assert_eq!(read(&log, 1).unwrap(), acked);
}

#[test]
fn a_failed_sync_closes_the_log() {
    let fs = FaultFs::new(4);
    let (log, _) = open(&fs).unwrap();
    log.append_sync(&[(1, b"kept")]).unwrap();
    fs.fail_syncs(1);
    assert!(matches!(
        log.append_sync(&[(1, b"unknown")]),
        Err(StorageError::LogClosed(_))
    ));
    assert!(matches!(
        log.append_sync(&[(1, b"refused")]),
        Err(StorageError::LogClosed(_))
    ));
    assert!(matches!(log.sync(), Err(StorageError::LogClosed(_))));
    let (log, _) = open(&fs.recover()).unwrap();
    let records = read(&log, 1).unwrap();
    assert_eq!(records[0].1, b"kept");
    assert!(records.len() <= 2);
}

#[test]
fn terms_rise_and_segments_go() {
    let fs = FaultFs::new(5);
    let (log, term) = open(&fs).unwrap();
    assert_eq!((term, log.next_seq()), (1, 2));
    for number in 0..40 {
        log.append(&[(3, &payload(number))]).unwrap();
    }
    log.sync().unwrap();
    assert_eq!(read(&log, 30).unwrap().first().unwrap().0, 30);
    let before = log.size_bytes();
    log.truncate_before(30).unwrap();
    assert!(log.first_seq() > 1 && log.first_seq() <= 30 && log.size_bytes() < before);
    assert_eq!(read(&log, 30).unwrap().len(), 12);
    assert!(matches!(log.read_from(1), Err(StorageError::Corrupt { .. })));
    assert!(matches!(
        log.append(&[(TERM_KIND, b"")]),
        Err(StorageError::Invalid { .. })
    ));
    drop(log);
    let options = LogOptions {
        term_min: 9,
        ..options()
    };
    let (log, term) = Log::open(Arc::new(fs.clone()), Path::new(DIR), options).unwrap();
    assert_eq!((term, log.next_seq()), (10, 43));
    let record = log.read_from(41).unwrap().next().unwrap().unwrap();
    assert_eq!((record.seq, record.term, record.kind), (41, 1, 3));
}

#[test]
fn a_missing_segment_is_named() {
    let fs = FaultFs::new(6);
    workload(&fs, &mut Run::default(), 12).unwrap();
    let files: Vec<PathBuf> = fs.files().into_iter().map(|file| file.0).collect();
    fs.remove(&files[1]).unwrap();
    assert!(matches!(open(&fs), Err(StorageError::Corrupt { .. })));
}

#[test]
fn large_records_pass_on_the_machines_file_system() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/log");
    let large: Vec<u8> = (0..5_000_000_u32).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
    let open = || {
        Log::open(
            Arc::new(OsFs),
            &path,
            LogOptions {
                segment_bytes: 1 << 20,
                term_min: 0,
            },
        )
        .unwrap()
        .0
    };
    let log = open();
    log.append_sync(&[(1, b"small"), (1, &large), (1, &large[..600_000]), (1, b"end")])
        .unwrap();
    log.append_sync(&[(1, &large)]).unwrap();
    drop(log);
    let records = read(&open(), 1).unwrap();
    let lens: Vec<usize> = records.iter().map(|record| record.1.len()).collect();
    assert_eq!(lens, [5, 5_000_000, 600_000, 3, 5_000_000]);
    assert_eq!(records[1].1, large);
    assert_eq!(records[4].1, large);
}
