//! Refusals of `sluice run`, with numbers, before any large download.

use serde_json::json;

use super::hub::{self, REPO};
use super::session::{command, models, sluice};
use crate::support::TestEnv;
use crate::support::model::Stories;

const TINY: &str = "--layers 4 --hidden 64 --intermediate 128 --vocab 300 --max-positions 512";

/// Standard error of a command that must end with 78 and leave nothing.
async fn refused(world: &TestEnv, arguments: &[&str]) -> String {
    let mut command = command(world);
    world.record(&mut command);
    let status = command.arg("run").args(arguments).args(["--port", "0"]).status().unwrap();
    let stderr = world.stderr();
    assert_eq!(status.code(), Some(78), "{stderr}");
    world.assert_no_leftovers().await;
    stderr
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_no_models_are_refused_with_what_was_tried() {
    let world = TestEnv::new();
    std::fs::create_dir(world.path("empty")).unwrap();
    let model = world.model("tiny", TINY);
    let model = model.to_str().unwrap();
    for (arguments, words) in [
        (
            vec!["./nowhere"],
            "MODEL `./nowhere`: there is no such folder; a MODEL is a folder with a config.json, ORG/NAME",
        ),
        (
            vec!["tiny-llama"],
            "MODEL `tiny-llama`: there is no such folder, and as a model of a hub: `tiny-llama` is not ORG/NAME",
        ),
        (vec!["empty"], "MODEL `empty`: this folder has no config.json"),
        (vec![model, model], "is named twice"),
        (vec![model, "--context", "513"], "--context 513: tiny supports at most 512 tokens"),
        (vec![model, "--memory", "1Mi"], "--memory 1 MiB is too little; tiny needs "),
        (vec![model, "--memory", "4000Ti"], "not enough memory: 4000 TiB are needed (tiny: weights "),
    ] {
        let stderr = refused(&world, &arguments).await;
        assert!(stderr.contains(words), "{arguments:?}: {stderr}");
    }
    let memory = refused(&world, &[model, "--memory", "4000Ti"]).await;
    assert!(memory.contains(" are available on this machine; lower --memory"), "{memory}");
}

#[tokio::test(flavor = "multi_thread")]
async fn model_larger_than_free_disk_is_not_downloaded() {
    let Some(stories) = Stories::find("a full disk below sluice run") else { return };
    let (world, hub) = (TestEnv::new(), hub::start(&stories.folder));
    // A model of more than 16 TiB is refused for its size.
    hub.promise("vocab.json", 15 << 40);
    let name = format!("{}/{REPO}", hub.endpoint());
    let command = tokio::task::spawn_blocking({
        let mut command = command(&world);
        world.record(&mut command);
        command.args(["run", &name, "--port", "0"]);
        move || command.status().unwrap()
    });
    let (status, stderr) = (command.await.unwrap(), world.stderr());
    assert_eq!(status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("not enough disk space: 15.0 TiB must still be downloaded, and "), "{stderr}");
    assert!(stderr.contains("remove models with `sluice models rm`"), "{stderr}");
    assert_eq!(hub.downloads(), [""; 0]);
    assert!(models(&world, &[]).unwrap().starts_with("no models in "));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_architecture_that_is_not_served_is_refused_before_its_weights_come() {
    let Some(stories) = Stories::find("an unknown architecture below sluice run") else { return };
    let (world, hub) = (TestEnv::new(), hub::start(&stories.folder));
    let config = std::fs::read(stories.folder.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    (config["model_type"], config["architectures"]) = (json!("mamba"), json!(["MambaForCausalLM"]));
    hub.write("config.json", &config.to_string());
    let name = format!("{}/{REPO}", hub.endpoint());
    let stderr = refused(&world, &[&name]).await;
    assert!(stderr.contains("config.json") && stderr.contains("mamba"), "{stderr}");
    let missing = refused(&world, &[&format!("{}/org/other", hub.endpoint())]).await;
    assert!(
        missing.contains("404")
            && missing.contains("the model, revision, bucket or file does not exist")
            && missing.contains("HF_TOKEN"),
        "{missing}"
    );
    assert_eq!(hub.downloads(), [""; 0]);
    assert!(models(&world, &[]).unwrap().starts_with("no models in "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_refuses_the_connection_is_named_after_three_tries() {
    let world = TestEnv::new();
    // Bound and not listening: no other program has its port.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let hub = socket.local_addr().unwrap();
    let endpoint = format!("http://{hub}");
    let stderr = sluice(&world, &["run", REPO, "--port", "0", "--endpoint", &endpoint]).unwrap_err();
    let lines: Vec<_> = stderr.lines().collect();
    let (title, unreachable) = (format!("sluice: {hub}/{REPO}: "), format!("{hub} cannot be reached: "));
    let (first, tries) = lines.split_first().unwrap();
    assert_eq!(*first, format!("{title}reading its configuration at {endpoint}"));
    let (last, retries) = tries.split_last().unwrap();
    let waits = ["500ms", "1s"].map(|wait| format!("{title}trying again in {wait}: {unreachable}"));
    let waited = retries.iter().zip(&waits).all(|(line, start)| line.starts_with(start));
    assert!(retries.len() == 2 && waited, "{stderr}");
    assert!(last.starts_with(&format!("{title}{unreachable}")), "{stderr}");
    assert!(last.ends_with("; a folder with a model needs no network: sluice run FOLDER"), "{stderr}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_goes_to_the_hub_of_the_option_and_to_none_that_a_url_names() {
    let folder = tempfile::tempdir().unwrap();
    let (world, hub) = (TestEnv::new(), hub::start(folder.path()));
    let missing = async |arguments: &[&str]| {
        let output = command(&world).env("HF_TOKEN", "secret").arg("run").args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(78));
        String::from_utf8(output.stderr).unwrap()
    };
    let said = missing(&[&format!("{}/org/other", hub.endpoint())]).await;
    assert!(
        said.contains("HF_TOKEN is not sent to a hub that a URL names") && !said.contains("secret"),
        "{said}"
    );
    assert_eq!(hub.tokens(), [""; 0]);
    let said = missing(&["org/other", "--endpoint", hub.endpoint()]).await;
    assert!(
        said.contains("the model, revision, bucket or file does not exist") && !said.contains("HF_TOKEN"),
        "{said}"
    );
    assert_eq!(hub.tokens(), ["Bearer secret"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_is_refused_and_a_removed_model_must_be_there() {
    let world = TestEnv::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let stderr = sluice(&world, &["run", "org/tiny", "--port", &port]).unwrap_err();
    assert!(
        stderr.contains(&format!("port {port} of 127.0.0.1 is taken; choose another with --port")),
        "{stderr}"
    );
    let stderr = models(&world, &["rm", "org/tiny"]).unwrap_err();
    assert!(stderr.contains("org/tiny is not in ") && stderr.contains("no model is there"), "{stderr}");
}
