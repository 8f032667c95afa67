//! A whole node: control plane, containerd, kubelet, kube-proxy and CoreDNS, in private namespaces.
//!
//! Its network, processes and mounts are private: no port collides, and when its process 1 exits, the kernel ends
//! all of its processes. Tests run on threads that have entered its network ([`on_node`]).

mod address;
mod cgroup;
mod components;
mod init;
mod node_dirs;
mod node_layout;
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
use self::node_layout::NodeLayout;
pub use self::second_node::{SecondNode, on_two_nodes};
use super::binaries::{Binaries, skipped};
use super::child::Component;
use super::control_plane::{ControlPlane, Start, scratch};
use super::process_spawner::ProcessSpawner;
use super::wait::{eventually, within};
use super::{Api, TestResult, crds, error_text, exit_hooks, is_ci, try_api};

/// Limit from the start of the components to Ready; 4 s on two idle cores.
const READY: Duration = Duration::from_secs(120);

/// Components that are started again until a node is Ready. A component that cannot run exits more often.
const STARTUP_RESTARTS: u32 = 3;

/// Import command of `kind load image-archive` (kind 0.33, `pkg/cluster/nodeutils/util.go`).
const IMPORT: [&str; 4] = ["images", "import", "--all-platforms", "--digests"];

/// A node and its cluster.
pub struct ClusterNode {
    api: Api,
    /// `None`: a node of an external cluster.
    own: Option<Own>,
}

/// A node of ours.
struct Own {
    layout: NodeLayout,
    spawner: ProcessSpawner,
    network: File,
    running: Arc<Mutex<Running>>,
}

/// Processes and folders that are removed at exit.
#[derive(Default)]
struct Running {
    components: BTreeMap<&'static str, Component>,
    cgroup: Option<Cgroup>,
    folder: Option<TempDir>,
}

