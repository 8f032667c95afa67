//! The bearer token of a request, and its comparison.

use axum::http::{HeaderMap, header};

/// Returns the bearer token of a request. The scheme is case-insensitive, and blanks may follow it (RFC 9110, 11.4).
pub fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_matches(' '))
}

/// Compares in a time that does not depend on which bytes differ.
pub fn constant_time_eq(a: &str, b: &str) -> bool {
    let differences = a.bytes().zip(b.bytes()).fold(0, |found, (x, y)| found | (x ^ y));
    a.len() == b.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_scheme_ignores_case_and_extra_blanks() {
        let shown = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            bearer_token(&headers).map(str::to_owned)
        };
        for value in
            ["Bearer sk-one", "bearer sk-one", "BEARER sk-one", "Bearer  sk-one", "bEaReR    sk-one "]
        {
            assert_eq!(shown(value).as_deref(), Some("sk-one"), "{value:?}");
        }
        for value in ["sk-one", "Bearersk-one", "Basic sk-one", "Bearer", " Bearer sk-one"] {
            assert_eq!(shown(value), None, "{value:?}");
        }
        assert_eq!(shown("Bearer  ").as_deref(), Some(""));
        assert_eq!(shown("Bearer sk one").as_deref(), Some("sk one"), "one token, which is no key");
    }

    #[test]
    fn constant_time_eq_equals_plain_eq() {
        assert!(constant_time_eq("abc", "abc"));
        for other in ["", "ab", "abd", "abcd", "Abc"] {
            assert!(!constant_time_eq(other, "abc") && !constant_time_eq("abc", other), "{other}");
        }
    }
}
