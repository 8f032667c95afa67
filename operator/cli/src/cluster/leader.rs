//! A client of the operator's leader. It finds the leader by its Lease and sends requests through a forwarded port.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use sluice_wire::Overview;
use sluice_wire::overview::{PATH, PORT};

use super::{Cluster, OverviewScope};

/// Timeout of a request, including the search for the leader.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer, bytes: enough for ten thousand tenants or more.
const MAX_BODY_BYTES: usize = 256 << 20;

impl OverviewScope {
    /// Returns path and query of the request. Kubernetes names need no escaping.
    fn overview_path(&self) -> String {
        let pairs = [("namespace", &self.namespace), ("tenant", &self.tenant)];
        let given = pairs.into_iter().filter_map(|(key, value)| Some(format!("{key}={}", value.as_ref()?)));
        match given.collect::<Vec<_>>().join("&") {
            query if query.is_empty() => PATH.to_owned(),
            query => format!("{PATH}?{query}"),
        }
    }
}

/// A client with one connection, which it opens on demand and reopens after a failure.
#[derive(Debug)]
pub struct LeaderClient {
    cluster: Cluster,
    connection: Option<SendRequest<Empty<Bytes>>>,
}

impl LeaderClient {
    /// Creates a client of `cluster`'s leader. It sends no request yet.
    pub fn new(cluster: Cluster) -> LeaderClient {
        LeaderClient { cluster, connection: None }
    }

    /// Reads the leader's current overview.
    ///
    /// # Errors
    /// There is no leader, it cannot be reached, or it does not answer with an overview.
    pub async fn overview(&mut self, scope: &OverviewScope) -> anyhow::Result<Overview> {
        let asked = tokio::time::timeout(REQUEST_TIMEOUT, self.request_overview(scope)).await;
        let answer = asked.unwrap_or_else(|_| Err(anyhow!("no answer within {REQUEST_TIMEOUT:?}")));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    async fn request_overview(&mut self, scope: &OverviewScope) -> anyhow::Result<Overview> {
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let connection = self.connection.insert(connection);
        connection.ready().await?;
        let request = Request::get(scope.overview_path()).header("host", "localhost").body(Empty::new())?;
        let answer = connection.send_request(request).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_BODY_BYTES).collect().await;
        let body = body.map_err(|error| anyhow!("GET {PATH}: {error}"))?.to_bytes();
        if status != StatusCode::OK {
            bail!("GET {PATH}: {status}: {}", String::from_utf8_lossy(&body).trim());
        }
        Ok(Overview::from_json(&body)?)
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
        let namespace = &self.cluster.operator_namespace;
        let pod = self.leader_pod().await?;
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), namespace);
        let forwarded = pods.portforward(&pod, &[PORT]).await;
        let mut forwarded =
            forwarded.with_context(|| format!("cannot forward a port to pod {namespace}/{pod}"))?;
        let stream = forwarded.take_stream(PORT).context("the forwarded port was closed")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // The forwarding ends with the connection; the next request reports why it broke.
            let _ = connection.await;
            forwarded.abort();
        });
        Ok(sender)
    }

    /// Returns the pod that holds the Lease. A replica of the operator uses the name of its pod as its identity.
    async fn leader_pod(&self) -> anyhow::Result<String> {
        let (namespace, name) = (&self.cluster.operator_namespace, &self.cluster.lease);
        let leases: Api<Lease> = Api::namespaced(self.cluster.client.clone(), namespace);
        let lease =
            leases.get_opt(name).await.with_context(|| format!("cannot read Lease {namespace}/{name}"))?;
        let spec = lease.and_then(|lease| lease.spec).unwrap_or_default();
        let Some(holder) = spec.holder_identity.clone().filter(|holder| !holder.is_empty()) else {
            bail!(
                "no operator is the leader: Lease {namespace}/{name} has no holder; is the operator \
                 installed in this namespace? (--operator-namespace)"
            );
        };
        match expired_seconds(&spec, Timestamp::now().as_second()) {
            None => Ok(holder),
            Some(seconds) => {
                bail!(
                    "no operator is the leader: the last one, {holder}, has not renewed its Lease for {seconds} s"
                )
            }
        }
    }
}

/// Returns for how many seconds an expired Lease has not been renewed; `None` = it is in force, or has no expiry.
fn expired_seconds(lease: &LeaseSpec, now_unix_s: i64) -> Option<i64> {
    let silent = now_unix_s - lease.renew_time.as_ref()?.0.as_second();
    (silent > i64::from(lease.lease_duration_seconds?)).then_some(silent)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;

    #[test]
    fn scope_becomes_query_string() {
        let scope = |namespace: Option<&str>, tenant: Option<&str>| OverviewScope {
            namespace: namespace.map(Into::into),
            tenant: tenant.map(Into::into),
        };
        assert_eq!(scope(None, None).overview_path(), "/v1/overview");
        assert_eq!(scope(Some("a"), None).overview_path(), "/v1/overview?namespace=a");
        assert_eq!(scope(Some("a"), Some("b")).overview_path(), "/v1/overview?namespace=a&tenant=b");
    }

    #[test]
    fn expired_lease_has_no_leader() {
        let lease = |renewed: i64| LeaseSpec {
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        assert_eq!(expired_seconds(&lease(1000), 1015), None);
        assert_eq!(expired_seconds(&lease(1000), 1016), Some(16));
        assert_eq!(expired_seconds(&LeaseSpec::default(), 1016), None);
    }
}
