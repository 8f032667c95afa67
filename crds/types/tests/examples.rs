//! The YAML that users start from.

use std::path::PathBuf;

use sluice_types::load::{ManifestObject, load_valid_str};
use sluice_types::pool::Policy;
use sluice_types::tenant::SourceType;

fn example(name: &str) -> Vec<ManifestObject> {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")).join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    load_valid_str(&text, name).unwrap_or_else(|errors| panic!("{name}: {errors:?}"))
}

#[test]
fn every_example_is_valid() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
    let names =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let yaml: Vec<String> = names.filter(|name| name.ends_with(".yaml")).collect();
    assert!(yaml.len() >= 2);
    for name in yaml {
        example(&name);
    }
}

#[test]
fn the_quickstart_is_one_host_gpu_and_one_tenant_from_a_relative_folder() {
    let objects = example("quickstart.yaml");
    let [ManifestObject::Pool(pool), ManifestObject::Tenant(tenant)] = &objects[..] else {
        panic!("a pool and a tenant")
    };
    assert_eq!(pool.spec.device_class_name, sluice_types::HOST_DEVICE_CLASS);
    assert_eq!(pool.spec.gpus.iter().map(|group| group.count).sum::<i32>(), 1);
    assert_eq!(pool.spec.policy, Policy::Oneiros);
    assert_eq!(tenant.spec.model.source.kind, SourceType::File);
    let path = &tenant.spec.model.source.file.as_ref().unwrap().path;
    assert!(PathBuf::from(path).is_relative(), "{path}");
}

#[test]
fn two_gpus_serve_one_tenant_each() {
    let objects = example("two-gpus.yaml");
    let [ManifestObject::Pool(pool), ManifestObject::Tenant(one), ManifestObject::Tenant(other)] =
        &objects[..]
    else {
        panic!("a pool and two tenants")
    };
    assert_eq!(pool.spec.gpus.iter().map(|group| group.count).sum::<i32>(), 2);
    assert!(one.spec.gpu_group.is_some() && one.spec.gpu_group != other.spec.gpu_group);
}
