//! Fields that the YAML allows and `sluice up` does not support. Every field is served, rejected or warned
//! about. Pure.
//!
//! A field is refused if ignoring it would change how the tenant is served. A warning is enough for a field that
//! only affects a cluster or a device, and for one that only matters between tenants of one GPU where each has its
//! own. A field with its default value is ignored, written or not: both mean the same object.

use sluice_types::load::{LoadError, ManifestObject, Path, SpannedObject};
use sluice_types::pool::{GpuGroup, Remap, SharingMode, Spatial, UpdatePolicy};
use sluice_types::tenant::{EngineKind, Idle, SourceType};
use sluice_types::{GpuPoolSpec, HOST_DEVICE_CLASS, ModelTenantSpec};

const CLUSTER_ONLY: &str = "has no effect outside a cluster";
const SHARED_GPU_ONLY: &str = "has no effect while every tenant has a GPU to itself";
const SHARED_TENANT_ONLY: &str = "has no effect while the tenant has a GPU to itself";
const NO_EFFECT_ON_HOST: &str = "has no effect on a GPU made of host memory";
const NO_MIG: &str = "sluice up makes no MIG instances: a GPU of the group is a device that the driver shows";
const NO_MPS: &str = "sluice up starts no MPS daemon, without which it has no effect";
const SPATIAL_WITHOUT_MPS: &str =
    "sluice up starts no MPS daemon: tenants of the GPU run at once, and its driver takes turns between them";
/// Device class of the GPUs of NVIDIA's driver: on this machine, the devices of its library.
const CUDA_DEVICE_CLASS: &str = "gpu.nvidia.com";
const ENGINE_UNSUPPORTED: &str = "sluice up starts only engines of Sluice; for a running vLLM server, start \
                                  sluice-sidecar with engine.url in its configuration, or use a cluster";
const DEFAULT_PRIORITY: i32 = 100;

/// Whether the GPUs of a pool are CUDA devices.
pub fn is_cuda(spec: &GpuPoolSpec) -> bool {
    spec.device_class_name == CUDA_DEVICE_CLASS
}

/// The unsupported fields of one object.
#[derive(Debug, Default)]
pub struct UnsupportedFields {
    /// Fields that make the object unusable here.
    pub errors: Vec<LoadError>,
    /// Fields that are ignored.
    pub ineffective: Vec<LoadError>,
}

/// A field, whether it asks for something unsupported, and the message in that case.
type FieldCheck<'a> = (&'a str, bool, &'a str);

impl UnsupportedFields {
    /// Checks every field of `located`.
    pub fn check(located: &SpannedObject) -> Self {
        let mut findings = UnsupportedFields::default();
        match &located.object {
            ManifestObject::Pool(pool) => findings.check_pool(located, &pool.spec),
            ManifestObject::Tenant(tenant) => findings.check_tenant(located, &tenant.spec),
        }
        findings
    }

    fn add_error(&mut self, located: &SpannedObject, path: Path, problem: impl Into<String>) {
        self.errors.push(located.error(path, problem));
    }

    fn add_warning(&mut self, located: &SpannedObject, path: Path, problem: &str) {
        self.ineffective.push(located.error(path, problem));
    }

