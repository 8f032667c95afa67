use std::path::PathBuf;

use sluice_wire::geometry::Geometry;

use super::*;

const MIB: u64 = 1 << 20;
/// Eight layers of 1 MiB, 1 MiB of other weights, 8 KiB of KV for a token, 1 MiB of activations in every step.
const MODEL: Geometry = Geometry {
    download_bytes: None,
    global_bytes: MIB,
    layer_bytes: MIB,
    layers: 8,
    kv_bytes_per_token: 8 << 10,
    max_model_len: 256,
    activation_bytes: MIB,
    step_activation_bytes: MIB,
    thread_bytes: 0,
    staging_bytes: 0,
};

/// Returns a pool of `count` GPUs of 40 MiB, with further lines of its group and of itself.
fn pool(count: u32, of_group: &str, of_spec: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {{name: local}}\nspec:\n  deviceClassName: host.sluice.dev\n  \
         device: {{host: {{memory: 40Mi, chunkBytes: 64Ki}}}}\n  hostMemoryPerGPU: 1Gi\n{of_spec}  gpus:\n  - name: chat\n    \
         count: {count}\n{of_group}---\n"
    )
}

fn tenant(name: &str, of_spec: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {{name: {name}}}\nspec:\n  poolRef: {{name: local}}\n  \
         model:\n    source: {{type: File, file: {{path: models/{name}}}}}\n{of_spec}---\n"
    )
}

/// The inputs of a file; every model in it is [`MODEL`].
fn inputs(text: &str) -> PlanInputs {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tenants.yaml");
    std::fs::write(&file, text).unwrap();
    let mut scene = PlanInputs::from_files(&[file], None).unwrap();
    for key in scene.unknown_sizes() {
        scene.inspections.insert(key, Ok(MODEL));
    }
    scene
}

/// Returns the printed lines and the final error.
fn rendered(after: &PlanInputs, before: Option<&PlanInputs>) -> (Vec<String>, Option<String>) {
    let mut lines = Vec::new();
    let outcome = print_plan(&mut |line| lines.push(line), after, before);
    (lines, outcome.err().map(|error| error.to_string()))
}

/// Returns the changes of the slots of `after`, given `before`.
fn changes(before: &str, after: &str) -> Vec<String> {
    rendered(&inputs(after), Some(&inputs(before))).0
}

fn assert_line(lines: &[String], wanted: &str) {
    let found =
        lines.iter().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").contains(wanted));
    assert!(found, "no {wanted:?} in\n{}", lines.join("\n"));
}

#[test]
fn slot_lists_gpu_floor_and_share() {
    let (lines, error) =
        rendered(&inputs(&(pool(1, "", "") + &tenant("chat", "") + &tenant("code", ""))), None);
    assert_eq!(error, None);
    // Five layers and a global part of 1 MiB each stay, KV of 256 tokens takes 2 MiB and activations 1 MiB; each
    // also has half of the 22 MiB that are left after its weights. 9 MiB of weights, 64 MiB for 2048 streams and as
    // much for the sidecar, and 5 %.
    assert_eq!(
        lines,
        [
            "GpuPool default/local: 1 GPU of host.sluice.dev, policy Unified",
            "  local-chat-0  Temporal  floors 18 MiB of 40 MiB, 22 MiB to lend  host memory 288 MiB of 1 GiB",
            "    chat  slot 0  floor 9 MiB  share 20 MiB  host memory 144 MiB",
            "    code  slot 0  floor 9 MiB  share 20 MiB  host memory 144 MiB",
            "  Tenants with one slot: chat, code. They do not serve while their pod is replaced. A second \
             slot, on a second GPU, helps when a node is drained or lost; an edit or an upgrade replaces \
             the pods of all slots at once.",
        ]
    );
}

