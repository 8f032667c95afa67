//! Pages for people about every field of both kinds, written from the schemas that the API server holds users to.

use std::fmt::Write;

use serde_json::{Map, Value};

const HEADER: &str = "<!-- Generated from crds/types; do not edit. -->\n";
const LEGEND: &str = "\
Fields are in the order of their paths; `[]` is an item of a list. A **required** field has no default. A field without
either may be left out, and then means what its text says.\n";

/// Both pages: file name and content, as committed in `docs/reference`.
pub fn pages() -> Vec<(&'static str, String)> {
    let [pool, tenant] = sluice_types::crd::spec_schemas();
    vec![("gpupool.md", page("GpuPool", &pool)), ("modeltenant.md", page("ModelTenant", &tenant))]
}

fn page(kind: &str, spec: &Value) -> String {
    let mut page = format!("{HEADER}# {kind}\n\n{}\n\n{LEGEND}\n", text(&spec["description"]));
    page.push_str("| field | type | default | meaning |\n|---|---|---|---|\n");
    fields(&mut page, "spec", spec);
    rules(&mut page, spec);
    page
}

/// A row for every field below `schema`, which is at `path`.
fn fields(page: &mut String, path: &str, schema: &Value) {
    let nothing = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&nothing);
    for (name, field) in properties {
        let path = format!("{path}.{name}");
        let required = schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
        row(page, &path, field, required);
        let (path, inner) = match field["type"].as_str() {
            Some("array") => (format!("{path}[]"), &field["items"]),
            _ => (path, field),
        };
        fields(page, &path, inner);
    }
}

fn row(page: &mut String, path: &str, field: &Value, required: bool) {
    let default = match (&field["default"], required) {
        (Value::Null, true) => "**required**".to_owned(),
        (Value::Null, false) => String::new(),
        // The fields below it tell theirs.
        (Value::Object(_), _) => String::new(),
        (value, _) => format!("`{value}`"),
    };
    let meaning = text(&field["description"]);
    writeln!(page, "| `{path}` | {} | {default} | {meaning} |", kind(field)).expect("a String takes all");
}

/// Type of a field with its bounds.
fn kind(field: &Value) -> String {
    if let Some(values) = field["enum"].as_array() {
        let names = values.iter().filter_map(Value::as_str).map(|name| format!("`{name}`"));
        return names.collect::<Vec<_>>().join(", ");
    }
    if field["x-kubernetes-int-or-string"] == Value::Bool(true) {
        return "quantity".to_owned();
    }
    match field["type"].as_str() {
        Some("integer") => format!("integer{}", bounds(field, "minimum", "maximum")),
        Some("array") => {
            format!("list of {}{}", kind(&field["items"]), bounds(field, "minItems", "maxItems"))
        }
        Some(other) => other.to_owned(),
        None => String::new(),
    }
}

fn bounds(field: &Value, least: &str, most: &str) -> String {
    match (field[least].as_f64(), field[most].as_f64()) {
        (Some(least), Some(most)) => format!(", {least} to {most}"),
        (Some(least), None) => format!(", at least {least}"),
        (None, Some(most)) => format!(", at most {most}"),
        (None, None) => String::new(),
    }
}

/// What has to hold between fields.
fn rules(page: &mut String, spec: &Value) {
    let mut said = Vec::new();
    messages("spec", spec, &mut said);
    if said.is_empty() {
        return;
    }
    page.push_str("\n## What has to hold between fields\n\n| where | rule |\n|---|---|\n");
    for (path, message) in said {
        writeln!(page, "| `{path}` | {message} |").expect("a String takes all");
    }
}

fn messages(path: &str, schema: &Value, said: &mut Vec<(String, String)>) {
    let own = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    said.extend(own.map(|rule| (path.to_owned(), text(&rule["message"]))));
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        messages(&format!("{path}.{name}"), field, said);
    }
    if schema["items"].is_object() {
        messages(&format!("{path}[]"), &schema["items"], said);
    }
}

/// A text in one line, fit for a cell.
fn text(value: &Value) -> String {
    let words = value.as_str().unwrap_or_default().split_whitespace();
    words.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::pages;

    #[test]
    fn fields_tell_type_default_and_meaning() {
        let pages = pages();
        let (_, tenant) = &pages[1];
        for row in [
            "| `spec.priority` | integer, ",
            "| `spec.model.source.type` | `HuggingFace`, ",
            "| `spec.poolRef.name` | string | **required** | ",
            "| `spec.engine.env[].name` | string | **required** | ",
        ] {
            assert!(tenant.contains(row), "{row}\n{tenant}");
        }
    }

    #[test]
    fn rules_between_fields_are_told() {
        let (_, tenant) = &pages()[1];
        let rules = tenant.split("## What has to hold between fields").nth(1).unwrap();
        assert!(rules.contains("guaranteedKv"), "{rules}");
    }
}
