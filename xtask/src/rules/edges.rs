//! Direct edges between our crates, and to the guarded libraries, follow the table.

use super::manifest::dependency_line;
use super::table::{COMMON, GUARDED, KUBE_WITHOUT_CLIENT, Row, belongs};
use crate::lint_violation::LintViolation;
use crate::workspace::{Dependency, Member};

const RULE: &str = "edge";
const REMEDY: &str = "remove the dependency, or change xtask/src/rules/table.rs and ARCHITECTURE.md and \
                      give the reason";

/// Findings for every member of the workspace. `manifest` gives the text of a member's manifest.
pub fn check<'a>(
    members: &'a [Member],
    table: &[Row],
    manifest: impl Fn(&'a Member) -> &'a str,
) -> Vec<LintViolation> {
    members.iter().flat_map(|member| check_member(member, members, table, manifest(member))).collect()
}

fn check_member(member: &Member, members: &[Member], table: &[Row], manifest: &str) -> Vec<LintViolation> {
    let Some(row) = table.iter().find(|row| row.name == member.name) else {
        return vec![no_row(member)];
    };
    let mut findings = Vec::new();
    for edge in &member.dependencies {
        let ours = members.iter().any(|other| other.name == edge.name);
        if let Some(problem) = verdict(row, edge, ours) {
            findings.push(LintViolation::new(
                RULE,
                &member.manifest,
                dependency_line(manifest, &edge.key),
                problem,
                REMEDY,
            ));
        }
    }
    findings
}

fn no_row(member: &Member) -> LintViolation {
    let problem = format!("{} has no row in the edge table", member.name);
    LintViolation::new(
        RULE,
        &member.manifest,
        1,
        problem,
        "add one to xtask/src/rules/table.rs and to ARCHITECTURE.md",
    )
}

/// Why `edge` is forbidden, or `None` if it is not. `ours`: the dependency is a member of the workspace.
fn verdict(row: &Row, edge: &Dependency, ours: bool) -> Option<String> {
    let Row { name, may, never, .. } = row;
    let dependency = &edge.name;
    let guarded = ours || GUARDED.iter().any(|family| belongs(dependency, family));
    if dependency == COMMON {
        None
    } else if row.standalone {
        Some(format!("{name} depends on {dependency}, but must have no dependency except {COMMON}"))
    } else if never.iter().any(|family| belongs(dependency, family)) {
        Some(format!("{name} must never depend on {dependency}"))
    } else if guarded && !may.iter().any(|family| belongs(dependency, family)) {
        Some(format!("{name} may not depend on {dependency}"))
    } else if row.kube_without_client && dependency == "kube" {
        client_feature(edge)
            .map(|feature| format!("{name} may not use kube's client, but asks for {feature}"))
    } else {
        None
    }
}

/// What in the declaration of `kube` may bring its client.
fn client_feature(edge: &Dependency) -> Option<String> {
    if edge.default_features {
        return Some("its default features".to_owned());
    }
    let needs_client = |feature: &&String| !KUBE_WITHOUT_CLIENT.contains(&feature.as_str());
    edge.features.iter().find(needs_client).map(|feature| format!("its feature `{feature}`"))
}

#[cfg(test)]
mod tests;
