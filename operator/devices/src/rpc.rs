//! gRPC over Unix sockets: serves both services that the kubelet calls, and has the client that probes and tests use.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;

use crate::proto::{
    Claims, DRA_SERVICE, InfoRequest, NodePrepareResourcesResponse, NodeUnprepareResourcesResponse,
    PluginInfo, REGISTRATION_SERVICE, RegistrationStatus, RegistrationStatusResponse,
};

/// Prepares claims on this node.
pub trait Plugin: Send + Sync + 'static {
    /// Prepares each claim or returns the reason why not. The kubelet repeats the call for claims that are already
    /// prepared.
    fn prepare(&self, claims: Claims) -> impl Future<Output = NodePrepareResourcesResponse> + Send;

    /// Undoes [`Plugin::prepare`]. The kubelet repeats the call for claims that are already unprepared.
    fn unprepare(&self, claims: Claims) -> impl Future<Output = NodeUnprepareResourcesResponse> + Send;
}

/// Registers a plugin with the kubelet.
pub trait Registrar: Send + Sync + 'static {
    /// Returns the plugin's description.
    fn info(&self) -> PluginInfo;

    /// Receives the result of the registration from the kubelet.
    fn registered(&self, status: RegistrationStatus);
}

type ResponseFuture = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// The service `DRAPlugin`.
pub struct DraService<P>(Arc<P>);

/// The service `Registration`.
pub struct RegistrationService<R>(Arc<R>);

impl<P> DraService<P> {
    /// Serves `plugin`.
    pub fn new(plugin: Arc<P>) -> Self {
        DraService(plugin)
    }
}

impl<R> RegistrationService<R> {
    /// Serves `registrar`.
    pub fn new(registrar: Arc<R>) -> Self {
        RegistrationService(registrar)
    }
}

impl<P> Clone for DraService<P> {
    fn clone(&self) -> Self {
        DraService(Arc::clone(&self.0))
    }
}

impl<R> Clone for RegistrationService<R> {
    fn clone(&self) -> Self {
        RegistrationService(Arc::clone(&self.0))
    }
}

impl<P> NamedService for DraService<P> {
    const NAME: &'static str = DRA_SERVICE;
}

impl<R> NamedService for RegistrationService<R> {
    const NAME: &'static str = REGISTRATION_SERVICE;
}

impl<P: Plugin> Service<http::Request<Body>> for DraService<P> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        let plugin = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match method(&request) {
                "NodePrepareResources" => {
                    unary(request, async move |claims| plugin.prepare(claims).await).await
                }
                "NodeUnprepareResources" => {
                    unary(request, async move |claims| plugin.unprepare(claims).await).await
                }
                _ => unimplemented_response(),
            })
        })
    }
}

impl<R: Registrar> Service<http::Request<Body>> for RegistrationService<R> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> ResponseFuture {
        let registrar = Arc::clone(&self.0);
        Box::pin(async move {
            Ok(match method(&request) {
                "GetInfo" => unary(request, async move |_: InfoRequest| registrar.info()).await,
                "NotifyRegistrationStatus" => {
                    let note = async move |status| {
                        registrar.registered(status);
                        RegistrationStatusResponse {}
                    };
                    unary(request, note).await
                }
                _ => unimplemented_response(),
            })
        })
    }
}

fn method(request: &http::Request<Body>) -> &str {
    request.uri().path().rsplit('/').next().unwrap_or_default()
}

fn unimplemented_response() -> http::Response<Body> {
    Status::unimplemented("no such method").into_http()
}

/// Decodes the single message of `request` and encodes the result of `call`.
async fn unary<Q, A, F, Done>(request: http::Request<Body>, call: F) -> http::Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
    F: FnOnce(Q) -> Done + Send,
    Done: Future<Output = A> + Send,
{
    let mut call = Some(call);
    let once = tower::service_fn(move |request: tonic::Request<Q>| {
        let answer = call.take().expect("a unary call has one message")(request.into_inner());
        async move { Ok::<_, Status>(Response::new(answer.await)) }
    });
    tonic::server::Grpc::new(ProstCodec::<A, Q>::default()).unary(once, request).await
}

/// A client of both services, which makes the kubelet's calls.
#[derive(Clone, Debug)]
pub struct PluginClient(Channel);

impl PluginClient {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// No process listens on the socket.
    pub async fn connect(path: &Path) -> Result<PluginClient, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))?;
        Ok(PluginClient(endpoint.connect().await?))
    }

    /// Calls `NodePrepareResources`.
    ///
    /// # Errors
    /// The call itself failed. The answer has the result of each claim.
    pub async fn prepare(&self, claims: Claims) -> Result<NodePrepareResourcesResponse, Status> {
        self.call(DRA_SERVICE, "NodePrepareResources", claims).await
    }

    /// Calls `NodeUnprepareResources`.
    ///
    /// # Errors
    /// As for [`PluginClient::prepare`].
    pub async fn unprepare(&self, claims: Claims) -> Result<NodeUnprepareResourcesResponse, Status> {
        self.call(DRA_SERVICE, "NodeUnprepareResources", claims).await
    }

    /// Calls `GetInfo`.
    ///
    /// # Errors
    /// The call failed.
    pub async fn info(&self) -> Result<PluginInfo, Status> {
        self.call(REGISTRATION_SERVICE, "GetInfo", InfoRequest {}).await
    }

    /// Calls `NotifyRegistrationStatus`.
    ///
    /// # Errors
    /// The call failed.
    pub async fn notify(&self, status: RegistrationStatus) -> Result<RegistrationStatusResponse, Status> {
        self.call(REGISTRATION_SERVICE, "NotifyRegistrationStatus", status).await
    }

    async fn call<Q, A>(&self, service: &str, method: &str, message: Q) -> Result<A, Status>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut client = tonic::client::Grpc::new(self.0.clone());
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = format!("/{service}/{method}").parse().expect("names of services and methods make a path");
        let codec = ProstCodec::<Q, A>::default();
        Ok(client.unary(tonic::Request::new(message), path, codec).await?.into_inner())
    }
}
