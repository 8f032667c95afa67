//! Samples that the edge rule must catch, and the tree of today, which it must let pass.

use super::super::table::TABLE;
use super::check;
use crate::workspace::{Dependency, Member};

fn edge(name: &str) -> Dependency {
    Dependency { name: name.to_owned(), key: name.to_owned(), ..Dependency::default() }
}

fn member(name: &str, dependencies: Vec<Dependency>) -> Member {
    Member {
        name: name.to_owned(),
        manifest: format!("{name}/Cargo.toml"),
        dependencies,
        ..Member::default()
    }
}

/// The problems of `name` with these dependencies, among members with the names of the whole table.
fn problems(name: &str, dependencies: Vec<Dependency>) -> Vec<String> {
    let mut members: Vec<_> = TABLE.iter().map(|row| member(row.name, vec![])).collect();
    members.retain(|other| other.name != name);
    members.push(member(name, dependencies));
    check(&members, &TABLE, |_| "").into_iter().map(|finding| finding.problem).collect()
}

#[test]
fn an_edge_of_the_table_passes() {
    assert!(problems("sluice-scheduler", vec![edge("sluice-policy"), edge("sluice-ports")]).is_empty());
    assert!(
        problems("sluice-agent", vec![edge("tokio"), edge("tokio-stream"), edge("sluice-wire")]).is_empty()
    );
}

#[test]
fn a_library_that_no_one_guards_is_free() {
    assert!(problems("sluice-scheduler", vec![edge("thiserror"), edge("serde")]).is_empty());
}

#[test]
fn an_edge_that_the_row_does_not_name_is_refused() {
    assert_eq!(
        problems("sluice-ports", vec![edge("sluice-scheduler")]),
        ["sluice-ports may not depend on sluice-scheduler"]
    );
    assert_eq!(problems("sluice-wire", vec![edge("rustix")]), ["sluice-wire may not depend on rustix"]);
}

#[test]
fn the_never_column_covers_the_whole_family() {
    assert_eq!(
        problems("sluice-link", vec![edge("tokio-util")]),
        ["sluice-link must never depend on tokio-util"]
    );
    assert_eq!(
        problems("sluice-agent", vec![edge("kube-runtime")]),
        ["sluice-agent must never depend on kube-runtime"]
    );
    assert_eq!(
        problems("sluice-kernels", vec![edge("sluice-policy")]),
        ["sluice-kernels must never depend on sluice-policy"]
    );
}

#[test]
fn the_policy_crate_has_no_dependency_but_the_common_crate_not_even_a_free_one() {
    assert_eq!(
        problems("sluice-policy", vec![edge("sluice-common"), edge("libm")]),
        ["sluice-policy depends on libm, but must have no dependency except sluice-common"]
    );
    assert_eq!(problems("sluice-common", vec![edge("libm"), edge("sluice-policy")]).len(), 2);
}

#[test]
fn the_kinds_use_kube_without_its_client() {
    let derive = Dependency { features: vec!["derive".to_owned()], ..edge("kube") };
    assert!(problems("sluice-types", vec![derive.clone()]).is_empty());
    let client = Dependency { features: vec!["client".to_owned()], ..derive.clone() };
    assert_eq!(
        problems("sluice-types", vec![client]),
        ["sluice-types may not use kube's client, but asks for its feature `client`"]
    );
    let default = Dependency { default_features: true, ..derive };
    assert_eq!(problems("sluice-types", vec![default]).len(), 1);
}

#[test]
fn a_crate_without_a_row_is_refused() {
    assert_eq!(problems("sluice-new", vec![]), ["sluice-new has no row in the edge table"]);
}

#[test]
fn a_finding_points_at_the_line_of_the_dependency() {
    let members = [member("sluice-wire", vec![edge("kube")])];
    let manifest =
        "[package]\nname = \"x\"\n\n[dependencies]\nserde.workspace = true\nkube.workspace = true\n";
    let findings = check(&members, &TABLE, |_| manifest);
    assert_eq!((findings[0].file.as_str(), findings[0].line), ("sluice-wire/Cargo.toml", 6));
}
