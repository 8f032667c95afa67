//! The Job that inspects a model, and the reports of its pods.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use sluice_plan::objects::inspect::{inspection_conditions, job, report, size_options};
use sluice_plan::objects::{clients_policy, service};
use sluice_types::GpuPool;
use sluice_types::conditions::Reason;
use sluice_wire::geometry::{GeometryError, GeometryErrorKind};

use super::fixtures::{host_pool, pool, release, tenant};

fn rendered(spec: Value) -> Value {
    serde_json::to_value(job(&host_pool(), &tenant("t", spec), &release())).unwrap()
}

fn hub() -> Value {
    let hub = json!({"repo": "org/tiny", "tokenSecretRef": {"name": "hub", "key": "token"}});
    let source = json!({"type": "HuggingFace", "huggingFace": hub, "persistentVolumeClaim": null});
    json!({"model": {"source": source, "dtype": "BFloat16"}})
}

fn container(job: &Value) -> &Value {
    &job["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn model_of_volume_is_inspected_in_place() {
    let job = rendered(json!({"model": {"source": {"persistentVolumeClaim": {"path": "chat"}}}}));
    let args = ["inspect", "--dtype", "Auto", "--report", "/dev/termination-log", "folder", "/model/chat"];
    assert_eq!(container(&job)["args"], json!(args));
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(pod["volumes"][0]["persistentVolumeClaim"], json!({"claimName": "models", "readOnly": true}));
    assert_eq!(
        container(&job)["volumeMounts"],
        json!([{"name": "model", "mountPath": "/model", "readOnly": true}])
    );
    assert_eq!(job["spec"]["template"]["metadata"]["labels"]["sluice.dev/fetching"], Value::Null);
    assert_eq!(job["metadata"]["name"], "t-inspect");
    assert_eq!(job["metadata"]["ownerReferences"][0]["kind"], "ModelTenant");
}

#[test]
fn sizes_are_those_of_the_device_of_the_pool() {
    let cuda = pool(json!({"deviceClassName": "gpu.nvidia.com"}));
    let options = |pool: &GpuPool, spec| size_options(pool, &tenant("t", spec).spec).join(" ");
    let bounded = || json!({"model": {"maxModelLen": 512}});
    assert_eq!(options(&host_pool(), bounded()), "--dtype Auto");
    assert_eq!(options(&cuda, bounded()), "--dtype Auto --device cuda --max-model-len 512");
    assert_eq!(options(&cuda, json!({})), "--dtype Auto --device cuda");
    // A proxied engine reports its own activations.
    let proxied = json!({"engine": {"kind": "Vllm", "image": "vllm/vllm-openai:v1"}});
    assert_eq!(options(&cuda, proxied), "--dtype Auto");
    let job = serde_json::to_value(job(&cuda, &tenant("t", bounded()), &release())).unwrap();
    let args = container(&job)["args"].as_array().unwrap();
    assert!(args.contains(&json!("cuda")) && args.contains(&json!("512")), "{args:?}");
}

#[test]
fn a_model_of_a_network_is_inspected_with_the_credential_and_no_volume() {
    let job = rendered(hub());
    let args = container(&job)["args"].as_array().unwrap();
    assert_eq!(args[1..3], [json!("--dtype"), json!("BFloat16")]);
    assert!(args.contains(&json!("hugging-face")) && args.contains(&json!("org/tiny")), "{args:?}");
    assert_eq!(container(&job)["env"][0]["valueFrom"]["secretKeyRef"]["name"], "hub");
    assert_eq!(job["spec"]["template"]["spec"]["volumes"], Value::Null);
    assert_eq!(container(&job)["volumeMounts"], Value::Null);
}

#[test]
fn inspection_pod_is_restricted_and_deleted_after_end() {
    let job = rendered(hub());
    let (spec, pod) = (&job["spec"], &job["spec"]["template"]["spec"]);
    assert_eq!((&spec["backoffLimit"], &spec["ttlSecondsAfterFinished"]), (&json!(3), &json!(600)));
    let rule = &spec["podFailurePolicy"]["rules"][0];
    assert_eq!((&rule["action"], &rule["onExitCodes"]["values"]), (&json!("FailJob"), &json!([78])));
    assert_eq!(rule["onExitCodes"]["containerName"], container(&job)["name"]);
    assert_eq!(
        (&pod["restartPolicy"], &pod["automountServiceAccountToken"]),
        (&json!("Never"), &json!(false))
    );
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let context = &container(&job)["securityContext"];
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(
        (&context["readOnlyRootFilesystem"], &context["capabilities"]["drop"]),
        (&json!(true), &json!(["ALL"]))
    );
    assert_eq!(container(&job)["terminationMessagePath"], "/dev/termination-log");
    let claimed =
        pool(json!({"nodeSelector": {"gpu": "yes"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}));
    let job = serde_json::to_value(job_on(&claimed)).unwrap();
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!((&pod["nodeSelector"]["gpu"], &pod["tolerations"][0]["key"]), (&json!("yes"), &json!("gpu")));
}

fn job_on(pool: &GpuPool) -> k8s_openapi::api::batch::v1::Job {
    job(pool, &tenant("t", hub()), &release())
}

#[test]
fn inspection_has_no_ingress_and_may_download() {
    let tenant = tenant("t", hub());
    let job = serde_json::to_value(job(&host_pool(), &tenant, &release())).unwrap();
    let labels = &job["spec"]["template"]["metadata"]["labels"];
    let selects =
        |selector: &Value| selector.as_object().unwrap().iter().all(|(key, value)| labels[key] == *value);
    let service = serde_json::to_value(service(&tenant)).unwrap();
    assert!(!selects(&service["spec"]["selector"]), "an inspection would be sent requests");
    let policies = serde_json::to_value(clients_policy(&tenant)).unwrap();
    let selector = |index: usize| &policies[index]["spec"]["podSelector"]["matchLabels"];
    assert!(!selects(selector(0)) && selects(selector(1)), "{policies}");
}

fn ended(message: &str, exit_code: i32) -> Pod {
    let terminated = json!({"exitCode": exit_code, "reason": "Error", "message": message});
    let status = json!({"containerStatuses": [{"name": "inspect", "state": {"terminated": terminated}, "image": "",
        "imageID": "", "ready": false, "restartCount": 0}]});
    serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
}

#[test]
fn ended_inspection_reports_geometry_or_error() {
    let golden = include_str!("../../../crds/wire/tests/golden/geometry-v1.json");
    assert_eq!(report(&ended(golden, 0)).unwrap().unwrap().layers, 32);
    assert_eq!(report(&Pod::default()), None);
    let refusal =
        r#"{"version":1,"refusal":{"reason":"Unsupported","message":"config.json: model_type: `gpt2`"}}"#;
    let refusal = report(&ended(refusal, 78)).unwrap().unwrap_err();
    assert_eq!(refusal.reason, GeometryErrorKind::Unsupported);
    for (message, words) in [("", "without a message"), ("exec format error", "exec format error")] {
        let refusal = report(&ended(message, 137)).unwrap().unwrap_err();
        assert_eq!(refusal.reason, GeometryErrorKind::Unavailable);
        assert!(refusal.message.contains(words) && refusal.message.contains("137"), "{refusal:?}");
    }
}

#[test]
fn permanent_inspection_error_rejects_tenant() {
    let of = |reason| inspection_conditions(&GeometryError { reason, message: "it is so".into() });
    let (accepted, placed) = of(GeometryErrorKind::Unsupported);
    assert_eq!(
        (accepted.unwrap().reason, placed.reason),
        (Reason::ModelUnsupported, Reason::InspectionFailed)
    );
    let (accepted, _) = of(GeometryErrorKind::Unreadable);
    assert_eq!(accepted.unwrap().reason, Reason::ModelUnreadable);
    let (accepted, placed) = of(GeometryErrorKind::Unavailable);
    assert_eq!((accepted, placed.reason), (None, Reason::InspectionFailed));
}
