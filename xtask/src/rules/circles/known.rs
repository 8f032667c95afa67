//! Circles that are left from before the rule. Rows and files only leave this table.

/// The files of each circle, sorted.
pub const KNOWN: [&[&str]; 5] = [
    &["benches/src/policies.rs", "benches/src/policies/table.rs"],
    &["benches/src/sharing.rs", "benches/src/sharing/table.rs", "benches/src/sharing/verdict.rs"],
    &[
        "benches/src/sharing_bench.rs",
        "benches/src/sharing_bench/load.rs",
        "benches/src/sharing_bench/outcome.rs",
    ],
    &["benches/src/tenant.rs", "benches/src/tenant/up.rs"],
    &[
        "xtask/src/image.rs",
        "xtask/src/image/archive.rs",
        "xtask/src/image/layer.rs",
        "xtask/src/image/system.rs",
        "xtask/src/kube.rs",
        "xtask/src/kube/fetch.rs",
        "xtask/src/kube/go.rs",
        "xtask/src/kube/pause.rs",
        "xtask/src/kube/recipe.rs",
        "xtask/src/kube/wheel.rs",
    ],
];
