//! A GPU for the tenants of one test: a stand-in for the driver, which runs our kernels from their PTX on host memory.

use std::path::Path;

use serde_json::Value;
use sluice_cuda_standin::library_folder::LibraryFolder;
use sluice_cuda_standin::test_machine::TestMachine;

use super::env::TestEnv;
use super::model;

const MIB: u64 = 1 << 20;
/// Chunk of a CUDA device, bytes.
pub const CHUNK: u64 = 16 * MIB;
/// What a context takes of the stand-in's device, bytes. A sidecar and its engine have one each: `contextReserve` of
/// [`super::Yaml::cuda_pool`] holds two.
const CONTEXT: u64 = 32 * MIB;

/// The device of a test environment.
#[derive(Debug)]
pub struct StandIn {
    machine: TestMachine,
    bytes: u64,
}

impl StandIn {
    /// Puts the driver's library on the library path of all programs of `world`, with one device. It has `chunks` next
    /// to the two contexts of each tenant, and to the one that asks for its free memory.
    pub fn install(world: &mut TestEnv, chunks: u64, tenants: u64) -> StandIn {
        let bytes = chunks * CHUNK + (2 * tenants + 1) * CONTEXT;
        let machine = TestMachine::new(&world.path("")).unwrap();
        let machine = machine.with("SLUICE_STANDIN_BYTES", bytes.to_string());
        machine.variables().for_each(|(name, value)| world.set(name, value));
        StandIn { machine, bytes }
    }

    /// Puts the driver's library on the library path, without a device.
    pub fn library(world: &mut TestEnv) {
        let libraries = world.path("lib");
        std::fs::create_dir(&libraries).unwrap();
        let folder = LibraryFolder::new(&libraries).unwrap();
        world.set("LD_LIBRARY_PATH", folder.as_os_str());
    }

    /// Asserts that all memory of the device is free but the context of the one that asks, and that every process that
    /// ended by itself had released everything.
    pub fn assert_nothing_held(&self, world: &TestEnv) {
        self.machine.assert_nothing_held();
        let device = &devices(world)["devices"][0];
        let sizes = [&device["total_bytes"], &device["free_bytes"]].map(|bytes| bytes.as_u64().unwrap());
        assert_eq!(sizes, [self.bytes, self.bytes - CONTEXT], "{device}");
    }
}

/// Returns the report of the devices that the programs of `world` see.
fn devices(world: &TestEnv) -> Value {
    let mut command = world.program(&model::binary("sluice-sidecar"), Path::new(""));
    let output = command.arg("devices").output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}
