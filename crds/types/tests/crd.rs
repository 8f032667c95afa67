//! The generated CRDs: no drift, small, and the conventions that every field must follow.

use std::path::PathBuf;

use serde_json::Value;
use sluice_types::{crd_yaml, rules};

fn generated_folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../generated"))
}

fn parsed(yaml: &str) -> Value {
    serde_yaml::from_str(yaml).unwrap()
}

/// Calls `look` with every schema node below `schema`, and its path.
fn walk(schema: &Value, path: &str, look: &mut dyn FnMut(&str, &Value)) {
    look(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), look);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            walk(&schema[inner], &format!("{path}[]"), look);
        }
    }
}

/// Calls `look` with every schema node of both kinds below `part` (`spec`, `status`).
fn walk_kinds(part: &str, mut look: impl FnMut(&str, &Value)) {
    for (file, yaml) in crd_yaml() {
        let crd = parsed(&yaml);
        let root = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part];
        assert!(root.is_object(), "{file} has a schema of {part}");
        walk(root, &format!("{file}: {part}"), &mut look);
    }
}

#[test]
fn committed_crds_equal_the_generated_ones() {
    for (name, yaml) in crd_yaml() {
        let path = generated_folder().join(name);
        if std::env::var_os("SLUICE_REGENERATE").is_some() {
            std::fs::write(&path, &yaml).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        let same = !committed.is_empty() && parsed(&committed) == parsed(&yaml);
        assert!(same, "{name} drifted: run SLUICE_REGENERATE=1 cargo test -p sluice-types crd");
    }
    let files = std::fs::read_dir(generated_folder()).unwrap().count();
    assert_eq!(files, crd_yaml().len(), "crds/generated holds nothing else");
}

#[test]
fn each_crd_is_smaller_than_100_kilobytes() {
    for (name, yaml) in crd_yaml() {
        assert!(yaml.len() < 100_000, "{name} has {} bytes", yaml.len());
    }
}

#[test]
fn every_field_has_a_description() {
    let mut seen = 0;
    for part in ["spec", "status"] {
        walk_kinds(part, |path, schema| {
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let description = property["description"].as_str().unwrap_or_default();
                assert!(!description.is_empty(), "{path}.{name} has no description");
                assert!(!description.contains("[`"), "{path}.{name}: `{description}` links into Rust");
                seen += 1;
            }
        });
    }
    assert!(seen > 150, "only {seen} fields were looked at");
}

#[test]
fn a_description_of_the_spec_says_default_or_required() {
    walk_kinds("spec", |path, schema| {
        let required = schema["required"].as_array().cloned().unwrap_or_default();
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let text = property["description"].as_str().unwrap_or_default();
            let is_required = required.contains(&Value::from(name.as_str()));
            if is_required {
                assert!(text.contains("Required"), "{path}.{name}: `{text}` does not say Required");
            } else {
                let said = text.contains("Default") || text.contains("Required when");
                assert!(said, "{path}.{name}: `{text}` names no default");
            }
        }
    });
}

#[test]
fn fields_used_by_cel_are_bounded() {
    walk_kinds("spec", |path, schema| match schema["type"].as_str() {
        Some("integer") => {
            assert!(schema["minimum"].is_number() && schema["maximum"].is_number(), "{path}");
            assert_eq!(schema["format"], "int32", "{path}");
        }
        Some("string") if schema["enum"].is_null() => assert!(schema["maxLength"].is_u64(), "{path}"),
        Some("array") => {
            assert!(schema["maxItems"].is_u64(), "{path}");
            assert!(schema["x-kubernetes-list-type"].is_string(), "{path}");
        }
        Some("object") if schema["additionalProperties"].is_object() => {
            assert!(schema["maxProperties"].is_u64(), "{path}");
        }
        Some("string" | "object" | "boolean") => {}
        None => assert_eq!(schema["x-kubernetes-int-or-string"], true, "{path}"),
        other => panic!("{path}: unexpected type {other:?}"),
    });
}

