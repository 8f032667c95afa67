//! Expected and actual digests of a file.

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::{DownloadError, ExpectedDigest, ModelFile};

/// Running digest of the bytes of one file.
#[derive(Clone)]
pub struct Digest {
    bytes: u64,
    sha256: Context,
    /// Bytes of a small file. A blob id starts with the length, which is known only at the end, so the bytes are kept.
    small: Option<Vec<u8>>,
}

/// Largest file whose bytes are kept. A hub stores only configuration and tokenizers in git itself; weights have
/// SHA-256.
const SMALL_BYTES: usize = 64 << 20;

impl Digest {
    pub fn new() -> Self {
        Digest { bytes: 0, sha256: Context::new(&SHA256), small: Some(Vec::new()) }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.sha256.update(bytes);
        if let Some(kept) = &mut self.small {
            kept.extend_from_slice(bytes);
        }
        if self.bytes > SMALL_BYTES as u64 {
            self.small = None;
        }
    }

    /// Compares the bytes with the expected length and digest.
    pub fn check(&self, item: &ModelFile) -> Result<(), DownloadError> {
        let file = || item.name.clone();
        if self.bytes != item.bytes {
            return Err(DownloadError::Size { file: file(), bytes: self.bytes, expected: item.bytes });
        }
        let (expected, digest) = match &item.expected {
            ExpectedDigest::Length => return Ok(()),
            ExpectedDigest::Sha256(expected) => (expected, hex(self.sha256.clone().finish().as_ref())),
            ExpectedDigest::GitBlob(expected) => (expected, self.git_blob()),
        };
        if digest.eq_ignore_ascii_case(expected) {
            return Ok(());
        }
        Err(DownloadError::Digest { file: file(), digest, expected: expected.clone() })
    }

    fn git_blob(&self) -> String {
        let Some(content) = &self.small else { return "not computed, because the file is too large".into() };
        let mut sha1 = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        sha1.update(format!("blob {}\0", content.len()).as_bytes());
        sha1.update(content);
        hex(sha1.finish().as_ref())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(bytes: &[u8], expected: ExpectedDigest) -> Result<(), DownloadError> {
        let mut digest = Digest::new();
        bytes.chunks(3).for_each(|chunk| digest.update(chunk));
        digest.check(&ModelFile { name: "f".into(), bytes: 6, expected, tag: None })
    }

    /// Output of `sha256sum` and `git hash-object` for the bytes `sluice`.
    const SHA256_OF_SLUICE: &str = "0f5aec3c8edf964bb5260e4ae806d31feaab06f39a65ddba9d86e499bfae8476";
    const BLOB_OF_SLUICE: &str = "3a962d64ad3703d4d7bdb64f2d444fa5ee75d18b";

    #[test]
    fn digests_match_standard_tools() {
        check(b"sluice", ExpectedDigest::Sha256(SHA256_OF_SLUICE.into())).unwrap();
        check(b"sluice", ExpectedDigest::GitBlob(BLOB_OF_SLUICE.to_uppercase())).unwrap();
        check(b"sluice", ExpectedDigest::Length).unwrap();
    }

    #[test]
    fn digest_mismatch_reports_both_digests() {
        let wrong = check(b"sluicE", ExpectedDigest::Sha256(SHA256_OF_SLUICE.into())).unwrap_err();
        assert!(
            wrong.to_string().ends_with(&format!("but the source reports {SHA256_OF_SLUICE}")),
            "{wrong}"
        );
        assert!(check(b"sluicE", ExpectedDigest::GitBlob(BLOB_OF_SLUICE.into())).is_err());
        let short = check(b"sluic", ExpectedDigest::Length).unwrap_err();
        assert_eq!(short.to_string(), "f: received 5 of 6 bytes");
    }
}
