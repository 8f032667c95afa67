//! Applied objects, compared with what the pages of the operator promise.

use serde_json::{Value, json};
use sluice_plan::objects::inspect::job;
use sluice_plan::objects::{PlacedSlot, Release, budget, claim, config_map, deployment, label, service};
use sluice_types::{GpuPool, ModelTenant};
use sluice_wire::config::{CudaConfig, SidecarConfig};

use super::fixtures::{MIB, first_gpu, host_pool, placed, pool, release, tenant};

pub fn json_of(object: impl serde::Serialize) -> Value {
    serde_json::to_value(object).expect("an object serialises")
}

fn rendered(pool: &GpuPool, tenant: &ModelTenant) -> Value {
    let gpu = first_gpu(pool);
    json_of(deployment(&placed(pool, tenant, &gpu), &release()))
}

pub fn pod(pool: &GpuPool, tenant: &ModelTenant) -> Value {
    rendered(pool, tenant)["spec"]["template"]["spec"].take()
}

/// Init containers and containers, by name.
fn containers(pod: &Value) -> Vec<(&str, &Value)> {
    let all = ["initContainers", "containers"].iter().flat_map(|kind| pod[*kind].as_array().unwrap());
    all.map(|container| (container["name"].as_str().unwrap(), container)).collect()
}

pub fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let all = containers(pod);
    all.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{name} in {all:?}")).1
}

#[test]
fn a_sidecar_that_hangs_is_killed_within_seconds_however_long_a_drain_may_take() {
    let probe = |engine: Value| {
        let spec = json!({"drainSeconds": 600, "engine": engine});
        let pod = pod(&host_pool(), &tenant("t", spec));
        container(&pod, "sidecar")["livenessProbe"].clone()
    };
    let native = probe(json!({}));
    assert_eq!(native["httpGet"], json!({"path": "/live", "port": 8002}));
    let number = |name: &str| native[name].as_i64().unwrap_or_else(|| panic!("{name} in {native}"));
    let found_seconds = number("periodSeconds") * number("failureThreshold");
    let killed_seconds = found_seconds + number("timeoutSeconds") + number("terminationGracePeriodSeconds");
    assert!((20..=40).contains(&killed_seconds), "{killed_seconds} s from its last answer to SIGKILL");
    assert!(number("failureThreshold") >= 3, "one slow answer is no hang");
    let proxied = probe(json!({"kind": "Vllm", "image": "vllm/vllm-openai:v1"}));
    assert_eq!(
        proxied,
        json!({"httpGet": {"path": "/live", "port": 8002}, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 2})
    );
}

#[test]
fn a_slot_is_one_pod_that_is_replaced_and_never_doubled() {
    let whole = rendered(&host_pool(), &tenant("t", json!({"replicas": 3})));
    assert_eq!(whole["metadata"]["name"], "t-1");
    assert_eq!(whole["metadata"]["ownerReferences"][0]["uid"], "uid-of-t");
    assert_eq!((&whole["spec"]["replicas"], &whole["spec"]["revisionHistoryLimit"]), (&json!(1), &json!(1)));
    assert_eq!(whole["spec"]["strategy"]["rollingUpdate"], json!({"maxSurge": 0, "maxUnavailable": 1}));
    let labels = &whole["spec"]["template"]["metadata"]["labels"];
    for (key, value) in whole["spec"]["selector"]["matchLabels"].as_object().unwrap() {
        assert_eq!(labels[key], *value);
    }
}

#[test]
fn images_are_pulled_with_the_secrets_of_the_tenant_and_of_the_release_each_once() {
    let (pool, tenant) =
        (host_pool(), tenant("t", json!({"imagePullSecrets": [{"name": "own"}, {"name": "all"}]})));
    let gpu = first_gpu(&pool);
    let pulled = |release: &Release| {
        let slot = json_of(deployment(&placed(&pool, &tenant, &gpu), release));
        let job = json_of(job(&pool, &tenant, release));
        let of = |whole: &Value| whole["spec"]["template"]["spec"]["imagePullSecrets"].clone();
        assert_eq!(of(&slot), of(&job), "both need the sidecar's image");
        of(&slot)
    };
    assert_eq!(pulled(&release()), json!([{"name": "own"}, {"name": "all"}]));
    let release = Release { pull_secrets: vec!["all".into(), "registry".into()], ..release() };
    assert_eq!(pulled(&release), json!([{"name": "own"}, {"name": "all"}, {"name": "registry"}]));
}

