//! Fixes the order of reasons, because digests and counters use their index: new reasons are appended.

use sluice_policy::reason::Reason;

const CODES: [&str; 44] = [
    "load",
    "free_chunks",
    "prefix_evicted",
    "inflate",
    "unmap_later",
    "deflate",
    "remap_own",
    "remap_stalls",
    "revert",
    "forced",
    "stream",
    "compact",
    "declined_stall",
    "declined_unmeasured",
    "declined_cap",
    "lend",
    "borrow",
    "repay",
    "release_share",
    "wake",
    "hibernate",
    "swap_out",
    "swap_in",
    "write_back",
    "fetch",
    "place",
    "plan",
    "no_plan",
    "join",
    "pause",
    "swap_lost",
    "whole_prompt",
    "peers_short",
    "ask_refused",
    "refused_active",
    "refused_min_residence",
    "refused_at_cap",
    "refused_at_floor",
    "refused_nothing",
    "refused_busy",
    "refused_not_traded",
    "preempt",
    "rebuild",
    "backend_failed",
];

#[test]
fn reasons_keep_their_codes() {
    assert_eq!(Reason::ALL.iter().map(|reason| reason.label()).collect::<Vec<_>>(), CODES);
    assert!(Reason::ALL.iter().enumerate().all(|(place, reason)| *reason as usize == place));
}
