//! A bucket with the API that `sluice-sidecar` uses: a list, and each object, complete or as a range; only for
//! requests signed with its key.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use sluice_e2e::hub::{part, read, serve};

use super::signature::Signer;

/// The key with read access.
pub const READER: Signer = Signer { key: "AKIDTESTS", secret: "a secret of tests" };
/// Prefix of the model's objects.
pub const PREFIX: &str = "models/story";

type Objects = Arc<BTreeMap<String, Bytes>>;

/// Serves the files of `folder` at a free port of `address`. Returns its endpoint.
pub fn start(address: &str, folder: &Path) -> String {
    let files = read(folder).into_iter();
    let objects: Objects = Arc::new(files.map(|(name, bytes)| (format!("{PREFIX}/{name}"), bytes)).collect());
    serve(address, Router::new().fallback(answer).with_state(objects), std::future::pending::<()>())
}

async fn answer(State(objects): State<Objects>, request: Request) -> Response {
    if !READER.signed(&request) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let path = request.uri().path();
    if path == "/bucket/" || path == "/bucket" {
        return list(&objects).into_response();
    }
    let object = path.strip_prefix("/bucket/").and_then(|key| objects.get(key));
    object.map_or(StatusCode::NOT_FOUND.into_response(), |bytes| part(bytes, request.headers()))
}

fn list(objects: &Objects) -> String {
    let object = |(key, bytes): (&String, &Bytes)| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>&quot;{}&quot;</ETag><Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
            bytes.len(),
            bytes.len()
        )
    };
    let contents: String = objects.iter().map(object).collect();
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\
         <ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Name>bucket</Name><Prefix>{PREFIX}/</Prefix>\
         <MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>"
    )
}
