use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use cargo_metadata::camino::Utf8Path;

use super::nvjitlink::NvJitLink;
use super::nvrtc::Nvrtc;
use super::{ENGINE, PROBE, RESOURCES, assemble, compare, compile, find, read, without_folders};

/// The root of the workspace.
fn root() -> &'static Utf8Path {
    Utf8Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

#[test]
fn every_source_of_the_probe_has_its_ptx_and_every_kernel_is_an_entry_of_it() {
    for source in PROBE {
        let path = root().join(source);
        let text = fs::read_to_string(&path).expect("the source is committed");
        let ptx = fs::read_to_string(path.with_extension("ptx")).expect("so is its PTX");
        let kernels = text.lines().filter_map(|line| line.strip_prefix("extern \"C\" __global__ void "));
        let names: Vec<_> = kernels.filter_map(|rest| rest.split('(').next()).collect();
        assert!(!names.is_empty(), "{source}");
        for name in names {
            assert!(
                ptx.contains(&format!(".visible .entry {name}(")),
                "{name} is missing in the PTX of {source}"
            );
        }
    }
}

#[test]
fn the_table_of_resources_has_every_kernel_of_the_engine_and_no_other() {
    let table = fs::read_to_string(root().join(RESOURCES)).expect("the table is committed");
    let table: BTreeMap<String, serde_json::Value> = serde_json::from_str(&table).expect("it is JSON");
    let mut entries = BTreeSet::new();
    for source in ENGINE {
        let path = root().join(source).with_extension("ptx");
        let ptx = fs::read_to_string(path).expect("the PTX is committed");
        let names = ptx.lines().filter_map(|line| line.strip_prefix(".visible .entry "));
        entries.extend(names.filter_map(|rest| rest.split('(').next()).map(ToOwned::to_owned));
    }
    assert_eq!(table.into_keys().collect::<BTreeSet<_>>(), entries);
}

#[test]
fn a_changed_source_a_broken_one_and_a_changed_ptx_are_found() {
    let found = match find() {
        Ok(found) => found,
        Err(error) => {
            println!("skipped: no compiler of CUDA: {error:#}");
            return;
        }
    };
    let nvrtc = Nvrtc::load(&found.nvrtc.folder).expect("it loads");
    let assembler = NvJitLink::load(&found.nvjitlink.folder).expect("it loads");
    let folder = tempfile::tempdir().expect("a folder");
    let folder = Utf8Path::from_path(folder.path()).expect("a plain name");
    let source = fs::read_to_string(root().join(PROBE[0])).expect("the source is committed");
    fs::write(folder.join("probe.cu"), &source).expect("a copy");
    fs::copy(root().join(PROBE[0]).with_extension("ptx"), folder.join("probe.ptx")).expect("a copy");
    let check = || compile(&nvrtc, folder, "probe.cu", &[], compare);
    if found.nvrtc.pinned {
        let path = check().expect("an unchanged copy passes");
        assemble(&assembler, &path, |_, _| Ok(())).expect("so does its PTX");
    }

    fs::write(folder.join("probe.cu"), source.replace("at += 256", "at += 128")).expect("written");
    assert!(check().expect_err("it differs").to_string().contains("differs from what its sources give"));
    // Of Hopper alone: the PTX says it, and only the assembler refuses it for an older device.
    let fence = "extern \"C\" __global__ void f() { asm volatile(\"wgmma.fence.sync.aligned;\"); }";
    fs::write(folder.join("probe.cu"), fence).expect("written");
    let fenced = nvrtc.compile(&read(&folder.join("probe.cu")).expect("a source"), "compute_80", &[]);
    fs::write(folder.join("probe.ptx"), fenced.expect("PTX is not looked at")).expect("written");
    let error = assemble(&assembler, &folder.join("probe.ptx"), |_, _| Ok(())).err().expect("it is refused");
    assert!(error.to_string().starts_with("for sm_80, nvJitLink answered "), "{error}");
    fs::write(folder.join("probe.cu"), source.replace("now_ns() - start < ns", "broken")).expect("written");
    assert!(check().expect_err("it does not compile").to_string().contains("\"broken\" is undefined"));
}

#[test]
fn line_information_names_no_folder() {
    let ptx = ".loc 1 2 3\n\t.file\t1 \"/folder/kernels/norm.cu\"\nld.param.u32 %r1, [a];\n";
    assert_eq!(without_folders(ptx), ".loc 1 2 3\n\t.file\t1 \"norm.cu\"\nld.param.u32 %r1, [a];\n");
}
