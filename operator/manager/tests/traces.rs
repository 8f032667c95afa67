//! Tests the traces of a running operator, as a collector receives them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use prost::Message;
use serde_json::json;
use sluice_e2e::cluster::eventually;

use super::test_namespace::TestNamespace;

/// The parts of OTLP's `ExportTraceServiceRequest` that the test reads (opentelemetry-proto, trace/v1).
#[derive(Clone, PartialEq, Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<Resource>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<Scope>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes, tag = "1")]
    trace: Vec<u8>,
    #[prost(bytes, tag = "2")]
    id: Vec<u8>,
    #[prost(bytes, tag = "4")]
    parent: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
}

type Spans = Arc<Mutex<Vec<Span>>>;

/// Starts a collector. Returns its address and the received spans.
async fn collector() -> (String, Spans) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let spans = Spans::default();
    let got = spans.clone();
    let take = async move |body: Bytes| {
        let resources = Export::decode(body).unwrap().resources.into_iter();
        let all = resources.flat_map(|resource| resource.scopes).flat_map(|scope| scope.spans);
        got.lock().unwrap().extend(all);
    };
    tokio::spawn(async move { axum::serve(listener, Router::new().route("/v1/traces", post(take))).await });
    (format!("http://{address}"), spans)
}

fn descendant_names<'a>(spans: &'a [Span], parent: &Span) -> BTreeSet<&'a str> {
    let own = spans.iter().filter(|span| span.parent == parent.id && span.trace == parent.trace);
    own.map(|span| span.name.as_str()).collect()
}

#[tokio::test]
async fn reconcile_is_traced_with_steps_and_requests() {
    let Some(stage) = TestNamespace::try_new("traces").await else { return };
    let (endpoint, spans) = collector().await;
    let operator = stage.operator("one", &["--otlp-endpoint", &endpoint]);
    stage.pool(json!({})).await;
    stage.tenant("t", json!({})).await;
    stage.inspect_ok("t", 8).await;
    stage.deployments(&[("t-0", "p-chat-0-e1")]).await;
    let steps = BTreeSet::from(["dereference", "build", "apply", "status"]);
    eventually("a look with all of its steps, and requests below two of them", async || {
        let spans = spans.lock().unwrap();
        let looks = spans.iter().filter(|span| span.name == "reconcile" && span.parent.is_empty());
        let whole = looks.filter(|look| steps.is_subset(&descendant_names(&spans, look)));
        let asks = |look: &Span, step: &str| {
            let of = spans.iter().find(|span| span.parent == look.id && span.name == step);
            of.is_some_and(|step| !descendant_names(&spans, step).is_empty())
        };
        whole.into_iter().any(|look| asks(look, "apply") && asks(look, "status")).then_some(())
    })
    .await;
    assert!(operator.terminate(), "what is left is sent, and it ends well");
}
