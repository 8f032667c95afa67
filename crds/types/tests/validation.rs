//! Rules between fields and objects: for each rule a file that breaks that rule alone.

use sluice_types::load::{ManifestObject, load_str, load_valid_str, validate};
use sluice_types::rules::{self, CelRule};

use crate::cel;
use crate::good_files::{POOL, TENANT, both, tenant};

/// Path and message of every violation.
fn violations(text: &str) -> Vec<(String, String)> {
    let objects = load_str(text, "f.yaml").unwrap();
    let all = validate(&objects).err().unwrap_or_default();
    for (index, object) in objects.iter().enumerate() {
        let native: Vec<&str> = all.iter().filter(|i| i.index == index).map(|i| i.message.as_str()).collect();
        cel::agrees(object, &native);
    }
    all.into_iter().map(|invalid| (invalid.path.to_string(), invalid.message)).collect()
}

#[track_caller]
fn expect_one(text: &str, path: &str, message: &str) {
    assert_eq!(violations(text), [(path.to_owned(), message.to_owned())]);
}

/// The pool alone, with lines added to its spec's end.
fn pool_with(lines: &str) -> String {
    format!("{POOL}{lines}\n")
}

/// Pool and tenant, with lines added to the tenant's spec.
fn tenant_with(lines: &str) -> String {
    format!("{}{lines}\n", both())
}

#[test]
fn the_files_that_the_tests_start_from_are_valid() {
    assert_eq!(violations(&both()), []);
}

#[test]
fn guaranteed_kv_within_its_limit() {
    let text = |kv| tenant_with(&format!("  memory: {{guaranteedKv: {kv}, kvLimit: 1Gi}}"));
    assert_eq!(violations(&text("1024Mi")), []);
    expect_one(&text("1025Mi"), "spec.memory.guaranteedKv", "guaranteedKv must not exceed kvLimit");
}

#[test]
fn hibernation_comes_after_idleness() {
    let text = |after| tenant_with(&format!("  idle: {{afterSeconds: {after}, hibernateAfterSeconds: 60}}"));
    assert_eq!(violations(&text(59)), []);
    expect_one(&text(60), "spec.idle.hibernateAfterSeconds", rules::HIBERNATE_AFTER_IDLE.message);
    // The default of the one is compared with the other as written.
    expect_one(
        &tenant_with("  idle: {afterSeconds: 600}"),
        "spec.idle.hibernateAfterSeconds",
        rules::HIBERNATE_AFTER_IDLE.message,
    );
}

#[test]
fn a_container_asks_for_no_more_cpu_than_it_may_use() {
    for of in ["engine", "sidecar"] {
        let text = |asked, most| {
            tenant_with(&format!(
                "  {of}: {{resources: {{requests: {{cpu: \"{asked}\"}}, limits: {{cpu: \"{most}\"}}}}}}"
            ))
        };
        assert_eq!((violations(&text("500m", "0.5")), violations(&text("1", "2"))), (vec![], vec![]));
        let path = format!("spec.{of}");
        expect_one(&text("501m", "0.5"), &path, rules::CPU_WITHIN_LIMIT.message);
        let limit = tenant_with(&format!("  {of}: {{resources: {{limits: {{cpu: 1m}}}}}}"));
        assert_eq!(violations(&limit), [], "what the operator computes gives way");
    }
}

#[test]
fn an_engine_that_is_not_ours_needs_an_image() {
    expect_one(&tenant_with("  engine: {kind: Vllm}"), "spec.engine", rules::ENGINE_IMAGE.message);
    let watched = "  engine: {kind: Vllm, image: v, hangTimeoutSeconds: 5}";
    expect_one(&tenant_with(watched), "spec.engine", rules::ENGINE_HANG_TIMEOUT.message);
    assert_eq!(violations(&tenant_with("  engine: {kind: Vllm, image: v}")), []);
}

#[test]
fn tolerations_are_what_the_api_server_takes_of_a_pod() {
    let text = |one: &str| {
        format!("{}---\n{TENANT}", POOL.replace("spec:\n", &format!("spec:\n  tolerations: [{{{one}}}]\n")))
    };
    for good in
        ["operator: Exists", "key: a", "key: a, value: b", "key: a, effect: NoExecute, tolerationSeconds: 1"]
    {
        assert_eq!(violations(&text(good)), [], "{good}");
    }
    for (bad, rule) in [
        ("value: b", &rules::TOLERATION_KEY),
        ("key: a, operator: Exists, value: b", &rules::TOLERATION_VALUE),
        ("key: a, tolerationSeconds: 1", &rules::TOLERATION_SECONDS),
        ("key: a, effect: NoSchedule, tolerationSeconds: 1", &rules::TOLERATION_SECONDS),
    ] {
        expect_one(&text(bad), "spec.tolerations", rule.message);
    }
}

