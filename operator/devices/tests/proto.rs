//! The generated messages and services are what the kubelet's protocol buffers give. `SLUICE_WRITE_PROTO=1` writes them.

use std::path::Path;

/// Each file of protocol buffers, and the name that the generator derives from its package.
const FILES: [(&str, &str); 2] =
    [("dra", "k8s.io.kubelet.pkg.apis.dra.v1"), ("pluginregistration", "pluginregistration")];

#[test]
fn generated_files_are_what_the_protocol_buffers_of_the_kubelet_give() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = FILES.map(|(name, _)| format!("{name}.proto"));
    let parsed = protox::compile(sources, [crate_folder.join("proto")]).unwrap();
    let made = tempfile::tempdir().unwrap();
    let generator = tonic_prost_build::configure().out_dir(made.path()).emit_rerun_if_changed(false);
    generator.compile_fds(parsed).unwrap();
    for (name, package) in FILES {
        let generated = std::fs::read_to_string(made.path().join(format!("{package}.rs"))).unwrap();
        let path = crate_folder.join(format!("src/proto/{name}.rs"));
        if std::env::var_os("SLUICE_WRITE_PROTO").is_some() {
            std::fs::write(&path, &generated).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap();
        assert_eq!(committed, generated, "write {} with SLUICE_WRITE_PROTO=1", path.display());
    }
}
