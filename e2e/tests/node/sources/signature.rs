//! Checks AWS Signature Version 4 in the query of a URL, computed from its specification ("Authenticating Requests:
//! Using Query Parameters") and independent of the client's code.

use std::fmt::Write as _;

use axum::http::Request;
use ring::digest::{SHA256, digest};
use ring::hmac::{HMAC_SHA256, Key, sign};

/// A key that signs requests.
#[derive(Clone, Copy, Debug)]
pub struct Signer {
    /// Id of the key.
    pub key: &'static str,
    /// The secret.
    pub secret: &'static str,
}

impl Signer {
    /// Whether this key has signed the request.
    pub fn signed<B>(&self, request: &Request<B>) -> bool {
        self.check(request).unwrap_or(false)
    }

    /// `None` if a parameter is missing.
    fn check<B>(&self, request: &Request<B>) -> Option<bool> {
        let query = request.uri().query()?;
        let mut pairs: Vec<&str> = query.split('&').collect();
        let value = |name: &str| pairs.iter().find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let signature = value("X-Amz-Signature")?.to_owned();
        let (time, credential) =
            (value("X-Amz-Date")?.to_owned(), value("X-Amz-Credential")?.replace("%2F", "/"));
        let scope = credential.strip_prefix(self.key)?.strip_prefix('/')?.to_owned();
        pairs.retain(|pair| !pair.starts_with("X-Amz-Signature="));
        pairs.sort_unstable();
        let host = request.headers().get("host")?.to_str().ok()?;
        let canonical = format!(
            "{}\n{}\n{}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD",
            request.method(),
            request.uri().path(),
            pairs.join("&")
        );
        let digest = hex(digest(&SHA256, canonical.as_bytes()).as_ref());
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{digest}");
        let mut key = format!("AWS4{}", self.secret).into_bytes();
        for part in scope.split('/').chain([text.as_str()]) {
            key = sign(&Key::new(HMAC_SHA256, &key), part.as_bytes()).as_ref().to_vec();
        }
        Some(hex(&key) == signature)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[test]
fn a_signature_is_checked_as_its_description_has_it() {
    // The example of the specification.
    let url = "https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256\
        &X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z\
        &X-Amz-Expires=86400&X-Amz-SignedHeaders=host\
        &X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404";
    let request = Request::get(url).header("host", "examplebucket.s3.amazonaws.com").body(()).unwrap();
    let own = Signer { key: "AKIAIOSFODNN7EXAMPLE", secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY" };
    assert!(own.signed(&request));
    assert!(!Signer { secret: "another", ..own }.signed(&request));
    assert!(!Signer { key: "another", ..own }.signed(&request));
}
