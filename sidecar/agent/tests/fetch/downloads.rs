//! Tests of model downloads, from small servers with the real protocols.
// Helpers outside of test functions unwrap too.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use rusty_s3::Credentials;
use sluice_agent::download::{
    Bucket, DownloadError, Hub, ProgressOutput, RetryPolicy, Source, download_model,
};

use super::server::{COMMIT, Server, ServerBehavior, model};

/// Short waits, so that tests are fast.
const POLICY: RetryPolicy = RetryPolicy {
    max_tries: 3,
    connect_tries: 3,
    initial_backoff: Duration::from_millis(1),
    max_backoff: Duration::from_millis(1),
};

fn with_model() -> ServerBehavior {
    ServerBehavior { files: model(), ..ServerBehavior::default() }
}

fn hub(server: &Server, token: Option<&str>) -> Source {
    let token = token.map(str::to_owned);
    Source::Hub(Hub::new(&server.endpoint(), "org/tiny", "feature/x", token).expect("an endpoint"))
}

fn bucket(server: &Server, credentials: Option<Credentials>) -> Source {
    let endpoint = server.endpoint();
    let bucket = Bucket::new(Some(&endpoint), "eu-west-1", "bucket", "models/tiny", credentials);
    Source::Bucket(bucket.expect("an endpoint"))
}

async fn run_download(source: &Source, to: &Path) -> Result<(), DownloadError> {
    download_model(source, to, POLICY, ProgressOutput::Log).await
}

/// Asserts that the folder holds exactly the files that a sidecar reads, besides marker and lock.
fn assert_whole(folder: &Path) {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with(".sluice-"))
        .collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    for name in names {
        assert_eq!(std::fs::read(folder.join(&name)).unwrap(), model()[&name], "{name}");
    }
}

#[tokio::test]
async fn hub_and_bucket_download_model_files() {
    let server = Server::start(with_model()).await;
    for source in [hub(&server, None), bucket(&server, None)] {
        let folder = tempfile::tempdir().unwrap();
        run_download(&source, folder.path()).await.unwrap();
        assert_whole(folder.path());
    }
}

#[tokio::test]
async fn concurrent_downloads_into_one_folder_are_serialized() {
    let server = Server::start(with_model()).await;
    let folder = tempfile::tempdir().unwrap();
    let source = hub(&server, None);
    let both = tokio::join!(run_download(&source, folder.path()), run_download(&source, folder.path()));
    both.0.unwrap();
    both.1.unwrap();
    assert_whole(folder.path());
    let seen = server.behaviour.lock().unwrap().requests.clone();
    let weights = seen.iter().filter(|request| request.0.ends_with("model.safetensors"));
    assert_eq!(weights.count(), 1, "{seen:?}");
}

#[tokio::test]
async fn branch_is_pinned_to_commit() {
    let server = Server::start(with_model()).await;
    let folder = tempfile::tempdir().unwrap();
    run_download(&hub(&server, None), folder.path()).await.unwrap();
    let seen = server.behaviour.lock().unwrap().requests.clone();
    // A slash in a branch's name is escaped in the path.
    assert_eq!(seen[0].0, "/api/models/org/tiny/revision/feature%2Fx");
    assert_eq!(seen[1].0, format!("/api/models/org/tiny/revision/{COMMIT}"));
}

#[tokio::test]
async fn broken_connection_resumes() {
    for over_s3 in [false, true] {
        let server = Server::start(ServerBehavior { truncated_responses: 4, ..with_model() }).await;
        let source = if over_s3 { bucket(&server, None) } else { hub(&server, None) };
        let folder = tempfile::tempdir().unwrap();
        run_download(&source, folder.path()).await.unwrap();
        assert_whole(folder.path());
        let halves: Vec<_> = server.ranges().into_iter().map(|range| range.unwrap_or_default()).collect();
        assert_eq!(halves, ["", "bytes=50000-", "bytes=75000-", "bytes=87500-", "bytes=93750-"]);
    }
}

