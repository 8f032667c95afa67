//! The planned objects: those of files, those of a cluster, those of a cluster overlaid with files, or those of a run
//! on this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;
use sluice_plan::gpu::{Gpu, GpuSizes, gpus};
use sluice_plan::objects::inspect::size_options;
use sluice_plan::objects::{claim_digest, claim_name};
use sluice_plan::observed::{ObservedClaim, ObservedDevice, ObservedPod, ObservedPool, ObservedSlot};
use sluice_plan::plan_context::PlanContext;
use sluice_plan::validate::ClusterFeatures;
use sluice_plan::zone_disruption::ZoneDisruption;
use sluice_types::load::{LoadError, LoadErrors, Loader, ManifestObject, Problem, SpannedObject};
use sluice_types::pool::GpuStatus;
use sluice_types::shared::{ResourceList, Resources};
use sluice_types::tenant::{PvcSource, SlotState, SlotStatus, SourceType};
use sluice_types::{CpuQuantity, DEFAULT_NAMESPACE, GpuPool, ModelTenant};
use sluice_wire::cuda_devices::CudaDevice;
use sluice_wire::geometry::{Geometry, GeometryError};

use crate::cluster::{Cluster, list_objects};
use crate::manifests::{self, SourceObject};
use crate::now_unix_ms;
use crate::up::FieldLocator;

/// Namespace and name.
pub type ObjectKey = (String, String);
/// A pool and the name of one of its GPUs.
pub type GpuKey = (ObjectKey, String);

/// Objects of both kinds.
#[derive(Clone, Debug, Default)]
pub struct PlanInputs {
    pools: BTreeMap<ObjectKey, GpuPool>,
    tenants: BTreeMap<ObjectKey, ModelTenant>,
    /// Local folders with the models of tenants.
    pub folders: BTreeMap<ObjectKey, PathBuf>,
    /// Results of inspecting these folders.
    pub inspections: BTreeMap<ObjectKey, Result<Geometry, GeometryError>>,
    /// CUDA devices of this machine that are GPUs of a run on it.
    pub devices: BTreeMap<GpuKey, CudaDevice>,
    /// Source positions of the objects of files, by kind and name.
    sources: BTreeMap<(&'static str, ObjectKey), SpannedObject>,
}

/// A pool and the tenants that refer to it.
#[derive(Debug)]
pub struct PoolInputs<'a> {
    /// Namespace and name.
    pub key: ObjectKey,
    /// The pool; `None` = there is none.
    pub pool: Option<&'a GpuPool>,
    /// Its tenants.
    pub tenants: Vec<&'a ModelTenant>,
    inputs: &'a PlanInputs,
}

impl PlanInputs {
    /// Reads objects of files; those without a namespace are in `namespace`, that of a cluster, else in `default`.
    ///
    /// # Errors
    /// All errors of the files. A missing pool or group is no error with a cluster, and without one it is none
    /// either: the plan reports it.
    pub fn from_files(paths: &[PathBuf], namespace: Option<&str>) -> Result<PlanInputs, LoadErrors> {
        let loaded =
            manifests::load_files(&Loader::new().in_namespace(namespace.unwrap_or(DEFAULT_NAMESPACE)), paths);
        let is_reference = |error: &LoadError| matches!(error.problem, Problem::Reference(_));
        if !loaded.errors.iter().all(is_reference) {
            let counts = |error: &LoadError| namespace.is_none() || !is_reference(error);
            return Err(loaded.errors.into_iter().filter(counts).collect());
        }
        let mut scene = PlanInputs::default();
        for located in loaded.objects {
            let folder = manifests::folder_of(paths, &located).to_owned();
            scene.add(located, &folder, namespace.unwrap_or(DEFAULT_NAMESPACE));
        }
        Ok(scene)
    }

