//! I6: an arrow between crates that the architecture does not have fails here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Who may use whom, outside of tests.
const ALLOWED: &[(&str, &[&str])] = &[
    ("planner", &[]),
    ("storage", &[]),
    ("runtime", &["planner", "storage"]),
    // The server names the planner's statements and storage's errors, both of which the runtime's interface carries.
    ("server", &["planner", "runtime", "storage"]),
    ("sql-tests", &["planner", "runtime", "server", "storage"]),
    ("benchmarks", &["planner", "runtime", "server", "storage"]),
];

/// Third-party crates that belong to one layer only.
const RESERVED: &[(&str, &[&str])] = &[
    ("pgwire", &["server"]),
    ("axum", &["server"]),
    ("clap", &["server", "benchmarks"]),
    ("sqlparser", &["planner", "server"]),
    ("rocksdb", &["storage"]),
    ("object_store", &["storage", "runtime"]),
    ("rdkafka", &["runtime", "benchmarks", "sql-tests"]),
    ("tokio", &["storage", "runtime", "server", "sql-tests", "benchmarks"]),
];

fn manifest(dir: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(dir)
        .join("Cargo.toml");
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Names in the dependency tables of a manifest (`[dependencies]`, `[build-dependencies]`, `[target.….dependencies]` and the
/// `[dependencies.NAME]` form); test-only ones if `dev`.
fn dependencies(text: &str, dev: bool) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')) {
            let is_dev = table.contains("dev-dependencies");
            let parts: Vec<&str> = table.split('.').collect();
            let at = parts.iter().position(|p| p.ends_with("dependencies"));
            inside = at == Some(parts.len() - 1) && is_dev == dev;
            if let Some(at) = at
                && at + 1 < parts.len()
                && is_dev == dev
            {
                found.insert(parts[at + 1].to_string());
            }
            continue;
        }
        if inside && let Some((name, _)) = line.split_once('=') {
            found.insert(name.trim().split('.').next().unwrap_or_default().to_string());
        }
    }
    found
}

#[test]
fn no_new_arrow_between_crates() {
    let root = manifest(".");
    let members = root
        .lines()
        .find_map(|l| l.strip_prefix("members = ["))
        .expect("workspace members on one line")
        .trim_end_matches(']');
    let members: BTreeSet<&str> = members.split(',').map(|m| m.trim().trim_matches('"')).collect();
    let known: BTreeSet<&str> = ALLOWED.iter().map(|(name, _)| *name).collect();
    assert_eq!(
        members, known,
        "a new crate needs its place in docs/architecture.md and here"
    );
    let mut wrong = Vec::new();
    for (name, allowed) in ALLOWED {
        for dependency in dependencies(&manifest(name), false) {
            if let Some(to) = dependency.strip_prefix("levee-")
                && !allowed.contains(&to)
            {
                wrong.push(format!("{name} → {to}"));
            }
            if let Some((_, owners)) = RESERVED.iter().find(|(n, _)| *n == dependency)
                && !owners.contains(name)
            {
                wrong.push(format!("{name} uses {dependency}"));
            }
        }
    }
    assert!(wrong.is_empty(), "new arrows: {}", wrong.join(", "));
}

#[test]
fn the_reader_of_manifests_sees_every_form() {
    let text = "[dependencies]\na = \"1\"\nb.workspace = true\n[dependencies.c]\npath = \"x\"\n[target.'cfg(unix)'.dependencies]\nd = \"1\"\n[dev-dependencies]\ne = \"1\"\n";
    let names = |dev| dependencies(text, dev).into_iter().collect::<Vec<_>>().join("");
    assert_eq!(names(false), "abcd");
    assert_eq!(names(true), "e");
}

/// Source files below a directory, test files left out.
fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("source directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// What an operator emits depends on its state and its input only.
#[test]
fn operators_and_planner_read_no_clock_and_no_random_number() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    sources(&root.join("runtime/src/operators"), &mut files);
    sources(&root.join("planner/src"), &mut files);
    assert!(files.len() > 20, "the operators have moved: name their directory here");
    let mut wrong = Vec::new();
    for path in files {
        let text = std::fs::read_to_string(&path).expect("source file");
        for banned in [
            "Instant::now",
            "SystemTime::now",
            "rand::rng",
            "thread_rng",
            "RandomState::new",
            "tokio::",
        ] {
            if text.contains(banned)
                && !path
                    .components()
                    .any(|c| c.as_os_str().to_string_lossy().contains("test"))
            {
                wrong.push(format!("{}: {banned}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
