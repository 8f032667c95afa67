//! What a download reports while it runs, and the record that it leaves in a folder that is whole.
//!
//! `sluice-sidecar fetch --progress` writes [`DownloadReport`]s to standard output, one JSON object a line. `sluice
//! run` shows
//! them, and `sluice models` reads the [`CompletionMarker`].

use serde::{Deserialize, Serialize};

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Bytes in the folder, those of an earlier start included.
    pub present_bytes: u64,
    /// Bytes of all files of the download.
    pub total_bytes: u64,
}

/// A failure after which the download tries again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retry {
    /// What failed, for people.
    pub problem: String,
    /// Time until the next try, milliseconds.
    pub retry_in_ms: u64,
}

/// A line of a download that reports its progress.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DownloadReport {
    /// How far it is.
    Progress(Progress),
    /// It waits after a failure.
    Retry(Retry),
}

/// A folder that holds all files of its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletionMarker {
    /// [`CompletionMarker::VERSION`] of the build that wrote it.
    pub version: u32,
    /// Source as the user named it: a branch, not the commit of that day.
    pub source: String,
    /// All files. The writer also records their digests, which readers of this type skip.
    pub items: Vec<CompletedFile>,
}

/// A file of a [`CompletionMarker`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompletedFile {
    /// Name in the folder.
    pub name: String,
    /// Length.
    pub bytes: u64,
}

impl CompletionMarker {
    /// Name of the file in the folder.
    pub const FILE: &'static str = ".sluice-fetched.json";
    /// Version of the layout.
    pub const VERSION: u32 = 1;

    /// The receipt in `json`; `None` for another layout.
    pub fn from_json(json: &[u8]) -> Option<CompletionMarker> {
        let receipt: CompletionMarker = serde_json::from_slice(json).ok()?;
        (receipt.version == CompletionMarker::VERSION).then_some(receipt)
    }
}

/// Suffix of a file that is not whole yet.
pub const PART_SUFFIX: &str = ".part";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_progress_or_a_retry() {
        let read = |line: &str| serde_json::from_str::<DownloadReport>(line).ok();
        let progress = Progress { present_bytes: 1, total_bytes: 2 };
        assert_eq!(read(r#"{"present_bytes":1,"total_bytes":2}"#), Some(DownloadReport::Progress(progress)));
        let retry =
            DownloadReport::Retry(Retry { problem: "hub cannot be reached".into(), retry_in_ms: 500 });
        let line = r#"{"problem":"hub cannot be reached","retry_in_ms":500}"#;
        assert_eq!(serde_json::to_string(&retry).unwrap(), line);
        assert_eq!(read(line), Some(retry));
        assert_eq!(read(r#"{"version":1,"refusal":{}}"#), None, "the report of an inspection is neither");
    }

    #[test]
    fn marker_of_other_version_is_none() {
        let text = |version| {
            format!(
                "{{\"version\":{version},\"source\":\"s\",\"items\":[{{\"name\":\"a\",\"bytes\":3,\"expected\":\"Length\"}}]}}"
            )
        };
        let read = CompletionMarker::from_json(text(1).as_bytes()).unwrap();
        assert_eq!(read.items, [CompletedFile { name: "a".into(), bytes: 3 }]);
        assert_eq!(CompletionMarker::from_json(text(2).as_bytes()), None);
        assert_eq!(CompletionMarker::from_json(b"{"), None);
    }
}
