//! What viewers are sent, over HTTP.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::scenes::{self, NOW};
use crate::served::PageServer;

/// Reads `path` as one answer.
fn get(served: &PageServer, path: &str) -> (u16, String) {
    served.block_on(async {
        let answer = served.get(path).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    })
}

/// The messages of one kind in an answer of `/v1/page`.
fn of_kind(text: &str, kind: &str) -> Vec<Value> {
    let all: Vec<(String, Value)> = serde_json::from_str(text).unwrap();
    all.into_iter().filter(|(own, _)| own == kind).map(|(_, message)| message).collect()
}

#[test]
fn a_new_viewer_has_the_list_the_past_and_the_present() {
    let served = scenes::served("lending");
    let (status, text) = get(&served, "/v1/page");
    assert_eq!(status, 200);
    let lists = of_kind(&text, "list");
    assert_eq!((lists.len(), &lists[0]["count"], &lists[0]["at_unix_ms"]), (1, &1.into(), &NOW.into()));
    let gpus = of_kind(&text, "gpu");
    assert_eq!((gpus.len(), &gpus[0]["key"]), (1, &"team/box-one-0".into()));
    let loans = serde_json::json!([
        {"from": "team/code", "to": "team/chat", "bytes": 8 << 20},
        {"from": "team/summary", "to": "team/chat", "bytes": 6 << 20},
    ]);
    assert_eq!(gpus[0]["loans"], loans, "both ends report each, which is shown once");
    assert_eq!(gpus[0]["tenants"][0]["tokens_per_s"], 180.0);
    let past = of_kind(&text, "history");
    assert_eq!((past.len(), &past[0]["start_unix_ms"]), (1, &(NOW - 900_000 + 1000).into()));
}

#[test]
fn with_many_gpus_only_requested_gpu_is_sent_in_full() {
    let served = scenes::served("pool");
    let (_, text) = get(&served, "/v1/page");
    assert_eq!(of_kind(&text, "list")[0]["gpus"].as_array().unwrap().len(), 300);
    assert_eq!((of_kind(&text, "gpu").len(), of_kind(&text, "history").len()), (0, 0));
    let (status, one) = get(&served, "/v1/page?gpu=team/fleet-a-7");
    assert_eq!(status, 200);
    assert_eq!(of_kind(&one, "list")[0]["gpus"].as_array().unwrap().len(), 300, "the whole list");
    let keys =
        ["gpu", "history"].map(|kind| of_kind(&one, kind)).map(|all| (all.len(), all[0]["key"].clone()));
    assert_eq!(keys, [(1, "team/fleet-a-7".into()), (1, "team/fleet-a-7".into())]);
    let (status, none) = get(&served, "/v1/page?gpu=team/none");
    assert_eq!((status, of_kind(&none, "gpu").len()), (200, 0), "the list says that it is not there");
    let events = served.block_on(async {
        let mut answer = served.get("/v1/page/events?gpu=team/fleet-a-7").send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/event-stream");
        let mut text = String::new();
        // The first list comes at once; the GPU with it, if another viewer has just left it, or with the next update.
        while !(text.contains("event: gpu\n") && text.contains("\"all\":false") && text.ends_with("\n\n")) {
            text += std::str::from_utf8(&answer.chunk().await.unwrap().unwrap()).unwrap();
        }
        text
    });
    let (first, rest) = events.split_once("\n\n").unwrap();
    assert!(first.starts_with("event: list\n"));
    assert!(rest.contains("\"all\":false,\"gpus\":[]"), "nothing has changed since");
    assert!(rest.contains("event: history\n") && rest.contains("\"key\":\"team/fleet-a-7\""));
}

#[test]
fn foreign_hosts_are_refused_and_files_have_csp() {
    let served = scenes::served("quiet");
    served.block_on(async {
        let answer = served.get("/v1/page").header("host", "evil.example").send().await.unwrap();
        assert_eq!(answer.status(), 403);
        let answer = served.get("/").send().await.unwrap();
        let policy = answer.headers()["content-security-policy"].to_str().unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
    });
}

#[test]
fn viewers_beyond_limit_are_refused_until_one_disconnects() {
    let served = scenes::served("quiet");
    served.block_on(async {
        let mut open = Vec::new();
        loop {
            let answer = served.get("/v1/page/events").send().await.unwrap();
            if answer.status() == 503 {
                assert!(answer.text().await.unwrap().contains("Too many viewers"));
                break;
            }
            open.push(answer);
            assert!(open.len() <= 32);
        }
        assert_eq!(open.len(), 32);
        open.clear();
        while served.get("/v1/page").send().await.unwrap().status() != 200 {
            tokio::task::yield_now().await;
        }
    });
}

#[test]
fn a_viewer_that_does_not_read_for_a_while_misses_no_sample() {
    let hub = scenes::empty();
    let served = PageServer::new(hub.clone());
    (0..=10).for_each(|second| scenes::one_gpu(&hub, "lending", second));
    let mut viewer = hub.viewer(None).unwrap();
    let samples = |messages: Vec<(&str, String)>| {
        let history = messages.into_iter().find(|(kind, _)| *kind == "history").unwrap().1;
        let history: Value = serde_json::from_str(&history).unwrap();
        history["start_unix_ms"].as_u64().unwrap()
    };
    served.block_on(async {
        assert_eq!(samples(viewer.next().await.unwrap()), NOW - 900_000);
        // Five updates come as one.
        (11..=15).for_each(|second| scenes::one_gpu(&hub, "lending", second));
        assert_eq!(samples(viewer.next().await.unwrap()), NOW - 900_000 + 11_000);
    });
}

#[test]
fn stalled_viewer_skips_updates_and_does_not_delay_others() {
    let hub = scenes::empty();
    let served = PageServer::new(hub.clone());
    scenes::one_gpu(&hub, "lending", 0);
    served.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let mut stopped = socket.connect(served.address).await.unwrap();
        let request = "GET /v1/page/events HTTP/1.1\r\nhost: localhost\r\n\r\n";
        stopped.write_all(request.as_bytes()).await.unwrap();
        stopped.read_u8().await.unwrap();
        let mut reading = served.get("/v1/page/events").send().await.unwrap();
        let (mut sent, mut second) = (0, 0);
        while sent < 32 << 20 {
            second += 1;
            scenes::one_gpu(&hub, "lending", second % 900);
            sent += reading.chunk().await.unwrap().unwrap().len();
        }
        // What was kept for it is what buffers hold; after that it has the last update.
        let last = NOW + 1_000_000;
        hub.update(last, |_| {});
        let (mut kept, mut text) = (0, Vec::new());
        let mark = format!("\"at_unix_ms\":{last}");
        while !String::from_utf8_lossy(&text).contains(&mark) {
            text = text.split_off(text.len().saturating_sub(100));
            kept += stopped.read_buf(&mut text).await.unwrap();
        }
        assert!(kept < sent / 2, "{kept} bytes were kept, while the other viewer was sent {sent}");
    });
}
