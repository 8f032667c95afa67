//! The API server's audit log: who asked for what, and how it was answered.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// Records the metadata of every request once, when it was answered, and when a watch began.
pub(super) const POLICY: &str = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","omitStages":["RequestReceived"],"rules":[{"level":"Metadata"}]}"#;

/// One answered request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Record {
    /// get, list, watch, create, update, patch, delete, deletecollection; for paths the HTTP method.
    pub verb: String,
    /// Path and query.
    #[serde(rename = "requestURI")]
    pub request_uri: String,
    /// `ResponseStarted` (of a watch) or `ResponseComplete`.
    pub stage: String,
    /// Who asked.
    pub user: User,
    /// What the client calls itself.
    pub user_agent: String,
    /// What it is about; `None` for paths that are no resource.
    #[serde(rename = "objectRef")]
    pub object: Option<Object>,
    /// The answer.
    #[serde(rename = "responseStatus")]
    pub answer: Answer,
    /// Among others what was decided on it, and by which right.
    pub annotations: BTreeMap<String, String>,
}

impl Record {
    /// Whether whoever asked may do this; an answer of 403 can have other reasons.
    pub fn is_allowed(&self) -> bool {
        self.annotations.get("authorization.k8s.io/decision").is_some_and(|decision| decision == "allow")
    }

    /// The right by which this was allowed, in words.
    pub fn right(&self) -> &str {
        self.annotations.get("authorization.k8s.io/reason").map_or("", String::as_str)
    }
}

/// Who asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    /// Name; `system:serviceaccount:NAMESPACE:NAME` for a pod.
    pub username: String,
    /// Groups.
    pub groups: Vec<String>,
}

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Object {
    /// API group; empty for the core.
    pub api_group: String,
    /// Plural of the kind.
    pub resource: String,
    /// `status`, `scale`, ...; empty for the object itself.
    pub subresource: String,
    /// Namespace; empty for objects that have none, and for requests over all.
    pub namespace: String,
    /// Name; empty for requests over many.
    pub name: String,
}

/// How a request was answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
}

/// Reads a log; a last line that is being written is left out.
pub(super) fn read(path: &Path) -> Vec<Record> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}