#[test]
fn one_source_of_api_keys() {
    let text = "  access: {apiKeysFile: keys, apiKeysSecretRef: {name: a, key: b}}";
    expect_one(&tenant_with(text), "spec.access", rules::ONE_KEY_SOURCE.message);
    assert_eq!(violations(&tenant_with("  access: {apiKeysFile: keys}")), []);
}

#[test]
fn labels_and_annotations_of_the_operator_are_its_own() {
    let labels = |key: &str| tenant_with(&format!("  podLabels: {{team: a, {key}: b}}"));
    for own in ["sluice.dev/fetching", "sluice.dev/x", "app.kubernetes.io/name"] {
        expect_one(&labels(own), "spec.podLabels", rules::POD_LABELS.message);
    }
    let notes = |key: &str| tenant_with(&format!("  podAnnotations: {{team: a, {key}: b}}"));
    expect_one(&notes("sluice.dev/config-digest"), "spec.podAnnotations", rules::POD_ANNOTATIONS.message);
    for free in ["sluice.device/x", "x.sluice.dev/y", "sluice", "kubernetes.io/x"] {
        assert_eq!((violations(&labels(free)), violations(&notes(free))), (vec![], vec![]), "{free}");
    }
    assert_eq!(violations(&notes("app.kubernetes.io/name")), []);
}

#[test]
fn the_source_has_the_member_named_like_its_type() {
    let wrong = both().replace("type: File", "type: S3");
    expect_one(&wrong, "spec.model.source", rules::SOURCE.message);
    let two = both().replace("      file:", "      huggingFace: {repo: a/b}\n      file:");
    expect_one(&two, "spec.model.source", rules::SOURCE.message);
    let none = both().replace("      file:\n        path: models/story\n", "");
    expect_one(&none, "spec.model.source", rules::SOURCE.message);
}

#[test]
fn a_cache_is_for_what_does_not_change() {
    let file = "source:\n      type: File\n      file:\n        path: models/story";
    let cached = |source: &str| {
        let text = both().replace(file, source);
        text.replace("  model:\n", "  cache: {claimName: models}\n  model:\n")
    };
    let hub = |revision: &str| {
        cached(&format!("source: {{type: HuggingFace, huggingFace: {{repo: a/b, revision: {revision}}}}}"))
    };
    assert_ne!(cached(file), both());
    expect_one(&cached(file), "spec.cache", rules::CACHE.message);
    expect_one(&hub("main"), "spec.cache", rules::CACHE.message);
    expect_one(&hub(&"C0ffee".repeat(7)[..40]), "spec.cache", rules::CACHE.message);
    assert_eq!(violations(&hub(&"c0ffee".repeat(7)[..40])), []);
}

#[test]
fn sharing_has_only_the_member_named_like_its_mode() {
    for (sharing, good) in [
        ("{mode: Temporal}", true),
        ("{mode: Spatial}", true),
        ("{mode: Spatial, spatial: {}}", true),
        ("{mode: Isolated, isolated: {profile: 1g.18gb.me}}", true),
        ("{mode: Isolated}", false),
        ("{spatial: {}}", false),
        ("{mode: Spatial, temporal: {}}", false),
        ("{mode: Temporal, isolated: {profile: 3g.71gb}}", false),
    ] {
        let text = pool_with(&format!("    sharing: {sharing}"));
        match good {
            true => assert_eq!(violations(&text), [], "{sharing}"),
            false => expect_one(&text, "spec.gpus[0].sharing", rules::SHARING.message),
        }
    }
}

#[test]
fn a_pool_has_a_thousand_and_twenty_four_gpus_at_most() {
    let groups = |more: u32| pool_with(&format!("    count: 512\n  - name: other\n    count: {more}"));
    assert_eq!(violations(&groups(512)), []);
    expect_one(&groups(513), "spec.gpus", rules::POOL_SIZE.message);
}

#[test]
fn quanta_are_in_order() {
    let text = |least| pool_with(&format!("    sharing: {{temporal: {{minQuantumMilliseconds: {least}}}}}"));
    assert_eq!(violations(&text(50)), []);
    expect_one(&text(51), "spec.gpus[0].sharing.temporal", rules::QUANTUM_ORDER.message);
}

