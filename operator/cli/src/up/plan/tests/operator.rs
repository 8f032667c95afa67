//! The same pool and tenants, planned for this machine and by the operator for a cluster, get the same GPUs, shares,
//! configurations and directives.

use std::net::Ipv4Addr;

use sluice_plan::directives::PeerSidecar;
use sluice_plan::geometry::to_status;
use sluice_plan::objects::{claim_digest, claim_name};
use sluice_plan::observed::{ObservedClaim, ObservedDevice, ObservedPod, ObservedPool, ObservedSlot};
use sluice_plan::plan_context::PlanContext;
use sluice_plan::validate::ClusterFeatures;
use sluice_plan::zone_disruption::ZoneDisruption;
use sluice_types::GpuPool;
use sluice_types::tenant::ModelTenantStatus;
use sluice_wire::directive::Directive;

use super::*;

/// Tenants of a pool: names and further lines of their specs.
type Tenants<'a> = &'a [(&'a str, &'a str)];

/// What one tenant gets. Without the directive, if it has no peer.
type Decision = (SidecarConfig, Option<Directive>);

fn yaml(pool: &str, tenants: Tenants<'_>, source: &str, more: &str) -> String {
    let tenant = |(name, spec): &(&str, &str)| {
        let text = tenant(name).replace(&format!("{{type: File, file: {{path: models/{name}}}}}"), source);
        format!("{text}{spec}{more}")
    };
    pool.to_owned() + &tenants.iter().map(tenant).collect::<String>()
}

/// Returns what this machine's plan gives each tenant, by name, once the sidecars have reported these floors.
fn local(pool: &str, tenants: Tenants<'_>, floors: &[(&str, u64)]) -> Vec<(String, Decision)> {
    let text = yaml(pool, tenants, "{type: File, file: {path: model}}", "");
    let mut plan = whole(&text).unwrap();
    let mut directives = BTreeMap::new();
    for gpu in &mut plan.shared {
        for (name, floor) in floors {
            let mut members = gpu.gpu_tenants.iter_mut();
            members.find(|one| one.name == *name).into_iter().for_each(|one| one.set_reported_floor(*floor));
        }
        gpu.reassign_shares();
        let records: Vec<_> = gpu.gpu_tenants.iter().map(|_| record(1)).collect();
        for (member, one) in gpu.gpu_tenants.iter().enumerate() {
            let directive = gpu.directive(member, &records, Fence { epoch: 5, sequence: 9 });
            directives.insert(one.name.clone(), directive);
        }
    }
    let decision = |config: SidecarConfig| {
        let name = config.name.clone();
        let directive = directives.remove(&name);
        (name, (config, directive))
    };
    plan.configs.into_iter().map(decision).collect()
}

/// The objects of a cluster: the models are on a volume and inspected, the engines have two CPUs.
fn cluster_objects(pool: &str, tenants: Tenants<'_>) -> (GpuPool, Vec<ModelTenant>) {
    let source = "{type: PersistentVolumeClaim, persistentVolumeClaim: {claimName: models}}";
    let text = yaml(pool, tenants, source, "  engine: {resources: {limits: {cpu: 2}}}\n");
    let (mut pools, mut all) = (Vec::new(), Vec::new());
    for object in objects(&text) {
        match object.located.object {
            ManifestObject::Pool(pool) => pools.push(pool),
            ManifestObject::Tenant(mut tenant) => {
                tenant.metadata.namespace = Some("default".into());
                let name = tenant.metadata.name.clone().unwrap();
                let model = Some(to_status(&model(name.len() as u64 * 16)));
                tenant.status = Some(ModelTenantStatus { model, ..ModelTenantStatus::default() });
                all.push(tenant);
            }
        }
    }
    (pools.remove(0), all)
}

fn context<'a>(pool: &'a GpuPool, tenants: &'a [&'a ModelTenant], seen: &'a ObservedPool) -> PlanContext<'a> {
    PlanContext {
        pool: Some(pool),
        tenants,
        observed: seen,
        cluster: ClusterFeatures { has_image_volumes: true },
        grace_seconds: 60,
        disruption: ZoneDisruption::default(),
        now: 1_700_000_000,
    }
}

