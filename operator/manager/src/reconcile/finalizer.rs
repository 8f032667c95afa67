//! The pool's finalizer: a pool exists as long as tenants refer to it.

use kube::api::{Api, Patch, PatchParams};
use serde_json::json;
use sluice_plan::objects::MANAGER;
use sluice_types::GpuPool;

use super::{ReconcileError, Reconciler};

/// The finalizer.
const FINALIZER: &str = "sluice.dev/tenants";

impl Reconciler {
    /// Adds the finalizer to `pool` while it has tenants, and removes it afterwards.
    pub(super) async fn sync_pool_finalizer(
        &self,
        pool: &GpuPool,
        has_tenants: bool,
    ) -> Result<(), ReconcileError> {
        let finalizers = pool.metadata.finalizers.clone().unwrap_or_default();
        let held = finalizers.iter().any(|own| own == FINALIZER);
        let deleting = pool.metadata.deletion_timestamp.is_some();
        match (held, deleting) {
            (false, false) => {
                let all = finalizers.iter().map(String::as_str).chain([FINALIZER]).collect();
                self.set_finalizers(pool, all).await
            }
            (true, true) if !has_tenants => {
                let others = finalizers.iter().map(String::as_str).filter(|own| *own != FINALIZER);
                self.set_finalizers(pool, others.collect()).await
            }
            _ => Ok(()),
        }
    }

    /// The version is sent along, so that no concurrent change is lost.
    async fn set_finalizers(&self, pool: &GpuPool, finalizers: Vec<&str>) -> Result<(), ReconcileError> {
        let namespace = pool.metadata.namespace.as_deref().unwrap_or_default();
        let name = pool.metadata.name.as_deref().unwrap_or_default();
        let api: Api<GpuPool> = Api::namespaced(self.client.clone(), namespace);
        let patch = json!({"metadata": {
            "resourceVersion": pool.metadata.resource_version, "finalizers": finalizers}});
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        match api.patch_metadata(name, &params, &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            // Deleted or changed concurrently: the watch reports it, and the pool is reconciled again.
            Err(kube::Error::Api(error)) if error.code == 404 || error.code == 409 => Ok(()),
            Err(error) => Err(ReconcileError::api(
                format!("patching the finalizers of GpuPool {namespace}/{name}"),
                error,
            )),
        }
    }
}
