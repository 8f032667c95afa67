//! `sluice run` and `sluice models`: from a model name to answers, and their leftovers.

mod chat;
mod hub;
mod pty;
mod refusals;
mod session;

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};
use sluice_client::RequestError;
use sluice_e2e::hub::{Hub, WEIGHTS};

use self::hub::REPO;
use self::session::{Session, models, sluice};
use crate::support::http::{self, CLIENT, Stream};
use crate::support::model::Stories;
use crate::support::tenant::greedy;
use crate::support::{Answer, TestEnv, eventually, processes};

/// Checks that a model answers the golden prompts like the reference, streamed and complete.
async fn is_golden(url: &str, model: &str, stories: &Stories) {
    for golden in &stories.golden {
        let mut body = greedy(&golden.prompt_ids, golden.greedy_ids.len());
        (body["ignore_eos"], body["model"]) = (json!(false), json!(model));
        let completions = format!("{url}/completions");
        let whole = http::post(&completions, &body, None).await.unwrap().json().await.unwrap();
        let streamed = Stream::open(&completions, &body).await.unwrap().finish().await.unwrap();
        for answer in [Answer::whole(&whole), streamed] {
            assert_eq!(answer.names(), stories.shown(&golden.greedy_ids), "{model}: {}", golden.text);
        }
    }
}