#[test]
fn the_sidecar_is_native_starts_first_and_both_drain_before_either_ends() {
    let pod = pod(&host_pool(), &tenant("t", json!({"drainSeconds": 40})));
    let names: Vec<_> = containers(&pod).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["sidecar", "engine"]);
    let (sidecar, engine) = (container(&pod, "sidecar"), container(&pod, "engine"));
    assert_eq!(sidecar["restartPolicy"], "Always");
    assert_eq!(sidecar["startupProbe"]["httpGet"], json!({"path": "/startup", "port": 8002}));
    assert_eq!(sidecar["readinessProbe"]["httpGet"]["path"], "/ready");
    assert!(engine.get("readinessProbe").is_none());
    let key = json!([{"name": "x-sluice-drain", "value": "uid-of-t"}]);
    for (one, path) in [(sidecar, "/drain"), (engine, "/drained")] {
        let hook = json!({"path": path, "port": 8002, "httpHeaders": key});
        assert_eq!(one["lifecycle"]["preStop"]["httpGet"], hook);
    }
    assert_eq!(pod["terminationGracePeriodSeconds"], 55);
}

#[test]
fn an_engine_whose_supervisor_answers_nothing_is_killed_after_a_minute() {
    let engine = |engine: Value| {
        let pod = pod(&host_pool(), &tenant("t", json!({"drainSeconds": 600, "engine": engine})));
        container(&pod, "engine").clone()
    };
    let own = engine(json!({}));
    let probe = &own["livenessProbe"];
    assert_eq!(probe["httpGet"], json!({"path": "/", "port": 8004}));
    assert!(
        own["env"]
            .as_array()
            .unwrap()
            .contains(&json!({"name": "SLUICE_ENGINE_LIVE", "value": "0.0.0.0:8004"}))
    );
    let number = |name: &str| probe[name].as_i64().unwrap_or_else(|| panic!("{name} in {probe}"));
    let found_seconds = number("periodSeconds") * number("failureThreshold");
    assert!(
        (50..=90).contains(&found_seconds),
        "later than its sidecar, which may end it: {found_seconds} s"
    );
    assert!(number("timeoutSeconds") >= 5, "a slow node is no hang");
    assert_eq!(number("terminationGracePeriodSeconds"), 3, "not the 600 s of a drain");
    assert!(own.get("startupProbe").is_none(), "its supervisor answers first of all");
    for other in [
        json!({"image": "an/engine:1"}),
        json!({"args": ["--no-supervisor"]}),
        json!({"args": ["--live", "127.0.0.1:1"]}),
        json!({"args": ["--threads=2", "--live=127.0.0.1:1"]}),
        json!({"env": [{"name": "SLUICE_ENGINE_LIVE", "value": "127.0.0.1:1"}]}),
        json!({"kind": "Vllm", "image": "vllm/vllm-openai:v1"}),
    ] {
        let engine = engine(other.clone());
        assert!(engine.get("livenessProbe").is_none(), "{other} may answer nothing");
        assert!(!engine["env"].to_string().contains("0.0.0.0:8004"), "{other} says where it answers");
    }
}

#[test]
fn every_container_is_restricted_and_none_has_a_token() {
    let fetched = json!({"model": {"source": {
        "type": "HuggingFace", "persistentVolumeClaim": null, "huggingFace": {"repo": "a/b"}}}});
    let pod = pod(&host_pool(), &tenant("t", fetched));
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(
        pod["shareProcessNamespace"], true,
        "an engine is ended by a pidfd, which works within one namespace"
    );
    let of_pod = &pod["securityContext"];
    assert_eq!(
        (&of_pod["runAsNonRoot"], &of_pod["seccompProfile"]["type"]),
        (&json!(true), &json!("RuntimeDefault"))
    );
    let all = containers(&pod);
    assert_eq!(all.len(), 3);
    for (name, one) in all {
        let wanted = json!({
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}});
        assert_eq!(one["securityContext"], wanted, "{name}");
        let resources = &one["resources"];
        assert_eq!(resources["requests"]["memory"], resources["limits"]["memory"], "{name}");
        assert!(resources["requests"]["cpu"].is_string(), "{name}");
    }
    let volumes = pod["volumes"].as_array().unwrap();
    assert!(volumes.iter().all(|volume| volume.get("hostPath").is_none()));
}