#[tokio::test]
async fn restart_resumes_partial_files() {
    let server = Server::start(with_model()).await;
    let folder = tempfile::tempdir().unwrap();
    let part = &model()["model.safetensors"][..1234];
    std::fs::write(folder.path().join("model.safetensors.part"), part).unwrap();
    run_download(&hub(&server, None), folder.path()).await.unwrap();
    assert_whole(folder.path());
    assert_eq!(server.ranges(), [Some("bytes=1234-".to_owned())]);
    run_download(&hub(&server, None), folder.path()).await.unwrap();
    assert_eq!(server.ranges().len(), 1, "all was there");
}

#[tokio::test]
async fn complete_folder_sends_no_request() {
    for over_s3 in [false, true] {
        let server = Server::start(with_model()).await;
        let source = if over_s3 { bucket(&server, None) } else { hub(&server, None) };
        let folder = tempfile::tempdir().unwrap();
        run_download(&source, folder.path()).await.unwrap();
        let asked = || server.behaviour.lock().unwrap().requests.len();
        let before = asked();
        run_download(&source, folder.path()).await.unwrap();
        assert_eq!(asked(), before, "a pod that starts again in place sends no request");
        let other = Source::Hub(Hub::new(&server.endpoint(), "org/tiny", "main", None).unwrap());
        run_download(&other, folder.path()).await.unwrap();
        assert!(asked() > before, "another revision is another model");

        run_download(&source, folder.path()).await.unwrap();
        let before = asked();
        std::fs::write(folder.path().join("config.json"), b"{}").unwrap();
        run_download(&source, folder.path()).await.unwrap();
        assert!(asked() > before, "a spoilt file is brought anew");
        assert_whole(folder.path());
    }
}

