//! Checks a document against the schema of its kind: finds every field that is unknown, missing or of another type.

use serde_json::Value as Schema;

use super::hint::{self, FieldHint, Hint};
use super::problem::Problem;
use super::schema::KindSchema;
use super::spanned_tree::{Entry, Fault, Node, Position, Value};
use super::unread::UnreadParts;
use super::{Path, de};
use crate::{CpuQuantity, Quantity};

/// The result of a check.
#[derive(Debug)]
pub(super) struct CheckedDocument {
    /// The document without its mistakes: it reads into the types. A placeholder stands where a required value is wrong
    /// or missing.
    pub root: Node,
    /// Where `root` differs from the document.
    pub unread: UnreadParts,
    /// Every mistake.
    pub faults: Vec<Fault>,
}

/// Checks a document of this kind.
pub(super) fn check(kind: &KindSchema, root: &Node) -> CheckedDocument {
    let mut checker =
        Checker { kind, faults: Vec::new(), unread: UnreadParts::default(), suggested: Vec::new() };
    let path = Path::default();
    let value = checker.value(&kind.root, root, &path, root.at, true);
    let root = value.unwrap_or_else(|| placeholder(&kind.root, root.at));
    let Checker { mut faults, unread, suggested, .. } = checker;
    // A misspelt or misplaced field is one mistake: it is not missing as well.
    let is_suggested = |path: &Path| suggested.iter().any(|suggested| suggested.starts_with(path));
    faults.retain(|fault| !matches!(fault.problem, Problem::MissingField) || !is_suggested(&fault.path));
    CheckedDocument { root, unread, faults }
}

struct Checker<'a> {
    kind: &'a KindSchema,
    faults: Vec<Fault>,
    unread: UnreadParts,
    /// Fields that hints for unknown fields name.
    suggested: Vec<Path>,
}

impl Checker<'_> {
    fn fault(&mut self, at: Position, path: &Path, problem: Problem) {
        self.faults.push(Fault { at, path: path.clone(), problem });
    }

    /// The value, with mistakes inside it replaced or left out; `None` = the value itself is a mistake. `at` is where
    /// its field or item begins.
    fn value(
        &mut self,
        schema: &Schema,
        node: &Node,
        path: &Path,
        at: Position,
        required: bool,
    ) -> Option<Node> {
        if node.open {
            self.unread.add_mapping(path.clone());
        }
        let value = match (&node.value, schema["type"].as_str()) {
            (Value::Unknown, _) => None,
            (Value::Null, _) if takes_null(schema) && !required => Some(node.clone()),
            (Value::Map(entries), Some("object")) => Some(self.mapping(schema, node, entries, path, at)),
            (Value::Seq(items), Some("array")) => Some(self.sequence(schema, node, items, path)),
            _ => match scalar(schema, node) {
                Ok(()) => Some(node.clone()),
                Err(problem) => {
                    self.fault(at, path, problem);
                    None
                }
            },
        };
        if value.is_none() {
            self.unread.add_value(path.clone());
        }
        value
    }

    fn sequence(&mut self, schema: &Schema, node: &Node, items: &[Node], path: &Path) -> Node {
        let mut kept = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let value = self.value(&schema["items"], item, &path.index(index), item.at, true);
            // Every item keeps its index.
            kept.push(value.unwrap_or_else(|| placeholder(&schema["items"], item.at)));
        }
        Node { at: node.at, value: Value::Seq(kept), open: node.open }
    }

    fn mapping(
        &mut self,
        schema: &Schema,
        node: &Node,
        entries: &[Entry],
        path: &Path,
        at: Position,
    ) -> Node {
        let required = schema["required"].as_array().into_iter().flatten();
        let required: Vec<&str> = required.filter_map(Schema::as_str).collect();
        let mut kept = Vec::new();
        for entry in entries {
            let field = path.key(&entry.key);
            let Some(property) = property(schema, &entry.key) else {
                self.unknown(schema, entry, path);
                continue;
            };
            if entry.repeated {
                // Either value may be the intended one: the first stays, and fields may be in the other.
                self.unread.add_value(field.clone());
                let repeated = Node { open: true, ..entry.node.clone() };
                self.value(property, &repeated, &field, entry.at, false);
                continue;
            }
            let is_required = required.contains(&entry.key.as_str());
            let value = self.value(property, &entry.node, &field, entry.at, is_required);
            if let Some(node) = value {
                kept.push(Entry { node, ..entry.clone() });
            }
        }
        for key in required {
            if kept.iter().any(|entry: &Entry| entry.key == key) {
                continue;
            }
            let field = path.key(key);
            if !node.open && node.entry(key).is_none() {
                self.fault(at, &field, Problem::MissingField);
            }
            self.unread.add_value(field);
            let node = placeholder(&schema["properties"][key], at);
            kept.push(Entry { key: key.to_owned(), at, node, repeated: false });
        }
        Node { at: node.at, value: Value::Map(kept), open: node.open }
    }

    fn unknown(&mut self, schema: &Schema, entry: &Entry, path: &Path) {
        let names = schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
        let (mut suggestions, mut other_kind) = (Vec::new(), None);
        match hint::suggest(self.kind, schema, path, &entry.key) {
            Hint::Fields(fields) => {
                for FieldHint { text, path } in fields {
                    suggestions.push(text);
                    self.unread.add_value(path.clone());
                    self.suggested.push(path);
                }
            }
            Hint::OtherKind(kind) => other_kind = Some(kind),
            Hint::None => self.unread.add_mapping(path.clone()),
        }
        let problem = Problem::UnknownField { expected: names.collect(), suggestions, other_kind };
        self.fault(entry.at, &path.key(&entry.key), problem);
    }
}

