//! Pages for people about every field of both kinds, written from the schemas that the API server holds users to.

use std::fmt::Write;

use serde_json::{Map, Value};

const HEADER: &str = "<!-- Generated from crds/types; do not edit. -->\n";
const LEGEND: &str = "\
Fields are in the order of their paths; `[]` is an item of a list. The column *default* has the value of an omitted
field. A **required** field has no default.\n";

/// Start of the sentence about an omitted field.
const DEFAULT: &str = "Default";
/// Start of the sentence about the condition for a required field.
const REQUIRED_WHEN: &str = "Required when ";

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
    let described = text(&field["description"]);
    let (meaning, stated) = split(&described);
    let default = match (&field["default"], required, stated) {
        (Value::Null, true, _) => "**required**".to_owned(),
        // The fields below an object have theirs.
        (Value::Null | Value::Object(_), _, Stated::Value(value)) => format!("`{value}`"),
        (Value::Null | Value::Object(_), _, Stated::Default(words)) => {
            // The column of types has how many a list may have.
            words.split("; at most ").next().unwrap_or(words).to_owned()
        }
        (Value::Null, _, Stated::RequiredWhen(words)) => format!("**required** when {words}"),
        (value, ..) => format!("`{value}`"),
    };
    writeln!(page, "| `{path}` | {} | {default} | {meaning} |", kind(field)).expect("a String takes all");
}

/// The statement of a field's last sentence about its omission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stated<'a> {
    /// The value that holds then.
    Value(&'a str),
    /// What holds then, in words.
    Default(&'a str),
    /// When it must not be left out.
    RequiredWhen(&'a str),
    /// Nothing, or that it must not be left out: the schema has that too.
    Nothing,
}

/// Splits a field's text into the part without the sentence that has its own column, and the statement of that
/// sentence.
fn split(described: &str) -> (&str, Stated<'_>) {
    let last = |start: &str| {
        let at = described.rfind(start)?;
        let begins = at == 0 || described[..at].ends_with(". ");
        begins.then(|| (described[..at].trim_end(), described[at + start.len()..].trim_end_matches('.')))
    };
    if let Some((meaning, words)) = last(DEFAULT) {
        return match words.strip_prefix(": ") {
            Some(words) => (meaning, Stated::Default(words)),
            None if words.starts_with(" as in ") => (meaning, Stated::Default(words.trim_start())),
            None => (meaning, Stated::Value(words.trim_start())),
        };
    }
    if let Some((meaning, words)) = last(REQUIRED_WHEN) {
        return (meaning, Stated::RequiredWhen(words));
    }
    (described.strip_suffix(" Required.").unwrap_or(described), Stated::Nothing)
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
        Some(other) => format!("{other}{}", bounds(field, "minProperties", "maxProperties")),
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
    page.push_str("\n## Rules between fields\n\n| where | rule |\n|---|---|\n");
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
    use serde_json::{Value, json};

    use super::{Stated, pages, row, split, text};

    #[test]
    fn fields_show_type_default_and_meaning() {
        let pages = pages();
        let (_, tenant) = &pages[1];
        for row in [
            "| `spec.priority` | integer, 0 to 1000 | `100` | ",
            "| `spec.model.source.type` | `HuggingFace`, ",
            "| `spec.poolRef.name` | string | **required** | ",
            "| `spec.engine.env[].name` | string | **required** | ",
            "| `spec.limits.maxPromptTokens` | integer, 1 to 16777216 | model.maxModelLen | ",
            "| `spec.model.source.s3` | object | **required** when type is S3, refused otherwise | ",
        ] {
            assert!(tenant.contains(row), "{row}\n{tenant}");
        }
    }

    #[test]
    fn the_sentence_about_the_default_is_taken_out_of_the_text() {
        for (sentence, stated) in [
            ("Default: model.maxModelLen.", Stated::Default("model.maxModelLen")),
            ("Default as in its fields.", Stated::Default("as in its fields")),
            ("Default 30.", Stated::Value("30")),
        ] {
            assert_eq!(split(&format!("Longest prompt. {sentence}")), ("Longest prompt.", stated));
        }
        assert_eq!(split("An S3. Required when type is S3."), ("An S3.", Stated::RequiredWhen("type is S3")));
        assert_eq!(split("Bucket. Required."), ("Bucket.", Stated::Nothing));
        assert_eq!(split("Pods with a Default."), ("Pods with a Default.", Stated::Nothing));
    }

    #[test]
    fn no_field_leaves_its_reader_without_a_default() {
        let mut silent = Vec::new();
        for schema in sluice_types::crd::spec_schemas() {
            each_field("spec", &schema, &mut |path, field, required| {
                let mut line = String::new();
                row(&mut line, path, field, required);
                if ["| `null` |", "| `{", "|  |"].iter().any(|gap| line.contains(gap)) {
                    silent.push(path.to_owned());
                }
            });
        }
        assert!(silent.is_empty(), "say `Default ...` or `Required when ...` at the end of: {silent:#?}");
    }

    #[test]
    fn a_text_names_the_default_that_the_schema_has() {
        let mut checked = 0;
        for schema in sluice_types::crd::spec_schemas() {
            each_field("spec", &schema, &mut |path, field, _| {
                let (Value::String(_) | Value::Number(_) | Value::Bool(_)) = &field["default"] else {
                    return;
                };
                let described = text(&field["description"]);
                let value = &field["default"];
                let plain = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let stated = if plain.is_empty() { Stated::Value("empty") } else { Stated::Value(&plain) };
                assert_eq!(split(&described).1, stated, "{path}");
                checked += 1;
            });
        }
        assert!(checked > 20, "{checked} fields have a default in the schema");
    }

    /// Calls `each` with path, schema and whether it is required, for every field below `schema`.
    fn each_field(path: &str, schema: &Value, each: &mut impl FnMut(&str, &Value, bool)) {
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            let required = schema["required"].as_array().is_some_and(|all| all.contains(&json!(name)));
            each(&path, field, required);
            let inner = if field["items"].is_object() { &field["items"] } else { field };
            each_field(&path, inner, each);
        }
    }

    #[test]
    fn cross_field_rules_are_shown() {
        let (_, tenant) = &pages()[1];
        let rules = tenant.split("## Rules between fields").nth(1).unwrap();
        assert!(rules.contains("guaranteedKv"), "{rules}");
    }
}
