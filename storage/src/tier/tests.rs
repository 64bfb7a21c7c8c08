//! The tier against a map, at every snapshot taken on the way.

use std::collections::BTreeMap;

use super::*;
use crate::delta_file::{DeltaBuilder, StateKey, operator_prefix, vnode_prefix};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

struct Lcg(u64);
impl Lcg {
    fn next(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

fn key(region: u32, number: u64) -> Vec<u8> {
    let mut encoded = Vec::new();
    // Few distinct hashes, so that prefixes have several rows; lengths differ.
    let mut own = (number % 37).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().to_vec();
    own.extend_from_slice(&number.to_be_bytes()[8 - (number % 3) as usize..]);
    own.extend_from_slice(&(number / 37).to_be_bytes()[6..]);
    StateKey {
        region,
        operator: (number % 2) as u32,
        table: 0,
        vnode: (number % 5) as u8,
        key: &own,
    }
    .encode(&mut encoded);
    encoded
}

/// A file of random changes, applied to the model as well.
fn change(rng: &mut Lcg, model: &mut Model, rocks: &RocksShared, path: &Path) {
    let mut builder = DeltaBuilder::new();
    for _ in 0..300 {
        let region = 1 + rng.next(3) as u32;
        let encoded = key(region, rng.next(400));
        let parts = StateKey::decode(&encoded).unwrap();
        if rng.next(3) == 0 {
            builder.delete(parts);
            model.remove(&encoded);
        } else {
            let value = rng.next(1 << 30).to_le_bytes();
            builder.put(parts, &value);
            model.insert(encoded, value.to_vec());
        }
    }
    builder.write(rocks, path).unwrap();
}

fn scan_all(scan: &mut TierScan) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some((key, value)) = scan.next().unwrap() {
        found.push((key.to_vec(), value.to_vec()));
    }
    assert!(scan.next().unwrap().is_none(), "the end stays the end");
    found
}

fn with_prefix(model: &Model, prefix: &[u8], from: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let range = model.range(from.to_vec()..).filter(|(k, _)| k.starts_with(prefix));
    range.map(|(k, v)| (k.clone(), v.clone())).collect()
}

fn check(snapshot: &Arc<TierSnapshot>, model: &Model) {
    let mut scan = snapshot.scan(&region_prefix(1), None).unwrap();
    for region in 1..=3 {
        let prefix = region_prefix(region);
        scan.seek(&prefix, None).unwrap();
        assert_eq!(scan_all(&mut scan), with_prefix(model, &prefix, &prefix));
        let prefix = operator_prefix(region, 1);
        let from = key(region, 77);
        scan.seek(&prefix, Some(&from)).unwrap();
        assert_eq!(scan_all(&mut scan), with_prefix(model, &prefix, &from));
        // Before its prefix a start counts for nothing.
        let prefix = vnode_prefix(region, 1, 0, 3);
        scan.seek(&prefix, Some(&[0])).unwrap();
        assert_eq!(scan_all(&mut scan), with_prefix(model, &prefix, &prefix));
        for number in 0..37 {
            let long = key(region, number);
            for length in [PREFIX_BYTES, long.len()] {
                scan.seek(&long[..length], None).unwrap();
                assert_eq!(
                    scan_all(&mut scan),
                    with_prefix(model, &long[..length], &long[..length])
                );
            }
        }
    }
    let keys: Vec<Vec<u8>> = (0..900_u64).map(|i| key(1 + (i % 4) as u32, i * 7 % 450)).collect();
    let mut found: Vec<Option<Vec<u8>>> = vec![None; keys.len()];
    snapshot
        .get_many(&keys, &mut |i, value| {
            found[i] = Some(value.to_vec());
            Ok(())
        })
        .unwrap();
    for (key, found) in keys.iter().zip(found) {
        assert_eq!(found.as_ref(), model.get(key));
    }
}

#[test]
fn every_snapshot_shows_the_tier_as_it_was() {
    for compaction in [crate::rocks::Compaction::Universal, crate::rocks::Compaction::Levelled] {
        let dir = tempfile::tempdir().unwrap();
        let rocks = RocksShared::new(8 << 20).with_compaction(compaction);
        let tier = Tier::open(&rocks, &dir.path().join("tier")).unwrap();
        let mut rng = Lcg(7);
        let mut model = Model::new();
        let mut snapshots = vec![(tier.snapshot(), model.clone())];
        for round in 0..40 {
            let files: Vec<PathBuf> = (0..1 + rng.next(3))
                .map(|i| {
                    let path = dir.path().join(format!("{round}-{i}.sst"));
                    change(&mut rng, &mut model, &rocks, &path);
                    path
                })
                .collect();
            tier.ingest(&files).unwrap();
            assert!(files.iter().all(|f| f.exists()), "the files stay the caller's");
            if round == 25 {
                tier.drop_region(2).unwrap();
                model.retain(|k, _| k[3] != 2);
            }
            if round % 8 == 1 || round == 25 {
                snapshots.push((tier.snapshot(), model.clone()));
            }
        }
        for (snapshot, model) in &snapshots {
            check(snapshot, model);
        }
        check(&tier.snapshot(), &model);
        assert!(tier.stats().bytes > 0);
        // A scan outlives the tier's other owners.
        let mut scan = tier.snapshot().scan(&region_prefix(1), None).unwrap();
        drop(snapshots);
        drop(tier);
        assert_eq!(
            scan_all(&mut scan).len(),
            with_prefix(&model, &region_prefix(1), &region_prefix(1)).len()
        );
    }
}

#[test]
fn a_new_tier_is_empty_and_a_failed_ingestion_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let rocks = RocksShared::new(8 << 20);
    let path = dir.path().join("tier");
    let mut model = Model::new();
    let file = dir.path().join("a.sst");
    change(&mut Lcg(1), &mut model, &rocks, &file);
    {
        let tier = Tier::open(&rocks, &path).unwrap();
        tier.ingest(std::slice::from_ref(&file)).unwrap();
        check(&tier.snapshot(), &model);
    }
    let tier = Tier::open(&rocks, &path).unwrap();
    check(&tier.snapshot(), &Model::new());
    let broken = dir.path().join("b.sst");
    std::fs::write(&broken, b"no table").unwrap();
    tier.ingest(&[file, broken]).unwrap_err();
    check(&tier.snapshot(), &Model::new());
    assert_eq!(std::fs::read_dir(path.join("incoming")).unwrap().count(), 0);
}