#[test]
fn chunks_of_a_host_backed_gpu_are_the_sidecars_charge() {
    let memory = |pool: &GpuPool| {
        let pod = pod(pool, &tenant("t", json!({})));
        container(&pod, "sidecar")["resources"]["limits"]["memory"].as_str().unwrap().to_owned()
    };
    assert_eq!(memory(&host_pool()), "296Mi");
    assert_eq!(memory(&pool(json!({}))), "200Mi");
}

#[test]
fn tenant_resources_replace_computed_ones() {
    let asked = json!({"engine": {"resources": {"limits": {"memory": "1Gi", "cpu": "2"}}}});
    let pod = pod(&host_pool(), &tenant("t", asked));
    let resources = &container(&pod, "engine")["resources"];
    assert_eq!(resources["limits"], json!({"memory": "1Gi", "cpu": "2"}));
    assert_eq!(resources["requests"]["memory"], "1Gi");
    // The memory request equals the limit: a smaller request is ignored.
    let asked =
        json!({"engine": {"resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Mi"}}}});
    let pod = self::pod(&host_pool(), &tenant("t", asked));
    let resources = &container(&pod, "engine")["resources"];
    assert_eq!(
        (&resources["limits"]["memory"], &resources["requests"]["memory"]),
        (&json!("1Gi"), &json!("1Gi"))
    );
}

#[test]
fn no_container_asks_for_more_cpu_than_it_may_use() {
    let of = |asked: Value| {
        let pod = pod(&host_pool(), &tenant("t", json!({"engine": {"resources": asked}})));
        let resources = container(&pod, "engine")["resources"].clone();
        (resources["requests"]["cpu"].clone(), resources["limits"]["cpu"].clone())
    };
    assert_eq!(of(json!({})), (json!("1"), Value::Null));
    assert_eq!(of(json!({"limits": {"cpu": "500m"}})), (json!("500m"), json!("500m")));
    assert_eq!(of(json!({"limits": {"cpu": "1.5"}})), (json!("1"), json!("1.5")));
    let both = json!({"limits": {"cpu": "500m"}, "requests": {"cpu": "0.1"}});
    assert_eq!(of(both), (json!("0.1"), json!("500m")));
}

