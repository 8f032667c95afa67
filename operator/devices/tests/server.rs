//! A fake API server with the parts that the driver uses: one node, claims, slices and a watch on slices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::sync::{broadcast, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;

/// A fake API server; it stops with the test's runtime.
#[derive(Clone)]
pub struct Server {
    /// Base URL of the server.
    pub url: String,
    state: Arc<ServerState>,
}

struct ServerState {
    claims: Mutex<BTreeMap<String, Value>>,
    /// Names of the claims that were read, in order.
    reads: watch::Sender<Vec<String>>,
    slices: watch::Sender<BTreeMap<String, Value>>,
    /// All events of slices. Their number is the resource version.
    log: Mutex<Vec<Value>>,
    events: broadcast::Sender<Value>,
}

impl Server {
    /// Starts a server without claims and slices.
    pub async fn start() -> Server {
        let state = Arc::new(ServerState {
            claims: Mutex::default(),
            reads: watch::Sender::default(),
            slices: watch::Sender::default(),
            log: Mutex::default(),
            events: broadcast::Sender::new(64),
        });
        let group = "/apis/resource.k8s.io/v1";
        let router = Router::new()
            .route("/api/v1/nodes/one", get(node))
            .route(&format!("{group}/namespaces/{{namespace}}/resourceclaims/{{name}}"), get(claim))
            .route(&format!("{group}/resourceslices"), any(all_slices))
            .route(&format!("{group}/resourceslices/{{name}}"), any(one_slice))
            .with_state(Arc::clone(&state));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Server { url, state }
    }

    /// Adds a claim of the namespace `team` with devices of the node `one`, given as (request, device).
    pub fn allocate(&self, name: &str, uid: &str, devices: &[(&str, &str)], config: Value) {
        let result = |(request, device): &(&str, &str)| json!({"request": request, "driver": "sluice.dev", "pool": "one", "device": device});
        let results: Vec<_> = devices.iter().map(result).collect();
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": {},
            "metadata": {"namespace": "team", "name": name, "uid": uid},
            "status": {"allocation": {"devices": {"results": results, "config": config}}},
        });
        self.state.claims.lock().unwrap().insert(name.to_owned(), claim);
    }

    /// Removes a claim.
    pub fn forget(&self, name: &str) {
        self.state.claims.lock().unwrap().remove(name).expect("a claim of that name");
    }

    /// Waits until the claim has been read `times` more times.
    pub async fn read(&self, name: &str, times: usize) {
        let mut reads = self.state.reads.subscribe();
        let count = |reads: &[String]| reads.iter().filter(|one| *one == name).count();
        let before = count(&reads.borrow());
        let found = reads.wait_for(|reads| count(reads) >= before + times);
        tokio::time::timeout(std::time::Duration::from_secs(20), found)
            .await
            .expect("no process reads it")
            .unwrap();
    }

    /// Waits until `wanted` accepts the slices, and returns them.
    pub async fn slices(
        &self,
        wanted: impl FnMut(&BTreeMap<String, Value>) -> bool,
    ) -> BTreeMap<String, Value> {
        let mut slices = self.state.slices.subscribe();
        let found = tokio::time::timeout(std::time::Duration::from_secs(20), slices.wait_for(wanted));
        found.await.expect("the slices do not become what they should be").unwrap().clone()
    }

    /// Writes or removes a slice, as another client would.
    pub fn overwrite_slice(&self, name: &str, slice: Option<Value>) {
        self.state.put(name, slice);
    }
}

impl ServerState {
    fn put(&self, name: &str, slice: Option<Value>) {
        let mut log = self.log.lock().unwrap();
        let version = json!((log.len() + 1).to_string());
        let slice = slice.map(|mut slice| {
            slice["metadata"]["resourceVersion"] = version.clone();
            slice
        });
        let mut event = json!({"type": "MODIFIED", "object": slice});
        self.slices.send_modify(|slices| {
            let old = match slice {
                Some(slice) => slices.insert(name.to_owned(), slice),
                None => slices.remove(name).inspect(|old| event["object"] = old.clone()),
            };
            match (old, event["object"].is_null()) {
                (None, _) => event["type"] = json!("ADDED"),
                (Some(_), _) if !slices.contains_key(name) => event["type"] = json!("DELETED"),
                _ => {}
            }
        });
        event["object"]["metadata"]["resourceVersion"] = version;
        log.push(event.clone());
        // Sending fails if no client watches.
        let _ = self.events.send(event);
    }
}

impl ServerState {
    /// Streams the events after `version`: first past ones, then new ones.
    fn follow(&self, version: usize) -> Response {
        let log = self.log.lock().unwrap();
        let past: Vec<_> = log[version..].iter().cloned().map(Ok).collect();
        let coming = BroadcastStream::new(self.events.subscribe());
        let line = |event: Result<Value, _>| event.map(|event| format!("{event}\n"));
        Body::from_stream(tokio_stream::iter(past).chain(coming).map(line)).into_response()
    }
}

async fn node() -> Json<Value> {
    Json(json!({
        "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
        "metadata": {"name": "one", "uid": "uid-of-one"},
    }))
}

fn not_found() -> Response {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
        "message": "not found", "metadata": {},
    });
    (StatusCode::NOT_FOUND, Json(status)).into_response()
}

async fn claim(State(world): State<Arc<ServerState>>, Path((_, name)): Path<(String, String)>) -> Response {
    let claim = world.claims.lock().unwrap().get(&name).cloned();
    world.reads.send_modify(|reads| reads.push(name));
    claim.map_or_else(not_found, |claim| Json(claim).into_response())
}

async fn all_slices(
    State(world): State<Arc<ServerState>>,
    Query(query): Query<BTreeMap<String, String>>,
    method: Method,
    body: Bytes,
) -> Response {
    assert!(
        method == Method::POST || query["fieldSelector"] == "spec.driver=sluice.dev,spec.nodeName=one",
        "the driver must look at its own slices alone: {query:?}"
    );
    if method == Method::POST {
        let slice: Value = serde_json::from_slice(&body).unwrap();
        return write(&world, slice);
    }
    if query.contains_key("watch") {
        return world.follow(query["resourceVersion"].parse().unwrap());
    }
    let log = world.log.lock().unwrap();
    let items: Vec<_> = world.slices.borrow().values().cloned().collect();
    Json(json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSliceList",
        "metadata": {"resourceVersion": log.len().to_string()}, "items": items,
    }))
    .into_response()
}

fn write(world: &ServerState, mut slice: Value) -> Response {
    slice["apiVersion"] = json!("resource.k8s.io/v1");
    slice["kind"] = json!("ResourceSlice");
    let name = slice["metadata"]["name"].as_str().unwrap().to_owned();
    world.put(&name, Some(slice.clone()));
    Json(slice).into_response()
}

async fn one_slice(
    State(world): State<Arc<ServerState>>,
    Path(name): Path<String>,
    method: Method,
    body: Bytes,
) -> Response {
    if !world.slices.borrow().contains_key(&name) {
        return not_found();
    }
    if method == Method::DELETE {
        world.put(&name, None);
        return Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success", "metadata": {}}))
            .into_response();
    }
    assert_eq!(method, Method::PUT, "{name}");
    let slice: Value = serde_json::from_slice(&body).unwrap();
    let version = world.slices.borrow()[&name]["metadata"]["resourceVersion"].clone();
    if slice["metadata"]["resourceVersion"] != version {
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 409, "reason": "Conflict",
            "message": "the object has been modified", "metadata": {},
        });
        return (StatusCode::CONFLICT, Json(status)).into_response();
    }
    write(&world, slice)
}