#[test]
fn host_memory_is_described_exactly_for_host_backed_gpus() {
    let real = POOL.replace("host.sluice.dev", "gpu.nvidia.com");
    expect_one(&real, "spec.device", rules::HOST_DEVICE.message);
    let bare = POOL.replace("  device:\n    host:\n      memory: 96Mi\n", "");
    expect_one(&bare, "spec.device", rules::HOST_DEVICE.message);
    assert_eq!(violations(&bare.replace("host.sluice.dev", "gpu.nvidia.com")), []);
    let reserve = "device:\n    contextReserve: 700Mi\n";
    expect_one(&POOL.replace("device:\n", reserve), "spec.device", rules::HOST_CONTEXTS.message);
    let real = POOL.replace("device:\n    host:\n      memory: 96Mi\n", reserve);
    assert_eq!(violations(&real.replace("host.sluice.dev", "gpu.nvidia.com")), []);
}

#[test]
fn a_host_gpu_is_made_of_tradable_chunks_over_a_link_that_moves() {
    let host = |line: &str| POOL.replace("memory: 96Mi", &format!("memory: 96Mi\n      {line}"));
    for good in ["chunkBytes: 64Ki", "chunkBytes: 2Mi", "chunkBytes: 65536", "linkBytesPerSecond: 1"] {
        assert_eq!(violations(&host(good)), [], "{good}");
    }
    for bad in ["32Ki", "4Mi", "65537", "96Ki", "0"] {
        let text = host(&format!("chunkBytes: {bad}"));
        expect_one(&text, "spec.device.host.chunkBytes", rules::HOST_CHUNK.message);
    }
    expect_one(
        &host("linkBytesPerSecond: 0"),
        "spec.device.host.linkBytesPerSecond",
        rules::HOST_LINK.message,
    );
    expect_one(&POOL.replace("96Mi", "65535"), "spec.device.host.memory", rules::HOST_MEMORY.message);
}

#[test]
fn names_are_labels_of_at_most_forty_characters() {
    let named = |name: &str| POOL.replace("name: local", &format!("name: {name}"));
    assert_eq!(violations(&named(&"a".repeat(40))), []);
    for bad in [&*"a".repeat(41), "Local", "a.b", "-a", "a-", "a_b"] {
        expect_one(&named(bad), "metadata.name", rules::OBJECT_NAME.message);
    }
    for good in ["0a", "4-gpus"] {
        assert_eq!(violations(&named(good)), [], "{good}");
    }
    let tenant = |name: &str| both().replace("name: story", &format!("name: {name}"));
    assert_eq!(violations(&tenant("a-1")), []);
    for bad in [&*"a".repeat(41), "1a", "-a", "A"] {
        expect_one(&tenant(bad), "metadata.name", rules::TENANT_NAME.message);
    }
    let group = |name: &str| POOL.replace("name: chat", &format!("name: {name}"));
    assert_eq!(violations(&group(&"a".repeat(40))), []);
    expect_one(&group(&"a".repeat(41)), "spec.gpus[0].name", "has 41 characters, at most 40 are allowed");
    let label = "`Chat` must be a DNS-1123 label (lower case letters, digits, '-')";
    expect_one(&group("Chat"), "spec.gpus[0].name", label);
}

#[test]
fn bounds_of_the_schema_hold_without_a_cluster() {
    for (lines, path, message) in [
        ("  replicas: 65", "spec.replicas", "is 65, must be at most 64"),
        ("  replicas: -1", "spec.replicas", "is -1, must be at least 0"),
        ("  priority: 1001", "spec.priority", "is 1001, must be at most 1000"),
        ("  slo: {tbtMilliseconds: 0}", "spec.slo.tbtMilliseconds", "is 0, must be at least 1"),
        (
            "  memory: {maxRemappedPercent: 101}",
            "spec.memory.maxRemappedPercent",
            "is 101, must be at most 100",
        ),
        ("  serviceAccountName: \"\"", "spec.serviceAccountName", "has 0 characters, at least 1 are needed"),
        ("  engine: {env: [{name: A}, {name: A}]}", "spec.engine.env[1].name", "\"A\" is given twice"),
    ] {
        expect_one(&tenant_with(lines), path, message);
    }
    let names = both().replace("  model:\n", "  model:\n    servedNames: [a, b, a]\n");
    expect_one(&names, "spec.model.servedNames[2]", "\"a\" is given twice");
    let labels: String = (0..33).map(|i| format!("l{i}: x, ")).collect();
    let found = tenant_with(&format!("  podLabels: {{{labels}}}"));
    expect_one(&found, "spec.podLabels", "has 33 entries, at most 32 are allowed");
    let long = tenant_with(&format!("  podLabels: {{a/b: {}}}", "x".repeat(64)));
    expect_one(&long, "spec.podLabels[\"a/b\"]", "has 64 characters, at most 63 are allowed");
    let groups = POOL.replace("  gpus:\n  - name: chat\n", "  gpus: []\n");
    expect_one(&groups, "spec.gpus", "has 0 items, at least 1 are needed");
    let twice = format!("{POOL}  - name: chat\n");
    expect_one(&twice, "spec.gpus[1].name", "\"chat\" is given twice");
    let profile = "    sharing: {mode: Isolated, isolated: {profile: big}}";
    expect_one(
        &pool_with(profile),
        "spec.gpus[0].sharing.isolated.profile",
        "`big` must be a MIG profile such as 3g.71gb",
    );
    let path = both().replace("path: models/story", "path: \"a\\nb\"");
    expect_one(&path, "spec.model.source.file.path", "`a\nb` must be a path without line breaks");
}

