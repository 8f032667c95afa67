//! vLLM's verbs.

use std::sync::{Arc, Mutex};

use serde_json::json;
use sluice_agent::neighbours::call::{Call, SleepLevel, Unable};
use sluice_agent::service::Message;

use super::world::{Port, config, refused};

#[tokio::test(flavor = "multi_thread")]
async fn the_verbs_are_handed_to_the_scheduler_and_answered_as_vllm_does() {
    let folder = tempfile::tempdir().unwrap();
    let asleep = Arc::new(Mutex::new(None));
    let room = move |message| {
        let Message::Call(call) = message else { return };
        let mut asleep = asleep.lock().unwrap();
        match call {
            Call::Sleep(level, reply) => {
                let again = asleep.replace(level).is_some();
                let refused = Err(Unable("asleep already".into()));
                reply.send(if again { refused } else { Ok(()) }).unwrap();
            }
            Call::WakeUp(reply) => {
                reply.send(asleep.take().map(|_| ()).ok_or_else(|| Unable("awake".into()))).unwrap()
            }
            Call::IsSleeping(reply) => reply.send(Ok(*asleep == Some(SleepLevel::Two))).unwrap(),
            Call::Grant(..) => panic!("not asked for"),
        }
    };
    let port = Port::start(&config(folder.path(), "story"), room).await;
    let mut peer = port.operator().await;
    let answer = peer.ask("POST", "/sleep?level=2", b"").await;
    assert_eq!((answer.head.status, answer.body.as_str()), (200, ""));
    assert_eq!(peer.get("/is_sleeping").await.json(), json!({"is_sleeping": true}));
    refused(&peer.ask("POST", "/sleep", b"").await, 409, None, Some("not_now"));
    let answer = peer.ask("POST", "/wake_up", b"").await;
    assert_eq!((answer.head.status, answer.body.as_str()), (200, ""));
    assert_eq!(peer.ask("POST", "/sleep", b"").await.head.status, 200, "level 1 is the default");
    assert_eq!(peer.get("/is_sleeping").await.json(), json!({"is_sleeping": false}));

    refused(&peer.ask("POST", "/sleep?level=3", b"").await, 400, Some("level"), None);
    for path in ["/sleep?level=1&mode=keep", "/wake_up?tags=weights", "/wake_up?tags=weights&tags=kv_cache"] {
        refused(&peer.ask("POST", path, b"").await, 400, None, None);
    }
    for (method, path) in [("GET", "/sleep"), ("GET", "/wake_up"), ("POST", "/is_sleeping")] {
        refused(&peer.ask(method, path, b"").await, 405, None, None);
    }
}
