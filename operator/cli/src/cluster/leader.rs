//! The operator's leader: found by its Lease, asked through a forwarded port.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use sluice_wire::Overview;
use sluice_wire::overview::PORT;

use super::Cluster;

/// How long an answer may take, with finding the leader.
const PATIENCE: Duration = Duration::from_secs(10);

/// The leader, over one connection that is made when it is needed and anew after it broke.
#[derive(Debug)]
pub struct Leader {
    cluster: Cluster,
    connection: Option<SendRequest<Empty<Bytes>>>,
}

impl Leader {
    /// The leader of `cluster`'s operator; nothing is asked yet.
    pub fn of(cluster: Cluster) -> Leader {
        Leader { cluster, connection: None }
    }

    /// What it knows now.
    ///
    /// # Errors
    /// There is no leader, it cannot be reached, or it does not answer with an overview.
    pub async fn overview(&mut self) -> anyhow::Result<Overview> {
        let asked = tokio::time::timeout(PATIENCE, self.ask()).await;
        let answer = asked.unwrap_or_else(|_| Err(anyhow!("no answer within {PATIENCE:?}")));
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    async fn ask(&mut self) -> anyhow::Result<Overview> {
        let connection = match self.connection.take().filter(|connection| !connection.is_closed()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let connection = self.connection.insert(connection);
        connection.ready().await?;
        let request = Request::get("/v1/overview").header("host", "localhost").body(Empty::new())?;
        let answer = connection.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if status != StatusCode::OK {
            bail!("GET /v1/overview: {status}: {}", String::from_utf8_lossy(&body).trim());
        }
        Ok(Overview::from_json(&body)?)
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Empty<Bytes>>> {
        let namespace = &self.cluster.operator_namespace;
        let pod = self.pod().await?;
        let pods: Api<Pod> = Api::namespaced(self.cluster.client.clone(), namespace);
        let forwarded = pods.portforward(&pod, &[PORT]).await;
        let mut forwarded = forwarded.with_context(|| format!("forwarding a port to {namespace}/{pod}"))?;
        let stream = forwarded.take_stream(PORT).context("the forwarded port has no stream")?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            // The forwarding ends with the connection; why it broke is seen by whoever asks next.
            let _ = connection.await;
            forwarded.abort();
        });
        Ok(sender)
    }

    /// The pod that holds the Lease.
    async fn pod(&self) -> anyhow::Result<String> {
        let (namespace, name) = (&self.cluster.operator_namespace, &self.cluster.lease);
        let leases: Api<Lease> = Api::namespaced(self.cluster.client.clone(), namespace);
        let lease =
            leases.get_opt(name).await.with_context(|| format!("reading Lease {namespace}/{name}"))?;
        let holder = lease.and_then(|lease| lease.spec?.holder_identity).filter(|holder| !holder.is_empty());
        holder.with_context(|| {
            format!("no operator leads: Lease {namespace}/{name} has no holder; is it installed there? (--operator-namespace)")
        })
    }
}
