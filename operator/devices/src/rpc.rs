//! gRPC over Unix sockets: both services that the kubelet calls, and the calls that check them.

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
    /// Prepares each claim, or says why not. Called again for claims that are prepared already.
    fn prepare(&self, claims: Claims) -> impl Future<Output = NodePrepareResourcesResponse> + Send;

    /// Takes back what [`Plugin::prepare`] did. Called again for claims that are gone already.
    fn unprepare(&self, claims: Claims) -> impl Future<Output = NodeUnprepareResourcesResponse> + Send;
}

/// Makes a plugin known to the kubelet.
pub trait Registrar: Send + Sync + 'static {
    /// Who the plugin is.
    fn info(&self) -> PluginInfo;

    /// The kubelet says how the registration went.
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

/// Decodes the one message of `request`, and encodes what `call` makes of it.
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

/// The calling side of both services, as the kubelet has it.
#[derive(Clone, Debug)]
pub struct PluginClient(Channel);

impl PluginClient {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// Nobody listens there.
    pub async fn connect(path: &Path) -> Result<PluginClient, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", path.display()))?;
        Ok(PluginClient(endpoint.connect().await?))
    }

    /// `NodePrepareResources`.
    ///
    /// # Errors
    /// The call itself failed; what became of each claim is in the answer.
    pub async fn prepare(&self, claims: Claims) -> Result<NodePrepareResourcesResponse, Status> {
        self.call(DRA_SERVICE, "NodePrepareResources", claims).await
    }

    /// `NodeUnprepareResources`.
    ///
    /// # Errors
    /// As for [`PluginClient::prepare`].
    pub async fn unprepare(&self, claims: Claims) -> Result<NodeUnprepareResourcesResponse, Status> {
        self.call(DRA_SERVICE, "NodeUnprepareResources", claims).await
    }

    /// `GetInfo`.
    ///
    /// # Errors
    /// The call failed.
    pub async fn info(&self) -> Result<PluginInfo, Status> {
        self.call(REGISTRATION_SERVICE, "GetInfo", InfoRequest {}).await
    }

    /// `NotifyRegistrationStatus`.
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