#[test]
fn references_lead_to_objects_of_the_same_namespace() {
    expect_one(TENANT, "spec.poolRef.name", "no GpuPool `local` in namespace `default`");
    let elsewhere = both().replace("  name: story", "  name: story\n  namespace: other");
    expect_one(&elsewhere, "spec.poolRef.name", "no GpuPool `local` in namespace `other`");
    let explicit = both().replace("  name: story", "  name: story\n  namespace: default");
    assert_eq!(violations(&explicit), []);
    // The order of documents does not matter.
    assert_eq!(violations(&format!("{TENANT}---\n{POOL}")), []);
}

#[test]
fn a_named_group_exists_in_the_pool() {
    assert_eq!(violations(&tenant_with("  gpuGroup: chat")), []);
    let message = "GpuPool `local` has no group `agents`; it has `chat`";
    expect_one(&tenant_with("  gpuGroup: agents"), "spec.gpuGroup", message);
}

#[test]
fn names_are_unique_by_kind_and_namespace() {
    expect_one(&format!("{}---\n{TENANT}", both()), "metadata.name", "another ModelTenant has this name");
    let namesake = both().replace("name: story", "name: local");
    assert_eq!(violations(&namesake), [], "kinds have names of their own");
    let elsewhere = POOL.replace("  name: local", "  name: local\n  namespace: other");
    assert_eq!(violations(&format!("{}---\n{elsewhere}", both())), []);
}

#[test]
fn every_violation_is_reported_and_placed_on_its_line() {
    let text = tenant_with("  replicas: 99\n  idle:\n    afterSeconds: 700\n  gpuGroup: x");
    let all = load_valid_str(&text, "f.yaml").unwrap_err();
    let lines: Vec<_> = all.iter().map(|error| (error.line, error.path.to_string())).collect();
    let expected = [
        (26, "spec.replicas".to_owned()),
        // Not written: the line of what it would stand in.
        (27, "spec.idle.hibernateAfterSeconds".to_owned()),
        (29, "spec.gpuGroup".to_owned()),
    ];
    assert_eq!(lines, expected);
    assert_eq!(all[0].to_string(), "f.yaml:26:3: spec.replicas: is 99, must be at most 64");
    let after_nothing = load_valid_str(&format!("---\n# c\n---\n{TENANT}"), "f.yaml").unwrap_err();
    assert_eq!((after_nothing[0].line, after_nothing[0].column), (10, 5));
}

#[test]
fn an_invalid_object_is_named() {
    let objects = load_str(TENANT, "f.yaml").unwrap();
    let all = validate(&objects).unwrap_err();
    assert_eq!(
        all[0].to_string(),
        "ModelTenant default/story: spec.poolRef.name: no GpuPool `local` in namespace `default`"
    );
}

#[test]
fn immutable_fields_are_compared() {
    let old = tenant(TENANT).spec;
    let broken = |text: &str| -> Vec<(&str, &str)> {
        let changes = tenant(text).spec.immutable_changes(&old);
        changes.into_iter().map(|(path, rule): (_, &CelRule)| (path, rule.message)).collect()
    };
    assert_eq!(broken(&format!("{TENANT}  replicas: 3\n")), []);
    assert_eq!(broken(&TENANT.replace("name: local", "name: x")), [("spec.poolRef", "poolRef is immutable")]);
    assert_eq!(broken(&TENANT.replace("models/story", "x")), [("spec.model", "model is immutable")]);
    let engine = format!("{TENANT}  engine: {{kind: Vllm}}\n");
    assert_eq!(broken(&engine), [("spec.engine.kind", "engine.kind is immutable")]);
}

#[test]
fn an_empty_slice_is_valid() {
    assert_eq!(validate(&[] as &[ManifestObject]), Ok(()));
}
