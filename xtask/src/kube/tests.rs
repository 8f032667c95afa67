//! Without a network: the recipe is consistent, digests are checked, a broken download leaves nothing.

use std::fs;
use std::io::Write;

use cargo_metadata::camino::{Utf8Path, Utf8PathBuf};
use flate2::Compression;
use flate2::write::GzEncoder;

use super::recipe::{self, BINARIES, BinarySource, Official};
use super::{Binary, CacheDir, Tier, fetch, go, install, missing, obtain};

/// What addresses and modules are held to.
mod version {
    pub const ETCD: &str = "3.6.16";
    pub const CONTAINERD: &str = "2.2.9";
    pub const COREDNS: &str = "1.14.7";
    pub const HELM: &str = "4.2.3";
}

fn root() -> &'static Utf8Path {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A folder to install into, and one that plays the project's server.
struct TestServer {
    _folder: tempfile::TempDir,
    place: CacheDir,
    server: Utf8PathBuf,
}

fn scene() -> TestServer {
    let folder = tempfile::tempdir().unwrap();
    let base = Utf8Path::from_path(folder.path()).unwrap().to_owned();
    let place = CacheDir { modules: base.join("modules"), folder: base.join("bin") };
    let server = base.join("server");
    fs::create_dir_all(&place.folder).unwrap();
    fs::create_dir_all(&server).unwrap();
    TestServer { place, server, _folder: folder }
}

impl TestServer {
    /// A download of `content` whose published digest is that of `published`.
    fn official(&self, content: &[u8], published: &[u8], member: Option<&'static str>) -> Official {
        let digest = ring::digest::digest(&ring::digest::SHA256, published);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(self.server.join("thing"), content).unwrap();
        fs::write(self.server.join("sums"), format!("{}  other\n{hex}  thing\n", "0".repeat(64))).unwrap();
        let url = |name: &str| -> &'static str { format!("file://{}/{name}", self.server).leak() };
        Official { url: url("thing"), digest: url("sums"), member }
    }

    fn get(&self, official: &Official) -> anyhow::Result<()> {
        fetch::get(&self.place, "thing", official, &mut fetch::Network::default())
    }

    fn files(&self) -> Vec<String> {
        let entries = self.place.folder.read_dir_utf8().unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_owned()).collect()
    }
}

#[test]
fn a_download_with_the_published_digest_becomes_an_executable() {
    use std::os::unix::fs::PermissionsExt;
    let scene = scene();
    scene.get(&scene.official(b"program", b"program", None)).unwrap();
    assert_eq!(scene.files(), ["thing"]);
    let path = scene.place.folder.join("thing");
    assert_eq!(fs::read(&path).unwrap(), b"program");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
}

#[test]
fn a_download_with_another_digest_is_refused_and_leaves_nothing() {
    let scene = scene();
    let error = scene.get(&scene.official(b"program", b"another", None)).unwrap_err();
    assert!(error.to_string().contains("digest"), "{error}");
    assert_eq!(scene.files(), Vec::<String>::new());
}

#[test]
fn the_member_of_an_archive_is_taken() {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_size(7);
    header.set_cksum();
    archive.append_data(&mut header, "folder/thing", &b"program"[..]).unwrap();
    let mut gzip = archive.into_inner().unwrap();
    gzip.flush().unwrap();
    let bytes = gzip.finish().unwrap();
    let scene = scene();
    scene.get(&scene.official(&bytes, &bytes, Some("folder/thing"))).unwrap();
    assert_eq!(fs::read(scene.place.folder.join("thing")).unwrap(), b"program");
    assert_eq!(scene.files(), ["thing"], "the archive goes");
    let error = scene.get(&scene.official(&bytes, &bytes, Some("other"))).unwrap_err();
    assert!(error.to_string().contains("no other"), "{error}");
}

