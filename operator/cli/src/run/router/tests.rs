//! The router before servers of the test.

use axum::routing::post;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;

use super::*;

/// A server that answers by `router`; ends with the test's runtime.
async fn server(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A model that answers with its name and the request.
fn echo_model(name: &'static str) -> Router {
    let asked = async move |headers: HeaderMap, body: String| {
        let key = headers.get(header::AUTHORIZATION).map(|key| key.to_str().unwrap().to_owned());
        Json(json!({"by": name, "asked": body, "key": key}))
    };
    let list = async move || Json(json!({"object": "list", "data": [{"id": name}]}));
    let one = async move |Path(id): Path<String>| Json(json!({"id": id, "by": name}));
    let busy = async || (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")], "busy");
    Router::new()
        .route("/v1/completions", post(asked))
        .route("/v1/chat/completions", post(busy))
        .route("/v1/models", get(list))
        .route("/v1/models/{*id}", get(one))
        .route("/version", get(async move || name))
}

/// A router before `models`, some of which load.
async fn routed(models: &[(&str, Option<SocketAddr>)]) -> (String, Routes) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let routes = Routes::new(models.iter().map(|(name, _)| (*name).to_owned())).unwrap();
    served(routes, models).await
}

async fn served(routes: Routes, models: &[(&str, Option<SocketAddr>)]) -> (String, Routes) {
    models.iter().for_each(|(name, at)| at.iter().for_each(|at| routes.set(name, *at)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(routes.clone().serve(listener, std::future::pending()));
    (url, routes)
}

async fn two_models() -> (String, Routes) {
    let (a, b) = (server(echo_model("a")).await, server(echo_model("org/b")).await);
    routed(&[("a", Some(a)), ("org/b", Some(b)), ("c", None)]).await
}

async fn post_json(url: &str, path: &str, body: String) -> (StatusCode, HeaderMap, Value) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = http.post(format!("{url}{path}")).header("content-type", "application/json");
    let answer = request.bearer_auth("k").body(body).send().await.unwrap();
    let (status, headers) = (answer.status(), answer.headers().clone());
    let text = answer.text().await.unwrap();
    (status, headers, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

async fn get_json(url: &str, path: &str) -> (StatusCode, Value) {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = http.get(format!("{url}{path}")).send().await.unwrap();
    let (status, text) = (answer.status(), answer.text().await.unwrap());
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

#[tokio::test]
async fn a_request_is_forwarded_unchanged_to_the_model_that_its_body_names() {
    let (url, _) = two_models().await;
    for name in ["a", "org/b"] {
        let body = format!(r#"{{"prompt": "x",  "model": "{name}"}}"#);
        let (status, _, answer) = post_json(&url, "/v1/completions", body.clone()).await;
        assert_eq!(
            (status, &answer),
            (StatusCode::OK, &json!({"by": name, "asked": body, "key": "Bearer k"}))
        );
    }
}

#[tokio::test]
async fn errors_of_a_model_are_forwarded_with_their_headers() {
    let (url, _) = two_models().await;
    let (status, headers, answer) = post_json(&url, "/v1/chat/completions", r#"{"model": "a"}"#.into()).await;
    assert_eq!((status, answer), (StatusCode::TOO_MANY_REQUESTS, json!("busy")));
    assert_eq!(headers["retry-after"], "1");
}

#[tokio::test]
async fn an_unknown_model_is_404_in_openais_form_with_the_names_that_exist() {
    let (url, _) = two_models().await;
    let (status, _, answer) = post_json(&url, "/v1/completions", r#"{"model": "gpt"}"#.into()).await;
    let message = "the model `gpt` does not exist; the models here are `a`, `c`, `org/b`";
    let error = json!({"message": message, "type": "invalid_request_error", "param": "model", "code": "model_not_found"});
    assert_eq!((status, answer), (StatusCode::NOT_FOUND, json!({"error": error})));
    let (status, answer) = get_json(&url, "/v1/models/gpt").await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::NOT_FOUND, &json!("model_not_found")));
}

#[tokio::test]
async fn a_body_that_names_no_model_is_400_unless_there_is_only_one() {
    let (url, _) = two_models().await;
    for body in ["{", "[]", "{}", r#"{"model": 3}"#] {
        let (status, _, answer) = post_json(&url, "/v1/completions", body.into()).await;
        assert_eq!((status, &answer["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("model")), "{body}");
    }
    let (only, _) = routed(&[("a", Some(server(echo_model("a")).await))]).await;
    assert_eq!(post_json(&only, "/v1/completions", "{}".into()).await.2["by"], "a");
    assert_eq!(get_json(&only, "/version").await, (StatusCode::OK, json!("a")));
    assert_eq!(get_json(&url, "/version").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn models_are_listed_together_and_one_by_one() {
    let (url, routes) = two_models().await;
    assert_eq!(
        get_json(&url, "/v1/models").await.1,
        json!({"object": "list", "data": [{"id": "a"}, {"id": "org/b"}]})
    );
    assert_eq!(get_json(&url, "/v1/models/org/b").await.1, json!({"id": "org/b", "by": "org/b"}));
    let (status, headers, answer) = post_json(&url, "/v1/completions", r#"{"model": "c"}"#.into()).await;
    assert_eq!(
        (status, answer["error"]["message"].as_str()),
        (StatusCode::SERVICE_UNAVAILABLE, Some("the model `c` is loading"))
    );
    assert_eq!(headers["retry-after"], RETRY_SECONDS);
    assert_eq!(get_json(&url, "/ready").await.0, StatusCode::SERVICE_UNAVAILABLE);
    routes.set("c", server(echo_model("c")).await);
    assert_eq!(get_json(&url, "/ready").await.0, StatusCode::OK);
    assert_eq!(post_json(&url, "/v1/completions", r#"{"model": "c"}"#.into()).await.2["by"], "c");
}

#[tokio::test]
async fn a_model_that_cannot_be_reached_is_503() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = listener.local_addr().unwrap();
    drop(listener);
    let (url, _) = routed(&[("a", Some(gone))]).await;
    let (status, headers, answer) = post_json(&url, "/v1/completions", r#"{"model": "a"}"#.into()).await;
    assert_eq!(
        (status, headers["retry-after"].as_bytes()),
        (StatusCode::SERVICE_UNAVAILABLE, RETRY_SECONDS.as_bytes())
    );
    assert_eq!(answer["error"]["type"], "service_unavailable");
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_413_and_one_at_the_limit_goes_through() {
    let (url, _) = routed(&[(
        "a",
        Some(server(echo_model("a").layer(axum::extract::DefaultBodyLimit::disable())).await),
    )])
    .await;
    let body = |bytes: usize| format!(r#"{{"model":"a","x":"{}"}}"#, "x".repeat(bytes - 20));
    assert_eq!(body(100).len(), 100);
    assert_eq!(post_json(&url, "/v1/completions", body(MAX_BODY_BYTES)).await.0, StatusCode::OK);
    let (status, _, answer) = post_json(&url, "/v1/completions", body(MAX_BODY_BYTES + 1)).await;
    assert_eq!(
        (status, &answer["error"]["type"]),
        (StatusCode::PAYLOAD_TOO_LARGE, &json!("invalid_request_error"))
    );
}

#[tokio::test]
async fn incomplete_bodies_get_408_and_later_requests_are_answered() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut routes = Routes::new(std::iter::once("a".to_owned())).unwrap();
    routes.body_timeout = Duration::from_millis(500);
    let model = server(echo_model("a")).await;
    let (url, _) = served(routes, &[("a", Some(model))]).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let stalled = || {
        let body = reqwest::Body::wrap_stream(stream::pending::<Result<Bytes, std::io::Error>>());
        tokio::spawn(http.post(format!("{url}/v1/completions")).body(body).send())
    };
    let all: Vec<_> = (0..MAX_BUFFERED_KIB / MAX_BODY_KIB).map(|_| stalled()).collect();
    let (status, _, _) = post_json(&url, "/v1/completions", r#"{"model": "a"}"#.into()).await;
    assert_eq!(status, StatusCode::OK);
    for one in all {
        assert_eq!(one.await.unwrap().unwrap().status(), StatusCode::REQUEST_TIMEOUT);
    }
}

#[tokio::test]
async fn buffered_bodies_of_waiting_requests_are_bounded() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut routes = Routes::new(["a".to_owned(), "b".to_owned()].into_iter()).unwrap();
    routes.buffer_permits = Arc::new(Semaphore::new(8));
    let (arrived, mut arrivals) = mpsc::unbounded_channel::<()>();
    let hung = async move || {
        arrived.send(()).unwrap();
        std::future::pending::<StatusCode>().await
    };
    let (a, b) =
        (server(Router::new().route("/v1/completions", post(hung))).await, server(echo_model("b")).await);
    let (url, _) = served(routes, &[("a", Some(a)), ("b", Some(b))]).await;
    let body = |name: &str| format!(r#"{{"model":"{name}","x":"{}"}}"#, "x".repeat(4000));
    let waiting = [0, 1].map(|_| {
        tokio::spawn({
            let (url, body) = (url.clone(), body("a"));
            async move { post_json(&url, "/v1/completions", body).await }
        })
    });
    for _ in &waiting {
        arrivals.recv().await.unwrap();
    }
    let third = post_json(&url, "/v1/completions", body("b"));
    tokio::pin!(third);
    tokio::time::timeout(Duration::from_millis(300), &mut third)
        .await
        .expect_err("there is no memory for it");
    waiting[0].abort();
    let (status, _, answer) =
        tokio::time::timeout(Duration::from_secs(60), third).await.expect("a body has gone");
    assert_eq!((status, &answer["by"]), (StatusCode::OK, &json!("b")));
    waiting[1].abort();
}

#[tokio::test]
async fn a_model_that_hangs_is_missing_from_the_list() {
    let hung = async || std::future::pending::<StatusCode>().await;
    let (a, b) = (server(Router::new().route("/v1/models", get(hung))).await, server(echo_model("b")).await);
    let (url, _) = routed(&[("a", Some(a)), ("b", Some(b))]).await;
    let list =
        tokio::time::timeout(Duration::from_secs(60), get_json(&url, "/v1/models")).await.expect("it ends");
    assert_eq!(list.1, json!({"object": "list", "data": [{"id": "b"}]}));
}

#[tokio::test]
async fn each_piece_of_a_stream_is_forwarded_at_once_and_a_client_that_disconnects_cancels_it() {
    let (pieces, made) = mpsc::unbounded_channel::<&'static str>();
    let made = Arc::new(tokio::sync::Mutex::new(Some(made)));
    let stream = async move || {
        let made = made.lock().await.take().unwrap();
        let pieces = stream::unfold(made, async |mut made| {
            made.recv().await.map(|piece| (Ok::<_, std::io::Error>(piece), made))
        });
        ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(pieces))
    };
    let model = server(Router::new().route("/v1/completions", post(stream))).await;
    let (url, _) = routed(&[("a", Some(model))]).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = http.post(format!("{url}/v1/completions")).body(r#"{"model": "a"}"#).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut received = answer.bytes_stream();
    for piece in ["one", "two"] {
        pieces.send(piece).unwrap();
        let read = tokio::time::timeout(Duration::from_secs(60), received.next())
            .await
            .expect("it is forwarded at once");
        assert_eq!(read.unwrap().unwrap(), piece);
    }
    drop(received);
    // The model's side of the connection is closed, which drops the receiver.
    tokio::time::timeout(Duration::from_secs(60), pieces.closed()).await.expect("the request is cancelled");
}

#[tokio::test]
async fn cross_origin_request_is_rejected() {
    let (url, _) = two_models().await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let asked = |host: &'static str| http.get(format!("{url}/v1/models/a")).header(header::HOST, host).send();
    assert_eq!(asked("rebound.example").await.unwrap().status(), StatusCode::FORBIDDEN);
    assert_eq!(asked("localhost:8000").await.unwrap().status(), StatusCode::OK);
}
