//! A whole node: control plane, containerd, kubelet, kube-proxy and CoreDNS, in namespaces of its own.
//!
//! It has a network, processes and mounts that nobody else sees: no port collides, and when its process 1 ends, everything
//! ends. Tests run on threads that have entered its network ([`on_node`]).

mod address;
mod cgroup;
mod components;
mod init;
mod node_dirs;
mod second_node;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use k8s_openapi::api::core::v1::Node as NodeObject;
use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use self::cgroup::Cgroup;
use self::node_dirs::NodeDirs;
pub use self::second_node::{SecondNode, on_two_nodes};
use super::binaries::{Binaries, skipped};
use super::child::Component;
use super::control_plane::{ControlPlane, Start, scratch};
use super::process_spawner::ProcessSpawner;
use super::wait::{eventually, within};
use super::{Api, TestResult, crds, error_text, exit_hooks, is_ci, try_api};

/// From the start of its components to Ready; 4 s on two idle cores.
const READY: Duration = Duration::from_secs(120);

/// How `kind load image-archive` gives an archive to a node (kind 0.33, `pkg/cluster/nodeutils/util.go`).
const IMPORT: [&str; 4] = ["images", "import", "--all-platforms", "--digests"];

/// A node and its cluster.
pub struct Node {
    api: Api,
    /// `None`: of a cluster that somebody else runs.
    own: Option<Own>,
}

/// A node of ours.
struct Own {
    dirs: NodeDirs,
    binaries: Binaries,
    keeper: ProcessSpawner,
    folder: PathBuf,
    network: File,
    running: Arc<Mutex<Running>>,
}

/// What ends with the process.
#[derive(Default)]
struct Running {
    components: BTreeMap<&'static str, Component>,
    cgroup: Option<Cgroup>,
    folder: Option<TempDir>,
}

