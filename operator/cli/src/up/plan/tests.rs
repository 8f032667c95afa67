//! Assignment of tenants to GPUs, and their shares.

use sluice_wire::directive::{Fence, Sharing, TurnOrder, VictimRule};

use super::*;

const POOL: &str = "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {name: laptop}\nspec:\n  \
    deviceClassName: host.sluice.dev\n  device: {host: {memory: 96Mi, chunkBytes: 64Ki}}\n  \
    gpus: [{name: chat, count: 1, sharing: {mode: Temporal}}]\n  hostMemoryPerGPU: 1Gi\n  policy: Oneiros\n";
const TENANT: &str = "---\napiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {name: NAME}\nspec:\n  \
    poolRef: {name: laptop}\n  model: {source: {type: File, file: {path: models/NAME}}}\n";

fn options() -> UpOptions {
    UpOptions {
        host: IpAddr::from([127, 0, 0, 1]),
        port: 8000,
        threads: 2,
        journal: None,
        force_remap: None,
        poison: false,
        engine: "sluice-engine".into(),
    }
}

/// Plans with models of 16 MiB for each letter of their name.
fn whole(yaml: &str) -> Result<LaunchPlan, LoadErrors> {
    let objects = sluice_types::load::load_located_str(yaml, "up.yaml").unwrap_or_else(|e| panic!("{e:?}"));
    let place = |located| SourceObject { located, folder: PathBuf::from("/etc/sluice") };
    let weigh = |config: &SidecarConfig| (config.name.len() as u64) << 24;
    plan(&objects.into_iter().map(place).collect::<Vec<_>>(), &options(), &weigh)
}

fn planned(yaml: &str) -> Result<Vec<SidecarConfig>, String> {
    whole(yaml).map(|plan| plan.configs).map_err(|errors| errors[0].to_string())
}

fn tenant(name: &str) -> String {
    TENANT.replace("NAME", name)
}

fn tenants(names: &[&str]) -> String {
    names.iter().map(|name| tenant(name)).collect()
}

/// Returns the GPUs, in the order of the tenants.
fn gpus(yaml: &str) -> Vec<String> {
    planned(yaml).unwrap().into_iter().map(|config| config.gpu.name).collect()
}

fn with_groups(groups: &str) -> String {
    POOL.replace("[{name: chat, count: 1, sharing: {mode: Temporal}}]", groups)
}

#[test]
fn a_tenant_gets_a_gpu_a_port_and_an_absolute_model_path() {
    let configs = planned(&format!("{POOL}{}", tenant("one"))).unwrap();
    assert_eq!(configs.len(), 1);
    assert_eq!(configs[0].model_path, Path::new("/etc/sluice/models/one"));
    assert_eq!(configs[0].gpu.memory_bytes, 96 << 20);
    assert_eq!(configs[0].gpu.host_memory_bytes, Some(1 << 30));
    assert_eq!((configs[0].listen.serve.port(), configs[0].policy.as_str()), (8000, "Oneiros"));
    assert_eq!(configs[0].gpu.name, "laptop-chat-0");
}

#[test]
fn exclusive_tenant_has_no_gpu_ledger() {
    let pool = POOL.replace("count: 1", "count: 2");
    let plan = whole(&format!("{pool}{}", tenants(&["one", "two"]))).unwrap();
    assert_eq!(plan.shared, []);
    for config in plan.configs {
        assert_eq!(
            (config.neighbourhood, config.gpu.host_memory_bytes),
            (None, Some(1 << 30)),
            "{}",
            config.name
        );
    }
}

#[test]
fn a_second_gpu_takes_the_second_tenant_on_the_next_port() {
    let pool = POOL.replace("count: 1", "count: 2");
    let configs = planned(&format!("{pool}{}", tenants(&["one", "two"]))).unwrap();
    assert_eq!(configs[1].gpu.name, "laptop-chat-1");
    assert_eq!(configs[1].listen.serve.port(), 8001);
}

