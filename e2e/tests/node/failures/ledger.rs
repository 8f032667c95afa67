//! Audits the ledger of a GPU from outside all pods while processes that trade in it are killed or stopped.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_e2e::cluster::within;
use sluice_memory::gpu_ledger::{GpuLedger, LedgerError, LedgerIdentity, Participant, current_boot_id};
use sluice_wire::State;
use sluice_wire::config::SidecarConfig;
use tokio::task::JoinSet;

use super::background_load::BackgroundLoad;
use super::{CHAT, CODE, MINUTE, Rows, TENANTS};
use crate::installed::Product;
use crate::installed::admin::{Admin, Credential};
use crate::installed::processes::{Container, Stopped, container, kill};

/// Engines killed while memory is lent.
const KILLS: u32 = 9;
/// Poll interval of the ledger.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Many times as long as a process needs to exit.
const SETTLE_TIME: Duration = Duration::from_secs(2);

/// The ledger of a GPU, opened by an observer that is not a participant.
#[derive(Clone)]
pub struct Ledger(GpuLedger, Arc<File>);

/// The guard of a ledger, held as by a process that hangs while it holds it.
pub struct HeldGuard(File);

impl Drop for HeldGuard {
    fn drop(&mut self) {
        guard_byte(&self.0, libc::F_UNLCK).unwrap();
    }
}

