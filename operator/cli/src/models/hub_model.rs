//! A model of a hub, as users name it: `ORG/NAME[@REVISION]` or `https://HOST/ORG/NAME[/tree/REVISION]`. Pure.

use std::fmt;

use reqwest::Url;

/// Revision of a model that is named without one.
pub const DEFAULT_REVISION: &str = "main";
/// Hub of a model that is named without a host.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// A repository of a hub, at a branch, tag or commit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HubModel {
    /// Address of the hub, without a slash at its end.
    pub endpoint: String,
    /// Host of the endpoint, with its port and path if any. Names the hub in the cache.
    pub host: String,
    /// `ORG/NAME`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Whether the user's hub token is sent: only to the default hub or that of `--endpoint`, not to
    /// one that a URL names.
    pub sends_token: bool,
}

/// Why a name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ModelNameError(String);

impl HubModel {
    /// Parses `ORG/NAME[@REVISION]`, of the hub at `endpoint`, or a URL, which names its own hub.
    ///
    /// # Errors
    /// The text has neither form; the message says which part is wrong.
    pub fn parse(text: &str, endpoint: &str) -> Result<HubModel, ModelNameError> {
        let url = parse_url(endpoint)?;
        if text.contains("://") {
            let model = from_url(text)?;
            let own = [DEFAULT_ENDPOINT, url.as_str().trim_end_matches('/')];
            return Ok(HubModel { sends_token: own.contains(&model.endpoint.as_str()), ..model });
        }
        let (repo, revision) = text.split_once('@').unwrap_or((text, DEFAULT_REVISION));
        Ok(HubModel { sends_token: true, ..HubModel::new(&url, repo, revision)? })
    }

    fn new(endpoint: &Url, repo: &str, revision: &str) -> Result<HubModel, ModelNameError> {
        let parts: Vec<_> = repo.split('/').collect();
        if parts.len() != 2 {
            return Err(ModelNameError(format!("`{repo}` is not ORG/NAME")));
        }
        if let Some(part) = parts.iter().find(|part| !is_name(part)) {
            return Err(ModelNameError(format!(
                "`{part}` in `{repo}` is not a valid name of a hub: use letters, digits, `-`, `_` and `.`, \
                 and begin with a letter or digit"
            )));
        }
        if revision.is_empty() || revision.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(ModelNameError(format!("`{revision}` is not a valid branch, tag or commit")));
        }
        let text = endpoint.as_str().trim_end_matches('/').to_owned();
        let host = text.split_once("://").map_or(text.as_str(), |(_, host)| host).to_owned();
        let (repo, revision) = (repo.to_owned(), revision.to_owned());
        Ok(HubModel { endpoint: text, host, repo, revision, sends_token: false })
    }

    /// Whether the model is on the hub of names without a host.
    pub fn is_on_default_hub(&self) -> bool {
        self.endpoint == DEFAULT_ENDPOINT
    }
}

fn is_name(part: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    part.starts_with(|first: char| first.is_ascii_alphanumeric())
        && part.len() <= 96
        && part.bytes().all(inner)
}