/// The schema of the field `key`; `None` = the kind has no such field.
fn property<'a>(schema: &'a Schema, key: &str) -> Option<&'a Schema> {
    let named = schema["properties"].get(key);
    named.or_else(|| schema.get("additionalProperties").filter(|others| others.is_object()))
}

/// Whether null means the same as leaving the field out. An optional enumeration without a default is not `nullable` in
/// the CRDs, and the API server leaves its null out.
fn takes_null(schema: &Schema) -> bool {
    schema["nullable"] == true || (schema["enum"].is_array() && schema.get("default").is_none())
}

/// Checks a value against the schema of a scalar. A value of another shape is an error too.
fn scalar(schema: &Schema, node: &Node) -> Result<(), Problem> {
    if schema["x-kubernetes-int-or-string"] == true {
        return quantity(schema, node);
    }
    if let Some(known) = schema["enum"].as_array() {
        let known: Vec<&str> = known.iter().filter_map(Schema::as_str).collect();
        return one_of(&known, node);
    }
    match (schema["type"].as_str(), &node.value) {
        (Some("integer"), Value::Int(number)) if i32::try_from(*number).is_err() => {
            let problem = format!("value out of range: found integer `{number}`, expected {INTEGER}");
            Err(Problem::Value(problem))
        }
        (Some("integer"), Value::Int(_))
        | (Some("boolean"), Value::Bool(_))
        | (Some("string"), Value::Str(_)) => Ok(()),
        (Some("integer"), _) => Err(wrong_type(node, INTEGER)),
        (Some("boolean"), _) => Err(wrong_type(node, "a boolean")),
        (Some("string"), _) => Err(wrong_type(node, "a string")),
        (Some("array"), _) => Err(wrong_type(node, "a sequence")),
        (Some("object"), _) => Err(wrong_type(node, "a mapping")),
        (other, _) => unreachable!("the CRDs have no values of type {other:?}"),
    }
}

const INTEGER: &str = "an integer of 32 bits";

fn one_of(known: &[&str], node: &Node) -> Result<(), Problem> {
    let Value::Str(text) = &node.value else {
        return Err(wrong_type(node, &format!("one of {}", super::list(known))));
    };
    if known.contains(&text.as_str()) { Ok(()) } else { Err(unknown_value(known, text)) }
}

/// `text` is none of `known`.
pub(super) fn unknown_value(known: &[&str], text: &str) -> Problem {
    Problem::UnknownValue {
        found: text.to_owned(),
        expected: known.iter().map(ToString::to_string).collect(),
        suggestion: hint::closest(text, known.iter().copied()).map(ToOwned::to_owned),
    }
}

fn quantity(schema: &Schema, node: &Node) -> Result<(), Problem> {
    let text = match &node.value {
        Value::Str(text) => text.clone(),
        Value::Int(number) => number.to_string(),
        _ => return Err(wrong_type(node, "a quantity (a string, or an integer)")),
    };
    let read = match schema["pattern"].as_str() {
        Some(Quantity::PATTERN) => text.parse::<Quantity>().map(drop),
        Some(CpuQuantity::PATTERN) => text.parse::<CpuQuantity>().map(drop),
        other => unreachable!("the CRDs have no quantities of the pattern {other:?}"),
    };
    read.map_err(|error| Problem::Value(error.to_string()))
}

fn wrong_type(node: &Node, expected: &str) -> Problem {
    let advice = match &node.value {
        // An unquoted number or boolean is not read as a string.
        Value::Str(text) if expected == INTEGER && text.parse::<i32>().is_ok() => {
            Some(format!("write {text} without quotes"))
        }
        Value::Str(text) if expected == "a boolean" && matches!(text.as_str(), "true" | "false") => {
            Some(format!("write {text} without quotes"))
        }
        Value::Int(number) if expected == "a string" => Some(format!("write \"{number}\"")),
        Value::Bool(value) if expected == "a string" => Some(format!("write \"{value}\"")),
        _ => None,
    };
    Problem::WrongType { found: de::found_words(node.unexpected()), expected: expected.to_owned(), advice }
}

/// A value that reads into the type that `schema` describes.
fn placeholder(schema: &Schema, at: Position) -> Node {
    let value = match schema["type"].as_str() {
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Schema::as_str);
            let entry = |key: &str| {
                let node = placeholder(&schema["properties"][key], at);
                Entry { key: key.to_owned(), at, node, repeated: false }
            };
            Value::Map(required.map(entry).collect())
        }
        Some("array") => Value::Seq(Vec::new()),
        Some("boolean") => Value::Bool(false),
        Some("string") => Value::Str(schema["enum"][0].as_str().unwrap_or("x").to_owned()),
        // Integers and quantities.
        _ => Value::Int(1),
    };
    Node::new(at, value)
}

#[cfg(test)]
mod tests;