/// Returns what a cluster shows once `plan` is applied and all pods are ready.
fn applied(pool: &GpuPool, plan: &PoolPlan<'_>, floors: &[(&str, u64)]) -> ObservedPool {
    let mut seen = ObservedPool::default();
    for (at, planned) in plan.gpus.iter().enumerate() {
        let Some(epoch) = planned.epoch else { continue };
        let claim = claim_name(&planned.gpu, epoch.number);
        for (tenant, slot) in plan.slots_on(at) {
            let tenant = tenant.tenant.metadata.name.clone().unwrap();
            let floor = floors.iter().find(|(name, _)| *name == tenant).map(|(_, floor)| *floor);
            seen.floors.extend(floor.map(|floor| ((tenant.clone(), planned.gpu.name.clone()), floor)));
            let (index, claim) = (slot.index, claim.clone());
            seen.slots.push(ObservedSlot { tenant: tenant.clone(), index, claim: claim.clone() });
            let (uid, ip) = (format!("pod-of-{tenant}"), Some("10.0.0.1".to_owned()));
            seen.pods.push(ObservedPod {
                tenant,
                index,
                claim,
                uid,
                ip,
                is_ready: true,
                ..ObservedPod::default()
            });
        }
        let device =
            ObservedDevice { capacity_bytes: planned.gpu.capacity_bytes, ..ObservedDevice::default() };
        seen.claims.push(ObservedClaim {
            name: claim,
            digest: claim_digest(pool, &planned.gpu),
            settings: Some(planned.gpu.settings.clone()),
            device: Some(device),
            ..ObservedClaim::default()
        });
    }
    seen
}

/// Returns what the operator gives each tenant, by name: it plans the new objects, then again once the sidecars have
/// reported these floors.
fn cluster(pool: &str, tenants: Tenants<'_>, floors: &[(&str, u64)]) -> BTreeMap<String, Decision> {
    let (pool, tenants) = cluster_objects(pool, tenants);
    let tenants: Vec<&ModelTenant> = tenants.iter().collect();
    let (nothing, mut all) = (ObservedPool::default(), BTreeMap::new());
    let first = pool_plan::plan(&context(&pool, &tenants, &nothing));
    let seen = applied(&pool, &first, floors);
    let plan = pool_plan::plan(&context(&pool, &tenants, &seen));
    for gpu in 0..plan.gpus.len() {
        for (planned, slot) in first.slots_on(gpu) {
            let config = sidecar_config(&first.placed_slot(&pool, planned, slot).unwrap());
            all.insert(config.name.clone(), (config, None));
        }
        let peers = plan.gpu_peers(&pool, gpu, |planned, slot| {
            let claim = claim_name(&plan.gpus[gpu].gpu, plan.gpus[gpu].epoch?.number);
            let pod = plan.pod(planned.tenant.metadata.name.as_deref()?, slot.index, &claim)?;
            let admin = SocketAddr::new(pod.ip.as_ref()?.parse().ok()?, 8001);
            Some(PeerSidecar { pod_uid: Some(pod.uid.clone()), admin, activity: None })
        });
        for member in 0..peers.peers.len() {
            let name = peers.peers[member].tenant.metadata.name.as_deref().unwrap();
            let (_, directive) = all.get_mut(name).unwrap();
            *directive = (peers.peers.len() > 1).then(|| peers.directive(member));
        }
    }
    all
}

/// Removes from a directive what only a cluster has, and the addresses.
fn without_addresses(directive: Directive) -> Directive {
    let peer = |mut peer: sluice_wire::directive::PeerInfo| {
        (peer.pod_uid, peer.claim_uid) = (None, None);
        peer.admin = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        peer
    };
    let peers = directive.peers.into_iter().map(peer).collect();
    Directive { epoch: 0, sequence: 0, peers, ..directive }
}

/// Puts the paths and ports of this machine into a pod's configuration.
fn with_local_paths(pod: SidecarConfig, here: &SidecarConfig) -> SidecarConfig {
    let ledger = pod.gpu_ledger.zip(here.gpu_ledger.as_ref());
    SidecarConfig {
        model_path: here.model_path.clone(),
        listen: here.listen.clone(),
        runtime_dir: here.runtime_dir.clone(),
        engine: EngineConfig { spawn: here.engine.spawn.clone(), ..pod.engine },
        gpu_ledger: ledger.map(|(pod, here)| sluice_wire::config::LedgerConfig {
            folder: here.folder.clone(),
            claim: here.claim.clone(),
            ..pod
        }),
        ..pod
    }
}

