//! The API server's audit log: the user of each request and its response.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

/// Records the metadata of every request once, at its response, and the start of every watch.
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
    /// User of the request.
    pub user: User,
    /// User agent of the client.
    pub user_agent: String,
    /// Object of the request; `None` for paths that are not resources.
    #[serde(rename = "objectRef")]
    pub object: Option<AuditedObject>,
    /// Response.
    #[serde(rename = "responseStatus")]
    pub answer: Answer,
    /// Annotations, among them the authorization decision and the rule behind it.
    pub annotations: BTreeMap<String, String>,
}

impl Record {
    /// Whether RBAC allows the request. A 403 response can have other reasons.
    pub fn is_allowed(&self) -> bool {
        self.annotations.get("authorization.k8s.io/decision").is_some_and(|decision| decision == "allow")
    }

    /// Returns the reason that the authorizer gave, as text.
    pub fn right(&self) -> &str {
        self.annotations.get("authorization.k8s.io/reason").map_or("", String::as_str)
    }
}

/// User of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct User {
    /// Name; `system:serviceaccount:NAMESPACE:NAME` for a pod.
    pub username: String,
    /// Groups.
    pub groups: Vec<String>,
}

/// Object of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditedObject {
    /// API group; empty for the core.
    pub api_group: String,
    /// Plural of the kind.
    pub resource: String,
    /// `status`, `scale`, ...; empty for the object itself.
    pub subresource: String,
    /// Namespace; empty for cluster-scoped objects and for requests over all namespaces.
    pub namespace: String,
    /// Name; empty for requests over many.
    pub name: String,
}

/// Response to a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// HTTP status.
    pub code: u16,
}

/// Reads a log. Skips an incomplete last line.
pub(super) fn read(path: &Path) -> Vec<Record> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    whole.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"))).collect()
}