#[test]
fn unplaced_slot_is_an_error_with_missing_bytes() {
    let many: String = ["a", "b", "c", "d", "e"].map(|name| tenant(name, "")).concat();
    let (lines, error) = rendered(&inputs(&(pool(1, "", "") + &many)), None);
    // Four floors take 36 of 40 MiB.
    assert_line(
        &lines,
        "e slot 0 no GPU: no room on 1 GPU; the nearest is local-chat-0: the floors of its tenants leave \
         too little device memory: 5 MiB are missing",
    );
    // The pool takes 11 lines, each tenant 8; an omitted field is reported at the field around it.
    assert_line(&lines, "tenants.yaml:6: GpuPool/local spec.device.host.memory: change this");
    assert_line(&lines, "tenants.yaml:49: ModelTenant/e spec.model.maxModelLen: or this");
    assert_line(&lines, "tenants.yaml:47: ModelTenant/e spec.memory.maxRemappedPercent: or this");
    assert!(!lines.iter().any(|line| line.contains("guaranteedKv")), "no file sets it: {lines:#?}");
    assert_eq!(error.as_deref(), Some("1 of 5 slots would not be served"));
    let two = tenant("chat", "  replicas: 2\n");
    let (lines, _) = rendered(&inputs(&(pool(1, "", "") + &two)), None);
    assert_line(
        &lines,
        "chat slot 1 no GPU: no room on 1 GPU; the nearest is local-chat-0: another slot of this tenant is on it, and \
         two slots of a tenant never share a GPU",
    );
    let (lines, error) =
        rendered(&inputs(&(pool(1, "", "") + &tenant("lost", "  gpuGroup: agents\n"))), None);
    assert_line(
        &lines,
        "lost refused (GroupNotFound): spec.gpuGroup: the pool has no group `agents`; its groups are chat",
    );
    assert_line(&lines, "tenants.yaml:19)");
    // Every cause has a line of its own, with its place.
    let both = tenant("lost", "  memory: {kvLimit: 1Mi}\n  gpuGroup: agents\n");
    let (lines, _) = rendered(&inputs(&(pool(1, "", "") + &both)), None);
    let refused: Vec<&String> = lines.iter().filter(|line| line.contains("lost  refused")).collect();
    assert_eq!(refused.len(), 2, "{lines:#?}");
    assert!(
        refused[0].contains("(GroupNotFound)") && refused[0].ends_with("tenants.yaml:20)"),
        "{refused:#?}"
    );
    assert!(
        refused[1].contains("(ContextDoesNotFit)") && refused[1].ends_with("tenants.yaml:19)"),
        "{refused:#?}"
    );
    assert_eq!(error.as_deref(), Some("1 of 1 slot would not be served"));
    let (lines, error) = rendered(&inputs(&tenant("orphan", "")), None);
    assert_line(&lines, "GpuPool default/local does not exist");
    assert_line(&lines, "orphan refused (PoolNotFound)");
    assert!(error.is_some());
}

#[test]
fn unknown_sizes_are_not_an_error_and_have_a_hint() {
    let mut scene = inputs(&(pool(1, "", "") + &tenant("chat", "")));
    scene.inspections.clear();
    let (lines, error) = rendered(&scene, None);
    assert_line(
        &lines,
        "chat not placed, because the sizes of its model are not known: in a cluster a Job reads the model; \
         here, name its folder with --model chat=FOLDER",
    );
    assert_line(&lines, "local-chat-0 Temporal no tenant");
    assert_eq!(error, None);
}

#[test]
fn only_template_changes_replace_pods() {
    let before = pool(2, "", "") + &tenant("chat", "") + &tenant("code", "");
    let hot = pool(2, "", "  policy: Oneiros\n")
        + &tenant("chat", "  priority: 7\n  idle: {hibernateAfterSeconds: 50}\n")
        + &tenant("code", "");
    let lines = changes(&before, &hot);
    for name in ["chat", "code"] {
        assert!(lines.iter().any(|line| line.contains(name) && line.ends_with("  stays")), "{lines:#?}");
    }
    let cold = pool(2, "", "") + &tenant("chat", "  drainSeconds: 40\n") + &tenant("code", "");
    let lines = changes(&before, &cold);
    assert!(
        lines.iter().any(|line| line.contains("chat  slot 0") && line.ends_with("its pod is replaced")),
        "{lines:#?}"
    );
    assert!(lines.iter().any(|line| line.contains("code  slot 0") && line.ends_with("stays")), "{lines:#?}");
    assert_line(&lines, "The change takes chat down until their pods have loaded again.");
}

