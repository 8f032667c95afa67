//! The cause of a failed HTTP request.

/// Returns the innermost cause. The outer ones only name the request.
pub fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