    /// Returns the objects of a run on this machine, as they would be in a cluster: new, and with `threads` CPUs for each
    /// engine. Other limits of containers have no effect here.
    pub fn for_local_run(objects: impl IntoIterator<Item = SourceObject>, threads: u32) -> PlanInputs {
        let mut inputs = PlanInputs::default();
        for SourceObject { located, folder } in objects {
            inputs.add(located, &folder, DEFAULT_NAMESPACE);
        }
        inputs.pools.values_mut().for_each(|pool| pool.status = None);
        for tenant in inputs.tenants.values_mut() {
            let cpu = Some(CpuQuantity::from_cores(threads));
            let limits = Some(ResourceList { cpu, memory: None });
            tenant.status = None;
            tenant.spec.engine.resources = Some(Resources { requests: None, limits });
            tenant.spec.sidecar.resources = None;
        }
        inputs
    }

    fn add(&mut self, located: SpannedObject, folder: &Path, namespace: &str) {
        let kind = located.object.kind();
        let key = match located.object.clone() {
            ManifestObject::Pool(mut pool) => {
                let key = set_namespace(&mut pool.metadata, namespace);
                self.pools.insert(key.clone(), pool);
                key
            }
            ManifestObject::Tenant(mut tenant) => {
                let key = set_namespace(&mut tenant.metadata, namespace);
                if let Some(model) = local_model(&mut tenant, folder) {
                    self.folders.insert(key.clone(), model);
                }
                self.tenants.insert(key.clone(), tenant);
                key
            }
        };
        self.sources.insert((kind, key), located);
    }

    /// Reads all objects of these namespaces of a cluster.
    ///
    /// # Errors
    /// The API server does not answer.
    pub async fn from_cluster(
        cluster: &Cluster,
        namespaces: &BTreeSet<String>,
    ) -> anyhow::Result<PlanInputs> {
        let mut scene = PlanInputs::default();
        let key = |namespace: &str, name: String| (namespace.to_owned(), name);
        for namespace in namespaces {
            let (pools, tenants) = list_objects(cluster, namespace).await?;
            scene.pools.extend(pools.into_iter().map(|pool| (key(namespace, pool.name_any()), pool)));
            let staying = tenants.into_iter().filter(|tenant| tenant.metadata.deletion_timestamp.is_none());
            scene.tenants.extend(staying.map(|tenant| (key(namespace, tenant.name_any()), tenant)));
        }
        Ok(scene)
    }

    /// This with the objects of files in place of its own, as if they had been applied: what the cluster knows of
    /// them stays.
    pub fn overlay(mut self, files: PlanInputs) -> PlanInputs {
        for (key, mut pool) in files.pools {
            if let Some(there) = self.pools.get(&key) {
                (pool.status, pool.metadata) = (there.status.clone(), there.metadata.clone());
            }
            self.pools.insert(key, pool);
        }
        for (key, mut tenant) in files.tenants {
            if let Some(there) = self.tenants.get(&key) {
                (tenant.status, tenant.metadata) = (there.status.clone(), there.metadata.clone());
            }
            self.tenants.insert(key, tenant);
        }
        self.folders.extend(files.folders);
        self.sources.extend(files.sources);
        self
    }

    /// Copies the sizes of models: a model cannot be changed.
    pub fn copy_sizes_from(&mut self, other: &PlanInputs) {
        let known = |key: &ObjectKey| self.tenants.contains_key(key);
        self.inspections = other
            .inspections
            .iter()
            .filter(|(key, _)| known(key))
            .map(|(key, said)| (key.clone(), said.clone()))
            .collect();
    }

    /// Returns the namespaces of the objects.
    pub fn namespaces(&self) -> BTreeSet<String> {
        self.pools.keys().chain(self.tenants.keys()).map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Returns the existing pools and those that tenants refer to.
    pub fn pools(&self) -> BTreeSet<ObjectKey> {
        let wanted = self
            .tenants
            .iter()
            .map(|((namespace, _), tenant)| (namespace.clone(), tenant.spec.pool_ref.name.clone()));
        self.pools.keys().cloned().chain(wanted).collect()
    }

    /// Returns a pool and its tenants.
    pub fn pool(&self, key: &ObjectKey) -> PoolInputs<'_> {
        let of = |((namespace, _), tenant): &(&ObjectKey, &ModelTenant)| {
            *namespace == key.0 && tenant.spec.pool_ref.name == key.1
        };
        let tenants = self.tenants.iter().filter(of).map(|(_, tenant)| tenant).collect();
        PoolInputs { key: key.clone(), pool: self.pools.get(key), tenants, inputs: self }
    }

