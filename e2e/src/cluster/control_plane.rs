//! etcd and kube-apiserver in a folder of their own, on the loopback interface.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;

use super::binaries::Binaries;
use super::certificates::{self, Authority};
use super::child::Component;
use super::wait::{PATIENCE, within};
use super::{audit, client_of, kubeconfig, last_words};

/// First address of the range of Services, under which pods reach the API server.
const SERVICES: &str = "10.96.0.0/16";
const SERVICE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// What the API server names as its own: no loopback address is taken. Of a range for examples: nobody asks it.
const ADVERTISED: &str = "192.0.2.1";
/// Somebody else may take a port between our look and the server's.
const ATTEMPTS: usize = 3;

/// A running API server with its etcd.
pub struct ControlPlane {
    folder: PathBuf,
    authority: Authority,
    server: String,
}

/// What ends with the process, in the order of its end.
struct Running {
    apiserver: Component,
    etcd: Component,
    folder: Option<TempDir>,
}

impl ControlPlane {
    /// Starts both and waits until the API server is ready. They end, and their folder goes, when this process exits.
    pub async fn start(binaries: &Binaries) -> ControlPlane {
        let temporary =
            tempfile::Builder::new().prefix("sluice-kube-").tempdir().expect("a temporary folder");
        let folder = temporary.path().to_owned();
        let authority = Authority::new(&folder);
        let mut etcd = Component::start("etcd", etcd(binaries, &folder), &folder);
        let running = Arc::new(Mutex::new(None::<Running>));
        let for_exit = Arc::clone(&running);
        last_words::at_exit(move || {
            if let Some(running) = for_exit.lock().unwrap_or_else(PoisonError::into_inner).take() {
                running.end();
            }
        });
        let (apiserver, port) = first_that_lives(binaries, &folder, &authority, &mut etcd).await;
        let all = Running { apiserver, etcd, folder: Some(temporary) };
        *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(all);
        ControlPlane { folder, authority, server: format!("https://127.0.0.1:{port}") }
    }

    /// The kubeconfig of a user who may do everything.
    pub fn admin(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// A kubeconfig of `user` of `group`.
    pub fn user(&self, user: &str, group: Option<&str>) -> PathBuf {
        let path = self.folder.join(format!("{}.kubeconfig", user.replace(['/', ':'], "-")));
        kubeconfig::write(&path, &self.server, &self.authority, &self.authority.user(user, group));
        path
    }

    /// Where the audit log lies.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }
}

impl Running {
    /// Nobody needs their data any more: killed, so that the end of a test run takes no grace period.
    fn end(mut self) {
        self.apiserver.kill();
        self.etcd.kill();
        if let Some(Err(error)) = self.folder.take().map(TempDir::close) {
            eprintln!("a folder of the API server stays behind: {error}");
        }
    }
}

fn etcd(binaries: &Binaries, folder: &Path) -> Command {
    let mut command = Command::new(binaries.path("etcd"));
    let clients = format!("unix://{}", folder.join("etcd.sock").display());
    command
        // What it advertises must be a host and a port; clients that are told the socket never ask.
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", "http://localhost:2379"])
        // It has no peers, and port 0 is one that is free.
        .args(["--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "warn", "--unsafe-no-fsync"])
        .arg("--data-dir")
        .arg(folder.join("etcd"))
        .current_dir(folder);
    command
}

async fn first_that_lives(
    binaries: &Binaries,
    folder: &Path,
    authority: &Authority,
    etcd: &mut Component,
) -> (Component, u16) {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let port = free_port();
        let server = format!("https://127.0.0.1:{port}");
        let admin = folder.join("admin.kubeconfig");
        kubeconfig::write(&admin, &server, authority, &authority.user("admin", Some("system:masters")));
        let mut apiserver =
            Component::start("kube-apiserver", apiserver(binaries, folder, authority, port), folder);
        if ready(&mut apiserver, &admin).await {
            return (apiserver, port);
        }
        etcd.assert_alive();
        last = apiserver.tail();
    }
    panic!("kube-apiserver ended {ATTEMPTS} times before it was ready; its last words:\n{last}")
}

/// Waits for `/readyz`; `false` if the server ended instead.
async fn ready(apiserver: &mut Component, admin: &Path) -> bool {
    let client = client_of(admin).await;
    within(PATIENCE, "kube-apiserver ready", async || {
        if apiserver.ended() {
            return Some(false);
        }
        let request = kube::client::Body::empty();
        let request = http::Request::get("/readyz").body(request).ok()?;
        client.send(request).await.ok().filter(|answer| answer.status().is_success()).map(|_| true)
    })
    .await
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a bound socket has an address").port()
}

fn apiserver(binaries: &Binaries, folder: &Path, authority: &Authority, port: u16) -> Command {
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let server = authority.server("kube-apiserver", &names, &[Ipv4Addr::LOCALHOST.into(), SERVICE_ADDRESS]);
    let (certificate, key) = server.write(folder, "kube-apiserver");
    let (private, public) = certificates::token_keys(folder);
    let policy = folder.join("audit-policy.json");
    std::fs::write(&policy, audit::POLICY).expect("the folder takes a file");
    let mut command = Command::new(binaries.path("kube-apiserver"));
    for (flag, path) in [
        ("tls-cert-file", certificate),
        ("tls-private-key-file", key),
        ("client-ca-file", authority.certificate_path()),
        ("service-account-key-file", public),
        ("service-account-signing-key-file", private),
        ("audit-policy-file", policy),
        ("audit-log-path", folder.join("audit.log")),
        ("cert-dir", folder.join("made")),
    ] {
        command.arg(format!("--{flag}={}", path.display()));
    }
    command
        .arg(format!("--etcd-servers=unix://{}", folder.join("etcd.sock").display()))
        .arg(format!("--secure-port={port}"))
        .arg(format!("--service-cluster-ip-range={SERVICES}"))
        .arg(format!("--advertise-address={ADVERTISED}"))
        .args(["--bind-address=127.0.0.1", "--authorization-mode=Node,RBAC", "--allow-privileged=true"])
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        // Nothing makes the service account `default` in a namespace without a controller manager.
        .args(["--enable-admission-plugins=NodeRestriction", "--disable-admission-plugins=ServiceAccount"]);
    command
}