#[test]
fn the_schema_is_structural() {
    for part in ["spec", "status"] {
        walk_kinds(part, |path, schema| {
            for keyword in ["$ref", "anyOf", "oneOf", "allOf", "not", "definitions", "$defs", "const"] {
                assert!(schema[keyword].is_null(), "{path} uses {keyword}");
            }
            assert!(
                !schema["additionalProperties"].is_boolean(),
                "{path} has a boolean additionalProperties"
            );
            assert_ne!(schema["x-kubernetes-preserve-unknown-fields"], true, "{path}");
            assert!(
                schema["default"].is_null() || schema["nullable"].is_null(),
                "{path}: a null would survive defaulting"
            );
        });
    }
}

#[test]
fn no_enum_value_is_a_boolean_to_a_yaml_1_1_reader() {
    assert!(rules::is_yaml11_boolean("Off") && rules::is_yaml11_boolean("y"), "the check can fail");
    let mut seen = 0;
    walk_kinds("spec", |path, schema| {
        for value in schema["enum"].as_array().into_iter().flatten() {
            let value = value.as_str().unwrap();
            let boolean =
                rules::is_yaml11_boolean(value) || ["true", "false"].contains(&&*value.to_lowercase());
            assert!(!boolean, "{path}: {value}");
            seen += 1;
        }
    });
    assert!(seen > 30, "only {seen} values were looked at");
}

#[test]
fn every_pattern_has_a_native_check() {
    walk_kinds("spec", |path, schema| {
        let Some(pattern) = schema["pattern"].as_str() else { return };
        assert!(rules::PATTERNS.iter().any(|known| known.regex == pattern), "{path}: {pattern}");
    });
}

#[test]
fn durations_and_sizes_end_in_their_unit() {
    let unit = |name: &str| ["Seconds", "Milliseconds"].iter().any(|unit| name.ends_with(unit));
    walk_kinds("spec", |path, schema| {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let text = property["description"].as_str().unwrap_or_default();
            if property["type"] == "integer" {
                let duration = text.contains("seconds");
                assert_eq!(duration, unit(name), "{path}.{name}: {text}");
            } else if property["x-kubernetes-int-or-string"] == true {
                assert!(text.contains("as a quantity"), "{path}.{name}: {text}");
            }
        }
    });
}

fn crd_of(kind: &str) -> Value {
    let all = crd_yaml().into_iter().map(|(_, yaml)| parsed(&yaml));
    all.into_iter().find(|crd| crd["spec"]["names"]["kind"] == kind).unwrap()
}

