//! No circle of files in which each file uses an item of the next: such files can only be read and changed together.
//!
//! A file uses another one where a `use` or a path in its code names an item that the other file defines. Re-exports
//! are followed to the definition. `mod child;` and `pub use` use nothing by themselves. Code of tests is free.

mod crate_modules;

use std::collections::{BTreeMap, BTreeSet};

use crate::lint_violation::LintViolation;
use crate::workspace::Member;
use crate_modules::{CrateModules, Uses};

const RULE: &str = "circle";
const REMEDY: &str =
    "move the shared item to a file of its own, or pass a value in, or move the function to its data";

/// Findings for the sources of every member. `text` gives the text of a file, or `None` if there is no such file.
pub fn check<'a>(members: &[Member], text: impl Fn(&str) -> Option<&'a str>) -> Vec<LintViolation> {
    let mut findings = Vec::new();
    for member in members {
        let sources = format!("{}/src/", member.folder);
        for root in member.roots.iter().filter(|root| root.starts_with(&sources)) {
            let uses = CrateModules::read(root, &text).uses();
            findings.extend(circles(&uses).iter().map(|circle| finding(&sources, circle, &uses)));
        }
    }
    findings
}

/// The largest sets of files that reach each other, sorted, of two files or more.
fn circles(uses: &Uses) -> Vec<Vec<&str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|file| (file.as_str(), reached_from(file, uses))).collect();
    let mut circles = BTreeSet::new();
    for (file, reaches) in &reached {
        let back = |other: &&str| reached.get(other).is_some_and(|others| others.contains(file));
        let circle: Vec<&str> = reaches.iter().copied().filter(back).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The files that `file` uses, and those that they use, and so on.
fn reached_from<'a>(file: &'a str, uses: &'a Uses) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut waiting = vec![file];
    while let Some(file) = waiting.pop() {
        let next = uses.get(file).into_iter().flat_map(BTreeMap::keys);
        waiting.extend(next.map(String::as_str).filter(|file| reached.insert(*file)));
    }
    reached
}

fn finding(sources: &str, circle: &[&str], uses: &Uses) -> LintViolation {
    let short = |file: &str| file.strip_prefix(sources).unwrap_or(file).to_owned();
    let mut lines = Vec::new();
    let mut ties = Vec::new();
    for file in circle {
        let inside = uses[*file].iter().filter(|(other, _)| circle.contains(&other.as_str()));
        for (other, items) in inside {
            lines.extend(items.values().filter(|_| *file == circle[0]));
            let names: Vec<&str> = items.keys().map(String::as_str).collect();
            ties.push(format!("{} uses {} of {}", short(file), names.join(", "), short(other)));
        }
    }
    let line = lines.into_iter().copied().min().unwrap_or(1);
    let problem = format!("{} files use each other: {}", circle.len(), ties.join("; "));
    LintViolation::new(RULE, circle[0], line, problem, REMEDY)
}

#[cfg(test)]
mod tests;
