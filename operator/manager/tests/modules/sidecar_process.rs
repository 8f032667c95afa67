//! Tests which clients a real sidecar accepts, with a certificate that the operator issued.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method, header};
use rustls::ClientConfig;
use sluice_operator::credentials::ca::CaBundle;
use sluice_operator::credentials::issue::CertNames;
use sluice_operator::credentials::renewal::Credentials;
use sluice_operator::sidecars::PollResult;
use sluice_operator::sidecars::http_client::{SidecarAddress, Transport};
use sluice_operator::sidecars::poller::poll_once;
use sluice_operator::sidecars::pusher::{FenceCounter, PushResult, push_until_done};
use sluice_operator::sidecars::tls::client_config;
use sluice_wire::Directive;
use sluice_wire::config::SidecarRecord;
use sluice_wire::directive::Fence;
use sluice_wire::state::TenantReport;
use tokio::sync::watch;

use super::stub::{credentials, now, operator_client_config};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const CLAIM: &str = "p-chat-0-e1.uid-of-p";

fn binary(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let built = std::env::var_os("SLUICE_BIN_DIR").map(PathBuf::from);
    let path = built.unwrap_or_else(|| own.parent().unwrap().parent().unwrap().to_owned()).join(name);
    assert!(path.exists(), "{} is not built: cargo build --workspace --bins", path.display());
    path
}

/// A sidecar of `ns/story` with its engine; both are stopped on drop.
struct SidecarProcess {
    child: Child,
    folder: tempfile::TempDir,
}

impl Drop for SidecarProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl SidecarProcess {
    fn start(held: &Credentials) -> SidecarProcess {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let shape = ["--layers", "4", "--hidden", "64", "--heads", "4", "--kv-heads", "2", "--vocab", "512"];
        let made =
            Command::new(binary("sluice-model-gen")).arg("--out").arg(at("model")).args(shape).status();
        assert!(made.unwrap().success());
        write_secret(folder.path(), held);
        let free = "127.0.0.1:0";
        let tls = serde_json::json!({"cert": at("tls.crt"), "key": at("tls.key"), "client_ca": at("ca.crt"), "claim": CLAIM});
        let config = serde_json::json!({
            "namespace": "ns", "name": "story", "model_path": at("model"), "policy": "Unified",
            "gpu": {"name": "p-chat-0", "memory_bytes": 64 << 20, "chunk_bytes": 64 << 10},
            "memory": {"host_kv_bytes": 0, "max_remapped_percent": 60}, "runtime_dir": at("run"),
            "listen": {"serve": free, "admin": free, "probes": free, "admin_tls": tls},
            "engine": {"spawn": binary("sluice-engine"), "threads": 1}, "drain_seconds": 1,
        });
        std::fs::write(at("sidecar.json"), config.to_string()).unwrap();
        let mut command = Command::new(binary("sluice-sidecar"));
        let child = command.arg("--config").arg(at("sidecar.json")).process_group(0).spawn().unwrap();
        SidecarProcess { child, folder }
    }

    async fn address(&self) -> SidecarAddress {
        let file = self.folder.path().join("run/sidecar.json");
        let read_record = async {
            loop {
                let record = std::fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok());
                if let Some(SidecarRecord { admin, .. }) = record {
                    return admin;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let admin = tokio::time::timeout(TEST_TIMEOUT, read_record).await.expect("it listens");
        SidecarAddress { namespace: "ns".into(), name: "story".into(), admin_addr: admin }
    }
}

/// Writes a Secret to files, as a kubelet does for a pod.
fn write_secret(folder: &Path, held: &Credentials) {
    let files = [("tls.crt", &held.identity.cert), ("tls.key", &held.identity.key), ("ca.crt", &held.bundle)];
    files.into_iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
}

fn transport(config: Arc<ClientConfig>) -> Transport {
    Transport::new(watch::channel(Some(config)).1, Duration::from_secs(10))
}

fn directive() -> Directive {
    let golden = include_str!("../../../../crds/wire/tests/golden/directive-v2.json");
    Directive {
        peers: Vec::new(),
        fallback_order: Vec::new(),
        ..Directive::from_json(golden.as_bytes()).unwrap()
    }
}

async fn put_directive(way: &Transport, address: &SidecarAddress, directive: &Directive) -> u16 {
    let json = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    let body = serde_json::to_vec(directive).unwrap();
    let headers: HeaderMap = json.into_iter().collect();
    way.call(address, Method::PUT, "/v1/directive", headers, body).await.unwrap().status.as_u16()
}

#[tokio::test]
async fn operator_pushes_directive_and_reads_state_but_peer_cannot_push() {
    let authorities = CaBundle::generate(now()).unwrap();
    let sidecar = SidecarProcess::start(&credentials(&authorities, &CertNames::slot("ns", "story", CLAIM)));
    let address = sidecar.address().await;
    let own = transport(operator_client_config(&authorities));
    let peer = |claim: &str| {
        transport(client_config(&credentials(&authorities, &CertNames::slot("ns", "code", claim))).unwrap())
    };
    let newest = Directive { epoch: u64::MAX, ..directive() };
    assert_eq!(put_directive(&peer(CLAIM), &address, &newest).await, 403, "a peer gives no directives");
    assert_eq!(
        put_directive(&peer("p-chat-1-e1.uid-of-p"), &address, &newest).await,
        403,
        "nor does one of another GPU"
    );

    let fared = push_until_done(&own, &address, &directive(), &FenceCounter::new(7), |_| ()).await;
    assert_eq!(fared, PushResult::Accepted(Fence { epoch: 7, sequence: 1 }));
    let deposed = push_until_done(&own, &address, &directive(), &FenceCounter::new(6), |_| ()).await;
    assert_eq!(deposed, PushResult::Deposed(Fence { epoch: 7, sequence: 1 }));

    let serves = async {
        while !matches!(poll_once(&own, &address, None).await, PollResult::States(states, Some(_)) if matches!(states[0], TenantReport::State(_)))
        {
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, serves).await.expect("its state in time");
    let foreign = transport(operator_client_config(&CaBundle::generate(now()).unwrap()));
    assert!(
        matches!(poll_once(&foreign, &address, None).await, PollResult::Failed(_)),
        "of another authority"
    );
}
