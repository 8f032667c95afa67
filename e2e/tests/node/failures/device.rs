//! A machine that is slow, and one that has no pages when weights come home.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::background_load::BackgroundLoad;
use super::ledger::Ledger;
use super::{CHAT, CODE, Rows, TENANTS};
use crate::installed::processes::{Stopped, Traced, container};
use crate::installed::value;

/// For so long a sidecar stands still, and for so long it goes.
const HALF: Duration = Duration::from_millis(20);
/// Calls of the kernel that fail, of each thread.
const REFUSED: u32 = 5;
/// Times that layers go and come home, until a page is refused.
const ROUNDS: u32 = 5;
/// A load may take so many times as long beside another one, with half of the time: the machine is shared with others.
const AT_MOST: u32 = 20;

/// These processes stand still half of the time: how often.
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

/// A process that is refused pages a few times: what the kernel says when memory is short. They come with a write to their file
/// or with advice.
fn without_pages(process: Pid) -> Traced {
    let refused = format!("--inject=pwrite64,madvise:error=ENOMEM:when=1..{REFUSED}");
    Traced::attach(process, "pwrite64,madvise", &refused)
}

impl Rows<'_> {
    /// Something is lent when all three sidecars, who copy, begin to get half of their time only: the same tokens, later.
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
            "a load takes {undisturbed:?}, beside another one and with sidecars that stood still {times} times {took:?}"
        );
        assert!(times > 10, "{times}");
        assert!(took < undisturbed * AT_MOST, "{took:?}, {undisturbed:?} undisturbed");
    }

    /// A lender's layers come home to a machine without pages: it tries again, and serves as ever.
    pub async fn weights_that_find_no_pages_come_home_later(&self) {
        let (address, pod) = (self.product.address(CODE), self.product.pod(CODE));
        let sample = async |name: &str, labels: &str| {
            let sample = format!("{name}{{model_name=\"{CODE}\"{labels}}}");
            value(&self.product.metrics(&address).await, &sample)
        };
        let failed = async || sample("sluice_moves_total", ",reason=\"backend_failed\"").await;
        let before = failed().await;
        let traced = without_pages(container(&pod, "sidecar").first().expect("it runs"));
        // Some layers may come home to pages that are still there.
        for _ in 0..ROUNDS {
            self.load.answered(self.product, CHAT).await;
            assert_eq!(self.product.complete(CODE, 200).await, self.golden, "with what there is");
            let home = async || (sample("sluice_layers_lent", "").await == 0.0).then_some(());
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
