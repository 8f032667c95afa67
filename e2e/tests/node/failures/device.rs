//! A slow machine, and one without free pages when weights are restored.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::background_load::BackgroundLoad;
use super::ledger::Ledger;
use super::{CHAT, CODE, Rows, TENANTS};
use crate::installed::processes::{Stopped, Traced, container};
use crate::installed::value;

/// Time for which a sidecar is stopped, and then runs.
const HALF: Duration = Duration::from_millis(20);
/// System calls that fail, per thread.
const REFUSED: u32 = 5;
/// Maximum rounds of lending and restoring layers until a page is refused.
const ROUNDS: u32 = 12;
/// Maximum factor by which a load may be slower at half of the time. It is large because other work uses the
/// machine.
const AT_MOST: u32 = 20;

/// Stops these processes half of the time. Returns the number of stops.
fn halts(processes: Vec<Pid>) -> BackgroundLoad<u32> {
    BackgroundLoad::start(move |ends| {
        let mut times = 0;
        while !ends.load(Ordering::Relaxed) {
            let stopped: Vec<_> = processes.iter().map(|process| Stopped::stop(*process)).collect();
            std::thread::sleep(HALF);
            drop(stopped);
            std::thread::sleep(HALF);
            times += 1;
        }
        times
    })
}

/// Injects ENOMEM into a few page allocations of a process. Pages are allocated by a write to the backing file or
/// by advice.
fn without_pages(process: Pid) -> Traced {
    let refused = format!("--inject=pwrite64,madvise:error=ENOMEM:when=1..{REFUSED}");
    Traced::attach(process, "pwrite64,madvise", &refused)
}

impl Rows<'_> {
    /// While memory is lent, all three sidecars, which do the copies, begin to run half of the time only. The
    /// tokens are the same, only later.
    pub async fn sidecars_that_stand_still_half_of_the_time_cost_time_and_no_token(&self) {
        let begun = Instant::now();
        self.load.answered(self.product, CHAT).await;
        let undisturbed = begun.elapsed();
        let sidecar = |name: &str| container(&self.product.pod(name), "sidecar").first().expect("it runs");
        let (ledger, done) = (Ledger::of(self.product), AtomicBool::new(false));
        let disturbed = async {
            ledger.borrowed(self.product, CHAT).await;
            let slow = halts(TENANTS.iter().map(|name| sidecar(name)).collect());
            let begun = Instant::now();
            self.load.answered(self.product, CHAT).await;
            done.store(true, Ordering::Relaxed);
            (begun.elapsed(), slow.end())
        };
        let ((took, times), ()) =
            tokio::join!(disturbed, self.load.answered_until(self.product, CHAT, &done));
        eprintln!(
            "a load takes {undisturbed:?}, next to another one and with sidecars that stood still {times} times {took:?}"
        );
        assert!(times > 10, "{times}");
        assert!(took < undisturbed * AT_MOST, "{took:?}, {undisturbed:?} undisturbed");
    }

    /// A lender restores its layers on a machine without free pages: it tries again, and then serves as before.
    pub async fn weights_that_find_no_pages_come_home_later(&self) {
        let (address, pod) = (self.product.address(CODE), self.product.pod(CODE));
        let sample = async |name: &str, labels: &[(&str, &str)]| {
            value(&self.product.metrics(&address).await, name, CODE, labels)
        };
        let failed = async || sample("sluice_moves_total", &[("reason", "backend_failed")]).await;
        let before = failed().await;
        let traced = without_pages(container(&pod, "sidecar").first().expect("it runs"));
        // Some layers may be restored to pages that are still allocated.
        for _ in 0..ROUNDS {
            self.load.answered(self.product, CHAT).await;
            assert_eq!(self.product.complete(CODE, 200).await, self.golden, "with what there is");
            let home = async || (sample("sluice_layers_lent", &[]).await == 0.0).then_some(());
            self.product.wait("its layers are home", home).await;
            if failed().await > before {
                break;
            }
        }
        assert!(failed().await > before, "the kernel refused nothing");
        drop(traced);
        assert_eq!(self.product.complete(CODE, 200).await, self.golden);
    }
}
