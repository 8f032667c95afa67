//! API keys: a file with one key per line, which is read again when it changes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::bearer_token::constant_time_eq;
use crate::credential_reload::ReloadableCredentials;

/// Some editors put it at the start of a file.
const BYTE_ORDER_MARK: char = '\u{feff}';

/// Keys that authorize requests; without a key file every request is authorized. Clones share the keys.
#[derive(Clone, Default)]
pub struct ApiKeys(Option<Arc<KeyFile>>);

/// The keys of a file, as of its last valid read.
pub struct KeyFile {
    path: PathBuf,
    keys: RwLock<Vec<String>>,
}

/// Why a key file cannot be used. Errors name a line by its number only, because it may contain a secret.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeysError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// The file contains no key.
    #[error("{} contains no key", .0.display())]
    None(PathBuf),
    /// A line is not a valid key.
    #[error("{}: line {line} is not a key: a key consists of visible ASCII characters without spaces", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
    },
}

impl std::fmt::Debug for ApiKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            None => f.write_str("no keys"),
            Some(file) => write!(f, "{file:?}"),
        }
    }
}

impl std::fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "keys of {}", self.path.display())
    }
}

impl ApiKeys {
    /// Loads the keys of a file.
    ///
    /// # Errors
    /// The file cannot be read, contains no key, or has a line that is neither a key nor a comment.
    pub fn load(path: &Path) -> Result<ApiKeys, ApiKeysError> {
        let keys = RwLock::new(read(path)?);
        Ok(ApiKeys(Some(Arc::new(KeyFile { path: path.to_owned(), keys }))))
    }

    /// Returns the key file, if any, so that it can be reloaded.
    pub fn file(&self) -> Option<Arc<KeyFile>> {
        self.0.clone()
    }

    /// Whether a request with `key` is authorized.
    pub fn is_authorized(&self, key: Option<&str>) -> bool {
        self.0.as_ref().is_none_or(|file| key.is_some_and(|key| file.contains(key)))
    }
}

impl KeyFile {
    /// Compares with every key, so that the time does not reveal a partial match.
    fn contains(&self, key: &str) -> bool {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().fold(false, |known, one| known | constant_time_eq(one, key))
    }
}

impl ReloadableCredentials for KeyFile {
    type Error = ApiKeysError;
    const NAME: &'static str = "api_keys";

    /// Replaces the keys. Running requests continue; the next request with a removed key is refused.
    fn reload(&self) -> Result<bool, ApiKeysError> {
        let now = read(&self.path)?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let changed = *keys != now;
        *keys = now;
        Ok(changed)
    }
}

fn read(path: &Path) -> Result<Vec<String>, ApiKeysError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| ApiKeysError::Read { path: path.to_owned(), error })?;
    parse(&text, path)
}

/// Parses one key per line. Ignores surrounding blanks, empty lines and lines that begin with `#`.
fn parse(text: &str, path: &Path) -> Result<Vec<String>, ApiKeysError> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let key = line.trim();
        if key.is_empty() || key.starts_with('#') {
            continue;
        }
        // A header cannot contain it, so it would be a key that authorizes no request.
        if !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ApiKeysError::Line { path: path.to_owned(), line: index + 1 });
        }
        keys.push(key.to_owned());
    }
    if keys.is_empty() { Err(ApiKeysError::None(path.to_owned())) } else { Ok(keys) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<String>, String> {
        parse(text, Path::new("keys")).map_err(|error| error.to_string())
    }

    #[test]
    fn key_file_tolerates_blanks_comments_and_bom() {
        let two = Ok(vec!["sk-one".to_owned(), "sk-two".to_owned()]);
        for text in [
            "sk-one\nsk-two\n",
            "sk-one\r\nsk-two\r\n",
            "sk-one\nsk-two",
            "\n  sk-one  \n\nsk-two\t\n",
            "\u{feff}sk-one\nsk-two\n",
            "\u{feff}# team a\r\nsk-one\r\n  # team b\r\nsk-two\r\n",
        ] {
            assert_eq!(parsed(text), two, "{text:?}");
        }
    }

    #[test]
    fn empty_file_and_unprintable_key_are_refused() {
        for text in ["", "\n\n", "# team a\n", "\u{feff}", "\u{feff}# team a\n"] {
            assert_eq!(parsed(text), Err("keys contains no key".into()), "{text:?}");
        }
        for line in ["sk-two # team b", "sk two", "schlüssel", "sk-\u{200b}two", "sk-two\u{feff}", "s\0k"] {
            let error = parsed(&format!("# all\nsk-one\n{line}\n")).unwrap_err();
            assert!(error.starts_with("keys: line 3 is not a key"), "{line:?}: {error}");
            assert!(!error.contains("two"), "a secret is not for logs: {error}");
        }
    }

    #[test]
    fn reload_replaces_keys_and_bad_file_keeps_old_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "sk-one\nsk-two\n").unwrap();
        let keys = ApiKeys::load(&path).unwrap();
        let file = keys.file().unwrap();
        let opens = |key: &str| keys.clone().is_authorized(Some(key));
        assert!(!file.reload().unwrap());
        assert!(opens("sk-one") && opens("sk-two") && !opens("sk-three") && !keys.is_authorized(None));
        std::fs::write(&path, "sk-two\nsk-three\n").unwrap();
        assert!(file.reload().unwrap());
        assert!(!opens("sk-one") && opens("sk-two") && opens("sk-three"));
        for bad in [&b"# nobody\n"[..], b"sk-one oops\n", b"\xff\xfes\0k\0"] {
            std::fs::write(&path, bad).unwrap();
            let _ = file.reload().expect_err("it is bad");
            assert!(!opens("sk-one") && opens("sk-two"), "{bad:?}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(file.reload(), Err(ApiKeysError::Read { .. })));
        assert!(opens("sk-two"));
    }

    #[test]
    fn no_key_file_authorizes_every_request() {
        assert!(ApiKeys::default().is_authorized(None) && ApiKeys::default().is_authorized(Some("any")));
    }
}
