//! The schema's own bounds, applied as the API server applies them.
//!
//! The bounds are read from the generated schema, so that a limit in a field's attributes is the only place it stands.

use serde_json::Value;

use super::Path;
use crate::rules;

/// Every bound of `schema` that `value` breaks, as path and message. Types and unknown fields are not looked at:
/// reading into the types has settled those.
pub(super) fn schema_violations(schema: &Value, value: &Value, path: &Path, found: &mut Vec<(Path, String)>) {
    match value {
        Value::Object(fields) => {
            count(schema, "Properties", "entries", fields.len(), path, found);
            for (key, value) in fields {
                let property = &schema["properties"][key];
                let schema = if property.is_null() { &schema["additionalProperties"] } else { property };
                schema_violations(schema, value, &path.key(key), found);
            }
        }
        Value::Array(items) => {
            count(schema, "Items", "items", items.len(), path, found);
            unique_keys(schema, items, path, found);
            for (index, item) in items.iter().enumerate() {
                schema_violations(&schema["items"], item, &path.index(index), found);
            }
        }
        Value::Number(number) => range(schema, number.as_f64().unwrap_or(f64::NAN), path, found),
        Value::String(text) => {
            count(schema, "Length", "characters", text.chars().count(), path, found);
            pattern(schema, text, path, found);
        }
        Value::Bool(_) | Value::Null => {}
    }
}

/// `minItems`, `maxLength`, `maxProperties`...
fn count(schema: &Value, what: &str, unit: &str, size: usize, path: &Path, found: &mut Vec<(Path, String)>) {
    let bound = |side: &str| schema[format!("{side}{what}")].as_u64().map(|bound| bound as usize);
    if let Some(least) = bound("min").filter(|least| size < *least) {
        found.push((path.clone(), format!("has {size} {unit}, at least {least} are needed")));
    }
    if let Some(most) = bound("max").filter(|most| size > *most) {
        found.push((path.clone(), format!("has {size} {unit}, at most {most} are allowed")));
    }
}

fn range(schema: &Value, number: f64, path: &Path, found: &mut Vec<(Path, String)>) {
    if let Some(least) = schema["minimum"].as_f64().filter(|least| number < *least) {
        found.push((path.clone(), format!("is {number}, must be at least {least}")));
    }
    if let Some(most) = schema["maximum"].as_f64().filter(|most| number > *most) {
        found.push((path.clone(), format!("is {number}, must be at most {most}")));
    }
}

fn pattern(schema: &Value, text: &str, path: &Path, found: &mut Vec<(Path, String)>) {
    let Some(pattern) = schema["pattern"].as_str() else { return };
    let known = rules::PATTERNS.iter().find(|known| known.regex == pattern);
    let known = known.expect("every pattern of the schema stands in rules::PATTERNS");
    if !(known.holds)(text) {
        found.push((path.clone(), format!("`{text}` {}", known.message)));
    }
}

/// Lists that are maps or sets: no key twice.
fn unique_keys(schema: &Value, items: &[Value], path: &Path, found: &mut Vec<(Path, String)>) {
    let key_of = |item: &Value| match schema["x-kubernetes-list-type"].as_str() {
        Some("map") => schema["x-kubernetes-list-map-keys"][0]
            .as_str()
            .map(|key| (item[key].clone(), Some(key.to_owned()))),
        Some("set") => Some((item.clone(), None)),
        _ => None,
    };
    for (index, item) in items.iter().enumerate() {
        let Some((key, field)) = key_of(item) else { return };
        if items[..index].iter().any(|earlier| key_of(earlier).is_some_and(|(other, _)| other == key)) {
            let item = path.index(index);
            let at = field.map_or_else(|| item.clone(), |field| item.key(&field));
            found.push((at, format!("{key} is given twice")));
        }
    }
}
