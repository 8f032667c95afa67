//! Access to the admin port.

use crate::support::http::CLIENT;
use crate::support::load::MODEL;
use crate::support::{TestEnv, Yaml};

#[tokio::test(flavor = "multi_thread")]
async fn the_state_needs_the_token_of_the_runtime_folder() {
    let world = TestEnv::new();
    let model = world.model("model", MODEL);
    let mut up = world.up(&Yaml::pool("16Mi").tenant("tiny", &model, "", ""), &[]);
    let tenant = up.ready("tiny").await;
    let url = format!("http://{}/v1/state", tenant.record.admin);
    let token = std::fs::read_to_string(&tenant.record.token_file).unwrap();
    for wrong in ["", "0", &token[1..], &format!("{token}0")] {
        assert_eq!(CLIENT.get(&url).bearer_auth(wrong).send().await.unwrap().status(), 401, "`{wrong}`");
    }
    let without = CLIENT.get(&url).send().await.unwrap();
    assert_eq!(without.status(), 401);
    assert!(!without.text().await.unwrap().contains("memory"));
    assert_eq!(CLIENT.get(&url).bearer_auth(&token).send().await.unwrap().status(), 200);
    let on_the_api = CLIENT.get(tenant.url("/v1/state")).bearer_auth(&token).send().await.unwrap();
    assert_eq!(on_the_api.status(), 404, "clients of the API have no business with it");
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(&tenant.record.token_file).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    up.end_cleanly().await;
}
