//! Tests two replicas: one leads, and the other takes over.

use k8s_openapi::api::coordination::v1::Lease;
use serde_json::json;
use sluice_e2e::cluster::eventually;
use sluice_operator::leader_election::LeaderElection;

use super::test_namespace::TestNamespace;

#[tokio::test]
async fn only_leader_writes_and_standby_takes_over_on_exit() {
    let Some(stage) = TestNamespace::try_new("failover").await else { return };
    let (a, b) = (stage.operator("a", &[]), stage.operator("b", &[]));
    let leader = eventually("a leader", async || stage.leader().await).await;
    let (leads, waits) = if leader == "a" { (a, b) } else { (b, a) };
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    assert_eq!(leads.metric("sluice_operator_leader", &[]).await, Some(1.0));
    assert_ne!(waits.metric("sluice_operator_leader", &[]).await, Some(1.0));
    assert_eq!(waits.metric("sluice_operator_writes_total", &[]).await, None, "{}", waits.log());
    stage.wait_until_idle().await;
    let all = async || {
        let counted = leads.metric("sluice_operator_writes_total", &[]).await;
        (counted == Some(stage.writes().len() as f64)).then_some(())
    };
    eventually("all that the API server was asked to write is counted", all).await;
    for (kind, verb) in [("Secret", "apply"), ("Secret", "create"), ("Event", "create")] {
        let counted = leads.metric("sluice_operator_writes_total", &[("kind", kind), ("verb", verb)]).await;
        assert!(counted.is_some(), "{verb} {kind}");
    }
    let read = async |one: &super::test_namespace::OperatorProcess| {
        let url = format!(
            "http://{}/v1/overview?namespace={}",
            one.listen_address("the read API").await,
            stage.namespace
        );
        let answer = reqwest::get(url).await.unwrap();
        (answer.status().as_u16(), answer.bytes().await.unwrap())
    };
    assert_eq!(read(&waits).await.0, 503);
    let (status, known) = read(&leads).await;
    let known = sluice_wire::overview::Overview::from_json(&known).unwrap();
    let gpus: Vec<_> = known.gpus.iter().map(|gpu| (gpu.pool.as_str(), gpu.name.as_str())).collect();
    assert_eq!((status, gpus), (200, vec![("p", "p-chat-0")]));
    for (file, kind) in [("", "text/html"), ("page.css", "text/css"), ("page.js", "text/javascript")] {
        let page = reqwest::get(format!("http://{}/{file}", leads.listen_address("the read API").await))
            .await
            .unwrap();
        let headers = page.headers().clone();
        assert!(headers["content-type"].to_str().unwrap().starts_with(kind) && page.status() == 200);
        assert!(headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    }
    let asked = reqwest::Client::new().get(format!("http://{}/", leads.listen_address("the read API").await));
    let rebound = asked.header("host", "evil.example").send().await.unwrap();
    assert_eq!(rebound.status(), 403, "a page of another origin reads nothing");
    let page = format!("http://{}/v1/page", leads.listen_address("the read API").await);
    let key = format!("\"key\":\"{}/p-chat-0\"", stage.namespace);
    let shown = async || {
        let text = reqwest::get(&page).await.ok()?.text().await.ok()?;
        (text.contains("[\"gpu\",") && text.contains(&key)).then_some(())
    };
    eventually("the page shows the GPU", shown).await;
    let ready = reqwest::get(format!("http://{}/readyz", waits.address().await)).await.unwrap();
    assert!(ready.status().is_success(), "who waits could take over at any time");

    leads.kill();
    let next = waits.identity().to_owned();
    eventually("the other leads", async || (stage.leader().await? == next).then_some(())).await;
    stage.tenant("u", json!({})).await;
    stage.inspect_ok("u", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1"), ("u-0", "p-chat-1-e1")]).await;
}

#[tokio::test]
async fn terminated_leader_releases_lease() {
    let Some(stage) = TestNamespace::try_new("release").await else { return };
    let operator = stage.operator("a", &["--lease-seconds", "60"]);
    eventually("a leader", async || stage.leader().await).await;
    assert!(operator.terminate());
    assert_eq!(stage.leader().await, None);
    // The next replica need not wait for a minute.
    let _next = stage.operator("b", &[]);
    eventually("the next leader", async || (stage.leader().await? == "b").then_some(())).await;
}

#[tokio::test]
async fn leader_without_lease_exits() {
    let Some(stage) = TestNamespace::try_new("robbed").await else { return };
    let mut operator = stage.operator("a", &[]);
    eventually("a leader", async || stage.leader().await).await;
    let thief = json!({"spec": {"holderIdentity": "somebody"}});
    let patch = kube::api::Patch::Merge(thief);
    let leases = stage.api::<Lease>();
    leases.patch("sluice-operator", &kube::api::PatchParams::default(), &patch).await.unwrap();
    eventually("its end", async || operator.has_ended().then_some(())).await;
    assert!(operator.log().contains("is held by somebody"), "{}", operator.log());
}

#[tokio::test]
async fn recreated_lease_catches_up_with_sidecar_epochs() {
    let Some(stage) = TestNamespace::try_new("anew").await else { return };
    let never = std::future::pending;
    let holder = |identity| LeaderElection::new(stage.api::<Lease>(), "anew", identity, 2);
    let mut one = holder("one");
    assert_eq!(one.acquire(never()).await, Some(1));
    stage.delete::<Lease>("anew").await;
    assert_eq!(one.acquire(never()).await, Some(1), "no earlier one is known");
    assert!(!holder("two").raise_epoch(9).await.unwrap(), "it is not its own");
    assert!(one.raise_epoch(9).await.unwrap());
    assert!(one.raise_epoch(3).await.unwrap(), "which is lower, and changes nothing");
    assert_eq!(one.acquire(never()).await, Some(10));
}
