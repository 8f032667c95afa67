//! A borrower that is disconnected: its pod's link is down, and its processes continue.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Pid;
use sluice_e2e::cluster::within;

use super::ledger::Ledger;
use super::{CHAT, CODE, MINUTE, Rows, SUMMARY};
use crate::installed::processes::container;

/// A pod without a link. Dropping this value restores the link.
struct CutOff {
    link: String,
}

impl CutOff {
    /// Sets the link of this process's pod down. The caller is in the network of its node.
    fn start(process: Pid) -> CutOff {
        let path = format!("/proc/{}/root/sys/class/net/eth0/iflink", process.as_raw_nonzero());
        let other_end = std::fs::read_to_string(path).unwrap();
        let output = Command::new("ip").args(["-oneline", "link"]).output().unwrap();
        let links = String::from_utf8(output.stdout).unwrap();
        let own = links.lines().find_map(|line| line.strip_prefix(&format!("{}: ", other_end.trim())));
        let link = own.and_then(|line| line.split(['@', ':']).next()).expect("a pod has a link here");
        let cut = CutOff { link: link.to_owned() };
        assert!(cut.set("down"), "{link}");
        cut
    }

    fn set(&self, state: &str) -> bool {
        Command::new("ip").args(["link", "set", &self.link, state]).status().unwrap().success()
    }
}

impl Drop for CutOff {
    fn drop(&mut self) {
        self.set("up");
    }
}

impl Rows<'_> {
    /// The borrower returns its loans by itself, its lenders serve during that time, and its clients get their
    /// answers when the link is up again.
    pub async fn a_borrower_that_is_cut_off_gives_back_by_itself(&self) {
        let ledger = Ledger::of(self.product);
        let sidecar = container(&self.product.pod(CHAT), "sidecar");
        let done = AtomicBool::new(false);
        let is_cut = async {
            ledger.borrowed(self.product, CHAT).await;
            let cut = CutOff::start(sidecar.first().expect("it runs"));
            for name in [CODE, SUMMARY] {
                assert_eq!(
                    self.product.complete(name, 200).await,
                    self.golden,
                    "{name} serves during that time"
                );
            }
            let given = async || {
                let own = ledger.record(self.product, CHAT)?;
                (own.held_bytes <= own.share_bytes).then_some(())
            };
            within(MINUTE / 2, "it holds no more than its share", given).await;
            drop(cut);
            done.store(true, Ordering::Relaxed);
        };
        // The load is repeated: on a busy machine the first requests may have found no lender.
        tokio::join!(self.load.answered_until(self.product, CHAT, &done), is_cut);
        self.product.ready_again(CHAT, &|pod| container(pod, "sidecar").restarts == sidecar.restarts).await;
        self.are_all_loans_returned(&ledger).await;
    }
}
