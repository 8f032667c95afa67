//! The edge table: which crate may depend on which, as data.
//!
//! An edge is a direct normal or build dependency, on one of our crates or on one of the [`GUARDED`] libraries. What
//! arrives through an allowed crate is not counted, dev-dependencies are exempt, other libraries are free unless
//! `never` names them. To allow a new edge, change the row here and the table in ARCHITECTURE.md, and say why.

/// What one crate may use and must never use. A name stands for the crate and for its family: `kube` also for
/// `kube-client`.
pub struct Row {
    /// The crate.
    pub name: &'static str,
    /// Our crates and guarded libraries that it may depend on.
    pub may: &'static [&'static str],
    /// What it must not depend on, with a louder message than "not in the table".
    pub never: &'static [&'static str],
    /// `kube` only as kinds and derive macros: none of the features that bring the client.
    pub kube_without_client: bool,
    /// No dependency of any kind, except on [`COMMON`].
    pub standalone: bool,
}

/// Third-party libraries that a crate may use only if its row says so: each brings an effect (a network, a runtime,
/// the kernel, a device) that most crates must be free of. Libraries for data and errors are free.
pub const GUARDED: [&str; 7] = ["cudarc", "k8s-openapi", "kube", "reqwest", "rustix", "tokio", "tonic"];

/// Features of the crate `kube` that need no client.
pub const KUBE_WITHOUT_CLIENT: [&str; 3] = ["admission", "derive", "jsonpatch"];

/// Crates of the pod: their whole tree of dependencies never contains kube.
pub const NEVER_REACH_KUBE: [&str; 11] = [
    "sluice-policy",
    "sluice-ports",
    "sluice-scheduler",
    "sluice-sim",
    "sluice-memory",
    "sluice-link",
    "sluice-agent",
    "sluice-probe",
    "sluice-gpu-bench",
    "sluice-kernels",
    "sluice-vllm-link",
];

const SIDECAR: &[&str] = &[
    "sluice-policy",
    "sluice-ports",
    "sluice-scheduler",
    "sluice-sim",
    "sluice-memory",
    "sluice-link",
    "sluice-agent",
    "sluice-probe",
    "sluice-gpu-bench",
];

const BLANK: Row = Row { name: "", may: &[], never: &[], kube_without_client: false, standalone: false };

/// The crate that every other crate may use: small algorithms without effects.
pub const COMMON: &str = "sluice-common";

