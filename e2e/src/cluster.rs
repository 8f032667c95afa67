//! A Kubernetes for tests: an API server with its etcd, shared by all tests of a binary.
//!
//! Every test takes a namespace of its own ([`Api::namespace`]); whatever has no namespace, a test names after it.

pub mod audit;
mod binaries;
mod certificates;
mod child;
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
use kube::api::{ObjectMeta, PostParams};
use kube::{Client, Config};
use tokio::sync::OnceCell;

pub use self::binaries::{Binaries, skipped};
use self::control_plane::ControlPlane;
pub use self::exit_hooks::check_at_exit;
pub use self::external_cluster::mark;
pub use self::node::{Node, SecondNode, on_node, on_node_alone, on_two_nodes};
pub use self::process_spawner::ProcessSpawner;
pub use self::wait::{WAIT_LIMIT, eventually, within};

/// An API server with the CRDs of this tree established.
pub struct Api {
    kubeconfig: PathBuf,
    kubectl: Option<PathBuf>,
    /// `None`: a cluster that somebody else runs (`SLUICE_KUBECONFIG`).
    own: Option<ControlPlane>,
}

/// The API server of this test binary, started at the first call and ended with the process; `None`, with a line that
/// says why, where there are no binaries to start it from.
///
/// With `SLUICE_KUBECONFIG` it is the cluster of that file.
///
/// # Panics
/// If it does not start; every later call panics with the same words, at once.
pub async fn api() -> Option<&'static Api> {
    static SHARED: OnceCell<TestResult<Api>> = OnceCell::const_new();
    // A cell that is empty after a panic would let every test wait for the same failure.
    let outcome =
        SHARED.get_or_init(async || AssertUnwindSafe(start()).catch_unwind().await.map_err(error_text));
    try_api(outcome.await)
}

/// What came of a start that all tests share: what was started, why nothing was, or what was said in a panic.
type TestResult<T> = Result<Result<T, &'static str>, String>;

/// What was started; without it a line for each test that says why.
///
/// # Panics
/// As whoever started it did.
fn try_api<T>(outcome: &TestResult<T>) -> Option<&T> {
    let started = outcome.as_ref().unwrap_or_else(|words| panic!("{words}"));
    started.as_ref().inspect_err(|why| skipped(why)).ok()
}

/// Whether this is a run in CI, where what is skipped for want of something fails instead.
pub fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|set| set == "true")
}

/// What somebody panicked with.
fn error_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no Kubernetes".to_owned())
}

async fn start() -> Result<Api, &'static str> {
    if let Some(kubeconfig) = given_kubeconfig() {
        let kubectl = Binaries::named().ok().map(|all| all.kubectl());
        let api = Api { kubeconfig, kubectl, own: None };
        external_cluster::take(&api).await;
        return Ok(api);
    }
    let binaries = Binaries::named()?;
    let own = ControlPlane::start(&binaries).await;
    let api = Api { kubeconfig: own.admin(), kubectl: Some(binaries.kubectl()), own: Some(own) };
    crds::establish(&api.client().await).await;
    Ok(api)
}

/// The kubeconfig of a cluster that somebody else runs.
fn given_kubeconfig() -> Option<PathBuf> {
    std::env::var_os("SLUICE_KUBECONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl Api {
    /// A kubeconfig of a user who may do everything.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// A client of a user who may do everything. One per test: a client lives on the runtime that made it.
    pub async fn client(&self) -> Client {
        client_of(&self.kubeconfig).await
    }

    /// Whether this process started the server, so that it has an audit log and users of its own.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// As [`Api::is_own`], for a test that is nothing without: a line says that it is skipped.
    pub fn is_own_cluster(&self) -> bool {
        if !self.is_own() {
            skipped(
                "a cluster that somebody else runs has no users of ours, no audit log and a network that we are not in",
            );
        }
        self.is_own()
    }

    /// A kubeconfig of `user`, who is in `group` and may do what RBAC says.
    ///
    /// # Panics
    /// On a cluster that somebody else runs: only ours gives out certificates.
    pub fn kubeconfig_of(&self, user: &str, group: Option<&str>) -> PathBuf {
        self.own.as_ref().expect("users are made on our own API server alone").user(user, group)
    }

    /// A client of `user`, who is in `group` and may do what RBAC says. See [`Api::kubeconfig_of`].
    pub async fn client_of(&self, user: &str, group: Option<&str>) -> Client {
        client_of(&self.kubeconfig_of(user, group)).await
    }

    /// Every request so far, by whom and how it was answered; `None` on a cluster that somebody else runs.
    pub fn audit_log(&self) -> Option<Vec<audit::Record>> {
        self.own.as_ref().map(|own| audit::read(&own.audit_log()))
    }

    /// Where the audit log lies, for who reads it bit by bit; `None` on a cluster that somebody else runs.
    pub fn audit_log_path(&self) -> Option<PathBuf> {
        self.own.as_ref().map(ControlPlane::audit_log)
    }

    /// kubectl of the same version, as the user who may do everything.
    pub fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.kubectl.as_deref().unwrap_or(Path::new("kubectl")));
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        command
    }

    /// Makes a namespace that no other test has: `name` and a number.
    ///
    /// # Panics
    /// If the API server refuses it.
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

async fn client_of(kubeconfig: &Path) -> Client {
    let shown = kubeconfig.display();
    let read = kube::config::Kubeconfig::read_from(kubeconfig).unwrap_or_else(|e| panic!("{shown}: {e}"));
    let config = Config::from_custom_kubeconfig(read, &kube::config::KubeConfigOptions::default()).await;
    let config = config.unwrap_or_else(|e| panic!("{shown}: {e}"));
    Client::try_from(config).unwrap_or_else(|e| panic!("{shown}: {e}"))
}
