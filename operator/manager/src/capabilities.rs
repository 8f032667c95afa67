//! Features of the cluster, which an upgrade of its control plane may add.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kube::Client;
use sluice_plan::validate::ClusterFeatures;

use crate::cache::ClusterCache;
use crate::queue::WorkQueue;

/// First minor version of Kubernetes 1 with image volumes by default.
const IMAGE_VOLUMES_MIN_MINOR: u32 = 36;
/// Time between two version queries, while a feature is missing.
const CHECK_INTERVAL: Duration = Duration::from_secs(300);

/// The latest known features of the cluster. A feature once seen is not checked again: during an upgrade the API
/// servers answer with different versions, and no tenant is rejected for that.
#[derive(Debug)]
pub struct ClusterCapabilities {
    has_image_volumes: AtomicBool,
}

impl ClusterCapabilities {
    /// Queries the API server.
    ///
    /// # Errors
    /// The version query fails.
    pub async fn query(client: &Client) -> kube::Result<ClusterCapabilities> {
        let version = client.apiserver_version().await?;
        tracing::info!(kubernetes = version.git_version, "queried the version of the API server");
        Ok(ClusterCapabilities { has_image_volumes: AtomicBool::new(supports_image_volumes(&version.minor)) })
    }

    /// Returns all features.
    pub fn current(&self) -> ClusterFeatures {
        ClusterFeatures { has_image_volumes: self.has_image_volumes.load(Ordering::Relaxed) }
    }

    /// Queries missing features repeatedly. When one appears, all pools are enqueued.
    pub async fn poll_until_complete(&self, client: &Client, world: &ClusterCache, queue: &WorkQueue) {
        if self.current().has_image_volumes {
            return;
        }
        loop {
            match client.apiserver_version().await {
                Ok(version) if supports_image_volumes(&version.minor) => break,
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "cannot read the version of the API server"),
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        tracing::info!("the API server supports image volumes now");
        self.has_image_volumes.store(true, Ordering::Relaxed);
        world.pool_keys().iter().for_each(|unit| queue.add(unit));
    }
}

/// `minor` is the minor version of Kubernetes 1, with a `+` suffix for vendor changes.
fn supports_image_volumes(minor: &str) -> bool {
    minor.trim_end_matches('+').parse().is_ok_and(|minor: u32| minor >= IMAGE_VOLUMES_MIN_MINOR)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use sluice_types::GpuPool;
    use tokio::time::Instant;

    use super::*;
    use crate::cache::{NamespacedName, PoolKey};

    /// An API server that returns these minor versions in order; an empty one is a failed request.
    fn versions(minors: &[&'static str]) -> Client {
        let left = Arc::new(Mutex::new(minors.to_vec()));
        let service = tower::service_fn(move |_: Request<Body>| {
            let minor = left.lock().unwrap().remove(0);
            let text = |name: &str| (name.to_owned(), json!(""));
            let names = ["gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"];
            let mut version: serde_json::Map<_, _> = names.map(text).into_iter().collect();
            version.extend([("major".to_owned(), json!("1")), ("minor".to_owned(), json!(minor))]);
            version.insert("gitVersion".into(), json!(format!("v1.{minor}.0")));
            let status = if minor.is_empty() { 500 } else { 200 };
            let body = Body::from(serde_json::to_vec(&version).unwrap());
            std::future::ready(Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap()))
        });
        Client::new(service, "default")
    }

    #[tokio::test(start_paused = true)]
    async fn cluster_upgrade_enqueues_all_pools() {
        let (world, queue) = (ClusterCache::default(), WorkQueue::default());
        let unit = PoolKey { namespace: "ns".into(), pool: "p".into() };
        let pool: GpuPool = serde_json::from_value(json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "GpuPool",
            "metadata": {"name": "p"}, "spec": {"deviceClassName": "gpu", "gpus": [{"name": "g", "count": 1}], "hostMemoryPerGPU": "1Gi"}}))
        .unwrap();
        world.pools.insert(NamespacedName::new("ns", "p"), unit, Arc::new(pool));
        let client = versions(&["35", "35", "", "36+"]);
        let abilities = ClusterCapabilities::query(&client).await.unwrap();
        assert!(!abilities.current().has_image_volumes);
        let began = Instant::now();
        abilities.poll_until_complete(&client, &world, &queue).await;
        assert_eq!(began.elapsed(), 2 * CHECK_INTERVAL, "an answer that is none changes nothing");
        assert!(abilities.current().has_image_volumes);
        assert_eq!(queue.len(), 1, "its pool is looked at");
    }

    #[test]
    fn vendor_version_suffix_is_parsed() {
        let can = ["35", "35+", "36", "36+", "136", "", "x"].map(supports_image_volumes);
        assert_eq!(can, [false, false, true, true, true, false, false]);
    }
}
