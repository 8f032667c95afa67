//! The schema of a whole document of each kind, as a user writes it: the CRD's schema of `spec`, and of the rest what a
//! user sets.

use std::sync::OnceLock;

use kube::CustomResourceExt;
use serde_json::{Value, json};

use crate::{GpuPool, ModelTenant, crd};

/// Our kinds.
pub(super) const KINDS: [&str; 2] = ["GpuPool", "ModelTenant"];

/// What a document of one kind may hold.
#[derive(Debug)]
pub(super) struct KindSchema {
    /// `GpuPool` or `ModelTenant`.
    pub kind: &'static str,
    /// Of the document.
    pub root: Value,
    /// Every field of it.
    pub fields: Vec<Field>,
}

/// A field somewhere in a kind.
#[derive(Debug)]
pub(super) struct Field {
    /// Keys from the root to the mapping that holds it; `[]` stands for an item.
    pub within: Vec<String>,
    /// Its name.
    pub name: String,
    /// Its name as [`fold`] gives it.
    pub folded: String,
}

impl KindSchema {
    /// Of a kind; `None` = it is not ours.
    pub fn of(kind: &str) -> Option<&'static KindSchema> {
        static SCHEMAS: OnceLock<[KindSchema; 2]> = OnceLock::new();
        let schemas = SCHEMAS.get_or_init(|| {
            let [pool, tenant] = KINDS;
            [
                KindSchema::new(pool, crd::spec_schema(&GpuPool::crd())),
                KindSchema::new(tenant, crd::spec_schema(&ModelTenant::crd())),
            ]
        });
        schemas.iter().find(|schema| schema.kind == kind)
    }

    fn new(kind: &'static str, spec: Value) -> Self {
        let text = json!({"type": "string"});
        let texts = json!({"type": "object", "additionalProperties": text});
        let name = json!({"type": "string", "nullable": true});
        let root = json!({
            "type": "object",
            "required": ["apiVersion", "kind", "metadata", "spec"],
            "properties": {
                "apiVersion": text,
                "kind": text,
                "metadata": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": text, "namespace": name, "labels": texts, "annotations": texts},
                },
                "spec": spec,
            },
        });
        let mut fields = Vec::new();
        collect(&root, &[], &mut fields);
        KindSchema { kind, root, fields }
    }
}

/// A name without the differences that do not make another name: case, `-` and `_`.
pub(super) fn fold(name: &str) -> String {
    name.replace(['-', '_'], "").to_lowercase()
}

/// Adds every field below `schema`, which is at `within`.
fn collect(schema: &Value, within: &[String], fields: &mut Vec<Field>) {
    let inside = |step: &str| [within, &[step.to_owned()]].concat();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        fields.push(Field { within: within.to_vec(), name: name.clone(), folded: fold(name) });
        collect(property, &inside(name), fields);
    }
    if schema["items"].is_object() {
        collect(&schema["items"], &inside("[]"), fields);
    }
}
