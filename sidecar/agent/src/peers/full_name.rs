//! The name of a tenant in the ledger.

/// Returns `namespace/name`, the name of a tenant in the ledger.
pub fn full_name(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}
