//! Frequent mistakes in YAML, applied with kubectl: each is refused with a message that names the field.

use std::io::Write as _;
use std::process::Stdio;

use sluice_e2e::cluster::{self, Api};

const POOL: &str = "
apiVersion: sluice.dev/v1alpha1
kind: GpuPool
metadata:
  name: local
spec:
  deviceClassName: host.sluice.dev
  device:
    host:
      memory: 96Mi
  hostMemoryPerGPU: 400Mi
  policy: Unified
  gpus:
  - name: chat
    count: 2
";

const TENANT: &str = "
apiVersion: sluice.dev/v1alpha1
kind: ModelTenant
metadata:
  name: one
spec:
  poolRef:
    name: local
  model:
    source:
      type: HuggingFace
      huggingFace:
        repo: a/b
  memory:
    guaranteedKv: 1Gi
    kvLimit: 2Gi
  engine:
    kind: Native
  replicas: 1
";

/// A mistake: the text with `from` replaced by `to`, and parts of the message.
struct Mistake {
    text: &'static str,
    from: &'static str,
    to: &'static str,
    words: &'static [&'static str],
}

const fn mistake(
    text: &'static str,
    from: &'static str,
    to: &'static str,
    words: &'static [&'static str],
) -> Mistake {
    Mistake { text, from, to, words }
}

/// Mistakes in new objects.
const NEW: [Mistake; 14] = [
    mistake(TENANT, "guaranteedKv", "guarantedKv", &["unknown field \"spec.memory.guarantedKv\""]),
    mistake(TENANT, "replicas", "replica", &["unknown field \"spec.replica\""]),
    mistake(
        TENANT,
        "huggingFace:\n        repo: a/b",
        "s3:\n        bucket: b",
        &["spec.model.source", "exactly the field that type names must be set"],
    ),
    mistake(
        TENANT,
        "guaranteedKv: 1Gi",
        "guaranteedKv: 3Gi",
        &["spec.memory", "guaranteedKv must not exceed kvLimit"],
    ),
    mistake(TENANT, "kvLimit: 2Gi", "kvLimit: 2GB", &["spec.memory.kvLimit", "should match"]),
    mistake(TENANT, "replicas: 1", "replicas: two", &["spec.replicas", "must be of type integer"]),
    mistake(TENANT, "  poolRef:\n    name: local\n", "", &["spec.poolRef: Required value"]),
    mistake(TENANT, "name: one", "name: One.Two", &["metadata.name"]),
    mistake(POOL, "policy: Unified", "policy: Unifed", &["spec.policy", "supported values", "\"OrbitFlow\""]),
    mistake(
        POOL,
        "count: 2",
        "sharing: {mode: Spatial, temporal: {order: Priority}}",
        &["spec.gpus[0].sharing", "only the field that mode names may be set"],
    ),
    mistake(
        POOL,
        "name: chat\n    count: 2",
        "name: chat\n  - name: chat",
        &["spec.gpus[1]", "Duplicate value"],
    ),
    // The API server reports all mistakes of one stage only: unknown fields, then types and bounds, then rules.
    mistake(
        TENANT,
        "guaranteedKv: 1Gi\n    kvLimit: 2Gi",
        "guarantedKv: 1Gi\n    kvlimit: 2Gi",
        &["unknown field \"spec.memory.guarantedKv\"", "unknown field \"spec.memory.kvlimit\""],
    ),
    mistake(
        TENANT,
        "kvLimit: 2Gi\n  engine:\n    kind: Native\n  replicas: 1",
        "kvLimit: 2GB\n  engine:\n    kind: native\n  replicas: 99",
        &["spec.memory.kvLimit", "spec.engine.kind", "\"Vllm\"", "spec.replicas"],
    ),
    mistake(
        TENANT,
        "guaranteedKv: 1Gi\n    kvLimit: 2Gi\n  engine:\n    kind: Native",
        "guaranteedKv: 3Gi\n    kvLimit: 2Gi\n  engine:\n    kind: Vllm",
        &["guaranteedKv must not exceed kvLimit", "image must be set when kind is Vllm"],
    ),
];

/// Mistakes in changes of an existing tenant.
const CHANGED: [Mistake; 3] = [
    mistake(TENANT, "repo: a/b", "repo: a/c", &["spec.model", "model is immutable"]),
    mistake(TENANT, "name: local", "name: other", &["spec.poolRef", "poolRef is immutable"]),
    mistake(TENANT, "kind: Native", "kind: Vllm", &["spec", "engine.kind is immutable"]),
];

/// Runs `kubectl apply`. Returns its output, or its error output.
fn apply(server: &Api, namespace: &str, text: &str) -> Result<(), String> {
    let mut command = server.kubectl(&["-n", namespace, "apply", "-f", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(complaint) }
}

fn assert_refused(server: &Api, namespace: &str, mistakes: &[Mistake]) {
    for Mistake { text, from, to, words } in mistakes {
        assert_eq!(text.matches(from).count(), 1, "{from:?}");
        let said = apply(server, namespace, &text.replace(from, to));
        let said = said.expect_err(&format!("{to:?} in place of {from:?} was taken"));
        assert!(words.iter().all(|word| said.contains(word)), "{to:?} in place of {from:?}: {said}");
    }
}

#[tokio::test]
async fn common_mistakes_are_refused_by_field() {
    let Some(server) = cluster::api().await else { return };
    let namespace = server.namespace("mistakes").await;
    assert_refused(server, &namespace, &NEW);
    for text in [POOL, TENANT] {
        apply(server, &namespace, text).unwrap_or_else(|said| panic!("without a mistake: {said}"));
    }
    assert_refused(server, &namespace, &CHANGED);
}