    /// Keys of the tenants with unknown sizes.
    pub fn unknown_sizes(&self) -> Vec<ObjectKey> {
        let is_inspected =
            |tenant: &ModelTenant| tenant.status.as_ref().is_some_and(|status| status.model.is_some());
        let unknown = self
            .tenants
            .iter()
            .filter(|(key, tenant)| !is_inspected(tenant) && !self.inspections.contains_key(*key));
        unknown.map(|(key, _)| key.clone()).collect()
    }

    /// Returns the options of an inspection on which the sizes of a tenant depend.
    pub fn size_options(&self, key: &ObjectKey) -> Vec<String> {
        let tenant = self.tenants.get(key);
        let pool = |tenant: &ModelTenant| self.pools.get(&(key.0.clone(), tenant.spec.pool_ref.name.clone()));
        let options = tenant.and_then(|tenant| Some(size_options(pool(tenant)?, &tenant.spec)));
        options.unwrap_or_default()
    }

    /// Returns the namespaces and names of all tenants.
    pub fn tenants(&self) -> impl Iterator<Item = &ObjectKey> {
        self.tenants.keys()
    }

    /// Returns a tenant.
    pub fn tenant(&self, key: &ObjectKey) -> Option<&ModelTenant> {
        self.tenants.get(key)
    }
}

/// Sets an object's namespace if it has none, and returns its key.
fn set_namespace(metadata: &mut ObjectMeta, namespace: &str) -> ObjectKey {
    let namespace = metadata.namespace.get_or_insert_with(|| namespace.to_owned()).clone();
    (namespace, metadata.name.clone().unwrap_or_default())
}

/// Returns the folder of a `File` source. In a cluster the model would be on a volume, so the tenant is planned
/// with one; the same applies to a file of keys.
fn local_model(tenant: &mut ModelTenant, folder: &Path) -> Option<PathBuf> {
    tenant.spec.access.api_keys_file = None;
    let source = &mut tenant.spec.model.source;
    let path = source.file.take()?.path;
    source.kind = SourceType::PersistentVolumeClaim;
    source.persistent_volume_claim = Some(PvcSource { claim_name: "models".into(), path: None });
    Some(folder.join(path))
}

impl PoolInputs<'_> {
    /// Returns where a tenant and the pool are written; `None` = the tenant is in no file.
    pub fn field_locator(&self, tenant: &str) -> Option<FieldLocator> {
        let written = |kind, name: &str| {
            self.inputs.sources.get(&(kind, (self.key.0.clone(), name.to_owned()))).cloned()
        };
        Some(FieldLocator::new(written("ModelTenant", tenant)?, written("GpuPool", &self.key.1)))
    }

    /// Returns the operator's input for this pool, whose observed state is `seen`.
    pub fn context<'s>(&'s self, seen: &'s ObservedPool) -> PlanContext<'s> {
        PlanContext {
            pool: self.pool,
            tenants: &self.tenants,
            observed: seen,
            // Whether a cluster supports them is checked there.
            cluster: ClusterFeatures { has_image_volumes: true },
            disruption: ZoneDisruption::default(),
            grace_seconds: i64::MAX,
            now: i64::try_from(now_unix_ms() / 1000).unwrap_or(i64::MAX),
        }
    }

    /// Returns the CUDA device of this machine that is a GPU of the pool.
    pub fn device(&self, gpu: &str) -> Option<&CudaDevice> {
        self.inputs.devices.get(&(self.key.clone(), gpu.to_owned()))
    }

    /// Returns the GPUs of the pool that are CUDA devices of this machine.
    pub fn devices(&self) -> impl Iterator<Item = (&str, &CudaDevice)> {
        let own = self.inputs.devices.iter().filter(|((pool, _), _)| *pool == self.key);
        own.map(|((_, gpu), device)| (gpu.as_str(), device))
    }

    /// Returns the claims that the status of the pool names, and one for each of its devices on this machine.
    fn claims(&self, pool: &GpuPool) -> Vec<ObservedClaim> {
        let local = |gpu: Gpu| {
            let device = self.device(&gpu.name)?;
            Some(ObservedClaim {
                name: claim_name(&gpu, 1),
                digest: claim_digest(pool, &gpu),
                device: Some(ObservedDevice {
                    capacity_bytes: Some(device.free_bytes),
                    uuid: Some(device.uuid.clone()),
                    ..ObservedDevice::default()
                }),
                ..ObservedClaim::default()
            })
        };
        let local = gpus(pool, &|_| GpuSizes::default()).into_iter().filter_map(local);
        claims(pool).into_iter().chain(local).collect()
    }

    /// Returns the known GPUs and slots of the pool from statuses and devices, and models from folders.
    pub fn observed(&self) -> ObservedPool {
        let inspections =
            self.inputs.inspections.iter().filter(|((namespace, _), _)| *namespace == self.key.0);
        ObservedPool {
            claims: self.pool.map(|pool| self.claims(pool)).unwrap_or_default(),
            slots: self.tenants.iter().flat_map(|tenant| slots(tenant)).collect(),
            pods: self.tenants.iter().flat_map(|tenant| self.pods(tenant)).collect(),
            inspections: inspections.map(|((_, name), said)| (name.clone(), said.clone())).collect(),
            ..ObservedPool::default()
        }
    }
}

