//! What the YAML allows and `sluice up` does not do. Pure: every field is served, refused or warned about.
//!
//! Refused is what would change how the tenant is served, were it passed over. A warning is enough for what only a
//! cluster or a device acts on, and for what only counts between tenants of one GPU where each has one to itself. A field
//! with its default value says nothing, written or not: both mean the same object.

use sluice_types::load::{LoadError, Located, Object, Path};
use sluice_types::pool::{GpuGroup, Remap, Spatial, UpdatePolicy};
use sluice_types::tenant::{EngineKind, Idle, SourceType};
use sluice_types::{GpuPoolSpec, HOST_DEVICE_CLASS, ModelTenantSpec};

const CLUSTER: &str = "has no effect outside a cluster";
const NEIGHBOURS: &str = "has no effect while every tenant has a GPU to itself";
const ALONE: &str = "has no effect while the tenant has a GPU to itself";
const ON_HOST: &str = "has no effect on a GPU made of host memory";
const NO_SERVER: &str = "sluice up starts engines of Sluice only; put sluice-sidecar before a server that runs already \
    (engine.url in its configuration), or use a cluster";
const PRIORITY_DEFAULT: i32 = 100;

/// What one object asks for in vain.
#[derive(Debug, Default)]
pub struct Findings {
    /// Fields that make the object unusable here.
    pub refused: Vec<LoadError>,
    /// Fields that are passed over.
    pub ineffective: Vec<LoadError>,
}

/// A field, whether it asks for something that is not done, and what to say then.
type Check<'a> = (&'a str, bool, &'a str);

impl Findings {
    /// Looks at every field of `located`.
    pub fn of(located: &Located) -> Self {
        let mut findings = Findings::default();
        match &located.object {
            Object::Pool(pool) => findings.pool(located, &pool.spec),
            Object::Tenant(tenant) => findings.tenant(located, &tenant.spec),
        }
        findings
    }

    fn refuse(&mut self, located: &Located, path: Path, problem: impl Into<String>) {
        self.refused.push(located.error(path, problem));
    }

    fn warn(&mut self, located: &Located, path: Path, problem: &str) {
        self.ineffective.push(located.error(path, problem));
    }

