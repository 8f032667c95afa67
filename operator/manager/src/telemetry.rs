//! Log lines on standard error, and, with an endpoint, traces by OTLP over HTTP.
//!
//! A trace is one reconciliation: a span `reconcile` with the pool, its steps as children, and below them the
//! requests to the API server. Without an endpoint no spans are recorded beyond those that log lines need.

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use crate::args::{Args, LogFormat};

/// Name of the service in its traces.
const SERVICE_NAME: &str = "sluice-operator";
/// Path of OTLP's traces below an endpoint (OpenTelemetry specification, "OTLP exporter").
const TRACES_PATH: &str = "v1/traces";

/// The trace provider, which must be shut down.
#[derive(Debug)]
pub struct Telemetry(Option<SdkTracerProvider>);

impl Telemetry {
    /// Starts logging, and traces if the arguments have an endpoint. Must not be called within a runtime: the
    /// exporter has its own threads.
    ///
    /// # Errors
    /// The filter or the endpoint is invalid.
    pub fn start(args: &Args) -> anyhow::Result<Telemetry> {
        let provider =
            args.otlp_endpoint.as_deref().map(|endpoint| tracer_provider(args, endpoint)).transpose()?;
        let spans = provider.as_ref().map(|provider| span_layer(provider.tracer(SERVICE_NAME)));
        tracing_subscriber::registry().with(spans).with(log_layer(args)?).init();
        Ok(Telemetry(provider))
    }

    /// Sends all remaining spans. Blocks at most for the exporter's timeout; must not be called within a runtime.
    pub fn shutdown(self) {
        let ended = self.0.map_or(Ok(()), |provider| provider.shutdown());
        if let Err(error) = ended {
            eprintln!("sluice-operator: the last traces could not be exported: {error}");
        }
    }
}

type LogLayer = Box<dyn Layer<WithSpans> + Send + Sync>;
type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;
type WithSpans = tracing_subscriber::layer::Layered<Option<SpanLayer>, Registry>;

fn log_layer(args: &Args) -> anyhow::Result<LogLayer> {
    let filter = EnvFilter::try_new(&args.log)?;
    // By default, a failed write of a log line panics.
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).log_internal_errors(false);
    Ok(match args.log_format {
        LogFormat::Text => lines.with_ansi(false).with_filter(filter).boxed(),
        LogFormat::Json => lines.json().with_filter(filter).boxed(),
    })
}

/// Includes the operator's own spans and those of kube's requests, but not the exporter's own requests.
fn span_layer(tracer: SdkTracer) -> SpanLayer {
    let ours = Targets::new().with_target("sluice_operator", LevelFilter::INFO);
    let all = ours.with_target("kube_client", LevelFilter::DEBUG);
    tracing_opentelemetry::layer().with_tracer(tracer).with_filter(all).boxed()
}

fn tracer_provider(args: &Args, endpoint: &str) -> anyhow::Result<SdkTracerProvider> {
    let address = format!("{}/{TRACES_PATH}", endpoint.trim_end_matches('/'));
    let exporter = SpanExporter::builder().with_http().with_endpoint(address).build()?;
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource(args)).build())
}

fn resource(args: &Args) -> Resource {
    let attributes = [
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", args.identity()),
        KeyValue::new("k8s.namespace.name", args.own_namespace.clone()),
    ];
    Resource::builder().with_service_name(SERVICE_NAME).with_attributes(attributes).build()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Read as _, Write as _};
    use std::net::TcpListener;

    use clap::Parser as _;

    use super::*;

    /// Accepts one request; returns its path and its content.
    fn collector() -> (std::net::SocketAddr, std::thread::JoinHandle<(String, Vec<u8>)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let taken = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream);
            let (mut first, mut length) = (String::new(), 0);
            reader.read_line(&mut first).unwrap();
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let line = line.trim().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            (first, body)
        });
        (address, taken)
    }

    fn contains(body: &[u8], text: &str) -> bool {
        body.windows(text.len()).any(|window| window == text.as_bytes())
    }

    #[test]
    fn only_own_spans_are_exported_with_resource() {
        // The process has one crypto provider; another test may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (address, taken) = collector();
        let endpoint = format!("http://{address}/");
        let given = ["sluice-operator", "--sidecar-image", "s", "--engine-image", "e", "--identity", "me"];
        let args = Args::parse_from(given.into_iter().chain(["--otlp-endpoint", &endpoint]));
        let provider = tracer_provider(&args, &endpoint).unwrap();
        let subscriber = tracing_subscriber::registry().with(span_layer(provider.tracer(SERVICE_NAME)));
        tracing::subscriber::with_default(subscriber, || {
            tracing::info_span!(target: "sluice_operator::x", "reconcile", pool = "gh200").in_scope(|| ());
            tracing::info_span!(target: "hyper", "stranger").in_scope(|| ());
        });
        Telemetry(Some(provider)).shutdown();
        let (first, body) = taken.join().unwrap();
        assert!(first.starts_with("POST /v1/traces "), "{first}");
        for text in ["sluice-operator", "reconcile", "gh200", "service.instance.id", "me"] {
            assert!(contains(&body, text), "{text}");
        }
        assert!(!contains(&body, "stranger"));
    }
}
