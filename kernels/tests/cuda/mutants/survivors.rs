//! The committed list of mutants that survive.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// The variable that makes the nightly test write the list instead of comparing it.
pub const WRITE: &str = "SLUICE_WRITE_SURVIVORS";

/// What is written for a survivor whose reason is not known yet. No committed one may have it.
const UNEXPLAINED: &str = "UNEXPLAINED";

/// Names of mutants by the reason for which no case can catch them. A paragraph of the file is a reason, in lines that
/// begin with `#`, and the names that it holds for.
pub struct Survivors {
    by_reason: BTreeMap<String, BTreeSet<String>>,
}

impl Survivors {
    /// The list of the repository.
    pub fn committed() -> Self {
        let mut by_reason: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        let text = std::fs::read_to_string(path()).unwrap();
        for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
            let (reason, names): (Vec<_>, Vec<_>) = paragraph.lines().partition(|line| line.starts_with('#'));
            let reason =
                reason.iter().map(|line| line.trim_start_matches(['#', ' '])).collect::<Vec<_>>().join("\n");
            by_reason.entry(reason).or_default().extend(names.into_iter().map(str::to_owned));
        }
        Survivors { by_reason }
    }

    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.by_reason.values().flatten()
    }

    /// With `found` in place of all names that `ran`. Names that are new have no reason yet.
    pub fn replace(mut self, ran: impl Fn(&str) -> bool, mut found: BTreeSet<String>) -> Self {
        for names in self.by_reason.values_mut() {
            names.retain(|name| !ran(name) || found.remove(name));
        }
        self.by_reason.entry(UNEXPLAINED.to_owned()).or_default().extend(found);
        self.by_reason.retain(|_, names| !names.is_empty());
        self
    }

    /// Writes the list.
    pub fn write(&self) {
        let paragraph = |(reason, names): (&String, &BTreeSet<String>)| {
            let lines = reason
                .lines()
                .map(|line| format!("# {line}\n"))
                .chain(names.iter().map(|name| format!("{name}\n")));
            lines.collect::<String>()
        };
        let text = self.by_reason.iter().map(paragraph).collect::<Vec<_>>().join("\n");
        std::fs::write(path(), text).unwrap();
    }

    /// Every name has a reason.
    pub fn check_reasons(&self) {
        for (reason, names) in &self.by_reason {
            assert!(!reason.is_empty() && reason != UNEXPLAINED, "no reason for {names:?}");
        }
    }
}

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/mutants/survivors.txt")
}
