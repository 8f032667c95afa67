//! An image of this very test binary: its bytes, its contents, and that it runs where nothing else is.

use std::collections::BTreeMap;
use std::io::Read;
use std::process::Command;

use cargo_metadata::camino::Utf8PathBuf;
use serde_json::Value;

use super::archive::Archive;
use super::sha256::sha256;
use super::user::USER;
use super::{pack, system, unpack};
use crate::platform::Platform;

fn myself() -> Utf8PathBuf {
    Utf8PathBuf::from_path_buf(std::env::current_exe().unwrap()).unwrap()
}

fn image() -> Archive {
    pack("sluice.dev/test:1", &["program"], (&myself(), Platform::host()), super::READABLE).unwrap()
}

fn files(tar: &[u8]) -> BTreeMap<String, (tar::Header, Vec<u8>)> {
    let mut archive = tar::Archive::new(tar);
    let mut found = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let (path, header) = (entry.path().unwrap().to_string_lossy().into_owned(), entry.header().clone());
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        found.insert(path, (header, content));
    }
    found
}

/// The blob that a descriptor names, whose digest and size are right.
fn blob(archive: &BTreeMap<String, (tar::Header, Vec<u8>)>, descriptor: &Value) -> Vec<u8> {
    let digest = descriptor["digest"].as_str().unwrap();
    let bytes = archive[&format!("blobs/{}", digest.replace(':', "/"))].1.clone();
    assert_eq!(
        (sha256(&bytes), bytes.len() as u64),
        (digest.to_owned(), descriptor["size"].as_u64().unwrap())
    );
    bytes
}

/// Configuration and unpacked layers.
fn opened(archive: &Archive) -> (Value, Vec<Vec<u8>>) {
    let outer = files(&archive.bytes);
    let index: Value = serde_json::from_slice(&outer["index.json"].1).unwrap();
    assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "sluice.dev/test:1");
    assert_eq!(index["manifests"][0]["digest"], archive.digest);
    let manifest: Value = serde_json::from_slice(&blob(&outer, &index["manifests"][0])).unwrap();
    let config: Value = serde_json::from_slice(&blob(&outer, &manifest["config"])).unwrap();
    for layer in manifest["layers"].as_array().unwrap() {
        blob(&outer, layer);
    }
    (config, unpack::layers(&archive.bytes).unwrap())
}

#[test]
fn the_same_binary_gives_the_same_bytes() {
    let (one, two) = (image(), image());
    assert!(one.bytes == two.bytes, "the archives differ");
    assert_eq!(one.digest, two.digest);
}

#[test]
fn an_image_has_its_binary_what_that_needs_and_nothing_of_the_machine() {
    let (config, layers) = opened(&image());
    assert_eq!(config["config"]["User"], format!("{USER}:{USER}"));
    assert_eq!(config["config"]["Entrypoint"][0], "/usr/bin/program");
    let diff_ids: Vec<String> = layers.iter().map(|layer| sha256(layer)).collect();
    assert_eq!(config["rootfs"]["diff_ids"], serde_json::json!(diff_ids));
    let (system, own) = (files(&layers[0]), files(&layers[1]));
    assert_eq!(own.keys().collect::<Vec<_>>(), ["usr", "usr/bin", "usr/bin/program"]);
    let libc = system.keys().find(|path| path.ends_with("/libc.so.6"));
    assert!(libc.is_some() && system.keys().any(|path| path.contains("/ld-linux-")), "{:?}", system.keys());
    assert!(system["etc/ssl/certs/ca-certificates.crt"].1.starts_with(b"-----BEGIN"));
    for (path, (header, _)) in system.iter().chain(&own) {
        let owner = (header.uid().unwrap(), header.gid().unwrap(), header.mtime().unwrap());
        assert_eq!(owner, (0, 0, 0), "{path}");
        assert!(!path.starts_with("home") && !path.starts_with("root"), "{path}");
    }
    assert_eq!(system["tmp"].0.mode().unwrap(), 0o1777);
}

#[test]
fn an_image_runs_where_nothing_else_is() {
    if !rustix::process::geteuid().is_root() {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"SKIPPED: chroot needs root\n");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for layer in opened(&image()).1 {
        tar::Archive::new(layer.as_slice()).unpack(root.path()).unwrap();
    }
    let user = format!("--userspec={USER}:{USER}");
    let run = || {
        Command::new("chroot")
            .arg(&user)
            .arg(root.path())
            .args(["/usr/bin/program", "--list"])
            .output()
            .unwrap()
    };
    let output = run();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("an_image_runs_where_nothing_else_is: test"), "{output:?}");
    let libc = files(&opened(&image()).1[0]).into_keys().find(|path| path.ends_with("/libc.so.6")).unwrap();
    std::fs::remove_file(root.path().join(libc)).unwrap();
    assert!(!run().status.success(), "without its library it cannot run: the check can fail");
}

#[test]
fn what_readelf_says_is_read() {
    let said = "  INTERP         0x000270 0x00000270 0x00000270 0x00001b 0x00001b R   0x1\n\
                \x20     [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]\n\
                \x20 LOAD           0x000000\n\
                \x20Tag        Type       Name/Value\n\
                \x200x01 (NEEDED)             Shared library: [libgcc_s.so.1]\n\
                \x200x01 (NEEDED)             Shared library: [libc.so.6]\n";
    let elf = system::parse_elf(said);
    assert_eq!(elf.loader.as_deref(), Some("/lib/ld-linux-aarch64.so.1"));
    assert_eq!(elf.needed, ["libgcc_s.so.1", "libc.so.6"]);
    assert_eq!(system::parse_elf(""), system::Elf { loader: None, needed: Vec::new() });
}

#[test]
fn what_ldd_says_is_read() {
    let said = "\tlinux-vdso.so.1 (0x00007f27)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f27)\n\
                \t/lib64/ld-linux-x86-64.so.2 (0x00007f27)\n";
    assert_eq!(
        system::parse(said).unwrap(),
        ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]
    );
    let error = system::parse("\tlibcuda.so.1 => not found\n").unwrap_err();
    assert!(error.to_string().contains("libcuda.so.1"), "{error}");
}