/// The table, in the order of ARCHITECTURE.md.
pub const TABLE: [Row; 25] = [
    Row { name: COMMON, standalone: true, ..BLANK },
    // tokio: it sends a load at planned times. reqwest: by HTTP.
    Row { name: "sluice-client", may: &["reqwest", "tokio"], never: &["kube", "sluice-types"], ..BLANK },
    Row {
        name: "sluice-types",
        may: &["kube", "k8s-openapi"],
        never: &["tokio", "kube-client", "kube-runtime"],
        kube_without_client: true,
        ..BLANK
    },
    Row { name: "sluice-wire", never: &["kube", "sluice-types"], ..BLANK },
    Row { name: "sluice-policy", standalone: true, ..BLANK },
    Row { name: "sluice-ports", may: &["sluice-policy"], never: &["tokio", "cudarc", "kube"], ..BLANK },
    Row {
        name: "sluice-scheduler",
        may: &["sluice-policy", "sluice-ports"],
        never: &["tokio", "cudarc", "kube"],
        ..BLANK
    },
    Row {
        name: "sluice-sim",
        may: &["sluice-policy", "sluice-ports", "sluice-scheduler"],
        never: &["sluice-memory", "sluice-link", "sluice-kernels", "sluice-agent", "cudarc"],
        ..BLANK
    },
    Row {
        name: "sluice-memory",
        may: &["sluice-policy", "sluice-ports", "cudarc", "rustix"],
        never: &["tokio", "kube"],
        ..BLANK
    },
    Row {
        name: "sluice-link",
        may: &["sluice-policy", "sluice-ports", "cudarc", "rustix"],
        never: &["tokio", "kube"],
        ..BLANK
    },
    // rustix: the sidecar supervises its engine by pidfd and sends signals. reqwest: it sends requests to its
    // peers.
    Row {
        name: "sluice-agent",
        may: &[
            "sluice-policy",
            "sluice-ports",
            "sluice-scheduler",
            "sluice-sim",
            "sluice-memory",
            "sluice-link",
            "sluice-probe",
            "sluice-wire",
            "reqwest",
            "tokio",
            "rustix",
        ],
        never: &["kube"],
        ..BLANK
    },
    // rustix: the engine waits on futexes and for the death of its sidecar. wire: its supervisor counts sidecars
    // that hang in a file that the next sidecar reads. libc (no edge): leave to use AMX.
    Row {
        name: "sluice-kernels",
        may: &["sluice-link", "sluice-memory", "sluice-wire", "cudarc", "rustix"],
        never: &["sluice-policy", "sluice-scheduler", "sluice-agent", "kube"],
        ..BLANK
    },
    // It is loaded into vLLM's processes: as small as possible. libc (no edge): an exit without handlers.
    Row {
        name: "sluice-vllm-link",
        may: &["sluice-link", "sluice-memory"],
        never: &["sluice-policy", "sluice-scheduler", "sluice-agent", "tokio", "kube"],
        ..BLANK
    },
    Row {
        name: "sluice-probe",
        may: &["sluice-policy", "sluice-memory", "sluice-link", "sluice-kernels", "cudarc", "rustix"],
        never: &["tokio", "kube"],
        ..BLANK
    },
    // It runs the probe's checks and the kernels, and asks the simulator what it predicts. wire, reqwest: it configures
    // sidecars and sends them requests.
    Row {
        name: "sluice-gpu-bench",
        may: &[
            "sluice-policy",
            "sluice-memory",
            "sluice-link",
            "sluice-kernels",
            "sluice-probe",
            "sluice-sim",
            "sluice-wire",
            "reqwest",
            "rustix",
        ],
        never: &["tokio", "kube"],
        ..BLANK
    },
    // For tests alone: it runs our PTX in place of a GPU.
    Row { name: "sluice-ptx", never: SIDECAR, ..BLANK },
    // For tests alone: it stands for libcuda.so.1 over host memory. No crate may link it.
    Row { name: "sluice-cuda-standin", may: &["sluice-ptx", "rustix"], never: SIDECAR, ..BLANK },
    Row {
        name: "sluice-plan",
        may: &["sluice-types", "sluice-wire", "k8s-openapi"],
        never: &["tokio", "kube-client", "kube-runtime"],
        kube_without_client: true,
        ..BLANK
    },
    // tokio: a viewer waits for the next update.
    Row { name: "sluice-page", may: &["sluice-wire", "tokio"], never: &["kube", "sluice-types"], ..BLANK },
    // tokio: kube and reqwest are asynchronous.
    Row {
        name: "sluice-operator",
        may: &[
            "sluice-page",
            "sluice-plan",
            "sluice-types",
            "sluice-wire",
            "k8s-openapi",
            "kube",
            "reqwest",
            "tokio",
        ],
        never: SIDECAR,
        ..BLANK
    },
    // rustix: `sluice up` owns process groups and their signals.
    Row {
        name: "sluice-cli",
        may: &[
            "sluice-client",
            "sluice-page",
            "sluice-plan",
            "sluice-types",
            "sluice-wire",
            "k8s-openapi",
            "kube",
            "reqwest",
            "tokio",
            "rustix",
        ],
        never: SIDECAR,
        ..BLANK
    },
    Row {
        name: "sluice-devices",
        may: &["sluice-types", "k8s-openapi", "kube", "tonic", "tokio", "rustix"],
        never: &[
            "sluice-plan",
            "sluice-policy",
            "sluice-ports",
            "sluice-scheduler",
            "sluice-sim",
            "sluice-memory",
            "sluice-link",
            "sluice-agent",
            "sluice-probe",
        ],
        ..BLANK
    },
    // rustix: it starts the components of a cluster and ends them.
    Row {
        name: "sluice-e2e",
        may: &["sluice-types", "sluice-wire", "k8s-openapi", "kube", "reqwest", "tokio", "rustix"],
        never: &[
            "sluice-page",
            "sluice-plan",
            "sluice-operator",
            "sluice-cli",
            "sluice-devices",
            "sluice-policy",
            "sluice-ports",
            "sluice-scheduler",
            "sluice-sim",
            "sluice-memory",
            "sluice-link",
            "sluice-agent",
            "sluice-probe",
        ],
        ..BLANK
    },
    // rustix: it starts the product's binaries and ends their process groups. It links none of them.
    Row { name: "sluice-benches", may: &["rustix"], ..BLANK },
    // It writes the CRDs and drives cargo; it starts the product's binaries, ends their process groups, and links none.
    Row { name: "xtask", may: &["sluice-types", "rustix"], ..BLANK },
];

/// Whether package `name` is `family` or belongs to it (`tokio-stream` to `tokio`).
pub fn belongs(name: &str, family: &str) -> bool {
    name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
