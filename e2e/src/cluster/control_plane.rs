//! etcd and kube-apiserver in their own folder, on the loopback interface or on a node's.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use tempfile::TempDir;

use super::binaries::Binaries;
use super::certificates::{self, Authority};
use super::child::Component;
use super::client::client_of;
use super::process_spawner::ProcessSpawner;
use super::wait::{WAIT_LIMIT, within};
use super::{audit, exit_hooks, kubeconfig};

/// Address range of Services, and its first address, under which pods reach the API server.
const SERVICES: &str = "10.96.0.0/16";
const SERVICE_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));
/// Advertised address of an API server on the loopback interface, since it refuses loopback addresses. From a range
/// for documentation: no client uses it.
const ADVERTISED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
/// Another process may take a port between our check and the bind of the server.
const ATTEMPTS: usize = 3;
/// Port of a node's API server. Its network namespace is private, so the port is free.
const NODE_PORT: u16 = 6443;

/// Inputs of a start.
pub struct Start<'a> {
    /// The binaries.
    pub binaries: &'a Binaries,
    /// Spawner of both processes.
    pub spawner: &'a ProcessSpawner,
    /// Folder for data, logs and keys.
    pub folder: &'a Path,
    /// Address of the node; `None` on the loopback interface.
    pub node: Option<IpAddr>,
}

/// A running API server with its etcd.
pub struct ControlPlane {
    folder: PathBuf,
    authority: Authority,
    server: String,
    /// Kubeconfigs of users, by name and group.
    users: Mutex<BTreeMap<(String, String), PathBuf>>,
}

/// Processes and folder, in the order of their removal at exit.
struct Running {
    both: [Component; 2],
    folder: Option<TempDir>,
}

impl ControlPlane {
    /// Starts both on the loopback interface and waits until the API server is ready. At exit, this process kills
    /// them and removes their folder.
    pub async fn start(binaries: &Binaries) -> ControlPlane {
        let temporary = scratch();
        let folder = temporary.path().to_owned();
        let running = Arc::new(Mutex::new(None::<Running>));
        let for_exit = Arc::clone(&running);
        exit_hooks::at_exit(move || {
            if let Some(running) = for_exit.lock().unwrap_or_else(PoisonError::into_inner).take() {
                running.end();
            }
        });
        let start = Start { binaries, spawner: ProcessSpawner::plain(), folder: &folder, node: None };
        let (plane, both) = ControlPlane::start_as(&start).await;
        *running.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Running { both, folder: Some(temporary) });
        plane
    }

    /// Starts both and waits until the API server is ready. Returns API server and etcd, in this order.
    pub async fn start_as(start: &Start<'_>) -> (ControlPlane, [Component; 2]) {
        let folder = start.folder.to_owned();
        let authority = Authority::new(&folder);
        let mut etcd = Component::start(start.spawner, "etcd", etcd(start), &folder);
        let (apiserver, server) = start_first_alive(start, &authority, &mut etcd).await;
        (ControlPlane { folder, authority, server, users: Mutex::default() }, [apiserver, etcd])
    }

    /// Path of the administrator's kubeconfig.
    pub fn admin(&self) -> PathBuf {
        self.folder.join("admin.kubeconfig")
    }

    /// Returns the kubeconfig of `user` in `group`; the same path at every call.
    pub fn user(&self, user: &str, group: Option<&str>) -> PathBuf {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let number = users.len();
        let entry = users.entry((user.to_owned(), group.unwrap_or_default().to_owned()));
        let path = entry.or_insert_with(|| {
            let path = self.folder.join(format!("user-{number}.kubeconfig"));
            kubeconfig::write(&path, &self.server, &self.authority, &self.authority.user(user, group));
            path
        });
        path.clone()
    }

    /// The certificate authority of this cluster.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Path of the audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.folder.join("audit.log")
    }
}

/// Creates a folder for one cluster. Its path is short because it holds sockets.
pub fn scratch() -> TempDir {
    tempfile::Builder::new().prefix("sluice-kube-").tempdir().expect("a temporary folder")
}

