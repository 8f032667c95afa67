//! Crates of the pod never reach kube, through any chain of normal and build dependencies.
//!
//! Cargo.lock holds every edge of every platform and of every feature that any member requests. So if no path in it
//! leads to kube, there is none. If one does, it may exist only because a sibling's features were counted in; the
//! caller then runs `cargo tree` for that crate alone, and [`path_in_tree`] reads the output.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::manifest::dependency_line;
use super::table::belongs;
use crate::lint_violation::LintViolation;
use crate::workspace::Member;

/// Name of a package to the names of what it depends on. Versions of one name are taken together.
pub type Graph = BTreeMap<String, BTreeSet<String>>;

/// The packages of a lock file. `lock` is the text of Cargo.lock.
pub fn parse_lock(lock: &str) -> Graph {
    let mut graph = Graph::new();
    for package in lock.split("[[package]]").skip(1) {
        let value =
            |line: &str| line.split('"').nth(1).map(|text| text.split(' ').next().unwrap_or(text).to_owned());
        let name = package.lines().find(|line| line.starts_with("name = ")).and_then(value);
        let edges = package.lines().filter(|line| line.starts_with(" \"")).filter_map(value);
        if let Some(name) = name {
            graph.entry(name).or_default().extend(edges);
        }
    }
    graph
}

/// Returns `graph` without the dev-dependencies of the members: the lock file does not distinguish them.
pub fn without_dev_edges(mut graph: Graph, members: &[Member]) -> Graph {
    for member in members {
        let counted = member.dependencies.iter().map(|edge| edge.name.clone()).collect();
        graph.insert(member.name.clone(), counted);
    }
    graph
}

/// A shortest path from `start` to a package of the kube family, both ends included.
pub fn path_to_kube(graph: &Graph, start: &str) -> Option<Vec<String>> {
    let mut paths = VecDeque::from([vec![start.to_owned()]]);
    let mut seen = BTreeSet::from([start.to_owned()]);
    while let Some(path) = paths.pop_front() {
        let last = path.last()?;
        if belongs(last, "kube") {
            return Some(path);
        }
        for next in graph.get(last).into_iter().flatten() {
            if seen.insert(next.clone()) {
                paths.push_back(path.iter().chain([next]).cloned().collect());
            }
        }
    }
    None
}

/// The first path to kube in what `cargo tree --prefix depth --format {p}` printed.
pub fn path_in_tree(tree: &str) -> Option<Vec<String>> {
    let mut path: Vec<String> = Vec::new();
    for line in tree.lines() {
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(depth) = line[..digits].parse::<usize>() else { continue };
        path.truncate(depth);
        path.push(line[digits..].split(' ').next()?.to_owned());
        if path.last().is_some_and(|name| belongs(name, "kube")) {
            return Some(path);
        }
    }
    None
}

/// The finding for `member`, which by the lock file reaches kube by `path`, unless `tree` acquits it.
///
/// `manifest` is the text of its manifest, `tree` what `cargo tree` printed for it alone, or why it could not. Without
/// that answer the suspicion stands: a tree that cannot be read is not a clean one.
pub fn verdict(
    member: &Member,
    manifest: &str,
    path: &[String],
    tree: Result<String, String>,
) -> Option<LintViolation> {
    let (path, doubt) = match tree {
        Ok(tree) => (path_in_tree(&tree)?, String::new()),
        Err(error) => {
            let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
            (path.to_vec(), format!(" (by Cargo.lock; cargo tree failed for this crate: {error})"))
        }
    };
    let first = path.get(1).map_or("", String::as_str);
    let key = member.dependencies.iter().find(|edge| edge.name == first).map_or(first, |edge| &edge.key);
    let problem = format!("{} reaches kube: {}{doubt}", member.name, path.join(" -> "));
    Some(LintViolation::new(
        "reach",
        &member.manifest,
        dependency_line(manifest, key),
        problem,
        "remove one dependency of the chain",
    ))
}

#[cfg(test)]
mod tests;
