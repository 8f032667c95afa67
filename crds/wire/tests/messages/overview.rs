//! The operator's overview.

use serde_json::json;
use sluice_wire::message::ReadError;
use sluice_wire::overview::{GpuOverview, Overview, VERSION};
use sluice_wire::state::TenantReport;

use super::golden;

const GOLDEN: &str = include_str!("../golden/overview-v2.json");
const V1: &str = include_str!("../golden/overview-v1.json");

fn overview() -> Overview {
    let silent = TenantReport::Unreachable {
        namespace: "team".into(),
        name: "code".into(),
        reason: "no answer within 2 s".into(),
    };
    let read = GpuOverview {
        namespace: "team".into(),
        pool: "gh200".into(),
        name: "gh200-chat-0".into(),
        node: Some("node-1".into()),
        read_unix_ms: Some(1_700_000_000_000),
        problem: None,
        tenants: vec![silent],
    };
    let unread = GpuOverview {
        name: "gh200-chat-1".into(),
        node: None,
        read_unix_ms: None,
        problem: Some("no sidecar of it is ready".into()),
        tenants: Vec::new(),
        ..read.clone()
    };
    Overview {
        version: VERSION,
        at_unix_ms: 1_700_000_000_500,
        operator: "0.1.0".into(),
        gpus: vec![read, unread],
    }
}

#[test]
fn the_overview_is_written_and_read_as_committed() {
    golden::written_as(&overview(), GOLDEN);
    assert_eq!(Overview::from_json(GOLDEN.as_bytes()).expect("golden"), overview());
    let older = Overview { version: 1, ..overview() };
    assert_eq!(Overview::from_json(V1.as_bytes()).expect("golden"), older);
}

#[test]
fn a_newer_overview_is_refused_for_being_newer_and_added_fields_are_ignored() {
    let newer = golden::with(GOLDEN, "/version", json!(3));
    assert!(matches!(Overview::from_json(&newer), Err(ReadError::NewerVersion { version: 3, known: 2 })));
    let more = golden::with(GOLDEN, "/gpus/0/colour", json!("red"));
    assert_eq!(Overview::from_json(&more).expect("a field more"), overview());
}
