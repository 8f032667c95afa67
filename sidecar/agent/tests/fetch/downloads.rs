//! Downloads of models, from small servers that speak the real protocols.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use rusty_s3::Credentials;
use sluice_agent::fetch::{Bucket, FetchError, Hub, ProgressReport, RetryPolicy, Source, fetch};

use super::server::{Behaviour, COMMIT, Server, model};

/// Impatient: tests wait for nobody.
const POLICY: RetryPolicy = RetryPolicy {
    tries: 3,
    connect_tries: 3,
    first: Duration::from_millis(1),
    longest: Duration::from_millis(1),
};

fn with_model() -> Behaviour {
    Behaviour { files: model(), ..Behaviour::default() }
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

async fn brought(source: &Source, to: &Path) -> Result<(), FetchError> {
    fetch(source, to, POLICY, ProgressReport::Log).await
}

/// The folder holds what a sidecar reads of the model, and nothing else, receipt and lock aside.
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
async fn both_kinds_of_source_bring_the_files_that_a_sidecar_reads() {
    let server = Server::start(with_model()).await;
    for source in [hub(&server, None), bucket(&server, None)] {
        let folder = tempfile::tempdir().unwrap();
        brought(&source, folder.path()).await.unwrap();
        assert_whole(folder.path());
    }
}

#[tokio::test]
async fn of_those_who_download_into_one_folder_one_does() {
    let server = Server::start(with_model()).await;
    let folder = tempfile::tempdir().unwrap();
    let source = hub(&server, None);
    let both = tokio::join!(brought(&source, folder.path()), brought(&source, folder.path()));
    both.0.unwrap();
    both.1.unwrap();
    assert_whole(folder.path());
    let seen = server.behaviour.lock().unwrap().seen.clone();
    let weights = seen.iter().filter(|request| request.0.ends_with("model.safetensors"));
    assert_eq!(weights.count(), 1, "{seen:?}");
}

#[tokio::test]
async fn a_branch_is_pinned_to_the_commit_that_it_names_at_the_start() {
    let server = Server::start(with_model()).await;
    let folder = tempfile::tempdir().unwrap();
    brought(&hub(&server, None), folder.path()).await.unwrap();
    let seen = server.behaviour.lock().unwrap().seen.clone();
    // A slash in a branch's name is not one of the path.
    assert_eq!(seen[0].0, "/api/models/org/tiny/revision/feature%2Fx");
    assert_eq!(seen[1].0, format!("/api/models/org/tiny/revision/{COMMIT}"));
}

#[tokio::test]
async fn a_line_that_is_cut_goes_on_where_it_was() {
    for over_s3 in [false, true] {
        let server = Server::start(Behaviour { breaks: 4, ..with_model() }).await;
        let source = if over_s3 { bucket(&server, None) } else { hub(&server, None) };
        let folder = tempfile::tempdir().unwrap();
        brought(&source, folder.path()).await.unwrap();
        assert_whole(folder.path());
        let halves: Vec<_> = server.ranges().into_iter().map(|range| range.unwrap_or_default()).collect();
        assert_eq!(halves, ["", "bytes=50000-", "bytes=75000-", "bytes=87500-", "bytes=93750-"]);
    }
}

#[tokio::test]
async fn another_start_goes_on_with_what_is_there_and_asks_for_nothing_twice() {
    let server = Server::start(with_model()).await;
    let folder = tempfile::tempdir().unwrap();
    let part = &model()["model.safetensors"][..1234];
    std::fs::write(folder.path().join("model.safetensors.part"), part).unwrap();
    brought(&hub(&server, None), folder.path()).await.unwrap();
    assert_whole(folder.path());
    assert_eq!(server.ranges(), [Some("bytes=1234-".to_owned())]);
    brought(&hub(&server, None), folder.path()).await.unwrap();
    assert_eq!(server.ranges().len(), 1, "all was there");
}

#[tokio::test]
async fn a_folder_that_is_whole_needs_nobody() {
    for over_s3 in [false, true] {
        let server = Server::start(with_model()).await;
        let source = if over_s3 { bucket(&server, None) } else { hub(&server, None) };
        let folder = tempfile::tempdir().unwrap();
        brought(&source, folder.path()).await.unwrap();
        let asked = || server.behaviour.lock().unwrap().seen.len();
        let before = asked();
        brought(&source, folder.path()).await.unwrap();
        assert_eq!(asked(), before, "a pod that starts again in place reaches nobody");
        let other = Source::Hub(Hub::new(&server.endpoint(), "org/tiny", "main", None).unwrap());
        brought(&other, folder.path()).await.unwrap();
        assert!(asked() > before, "another revision is another model");

        brought(&source, folder.path()).await.unwrap();
        let before = asked();
        std::fs::write(folder.path().join("config.json"), b"{}").unwrap();
        brought(&source, folder.path()).await.unwrap();
        assert!(asked() > before, "a spoilt file is brought anew");
        assert_whole(folder.path());
    }
}

#[tokio::test]
async fn a_server_without_ranges_sends_all_of_it_again() {
    let server = Server::start(Behaviour { no_ranges: true, ..with_model() }).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors.part"), b"something").unwrap();
    brought(&hub(&server, None), folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn the_rest_of_another_version_is_thrown_away() {
    let server = Server::start(with_model()).await;
    let (short, long) = (vec![7; 1000], vec![7; 200_000]);
    for rest in [short, long] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.safetensors.part"), rest).unwrap();
        brought(&hub(&server, None), folder.path()).await.unwrap();
        assert_whole(folder.path());
    }
}

#[tokio::test]
async fn a_file_that_was_spoilt_in_the_folder_is_fetched_again() {
    let server = Server::start(with_model()).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.safetensors"), vec![0; 100_000]).unwrap();
    brought(&hub(&server, None), folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn bytes_that_differ_from_the_told_digest_never_get_their_name() {
    for (name, told) in [("model.safetensors", "0".repeat(64)), ("config.json", "1".repeat(40))] {
        let told_of = [(name.to_owned(), told.clone())].into();
        let server = Server::start(Behaviour { told: told_of, ..with_model() }).await;
        let folder = tempfile::tempdir().unwrap();
        let refused = brought(&hub(&server, None), folder.path()).await.unwrap_err();
        assert!(matches!(&refused, FetchError::Digest { file, .. } if file == name), "{refused}");
        assert!(refused.is_final() && refused.to_string().contains(&told), "{refused}");
        assert!(!folder.path().join(name).exists());
    }
}

#[tokio::test]
async fn an_answer_without_an_end_is_not_read_for_ever() {
    let server = Server::start(Behaviour { endless: true, ..with_model() }).await;
    for source in [hub(&server, None), bucket(&server, None)] {
        let folder = tempfile::tempdir().unwrap();
        let fetched = tokio::time::timeout(Duration::from_secs(60), brought(&source, folder.path())).await;
        let refused = fetched.expect("it ends").unwrap_err();
        assert!(matches!(refused, FetchError::Size { .. }), "{refused}");
        let left =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert!(left.sum::<u64>() < 1 << 20, "nothing of it is kept");
    }
}

#[tokio::test]
async fn credentials_are_shown_and_a_wrong_one_is_told_at_once() {
    let server = Server::start(Behaviour { wants: Some("right".into()), ..with_model() }).await;
    let keys = |key: &str| Some(Credentials::new(key, "secret"));
    for source in [hub(&server, Some("right")), bucket(&server, keys("right"))] {
        let folder = tempfile::tempdir().unwrap();
        brought(&source, folder.path()).await.unwrap();
        assert_whole(folder.path());
    }
    for source in [hub(&server, None), hub(&server, Some("forged")), bucket(&server, keys("forged"))] {
        server.behaviour.lock().unwrap().seen.clear();
        let folder = tempfile::tempdir().unwrap();
        let refused = brought(&source, folder.path()).await.unwrap_err();
        assert!(matches!(refused, FetchError::Refused { .. }) && refused.is_final(), "{refused}");
        assert_eq!(server.behaviour.lock().unwrap().seen.len(), 1, "a refusal is not asked for twice");
        let said = format!("{refused} {source:?}");
        assert!(!said.contains("forged") && !said.contains("secret"), "{said}");
    }
}

#[tokio::test]
async fn a_service_that_is_down_for_a_moment_is_asked_again_and_not_for_ever() {
    let server = Server::start(Behaviour { unavailable: 2, ..with_model() }).await;
    let folder = tempfile::tempdir().unwrap();
    brought(&bucket(&server, None), folder.path()).await.unwrap();
    server.behaviour.lock().unwrap().unavailable = 1000;
    let empty = tempfile::tempdir().unwrap();
    let gave_up = brought(&bucket(&server, None), empty.path()).await.unwrap_err();
    assert!(!gave_up.is_final() && gave_up.to_string().contains("503"), "{gave_up}");
}

#[tokio::test]
async fn a_service_that_cannot_be_reached_is_named_after_a_few_tries() {
    // Bound and not listening: it refuses, and no other program has its port.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let source = Source::Hub(Hub::new(&format!("http://{address}"), "org/tiny", "main", None).unwrap());
    let folder = tempfile::tempdir().unwrap();
    // With the tries of a download it would be asked for years.
    let policy = RetryPolicy { tries: 1000, longest: Duration::from_secs(3600), ..POLICY };
    let asked = fetch(&source, folder.path(), policy, ProgressReport::Log);
    let gave_up = tokio::time::timeout(Duration::from_secs(20), asked).await.expect("few tries").unwrap_err();
    let words = gave_up.to_string();
    assert!(words.starts_with(&format!("{address} cannot be reached: ")), "{words}");
    assert!(words.contains("refused") && !gave_up.is_final(), "{words}");
}

#[tokio::test]
async fn a_long_list_comes_page_by_page() {
    let server = Server::start(Behaviour { page: Some(2), ..with_model() }).await;
    let folder = tempfile::tempdir().unwrap();
    brought(&bucket(&server, None), folder.path()).await.unwrap();
    assert_whole(folder.path());
}

#[tokio::test]
async fn what_is_no_model_is_told_before_anything_is_downloaded() {
    let mut files = model();
    files.remove("model.safetensors");
    let server = Server::start(Behaviour { files, ..Behaviour::default() }).await;
    let folder = tempfile::tempdir().unwrap();
    for source in [hub(&server, None), bucket(&server, None)] {
        let refused = brought(&source, folder.path()).await.unwrap_err();
        let said = refused.to_string();
        assert!(said.ends_with("holds no model: it lacks a file that ends in .safetensors"), "{said}");
    }
    let elsewhere = Hub::new(&server.endpoint(), "org/none", "main", None).unwrap();
    let refused = brought(&Source::Hub(elsewhere), folder.path()).await.unwrap_err();
    assert!(matches!(refused, FetchError::NotFound { .. }) && refused.is_final(), "{refused}");
    assert!(server.ranges().is_empty());
}

#[test]
fn an_endpoint_that_is_none_is_told() {
    for endpoint in ["not an address", "file:///models", "mailto:a@b"] {
        let refused = Hub::new(endpoint, "a/b", "main", None).unwrap_err();
        assert!(refused.to_string().contains(endpoint), "{refused}");
        assert!(Bucket::new(Some(endpoint), "r", "bucket", "", None).is_err());
    }
}
