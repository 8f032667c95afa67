//! Tests of vLLM's sleep endpoints.

use std::sync::{Arc, Mutex};

use serde_json::json;
use sluice_agent::peers::admin_call::{AdminCall, CallRejected, SleepLevel};
use sluice_agent::scheduler_handle::SchedulerMessage;

use super::harness::{AdminPort, assert_refused, config};

/// A scheduler that, like the real one, executes commands, also repeated ones, once the tenant has loaded.
#[derive(Default)]
struct FakeScheduler {
    is_loaded: bool,
    is_asleep: bool,
    /// Received sleep commands.
    levels: Vec<SleepLevel>,
}

impl FakeScheduler {
    fn on_call(&mut self, call: AdminCall) {
        let unable = (!self.is_loaded).then(|| CallRejected("the tenant has not loaded".into()));
        match (call, unable) {
            (AdminCall::Sleep(_, reply) | AdminCall::WakeUp(reply), Some(unable)) => {
                reply.send(Err(unable)).expect("the answer is awaited")
            }
            (AdminCall::Sleep(level, reply), None) => {
                self.is_asleep = true;
                self.levels.push(level);
                reply.send(Ok(())).expect("the answer is awaited");
            }
            (AdminCall::WakeUp(reply), None) => {
                self.is_asleep = false;
                reply.send(Ok(())).expect("the answer is awaited");
            }
            (AdminCall::IsSleeping(reply), _) => {
                reply.send(Ok(self.is_asleep)).expect("the answer is awaited")
            }
            (AdminCall::Grant(..), _) => panic!("not asked for"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_verbs_reach_scheduler_and_answer_like_vllm() {
    let folder = tempfile::tempdir().unwrap();
    let scheduler = Arc::new(Mutex::new(FakeScheduler::default()));
    let taken = scheduler.clone();
    let take = move |message| {
        if let SchedulerMessage::Admin(call) = message {
            taken.lock().unwrap().on_call(call);
        }
    };
    let port = AdminPort::start(&config(folder.path(), "story"), take).await;
    let mut peer = port.operator().await;
    for verb in ["/sleep", "/wake_up"] {
        assert_refused(&peer.ask("POST", verb, b"").await, 409, None, Some("not_now"));
    }
    scheduler.lock().unwrap().is_loaded = true;
    // Repeated commands succeed, because an earlier response may have been lost.
    for path in ["/sleep?level=2", "/sleep?level=1", "/sleep", "/wake_up", "/wake_up"] {
        let answer = peer.ask("POST", path, b"").await;
        assert_eq!((answer.head.status, answer.body.as_str()), (200, ""), "{path}");
        let sleeps = path.starts_with("/sleep");
        assert_eq!(peer.get("/is_sleeping").await.json(), json!({"is_sleeping": sleeps}), "{path}");
    }
    let levels = scheduler.lock().unwrap().levels.clone();
    assert_eq!(levels, [SleepLevel::Two, SleepLevel::One, SleepLevel::One], "level 1 is the default");

    assert_refused(&peer.ask("POST", "/sleep?level=3", b"").await, 400, Some("level"), None);
    for path in ["/sleep?level=1&mode=keep", "/wake_up?tags=weights", "/wake_up?tags=weights&tags=kv_cache"] {
        assert_refused(&peer.ask("POST", path, b"").await, 400, None, None);
    }
    for (method, path) in [("GET", "/sleep"), ("GET", "/wake_up"), ("POST", "/is_sleeping")] {
        assert_refused(&peer.ask(method, path, b"").await, 405, None, None);
    }
}