/// Runs a test with the node of this test binary, on a thread in the node's network: clients, and commands that the test
/// starts, reach pods and Services. The node starts at the first call and ends with the process.
///
/// Without root or binaries the test is skipped, with a line that says why; without root it fails in CI. With
/// `SLUICE_KUBECONFIG` the node is the cluster of that file.
///
/// # Panics
/// If the node does not start (then every test panics with the same words, at once), and with what the test panics with.
pub fn on_node(test: impl AsyncFnOnce(&'static Node) + Send + 'static) {
    let _beside = TURNS.read().unwrap_or_else(PoisonError::into_inner);
    run(test);
}

/// As [`on_node`], but no other test of the binary runs meanwhile: for tests that make trouble.
///
/// # Panics
/// As [`on_node`].
pub fn on_node_alone(test: impl AsyncFnOnce(&'static Node) + Send + 'static) {
    let _alone = TURNS.write().unwrap_or_else(PoisonError::into_inner);
    run(test);
}

/// Who may use the node now.
static TURNS: RwLock<()> = RwLock::new(());

/// The node of this test binary.
fn shared() -> Option<&'static Node> {
    static SHARED: OnceLock<TestResult<Node>> = OnceLock::new();
    try_api(SHARED.get_or_init(|| thread::spawn(start).join().map_err(error_text)))
}

fn run(test: impl AsyncFnOnce(&'static Node) + Send + 'static) {
    let Some(node) = shared() else { return };
    let in_network = spawn_with_same_binaries(move || {
        node.enter();
        runtime().block_on(test(node));
    });
    if let Err(panic) = in_network.join() {
        std::panic::resume_unwind(panic);
    }
}

/// A thread that is called as this one is: by the name of the test, for what is skipped there and for words of panics.
fn spawn_with_same_binaries(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let name = thread::current().name().unwrap_or("on a node").to_owned();
    thread::Builder::new().name(name).spawn(work).expect("a thread starts")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Why there is no node, or no pod of the product.
///
/// # Panics
/// In CI: no pod would have run, and nobody would notice.
fn missing(why: &'static str) -> &'static str {
    assert!(!is_ci(), "{why}; SLUICE_TIER=api leaves these tests out");
    why
}

fn start() -> Result<Node, &'static str> {
    if super::given_kubeconfig().is_some() {
        return runtime().block_on(super::start()).map(|api| Node { api, own: None });
    }
    let binaries = Binaries::named()?;
    if std::env::var_os("SLUICE_TIER").is_some_and(|tier| tier == "api") {
        return Err("SLUICE_TIER=api: no node");
    }
    if !rustix::process::geteuid().is_root() {
        return Err(missing("a node needs root: namespaces, mounts, cgroups"));
    }
    if !binaries.has("kubelet") {
        return Err(missing("SLUICE_KUBE_BIN has no kubelet: `cargo xtask kube --tier node`"));
    }
    match ProcessSpawner::isolated() {
        Ok(keeper) => Ok(Own::start(binaries, keeper)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(missing("a node needs namespaces of its own, which this root may not make"))
        }
        Err(error) => panic!("namespaces for a node: {error}"),
    }
}

impl Own {
    /// Starts everything in the namespaces of `keeper`.
    fn start(binaries: Binaries, keeper: ProcessSpawner) -> Node {
        let own = Own::prepare(binaries, keeper, NodeDirs::First, Cgroup::make);
        own.inside(async || own.start_components().await).into_node(own)
    }

    /// A node's namespaces, folder and cgroup, with nothing in them but their first process.
    fn prepare(
        binaries: Binaries,
        keeper: ProcessSpawner,
        place: NodeDirs,
        cgroup: impl FnOnce() -> Cgroup,
    ) -> Own {
        let temporary = scratch();
        let folder = temporary.path().to_owned();
        init::assert_visible(&[&folder, binaries.folder()]);
        let running = Arc::new(Mutex::new(Running::default()));
        let for_exit = Arc::clone(&running);
        exit_hooks::at_exit(move || lock(&for_exit).end());
        let cgroup = cgroup();
        let init = init::start(&keeper, &folder, place);
        let network = format!("/proc/{}/ns/net", init.pid());
        let network = File::open(&network).unwrap_or_else(|e| panic!("{network}: {e}"));
        {
            let mut running = lock(&running);
            running.components.insert("init", init);
            running.cgroup = Some(cgroup);
            running.folder = Some(temporary);
        }
        Own { dirs: place, binaries, keeper, folder, network, running }
    }

    /// Runs something on a thread of its own in the node's network: this one stays in its own.
    fn inside<T: Send>(&self, work: impl AsyncFnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter();
                runtime().block_on(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn enter(&self) {
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(self.network.as_fd(), network)
            .expect("root may enter a network of its own");
    }

    async fn start_components(&self) -> Started {
        self.add("containerd", components::containerd(self));
        let start = Start {
            binaries: &self.binaries,
            keeper: &self.keeper,
            folder: &self.folder,
            node: Some(self.dirs.address()),
        };
        let (plane, [apiserver, etcd]) = ControlPlane::start_as(&start).await;
        {
            let mut running = lock(&self.running);
            running.components.insert("kube-apiserver", apiserver);
            running.components.insert("etcd", etcd);
        }
        for (name, command) in components::of_control_plane(self, &plane) {
            self.add(name, command);
        }
        self.start_node(&plane).await;
        self.add("coredns", components::coredns(self, &plane));
        Started { plane }
    }

    /// What runs on every node, once containerd is started.
    async fn start_node(&self, plane: &ControlPlane) {
        eventually("containerd", async || {
            self.ctr(&["version"]).output().ok()?.status.success().then_some(())
        })
        .await;
        self.import(&self.binaries.path("pause.tar"));
        let cgroup = lock(&self.running).cgroup.as_ref().expect("it was made first").name().to_owned();
        for (name, command) in components::of_node(self, plane, &cgroup) {
            self.add(name, command);
        }
    }

    fn add(&self, name: &'static str, command: Command) {
        let component = Component::start(&self.keeper, name, command, &self.folder);
        lock(&self.running).components.insert(name, component);
    }

    /// Waits until the node is Ready.
    async fn ready(&self, api: &Api) {
        let nodes = kube::Api::<NodeObject>::all(api.client().await);
        within(READY, "a node that is Ready", async || {
            lock(&self.running).components.values_mut().for_each(Component::assert_alive);
            let node = nodes.get_opt(self.dirs.name()).await.ok()??;
            let conditions = node.status?.conditions?;
            conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True").then_some(())
        })
        .await;
    }

    /// `ctr`, in the node's mounts.
    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.binaries.path("ctr"));
        let socket = self.folder.join("run/containerd/containerd.sock");
        command.arg("-a").arg(socket).args(["-n", "k8s.io"]).args(arguments);
        command
    }

    fn import(&self, archive: &Path) {
        let path = archive.to_str().expect("a UTF-8 path");
        let output = self.ctr(&[&IMPORT[..], &[path]].concat()).output().expect("ctr starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{path} is not imported: {said}");
    }
}

/// What starting the components gives.
struct Started {
    plane: ControlPlane,
}

impl Started {
    fn into_node(self, own: Own) -> Node {
        let api = Api {
            kubeconfig: self.plane.admin(),
            kubectl: Some(own.binaries.kubectl()),
            own: Some(self.plane),
        };
        let node = Node { api, own: Some(own) };
        let own = node.own.as_ref().expect("just given");
        own.inside(async || {
            crds::establish(&node.api.client().await).await;
            own.ready(&node.api).await;
        });
        node
    }
}

impl Node {
    /// The cluster's API server.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Moves this thread, and what it starts from now on, into the node's network.
    pub fn enter(&self) {
        if let Some(own) = &self.own {
            own.enter();
        }
    }

    /// The image `name` of the product (`sidecar`, `engine`, ...), loaded from the archives of `cargo xtask image` in the
    /// folder that `SLUICE_IMAGES` names; `None`, with a line that says so, without that folder. A cluster that somebody
    /// else runs has it already.
    ///
    /// # Panics
    /// If the archive is missing or containerd does not take it; in CI without the folder.
    pub fn image(&self, name: &str) -> Option<String> {
        let version = env!("CARGO_PKG_VERSION");
        if self.own.is_some() {
            self.import(&archive(name)?);
        }
        Some(format!("sluice.dev/{name}:{version}"))
    }

    /// Loads an image from an OCI archive. On a cluster that somebody else runs, by the program that `SLUICE_LOAD_IMAGE` names
    /// with its arguments, and the archive as one more; `None`, with a line that says so, where it names none.
    ///
    /// # Panics
    /// If the image is not taken.
    pub fn import(&self, archive: &Path) -> Option<()> {
        match &self.own {
            Some(own) => own.import(archive),
            None => load_by_command(archive)?,
        }
        Some(())
    }

    /// What `SLUICE_LOAD_IMAGE` is to say for this node to another process that knows its kubeconfig.
    ///
    /// # Panics
    /// On a node that is not ours.
    pub fn load_command(&self) -> String {
        let own = self.own.as_ref().expect("images of our own node alone are loaded here");
        let ctr = own.ctr(&IMPORT);
        let words = std::iter::once(ctr.get_program()).chain(ctr.get_args());
        words.map(|word| word.to_str().expect("UTF-8")).collect::<Vec<_>>().join(" ")
    }

    /// Gives an image that is there another name as well.
    ///
    /// # Panics
    /// On a node that is not ours, or if it is not there.
    pub fn tag(&self, image: &str, name: &str) {
        let own = self.own.as_ref().expect("images of our own node alone get names");
        let output = own.ctr(&["images", "tag", "--force", image, name]).output().expect("ctr starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{image} is not called {name}: {said}");
    }

    /// Sends a signal to a component: `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `containerd`,
    /// `kubelet`, `kube-proxy`, `coredns`.
    ///
    /// # Panics
    /// If there is none of that name.
    pub fn signal(&self, component: &str, signal: Signal) {
        let own = self.own.as_ref().expect("components of our own node alone get signals");
        let running = lock(&own.running);
        running
            .components
            .get(component)
            .unwrap_or_else(|| panic!("no component {component}"))
            .signal(signal);
    }

    /// Kills a component and starts it again, as whoever supervises it would.
    ///
    /// # Panics
    /// If there is none of that name, or it does not start.
    pub fn restart(&self, component: &str) {
        let own = self.own.as_ref().expect("components of our own node alone are restarted");
        let mut running = lock(&own.running);
        let running = running.components.get_mut(component);
        running.unwrap_or_else(|| panic!("no component {component}")).restart(&own.keeper);
    }

    /// The last lines of a component's log; empty on a cluster that somebody else runs.
    pub fn log(&self, component: &str) -> String {
        let Some(own) = &self.own else { return String::new() };
        lock(&own.running).components.get(component).map(Component::tail).unwrap_or_default()
    }
}

/// [`Node::import`] on a cluster that somebody else runs.
fn load_by_command(archive: &Path) -> Option<()> {
    let command = std::env::var("SLUICE_LOAD_IMAGE").unwrap_or_default();
    let mut words = command.split_whitespace();
    let Some(program) = words.next() else {
        skipped("SLUICE_LOAD_IMAGE is not set: the test has an image of its own");
        return None;
    };
    let output = Command::new(program).args(words).arg(archive).output();
    let output = output.unwrap_or_else(|error| panic!("SLUICE_LOAD_IMAGE={command}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "SLUICE_LOAD_IMAGE={command} {}: {said}", archive.display());
    Some(())
}

/// The archive of an image of the product; `None`, with a line that says so, without a folder of them. Only a node of ours asks
/// for it, and with `SLUICE_TIER=api` there is none.
///
/// # Panics
/// If it is missing; in CI without a folder.
fn archive(name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("SLUICE_IMAGES").filter(|folder| !folder.is_empty()) else {
        skipped(missing("SLUICE_IMAGES is not set: `cargo xtask image` makes images"));
        return None;
    };
    let archive = PathBuf::from(folder).join(format!("{name}-{}.tar", env!("CARGO_PKG_VERSION")));
    assert!(archive.is_file(), "{} is missing: `cargo xtask image` makes it", archive.display());
    Some(archive)
}

impl Running {
    /// Process 1 takes everything of the node with it, pods too; what is left are a folder and empty cgroups.
    fn end(&mut self) {
        let init = self.components.remove("init");
        init.iter().for_each(|init| init.signal(Signal::KILL));
        // Process 1 is gone when all others are, and those that we started wait for us to notice.
        self.components.clear();
        drop(init);
        drop(self.cgroup.take());
        if let Some(Err(error)) = self.folder.take().map(TempDir::close) {
            eprintln!("a folder of the node stays behind: {error}");
        }
    }
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(PoisonError::into_inner)
}