#[test]
fn growing_floor_keeps_serving_slots_placed() {
    let tenants = |cap: u32| {
        let memory = format!("  memory: {{guaranteedKv: 13Mi, maxRemappedPercent: {cap}}}\n");
        tenant("chat", &memory) + &tenant("code", "  memory: {guaranteedKv: 13Mi}\n")
    };
    let before = pool(1, "", "") + &tenants(60);
    let fixed = pool(1, "", "  policy: Recompute\n") + &tenants(60);
    for after in [fixed, pool(1, "", "") + &tenants(0)] {
        let lines = changes(&before, &after);
        let stay = lines.iter().filter(|line| line.contains("slot 0") && line.ends_with("stays"));
        assert_eq!(stay.count(), 2, "{lines:#?}");
        assert_line(&lines, "0 B to lend");
    }
}

#[test]
fn existing_slots_stay_when_others_are_added_or_removed() {
    let before = pool(1, "", "") + &tenant("chat", "") + &tenant("code", "");
    let after = pool(2, "", "") + &tenant("chat", "  replicas: 2\n") + &tenant("mail", "");
    let lines = changes(&before, &after);
    let at = |wanted: &str| {
        lines.iter().position(|line| line.contains(wanted)).unwrap_or_else(|| panic!("{wanted}: {lines:#?}"))
    };
    assert!(
        at("local-chat-0  ") < at("chat  slot 0") && at("chat  slot 0") < at("local-chat-1  "),
        "{lines:#?}"
    );
    assert!(
        lines[at("chat  slot 0")].ends_with("stays") && lines[at("chat  slot 1")].ends_with("new"),
        "{lines:#?}"
    );
    assert_line(&lines, "mail slot 0");
    assert_line(&lines, "code slot 0 is removed from local-chat-0");
    assert!(!lines.iter().any(|line| line.contains("takes")), "no tenant is absent: {lines:#?}");
}

#[test]
fn sharing_change_waits_or_replaces_all_tenants_of_gpu() {
    let tenants = tenant("chat", "") + &tenant("code", "");
    let before = pool(1, "", "") + &tenants;
    let spatial = "    sharing: {mode: Spatial}\n";
    let lines = changes(&before, &(pool(1, spatial, "") + &tenants));
    assert_line(&lines, "local-chat-0 Temporal");
    assert_line(
        &lines,
        "a change of the pool is pending here until no tenant is on this GPU (updatePolicy: WhenEmpty)",
    );
    assert_line(&lines, "host memory 144 MiB stays");
    let lines = changes(&before, &(pool(1, spatial, "  updatePolicy: Disruptive\n") + &tenants));
    assert_line(&lines, "local-chat-0 Spatial");
    assert_line(&lines, "The change takes chat, code down until their pods have loaded again.");
}

#[test]
fn duplicate_object_is_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let files: Vec<PathBuf> = ["one.yaml", "two.yaml"].map(|name| folder.path().join(name)).into();
    for file in &files {
        std::fs::write(file, pool(1, "", "")).unwrap();
    }
    let refused = PlanInputs::from_files(&files, Some("team")).unwrap_err();
    let (first, second) = (files[0].display(), files[1].display());
    let said = format!("{second}:3:12: metadata.name: another GpuPool has this name, at {first}:3\n1 error");
    assert_eq!(refused.to_string(), said);
}

#[test]
fn overlay_keeps_cluster_status() {
    let mut there = inputs(&(pool(1, "", "") + &tenant("chat", "") + &tenant("code", "")));
    there.set_generation("chat", 3);
    let laid = there.overlay(inputs(&tenant("chat", "  priority: 7\n")));
    let key = ("default".to_owned(), "chat".to_owned());
    let chat = laid.tenant(&key).unwrap();
    assert_eq!((chat.spec.priority, chat.metadata.generation), (7, Some(3)));
    assert_eq!(laid.pool(&("default".into(), "local".into())).tenants.len(), 2);
}

#[test]
fn a_model_is_named_with_its_tenant() {
    assert_eq!(parse_model("chat=./a=b").unwrap(), ("chat".to_owned(), PathBuf::from("./a=b")));
    for wrong in ["chat", "=x", "chat="] {
        assert!(parse_model(wrong).unwrap_err().contains("is not TENANT=FOLDER"), "{wrong}");
    }
}
