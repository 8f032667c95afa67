//! Assignment of tenants to GPUs, and their shares.

mod operator;

use sluice_wire::directive::{Fence, Sharing, SliceOrder, VictimRule};
use sluice_wire::geometry::{Geometry, GeometryError, GeometryErrorKind};

use super::*;

const MIB: u64 = 1 << 20;

const POOL: &str = "apiVersion: sluice.dev/v1alpha1\nkind: GpuPool\nmetadata: {name: laptop}\nspec:\n  \
    deviceClassName: host.sluice.dev\n  device: {host: {memory: 96Mi, chunkBytes: 64Ki}}\n  \
    gpus: [{name: chat, count: 1, sharing: {mode: Temporal}}]\n  hostMemoryPerGPU: 1Gi\n  policy: Oneiros\n";
const TENANT: &str = "---\napiVersion: sluice.dev/v1alpha1\nkind: ModelTenant\nmetadata: {name: NAME}\nspec:\n  \
    poolRef: {name: laptop}\n  model: {source: {type: File, file: {path: models/NAME}}}\n";

/// Options of a run in tests, without any that a user chose.
pub fn options() -> UpOptions {
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

/// Sixteen layers, 4 MiB of KV for a sequence, and activations of a little more than 1 MiB. The floor of a tenant that
/// may lend 60 % of its layers is half of the weights and 81 chunks of 64 KiB.
fn model(weights_mib: u64) -> Geometry {
    Geometry {
        global_bytes: 0,
        layer_bytes: weights_mib * MIB / 16,
        layers: 16,
        kv_bytes_per_token: 16 << 10,
        max_model_len: 256,
        activation_bytes: MIB,
        step_activation_bytes: MIB,
        thread_bytes: 1 << 10,
        staging_bytes: 0,
        download_bytes: None,
    }
}

/// Plans objects whose models `size` inspects, by the name of the tenant and the folder of its model.
fn plan_with(
    objects: Vec<SourceObject>,
    size: &dyn Fn(&str, &Path) -> Result<Geometry, GeometryError>,
) -> Result<LaunchPlan, String> {
    let mut inputs = inputs(&objects, &options()).map_err(|errors| errors[0].to_string())?;
    for key in inputs.unknown_sizes() {
        let said = size(&key.1, &inputs.folders[&key]);
        inputs.inspections.insert(key, said);
    }
    plan(&objects, &inputs, &options()).map_err(|error| error.to_string())
}

fn objects(yaml: &str) -> Vec<SourceObject> {
    let objects = sluice_types::load::load_located_str(yaml, "up.yaml").unwrap_or_else(|e| panic!("{e:?}"));
    let place = |located| SourceObject { located, folder: PathBuf::from("/etc/sluice") };
    objects.into_iter().map(place).collect()
}

/// Plans with models of 16 MiB for each letter of their name.
fn whole(yaml: &str) -> Result<LaunchPlan, String> {
    plan_with(objects(yaml), &|name, _| Ok(model(name.len() as u64 * 16)))
}

fn planned(yaml: &str) -> Result<Vec<SidecarConfig>, String> {
    whole(yaml).map(|plan| plan.configs)
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
    // Weights of 48 MiB, 128 MiB for the sidecar and its streams, and a twentieth.
    assert_eq!(configs[0].gpu.host_memory_bytes, Some((176 * MIB * 21).div_ceil(20)));
    assert_eq!(configs[0].engine.threads, 2);
    assert_eq!((configs[0].listen.serve.port(), configs[0].policy.as_str()), (8000, "Oneiros"));
    assert_eq!(configs[0].gpu.name, "laptop-chat-0");
}

#[test]
fn exclusive_tenant_has_no_gpu_ledger() {
    let pool = POOL.replace("count: 1", "count: 2");
    let plan = whole(&format!("{pool}{}", tenants(&["one", "two"]))).unwrap();
    assert!(plan.shared.is_empty());
    assert!(plan.configs.iter().all(|config| config.gpu_ledger.is_none()), "{:?}", plan.configs);
}

#[test]
fn a_second_gpu_takes_the_second_tenant_on_the_next_port() {
    let pool = POOL.replace("count: 1", "count: 2");
    let configs = planned(&format!("{pool}{}", tenants(&["one", "two"]))).unwrap();
    assert_eq!(configs[1].gpu.name, "laptop-chat-1");
    assert_eq!(configs[1].listen.serve.port(), 8001);
}

#[test]
fn a_tenant_takes_the_gpu_with_the_most_memory_above_all_floors() {
    let pool = with_groups("[{name: a}, {name: b, count: 2, sharing: {mode: Spatial}}]");
    let equal = tenants(&["t0", "t1", "t2", "t3", "t4"]);
    let expected = ["laptop-a-0", "laptop-b-0", "laptop-b-1", "laptop-a-0", "laptop-b-0"];
    assert_eq!(gpus(&format!("{pool}{equal}")), expected, "equal floors spread by name");
    let picky = format!("{}  gpuGroup: b\n{}  gpuGroup: b\n{}", tenant("t0"), tenant("t1"), tenant("t2"));
    assert_eq!(gpus(&format!("{pool}{picky}")), ["laptop-b-0", "laptop-b-1", "laptop-a-0"]);
    let pool = POOL.replace("count: 1", "count: 2");
    // Floors of 13, 13 and 29 MiB: the large one is last by its priority, and both small ones are first.
    let sizes = format!("{}  priority: 1\n{}{}", tenant("aaa"), tenant("b"), tenant("c"));
    assert_eq!(gpus(&format!("{pool}{sizes}")), ["laptop-chat-0", "laptop-chat-0", "laptop-chat-1"]);
    // By its name the large one is first: each small one then goes to the other GPU.
    let sizes = tenants(&["aaa", "b", "c"]);
    assert_eq!(gpus(&format!("{pool}{sizes}")), ["laptop-chat-0", "laptop-chat-1", "laptop-chat-1"]);
}

#[test]
fn isolated_gpu_rejects_second_tenant_with_reason() {
    let isolated = "sharing: {mode: Isolated, isolated: {profile: 3g.71gb}}";
    let pool = with_groups(&format!("[{{name: chat, count: 2, {isolated}}}]"));
    assert_eq!(gpus(&format!("{pool}{}", tenants(&["one", "two"]))), ["laptop-chat-0", "laptop-chat-1"]);
    let error = planned(&format!("{pool}{}", tenants(&["one", "two", "three"]))).unwrap_err();
    // By name, `two` is the last of the three.
    let expected = "default/two: cannot be served\nup.yaml:18: no room on 2 GPUs; the nearest is laptop-chat-1: it has \
        its maximum number of tenants";
    assert_eq!(error, expected);
    let mixed = with_groups(&format!("[{{name: slice, {isolated}}}, {{name: turns}}]"));
    let names = gpus(&format!("{mixed}{}", tenants(&["one", "two", "three"])));
    assert_eq!(names, ["laptop-slice-0", "laptop-turns-0", "laptop-turns-0"]);
}

#[test]
fn a_gpu_takes_as_many_tenants_as_its_ledger_has_records() {
    let pool = POOL.replace("96Mi", "96Gi").replace("1Gi", "1Ti");
    let names: Vec<_> = (0..65).map(|i| format!("t{i}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(planned(&format!("{pool}{}", tenants(&names[..64]))).unwrap().len(), 64);
    let error = planned(&format!("{pool}{}", tenants(&names))).unwrap_err();
    assert!(error.starts_with("default/t9: cannot be served\n"), "{error}");
    assert!(error.ends_with("it has its maximum number of tenants"), "{error}");
}

#[test]
fn a_tenant_that_does_not_fit_is_refused_with_the_lines_that_could_help() {
    let device = planned(&format!("{}{}", POOL.replace("96Mi", "28Mi"), tenant("one"))).unwrap_err();
    // 24 MiB and 81 chunks of 64 KiB.
    let expected = "default/one: cannot be served\nup.yaml:6: GpuPool/laptop spec.device.host.memory: the tenant's floor of \
         29.1 MiB exceeds its largest usable GPU, which has 28 MiB; raise memory.maxRemappedPercent\n";
    assert!(device.starts_with(expected), "{device}");
    assert!(device.contains("\nup.yaml:16: ModelTenant/one spec.model.maxModelLen: or this"), "{device}");
    // Together their floors are 48 MiB and 162 chunks of 64 KiB.
    let both = format!("{}{}", POOL.replace("96Mi", "56Mi"), tenants(&["one", "two"]));
    let error = planned(&both).unwrap_err();
    assert!(error.starts_with("default/two: cannot be served\nup.yaml:6: GpuPool/laptop "), "{error}");
    let host = planned(&format!("{}{}", POOL.replace("1Gi", "100Mi"), tenant("one"))).unwrap_err();
    assert!(
        host.starts_with("default/one: cannot be served\nup.yaml:8: GpuPool/laptop spec.hostMemoryPerGPU: "),
        "{host}"
    );
    // A block of KV of one layer has 2 MiB.
    let large = |_: &str, _: &Path| Ok(Geometry { kv_bytes_per_token: 2 << 20, ..model(16) });
    let chunk = plan_with(objects(&format!("{POOL}{}", tenant("one"))), &large).unwrap_err();
    assert!(chunk.contains("up.yaml:6: GpuPool/laptop spec.device.host.chunkBytes: "), "{chunk}");
}

#[test]
fn every_tenant_whose_model_cannot_be_read_is_refused_by_its_path() {
    let yaml = format!("{POOL}{}", tenants(&["one", "two", "tri"]));
    let said = |name: &str, _: &Path| match name {
        "tri" => Ok(model(16)),
        _ => Err(GeometryError {
            reason: GeometryErrorKind::Unsupported,
            message: format!("config.json: {name} is no model"),
        }),
    };
    let expected = "default/one: cannot be served\n\
        up.yaml:16: ModelTenant/one spec.model.source.file.path: config.json: one is no model\n\
        default/two: cannot be served\n\
        up.yaml:23: ModelTenant/two spec.model.source.file.path: config.json: two is no model";
    assert_eq!(plan_with(objects(&yaml), &said).unwrap_err(), expected);
}

#[test]
fn tenants_of_a_gpu_get_shares_of_its_device_and_host_memory() {
    let plan = whole(&format!("{POOL}{}  priority: 7\n{}", tenant("a"), tenant("bbb"))).unwrap();
    let shares = |config: &SidecarConfig| {
        let own = config.gpu_ledger.clone().unwrap();
        assert_eq!(
            own.sharing,
            Sharing::Temporal { order: SliceOrder::RoundRobin, min_quantum_ms: 5, max_quantum_ms: 50 }
        );
        (own.share_bytes >> 20, config.gpu.host_memory_bytes.unwrap() >> 20, own.priority)
    };
    // 96 MiB, of which the weights take 16 and 48; the rest is halved. Host memory is 1.05 x (weights + 128 MiB).
    assert_eq!(plan.configs.iter().map(shares).collect::<Vec<_>>(), [(32, 151, 7), (64, 184, 100)]);
    assert!(plan.configs.iter().all(|config| config.gpu.memory_bytes == 96 << 20), "the GPU stays whole");
    let (gpu, members) = (&plan.shared[0], &plan.shared[0].gpu_tenants);
    assert_eq!(
        (plan.shared.len(), gpu.namespace.as_str(), gpu.name.as_str()),
        (1, "default", "laptop-chat-0")
    );
    let members = members.iter().map(|m| (m.config_index, m.name.as_str(), m.share.share_bytes >> 20));
    assert_eq!(members.collect::<Vec<_>>(), [(0, "a", 32), (1, "bbb", 64)]);
}

#[test]
fn oversubscribed_gpu_is_shared_in_proportion() {
    let configs = planned(&format!("{POOL}{}", tenants(&["aa", "bbbbbb"]))).unwrap();
    let shares: Vec<_> = configs.iter().map(|c| c.gpu_ledger.as_ref().unwrap().share_bytes >> 20).collect();
    assert_eq!(shares, [24, 72]);
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
    // The members are sorted by name: `c` is the last.
    let directive = plan.shared[0].directive(2, &records, Fence { epoch: 5, sequence: 9 });
    assert_eq!((directive.epoch, directive.sequence, directive.policy.as_str()), (5, 9, "Oneiros"));
    assert_eq!(
        directive.sharing,
        Sharing::Temporal { order: SliceOrder::Priority, min_quantum_ms: 2, max_quantum_ms: 20 }
    );
    assert_eq!(
        (directive.victim, directive.min_residence_ms, directive.revoke_bound_ms),
        (VictimRule::FixedOrder, 0, 90)
    );
    assert_eq!((directive.tenant.priority, directive.tenant.max_remapped_percent), (100, 30));
    assert_eq!(
        (directive.tenant.idle_after_seconds, directive.tenant.hibernate_after_seconds),
        (30, Some(600))
    );
    let others = directive.peers.iter().map(|n| (n.name.as_str(), n.admin.port(), n.priority));
    assert_eq!(others.collect::<Vec<_>>(), [("a", 1, 200), ("b", 2, 1)], "by name, itself left out");
    let own = plan.configs[1].gpu_ledger.as_ref().unwrap();
    let floor_bytes = (8 << 20) + 81 * (64 << 10);
    assert_eq!(
        (directive.peers[0].share_bytes, directive.peers[0].floor_bytes),
        (own.share_bytes, floor_bytes)
    );
    let started = plan.configs[0].gpu_ledger.as_ref().unwrap();
    assert_eq!(directive.tenant.share_bytes, Some(started.share_bytes), "as it was started");
    assert_eq!(directive.fallback_order, ["a", "b"], "FixedOrder is by name, whatever the priorities are");
    for member in 0..3 {
        let directive = plan.shared[0].directive(member, &records, Fence { epoch: 5, sequence: 9 });
        assert_eq!(directive.check(), Ok(()));
    }
}

#[test]
fn shares_are_reassigned_by_reported_floors() {
    let mut plan = whole(&format!("{POOL}{}", tenants(&["a", "b"]))).unwrap();
    let gpu = &mut plan.shared[0];
    let shares_mib = |gpu: &SharedGpu, member| {
        let fence = Fence { epoch: 5, sequence: 9 };
        let directive = gpu.directive(member, &[record(1), record(2)], fence);
        (directive.tenant.share_bytes.unwrap() >> 20, directive.peers[0].share_bytes >> 20)
    };
    assert!(!gpu.reassign_shares(), "by nothing that is new");
    assert_eq!((shares_mib(gpu, 0), gpu.capacity_error()), ((48, 48), None));
    gpu.gpu_tenants[0].set_reported_floor(48 << 20);
    assert!(!gpu.reassign_shares(), "it has that");
    gpu.gpu_tenants[0].set_reported_floor(60 << 20);
    assert!(gpu.reassign_shares() && !gpu.reassign_shares());
    assert_eq!((shares_mib(gpu, 0), shares_mib(gpu, 1)), ((60, 36), (36, 60)));
    gpu.gpu_tenants[1].set_reported_floor(36 << 20);
    assert_eq!((gpu.reassign_shares(), gpu.capacity_error()), (false, None));
    gpu.gpu_tenants[1].set_reported_floor((36 << 20) + 1);
    let words = "the tenants of the GPU laptop-chat-0 need at least 100663297 bytes (default/a 62914560, default/b \
        37748737) and it has 100663296 bytes";
    assert_eq!(gpu.capacity_error().as_deref(), Some(words));
}

#[test]
fn shared_gpu_field_warns_on_exclusive_gpu() {
    let pool = format!("{POOL}  remap: {{victim: FixedOrder}}\n");
    let important = format!("{}  priority: 7\n", tenant("one"));
    let ineffective = whole(&format!("{pool}{important}")).unwrap().ineffective;
    let ineffective: Vec<_> = ineffective.iter().map(ToString::to_string).collect();
    assert_eq!(ineffective.len(), 2, "{ineffective:?}");
    assert!(ineffective[0].starts_with("up.yaml:10:11: spec.remap.victim: "), "{ineffective:?}");
    assert!(ineffective[1].starts_with("up.yaml:18:3: spec.priority: "), "{ineffective:?}");
    assert_eq!(whole(&format!("{pool}{important}{}", tenant("two"))).unwrap().ineffective, []);
    let two =
        whole(&format!("{}{important}{}", POOL.replace("count: 1", "count: 2"), tenant("two"))).unwrap();
    assert_eq!((two.shared.len(), two.ineffective), (0, vec![]), "the priority orders their placement");
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
        assert_eq!((plan.configs.len(), plan.shared.len()), (1, 0), "{rest}: it takes no place");
    }
}

/// Names, GPUs and shares in MiB of an example's tenants, whose models have 24 (`chat`), 12 and 6 MiB.
fn example(name: &str) -> Vec<(String, String, u64)> {
    let path = format!("{}/../../examples/{name}", env!("CARGO_MANIFEST_DIR"));
    let size = |_: &str, folder: &Path| match folder.file_name().and_then(|name| name.to_str()) {
        Some("chat") => Ok(model(24)),
        Some("code") => Ok(model(12)),
        Some("summary") => Ok(model(6)),
        other => panic!("{other:?}"),
    };
    let plan = plan_with(objects(&std::fs::read_to_string(path).unwrap()), &size).unwrap();
    assert_eq!(plan.ineffective, []);
    let share = |config: &SidecarConfig| config.gpu_ledger.as_ref().unwrap().share_bytes >> 20;
    plan.configs.iter().map(|c| (c.name.clone(), c.gpu.name.clone(), share(c))).collect()
}

#[test]
fn temporal_example_has_three_tenants_on_one_gpu() {
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
