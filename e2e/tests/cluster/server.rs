//! Prerequisites of the other tests on the shared API server.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ListParams, PostParams};
use sluice_e2e::cluster::{self, eventually};

#[tokio::test]
async fn a_user_may_do_what_rbac_says_and_the_audit_log_knows_who_asked() {
    let Some(server) = cluster::api().await.filter(|server| server.is_own_cluster()) else { return };
    let namespace = server.namespace("audit").await;
    let mine = Api::<ConfigMap>::namespaced(server.client().await, &namespace);
    let mut map = ConfigMap::default();
    map.metadata.name = Some("one".to_owned());
    mine.create(&PostParams::default(), &map).await.unwrap();

    let of_nobody = Api::<ConfigMap>::namespaced(server.client_of("nobody-special", None).await, &namespace);
    let refused = of_nobody.list(&ListParams::default()).await.unwrap_err();
    assert!(refused.to_string().contains("nobody-special"), "{refused}");

    let of_namespace = |user: &str, verb: &str, code: u16| {
        let log = server.audit_log().unwrap();
        log.into_iter().find(|record| {
            let object = record.object.as_ref();
            let here = object.is_some_and(|o| o.namespace == namespace && o.resource == "configmaps");
            here && record.user.username == user && record.verb == verb && record.answer.code == code
        })
    };
    eventually("both requests in the log", async || {
        of_namespace("admin", "create", 201).and(of_namespace("nobody-special", "list", 403))
    })
    .await;
}
