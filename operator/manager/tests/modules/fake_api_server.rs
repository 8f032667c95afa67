//! A fake API server that keeps objects in memory and executes the operator's requests.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// Objects by path, and the requests as method and path.
#[derive(Default)]
pub struct ServerState {
    pub objects: BTreeMap<String, Value>,
    pub requests: Vec<(Method, String)>,
    version: u64,
}

#[derive(Clone, Default)]
pub struct FakeApiServer(pub Arc<Mutex<ServerState>>);

impl FakeApiServer {
    pub fn client(&self) -> Client {
        let kept = self.0.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let kept = kept.clone();
            async move {
                let (parts, body) = request.into_parts();
                let text = body.collect_bytes().await.unwrap();
                let apply = parts
                    .headers
                    .get("content-type")
                    .is_some_and(|kind| kind.to_str().unwrap().contains("apply"));
                let (status, answer) =
                    kept.lock().unwrap().handle(&parts.method, parts.uri.path(), &text, apply);
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }

    pub fn requests(&self) -> Vec<(Method, String)> {
        std::mem::take(&mut self.0.lock().unwrap().requests)
    }

    pub fn object(&self, path: &str) -> Value {
        self.0.lock().unwrap().objects[path].clone()
    }

    pub fn put(&self, path: &str, object: Value) {
        self.0.lock().unwrap().objects.insert(path.to_owned(), object);
    }
}

impl ServerState {
    fn handle(&mut self, method: &Method, path: &str, text: &[u8], apply: bool) -> (StatusCode, Value) {
        self.requests.push((method.clone(), path.to_owned()));
        let sent: Value = serde_json::from_slice(text).unwrap_or(Value::Null);
        let there = self.objects.get(path).cloned();
        match (method.as_str(), there) {
            ("GET", Some(object)) => (StatusCode::OK, object),
            ("GET", None) | ("DELETE", None) => status(StatusCode::NOT_FOUND, "NotFound"),
            ("DELETE", Some(object)) => {
                self.objects.remove(path);
                (StatusCode::OK, object)
            }
            ("POST", _) => {
                let path = format!("{path}/{}", sent["metadata"]["name"].as_str().unwrap());
                if self.objects.contains_key(&path) {
                    return status(StatusCode::CONFLICT, "AlreadyExists");
                }
                (StatusCode::CREATED, self.store(&path, sent))
            }
            ("PUT", Some(object)) => {
                if sent["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    return status(StatusCode::CONFLICT, "Conflict");
                }
                (StatusCode::OK, self.store(path, sent))
            }
            ("PATCH", _) if apply => (StatusCode::OK, self.store(path, sent)),
            ("PATCH", Some(mut object)) => {
                if sent["metadata"]["resourceVersion"] != object["metadata"]["resourceVersion"] {
                    return status(StatusCode::CONFLICT, "Conflict");
                }
                for (key, value) in sent["data"].as_object().unwrap() {
                    match value {
                        Value::Null => drop(object["data"].as_object_mut().unwrap().remove(key)),
                        value => object["data"][key] = value.clone(),
                    }
                }
                (StatusCode::OK, self.store(path, object))
            }
            other => panic!("{other:?} {path}"),
        }
    }

    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }
}

fn status(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code.as_u16()});
    (code, status)
}
