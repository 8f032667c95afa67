//! `sluice up`: its output, its API, its processes, and its end.

use rustix::process::Signal;
use serde_json::json;

use crate::support::model::Stories;
use crate::support::tenant::{greedy, prompt};
use crate::support::{Answer, Tenant, TestEnv, Yaml, eventually, processes};

const SMALL: &str = "--layers 4 --hidden 64 --intermediate 128 --vocab 300 --max-positions 512";
const IMMEDIATE: &str = "pacing: {mode: Immediate}, drainSeconds: 2";

#[tokio::test(flavor = "multi_thread")]
async fn the_reference_model_answers_with_its_golden_tokens_streamed_and_whole() {
    let Some(stories) = Stories::find("golden tokens through the API") else { return };
    let world = TestEnv::new();
    let yaml = Yaml::pool("16Mi").tenant("story", &stories.folder, "", IMMEDIATE);
    let mut up = world.up(&yaml, &["--poison"]);
    let tenant = up.ready("story").await;
    for golden in &stories.golden {
        let mut body = greedy(&golden.prompt_ids, golden.greedy_ids.len());
        body["ignore_eos"] = json!(false);
        let whole = tenant.complete(&body).await.unwrap();
        let streamed = tenant.stream(&body).await.finish().await.unwrap();
        for answer in [&whole, &streamed] {
            assert_eq!(answer.names(), stories.shown(&golden.greedy_ids), "{}", golden.text);
            assert!(golden.text.ends_with(answer.text.trim_start()), "{}\n{}", golden.text, answer.text);
        }
        assert_eq!(whole, streamed);
    }
    assert_eq!(world.stdout(), format!("ready default/story http://{}\n", tenant.address));
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_need_no_reader_of_the_log() {
    let world = TestEnv::new();
    let yaml = Yaml::pool("16Mi").tenant("one", &world.model("llama", SMALL), "", IMMEDIATE);
    let mut up = world.up_of(&world.unread_binaries(), &yaml.text(), &[]);
    let tenant = up.ready("one").await;
    let body = greedy(&prompt(1, 20), 8);
    let whole = tenant.complete(&body).await.unwrap();
    let streamed = tenant.stream(&body).await.finish().await.unwrap();
    assert_eq!((whole.tokens.len(), streamed), (8, whole.clone()));
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_serve_at_once_on_two_gpus() {
    let world = TestEnv::new();
    let (llama, opt) = (world.model("llama", SMALL), world.model("opt", &format!("{SMALL} --family opt")));
    let mut yaml = Yaml::pool("16Mi").tenant("one", &llama, "", IMMEDIATE).tenant("two", &opt, "", IMMEDIATE);
    yaml.gpus = 2;
    let mut up = world.up(&yaml, &[]);
    let tenants = [up.ready("one").await, up.ready("two").await];
    assert_ne!(tenants[0].record.pid, tenants[1].record.pid);
    assert_ne!(tenants[0].record.gpu, tenants[1].record.gpu);
    let body = greedy(&prompt(1, 20), 200);
    let mut expected = Vec::new();
    for tenant in &tenants {
        expected.push(tenant.complete(&body).await.unwrap());
    }
    assert_ne!(expected[0].tokens, expected[1].tokens, "they are different models");
    let (mut one, mut two) = (tenants[0].stream(&body).await, tenants[1].stream(&body).await);
    one.until_tokens(1).await;
    two.until_tokens(1).await;
    let (one, two) = tokio::join!(one.finish(), two.finish());
    assert_eq!([one.unwrap(), two.unwrap()], [expected[0].clone(), expected[1].clone()]);
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_signals_end_it_cleanly_and_leave_no_process_no_socket_and_no_file() {
    for signal in [Signal::TERM, Signal::INT] {
        let world = TestEnv::new();
        let model = world.model("model", SMALL);
        let mut up = world.up(&Yaml::pool("16Mi").tenant("tiny", &model, "", IMMEDIATE), &[]);
        let tenant = up.ready("tiny").await;
        answers(&tenant).await;
        assert!(tenant.folder.join("engine.sock").exists() && world.processes().len() >= 3);
        up.signal(signal);
        let outcome = up.ended().await;
        assert_eq!(outcome.code, Some(0), "{signal:?}: {}", outcome.stderr);
        assert_eq!(world.processes(), [0; 0], "{signal:?}: none outlives `sluice up`");
        // No port is checked: another test's tenant may have taken it.
        world.assert_no_leftovers().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_parent_leaves_no_sidecar_and_no_engine_and_the_tenant_can_be_started_again() {
    let world = TestEnv::new();
    let model = world.model("model", SMALL);
    let mut yaml =
        Yaml::pool("16Mi").tenant("tiny", &model, "", "pacing: {mode: Immediate}, drainSeconds: 1");
    // A stream that is under way for longer than the time to drain.
    yaml.link = Some("4Mi");
    let mut up = world.up(&yaml, &["--force-remap", "1:1"]);
    let tenant = up.ready("tiny").await;
    let mut stream = tenant.stream(&greedy(&prompt(1, 8), 490)).await;
    stream.until_tokens(2).await;
    up.signal(Signal::KILL);
    assert_eq!(up.ended().await.code, None);
    eventually("sidecar and engine end", async || world.processes().is_empty().then_some(())).await;
    assert!(stream.finish().await.is_err(), "the stream was cut");
    let mut up = world.up(&yaml, &[]);
    answers(&up.ready("tiny").await).await;
    up.end_cleanly().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_engine_is_below_the_sidecar_which_is_below_sluice_up() {
    let world = TestEnv::new();
    let model = world.model("model", SMALL);
    let mut up = world.up(&Yaml::pool("16Mi").tenant("tiny", &model, "", IMMEDIATE), &[]);
    let tenant = up.ready("tiny").await;
    let engine = tenant.engine().await;
    let supervisor = processes::parent(engine);
    let chain = [engine, supervisor, processes::parent(supervisor)];
    assert_eq!(chain.map(processes::name), ["sluice-engine", "sluice-engine", "sluice-sidecar"]);
    assert_eq!(chain[2], tenant.record.pid);
    assert_eq!(processes::parent(chain[2]), up.pid());
    up.end_cleanly().await;
}

async fn answers(tenant: &Tenant) -> Answer {
    let answer = tenant.complete(&greedy(&prompt(1, 8), 8)).await.unwrap();
    assert_eq!((answer.tokens.len(), answer.finish.as_str()), (8, "length"));
    answer
}