fn parse_url(text: &str) -> Result<Url, ModelNameError> {
    let url =
        Url::parse(text).map_err(|error| ModelNameError(format!("`{text}` is not a valid URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(ModelNameError(format!("`{text}`: the scheme must be https or http")));
    }
    if url.password().is_some() || !url.username().is_empty() {
        return Err(ModelNameError(
            "a URL must not contain a password; put a token into the variable HF_TOKEN".into(),
        ));
    }
    Ok(url)
}

/// `https://HOST/ORG/NAME` or `https://HOST/ORG/NAME/tree/REVISION`.
fn from_url(text: &str) -> Result<HubModel, ModelNameError> {
    let mut url = parse_url(text)?;
    let path = url.path().trim_matches('/').to_owned();
    let parts: Vec<_> = path.splitn(4, '/').collect();
    let (repo, revision) = match parts[..] {
        [org, name] => (format!("{org}/{name}"), DEFAULT_REVISION.to_owned()),
        [org, name, "tree", revision] => (format!("{org}/{name}"), decode(revision)),
        _ => {
            return Err(ModelNameError(format!(
                "`{text}` is not https://HOST/ORG/NAME or https://HOST/ORG/NAME/tree/REVISION"
            )));
        }
    };
    url.set_path("");
    url.set_query(None);
    url.set_fragment(None);
    HubModel::new(&url, &repo, &revision)
}

/// Decodes a revision: one with slashes is one segment of the hub's paths, and a URL may contain it in either form.
fn decode(revision: &str) -> String {
    revision.replace("%2F", "/").replace("%2f", "/")
}

impl fmt::Display for HubModel {
    /// Formats the name by which the user finds the model again, without defaults.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_on_default_hub() {
            write!(f, "{}/", self.host)?;
        }
        f.write_str(&self.repo)?;
        if self.revision != DEFAULT_REVISION {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String, String, String) {
        let model = HubModel::parse(text, DEFAULT_ENDPOINT).unwrap();
        (model.endpoint.clone(), model.repo.clone(), model.revision.clone(), model.to_string())
    }

    #[test]
    fn a_repository_and_a_url_name_the_same_model() {
        let of = |endpoint: &str, revision: &str, shown: &str| {
            (endpoint.to_owned(), "org/tiny".to_owned(), revision.to_owned(), shown.to_owned())
        };
        let hub = DEFAULT_ENDPOINT;
        assert_eq!(parsed("org/tiny"), of(hub, "main", "org/tiny"));
        assert_eq!(parsed("https://huggingface.co/org/tiny"), of(hub, "main", "org/tiny"));
        assert_eq!(parsed("https://huggingface.co/org/tiny/"), of(hub, "main", "org/tiny"));
        assert_eq!(parsed("org/tiny@v1"), of(hub, "v1", "org/tiny@v1"));
        assert_eq!(parsed("https://huggingface.co/org/tiny/tree/v1"), of(hub, "v1", "org/tiny@v1"));
        assert_eq!(parsed("https://huggingface.co/org/tiny/tree/a%2Fb").2, "a/b");
        assert_eq!(parsed("https://huggingface.co/org/tiny/tree/a/b").2, "a/b");
        let mirror = "http://127.0.0.1:9000";
        assert_eq!(parsed("http://127.0.0.1:9000/org/tiny"), of(mirror, "main", "127.0.0.1:9000/org/tiny"));
        let on_mirror = HubModel::parse("org/tiny", "http://127.0.0.1:9000/").unwrap();
        assert_eq!(on_mirror, HubModel::parse("http://127.0.0.1:9000/org/tiny", mirror).unwrap());
    }

    #[test]
    fn token_is_sent_only_to_configured_hub() {
        let takes = |text, endpoint| HubModel::parse(text, endpoint).unwrap().sends_token;
        let mirror = "http://127.0.0.1:9000/";
        assert!(takes("org/tiny", DEFAULT_ENDPOINT) && takes("org/tiny", mirror));
        assert!(takes("https://huggingface.co/org/tiny", DEFAULT_ENDPOINT));
        assert!(takes("https://huggingface.co/org/tiny", mirror));
        assert!(takes("http://127.0.0.1:9000/org/tiny", mirror));
        assert!(!takes("http://127.0.0.1:9000/org/tiny", DEFAULT_ENDPOINT));
        assert!(!takes("http://huggingface.co/org/tiny", DEFAULT_ENDPOINT), "not in clear text");
        assert!(!takes("https://huggingface.co.example/org/tiny", DEFAULT_ENDPOINT));
    }

    #[test]
    fn invalid_hub_name_reports_wrong_part() {
        for (text, words) in [
            ("tiny", "`tiny` is not ORG/NAME"),
            ("a/b/c", "`a/b/c` is not ORG/NAME"),
            ("org/", "`` in `org/` is not a valid name"),
            ("../tiny", "`..` in `../tiny` is not a valid name"),
            ("org/ti ny", "`ti ny` in"),
            ("org/tiny@", "`` is not a valid branch"),
            ("ftp://h/org/tiny", "the scheme must be https or http"),
            ("https://h/org", "is not https://HOST/ORG/NAME"),
            ("https://h/org/tiny/blob/main/config.json", "is not https://HOST/ORG/NAME"),
            ("https://user:secret@h/org/tiny", "HF_TOKEN"),
        ] {
            let refused = HubModel::parse(text, DEFAULT_ENDPOINT).unwrap_err().to_string();
            assert!(refused.contains(words), "{text}: {refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }
}