impl Running {
    /// Kills both: their data is not needed, and a test run must not wait for a grace period.
    fn end(mut self) {
        self.both.iter_mut().for_each(Component::kill);
        if let Some(Err(error)) = self.folder.take().map(TempDir::close) {
            eprintln!("a folder of the API server stays behind: {error}");
        }
    }
}

fn etcd(start: &Start<'_>) -> Command {
    let folder = start.folder;
    let mut command = Command::new(start.binaries.path("etcd"));
    let clients = format!("unix://{}", folder.join("etcd.sock").display());
    command
        // etcd requires an advertised host and port. Clients use the socket and never read it.
        .args(["--listen-client-urls", &clients, "--advertise-client-urls", "http://localhost:2379"])
        // The cluster has one member. Port 0 selects a free port.
        .args(["--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "warn", "--unsafe-no-fsync"])
        .arg("--data-dir")
        .arg(folder.join("etcd"))
        .current_dir(folder);
    command
}

/// Starts the API server and returns it with its address. Tries another port if it exits.
async fn start_first_alive(
    start: &Start<'_>,
    authority: &Authority,
    etcd: &mut Component,
) -> (Component, String) {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let (address, port) = match start.node {
            Some(address) => (address, NODE_PORT),
            None => (Ipv4Addr::LOCALHOST.into(), free_port()),
        };
        let server = format!("https://{address}:{port}");
        let admin = start.folder.join("admin.kubeconfig");
        kubeconfig::write(&admin, &server, authority, &authority.user("admin", Some("system:masters")));
        let command = apiserver(start, authority, port);
        let mut apiserver = Component::start(start.spawner, "kube-apiserver", command, start.folder);
        if ready(&mut apiserver, &admin).await {
            return (apiserver, server);
        }
        etcd.assert_alive();
        last = apiserver.tail();
    }
    panic!("kube-apiserver ended {ATTEMPTS} times before it was ready; its last words:\n{last}")
}

/// Waits for `/readyz`. `false` if the server exits instead.
async fn ready(apiserver: &mut Component, admin: &Path) -> bool {
    let client = client_of(admin).await;
    within(WAIT_LIMIT, "kube-apiserver ready", async || {
        if apiserver.has_exited() {
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

fn apiserver(start: &Start<'_>, authority: &Authority, port: u16) -> Command {
    let folder = start.folder;
    let advertised = start.node.unwrap_or(ADVERTISED);
    let names = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let addresses = [Ipv4Addr::LOCALHOST.into(), SERVICE_ADDRESS, advertised];
    let server = authority.server("kube-apiserver", &names, &addresses);
    let (certificate, key) = server.write(folder, "kube-apiserver");
    let (private, public) = certificates::token_keys(folder);
    let policy = folder.join("audit-policy.json");
    std::fs::write(&policy, audit::POLICY).expect("the folder takes a file");
    let mut command = Command::new(start.binaries.path("kube-apiserver"));
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
        .arg(format!("--advertise-address={advertised}"))
        .args(["--authorization-mode=Node,RBAC", "--allow-privileged=true"])
        .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
        // No log rotation: readers need the whole log.
        .arg("--audit-log-maxsize=100000")
        .arg("--enable-admission-plugins=NodeRestriction");
    match start.node {
        Some(_) => to_kubelets(&mut command, folder, authority),
        // Without a controller manager, no namespace gets the service account `default`.
        None => command.args(["--bind-address=127.0.0.1", "--disable-admission-plugins=ServiceAccount"]),
    };
    command
}

/// Sets the client certificate of the API server for kubelets and the CA of kubelets: for logs and exec.
fn to_kubelets<'a>(command: &'a mut Command, folder: &Path, authority: &Authority) -> &'a mut Command {
    let user = authority.user("kube-apiserver-kubelet-client", Some("system:masters"));
    let (certificate, key) = user.write(folder, "kubelet-client");
    command
        .arg(format!("--kubelet-client-certificate={}", certificate.display()))
        .arg(format!("--kubelet-client-key={}", key.display()))
        .arg(format!("--kubelet-certificate-authority={}", authority.certificate_path().display()))
        .arg("--kubelet-preferred-address-types=InternalIP")
}