#[test]
fn tenants_spread_evenly_over_the_gpus_they_may_use_in_the_order_of_the_file() {
    let pool = with_groups("[{name: a}, {name: b, count: 2, sharing: {mode: Spatial}}]");
    let five = tenants(&["t0", "t1", "t2", "t3", "t4"]);
    let expected = ["laptop-a-0", "laptop-b-0", "laptop-b-1", "laptop-a-0", "laptop-b-0"];
    assert_eq!(gpus(&format!("{pool}{five}")), expected);
    let picky = format!("{}  gpuGroup: b\n{}  gpuGroup: b\n{}", tenant("t0"), tenant("t1"), tenant("t2"));
    assert_eq!(gpus(&format!("{pool}{picky}")), ["laptop-b-0", "laptop-b-1", "laptop-a-0"]);
}

#[test]
fn isolated_gpu_rejects_second_tenant_with_reason() {
    let isolated = "sharing: {mode: Isolated, isolated: {profile: 3g.71gb}}";
    let pool = with_groups(&format!("[{{name: chat, count: 2, {isolated}}}]"));
    assert_eq!(gpus(&format!("{pool}{}", tenants(&["one", "two"]))), ["laptop-chat-0", "laptop-chat-1"]);
    let error = planned(&format!("{pool}{}", tenants(&["one", "two", "three"]))).unwrap_err();
    assert!(error.starts_with("up.yaml:28:1: spec.gpuGroup: "), "{error}");
    assert!(error.contains("an Isolated GPU made of host memory is one slice, for one tenant"), "{error}");
    let mixed = with_groups(&format!("[{{name: slice, {isolated}}}, {{name: turns}}]"));
    let names = gpus(&format!("{mixed}{}", tenants(&["one", "two", "three"])));
    assert_eq!(names, ["laptop-slice-0", "laptop-turns-0", "laptop-turns-0"]);
}