/// Checks that both plans agree; returns the GPU of each tenant in the order given.
fn agreed_gpus(pool: &str, tenants: Tenants<'_>, floors: &[(&str, u64)]) -> Vec<String> {
    let mut pods = cluster(pool, tenants, floors);
    let here = local(pool, tenants, floors);
    assert_eq!((pods.len(), here.len()), (tenants.len(), tenants.len()));
    let compare = |(name, (config, directive)): (String, Decision)| {
        let (pod, sent) = pods.remove(&name).unwrap();
        assert_eq!(with_local_paths(pod, &config), config, "{name}");
        assert_eq!(sent.map(without_addresses), directive.map(without_addresses), "{name}");
        config.gpu.name
    };
    here.into_iter().map(compare).collect()
}

const TWO_GPUS: &str =
    "[{name: chat, count: 2, sharing: {temporal: {order: Priority, minQuantumMilliseconds: 2}}}]";

#[test]
fn tenants_of_different_sizes_and_priorities_get_the_gpus_and_directives_of_a_cluster() {
    let pool = with_groups(TWO_GPUS);
    let tenants = [
        (
            "code",
            "  priority: 7\n  memory: {guaranteedKv: 6Mi, kvLimit: 12Mi, hostKv: 5Mi, maxRemappedPercent: 30}\n",
        ),
        ("b", "  idle: {afterSeconds: 3, hibernateAfterSeconds: 40}\n  limits: {maxStreams: 4}\n"),
        ("a", "  slo: {ttftMilliseconds: 700}\n  drainSeconds: 2\n"),
        ("ddd", "  priority: 900\n"),
    ];
    let expected = ["laptop-chat-1", "laptop-chat-1", "laptop-chat-1", "laptop-chat-0"];
    assert_eq!(agreed_gpus(&pool, &tenants, &[]), expected);
}

#[test]
fn groups_victims_and_modes_are_those_of_a_cluster() {
    let isolated = "sharing: {mode: Isolated, isolated: {profile: 3g.71gb}}";
    let groups =
        format!("[{{name: x-y, count: 1, sharing: {{mode: Spatial}}}}, {{name: slice, {isolated}}}]");
    for victim in ["MostRecentlyUsed", "LeastRecentlyUsed", "FixedOrder"] {
        for policy in ["Unified", "Recompute", "Pie"] {
            let remap = format!("  remap: {{victim: {victim}, minResidenceMilliseconds: 9}}\n");
            let pool = format!("{}{remap}", with_groups(&groups).replace("Oneiros", policy));
            let tenants = [
                ("c", "  gpuGroup: x-y\n  priority: 9\n"),
                ("a", "  gpuGroup: x-y\n"),
                ("b", "  priority: 300\n"),
            ];
            let gpus = agreed_gpus(&pool, &tenants, &[]);
            assert_eq!(gpus[0], gpus[1], "{victim} {policy}");
            assert!(gpus[0].starts_with("laptop-x-y-0-"), "a digest makes such a name unique: {gpus:?}");
            assert_eq!(gpus[2], "laptop-slice-0", "{victim} {policy}");
        }
    }
}

#[test]
fn reported_floors_lower_the_other_shares_as_in_a_cluster() {
    let tenants = [("a", ""), ("b", "  priority: 3\n"), ("cc", "")];
    for floors in
        [vec![("a", 50 * MIB)], vec![("a", 70 * MIB), ("cc", 70 * MIB)], vec![("b", 1), ("cc", 33 * MIB + 1)]]
    {
        assert_eq!(agreed_gpus(POOL, &tenants, &floors), ["laptop-chat-0"; 3], "{floors:?}");
    }
}

#[test]
fn a_comparison_with_another_victim_rule_or_share_fails() {
    let tenants = [("a", "  priority: 3\n"), ("b", ""), ("cc", "")];
    let local_directive = |pool: &str, floors: &[(&str, u64)]| {
        let (_, (_, directive)) = local(pool, &tenants, floors).remove(2);
        without_addresses(directive.unwrap())
    };
    let (_, pod) = cluster(POOL, &tenants, &[]).remove("cc").unwrap();
    let pod = without_addresses(pod.unwrap());
    assert_eq!(local_directive(POOL, &[]), pod);
    assert_ne!(local_directive(&format!("{POOL}  remap: {{victim: FixedOrder}}\n"), &[]), pod);
    assert_ne!(local_directive(POOL, &[("a", 60 * MIB)]), pod);
}