/// Locks or unlocks the first byte of the file of locks.
fn guard_byte(locks: &File, kind: i32) -> std::io::Result<()> {
    // SAFETY: all zeros are a valid value of this plain C structure.
    let mut byte: libc::flock = unsafe { std::mem::zeroed() };
    (byte.l_type, byte.l_whence, byte.l_len) = (kind as i16, libc::SEEK_SET as i16, 1);
    // SAFETY: the descriptor is open, and the kernel reads the structure only during the call.
    match unsafe { libc::fcntl(locks.as_raw_fd(), libc::F_OFD_SETLK, &raw const byte) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

impl Ledger {
    /// Opens the ledger of the tenants' GPU.
    pub fn of(product: &Product<'_>) -> Ledger {
        let map = product.get("configmap", &format!("{CHAT}-0"));
        let texts = map["data"].as_object().unwrap();
        let config: SidecarConfig =
            serde_json::from_str(texts.values().next().unwrap().as_str().unwrap()).unwrap();
        let place = config.gpu_ledger.unwrap();
        let identity = LedgerIdentity {
            boot_id: current_boot_id().unwrap(),
            claim_id: place.claim,
            capacity_bytes: config.gpu.memory_bytes,
            chunk_bytes: config.gpu.chunk_bytes,
        };
        let sidecar = container(&product.pod(CHAT), "sidecar").first().expect("it runs");
        let root = PathBuf::from(format!("/proc/{}/root", sidecar.as_raw_nonzero()));
        let folder = root.join(place.folder.strip_prefix("/").unwrap());
        // Both stay valid after the process through which they were opened exits.
        let locks = File::options().read(true).write(true).open(folder.join("locks")).unwrap();
        Ledger(GpuLedger::open(&folder, &identity).unwrap(), Arc::new(locks))
    }

    /// Takes the guard as soon as it is free.
    pub async fn guard(&self) -> HeldGuard {
        let taken = async || guard_byte(&self.1, libc::F_WRLCK).ok();
        within(MINUTE, "the guard is free for a moment", taken).await;
        HeldGuard(self.1.try_clone().unwrap())
    }

    /// Returns the record of a running tenant.
    pub fn record(&self, product: &Product<'_>, tenant: &str) -> Option<Participant> {
        let name = format!("{}/{tenant}", product.namespace);
        self.0.survey().unwrap().into_iter().find(|one| one.is_live && one.name == name)
    }

    /// Waits until a tenant holds more than its share.
    pub async fn borrowed(&self, product: &Product<'_>, tenant: &str) {
        let borrows = async || {
            let held = self.record(product, tenant).filter(|one| one.held_bytes > one.share_bytes);
            if held.is_none() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            held.map(drop)
        };
        within(2 * MINUTE, &format!("{tenant} holds what others lent it"), borrows).await;
    }
}

/// Audits in a loop until a byte is counted twice. Returns the number of audits.
fn audits(ledger: Ledger) -> BackgroundLoad<Result<u32, LedgerError>> {
    BackgroundLoad::start(move |ends| {
        let mut count = 0;
        while !ends.load(Ordering::Relaxed) {
            match ledger.0.audit() {
                Ok(_) => count += 1,
                // The holder of the guard may wait for a core.
                Err(LedgerError::Busy { .. }) => {}
                Err(wrong) => return Err(wrong),
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(count)
    })
}

/// A borrower with all processes stopped.
struct Frozen {
    processes: Vec<Stopped>,
    /// Bytes that it holds according to the ledger.
    held: u64,
    /// Requests that it cannot answer.
    requests: JoinSet<Option<String>>,
}

impl Rows<'_> {
    /// Kills engines of lenders and of the borrower at different moments of a loan, and once a lender's sidecar: no
    /// byte is ever counted twice, none is lost at the end, and the borrower's answers are unchanged.
    pub async fn ledger_balances_after_kills_during_loans(&self) {
        let ledger = Ledger::of(self.product);
        self.are_all_loans_returned(&ledger).await;
        let audits = audits(ledger.clone());
        let sidecar = container(&self.product.pod(CODE), "sidecar");
        let done = AtomicBool::new(false);
        let kills = async {
            for time in 0..KILLS {
                self.kill_while_it_is_lent(&ledger, time).await;
                if time == KILLS / 2 {
                    kill(sidecar.first().expect("it runs"));
                }
            }
            done.store(true, Ordering::Relaxed);
        };
        tokio::join!(kills, self.load.answered_until(self.product, CHAT, &done));
        self.all_serve_again_after(CODE, &sidecar, &ledger).await;
        let audits = audits.end().expect("never is a byte promised twice");
        assert!(audits > 100, "it was looked at {audits} times");
        self.product.borrows(CHAT, &self.product.address(CHAT), &self.load).await;
    }

    /// Kills the engine of one tenant after another, shortly after a loan begins.
    async fn kill_while_it_is_lent(&self, ledger: &Ledger, time: u32) {
        let engine = container(&self.product.pod(TENANTS[time as usize % 3]), "engine");
        let worker = async || engine.worker();
        let worker = self.product.wait("an engine", worker).await;
        ledger.borrowed(self.product, CHAT).await;
        // A different delay each time, to meet different moments of a loan.
        tokio::time::sleep(Duration::from_millis(u64::from(time) * 7)).await;
        kill(worker);
    }

    /// Stops all processes of a borrower, as if it were unreachable: its memory stays counted until its last
    /// process exits, and its lenders serve during that time.
    pub async fn frozen_peer_memory_returns_on_process_exit(&self) {
        let ledger = Ledger::of(self.product);
        let pod = self.product.pod(CHAT);
        let (sidecar, engine) = (container(&pod, "sidecar"), container(&pod, "engine"));
        let Frozen { processes, held, requests } =
            self.frozen_while_it_borrows(&ledger, &sidecar, &engine).await;
        let holds = || ledger.record(self.product, CHAT).map(|one| one.held_bytes);
        for name in [CODE, super::SUMMARY] {
            assert_eq!(
                self.product.complete(name, 200).await,
                self.golden,
                "{name} serves without what it lent"
            );
        }
        assert_eq!(holds(), Some(held), "a peer that is not reached keeps what it has");
        let [first, worker] =
            [sidecar.first(), engine.worker()].map(|process| process.expect("it is frozen"));
        kill(first);
        tokio::time::sleep(SETTLE_TIME).await;
        assert_ne!(sidecar.first(), Some(first), "it is gone");
        assert_eq!(holds(), Some(held), "its engine may still write where it did");
        kill(worker);
        let gone = async || (holds() != Some(held)).then_some(());
        within(SETTLE_TIME, "nothing of it is counted when both are gone", gone).await;
        drop((processes, requests));
        self.all_serve_again_after(CHAT, &sidecar, &ledger).await;
    }

    /// Stops all processes of a borrower while it holds neither the time slice nor the guard of the ledger: all
    /// peers would wait for these. A loaded peer alternates with it and gets its answers.
    async fn frozen_while_it_borrows(
        &self,
        ledger: &Ledger,
        sidecar: &Container,
        engine: &Container,
    ) -> Frozen {
        let (beside, done) = (self.load.part(12), AtomicBool::new(false));
        let mut requests = JoinSet::new();
        let frozen = async {
            let now = async || {
                self.load.keep_sent(self.product, CHAT, &mut requests);
                tokio::time::sleep(POLL_INTERVAL).await;
                self.frozen_now(ledger, sidecar, engine).await
            };
            let frozen = within(2 * MINUTE, "a borrower that has neither slice nor guard", now).await;
            done.store(true, Ordering::Relaxed);
            frozen
        };
        let answers = beside.answered_until(self.product, CODE, &done);
        let ((processes, held), ()) = tokio::join!(frozen, answers);
        Frozen { processes, held, requests }
    }

    async fn frozen_now(
        &self,
        ledger: &Ledger,
        sidecar: &Container,
        engine: &Container,
    ) -> Option<(Vec<Stopped>, u64)> {
        let borrows = |one: &Participant| one.held_bytes > one.share_bytes && one.earmarks.is_empty();
        ledger.record(self.product, CHAT).filter(borrows)?;
        let all = [sidecar.first()?, engine.first()?, engine.worker()?];
        let processes: Vec<Stopped> = all.into_iter().map(Stopped::stop).collect();
        let still = async || processes.iter().all(Stopped::is_still).then_some(());
        within(MINUTE, "they stand still", still).await;
        let record = ledger.record(self.product, CHAT).filter(borrows)?;
        let free = !record.has_slice && ledger.0.audit().is_ok();
        free.then_some((processes, record.held_bytes))
    }

    /// Waits until a tenant's killed sidecar has restarted, all tenants answer as before, and all loans are
    /// returned.
    async fn all_serve_again_after(&self, killed: &str, sidecar: &Container, ledger: &Ledger) {
        self.product
            .ready_again(killed, &|pod| container(pod, "sidecar").restarts == sidecar.restarts + 1)
            .await;
        for name in TENANTS {
            assert_eq!(self.product.complete(name, 200).await, self.golden, "{name}");
        }
        self.are_all_loans_returned(ledger).await;
    }

    /// Waits until no tenant holds memory of another, and the ledger agrees with every sidecar.
    pub async fn are_all_loans_returned(&self, ledger: &Ledger) {
        let operator = Credential::of_operator(self.product);
        let home = async || {
            let audit = ledger.0.audit().ok()?;
            for name in TENANTS {
                let record = ledger.record(self.product, name)?;
                let admin = Admin::of(self.product, name, &self.product.address(name));
                let state: State = serde_json::from_value(admin.state(&operator).await).unwrap();
                let place = state.peers.as_ref()?;
                let balanced = state.memory.balances() && place.balances();
                let nothing_on_its_way = place.in_transit_bytes == 0 && record.earmarks.is_empty();
                let at_rest = place.lent_bytes == 0 && place.borrowed_bytes == 0 && nothing_on_its_way;
                (balanced && at_rest && place.held_bytes == record.held_bytes).then_some(())?;
            }
            let balanced = audit.unsettled_bytes == 0 && audit.participants.len() == TENANTS.len();
            balanced.then_some(())
        };
        self.product.wait("all loans are home, and the ledger says what sidecars say", home).await;
    }
}
