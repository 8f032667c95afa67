//! The schema and the types take the same documents.

use super::super::document::to_object;
use super::super::schema::KINDS;
use super::*;

fn samples() -> Vec<Value> {
    let map = |key: &str| {
        let (key, at, node) = (key.to_owned(), Position::default(), node(Value::Str("x".into())));
        Value::Map(vec![Entry { key, at, node, repeated: false }])
    };
    vec![
        Value::Null,
        Value::Bool(true),
        Value::Int(1),
        Value::Int(-1),
        Value::Int(1 << 40),
        Value::Float(1.5),
        Value::Str("x".into()),
        Value::Str("1500m".into()),
        Value::Str("1Mi".into()),
        Value::Str("Temporal".into()),
        Value::Seq(Vec::new()),
        Value::Seq(vec![node(Value::Int(1))]),
        Value::Map(Vec::new()),
        map("x"),
        map("name"),
    ]
}

fn node(value: Value) -> Node {
    Node::new(Position::default(), value)
}

/// `node` with `value` at `steps`, and around it whatever is required.
fn put(schema: &Schema, node: &mut Node, steps: &[String], value: &Value) {
    let Some((step, rest)) = steps.split_first() else {
        node.value = value.clone();
        return;
    };
    let at = Position::default();
    match &mut node.value {
        Value::Seq(items) => {
            items.truncate(1);
            if items.is_empty() {
                items.push(placeholder(&schema["items"], at));
            }
            put(&schema["items"], &mut items[0], rest, value);
        }
        Value::Map(entries) => {
            let inner = &schema["properties"][step];
            if !entries.iter().any(|entry| entry.key == *step) {
                let node = placeholder(inner, at);
                entries.push(Entry { key: step.clone(), at, node, repeated: false });
            }
            let entry = entries.iter_mut().find(|entry| entry.key == *step).unwrap();
            put(inner, &mut entry.node, rest, value);
        }
        other => panic!("{steps:?} leads into {other:?}"),
    }
}

#[test]
fn schema_and_types_accept_same_values_for_every_field() {
    let mut refused = 0;
    for kind in KINDS.map(|kind| KindSchema::of(kind).unwrap()) {
        for field in &kind.fields {
            let steps: Vec<String> = field.within.iter().chain([&field.name]).cloned().collect();
            for sample in samples() {
                let mut root = placeholder(&kind.root, Position::default());
                put(&kind.root, &mut root, &steps, &sample);
                let checked = check(kind, &root);
                let read = to_object(kind.kind, &root);
                let what = format!("{} {steps:?} {sample:?}", kind.kind);
                assert_eq!(checked.faults.is_empty(), read.is_ok(), "{what}: {:?} {read:?}", checked.faults);
                assert_eq!(checked.faults.is_empty(), checked.unread.is_empty(), "{what}");
                // The rest of the document is an object.
                let mended = to_object(kind.kind, &checked.root);
                assert!(mended.is_ok(), "{what}: {mended:?}");
                refused += usize::from(read.is_err());
            }
        }
    }
    assert!(refused > 500, "{refused}");
}
