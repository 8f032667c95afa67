//! The server end of the link over a pool of host memory.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use sluice_link::control::ControlPage;
use sluice_link::message::{Device, SchedulerSetup, WorkerSetup};
use sluice_link::server::scheduler::SchedulerLink;
use sluice_link::server::worker::{WorkerLink, WorkerMemory};
use sluice_link::server::{FirstMessage, Listener};

use crate::c_link::{CLink, Refused};

pub const CHUNK: u64 = 4096 * 16;
pub const LIMIT: Duration = Duration::from_secs(10);
pub const WORKER: &str = r#"{"build": "test", "engine": "vllm 0.32.0", "rank": 0, "ranks": 1}"#;
pub const SCHEDULER: &str =
    r#"{"build": "test", "engine": "vllm 0.32.0", "blocks": 64, "block_tokens": 16, "max_model_len": 512}"#;

pub struct HostSidecar {
    _folder: tempfile::TempDir,
    pub path: PathBuf,
    pub listener: Listener,
    pub pool: File,
    pub control: ControlPage,
}

impl HostSidecar {
    pub fn new() -> HostSidecar {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("engine.sock");
        let pool = memfd_create("pool", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        ftruncate(&pool, 16 * CHUNK).unwrap();
        fcntl_add_seals(&pool, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
        HostSidecar {
            listener: Listener::bind(&path).unwrap(),
            path,
            _folder: folder,
            pool: pool.into(),
            control: ControlPage::create_with_passes(3).unwrap(),
        }
    }

    pub fn setup() -> WorkerSetup {
        WorkerSetup {
            device: Device::Host,
            chunk_bytes: CHUNK,
            capacity_chunks: 16,
            layer_chunks: vec![2, 2, 3],
            kv_chunks: 8,
        }
    }

    pub fn first(&self) -> FirstMessage {
        self.listener.accept(LIMIT).unwrap().expect("an engine connected").recv_first().unwrap()
    }

    pub fn attach(&self) -> WorkerLink {
        let FirstMessage::Worker(worker) = self.first() else { panic!("a worker connected") };
        let pool = Some(self.pool.as_fd());
        let memory = WorkerMemory { pool, control: &self.control, lifetime_lock: self.pool.as_fd() };
        worker.send_setup(&HostSidecar::setup(), memory).unwrap()
    }

    /// Connects by a C function in another thread.
    pub fn connecting(
        &self,
        connect: fn(&std::path::Path, &str) -> Result<CLink, Refused>,
        hello: &str,
    ) -> std::thread::JoinHandle<Result<CLink, Refused>> {
        let (path, hello) = (self.path.clone(), hello.to_owned());
        std::thread::spawn(move || connect(&path, &hello))
    }

    /// Returns both ends of a worker's link.
    pub fn worker(&self) -> (WorkerLink, CLink) {
        let other = self.connecting(CLink::worker, WORKER);
        let link = self.attach();
        (link, other.join().unwrap().unwrap())
    }

    /// Returns both ends of a scheduler's link.
    pub fn scheduler(&self) -> (SchedulerLink, CLink) {
        let other = self.connecting(CLink::scheduler, SCHEDULER);
        let FirstMessage::Scheduler(scheduler) = self.first() else { panic!("a scheduler connected") };
        let setup = SchedulerSetup { extent_blocks: 4, extents: 16, granted: vec![0, 1, 2] };
        let link = scheduler.send_setup(&setup, self.pool.as_fd()).unwrap();
        (link, other.join().unwrap().unwrap())
    }

    pub fn read(&self, chunk: u64) -> Vec<u8> {
        let mut bytes = vec![0; CHUNK as usize];
        self.pool.read_exact_at(&mut bytes, chunk * CHUNK).unwrap();
        bytes
    }

    pub fn fill(&self, chunk: u64, byte: u8) {
        self.pool.write_all_at(&vec![byte; CHUNK as usize], chunk * CHUNK).unwrap();
    }
}