impl PoolInputs<'_> {
    /// Returns the pods that the status of a tenant names, on the claims that the pool's status names.
    fn pods(&self, tenant: &ModelTenant) -> Vec<ObservedPod> {
        let gpus =
            || self.pool.and_then(|pool| pool.status.as_ref()).into_iter().flat_map(|status| &status.gpus);
        let pod = |slot: &SlotStatus| {
            let on = gpus().find(|gpu| Some(&gpu.name) == slot.gpu.as_ref())?;
            Some(ObservedPod {
                name: slot.pod.clone()?,
                tenant: tenant.name_any(),
                index: slot_index(slot)?,
                claim: on.claim_name.clone()?,
                node: slot.node.clone(),
                is_ready: slot.state.is_some_and(|state| state != SlotState::Loading),
                ..ObservedPod::default()
            })
        };
        tenant.status.iter().flat_map(|status| &status.slots).filter_map(pod).collect()
    }
}

/// Parses the index of a slot in its tenant.
fn slot_index(slot: &SlotStatus) -> Option<u32> {
    slot.name.rsplit_once('-')?.1.parse().ok()
}

/// Returns the claims that the status of a pool names.
fn claims(pool: &GpuPool) -> Vec<ObservedClaim> {
    let digests: BTreeMap<String, String> = gpus(pool, &|_| GpuSizes::default())
        .into_iter()
        .map(|gpu| (gpu.name.clone(), claim_digest(pool, &gpu)))
        .collect();
    let claim = |status: &GpuStatus| {
        let capacity_bytes = status.capacity.as_ref().map(sluice_types::Quantity::bytes);
        Some(ObservedClaim {
            name: status.claim_name.clone()?,
            // The digest of a claim that the pool no longer has is irrelevant.
            digest: digests.get(&status.name).cloned().unwrap_or_default(),
            mode: status.effective_mode,
            device: Some(ObservedDevice { capacity_bytes, ..ObservedDevice::default() }),
            ..ObservedClaim::default()
        })
    };
    pool.status.iter().flat_map(|status| &status.gpus).filter_map(claim).collect()
}

/// The slots that the status of a tenant names with their GPUs. The epoch of the claim is of no matter to where
/// they are.
fn slots(tenant: &ModelTenant) -> Vec<ObservedSlot> {
    let slot = |slot: &SlotStatus| {
        let claim = format!("{}-e1", slot.gpu.as_ref()?);
        Some(ObservedSlot { tenant: tenant.name_any(), index: slot_index(slot)?, claim })
    };
    tenant.status.iter().flat_map(|status| &status.slots).filter_map(slot).collect()
}

#[cfg(test)]
impl PlanInputs {
    /// Gives a tenant of the namespace `default` a generation, as an API server does.
    pub fn set_generation(&mut self, tenant: &str, generation: i64) {
        let key = (DEFAULT_NAMESPACE.to_owned(), tenant.to_owned());
        if let Some(tenant) = self.tenants.get_mut(&key) {
            tenant.metadata.generation = Some(generation);
        }
    }
}