    fn refuse_all(&mut self, located: &Located, checks: &[Check<'_>]) {
        let found = checks.iter().filter(|(_, asked, _)| *asked);
        self.refused.extend(found.map(|(path, _, problem)| located.error(Path::of_keys(path), *problem)));
    }

    fn warn_all(&mut self, located: &Located, checks: &[Check<'_>]) {
        let found = checks.iter().filter(|(_, asked, _)| *asked);
        self.ineffective.extend(found.map(|(path, _, problem)| located.error(Path::of_keys(path), *problem)));
    }

    fn pool(&mut self, located: &Located, spec: &GpuPoolSpec) {
        let class = &spec.device_class_name;
        if class != HOST_DEVICE_CLASS {
            let problem =
                format!("`{class}` needs the CUDA backend, which is not built yet; use {HOST_DEVICE_CLASS}");
            self.refuse(located, Path::of_keys("spec.deviceClassName"), problem);
        }
        for (index, group) in spec.gpus.iter().enumerate() {
            self.sharing(located, index, group);
        }
        self.pool_of_many(located, spec);
    }

    /// What matters to clusters.
    fn pool_of_many(&mut self, located: &Located, spec: &GpuPoolSpec) {
        let selected = spec.device.as_ref().is_some_and(|device| !device.selectors.is_empty());
        let checks = [
            ("spec.device.selectors", selected, CLUSTER),
            ("spec.updatePolicy", spec.update_policy != UpdatePolicy::default(), CLUSTER),
            ("spec.nodeSelector", !spec.node_selector.is_empty(), CLUSTER),
            ("spec.tolerations", !spec.tolerations.is_empty(), CLUSTER),
            ("spec.runtimeClassName", spec.runtime_class_name.is_some(), CLUSTER),
        ];
        self.warn_all(located, &checks);
    }

    fn sharing(&mut self, located: &Located, index: usize, group: &GpuGroup) {
        let (sharing, path) = (&group.sharing, Path::of_keys("spec.gpus").index(index).key("sharing"));
        if sharing.isolated.is_some() {
            self.warn(located, path.clone().key("isolated").key("profile"), ON_HOST);
        }
        if sharing.spatial.as_ref().is_some_and(|spatial| *spatial != Spatial::default()) {
            self.warn(located, path.key("spatial").key("defaultActiveThreadPercent"), ON_HOST);
        }
    }

    fn tenant(&mut self, located: &Located, spec: &ModelTenantSpec) {
        let (engine, access) = (&spec.engine, &spec.access);
        let source = &spec.model.source;
        let refusals = [
            ("spec.model.source.type", source.kind != SourceType::File, "only File is built yet"),
            ("spec.engine.kind", engine.kind != EngineKind::Native, NO_SERVER),
            ("spec.engine.args", !engine.args.is_empty(), "has no meaning for local processes"),
            ("spec.engine.env", !engine.env.is_empty(), "is not built yet for local processes"),
            ("spec.replicas", spec.replicas > 1, "more than one is not built yet for local processes"),
            ("spec.access.from", !access.from.is_empty(), "needs a cluster; use apiKeysFile"),
            (
                "spec.access.apiKeysSecretRef",
                access.api_keys_secret_ref.is_some(),
                "needs a cluster; use apiKeysFile",
            ),
        ];
        self.refuse_all(located, &refusals);
        self.tenant_of_a_cluster(located, spec);
    }

    fn tenant_of_a_cluster(&mut self, located: &Located, spec: &ModelTenantSpec) {
        // That of another kind is refused with its kind.
        let image = spec.engine.image.as_ref().filter(|_| spec.engine.kind == EngineKind::Native);
        let warnings = [
            ("spec.podPriorityClassName", spec.pod_priority_class_name.is_some(), CLUSTER),
            ("spec.engine.image", image.is_some(), CLUSTER),
            ("spec.engine.resources", spec.engine.resources.is_some(), CLUSTER),
            ("spec.sidecar.resources", spec.sidecar.resources.is_some(), CLUSTER),
            ("spec.imagePullSecrets", !spec.image_pull_secrets.is_empty(), CLUSTER),
            ("spec.serviceAccountName", spec.service_account_name.is_some(), CLUSTER),
            ("spec.podLabels", !spec.pod_labels.is_empty(), CLUSTER),
            ("spec.podAnnotations", !spec.pod_annotations.is_empty(), CLUSTER),
        ];
        self.warn_all(located, &warnings);
    }
}

/// Fields of `located` that only count between tenants of one GPU, when it has none that shares one.
pub fn for_neighbours(located: &Located) -> Vec<LoadError> {
    let mut findings = Findings::default();
    match &located.object {
        Object::Pool(pool) => findings.warn_all(located, &remap(&pool.spec.remap)),
        Object::Tenant(tenant) => {
            let asked = tenant.spec.priority != PRIORITY_DEFAULT;
            // It is told by the directive, which only a tenant with neighbours has.
            let idle = tenant.spec.idle.after_seconds != Idle::default().after_seconds;
            let fields = [("spec.priority", asked, ALONE), ("spec.idle.afterSeconds", idle, ALONE)];
            findings.warn_all(located, &fields);
        }
    }
    findings.ineffective
}

fn remap(asked: &Remap) -> [Check<'static>; 3] {
    let usual = Remap::default();
    let residence = asked.min_residence_milliseconds != usual.min_residence_milliseconds;
    let revoke = asked.revoke_bound_milliseconds != usual.revoke_bound_milliseconds;
    [
        ("spec.remap.victim", asked.victim != usual.victim, NEIGHBOURS),
        ("spec.remap.minResidenceMilliseconds", residence, NEIGHBOURS),
        ("spec.remap.revokeBoundMilliseconds", revoke, NEIGHBOURS),
    ]
}

#[cfg(test)]
mod tests;