/// Runs a test with the node of this test binary, on a thread in the node's network: clients, and commands that the
/// test starts, reach pods and Services. The first call starts the node, and it ends with the process.
///
/// Without root or binaries the test is skipped and the reason is printed; without root it fails in CI. With
/// `SLUICE_KUBECONFIG` the node is the cluster of that file.
///
/// # Panics
/// If the node does not start (every test then panics at once with the same message), or if the test panics.
pub fn on_node(test: impl AsyncFnOnce(&'static ClusterNode) + Send + 'static) {
    let _shared = NODE_LOCK.read().unwrap_or_else(PoisonError::into_inner);
    run(test);
}

/// Same as [`on_node`], but no other test of the binary runs at the same time: for tests that disturb the node.
///
/// # Panics
/// Same as [`on_node`].
pub fn on_node_exclusive(test: impl AsyncFnOnce(&'static ClusterNode) + Send + 'static) {
    let _exclusive = NODE_LOCK.write().unwrap_or_else(PoisonError::into_inner);
    run(test);
}

/// Tests read-lock the node to share it and write-lock it to run alone.
static NODE_LOCK: RwLock<()> = RwLock::new(());

/// Returns the node of this test binary.
fn shared() -> Option<&'static ClusterNode> {
    static SHARED: OnceLock<TestResult<ClusterNode>> = OnceLock::new();
    try_api(SHARED.get_or_init(|| thread::spawn(start).join().map_err(error_text)))
}

fn run(test: impl AsyncFnOnce(&'static ClusterNode) + Send + 'static) {
    let Some(node) = shared() else { return };
    let in_network = spawn_with_same_binaries(move || {
        node.enter();
        runtime().block_on(test(node));
    });
    if let Err(panic) = in_network.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Spawns a thread with the name of this thread, which is the test's name: for skip lines and panic messages.
fn spawn_with_same_binaries(work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let name = thread::current().name().unwrap_or("on a node").to_owned();
    thread::Builder::new().name(name).spawn(work).expect("a thread starts")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Returns the reason to skip without a node or an image of the product.
///
/// # Panics
/// In CI: a run without pods must not pass unnoticed.
fn missing(why: &'static str) -> &'static str {
    assert!(!is_ci(), "{why}; SLUICE_TIER=api leaves these tests out");
    why
}

fn start() -> Result<ClusterNode, &'static str> {
    if super::given_kubeconfig().is_some() {
        return runtime().block_on(super::start()).map(|api| ClusterNode { api, own: None });
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
        Ok(spawner) => Ok(Own::start(binaries, spawner)),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(missing("a node needs namespaces of its own, which this root may not make"))
        }
        Err(error) => panic!("namespaces for a node: {error}"),
    }
}

impl Own {
    /// Starts all components in the namespaces of `spawner`.
    fn start(binaries: Binaries, spawner: ProcessSpawner) -> ClusterNode {
        let own = Own::prepare(binaries, spawner, NodeDirs::First, Cgroup::make);
        own.inside(async || own.start_components().await).into_node(own)
    }

    /// Creates a node's namespaces, folder and cgroup. Only process 1 runs.
    fn prepare(
        binaries: Binaries,
        spawner: ProcessSpawner,
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
        let init = init::start(&spawner, &folder, place);
        let network = format!("/proc/{}/ns/net", init.pid());
        let network = File::open(&network).unwrap_or_else(|e| panic!("{network}: {e}"));
        {
            let mut running = lock(&running);
            running.components.insert("init", init);
            running.cgroup = Some(cgroup);
            running.folder = Some(temporary);
        }
        Own { layout: NodeLayout { dirs: place, binaries, folder }, spawner, network, running }
    }

    /// Runs `work` on a new thread in the node's network. This thread stays in its own network.
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
        self.add("containerd", components::containerd(&self.layout));
        let start = Start {
            binaries: &self.layout.binaries,
            spawner: &self.spawner,
            folder: &self.layout.folder,
            node: Some(self.layout.dirs.address()),
        };
        let (plane, [apiserver, etcd]) = ControlPlane::start_as(&start).await;
        {
            let mut running = lock(&self.running);
            running.components.insert("kube-apiserver", apiserver);
            running.components.insert("etcd", etcd);
        }
        for (name, command) in components::of_control_plane(&self.layout, &plane) {
            self.add(name, command);
        }
        self.start_node(&plane).await;
        self.add("coredns", components::coredns(&self.layout, &plane));
        Started { plane }
    }

    /// Starts the components that run on every node, once containerd is ready.
    async fn start_node(&self, plane: &ControlPlane) {
        eventually("containerd", async || {
            self.ctr(&["version"]).output().ok()?.status.success().then_some(())
        })
        .await;
        self.import(&self.layout.binaries.path("pause.tar"));
        let cgroup = lock(&self.running).cgroup.as_ref().expect("it was made first").name().to_owned();
        for (name, command) in components::of_node(&self.layout, plane, &cgroup) {
            self.add(name, command);
        }
    }

    fn add(&self, name: &'static str, command: Command) {
        let component = Component::start(&self.spawner, name, command, &self.layout.folder);
        lock(&self.running).components.insert(name, component);
    }

    /// Waits until the node is Ready and takes pods, which shows that controllers run: one of them removes the taint of
    /// a new node.
    async fn ready(&self, api: &Api) {
        let nodes = kube::Api::<NodeObject>::all(api.client().await);
        let mut restarts = STARTUP_RESTARTS;
        within(READY, "a node that is Ready and without taints", async || {
            self.revive_components(&mut restarts);
            let node = nodes.get_opt(self.layout.dirs.name()).await.ok()??;
            let is_tainted = node.spec?.taints.is_some_and(|taints| !taints.is_empty());
            let conditions = node.status?.conditions?;
            let is_ready = conditions.iter().any(|one| one.type_ == "Ready" && one.status == "True");
            (is_ready && !is_tainted).then_some(())
        })
        .await;
    }

    /// Starts components again that have exited, as a kubelet does for those of a control plane. A controller manager
    /// exits if the API server resets one of its first connections.
    ///
    /// # Panics
    /// If one exits and no restart is left.
    fn revive_components(&self, restarts: &mut u32) {
        for component in lock(&self.running).components.values_mut() {
            if *restarts > 0 && component.has_exited() {
                *restarts -= 1;
                component.restart(&self.spawner);
            }
            component.assert_alive();
        }
    }

    /// Returns a `ctr` command, with the node's mounts.
    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.layout.binaries.path("ctr"));
        let socket = self.layout.folder.join("run/containerd/containerd.sock");
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

/// Result of starting the components.
struct Started {
    plane: ControlPlane,
}

impl Started {
    fn into_node(self, own: Own) -> ClusterNode {
        let api = Api {
            kubeconfig: self.plane.admin(),
            kubectl: Some(own.layout.binaries.kubectl()),
            own: Some(self.plane),
        };
        let node = ClusterNode { api, own: Some(own) };
        let own = node.own.as_ref().expect("just given");
        own.inside(async || {
            crds::establish(&node.api.client().await).await;
            own.ready(&node.api).await;
        });
        node
    }
}

impl ClusterNode {
    /// The cluster's API server.
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// Moves this thread and its future child processes into the node's network.
    pub fn enter(&self) {
        if let Some(own) = &self.own {
            own.enter();
        }
    }

    /// Returns the image `name` of the product (`sidecar`, `engine`, ...), loaded from the archives of `cargo xtask
    /// image` in the folder that `SLUICE_IMAGES` names. Without that folder, prints the reason and returns `None`.
    /// An external cluster must have the image already.
    ///
    /// # Panics
    /// If the archive is missing or containerd rejects it; in CI without the folder.
    pub fn image(&self, name: &str) -> Option<String> {
        let version = env!("CARGO_PKG_VERSION");
        if self.own.is_some() {
            self.import(&archive(name)?);
        }
        Some(format!("sluice.dev/{name}:{version}"))
    }

    /// Loads an image from an OCI archive. On an external cluster it runs the command of `SLUICE_LOAD_IMAGE` with
    /// the archive as last argument; without that variable it prints the reason and returns `None`.
    ///
    /// # Panics
    /// If the import fails.
    pub fn import(&self, archive: &Path) -> Option<()> {
        match &self.own {
            Some(own) => own.import(archive),
            None => load_by_command(archive)?,
        }
        Some(())
    }

    /// Returns the value of `SLUICE_LOAD_IMAGE` with which another process that has this node's kubeconfig loads
    /// images.
    ///
    /// # Panics
    /// On an external cluster.
    pub fn load_command(&self) -> String {
        let own = self.own.as_ref().expect("images of our own node alone are loaded here");
        let ctr = own.ctr(&IMPORT);
        let words = std::iter::once(ctr.get_program()).chain(ctr.get_args());
        words.map(|word| word.to_str().expect("UTF-8")).collect::<Vec<_>>().join(" ")
    }

    /// Adds another name to a loaded image.
    ///
    /// # Panics
    /// On an external cluster, or if the image does not exist.
    pub fn tag(&self, image: &str, name: &str) {
        let own = self.own.as_ref().expect("images of our own node alone get names");
        let output = own.ctr(&["images", "tag", "--force", image, name]).output().expect("ctr starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{image} is not called {name}: {said}");
    }

    /// Sends a signal to a component: `etcd`, `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`,
    /// `containerd`, `kubelet`, `kube-proxy`, `coredns`.
    ///
    /// # Panics
    /// If no component has that name.
    pub fn signal(&self, component: &str, signal: Signal) {
        let own = self.own.as_ref().expect("components of our own node alone get signals");
        let running = lock(&own.running);
        running
            .components
            .get(component)
            .unwrap_or_else(|| panic!("no component {component}"))
            .signal(signal);
    }

    /// Kills a component and starts it again, as a supervisor would.
    ///
    /// # Panics
    /// If no component has that name, or it does not start.
    pub fn restart(&self, component: &str) {
        let own = self.own.as_ref().expect("components of our own node alone are restarted");
        let mut running = lock(&own.running);
        let running = running.components.get_mut(component);
        running.unwrap_or_else(|| panic!("no component {component}")).restart(&own.spawner);
    }

    /// Returns the last lines of a component's log; empty on an external cluster.
    pub fn log(&self, component: &str) -> String {
        let Some(own) = &self.own else { return String::new() };
        lock(&own.running).components.get(component).map(Component::tail).unwrap_or_default()
    }
}

/// [`ClusterNode::import`] on an external cluster.
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

/// Returns the archive of an image of the product. Without a folder of archives, prints the reason and returns
/// `None`. Only our own node needs it. With `SLUICE_TIER=api` there is no such node.
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
    /// The kernel kills all processes of the node, pods too, with its process 1. A folder and empty cgroups remain.
    fn end(&mut self) {
        let init = self.components.remove("init");
        init.iter().for_each(|init| init.signal(Signal::KILL));
        // Process 1 exits after all others. Our own children remain to be reaped.
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
