//! One document: which kind it is, and the object that it holds.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, de::DeserializeOwned};

use super::check::{CheckedDocument, check};
use super::de::DeError;
use super::hint;
use super::problem::Problem;
use super::schema::{KINDS, KindSchema};
use super::spanned_tree::{Document, Fault, Node, Position, Value};
use super::unread::UnreadParts;
use super::{Path, de};
use crate::{API_VERSION, DEFAULT_NAMESPACE, GpuPool, GpuPoolSpec, ModelTenant, ModelTenantSpec};

/// An object of either kind.
#[expect(clippy::large_enum_variant, reason = "a file holds a handful of objects")]
#[derive(Clone, Debug, PartialEq)]
pub enum ManifestObject {
    /// A pool.
    Pool(GpuPool),
    /// A tenant.
    Tenant(ModelTenant),
}

impl ManifestObject {
    /// The kind.
    pub fn kind(&self) -> &'static str {
        match self {
            ManifestObject::Pool(_) => "GpuPool",
            ManifestObject::Tenant(_) => "ModelTenant",
        }
    }

    fn metadata(&self) -> &ObjectMeta {
        match self {
            ManifestObject::Pool(pool) => &pool.metadata,
            ManifestObject::Tenant(tenant) => &tenant.metadata,
        }
    }

    /// The name. Empty only in objects that [`super::load_str`] has not read.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// The namespace, `default` where none is named.
    pub fn namespace(&self) -> &str {
        self.written_namespace().unwrap_or(DEFAULT_NAMESPACE)
    }

    /// The namespace, if one is named.
    pub(super) fn written_namespace(&self) -> Option<&str> {
        self.metadata().namespace.as_deref()
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

/// A document that has been read, with its mistakes.
#[derive(Debug)]
pub(super) struct ParsedDocument {
    /// The object, with the defaults of its kind; `None` = its kind is not known.
    pub object: Option<ManifestObject>,
    /// The document as it was written.
    pub root: Node,
    /// Where `object` differs from the document.
    pub unread: UnreadParts,
    /// Every mistake.
    pub faults: Vec<Fault>,
    /// Whether this may be a GpuPool, which `object` does not hold.
    pub is_possibly_pool: bool,
}

/// Reads a document and finds every mistake except broken rules.
pub(super) fn read(document: Document) -> ParsedDocument {
    let Document { root, mut faults } = document;
    let header = Header::of(&root, &mut faults);
    let Some(kind) = header.schema else {
        let may_be_pool = !header.is_foreign;
        return ParsedDocument {
            object: None,
            root,
            unread: UnreadParts::default(),
            faults,
            is_possibly_pool: may_be_pool,
        };
    };
    let CheckedDocument { root: sound, unread, faults: found } = check(kind, &root);
    faults.extend(found);
    let object = match to_object(kind.kind, &sound) {
        Ok(object) => Some(object),
        Err(error) => {
            let (path, problem) = (error.path(), error.problem);
            faults.push(Fault { at: root.position_of(&path), path, problem });
            None
        }
    };
    let may_be_pool = object.is_none() && kind.kind == "GpuPool";
    ParsedDocument { object, root, unread, faults, is_possibly_pool: may_be_pool }
}

/// Version and kind of a document.
struct Header {
    /// Schema of its kind; where that is missing or wrong, of the kind that it resembles.
    schema: Option<&'static KindSchema>,
    /// The document is neither kind.
    is_foreign: bool,
}

impl Header {
    /// Adds mistakes in version and kind to `faults`, except those that the check against the schema finds.
    fn of(root: &Node, faults: &mut Vec<Fault>) -> Header {
        if !matches!(root.value, Value::Map(_)) {
            let foreign = !matches!(root.value, Value::Unknown);
            faults.extend(foreign.then(|| wrong_type(root, root.at, Path::default(), "a mapping")));
            return Header { schema: None, is_foreign: foreign };
        }
        let (version, kind) = (text(root, "apiVersion"), text(root, "kind"));
        let near = kind.and_then(|(kind, _)| hint::closest(kind, KINDS));
        let ours = version.is_none_or(|(version, _)| version == API_VERSION);
        if let (Some((version, at)), false) = (version, ours) {
            let problem = Problem::UnknownApiVersion(version.to_owned());
            faults.push(Fault { at, path: Path::of_keys("apiVersion"), problem });
        }
        // An unknown kind of an unknown version is one mistake: a foreign object.
        let foreign = !ours && near.is_none();
        if let Some((kind, at)) = kind.filter(|(kind, _)| near != Some(*kind) && !foreign) {
            let problem =
                Problem::UnknownKind { found: kind.to_owned(), suggestion: near.map(ToOwned::to_owned) };
            faults.push(Fault { at, path: Path::of_keys("kind"), problem });
        }
        let schema = near.and_then(KindSchema::of).or_else(|| guess_schema(root).filter(|_| !foreign));
        if schema.is_none() {
            ["apiVersion", "kind"].into_iter().for_each(|key| require_text(root, key, faults));
        }
        Header { schema, is_foreign: foreign || (kind.is_some() && schema.is_none()) }
    }
}

/// The kind that has most of the fields of the document's spec, if one has more than the other.
fn guess_schema(root: &Node) -> Option<&'static KindSchema> {
    let Value::Map(written) = &root.entry("spec")?.node.value else { return None };
    let [one, other] = KINDS.map(KindSchema::of);
    let count = |kind: &KindSchema| {
        let known = &kind.root["properties"]["spec"]["properties"];
        written.iter().filter(|entry| known.get(&entry.key).is_some()).count()
    };
    let (one, other) = (one?, other?);
    match count(one).cmp(&count(other)) {
        Ordering::Greater => Some(one),
        Ordering::Less => Some(other),
        Ordering::Equal => None,
    }
}

/// Adds a fault unless the field is a text.
fn require_text(root: &Node, key: &str, faults: &mut Vec<Fault>) {
    let path = Path::of_keys(key);
    match root.entry(key) {
        None if root.open => {}
        None => faults.push(Fault { at: root.at, path, problem: Problem::MissingField }),
        Some(entry) if matches!(entry.node.value, Value::Str(_) | Value::Unknown) => {}
        Some(entry) => faults.push(wrong_type(&entry.node, entry.at, path, "a string")),
    }
}

fn wrong_type(node: &Node, at: Position, path: Path, expected: &str) -> Fault {
    let (found, expected) = (de::found_words(node.unexpected()), expected.to_owned());
    Fault { at, path, problem: Problem::WrongType { found, expected, advice: None } }
}

/// The text of a field of the document, and where it is.
fn text<'a>(root: &'a Node, key: &str) -> Option<(&'a str, Position)> {
    let entry = root.entry(key)?;
    match &entry.node.value {
        Value::Str(text) => Some((text, entry.at)),
        _ => None,
    }
}

/// Reads a document into the types of its kind.
pub(super) fn to_object(kind: &str, root: &Node) -> Result<ManifestObject, DeError> {
    match kind {
        "GpuPool" => manifest(root).map(|(metadata, spec): (_, GpuPoolSpec)| {
            ManifestObject::Pool(GpuPool { metadata, spec, status: None })
        }),
        _ => manifest(root).map(|(metadata, spec): (_, ModelTenantSpec)| {
            ManifestObject::Tenant(ModelTenant { metadata, spec, status: None })
        }),
    }
}

fn manifest<S: DeserializeOwned>(root: &Node) -> Result<(ObjectMeta, S), DeError> {
    let manifest: Manifest<S> = Manifest::deserialize(root)?;
    Ok((manifest.metadata.into_meta(), manifest.spec))
}