#[test]
fn names_scale_and_columns_are_those_of_the_design() {
    let tenant = crd_of("ModelTenant");
    assert_eq!(tenant["metadata"]["name"], "modeltenants.sluice.dev");
    assert_eq!(tenant["spec"]["scope"], "Namespaced");
    assert_eq!(tenant["spec"]["names"]["shortNames"], serde_json::json!(["mt"]));
    let version = &tenant["spec"]["versions"][0];
    assert_eq!(version["name"], "v1alpha1");
    let scale = serde_json::json!({
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    });
    assert_eq!(version["subresources"]["scale"], scale);
    assert!(version["subresources"]["status"].is_object());
    let pool = crd_of("GpuPool");
    for crd in [&pool, &tenant] {
        assert_eq!(crd["spec"]["names"]["categories"], serde_json::json!(["sluice"]));
        let columns = crd["spec"]["versions"][0]["additionalPrinterColumns"].as_array().unwrap();
        assert!(
            columns
                .iter()
                .any(|column| column["jsonPath"] == r#".status.conditions[?(@.type=="Ready")].status"#)
        );
    }
    assert!(pool["spec"]["versions"][0]["subresources"]["scale"].is_null());
}

#[test]
fn defaults_of_the_schema_are_those_of_the_types() {
    let tenant =
        &crd_of("ModelTenant")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let property = |path: &str| path.split('.').fold(tenant, |schema, name| &schema["properties"][name]);
    for (path, default) in [
        ("priority", serde_json::json!(100)),
        ("slo.ttftMilliseconds", serde_json::json!(2000)),
        ("slo.tbtMilliseconds", serde_json::json!(50)),
        ("memory.maxRemappedPercent", serde_json::json!(60)),
        ("memory.hostKv", serde_json::json!("0")),
        ("idle.hibernateAfterSeconds", serde_json::json!(600)),
        ("pacing.mode", serde_json::json!("TokenDeposit")),
        ("engine.kind", serde_json::json!("Native")),
        ("limits.maxBodyBytes", serde_json::json!("4Mi")),
        ("replicas", serde_json::json!(1)),
        ("suspend", serde_json::json!(false)),
        ("drainSeconds", serde_json::json!(30)),
    ] {
        assert_eq!(property(path)["default"], default, "{path}");
    }
    assert!(property("memory.kvLimit")["default"].is_null());
    let required: Vec<&str> =
        tenant["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(required, ["model", "poolRef"]);
}

/// Every CEL rule of the CRDs, as rule and message.
fn cel_rules() -> Vec<(String, String)> {
    fn collect(value: &Value, found: &mut Vec<(String, String)>) {
        if let Some(rules) = value["x-kubernetes-validations"].as_array() {
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            found.extend(rules.iter().map(|rule| (text(&rule["rule"]), text(&rule["message"]))));
        }
        match value {
            Value::Object(object) => object.values().for_each(|value| collect(value, found)),
            Value::Array(items) => items.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (_, yaml) in crd_yaml() {
        collect(&parsed(&yaml), &mut found);
    }
    found
}

#[test]
fn every_declared_rule_is_in_a_crd() {
    let mut present = cel_rules();
    // One stands in two places.
    present.sort();
    present.dedup();
    let declared = [
        &rules::OBJECT_NAME,
        &rules::TENANT_NAME,
        &rules::HOST_DEVICE,
        &rules::HOST_CHUNK,
        &rules::HOST_MEMORY,
        &rules::HOST_LINK,
        &rules::HOST_CONTEXTS,
        &rules::POOL_SIZE,
        &rules::QUANTUM_ORDER,
        &rules::KV_WITHIN_LIMIT,
        &rules::CPU_WITHIN_LIMIT,
        &rules::ENGINE_IMAGE,
        &rules::ENGINE_HANG_TIMEOUT,
        &rules::TOLERATION_KEY,
        &rules::TOLERATION_VALUE,
        &rules::TOLERATION_SECONDS,
        &rules::HIBERNATE_AFTER_IDLE,
        &rules::ONE_KEY_SOURCE,
        &rules::CACHE,
        &rules::POD_LABELS,
        &rules::POD_ANNOTATIONS,
        &rules::POOL_REF_IMMUTABLE,
        &rules::MODEL_IMMUTABLE,
        &rules::ENGINE_KIND_IMMUTABLE,
    ];
    for rule in declared {
        let pair = (rule.cel.to_owned(), rule.message.to_owned());
        assert!(present.contains(&pair), "missing: {}", rule.cel);
    }
    for union in [&rules::SHARING, &rules::SOURCE] {
        assert!(present.iter().any(|(_, message)| message == union.message), "missing: {}", union.message);
    }
    assert_eq!(present.len(), declared.len() + 2);
}

#[test]
fn a_union_rule_is_built_from_its_members() {
    let (rule, _) = cel_rules().into_iter().find(|(_, m)| m == rules::SHARING.message).unwrap();
    let expected = "(self.mode == 'Temporal' || !has(self.temporal)) && (self.mode == 'Spatial' || \
                    !has(self.spatial)) && (self.mode == 'Isolated') == has(self.isolated)";
    assert_eq!(rule, expected);
}
