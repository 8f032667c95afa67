//! vLLM's verbs.

use std::sync::{Arc, Mutex};

use serde_json::json;
use sluice_agent::neighbours::call::{Call, SleepLevel, Unable};
use sluice_agent::service::Message;

use super::world::{Port, config, refused};

/// A room as the real one answers: orders are carried out, again and again, as soon as the tenant has loaded.
#[derive(Default)]
struct Room {
    loaded: bool,
    asleep: bool,
    /// Orders to sleep that it was given.
    levels: Vec<SleepLevel>,
}

impl Room {
    fn take(&mut self, call: Call) {
        let unable = (!self.loaded).then(|| Unable("the tenant has not loaded".into()));
        match (call, unable) {
            (Call::Sleep(_, reply) | Call::WakeUp(reply), Some(unable)) => {
                reply.send(Err(unable)).expect("the answer is awaited")
            }
            (Call::Sleep(level, reply), None) => {
                self.asleep = true;
                self.levels.push(level);
                reply.send(Ok(())).expect("the answer is awaited");
            }
            (Call::WakeUp(reply), None) => {
                self.asleep = false;
                reply.send(Ok(())).expect("the answer is awaited");
            }
            (Call::IsSleeping(reply), _) => reply.send(Ok(self.asleep)).expect("the answer is awaited"),
            (Call::Grant(..), _) => panic!("not asked for"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_verbs_are_handed_to_the_scheduler_and_answered_as_vllm_does() {
    let folder = tempfile::tempdir().unwrap();
    let room = Arc::new(Mutex::new(Room::default()));
    let taken = room.clone();
    let take = move |message| {
        if let Message::Call(call) = message {
            taken.lock().unwrap().take(call);
        }
    };
    let port = Port::start(&config(folder.path(), "story"), take).await;
    let mut peer = port.operator().await;
    for verb in ["/sleep", "/wake_up"] {
        refused(&peer.ask("POST", verb, b"").await, 409, None, Some("not_now"));
    }
    room.lock().unwrap().loaded = true;
    // Whoever sleeps, or is awake, is told so again: an answer may have been lost.
    for path in ["/sleep?level=2", "/sleep?level=1", "/sleep", "/wake_up", "/wake_up"] {
        let answer = peer.ask("POST", path, b"").await;
        assert_eq!((answer.head.status, answer.body.as_str()), (200, ""), "{path}");
        let sleeps = path.starts_with("/sleep");
        assert_eq!(peer.get("/is_sleeping").await.json(), json!({"is_sleeping": sleeps}), "{path}");
    }
    let levels = room.lock().unwrap().levels.clone();
    assert_eq!(levels, [SleepLevel::Two, SleepLevel::One, SleepLevel::One], "level 1 is the default");

    refused(&peer.ask("POST", "/sleep?level=3", b"").await, 400, Some("level"), None);
    for path in ["/sleep?level=1&mode=keep", "/wake_up?tags=weights", "/wake_up?tags=weights&tags=kv_cache"] {
        refused(&peer.ask("POST", path, b"").await, 400, None, None);
    }
    for (method, path) in [("GET", "/sleep"), ("GET", "/wake_up"), ("POST", "/is_sleeping")] {
        refused(&peer.ask(method, path, b"").await, 405, None, None);
    }
}
