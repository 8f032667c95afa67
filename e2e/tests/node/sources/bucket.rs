//! A bucket, as far as `sluice-sidecar` asks one: a list, and each object, whole or a range; only for who signs with its key.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Who may read.
pub const KEY: &str = "AKIDTESTS";
/// Where the model's objects are.
pub const PREFIX: &str = "models/story";

type Objects = Arc<BTreeMap<String, Vec<u8>>>;

/// Serves the files of `folder` at a free port of `address`, on a thread of its own in the network of this one. Answers its
/// endpoint.
pub fn start(address: &str, folder: &Path) -> String {
    let listener = std::net::TcpListener::bind((address, 0)).unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let object = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (format!("{PREFIX}/{name}"), std::fs::read(entry.path()).unwrap())
    };
    let objects: Objects = Arc::new(files.map(object).collect());
    let router = Router::new().fallback(answer).with_state(objects);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
    });
    endpoint
}

async fn answer(State(objects): State<Objects>, request: Request) -> Response {
    let query = request.uri().query().unwrap_or_default();
    let signed = query.contains(&format!("X-Amz-Credential={KEY}%2F")) && query.contains("X-Amz-Signature=");
    if !signed {
        return StatusCode::FORBIDDEN.into_response();
    }
    let path = request.uri().path();
    if path == "/bucket/" || path == "/bucket" {
        return list(&objects).into_response();
    }
    let object = path.strip_prefix("/bucket/").and_then(|key| objects.get(key));
    let Some(bytes) = object else { return StatusCode::NOT_FOUND.into_response() };
    let range = request.headers().get(header::RANGE).and_then(|range| range.to_str().ok());
    let Some((from, to)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
        return bytes.clone().into_response();
    };
    let last = bytes.len() - 1;
    let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap_or(last).min(last));
    if from > to {
        return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
    }
    (StatusCode::PARTIAL_CONTENT, bytes[from..=to].to_vec()).into_response()
}

fn list(objects: &Objects) -> String {
    let object = |(key, bytes): (&String, &Vec<u8>)| {
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
