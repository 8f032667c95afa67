//! Comparing with what is committed.

use serde::Serialize;

/// Checks that `value` is written as `committed`.
#[track_caller]
pub fn written_as(value: &impl Serialize, committed: &str) {
    let written = serde_json::to_string_pretty(value).expect("it serialises");
    assert_eq!(written.trim(), committed.trim());
}

/// The committed text with one field set to another value. The path is that of a JSON pointer.
#[track_caller]
pub fn with(committed: &str, pointer: &str, value: serde_json::Value) -> Vec<u8> {
    let mut json: serde_json::Value = serde_json::from_str(committed).expect("committed JSON");
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    let parent = json.pointer_mut(parent).unwrap_or_else(|| panic!("nothing at {parent}"));
    match parent {
        serde_json::Value::Array(list) => list[name.parse::<usize>().expect("an index")] = value,
        parent => parent[name] = value,
    }
    json.to_string().into_bytes()
}

/// The committed text without one field.
#[track_caller]
pub fn without(committed: &str, pointer: &str) -> Vec<u8> {
    let mut json: serde_json::Value = serde_json::from_str(committed).expect("committed JSON");
    let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
    let parent = json.pointer_mut(parent).and_then(|parent| parent.as_object_mut()).expect("an object");
    assert!(parent.remove(name).is_some(), "nothing at {pointer}");
    json.to_string().into_bytes()
}