#[test]
fn a_gpu_takes_as_many_tenants_as_its_ledger_has_records() {
    let names: Vec<_> = (0..65).map(|i| format!("t{i}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(planned(&format!("{POOL}{}", tenants(&names[..64]))).unwrap().len(), 64);
    let error = planned(&format!("{POOL}{}", tenants(&names))).unwrap_err();
    assert!(error.contains("spec.gpuGroup: every GPU that it may use has 64 tenants"), "{error}");
}

#[test]
fn tenants_of_a_gpu_get_shares_of_its_device_and_host_memory() {
    let plan = whole(&format!("{POOL}{}  priority: 7\n{}", tenant("a"), tenant("bbb"))).unwrap();
    let shares = |config: &SidecarConfig| {
        let own = config.neighbourhood.clone().unwrap();
        assert_eq!(
            own.sharing,
            Sharing::Temporal { order: TurnOrder::RoundRobin, min_quantum_ms: 5, max_quantum_ms: 50 }
        );
        (own.share_bytes >> 20, config.gpu.host_memory_bytes.unwrap() >> 20, own.priority)
    };
    // 96 and 1024 MiB, of which the weights take 16 and 48; the rest is halved.
    assert_eq!(plan.configs.iter().map(shares).collect::<Vec<_>>(), [(32, 496, 7), (64, 528, 100)]);
    assert!(plan.configs.iter().all(|config| config.gpu.memory_bytes == 96 << 20), "the GPU stays whole");
    let (gpu, members) = (&plan.shared[0], &plan.shared[0].gpu_tenants);
    assert_eq!(
        (plan.shared.len(), gpu.namespace.as_str(), gpu.name.as_str()),
        (1, "default", "laptop-chat-0")
    );
    let members = members.iter().map(|m| (m.config_index, m.name.as_str(), m.share_bytes >> 20));
    assert_eq!(members.collect::<Vec<_>>(), [(0, "a", 32), (1, "bbb", 64)]);
}

#[test]
fn oversubscribed_gpu_is_shared_in_proportion() {
    let configs = planned(&format!("{POOL}{}", tenants(&["aaaa", "bbbbbbbb"]))).unwrap();
    let shares: Vec<_> =
        configs.iter().map(|c| c.neighbourhood.as_ref().unwrap().share_bytes >> 20).collect();
    assert_eq!(shares, [32, 64]);
}

/// The record of a sidecar whose admin port is `port`.
fn record(port: u16) -> sluice_wire::config::SidecarRecord {
    let at = SocketAddr::from(([127, 0, 0, 1], port));
    sluice_wire::config::SidecarRecord {
        namespace: "default".into(),
        name: "any".into(),
        pid: 1,
        serve: at,
        admin: at,
        probes: at,
        token_file: PathBuf::new(),
        gpu: "any".into(),
    }
}

#[test]
fn directive_has_yaml_settings_and_peers() {
    let pool = with_groups(
        "[{name: chat, sharing: {temporal: {order: Priority, minQuantumMilliseconds: 2, maxQuantumMilliseconds: 20}}}]",
    );
    let pool = format!(
        "{pool}  remap: {{victim: FixedOrder, minResidenceMilliseconds: 0, revokeBoundMilliseconds: 90}}\n"
    );
    let yaml = format!(
        "{pool}{}  memory: {{maxRemappedPercent: 30}}\n{}  priority: 200\n{}  priority: 1\n",
        tenant("c"),
        tenant("a"),
        tenant("b")
    );
    let plan = whole(&yaml).unwrap();
    assert_eq!(plan.ineffective, []);
    let records = [record(1), record(2), record(3)];
    let told = plan.shared[0].directive(0, &records, Fence { epoch: 5, sequence: 9 });
    assert_eq!((told.epoch, told.sequence, told.policy.as_str()), (5, 9, "Oneiros"));
    assert_eq!(
        told.sharing,
        Sharing::Temporal { order: TurnOrder::Priority, min_quantum_ms: 2, max_quantum_ms: 20 }
    );
    assert_eq!((told.victim, told.min_residence_ms, told.revoke_bound_ms), (VictimRule::FixedOrder, 0, 90));
    assert_eq!((told.tenant.priority, told.tenant.max_remapped_percent), (100, 30));
    assert_eq!((told.tenant.idle_after_seconds, told.tenant.hibernate_after_seconds), (30, Some(600)));
    let others = told.neighbours.iter().map(|n| (n.name.as_str(), n.admin.port(), n.priority));
    assert_eq!(others.collect::<Vec<_>>(), [("a", 2, 200), ("b", 3, 1)], "by name, itself left out");
    let own = plan.configs[1].neighbourhood.as_ref().unwrap();
    assert_eq!((told.neighbours[0].share_bytes, told.neighbours[0].floor_bytes), (own.share_bytes, 0));
    let started = plan.configs[0].neighbourhood.as_ref().unwrap();
    assert_eq!(told.tenant.share_bytes, Some(started.share_bytes), "as it was started");
    assert_eq!(told.fallback_order, ["b", "a"], "the lowest priority first");
    for member in 0..3 {
        let told = plan.shared[0].directive(member, &records, Fence { epoch: 5, sequence: 9 });
        assert_eq!(told.check(), Ok(()));
    }
}

#[test]
fn shares_are_reassigned_by_reported_floors() {
    let mut plan = whole(&format!("{POOL}{}", tenants(&["a", "b"]))).unwrap();
    let gpu = &mut plan.shared[0];
    let told = |gpu: &SharedGpu, member| {
        let fence = Fence { epoch: 5, sequence: 9 };
        let told = gpu.directive(member, &[record(1), record(2)], fence);
        (told.tenant.share_bytes.unwrap() >> 20, told.neighbours[0].share_bytes >> 20)
    };
    assert!(!gpu.reassign_shares(), "by nothing that is new");
    assert_eq!((told(gpu, 0), gpu.capacity_error()), ((48, 48), None));
    gpu.gpu_tenants[0].floor_bytes = 48 << 20;
    assert!(!gpu.reassign_shares(), "it has that");
    gpu.gpu_tenants[0].floor_bytes = 60 << 20;
    assert!(gpu.reassign_shares() && !gpu.reassign_shares());
    assert_eq!((told(gpu, 0), told(gpu, 1)), ((60, 36), (36, 60)));
    gpu.gpu_tenants[1].floor_bytes = 36 << 20;
    assert_eq!((gpu.reassign_shares(), gpu.capacity_error()), (false, None));
    gpu.gpu_tenants[1].floor_bytes += 1;
    let words = "the tenants of the GPU laptop-chat-0 need at least 100663297 bytes (default/a 62914560, default/b \
        37748737) and it has 100663296 bytes";
    assert_eq!(gpu.capacity_error().as_deref(), Some(words));
}

#[test]
fn shared_gpu_field_warns_on_exclusive_gpu() {
    let pool = format!("{POOL}  remap: {{victim: FixedOrder}}\n");
    let important = format!("{}  priority: 7\n", tenant("one"));
    let alone = whole(&format!("{pool}{important}")).unwrap().ineffective;
    let alone: Vec<_> = alone.iter().map(ToString::to_string).collect();
    assert_eq!(alone.len(), 2, "{alone:?}");
    assert!(alone[0].starts_with("up.yaml:10:11: spec.remap.victim: "), "{alone:?}");
    assert!(alone[1].starts_with("up.yaml:18:3: spec.priority: "), "{alone:?}");
    assert_eq!(whole(&format!("{pool}{important}{}", tenant("two"))).unwrap().ineffective, []);
}

#[test]
fn policy_without_host_tier_warns() {
    let warned = |policy: &str, memory: &str| {
        let yaml = POOL.replace("Oneiros", policy) + &tenant("one") + memory;
        whole(&yaml).unwrap().ineffective.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for policy in ["FlexGen", "Pie", "OrbitFlow"] {
        let warnings = warned(policy, "  memory: {hostKv: 0}\n");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].starts_with("up.yaml:17:12: spec.memory.hostKv: ") && warnings[0].contains(policy),
            "{warnings:?}"
        );
        assert_eq!(warned(policy, "").len(), 1, "none is the default");
        assert_eq!(warned(policy, "  memory: {hostKv: 8Mi}\n"), [""; 0]);
    }
    for policy in ["Recompute", "Oneiros", "Ellm", "Unified"] {
        assert_eq!(warned(policy, ""), [""; 0], "{policy} does without");
    }
}

#[test]
fn a_tenant_that_is_suspended_or_has_no_replicas_is_not_started() {
    for rest in ["suspend: true", "replicas: 0", "suspend: true\n  replicas: 2"] {
        let yaml = format!("{POOL}{}  {rest}\n", tenant("one"));
        assert_eq!(planned(&yaml).unwrap(), [], "{rest}");
        let plan = whole(&format!("{yaml}{}", tenant("two"))).unwrap();
        assert_eq!((plan.configs.len(), plan.shared), (1, vec![]), "{rest}: it takes no place");
    }
}

/// Names, GPUs and shares in MiB of an example's tenants, whose models have 24 (`chat`), 12 and 6 MiB.
fn example(name: &str) -> Vec<(String, String, u64)> {
    let folder = tempfile::tempdir().unwrap();
    for (model, mib) in [("chat", 24), ("code", 12), ("summary", 6)] {
        let model = folder.path().join("models").join(model);
        std::fs::create_dir_all(&model).unwrap();
        let weights = std::fs::File::create(model.join("model.safetensors")).unwrap();
        weights.set_len(mib << 20).unwrap();
    }
    let path = format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
    let objects =
        sluice_types::load::load_located_str(&std::fs::read_to_string(path).unwrap(), name).unwrap();
    let objects =
        objects.into_iter().map(|located| SourceObject { located, folder: folder.path().to_owned() });
    let weigh = |config: &SidecarConfig| crate::up::weights::weights_bytes(&config.model_path, None);
    let plan = plan(&objects.collect::<Vec<_>>(), &options(), &weigh).unwrap();
    assert_eq!(plan.ineffective, []);
    let share = |config: &SidecarConfig| config.neighbourhood.as_ref().unwrap().share_bytes >> 20;
    plan.configs.iter().map(|c| (c.name.clone(), c.gpu.name.clone(), share(c))).collect()
}

#[test]
fn the_example_of_turns_has_three_tenants_on_one_gpu() {
    let expected = [("chat", 42), ("code", 30), ("summary", 24)];
    let expected = expected.map(|(name, mib)| (name.to_owned(), "local-shared-0".to_owned(), mib));
    assert_eq!(example("three-tenants.yaml"), expected);
}

#[test]
fn the_example_of_all_at_once_has_two_tenants_on_each_gpu() {
    let expected = [("chat", 0, 48), ("code", 1, 48), ("summary", 0, 48), ("batch", 1, 48)];
    let expected = expected.map(|(name, gpu, mib)| (name.to_owned(), format!("local-agents-{gpu}"), mib));
    assert_eq!(example("spatial.yaml"), expected);
}
