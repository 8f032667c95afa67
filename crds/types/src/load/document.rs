//! One document: which kind it is, and the object that it holds.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, de::DeserializeOwned};

use super::Problem;
use super::de::DeError;
use super::tree::{Node, Value};
use crate::{API_VERSION, DEFAULT_NAMESPACE, GpuPool, GpuPoolSpec, ModelTenant, ModelTenantSpec};

/// An object of either kind.
#[expect(clippy::large_enum_variant, reason = "a file holds a handful of objects")]
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A pool.
    Pool(GpuPool),
    /// A tenant.
    Tenant(ModelTenant),
}

impl Object {
    /// The kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Object::Pool(_) => "GpuPool",
            Object::Tenant(_) => "ModelTenant",
        }
    }

    fn metadata(&self) -> &ObjectMeta {
        match self {
            Object::Pool(pool) => &pool.metadata,
            Object::Tenant(tenant) => &tenant.metadata,
        }
    }

    /// The name. Empty only in objects that [`super::load_str`] has not read.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// The namespace, `default` where none is named.
    pub fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
    }
}

/// A document as a user writes it: no status, and of the metadata what a user sets.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Manifest<S> {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(rename = "kind")]
    _kind: String,
    metadata: Metadata,
    spec: S,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Metadata {
    name: String,
    namespace: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Metadata {
    fn into_meta(self) -> ObjectMeta {
        let kept = |map: BTreeMap<_, _>| (!map.is_empty()).then_some(map);
        ObjectMeta {
            name: Some(self.name),
            namespace: self.namespace,
            labels: kept(self.labels),
            annotations: kept(self.annotations),
            ..ObjectMeta::default()
        }
    }
}

/// Reads a document, with the defaults of its kind.
pub(super) fn read(root: &Node) -> Result<Object, DeError> {
    if !matches!(root.value, Value::Map(_)) {
        return Err(serde::de::Error::invalid_type(root.unexpected(), &"a mapping"));
    }
    let (version, version_line) = text(root, "apiVersion")?;
    let (kind, kind_line) = text(root, "kind")?;
    if version != API_VERSION {
        let problem = Problem::UnknownApiVersion(version.to_owned());
        return Err(DeError::about(problem, "apiVersion").or_line(version_line));
    }
    match kind {
        "GpuPool" => manifest(root)
            .map(|(metadata, spec): (_, GpuPoolSpec)| Object::Pool(GpuPool { metadata, spec, status: None })),
        "ModelTenant" => manifest(root).map(|(metadata, spec): (_, ModelTenantSpec)| {
            Object::Tenant(ModelTenant { metadata, spec, status: None })
        }),
        other => Err(DeError::about(Problem::UnknownKind(other.to_owned()), "kind").or_line(kind_line)),
    }
}

/// The text of a field that tells what the document is, and its line.
fn text<'a>(root: &'a Node, key: &str) -> Result<(&'a str, usize), DeError> {
    let Some(entry) = root.entry(key) else {
        return Err(DeError::about(Problem::MissingField, key).or_line(root.line));
    };
    match &entry.node.value {
        Value::Str(text) => Ok((text, entry.node.line)),
        _ => {
            let (found, expected) = (entry.node.unexpected().to_string(), "a string".to_owned());
            Err(DeError::about(Problem::WrongType { found, expected }, key).or_line(entry.node.line))
        }
    }
}

fn manifest<S: DeserializeOwned>(root: &Node) -> Result<(ObjectMeta, S), DeError> {
    let manifest: Manifest<S> = Manifest::deserialize(root)?;
    Ok((manifest.metadata.into_meta(), manifest.spec))
}
