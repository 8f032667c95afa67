//! Chains to kube that the rule must find, and those that it must not invent.

use super::{parse_lock, path_in_tree, path_to_kube, verdict, without_dev_edges};
use crate::lint_violation::LintViolation;
use crate::workspace::{Dependency, Member};

const LOCK: &str = r#"version = 4

[[package]]
name = "sluice-agent"
version = "0.1.0"
dependencies = [
 "helper 1.0.0",
 "tempfile",
]

[[package]]
name = "helper"
version = "1.0.0"
source = "registry"
dependencies = [
 "middle",
]

[[package]]
name = "helper"
version = "2.0.0"

[[package]]
name = "middle"
version = "1.0.0"
dependencies = [
 "kube-core",
]

[[package]]
name = "kube-core"
version = "5.0.0"
"#;

fn agent(dependencies: &[&str]) -> Member {
    let edge = |name: &&str| Dependency {
        name: (*name).to_owned(),
        key: (*name).to_owned(),
        ..Dependency::default()
    };
    Member {
        name: "sluice-agent".to_owned(),
        manifest: "sidecar/agent/Cargo.toml".to_owned(),
        dependencies: dependencies.iter().map(edge).collect(),
        ..Member::default()
    }
}

#[test]
fn a_chain_to_kube_is_found_through_several_crates() {
    let path = path_to_kube(&parse_lock(LOCK), "sluice-agent");
    assert_eq!(path.expect("there is one"), ["sluice-agent", "helper", "middle", "kube-core"]);
}

#[test]
fn a_chain_that_begins_with_a_dev_dependency_is_none() {
    let members = [agent(&["tempfile"])];
    assert_eq!(path_to_kube(&without_dev_edges(parse_lock(LOCK), &members), "sluice-agent"), None);
    let members = [agent(&["helper"])];
    assert!(path_to_kube(&without_dev_edges(parse_lock(LOCK), &members), "sluice-agent").is_some());
}

#[test]
fn a_cycle_ends_the_search() {
    let lock = "[[package]]\nname = \"a\"\ndependencies = [\n \"b\",\n]\n[[package]]\nname = \"b\"\ndependencies = [\n \"a\",\n]\n";
    assert_eq!(path_to_kube(&parse_lock(lock), "a"), None);
}

#[test]
fn the_printed_tree_of_one_crate_gives_the_path() {
    let tree =
        "0sluice-agent v0.1.0 (x)\n1anyhow v1.0.0\n1helper v1.0.0\n2other v1.0.0\n2kube-core v5.0.0 (*)\n";
    assert_eq!(path_in_tree(tree).expect("there is one"), ["sluice-agent", "helper", "kube-core"]);
    assert_eq!(path_in_tree("0sluice-agent v0.1.0\n1kubernetes-like v1.0.0\n"), None);
}

/// The verdict on an agent that by the lock file reaches kube through `helper`.
fn agent_verdict(tree: Result<&str, &str>) -> Option<LintViolation> {
    let manifest = "[dependencies]\nanyhow.workspace = true\nhelper.workspace = true\n";
    let path = ["sluice-agent", "helper", "kube-core"].map(str::to_owned);
    verdict(&agent(&["helper"]), manifest, &path, tree.map(str::to_owned).map_err(str::to_owned))
}

#[test]
fn a_finding_points_at_the_first_edge_of_the_chain() {
    let tree = "0sluice-agent v0.1.0\n1helper v1.0.0\n2kube v5.0.0\n";
    let finding = agent_verdict(Ok(tree)).expect("confirmed");
    assert_eq!(finding.line, 3);
    assert_eq!(finding.problem, "sluice-agent reaches kube: sluice-agent -> helper -> kube");
}

#[test]
fn a_chain_that_only_the_features_of_a_sibling_make_is_acquitted() {
    assert_eq!(agent_verdict(Ok("0sluice-agent v0.1.0\n1helper v1.0.0\n")), None);
}

#[test]
fn a_suspicion_stands_where_the_tree_cannot_be_read() {
    let finding = agent_verdict(Err("error:\n  offline")).expect("it stands");
    assert!(finding.problem.contains("helper -> kube-core (by Cargo.lock"), "{}", finding.problem);
    assert!(finding.problem.ends_with("error: offline)"), "{}", finding.problem);
}
