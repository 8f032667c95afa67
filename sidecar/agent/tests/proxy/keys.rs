//! Tests of API keys that change while the sidecar serves, as a kubelet updates the files of a Secret.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use sluice_common::metrics_text::sum;

use super::harness::{COMPLETIONS, Harness, wait_until};
use crate::gateway::client::Client;

/// Longest time from a change of the file until a revoked key is refused.
const REVOKED_WITHIN: Duration = Duration::from_secs(60);

/// Volume of a Secret with one key: `keys` is a link to `..data/keys`, and `..data` is a link to one folder per version
/// (`AtomicWriter` of Kubernetes).
struct Volume {
    folder: tempfile::TempDir,
    versions: u32,
}

impl Volume {
    fn of(keys: &str) -> Volume {
        let mut volume = Volume { folder: tempfile::tempdir().expect("a folder"), versions: 0 };
        volume.swap(keys);
        symlink("..data/keys", volume.path()).expect("a link");
        volume
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    fn swap(&mut self, keys: &str) {
        self.versions += 1;
        let old = std::fs::read_link(self.folder.path().join("..data")).ok();
        let version = format!("..2026_11_25_{}", self.versions);
        std::fs::create_dir(self.folder.path().join(&version)).expect("a folder");
        std::fs::write(self.folder.path().join(&version).join("keys"), keys).expect("a file");
        let [next, data] = ["..data_tmp", "..data"].map(|name| self.folder.path().join(name));
        symlink(&version, &next).expect("a link");
        std::fs::rename(next, data).expect("the link is replaced");
        if let Some(old) = old {
            std::fs::remove_dir_all(self.folder.path().join(old)).expect("the version before goes");
        }
    }
}

async fn send(world: &Harness, key: &str, stream: bool) -> Client {
    let mut client = Client::connect(world.serve).await;
    let key = format!("Bearer {key}");
    let headers = [("content-type", "application/json"), ("authorization", key.as_str())];
    let body =
        if stream { json!({"prompt": "a", "stream": true, "hold_after": 1}) } else { json!({"prompt": "a"}) };
    client.send("POST", COMPLETIONS, &headers, body.to_string().as_bytes()).await;
    client
}

async fn status(world: &Harness, key: &str) -> u16 {
    send(world, key, false).await.answer().await.head.status
}

/// Whether the last reload of the key file succeeded.
async fn is_authorized(world: &Harness) -> bool {
    let text = world.get("/metrics").await.body;
    let labels = [("model_name", "m"), ("credentials", "api_keys")];
    sum(&text, "sluice_credentials_last_reload_successful", &labels).expect("the metric") == 1.0
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_key_is_refused_and_open_streams_continue() {
    let mut volume = Volume::of("sk-first\nsk-second\n");
    let world = Harness::start(json!({"api_keys_file": volume.path()})).await;
    assert_eq!((status(&world, "sk-first").await, status(&world, "sk-third").await), (200, 401));
    assert!(is_authorized(&world).await);
    let mut stream = send(&world, "sk-first", true).await;
    assert_eq!(stream.head().await.status, 200);

    volume.swap("sk-second\nsk-third\n");
    let changed = Instant::now();
    wait_until("the revoked key is refused", async || status(&world, "sk-first").await == 401).await;
    assert!(changed.elapsed() < REVOKED_WITHIN, "{:?}", changed.elapsed());
    assert_eq!((status(&world, "sk-second").await, status(&world, "sk-third").await), (200, 200));
    world.engine.release();
    let events = stream.events().await;
    assert_eq!(events.last().map(|(_, event)| event.as_str()), Some("[DONE]"), "{events:?}");

    volume.swap("# nobody\n");
    wait_until("the bad file is shown", async || !is_authorized(&world).await).await;
    assert_eq!((status(&world, "sk-second").await, status(&world, "sk-first").await), (200, 401));
    volume.swap("sk-first\n");
    wait_until("a good file is shown", async || is_authorized(&world).await).await;
    assert_eq!((status(&world, "sk-first").await, status(&world, "sk-second").await), (200, 401));
}
