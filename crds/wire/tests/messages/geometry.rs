//! The report of an inspection.

use serde_json::json;
use sluice_wire::geometry::{
    Geometry, GeometryError, GeometryErrorKind, GeometryReport, MAX_BYTES, MAX_LAYERS, MAX_SIZE_BYTES,
    MAX_TOKEN_BYTES, MAX_TOKENS, VERSION,
};
use sluice_wire::message::ReadError;

use super::golden;

const GOLDEN: &str = include_str!("../golden/geometry-v1.json");

fn geometry() -> Geometry {
    Geometry {
        global_bytes: 524_288_000,
        layer_bytes: 436_224_000,
        layers: 32,
        kv_bytes_per_token: 131_072,
        max_model_len: 8192,
        activation_bytes: 3_145_728,
        step_activation_bytes: 67_108_864,
        thread_bytes: 1_835_008,
        staging_bytes: 0,
        download_bytes: Some(16_060_556_376),
    }
}

fn refusal(message: &str) -> GeometryError {
    GeometryError { reason: GeometryErrorKind::Unsupported, message: message.into() }
}

#[test]
fn a_geometry_is_written_and_read_as_committed() {
    golden::written_as(&GeometryReport::new(Ok(geometry())), GOLDEN);
    assert_eq!(GeometryReport::from_json(GOLDEN.as_bytes()).expect("golden"), Ok(geometry()));
}

#[test]
fn a_report_from_before_downloads_were_measured_is_read() {
    let mut old: serde_json::Value = serde_json::from_str(GOLDEN).expect("JSON");
    old["geometry"].as_object_mut().expect("an object").remove("download_bytes").expect("the field");
    let read = GeometryReport::from_json(old.to_string().as_bytes()).expect("a report");
    assert_eq!(read, Ok(Geometry { download_bytes: None, ..geometry() }));
}

#[test]
fn a_refusal_says_why_and_round_trips() {
    let text = GeometryReport::new(Err(refusal("config.json: no"))).to_json();
    let expected = r#"{"version":1,"refusal":{"reason":"Unsupported","message":"config.json: no"}}"#;
    assert_eq!(text, expected);
    assert_eq!(
        GeometryReport::from_json(text.as_bytes()).expect("a report"),
        Err(refusal("config.json: no"))
    );
}

#[test]
fn a_report_is_never_longer_than_the_kubelet_takes() {
    for long in ["x".repeat(9000), "\u{1}é".repeat(3000), "\"".repeat(MAX_BYTES)] {
        let text = GeometryReport::new(Err(refusal(&long))).to_json();
        assert!(text.len() <= MAX_BYTES && text.len() > MAX_BYTES - 64, "{} bytes", text.len());
        let Err(read) = GeometryReport::from_json(text.as_bytes()).expect("a report") else {
            panic!("a refusal")
        };
        assert!(long.starts_with(&read.message));
    }
}

#[test]
fn report_with_neither_or_both_or_impossible_values_is_refused() {
    let field =
        |text: &[u8]| GeometryReport::from_json(text).expect_err("no report").field().map(str::to_owned);
    assert_eq!(field(b"{\"version\":1}").as_deref(), Some("."));
    let both = golden::with(GOLDEN, "/refusal", json!({"reason": "Unreadable", "message": ""}));
    assert_eq!(field(&both).as_deref(), Some("."));
    let none = golden::with(GOLDEN, "/geometry/layers", json!(0));
    assert_eq!(field(&none).as_deref(), Some("geometry.layers"));
    for (name, most) in [
        ("layers", MAX_LAYERS),
        ("max_model_len", MAX_TOKENS),
        ("kv_bytes_per_token", MAX_TOKEN_BYTES),
        ("global_bytes", MAX_SIZE_BYTES),
        ("layer_bytes", MAX_SIZE_BYTES),
        ("activation_bytes", MAX_SIZE_BYTES),
        ("step_activation_bytes", MAX_SIZE_BYTES),
        ("thread_bytes", MAX_SIZE_BYTES),
        ("staging_bytes", MAX_SIZE_BYTES),
        ("download_bytes", MAX_SIZE_BYTES),
    ] {
        let with = |value: u64| golden::with(GOLDEN, &format!("/geometry/{name}"), json!(value));
        assert!(GeometryReport::from_json(&with(most)).is_ok(), "{name}");
        assert_eq!(field(&with(most + 1)), Some(format!("geometry.{name}")));
    }
    let newer = golden::with(GOLDEN, "/version", json!(VERSION + 1));
    assert!(matches!(GeometryReport::from_json(&newer), Err(ReadError::NewerVersion { .. })));
    assert_eq!(field(b"Killed"), None);
}