#[test]
fn digests_are_read_unnamed_and_from_lists() {
    let hex = "ab".repeat(32);
    let digest = |text: &str| {
        fetch::published_digest(text, "https://host/release/file.tar.gz").map_err(|e| e.to_string())
    };
    assert_eq!(digest(&hex), Ok(hex.clone()));
    assert_eq!(digest(&format!("{}  other\n{hex} *file.tar.gz\n", "0".repeat(64))), Ok(hex.clone()));
    assert!(digest(&format!("{hex}  other\n")).unwrap_err().contains("no digest"));
    assert!(digest("<html>").unwrap_err().contains("is not a SHA-256 digest"));
}

#[test]
fn missing_binary_error_lists_all_sources() {
    let scene = scene();
    let nowhere = || Official { url: "file:///nowhere/a", digest: "file:///nowhere/b", member: None };
    let binary = Binary {
        name: "thing",
        tier: Tier::Api,
        sources: vec![BinarySource::Official(nowhere()), BinarySource::Official(nowhere())].leak(),
    };
    let error = obtain(&scene.place, &binary, &mut fetch::Network::default()).unwrap_err().to_string();
    assert_eq!(error.matches("official download file:///nowhere/a").count(), 2, "{error}");
}

#[test]
fn versions_of_go_are_read() {
    assert_eq!(go::parse("go version go1.26.8 linux/amd64"), Some((1, 26)));
    assert_eq!(go::parse("go version go1.27rc1 linux/arm64"), Some((1, 27)));
    assert_eq!(go::parse("command not found"), None);
}

#[test]
fn leftover_draft_is_ignored() {
    let scene = scene();
    let draft = install::draft(&scene.place.folder, "thing").unwrap();
    fs::write(&draft, "half").unwrap();
    assert!(missing(&scene.place.folder, Tier::Api).iter().any(|binary| binary.name == "etcd"));
    assert!(!install::draft(&scene.place.folder, "thing").unwrap().exists());
}

#[test]
fn the_modules_that_go_builds_of_have_the_versions_of_the_downloads() {
    for (module, required) in [
        ("kubernetes", format!("k8s.io/kubernetes v{}", recipe::KUBERNETES)),
        ("etcd", format!("go.etcd.io/etcd/server/v3 v{}", version::ETCD)),
        ("containerd", format!("github.com/containerd/containerd/v2 v{}", version::CONTAINERD)),
        ("coredns", format!("github.com/coredns/coredns v{}", version::COREDNS)),
        ("helm", format!("helm.sh/helm/v4 v{}", version::HELM)),
    ] {
        let text = fs::read_to_string(root().join(recipe::MODULES).join(module).join("go.mod")).unwrap();
        assert!(text.lines().any(|line| line.ends_with(&required)), "{module} does not require {required}");
    }
    let text = fs::read_to_string(root().join(recipe::MODULES).join("kubernetes/go.mod")).unwrap();
    let staged = recipe::KUBERNETES.replacen("1.", "v0.", 1);
    let replaced: Vec<&str> = text.lines().filter(|line| line.starts_with("replace k8s.io/")).collect();
    assert!(replaced.len() > 30 && replaced.iter().all(|line| line.ends_with(&staged)), "{replaced:?}");
    assert_eq!(recipe::modules(), ["containerd", "coredns", "etcd", "helm", "kubernetes"]);
}

#[test]
fn addresses_and_stamps_name_the_pinned_versions() {
    let version = |name: &str| match name {
        "etcd" => version::ETCD,
        "helm" => version::HELM,
        "coredns" => version::COREDNS,
        _ if name.starts_with("containerd") || name == "ctr" => version::CONTAINERD,
        _ => recipe::KUBERNETES,
    };
    for binary in &BINARIES {
        for source in binary.sources {
            let named = match source {
                BinarySource::Official(official) => vec![official.url, official.digest],
                BinarySource::Go(package) if !package.stamp.is_empty() => vec![package.stamp],
                _ => vec![],
            };
            for text in named {
                assert!(text.contains(version(binary.name)), "{}: {text}", binary.name);
            }
        }
    }
}