    fn add_errors(&mut self, located: &SpannedObject, checks: &[FieldCheck<'_>]) {
        let found = checks.iter().filter(|(_, asked, _)| *asked);
        self.errors.extend(found.map(|(path, _, problem)| located.error(Path::of_keys(path), *problem)));
    }

    fn add_warnings(&mut self, located: &SpannedObject, checks: &[FieldCheck<'_>]) {
        let found = checks.iter().filter(|(_, asked, _)| *asked);
        self.ineffective.extend(found.map(|(path, _, problem)| located.error(Path::of_keys(path), *problem)));
    }

    fn check_pool(&mut self, located: &SpannedObject, spec: &GpuPoolSpec) {
        let class = &spec.device_class_name;
        if class != HOST_DEVICE_CLASS && !is_cuda(spec) {
            let problem = format!(
                "`{class}` is a class of a cluster; use {CUDA_DEVICE_CLASS} for the CUDA devices of this machine or \
                 {HOST_DEVICE_CLASS} for GPUs made of host memory"
            );
            self.add_error(located, Path::of_keys("spec.deviceClassName"), problem);
        }
        for (index, group) in spec.gpus.iter().enumerate() {
            self.check_sharing(located, index, group, is_cuda(spec));
        }
        self.check_pool_cluster_fields(located, spec);
    }

    /// Checks the fields that concern clusters.
    fn check_pool_cluster_fields(&mut self, located: &SpannedObject, spec: &GpuPoolSpec) {
        let selected = spec.device.as_ref().is_some_and(|device| !device.selectors.is_empty());
        let checks = [
            ("spec.device.selectors", selected, CLUSTER_ONLY),
            ("spec.updatePolicy", spec.update_policy != UpdatePolicy::default(), CLUSTER_ONLY),
            ("spec.nodeSelector", !spec.node_selector.is_empty(), CLUSTER_ONLY),
            ("spec.tolerations", !spec.tolerations.is_empty(), CLUSTER_ONLY),
            ("spec.runtimeClassName", spec.runtime_class_name.is_some(), CLUSTER_ONLY),
        ];
        self.add_warnings(located, &checks);
    }

    fn check_sharing(&mut self, located: &SpannedObject, index: usize, group: &GpuGroup, is_cuda: bool) {
        let (isolated, spatial) =
            if is_cuda { (NO_MIG, NO_MPS) } else { (NO_EFFECT_ON_HOST, NO_EFFECT_ON_HOST) };
        let (sharing, path) = (&group.sharing, Path::of_keys("spec.gpus").index(index).key("sharing"));
        if is_cuda && sharing.mode == SharingMode::Spatial {
            self.add_warning(located, path.clone().key("mode"), SPATIAL_WITHOUT_MPS);
        }
        if sharing.isolated.is_some() {
            self.add_warning(located, path.clone().key("isolated").key("profile"), isolated);
        }
        if sharing.spatial.as_ref().is_some_and(|spatial| *spatial != Spatial::default()) {
            self.add_warning(located, path.key("spatial").key("defaultActiveThreadPercent"), spatial);
        }
    }

    fn check_tenant(&mut self, located: &SpannedObject, spec: &ModelTenantSpec) {
        let (engine, access) = (&spec.engine, &spec.access);
        let source = &spec.model.source;
        let refusals = [
            ("spec.model.source.type", source.kind != SourceType::File, "sluice up supports only File"),
            ("spec.engine.kind", engine.kind != EngineKind::Native, ENGINE_UNSUPPORTED),
            ("spec.engine.args", !engine.args.is_empty(), "has no meaning for local processes"),
            ("spec.engine.env", !engine.env.is_empty(), "is not supported for local processes yet"),
            ("spec.replicas", spec.replicas > 1, "more than one is not supported for local processes yet"),
            ("spec.access.from", !access.from.is_empty(), "needs a cluster; use apiKeysFile"),
            (
                "spec.access.apiKeysSecretRef",
                access.api_keys_secret_ref.is_some(),
                "needs a cluster; use apiKeysFile",
            ),
        ];
        self.add_errors(located, &refusals);
        self.check_tenant_cluster_fields(located, spec);
    }

    fn check_tenant_cluster_fields(&mut self, located: &SpannedObject, spec: &ModelTenantSpec) {
        // An image of another engine kind is rejected with its kind.
        let image = spec.engine.image.as_ref().filter(|_| spec.engine.kind == EngineKind::Native);
        let warnings = [
            ("spec.podPriorityClassName", spec.pod_priority_class_name.is_some(), CLUSTER_ONLY),
            ("spec.engine.image", image.is_some(), CLUSTER_ONLY),
            ("spec.engine.resources", spec.engine.resources.is_some(), CLUSTER_ONLY),
            ("spec.sidecar.resources", spec.sidecar.resources.is_some(), CLUSTER_ONLY),
            ("spec.imagePullSecrets", !spec.image_pull_secrets.is_empty(), CLUSTER_ONLY),
            ("spec.serviceAccountName", spec.service_account_name.is_some(), CLUSTER_ONLY),
            ("spec.podLabels", !spec.pod_labels.is_empty(), CLUSTER_ONLY),
            ("spec.podAnnotations", !spec.pod_annotations.is_empty(), CLUSTER_ONLY),
        ];
        self.add_warnings(located, &warnings);
    }
}

/// Returns the fields of `located` that only matter between tenants of one GPU, for use if it shares none. The priority
/// also orders the placement of tenants, unless this is the only tenant of its pool.
pub fn shared_gpu_fields(located: &SpannedObject, is_only_tenant: bool) -> Vec<LoadError> {
    let mut findings = UnsupportedFields::default();
    match &located.object {
        ManifestObject::Pool(pool) => findings.add_warnings(located, &remap_checks(&pool.spec.remap)),
        ManifestObject::Tenant(tenant) => {
            let asked = is_only_tenant && tenant.spec.priority != DEFAULT_PRIORITY;
            // The directive has it, which only a tenant with peers gets.
            let idle = tenant.spec.idle.after_seconds != Idle::default().after_seconds;
            let fields = [
                ("spec.priority", asked, SHARED_TENANT_ONLY),
                ("spec.idle.afterSeconds", idle, SHARED_TENANT_ONLY),
            ];
            findings.add_warnings(located, &fields);
        }
    }
    findings.ineffective
}

fn remap_checks(asked: &Remap) -> [FieldCheck<'static>; 3] {
    let usual = Remap::default();
    let residence = asked.min_residence_milliseconds != usual.min_residence_milliseconds;
    let revoke = asked.revoke_bound_milliseconds != usual.revoke_bound_milliseconds;
    [
        ("spec.remap.victim", asked.victim != usual.victim, SHARED_GPU_ONLY),
        ("spec.remap.minResidenceMilliseconds", residence, SHARED_GPU_ONLY),
        ("spec.remap.revokeBoundMilliseconds", revoke, SHARED_GPU_ONLY),
    ]
}

#[cfg(test)]
mod tests;
