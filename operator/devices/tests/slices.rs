//! Tests how the driver keeps the node's ResourceSlice.

use serde_json::json;

use crate::node::Node;
use crate::server::Server;

const NAME: &str = "sluice.dev-one";

#[tokio::test]
async fn deleted_or_changed_slice_is_republished() {
    let server = Server::start().await;
    let node = Node::new(&server);
    let driver = node.start(&["--neighbourhoods", "3"]);
    driver.registered(true).await;
    let first = server.slices(|slices| slices.contains_key(NAME)).await[NAME].clone();
    assert_eq!(first["spec"]["devices"].as_array().unwrap().len(), 3);
    assert_eq!(first["spec"]["pool"], json!({"name": "one", "generation": 1, "resourceSliceCount": 1}));

    server.overwrite_slice(NAME, None);
    let second = server.slices(|slices| slices.contains_key(NAME)).await[NAME].clone();
    assert_eq!(second["spec"], first["spec"]);

    let mut wrong = second.clone();
    wrong["spec"]["devices"].as_array_mut().unwrap().pop();
    server.overwrite_slice(NAME, Some(wrong));
    let whole = |slice: &serde_json::Value| slice["spec"]["devices"].as_array().unwrap().len() == 3;
    let third = server.slices(|slices| slices.get(NAME).is_some_and(whole)).await[NAME].clone();
    assert_eq!(third["spec"]["pool"]["generation"], 2);
}

#[tokio::test]
async fn a_driver_with_other_devices_makes_another_generation_and_removes_foreign_slices() {
    let server = Server::start().await;
    let node = Node::new(&server);
    drop({
        let driver = node.start(&["--neighbourhoods", "3"]);
        driver.registered(true).await;
        server.slices(|slices| slices.contains_key(NAME)).await;
        driver
    });
    let mut foreign = server.slices(|_| true).await[NAME].clone();
    foreign["metadata"]["name"] = json!("older-name");
    server.overwrite_slice("older-name", Some(foreign));
    let driver = node.start(&["--neighbourhoods", "3", "--host-gpus", "1", "--host-memory", "96Mi"]);
    driver.registered(true).await;
    let slices = server.slices(|slices| {
        slices.len() == 1 && slices.get(NAME).is_some_and(|slice| slice["spec"]["pool"]["generation"] == 2)
    });
    let slice = &slices.await[NAME]["spec"];
    assert_eq!(slice["devices"][0]["capacity"], json!({"memory": {"value": "96Mi"}}));
    assert_eq!(slice["devices"][0]["attributes"]["type"], json!({"string": "host-gpu"}));
}
