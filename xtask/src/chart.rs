//! The generated files of the Helm chart: default values and their table from the schema, CRDs and policies as
//! templates.

use std::fmt::Write;

use serde_json::{Map, Value};

const SCHEMA: &str = include_str!("../../charts/sluice/values.schema.json");
const README_HEAD: &str = include_str!("../../charts/sluice/README.md.in");
const RIGHTS: &str = include_str!("../../operator/manager/rbac.yaml");
const PRIORITY: &str = include_str!("../../crds/admission/tenant-priority.yaml");

/// Generated files other than the schema.
pub fn values() -> Vec<(&'static str, String)> {
    let schema: Value = serde_json::from_str(SCHEMA).expect("values.schema.json is JSON");
    let mut yaml = "# Generated from values.schema.json; do not edit.\n".to_owned();
    write_values(&mut yaml, 0, &schema);
    let mut table = "| value | default | meaning |\n|---|---|---|\n".to_owned();
    write_rows(&mut table, "", &schema);
    let readme = format!(
        "<!-- Generated from README.md.in and values.schema.json; do not edit. -->\n{README_HEAD}\n{table}"
    );
    vec![("README.md", readme), ("values.yaml", yaml)]
}

/// Templates that are copies: the chart has to stand alone.
pub fn templates() -> Vec<(&'static str, String)> {
    let crds = sluice_types::crd_yaml().into_iter().map(|(name, text)| (name, crd_template(&text)));
    let policy = format!("{{{{- if .Values.admission.enabled }}}}\n{PRIORITY}{{{{- end }}}}\n");
    crds.chain([("_operator-rules.tpl", rules(RIGHTS)), ("tenant-priority.yaml", policy)]).collect()
}

/// The rules of the operator's two roles, for all namespaces and for its own, as named templates.
fn rules(rights: &str) -> String {
    let of_roles = rights.split("\n---\n").filter_map(|role| role.split_once("\nrules:\n"));
    let named = ["sluice.operatorRules", "sluice.operatorOwnRules"].into_iter().zip(of_roles);
    let define = |(name, (_, rules)): (&str, (&str, &str))| {
        format!("{{{{- define \"{name}\" -}}}}\n{}\n{{{{- end }}}}\n", rules.trim_end())
    };
    named.map(define).collect()
}

/// Helm neither upgrades what is in its folder `crds` nor may it remove these: pools and tenants would go with them.
fn crd_template(text: &str) -> String {
    let kept = "metadata:\n  annotations:\n    helm.sh/resource-policy: keep\n";
    let text = text.replacen("metadata:\n", kept, 1);
    format!("{{{{- if .Values.crds.install }}}}\n{text}{{{{- end }}}}\n")
}

/// Fields of an object, by name: the order must not depend on how JSON is read.
fn fields(schema: &Value) -> Vec<(&String, &Value)> {
    let properties = schema["properties"].as_object().into_iter().flat_map(Map::iter);
    let mut fields: Vec<_> = properties.filter(|(_, field)| is_leaf(field) || has_fields(field)).collect();
    fields.sort_by_key(|(name, _)| name.as_str());
    fields
}

fn is_leaf(field: &Value) -> bool {
    field.get("default").is_some()
}

fn has_fields(field: &Value) -> bool {
    field.get("properties").is_some()
}

fn text(field: &Value) -> &str {
    field["description"].as_str().unwrap_or_default()
}

fn write_values(yaml: &mut String, depth: usize, schema: &Value) {
    let indent = "  ".repeat(depth);
    for (name, field) in fields(schema) {
        if depth == 0 {
            yaml.push('\n');
        }
        writeln!(yaml, "{indent}# {}", text(field)).expect("a String takes all");
        if is_leaf(field) {
            writeln!(yaml, "{indent}{name}: {}", field["default"]).expect("a String takes all");
        } else {
            writeln!(yaml, "{indent}{name}:").expect("a String takes all");
            write_values(yaml, depth + 1, field);
        }
    }
}

fn write_rows(table: &mut String, path: &str, schema: &Value) {
    for (name, field) in fields(schema) {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if is_leaf(field) {
            let (default, meaning) = (&field["default"], text(field).replace('|', "\\|"));
            writeln!(table, "| `{path}` | `{default}` | {meaning} |").expect("a String takes all");
        } else {
            write_rows(table, &path, field);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{SCHEMA, crd_template, templates, values, write_rows, write_values};

    #[test]
    fn defaults_become_commented_values_and_rows() {
        let schema = json!({"properties": {
            "b": {"description": "Of b.", "properties": {"c": {"description": "One | two.", "default": ["x"]}}},
            "a": {"description": "Of a.", "default": ""},
            "free": {"description": "Nothing to write."},
        }});
        let (mut yaml, mut table) = (String::new(), String::new());
        write_values(&mut yaml, 0, &schema);
        assert_eq!(yaml, "\n# Of a.\na: \"\"\n\n# Of b.\nb:\n  # One | two.\n  c: [\"x\"]\n");
        write_rows(&mut table, "", &schema);
        assert_eq!(table, "| `a` | `\"\"` | Of a. |\n| `b.c` | `[\"x\"]` | One \\| two. |\n");
    }

    #[test]
    fn a_crd_is_kept_and_stands_behind_its_value() {
        let template = crd_template("# x\nkind: K\nmetadata:\n  name: n\nspec:\n  metadata:\n");
        assert_eq!(
            template,
            "{{- if .Values.crds.install }}\n# x\nkind: K\nmetadata:\n  annotations:\n    \
             helm.sh/resource-policy: keep\n  name: n\nspec:\n  metadata:\n{{- end }}\n"
        );
    }

    #[test]
    fn what_is_copied_holds_nothing_that_helm_would_read_as_a_template() {
        for (name, text) in templates() {
            let ours = if name.ends_with(".tpl") { 4 } else { 2 };
            assert_eq!(text.matches("{{").count(), ours, "{name}");
        }
        assert_eq!(values().len(), 2);
    }

    #[test]
    fn the_rules_of_both_roles_are_taken_and_nothing_around_them() {
        assert_eq!(
            super::rules("kind: A\nrules:\n# x\n- a: 1\n---\nkind: B\nrules:\n- b: 2\n"),
            "{{- define \"sluice.operatorRules\" -}}\n# x\n- a: 1\n{{- end }}\n\
             {{- define \"sluice.operatorOwnRules\" -}}\n- b: 2\n{{- end }}\n"
        );
    }

    /// Every object of the schema refuses what it does not know, and everything in it is described.
    #[test]
    fn every_value_is_described_and_no_unknown_one_is_taken() {
        fn look(path: &str, schema: &Value) {
            assert!(schema["description"].as_str().is_some_and(|text| text.ends_with('.')), "{path}");
            let Some(properties) = schema["properties"].as_object() else { return };
            assert_eq!(schema["additionalProperties"], false, "{path}");
            if schema.get("default").is_none() {
                properties.iter().for_each(|(name, field)| look(&format!("{path}.{name}"), field));
            }
        }
        look("", &serde_json::from_str(SCHEMA).unwrap());
    }
}