#[test]
fn a_tenants_own_share_of_threads_is_the_only_one() {
    const SHARE: &str = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    let mut pool = host_pool();
    pool.spec.gpus[0].sharing.mode = sluice_types::pool::SharingMode::Spatial;
    let shares = |written: Value| -> Vec<String> {
        let pod = pod(&pool, &tenant("t", json!({"engine": {"env": written}})));
        let env = container(&pod, "engine")["env"].as_array().cloned().unwrap_or_default();
        let own = env.iter().filter(|one| one["name"] == SHARE);
        own.map(|one| one["value"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(shares(json!([])), ["50"]);
    assert_eq!(shares(json!([{"name": SHARE, "value": "7"}])), ["7"]);
}

#[test]
fn only_the_download_sees_the_credential_and_the_engine_sees_no_model() {
    let hub = json!({"repo": "a/b", "tokenSecretRef": {"name": "hub", "key": "token"}});
    let source = json!({"type": "HuggingFace", "persistentVolumeClaim": null, "huggingFace": hub});
    let pod = pod(&host_pool(), &tenant("t", json!({"model": {"source": source}})));
    let secret = json!({"secretKeyRef": {"key": "token", "name": "hub"}});
    for (name, one) in containers(&pod) {
        let sees = one["env"].as_array().is_some_and(|env| env.iter().any(|env| env["valueFrom"] == secret));
        assert_eq!(sees, name == "fetch", "{name}");
    }
    assert!(!container(&pod, "engine")["volumeMounts"].to_string().contains("model"));
    assert!(!container(&pod, "fetch")["volumeMounts"].to_string().contains("tls"));
    assert_eq!(container(&pod, "fetch").get("restartPolicy"), None);
}

#[test]
fn model_of_volume_or_image_is_read_in_place() {
    let folder = |source: Value| {
        let (pool, tenant) = (host_pool(), tenant("t", json!({"model": {"source": source}})));
        let gpu = first_gpu(&pool);
        config(&placed(&pool, &tenant, &gpu)).model_path.display().to_string()
    };
    let claim =
        json!({"type": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "c", "path": "/a/b"}});
    assert_eq!(folder(claim), "/model/a/b");
    let image = json!({"type": "Image", "persistentVolumeClaim": null, "image": {"reference": "r"}});
    assert_eq!(folder(image), "/model");
}

fn config(placed: &PlacedSlot<'_>) -> SidecarConfig {
    let map = config_map(placed);
    serde_json::from_str(&map.data.unwrap()["sidecar.json"]).expect("what a sidecar reads")
}

#[test]
fn sidecar_config_has_gpu_share_and_certificate() {
    let (pool, tenant) = (host_pool(), tenant("t", json!({"priority": 7, "memory": {"hostKv": "8Mi"}})));
    let gpu = first_gpu(&pool);
    let config = config(&placed(&pool, &tenant, &gpu));
    assert_eq!((config.gpu.memory_bytes, config.gpu.chunk_bytes), (96 * MIB, 64 << 10));
    assert_eq!(config.memory.host_kv_bytes, 8 * MIB);
    let place = config.gpu_ledger.unwrap();
    assert_eq!((place.share_bytes, place.priority), (48 * MIB, 7));
    assert_eq!(config.memory.max_remapped_percent, 60, "what it starts with");
    let tls = config.listen.admin_tls.unwrap();
    assert_eq!((tls.claim.as_str(), place.claim.as_str()), ("p-chat-0-e3.uid-of-p", "p-chat-0-e3.p"));
    assert!(config.engine.spawn.is_none(), "another container is the engine");
}

#[test]
fn a_native_engine_gets_the_one_cuda_device_of_its_claim() {
    let pool = pool(json!({"deviceClassName": "gpu.nvidia.com"}));
    let gpu = first_gpu(&pool);
    let gpu_of = |spec| config(&placed(&pool, &tenant("t", spec), &gpu)).gpu;
    let native = gpu_of(json!({}));
    assert_eq!(native.cuda, Some(CudaConfig { uuid: None }), "a pod sees the device of its claim alone");
    assert_eq!((native.memory_bytes, native.chunk_bytes), (96 * MIB, 16 * MIB));
    // Its sidecar opens no device.
    let proxied = json!({"engine": {"kind": "Vllm", "image": "vllm/vllm-openai:v1"}});
    assert_eq!(gpu_of(proxied).cuda, None);
    let (pool, gpu) = (host_pool(), first_gpu(&host_pool()));
    assert_eq!(config(&placed(&pool, &tenant("t", json!({})), &gpu)).gpu.cuda, None);
}

#[test]
fn slots_of_two_pools_are_never_peers() {
    let title = |pool: &GpuPool, uid: &str| {
        let mut pool = pool.clone();
        pool.metadata.uid = Some(uid.into());
        let (tenant, gpu) = (tenant("t", json!({})), first_gpu(&pool));
        let placed = placed(&pool, &tenant, &gpu);
        let tls = config(&placed).listen.admin_tls.unwrap();
        assert_eq!(tls.claim, placed.title(), "what its certificate says");
        tls.claim
    };
    let uids = ["c9a646d3-9c61-4cb7-bfcd-ee2522c8f633", "17f1bbcd-29e2-4ad3-9e3e-b2d01f2c0f5a"];
    let named = |uid: &str| title(&host_pool(), uid);
    assert_ne!(
        named(uids[0]),
        named(uids[1]),
        "two pools of one name, in two namespaces or one after the other"
    );
    let mut long = host_pool();
    long.metadata.name = Some("p".repeat(40));
    long.spec.gpus[0].name = format!("{}-g", "g".repeat(38));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    for title in [title(&long, uids[0]), named(uids[0])] {
        assert!(title.len() <= 128 && title.bytes().all(plain), "a ledger and a URI take it: {title}");
    }
}

#[test]
fn directive_fields_do_not_change_config_digest() {
    let pod = |pool: &GpuPool, spec: Value, share: u64| {
        let tenant = tenant("t", spec);
        let gpu = first_gpu(pool);
        let placed = PlacedSlot { share_bytes: share, ..placed(pool, &tenant, &gpu) };
        json_of(deployment(&placed, &release()))["spec"]["template"].take()
    };
    let before = pod(&host_pool(), json!({}), 1);
    let carried =
        json!({"priority": 3, "idle": {"hibernateAfterSeconds": 900}, "memory": {"maxRemappedPercent": 5}});
    let mut other = host_pool();
    other.spec.policy = sluice_types::pool::Policy::Oneiros;
    assert_eq!(pod(&other, carried, 2), before, "whole, not the digest alone");
    assert_ne!(pod(&host_pool(), json!({"memory": {"hostKv": "1Gi"}}), 1), before);
    let mut other = host_pool();
    other.spec.gpus[0].sharing.mode = sluice_types::pool::SharingMode::Spatial;
    assert_ne!(pod(&other, json!({}), 1), before);
}

#[test]
fn claim_requests_gpu_and_ledger_folder() {
    let of = |pool: &GpuPool| {
        let gpu = first_gpu(pool);
        json_of(claim(pool, &gpu, 3))
    };
    let host = of(&host_pool());
    assert_eq!(host["metadata"]["name"], "p-chat-0-e3");
    let requests = &host["spec"]["devices"]["requests"];
    assert_eq!(requests[0]["exactly"]["deviceClassName"], "host.sluice.dev");
    assert_eq!(requests[1]["name"], "neighbourhood");
    let parameters = &host["spec"]["devices"]["config"][0]["opaque"];
    assert_eq!(parameters["parameters"]["memory"], "96Mi");
    let selected = of(&pool(json!({"device": {"selectors": ["device.attributes['x'].y == 'z'"]}})));
    assert_eq!(selected["spec"]["devices"].get("config"), None);
    assert_eq!(
        selected["spec"]["devices"]["requests"][0]["exactly"]["selectors"][0]["cel"]["expression"],
        "device.attributes['x'].y == 'z'"
    );
    let sharing =
        json!([{"name": "chat", "sharing": {"mode": "Isolated", "isolated": {"profile": "3g.71gb"}}}]);
    let instance = of(&pool(json!({"gpus": sharing})));
    let request = &instance["spec"]["devices"]["requests"][0]["exactly"];
    assert_eq!(request["deviceClassName"], "mig.nvidia.com");
    assert!(request["selectors"].to_string().contains("3g.71gb"));
}

#[test]
fn all_at_once_is_mps_with_the_share_in_the_engines_environment() {
    let sharing = json!([{"name": "chat", "sharing": {"mode": "Spatial", "spatial": {"defaultActiveThreadPercent": 30}}}]);
    let pool = pool(json!({"gpus": sharing}));
    let gpu = first_gpu(&pool);
    let parameters = &json_of(claim(&pool, &gpu, 1))["spec"]["devices"]["config"][0]["opaque"];
    assert_eq!(parameters["parameters"]["sharing"]["strategy"], "MPS");
    let share = json!({"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": "30"});
    for engine in [json!({}), json!({"engine": {"kind": "Vllm", "image": "vllm:1"}})] {
        let pod = pod(&pool, &tenant("t", engine));
        let env = container(&pod, "engine")["env"].as_array().unwrap().clone();
        assert!(env.contains(&share), "{env:?}");
    }
}

#[test]
fn pods_use_the_claim_of_this_epoch_and_the_folder_is_the_sidecars() {
    let pod = pod(&host_pool(), &tenant("t", json!({})));
    assert_eq!(pod["resourceClaims"], json!([{"name": "gpu", "resourceClaimName": "p-chat-0-e3"}]));
    let claims = |name: &str| container(&pod, name)["resources"]["claims"].clone();
    assert_eq!(claims("engine"), json!([{"name": "gpu", "request": "gpu"}]));
    // Without a request it uses all of them; the API server rejects a container that names the claim twice.
    assert_eq!(claims("sidecar"), json!([{"name": "gpu"}]));
}

#[test]
fn a_service_and_a_budget_select_every_pod_of_the_tenant() {
    let tenant = tenant("t", json!({}));
    let labels = rendered(&host_pool(), &tenant)["spec"]["template"]["metadata"]["labels"].take();
    let (service, budget) = (json_of(service(&tenant)), json_of(budget(&tenant)));
    for selector in [&service["spec"]["selector"], &budget["spec"]["selector"]["matchLabels"]] {
        let selector = selector.as_object().unwrap();
        assert!(!selector.is_empty() && selector.iter().all(|(key, value)| labels[key] == *value));
    }
    assert_eq!(budget["spec"]["maxUnavailable"], 1);
    assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow");
}

#[test]
fn user_labels_are_added_to_own_labels() {
    let own = json!({"team": "a", "sluice.dev/tenant": "another", "sluice.dev/x": "", "app.kubernetes.io/part-of": "x"});
    let spec = json!({"podLabels": own, "podAnnotations": own});
    let metadata = rendered(&host_pool(), &tenant("t", spec))["spec"]["template"]["metadata"].take();
    let (labels, notes) = (&metadata["labels"], &metadata["annotations"]);
    assert_eq!((&labels["team"], &notes["team"]), (&json!("a"), &json!("a")));
    assert_eq!((&labels["sluice.dev/tenant"], &notes["sluice.dev/tenant"]), (&json!("t"), &Value::Null));
    assert_eq!((&labels["sluice.dev/x"], &notes["sluice.dev/x"]), (&Value::Null, &Value::Null));
    let part = "app.kubernetes.io/part-of";
    assert_eq!((&labels[part], &notes[part]), (&Value::Null, &json!("x")));
}

#[test]
fn a_long_name_becomes_a_label_of_its_own() {
    let (one, other) = ("a".repeat(80), format!("{}b", "a".repeat(79)));
    assert_eq!(label("p-chat-0"), "p-chat-0");
    assert!(label(&one).len() <= 63 && label(&other).len() <= 63);
    assert_ne!(label(&one), label(&other));
}

fn proxied(more: Value) -> Value {
    let mut engine = json!({"kind": "Vllm", "image": "vllm/vllm-openai:v1"});
    engine.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let model = json!({"servedNames": ["a", "org/a"], "maxModelLen": 4096, "dtype": "BFloat16"});
    pod(&pool(json!({})), &tenant("t", json!({"engine": engine, "model": model})))
}

#[test]
fn a_proxied_engine_listens_on_loopback_whatever_the_tenant_writes() {
    let args = json!(["--host", "0.0.0.0", "--gpu-memory-utilization=0.8"]);
    let pod = proxied(json!({"args": args, "env": [{"name": "VLLM_SERVER_DEV_MODE", "value": "0"}]}));
    let engine = container(&pod, "engine");
    assert_eq!(engine["command"], json!(["vllm", "serve"]));
    let wanted = "/model --served-model-name a org/a --enable-sleep-mode --max-model-len 4096 --dtype bfloat16 \
        --host 0.0.0.0 --gpu-memory-utilization=0.8 --host 127.0.0.1 --port 8010";
    let args: Vec<_> = engine["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    assert_eq!(args.join(" "), wanted);
    let env = engine["env"].as_array().unwrap();
    let modes: Vec<_> = env.iter().filter(|env| env["name"] == "VLLM_SERVER_DEV_MODE").collect();
    assert_eq!(modes, [&json!({"name": "VLLM_SERVER_DEV_MODE", "value": "0"})]);
    assert!(engine.get("ports").is_none(), "only the sidecar asks there");
}

#[test]
fn a_proxied_engine_has_device_and_model_and_its_sidecar_neither() {
    let pod = proxied(json!({}));
    let (sidecar, engine) = (container(&pod, "sidecar"), container(&pod, "engine"));
    let mounts = |one: &Value| -> Vec<String> {
        let all = one["volumeMounts"].as_array().unwrap().iter();
        all.map(|mount| mount["mountPath"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(mounts(sidecar), ["/etc/sluice", "/etc/sluice-tls", "/run/sluice"]);
    assert_eq!(mounts(engine), ["/model", "/tmp", "/dev/shm"]);
    assert_eq!(engine["resources"]["claims"], json!([{"name": "gpu", "request": "gpu"}]));
    assert_eq!(sidecar["resources"].get("claims"), None);
    // 64 MiB, 2048 streams of 32 KiB and 512 MiB for buffers, and a twentieth; 8 GiB and 35 MiB of weights, and a
    // twentieth of these.
    assert_eq!(sidecar["resources"]["limits"]["memory"], "672Mi");
    assert_eq!(engine["resources"]["limits"]["memory"], "8426240Ki");
    let volumes: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|volume| &volume["name"]).collect();
    assert!(volumes.contains(&&json!("scratch")), "{volumes:?}");
}

#[test]
fn sidecar_of_proxied_engine_has_engine_url_and_no_peers() {
    let (pool, tenant) = (pool(json!({})), tenant("t", json!({"engine": {"kind": "Vllm", "image": "v"}})));
    let gpu = first_gpu(&pool);
    let config = config(&placed(&pool, &tenant, &gpu));
    assert_eq!(config.engine.kind, sluice_wire::config::EngineKind::Vllm);
    assert_eq!(config.engine.url.as_deref(), Some("http://127.0.0.1:8010"));
    assert_eq!(config.gpu_ledger, None);
}
