//! A Kubernetes for tests: an API server with its etcd, shared by all tests of a binary.
//!
//! Every test uses its own namespace ([`Api::namespace`]). Names of cluster-scoped objects contain the name of the
//! test.

pub mod audit;
mod binaries;
mod certificates;
mod child;
mod client;
mod control_plane;
pub mod crds;
mod exit_hooks;
mod external_cluster;
mod kubeconfig;
pub mod leak_check;
pub mod network_policies;
mod node;
mod process_spawner;
mod wait;

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use kube::api::{ObjectMeta, PostParams};
use tokio::sync::OnceCell;

pub use self::binaries::{Binaries, skipped};
use self::client::client_of;
use self::control_plane::ControlPlane;
pub use self::exit_hooks::check_at_exit;
pub use self::external_cluster::mark;
pub use self::node::{ClusterNode, SecondNode, on_node, on_node_exclusive, on_two_nodes};
pub use self::process_spawner::ProcessSpawner;
pub use self::wait::{WAIT_LIMIT, eventually, polled, within};

/// An API server with the CRDs of this tree established.
pub struct Api {
    kubeconfig: PathBuf,
    kubectl: Option<PathBuf>,
    /// `None`: an external cluster (`SLUICE_KUBECONFIG`).
    own: Option<ControlPlane>,
}

/// Returns the API server of this test binary. The first call starts it, and it ends with the process. Without
/// binaries it prints the reason and returns `None`.
///
/// With `SLUICE_KUBECONFIG` it is the cluster of that file.
///
/// # Panics
/// If the server does not start. Every later call panics at once with the same message.
pub async fn api() -> Option<&'static Api> {
    static SHARED: OnceCell<TestResult<Api>> = OnceCell::const_new();
    // A panic would leave the cell empty, and every test would wait for the same failure.
    let outcome =
        SHARED.get_or_init(async || AssertUnwindSafe(start()).catch_unwind().await.map_err(error_text));
    try_api(outcome.await)
}

/// Result of a start that all tests share: the value, the reason to skip, or the message of a panic.
type TestResult<T> = Result<Result<T, &'static str>, String>;

/// Returns the started value. Otherwise prints the reason to skip, once per test.
///
/// # Panics
/// If the start panicked, with the same message.
fn try_api<T>(outcome: &TestResult<T>) -> Option<&T> {
    let started = outcome.as_ref().unwrap_or_else(|words| panic!("{words}"));
    started.as_ref().inspect_err(|why| skipped(why)).ok()
}

/// Whether this run is in CI, where a missing prerequisite is a failure and not a skip.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|set| set == "true")
}

/// Returns the message of a panic.
fn error_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no Kubernetes".to_owned())
}

async fn start() -> Result<Api, &'static str> {
    if let Some(kubeconfig) = given_kubeconfig() {
        let kubectl = Binaries::named().ok().map(|all| all.kubectl());
        let api = Api { kubeconfig, kubectl, own: None };
        external_cluster::take(&api.client().await, |arguments| api.kubectl(arguments)).await;
        return Ok(api);
    }
    let binaries = Binaries::named()?;
    let own = ControlPlane::start(&binaries).await;
    let api = Api { kubeconfig: own.admin(), kubectl: Some(binaries.kubectl()), own: Some(own) };
    crds::establish(&api.client().await).await;
    Ok(api)
}

/// Returns the kubeconfig of an external cluster.
fn given_kubeconfig() -> Option<PathBuf> {
    std::env::var_os("SLUICE_KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl Api {
    /// Path of the kubeconfig of an administrator.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// Returns a client of an administrator. Each test needs its own: a client is bound to the runtime that created
    /// it.
    pub async fn client(&self) -> Client {
        client_of(&self.kubeconfig).await
    }

    /// Whether this process started the server, so that it has an audit log and test users.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Same as [`Api::is_own`], for a test that needs our own cluster. Prints that the test is skipped if it is
    /// not.
    pub fn is_own_cluster(&self) -> bool {
        if !self.is_own() {
            skipped("an external cluster has no test users, no audit log and another network");
        }
        self.is_own()
    }

    /// Returns a kubeconfig of `user` in `group`, with the rights that RBAC grants.
    ///
    /// # Panics
    /// On an external cluster: only our own control plane signs certificates.
    pub fn kubeconfig_of(&self, user: &str, group: Option<&str>) -> PathBuf {
        self.own.as_ref().expect("users are made on our own API server alone").user(user, group)
    }

    /// Returns a client of `user` in `group`, with the rights that RBAC grants. See [`Api::kubeconfig_of`].
    pub async fn client_of(&self, user: &str, group: Option<&str>) -> Client {
        client_of(&self.kubeconfig_of(user, group)).await
    }

    /// All requests so far, with user and response. `None` on an external cluster.
    pub fn audit_log(&self) -> Option<Vec<audit::Record>> {
        self.own.as_ref().map(|own| audit::read(&own.audit_log()))
    }

    /// Path of the audit log, for incremental readers. `None` on an external cluster.
    pub fn audit_log_path(&self) -> Option<PathBuf> {
        self.own.as_ref().map(ControlPlane::audit_log)
    }

    /// Returns a command for kubectl of the same version, with the administrator's kubeconfig.
    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.kubectl.as_deref().unwrap_or(Path::new("kubectl")));
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        command
    }

    /// Creates a namespace with a unique name: `name`, the process id and a number.
    ///
    /// # Panics
    /// If the API server rejects it.
    pub async fn namespace(&self, name: &str) -> String {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let name = format!("{name}-{}-{number}", std::process::id());
        let labels = Some([mark()].into());
        let metadata = ObjectMeta { name: Some(name.clone()), labels, ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let all = kube::Api::<Namespace>::all(self.client().await);
        all.create(&PostParams::default(), &namespace)
            .await
            .unwrap_or_else(|e| panic!("namespace {name}: {e}"));
        name
    }
}
