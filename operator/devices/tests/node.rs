//! A fake node: the folders of a kubelet, and the driver as a process that the test can stop and start again.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use sluice_devices::proto::connect;
use sluice_devices::proto::dra::dra_plugin_client::DraPluginClient;
use sluice_devices::proto::dra::{
    Claim, NodePrepareResourceResponse, NodePrepareResourcesRequest, NodePrepareResourcesResponse,
    NodeUnprepareResourcesRequest,
};
use sluice_devices::proto::pluginregistration::RegistrationStatus;
use sluice_devices::proto::pluginregistration::registration_client::RegistrationClient;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::Channel;

use crate::server::Server;

/// The driver's binary.
pub const DRIVER: &str = env!("CARGO_BIN_EXE_sluice-devices");

/// Folders that remain when the driver stops.
pub struct Node {
    folder: TempDir,
    server: Server,
}

impl Node {
    /// Creates a node that `server` serves as `one`.
    pub fn new(server: &Server) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             clusters: [{{name: c, cluster: {{server: \"{}\"}}}}]\nusers: [{{name: u, user: {{}}}}]\n",
            server.url
        );
        fs::write(folder.path().join("kubeconfig"), config).unwrap();
        Node { folder, server: server.clone() }
    }

    /// Returns the fake API server of the node.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Returns a path in the node's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the path of a claim's CDI specification.
    pub fn spec(&self, uid: &str) -> PathBuf {
        self.path(&format!("cdi/sluice.dev-claim-{uid}.json"))
    }

    /// Returns the path of the registration socket.
    pub fn registration(&self) -> PathBuf {
        self.path("kubelet/plugins_registry/sluice.dev-reg.sock")
    }

    /// Returns the path of the socket for claims.
    pub fn dra(&self) -> PathBuf {
        self.path("kubelet/plugins/sluice.dev/dra.sock")
    }

    /// Starts the driver and waits until it listens.
    pub fn start(&self, args: &[&str]) -> Running {
        let group = fs::metadata(self.folder.path()).unwrap().gid();
        self.start_by(Command::new(DRIVER), group, args)
    }

    /// As [`Node::start`], but runs the driver by `command`, which gets the driver's arguments, and with `group`.
    pub fn start_by(&self, mut command: Command, group: u32, args: &[&str]) -> Running {
        command.args(["--node-name", "one", "--http", "127.0.0.1:0", "--group", &group.to_string()]);
        command.arg("--kubelet-folder").arg(self.path("kubelet"));
        command.arg("--cdi-folder").arg(self.path("cdi")).args(args);
        command.env("KUBECONFIG", self.path("kubeconfig")).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let http = http_address(lines);
        Running { child, http, registration: self.registration(), dra: self.dra() }
    }
}

/// Returns the address in the log line of the driver's start. Copies later lines to the test's output.
fn http_address(mut lines: impl Iterator<Item = std::io::Result<String>> + Send + 'static) -> String {
    let mut said = Vec::new();
    let address = lines.by_ref().map_while(Result::ok).find_map(|line| {
        let event: Value = serde_json::from_str(&line).unwrap_or_default();
        said.push(line);
        Some(event["fields"]["http"].as_str()?.to_owned())
    });
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
    address.unwrap_or_else(|| panic!("the driver does not start: {said:#?}"))
}

/// A running driver; killed on drop.
pub struct Running {
    child: Child,
    http: String,
    registration: PathBuf,
    dra: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    /// Asks the driver to stop and waits for its exit.
    pub fn stop(mut self) -> std::process::ExitStatus {
        let pid = i32::try_from(self.child.id()).unwrap();
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(pid).unwrap(),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        self.child.wait().unwrap()
    }

    /// Connects to the registration service.
    pub async fn registrar(&self) -> RegistrationClient<Channel> {
        RegistrationClient::new(connect(&self.registration).await.unwrap())
    }

    /// Connects to the service that prepares claims.
    async fn plugin(&self) -> DraPluginClient<Channel> {
        DraPluginClient::new(connect(&self.dra).await.unwrap())
    }

    /// Reports to the driver whether the kubelet has registered it.
    pub async fn registered(&self, plugin_registered: bool) {
        let status = RegistrationStatus { plugin_registered, error: "why not".into() };
        self.registrar().await.notify_registration_status(status).await.unwrap();
    }

    /// Prepares claims of the namespace `team`, given as (name, UID).
    pub async fn prepare(&self, claims: &[(&str, &str)]) -> NodePrepareResourcesResponse {
        let request = NodePrepareResourcesRequest { claims: asked(claims) };
        self.plugin().await.node_prepare_resources(request).await.unwrap().into_inner()
    }

    /// Prepares one claim.
    pub async fn prepare_one(&self, name: &str, uid: &str) -> NodePrepareResourceResponse {
        self.prepare(&[(name, uid)]).await.claims.remove(uid).expect("an answer for the claim")
    }

    /// Unprepares one claim. Returns the error, which is empty on success.
    pub async fn unprepare(&self, name: &str, uid: &str) -> String {
        let request = NodeUnprepareResourcesRequest { claims: asked(&[(name, uid)]) };
        let answer = self.plugin().await.node_unprepare_resources(request).await.unwrap();
        answer.into_inner().claims.remove(uid).expect("an answer for the claim").error
    }

    /// Returns the status and the text of a page.
    pub async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = tokio::net::TcpStream::connect(&self.http).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, text) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), text.to_owned())
    }
}

fn asked(claims: &[(&str, &str)]) -> Vec<Claim> {
    let claim = |(name, uid): &(&str, &str)| Claim {
        namespace: "team".into(),
        uid: (*uid).into(),
        name: (*name).into(),
    };
    claims.iter().map(claim).collect()
}

/// Retries until `holds` returns true; `what` describes the condition.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), looks).await.unwrap_or_else(|_| panic!("never: {what}"));
}
