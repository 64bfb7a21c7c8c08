use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::delta_file::{DeltaBuilder, StateKey};
use crate::error::{Result, StorageError};
use crate::fs::{FaultFs, FileSystem, OsFs};
use crate::rocks::RocksShared;

const ROOT: &str = "/objects";

/// Region, operator, table, vnode, key → value.
type Model = BTreeMap<(u32, u32, u8, u8, Vec<u8>), Vec<u8>>;

struct Bench {
    work: tempfile::TempDir,
    rocks: RocksShared,
}

impl Bench {
    fn new() -> Self {
        Self {
            work: tempfile::tempdir().unwrap(),
            rocks: RocksShared::new(8 << 20),
        }
    }

    fn open(&self, fs: &FaultFs, term: u64) -> Result<CheckpointStore> {
        self.open_target(&CheckpointTarget::Directory(ROOT.into()), Arc::new(fs.clone()), term)
    }

    fn open_target(&self, target: &CheckpointTarget, fs: Arc<dyn FileSystem>, term: u64) -> Result<CheckpointStore> {
        CheckpointStore::open(target, &fs, &self.work.path().join("work"), self.rocks.clone(), term)
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Random changes of some regions, made in the model and in a delta.
fn change(random: &mut Random, model: &mut Model, regions: &[u32], rows: u64) -> DeltaBuilder {
    let mut delta = DeltaBuilder::new();
    for _ in 0..rows {
        let region = regions[random.below(regions.len() as u64) as usize];
        let (operator, table) = (random.below(3) as u32, random.below(2) as u8);
        // Few distinct bytes and lengths around the sort prefix: shared prefixes, zeros, keys of keys.
        let key: Vec<u8> = (0..random.below(14))
            .map(|_| [0, 0, 1, 255][random.below(4) as usize])
            .collect();
        let vnode = key
            .iter()
            .fold(0_u8, |sum, byte| sum.wrapping_mul(3).wrapping_add(*byte));
        let state_key = StateKey {
            region,
            operator,
            table,
            vnode,
            key: &key,
        };
        if random.below(3) == 0 {
            delta.delete(state_key);
            model.remove(&(region, operator, table, vnode, key));
        } else {
            let value: Vec<u8> = (0..random.below(6)).map(|_| random.below(256) as u8).collect();
            delta.put(state_key, &value);
            model.insert((region, operator, table, vnode, key), value);
        }
    }
    delta
}

fn of_region(model: &Model, region: u32) -> Model {
    model
        .iter()
        .filter(|entry| entry.0.0 == region)
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

fn scan(restore: &Restore, region: u32) -> Model {
    let mut found = Model::new();
    for operator in restore.operators(region).unwrap() {
        let mut last = None;
        let each = |table: u8, vnode: u8, key: &[u8], value: &[u8]| {
            let place = Some((table, vnode, key.to_vec()));
            assert!(place > last, "keys ascend");
            last = place;
            found.insert((region, operator, table, vnode, key.to_vec()), value.to_vec());
            Ok::<(), StorageError>(())
        };
        restore.scan_region(region, operator, None, each).unwrap();
    }
    found
}

fn state(store: &CheckpointStore, manifest: &Manifest, region: u32, epoch: u64) -> Model {
    let restore = Restore::open(store, manifest, &BTreeMap::from([(region, epoch)])).unwrap();
    scan(&restore, region)
}

/// Adds a file to a region: the next version is the last one's files and this one.
fn extend(manifest: &mut Manifest, region: u32, epoch: u64, file: &FileMeta) {
    let versions = manifest.regions.entry(region).or_default();
    let mut files = versions.last().map_or_else(Vec::new, |version| version.files.clone());
    files.push(file.id);
    versions.push(RegionVersion {
        epoch,
        files,
        meta: vec![region as u8],
    });
    manifest.files.insert(file.id, file.clone());
}

/// Three checkpoints of one region with garbage collection; the models of the manifests tried, and the last one acked.
fn workload(bench: &Bench, fs: &FaultFs, models: &mut Vec<Model>, acked: &mut u64) -> Result<()> {
    let store = bench.open(fs, 1)?;
    let (mut random, mut model) = (Random(7), Model::new());
    let mut manifest = Manifest {
        term: 1,
        ..Manifest::default()
    };
    for number in 1..=4 {
        manifest.number = number;
        manifest.payload = vec![number as u8; 300];
        let file = store.put_delta(change(&mut random, &mut model, &[1], 60))?;
        extend(&mut manifest, 1, number * 10, &file);
        if number == 3 {
            let plan = MergePlan {
                inputs: manifest.files.values().cloned().collect(),
                regions: BTreeMap::from([(1, true)]),
            };
            let merged = store.merge(&plan)?;
            prune(&mut manifest.regions, &BTreeMap::from([(1, 30)]));
            apply_merge(&mut manifest.regions, &mut manifest.files, &plan, merged.as_ref());
        }
        models.push(model.clone());
        store.commit(&manifest)?;
        *acked = number;
        store.gc(&[&manifest])?;
    }
    Ok(())
}

#[test]
fn power_loss_at_every_step_leaves_the_old_or_the_new_checkpoint() {
    let bench = Bench::new();
    let clean = FaultFs::new(0);
    workload(&bench, &clean, &mut Vec::new(), &mut 0).unwrap();
    let steps = clean.steps();
    assert!(steps > 50, "{steps}");
    for step in 1..=steps {
        let fs = FaultFs::new(step);
        let (mut models, mut acked) = (Vec::new(), 0);
        fs.crash_at(step);
        workload(&bench, &fs, &mut models, &mut acked).unwrap_err();
        let store = bench.open(&fs.recover(), 2).unwrap();
        let loaded = store.load_latest().unwrap();
        assert!(loaded.skipped.is_empty(), "step {step}: {:?}", loaded.skipped);
        let number = loaded.manifest.as_ref().map_or(0, |manifest| manifest.number);
        assert!(
            number == acked || number == acked + 1,
            "step {step}: {number} found, {acked} acked"
        );
        let Some(manifest) = loaded.manifest else { continue };
        store.verify(&manifest).unwrap();
        let epoch = manifest.regions[&1].last().unwrap().epoch;
        assert_eq!(
            state(&store, &manifest, 1, epoch),
            models[number as usize - 1],
            "step {step}"
        );
        // The next writer goes on from it.
        let next = Manifest {
            number: store.next_manifest_number(),
            term: 2,
            ..manifest
        };
        store.commit(&next).unwrap();
        store.gc(&[&next]).unwrap();
        assert_eq!(store.load_latest().unwrap().manifest, Some(next));
    }
}

#[test]
fn every_flipped_byte_of_a_manifest_or_file_is_found() {
    let bench = Bench::new();
    let fs = FaultFs::new(0);
    workload(&bench, &fs, &mut Vec::new(), &mut 0).unwrap();
    let store = bench.open(&fs, 2).unwrap();
    let newest = store.load_latest().unwrap().manifest.unwrap();
    for (path, len) in fs.files() {
        let file = path.display().to_string();
        for offset in 0..len {
            assert!(fs.corrupt(&path, offset, 0x04));
            if file.ends_with(&newest.number.to_string()) {
                let loaded = store.load_latest().unwrap();
                assert_eq!(loaded.manifest.unwrap().number, newest.number - 1, "{file} {offset}");
                assert_eq!(loaded.skipped[0].0, newest.number);
            } else if newest.files.keys().any(|id| file.ends_with(&id.name())) {
                assert!(
                    matches!(store.verify(&newest), Err(StorageError::Corrupt { .. })),
                    "{file} {offset}"
                );
            }
            assert!(fs.corrupt(&path, offset, 0x04));
        }
    }
    let id = *newest.files.keys().next().unwrap();
    fs.corrupt(&Path::new(ROOT).join(id.name()), 5, 1);
    let chosen = BTreeMap::from([(1, newest.regions[&1].last().unwrap().epoch)]);
    assert!(matches!(
        Restore::open(&store, &newest, &chosen),
        Err(StorageError::Corrupt { .. })
    ));
    fs.remove(&Path::new(ROOT).join(id.name())).unwrap();
    let candidates = store.load_candidates().unwrap();
    assert!(matches!(candidates[0].manifest, Err(StorageError::Corrupt { .. })));
}

#[test]
fn merged_lists_hold_the_same_state_as_a_map() {
    for seed in 0..2 {
        let bench = Bench::new();
        let store = bench.open(&FaultFs::new(seed), 1).unwrap();
        let (mut random, mut model) = (Random(seed), Model::new());
        let mut manifest = Manifest {
            term: 1,
            ..Manifest::default()
        };
        let mut snapshots: BTreeMap<u64, Model> = BTreeMap::new();
        let mut merges = 0;
        for epoch in 1..=36 {
            // Regions change in different ticks, so their lists differ.
            let regions: Vec<u32> = [1, 2, 7].into_iter().filter(|_| random.below(3) > 0).collect();
            if regions.is_empty() {
                continue;
            }
            let rows = 1 + random.below(80);
            let file = store
                .put_delta(change(&mut random, &mut model, &regions, rows))
                .unwrap();
            regions
                .iter()
                .for_each(|region| extend(&mut manifest, *region, epoch, &file));
            snapshots.insert(epoch, model.clone());
            for plan in plan_merges(&manifest.regions, &manifest.files) {
                let merged = store.merge(&plan).unwrap();
                apply_merge(&mut manifest.regions, &mut manifest.files, &plan, merged.as_ref());
                merges += 1;
            }
            let oldest = epoch.saturating_sub(6);
            for versions in manifest.regions.values_mut() {
                let newest = versions.last().map_or(0, |version| version.epoch);
                versions.retain(|version| version.epoch >= oldest || version.epoch == newest);
            }
            manifest.retain_named_files();
            manifest.number = store.next_manifest_number();
            store.commit(&manifest).unwrap();
            store.gc(&[]).unwrap();
            if epoch % 12 == 0 {
                for (region, versions) in &manifest.regions {
                    for version in versions {
                        let expected = of_region(&snapshots[&version.epoch], *region);
                        assert_eq!(
                            state(&store, &manifest, *region, version.epoch),
                            expected,
                            "seed {seed}, {epoch}"
                        );
                    }
                }
            }
        }
        assert!(merges >= 3, "{merges}");
        let longest = manifest
            .regions
            .values()
            .flatten()
            .map(|version| version.files.len())
            .max();
        assert!(longest <= Some(FILES_MAX), "{longest:?}");
    }
}

#[test]
fn a_file_counts_only_where_it_is_listed_and_vnodes_are_picked() {
    let bench = Bench::new();
    let target = CheckpointTarget::parse("memory://").unwrap();
    let store = bench.open_target(&target, Arc::new(OsFs), 1).unwrap();
    let (mut random, mut model) = (Random(3), Model::new());
    let first = store.put_delta(change(&mut random, &mut model, &[1, 2], 400)).unwrap();
    let old = model.clone();
    let second = store.put_delta(change(&mut random, &mut model, &[1, 2], 400)).unwrap();
    let mut manifest = Manifest {
        number: 1,
        term: 1,
        ..Manifest::default()
    };
    extend(&mut manifest, 1, 5, &first);
    extend(&mut manifest, 2, 5, &first);
    extend(&mut manifest, 1, 9, &second);
    store.commit(&manifest).unwrap();
    let restore = Restore::open(&store, &manifest, &BTreeMap::from([(1, 9), (2, 5)])).unwrap();
    assert_eq!(scan(&restore, 1), of_region(&model, 1));
    assert_eq!(scan(&restore, 2), of_region(&old, 2));
    let vnodes: VnodeSet = (0..=255).filter(|vnode| vnode % 3 == 0).collect();
    let mut found = 0;
    let each = |_: u8, vnode: u8, _: &[u8], _: &[u8]| {
        assert!(vnodes.contains(vnode));
        found += 1;
        Ok::<(), StorageError>(())
    };
    restore.scan_region(1, 0, Some(&vnodes), each).unwrap();
    let expected = of_region(&model, 1)
        .keys()
        .filter(|key| key.1 == 0 && key.3 % 3 == 0)
        .count();
    assert!(expected > 10);
    assert_eq!(found, expected);
    assert!(matches!(scan_unknown(&restore), Err(StorageError::Invalid { .. })));
    drop((restore, store));
    let store = bench.open_target(&target, Arc::new(OsFs), 2).unwrap();
    assert_eq!(store.load_latest().unwrap().manifest, Some(manifest));
}

fn scan_unknown(restore: &Restore) -> Result<()> {
    restore.scan_region(99, 0, None, |_, _, _, _| Ok(()))
}

#[test]
fn another_writer_fences() {
    let bench = Bench::new();
    let fs = FaultFs::new(0);
    let old = bench.open(&fs, 1).unwrap();
    let new = bench.open(&fs, 2).unwrap();
    let manifest = |term, log_seq| Manifest {
        number: 1,
        term,
        log_seq,
        ..Manifest::default()
    };
    new.commit(&manifest(2, 0)).unwrap();
    assert!(matches!(old.commit(&manifest(1, 0)), Err(StorageError::Fenced(2))));
    assert!(matches!(old.gc(&[]), Err(StorageError::Fenced(2))));
    assert!(matches!(bench.open(&fs, 2), Err(StorageError::Fenced(2))));
    let target = CheckpointTarget::Directory(ROOT.into());
    let fs: Arc<dyn FileSystem> = Arc::new(fs);
    assert_eq!(highest_term(&target, &fs).unwrap(), 2);
}

#[test]
fn garbage_goes_and_files_in_waiting_stay() {
    let bench = Bench::new();
    let fs = FaultFs::new(0);
    let store = bench.open(&fs, 1).unwrap();
    let (mut random, mut model) = (Random(1), Model::new());
    let mut put = |store: &CheckpointStore| store.put_delta(change(&mut random, &mut model, &[1], 5)).unwrap();
    let waiting = put(&store);
    let mut retained = Vec::new();
    for number in 1..=5 {
        let mut manifest = Manifest {
            number,
            term: 1,
            ..Manifest::default()
        };
        extend(&mut manifest, 1, number, &put(&store));
        store.commit(&manifest).unwrap();
        retained.push(manifest);
    }
    let report = store.gc(&[&retained[0]]).unwrap();
    assert_eq!(report, GcReport { manifests: 2, files: 2 });
    let numbers: Vec<u64> = store
        .load_candidates()
        .unwrap()
        .iter()
        .map(|candidate| candidate.number)
        .collect();
    assert_eq!(numbers, [5, 4, 1]);
    assert!(fs.len(&Path::new(ROOT).join(waiting.id.name())).unwrap().is_some());
    store.release(waiting.id);
    assert_eq!(store.gc(&[]).unwrap(), GcReport { manifests: 1, files: 2 });
    let leftover = put(&store);
    let next = bench.open(&fs, 2).unwrap();
    assert_eq!(next.gc(&[]).unwrap(), GcReport { manifests: 0, files: 1 });
    assert!(fs.len(&Path::new(ROOT).join(leftover.id.name())).unwrap().is_none());
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let bench = Bench::new();
    let fs = FaultFs::new(0);
    let store = bench.open(&fs, 1).unwrap();
    let (mut random, mut model) = (Random(1), Model::new());
    fs.set_capacity(Some(500));
    let refused = store.put_delta(change(&mut random, &mut model, &[1], 50));
    assert!(matches!(refused, Err(StorageError::Full { .. })), "{refused:?}");
    assert_eq!(fs.used(), 0);
    let manifest = Manifest {
        number: 1,
        term: 1,
        payload: vec![1; 600],
        ..Manifest::default()
    };
    assert!(matches!(store.commit(&manifest), Err(StorageError::Full { .. })));
    assert!(store.load_latest().unwrap().manifest.is_none());
    fs.set_capacity(None);
    store.commit(&manifest).unwrap();
    assert_eq!(store.load_latest().unwrap().manifest, Some(manifest));
}

#[test]
fn regions_start_at_versions_that_fit_together() {
    let versions = |epochs: &[u64]| -> Vec<RegionVersion> {
        epochs
            .iter()
            .map(|epoch| RegionVersion {
                epoch: *epoch,
                ..RegionVersion::default()
            })
            .collect()
    };
    // 1 → 2 → 4, 1 → 3 → 4; 5 is read by 6, which has no version yet; 7 is read by 8, which is not here.
    let mut regions: Regions = BTreeMap::from([
        (1, versions(&[10, 20, 30])),
        (2, versions(&[10, 20, 30])),
        (3, versions(&[10, 30])),
        (4, versions(&[20])),
        (5, versions(&[10])),
        (6, versions(&[])),
        (7, versions(&[10, 30])),
    ]);
    let subscribers = BTreeMap::from([(1, vec![2, 3]), (2, vec![4]), (3, vec![4]), (5, vec![6]), (7, vec![8])]);
    let chosen = choose_versions(&regions, &subscribers);
    assert_eq!(chosen, BTreeMap::from([(1, 10), (2, 20), (3, 10), (4, 20), (7, 30)]));
    prune(&mut regions, &chosen);
    let left: Vec<usize> = regions.values().map(Vec::len).collect();
    assert_eq!(left, [3, 2, 2, 1, 1, 0, 1]);
}

#[test]
fn unknown_urls_and_wrong_manifests_are_refused() {
    for url in ["s3://bucket", "file://relative", "/tmp/x", ""] {
        assert!(
            matches!(CheckpointTarget::parse(url), Err(StorageError::Invalid { .. })),
            "{url}"
        );
    }
    let bench = Bench::new();
    let store = bench.open(&FaultFs::new(0), 1).unwrap();
    let mut manifest = Manifest {
        number: 2,
        term: 1,
        ..Manifest::default()
    };
    assert!(matches!(store.commit(&manifest), Err(StorageError::Invalid { .. })));
    manifest.number = 1;
    let files = vec![FileId { term: 1, number: 4 }];
    manifest.regions.insert(
        1,
        vec![RegionVersion {
            epoch: 1,
            files,
            meta: Vec::new(),
        }],
    );
    assert!(matches!(store.commit(&manifest), Err(StorageError::Corrupt { .. })));
    assert!(matches!(
        store.put_delta(DeltaBuilder::new()),
        Err(StorageError::Invalid { .. })
    ));
}

#[test]
fn a_file_of_many_regions_is_left_as_it_was() {
    let bench = Bench::new();
    let directory = bench.work.path().join("objects");
    let target = CheckpointTarget::parse(&format!("file://{}", directory.display())).unwrap();
    let store = bench.open_target(&target, Arc::new(OsFs), 1).unwrap();
    let (mut random, mut model) = (Random(5), Model::new());
    let file = store
        .put_delta(change(&mut random, &mut model, &[3, 1, 9, 2], 400))
        .unwrap();
    assert_eq!(file.regions, [1, 2, 3, 9]);
    let mut manifest = Manifest {
        number: 1,
        term: 1,
        ..Manifest::default()
    };
    let regions = [1, 2, 3, 9];
    regions
        .iter()
        .for_each(|region| extend(&mut manifest, *region, 1, &file));
    store.commit(&manifest).unwrap();
    let restore = Restore::open(&store, &manifest, &regions.iter().map(|region| (*region, 1)).collect()).unwrap();
    let mut found = Model::new();
    regions
        .iter()
        .for_each(|region| found.append(&mut scan(&restore, *region)));
    assert_eq!(found, model);
    drop(restore);
    // The original is untouched by what RocksDB did with its link.
    store.verify(&manifest).unwrap();
    assert_eq!(std::fs::read_dir(bench.work.path().join("work")).unwrap().count(), 0);
}

/// A merged file without tombstones begins one region's list, while another still lists what was merged; a third region
/// starts at an older version than the files that others need; a fourth starts from nothing.
#[test]
fn loading_leaves_out_what_a_region_does_not_list() {
    for seed in 0..6 {
        let bench = Bench::new();
        let store = bench.open(&FaultFs::new(seed), 1).unwrap();
        let (mut random, mut model) = (Random(seed), Model::new());
        let mut manifest = Manifest {
            number: 1,
            term: 1,
            ..Manifest::default()
        };
        let mut snapshots: BTreeMap<u64, Model> = BTreeMap::new();
        for epoch in 1..=9 {
            // Region 2 does not change after the first file.
            let regions: &[u32] = if epoch == 1 { &[1, 2, 3, 4] } else { &[1, 3, 4] };
            let file = store.put_delta(change(&mut random, &mut model, regions, 120)).unwrap();
            assert_eq!(file.regions, regions);
            for region in regions {
                extend(&mut manifest, *region, epoch, &file);
            }
            snapshots.insert(epoch, model.clone());
        }
        // Of region 1 everything is merged, of region 3 what came after its fourth version.
        for (region, from) in [(1, 0), (3, 4)] {
            let newest = manifest.regions[&region].last().unwrap().clone();
            let inputs = manifest.files_of(&newest).unwrap()[from..].to_vec();
            let plan = MergePlan {
                inputs,
                regions: BTreeMap::from([(region, from == 0)]),
            };
            let merged = store.merge(&plan).unwrap();
            apply_merge(&mut manifest.regions, &mut manifest.files, &plan, merged.as_ref());
        }
        store.commit(&manifest).unwrap();
        let chosen = BTreeMap::from([(1, 9), (2, 1), (3, 4)]);
        let restore = Restore::open(&store, &manifest, &chosen).unwrap();
        for (region, epoch) in &chosen {
            assert_eq!(
                scan(&restore, *region),
                of_region(&snapshots[epoch], *region),
                "seed {seed}"
            );
        }
        assert!(!restore.of(1).unwrap().has_region(4).unwrap(), "it starts from nothing");
        let all = BTreeMap::from([(1, 9), (2, 1), (3, 9), (4, 7)]);
        let restore = Restore::open(&store, &manifest, &all).unwrap();
        for (region, epoch) in &all {
            assert_eq!(
                scan(&restore, *region),
                of_region(&snapshots[epoch], *region),
                "seed {seed}"
            );
        }
        // Region 3 goes on from its fourth version, while region 4 keeps the files that hold what region 3 had done beyond.
        let back = BTreeMap::from([(1, 9), (2, 1), (3, 4), (4, 9)]);
        let mut later = manifest.clone();
        later.rewind(&back);
        let kept = back
            .iter()
            .flat_map(|(region, epoch)| of_region(&snapshots[epoch], *region));
        let mut model: Model = kept.collect();
        let file = store.put_delta(change(&mut random, &mut model, &[3, 4], 60)).unwrap();
        extend(&mut later, 3, 10, &file);
        extend(&mut later, 4, 10, &file);
        later.number = 2;
        store.commit(&later).unwrap();
        let newest = BTreeMap::from([(1, 9), (2, 1), (3, 10), (4, 10)]);
        let restore = Restore::open(&store, &later, &newest).unwrap();
        for region in newest.keys() {
            assert_eq!(scan(&restore, *region), of_region(&model, *region), "seed {seed}");
        }
        manifest.rewind(&chosen);
        assert_eq!(manifest.regions[&3].last().unwrap().epoch, 4);
        assert!(!manifest.regions.contains_key(&4));
    }
}