async fn names(url: &str) -> Vec<String> {
    let list: Value = CLIENT.get(format!("{url}/models")).send().await.unwrap().json().await.unwrap();
    list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_is_served_and_the_printed_curl_line_works() {
    let Some(stories) = Stories::find("a folder through sluice run") else { return };
    for signal in [Signal::INT, Signal::TERM] {
        let world = TestEnv::new();
        let mut run = Session::start(&world, &[stories.folder.to_str().unwrap()], &[]);
        let url = run.ready().await;
        assert_eq!(names(&url).await, ["stories260k"]);
        is_golden(&url, "stories260k", &stories).await;
        let stdout = world.stdout();
        let line = stdout.lines().find_map(|line| line.strip_prefix("try     ")).unwrap();
        let pasted = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
        let answer: Value =
            serde_json::from_slice(&pasted.stdout).unwrap_or_else(|_| panic!("{line}: {pasted:?}"));
        assert!(!answer["choices"][0]["text"].as_str().unwrap().is_empty(), "{answer}");
        run.end(signal).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_download_goes_on_where_it_was_and_a_whole_one_needs_no_hub() {
    let Some(stories) = Stories::find("a download through sluice run") else { return };
    let world = TestEnv::new();
    let hub = hub::start(&stories.folder);
    let whole = hub.length(WEIGHTS);
    let half = whole / 2;
    hub.stop_after(Some(half));
    let name = format!("{}/{REPO}", hub.endpoint());
    let run = Session::start(&world, &[&name], &[]);
    let part = cached(&world, &hub).join("model.safetensors.part");
    eventually("half of the weights", async || (part.metadata().ok()?.len() == half).then_some(())).await;
    assert!(models(&world, &["rm", &name]).unwrap_err().contains("in use by a running `sluice run`"));
    run.end(Signal::INT).await;
    assert!(
        world.stderr().contains("interrupted; the files downloaded so far are kept"),
        "{}",
        world.stderr()
    );
    let listed = list(&world);
    assert_eq!(
        (listed[0]["whole"].as_bool(), listed[0]["in_use"].as_bool()),
        (Some(false), Some(false)),
        "{listed}"
    );

    hub.stop_after(None);
    let mut run = Session::start(&world, &[&name], &[]);
    let url = run.ready().await;
    assert_eq!(hub.downloads(), ["", &format!("bytes={half}-")], "the second start asks for the rest only");
    assert_eq!(names(&url).await, [REPO]);
    is_golden(&url, REPO, &stories).await;
    assert!(models(&world, &["rm", &name]).unwrap_err().contains("in use by a running `sluice run`"));
    run.end(Signal::INT).await;
    assert!(world.stderr().contains(": 1.0 MiB of 1.0 MiB\n"), "{}", world.stderr());
    let listed = list(&world);
    assert_eq!(
        (listed[0]["whole"].as_bool(), listed[0]["revision"].as_str()),
        (Some(true), Some("main")),
        "{listed}"
    );
    assert!(listed[0]["bytes"].as_u64().unwrap() > whole, "{listed}");

    drop(hub);
    let mut run = Session::start(&world, &[&name], &[]);
    is_golden(&run.ready().await, REPO, &stories).await;
    run.end(Signal::TERM).await;
    let removed = models(&world, &["rm", &name]).unwrap();
    assert!(removed.starts_with("removed 127.0.0.1:") && removed.contains(" MiB freed"), "{removed}");
    assert_eq!(std::fs::read_dir(world.path("cache")).unwrap().count(), 0, "nothing is left of it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_breaks_off_three_times_and_is_whole_in_the_end() {
    let Some(stories) = Stories::find("a broken line below sluice run") else { return };
    let world = TestEnv::new();
    let hub = hub::start(&stories.folder);
    hub.break_off(3);
    let mut run = Session::start(&world, &[&format!("{REPO}@v1.5")], &["--endpoint", hub.endpoint()]);
    is_golden(&run.ready().await, REPO, &stories).await;
    assert_eq!(hub.downloads().len(), 4);
    assert!(world.stderr().contains("trying again"), "the user sees why it takes longer");
    run.end(Signal::INT).await;
    let listed = list(&world);
    assert_eq!((&listed[0]["revision"], &listed[0]["whole"]), (&json!("v1.5"), &json!(true)), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_models_answer_at_one_port_each_to_its_name_and_come_back_when_a_process_dies() {
    let Some(stories) = Stories::find("two models through sluice run") else { return };
    let world = TestEnv::new();
    let other =
        world.model("other", "--layers 4 --hidden 64 --intermediate 128 --vocab 300 --max-positions 512");
    let run = [stories.folder.to_str().unwrap(), other.to_str().unwrap()];
    let mut run = Session::start(&world, &run, &[]);
    let url = run.ready().await;
    assert_eq!(names(&url).await, ["other", "stories260k"]);
    let mut body = greedy(&[1, 2, 3], 40);
    body["model"] = json!("other");
    let expected = Stream::open(&format!("{url}/completions"), &body).await.unwrap().finish().await.unwrap();
    let mut other_stream = Stream::open(&format!("{url}/completions"), &body).await.unwrap();
    other_stream.until_tokens(1).await;
    is_golden(&url, "stories260k", &stories).await;
    assert_eq!(other_stream.finish().await.unwrap(), expected);
    body["model"] = json!("third");
    let refused = http::post(&format!("{url}/completions"), &body, None).await;
    let Err(RequestError::Refused { status, body: error, .. }) = refused else {
        panic!("an unknown model is refused")
    };
    let message = error["error"]["message"].as_str().unwrap();
    assert_eq!(
        (status.as_u16(), message),
        (404, "the model `third` does not exist; the models here are `other`, `stories260k`")
    );

    let record = std::fs::read(world.path("run").join("default.stories260k/sidecar.json")).unwrap();
    let record: Value = serde_json::from_slice(&record).unwrap();
    processes::kill(u32::try_from(record["pid"].as_u64().unwrap()).unwrap());
    body["model"] = json!("stories260k");
    eventually("it is started again at another port", async || {
        http::post(&format!("{url}/completions"), &body, None).await.ok()
    })
    .await;
    is_golden(&url, "stories260k", &stories).await;
    run.end(Signal::INT).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_yaml_is_what_sluice_up_runs() {
    let Some(stories) = Stories::find("the YAML of sluice run") else { return };
    let world = TestEnv::new();
    let printed = sluice(&world, &["run", "--print-yaml", stories.folder.to_str().unwrap()]).unwrap();
    let mut up = world.up_text(&printed, &[]);
    let tenant = up.ready("stories260k").await;
    is_golden(&tenant.url("/v1"), "stories260k", &stories).await;
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_stream_comes_to_its_end_after_the_signal() {
    let world = TestEnv::new();
    let model =
        world.model("tiny", "--layers 4 --hidden 64 --intermediate 128 --vocab 300 --max-positions 4096");
    let mut run = Session::start(&world, &[model.to_str().unwrap()], &[]);
    let url = run.ready().await;
    let mut body = greedy(&[1, 2, 3], 100);
    body["model"] = json!("tiny");
    let mut stream = Stream::open(&format!("{url}/completions"), &body).await.unwrap();
    stream.until_tokens(1).await;
    let (answer, ()) = tokio::join!(stream.finish(), run.end(Signal::INT));
    assert_eq!(answer.unwrap().tokens.len(), 100);
}

/// Returns the cache folder of the model of `hub`.
fn cached(world: &TestEnv, hub: &Hub) -> PathBuf {
    let host = hub.endpoint().replace("http://", "");
    world.path("cache").join(host).join(REPO).join("main")
}

fn list(world: &TestEnv) -> Value {
    serde_json::from_str(&models(world, &["--json"]).unwrap()).unwrap()
}