#[tokio::test]
async fn server_without_ranges_restarts_file() {
    let server = Server::start(ServerBehavior { ignores_ranges: true, ..with_model() }).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors.part"), b"something").unwrap();
    run_download(&hub(&server, None), folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn partial_file_of_other_version_is_discarded() {
    let server = Server::start(with_model()).await;
    let (short, long) = (vec![7; 1000], vec![7; 200_000]);
    for rest in [short, long] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors.part"), rest).unwrap();
        run_download(&hub(&server, None), folder.path()).await.unwrap();
        assert_whole(folder.path());
    }
}

#[tokio::test]
async fn corrupted_file_is_downloaded_again() {
    let server = Server::start(with_model()).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), vec![0; 100_000]).unwrap();
    run_download(&hub(&server, None), folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn digest_mismatch_is_not_committed() {
    for (name, digest) in [("model.safetensors", "0".repeat(64)), ("config.json", "1".repeat(40))] {
        let false_digests = [(name.to_owned(), digest.clone())].into();
        let server = Server::start(ServerBehavior { false_digests, ..with_model() }).await;
        let folder = tempfile::tempdir().unwrap();
        let refused = run_download(&hub(&server, None), folder.path()).await.unwrap_err();
        assert!(matches!(&refused, DownloadError::Digest { file, .. } if file == name), "{refused}");
        assert!(refused.is_final() && refused.to_string().contains(&digest), "{refused}");
        assert!(!folder.path().join(name).exists());
    }
}

#[tokio::test]
async fn endless_response_is_cut() {
    let server = Server::start(ServerBehavior { is_endless: true, ..with_model() }).await;
    for source in [hub(&server, None), bucket(&server, None)] {
        let folder = tempfile::tempdir().unwrap();
        let fetched =
            tokio::time::timeout(Duration::from_secs(60), run_download(&source, folder.path())).await;
        let refused = fetched.expect("it ends").unwrap_err();
        assert!(matches!(refused, DownloadError::Size { .. }), "{refused}");
        let left =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert!(left.sum::<u64>() < 1 << 20, "nothing of it is kept");
    }
}

#[tokio::test]
async fn credentials_are_sent_and_rejection_is_final() {
    let server =
        Server::start(ServerBehavior { required_credential: Some("right".into()), ..with_model() }).await;
    let keys = |key: &str| Some(Credentials::new(key, "secret"));
    for source in [hub(&server, Some("right")), bucket(&server, keys("right"))] {
        let folder = tempfile::tempdir().unwrap();
        run_download(&source, folder.path()).await.unwrap();
        assert_whole(folder.path());
    }
    for source in [hub(&server, None), hub(&server, Some("forged")), bucket(&server, keys("forged"))] {
        server.behaviour.lock().unwrap().requests.clear();
        let folder = tempfile::tempdir().unwrap();
        let refused = run_download(&source, folder.path()).await.unwrap_err();
        assert!(matches!(refused, DownloadError::Refused { .. }) && refused.is_final(), "{refused}");
        assert_eq!(server.behaviour.lock().unwrap().requests.len(), 1, "a refusal is not asked for twice");
        let text = format!("{refused} {source:?}");
        assert!(!text.contains("forged") && !text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn unavailable_service_is_retried_up_to_limit() {
    let server = Server::start(ServerBehavior { unavailable: 2, ..with_model() }).await;
    let folder = tempfile::tempdir().unwrap();
    run_download(&bucket(&server, None), folder.path()).await.unwrap();
    server.behaviour.lock().unwrap().unavailable = 1000;
    let empty = tempfile::tempdir().unwrap();
    let gave_up = run_download(&bucket(&server, None), empty.path()).await.unwrap_err();
    assert!(!gave_up.is_final() && gave_up.to_string().contains("503"), "{gave_up}");
}

#[tokio::test]
async fn unreachable_service_fails_after_connect_tries() {
    // Bound but not listening: connections are refused, and no other program gets the port.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let source = Source::Hub(Hub::new(&format!("http://{address}"), "org/tiny", "main", None).unwrap());
    let folder = tempfile::tempdir().unwrap();
    // With `max_tries` and these waits the download would retry for weeks.
    let policy = RetryPolicy { max_tries: 1000, max_backoff: Duration::from_secs(3600), ..POLICY };
    let asked = download_model(&source, folder.path(), policy, ProgressOutput::Log);
    let gave_up = tokio::time::timeout(Duration::from_secs(20), asked).await.expect("few tries").unwrap_err();
    let words = gave_up.to_string();
    assert!(words.starts_with(&format!("{address} cannot be reached: ")), "{words}");
    assert!(words.contains("refused") && !gave_up.is_final(), "{words}");
}

#[tokio::test]
async fn long_list_is_paged() {
    let server = Server::start(ServerBehavior { page: Some(2), ..with_model() }).await;
    let folder = tempfile::tempdir().unwrap();
    run_download(&bucket(&server, None), folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn non_model_is_refused_before_download() {
    let mut files = model();
    files.remove("model.safetensors");
    let server = Server::start(ServerBehavior { files, ..ServerBehavior::default() }).await;
    let folder = tempfile::tempdir().unwrap();
    for source in [hub(&server, None), bucket(&server, None)] {
        let refused = run_download(&source, folder.path()).await.unwrap_err();
        let text = refused.to_string();
        assert!(text.ends_with("is not a model: it lacks a file that ends in .safetensors"), "{text}");
    }
    let elsewhere = Hub::new(&server.endpoint(), "org/none", "main", None).unwrap();
    let refused = run_download(&Source::Hub(elsewhere), folder.path()).await.unwrap_err();
    assert!(matches!(refused, DownloadError::NotFound { .. }) && refused.is_final(), "{refused}");
    assert!(server.ranges().is_empty());
}

#[test]
fn invalid_endpoint_is_refused() {
    for endpoint in ["not an address", "file:///models", "mailto:a@b"] {
        let refused = Hub::new(endpoint, "a/b", "main", None).unwrap_err();
        assert!(refused.to_string().contains(endpoint), "{refused}");
        assert!(Bucket::new(Some(endpoint), "r", "bucket", "", None).is_err());
    }
}
