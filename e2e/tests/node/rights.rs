//! Rights of the product's service accounts: the chart grants exactly the rights that the API server has seen used.
//!
//! All tests with an installed product share one API server and its audit log. The last one of them to finish
//! compares. If some of them do not finish there is no comparison: this binary prints that at its end, and in CI it
//! fails unless its arguments leave tests out.

mod granted;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_e2e::cluster::{audit, check_at_exit, is_ci, skipped};

use crate::installed::Product;

/// Service accounts of the product.
const ACCOUNTS: [&str; 4] = ["sluice-operator", "sluice-devices", "sluice-uninstall", "sluice-test"];

/// Tests with an installed product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Run {
    /// `product`.
    Product,
    /// `failures`.
    Failures,
    /// `releases`.
    Releases,
    /// `sources`.
    Sources,
    /// `two_nodes`.
    TwoNodes,
}

/// All of them.
const RUNS: [Run; 5] = [Run::Product, Run::Failures, Run::Releases, Run::Sources, Run::TwoNodes];

/// Options of a test binary that take the next argument.
const WITH_VALUE: [&str; 6] = ["--test-threads", "--color", "--format", "--logfile", "--shuffle-seed", "-Z"];
/// Options of a test binary that leave tests out.
const LEAVE_OUT: [&str; 2] = ["--skip", "--ignored"];

/// A verb on a resource, of an account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    account: String,
    verb: String,
    /// `GROUP/RESOURCE`, with `/SUBRESOURCE` where there is one; the core group is empty.
    resource: String,
}

impl Right {
    fn new(account: &str, verb: &str, resource: &str) -> Right {
        Right { account: account.into(), verb: verb.into(), resource: resource.into() }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.account, self.verb, self.resource)
    }
}

/// Rights that are granted and used by no test: account, verb, resource, and the reason for the grant.
const EXCEPTIONS: [(&str, &str, &str, &str); 12] = [
    ("sluice-devices", "delete", "resource.k8s.io/resourceslices", FOREIGN),
    ("sluice-operator", "create", "/configmaps", APPLY),
    ("sluice-operator", "create", "/services", APPLY),
    ("sluice-operator", "create", "apps/deployments", APPLY),
    ("sluice-operator", "create", "batch/jobs", APPLY),
    ("sluice-operator", "create", "networking.k8s.io/networkpolicies", APPLY),
    ("sluice-operator", "create", "policy/poddisruptionbudgets", APPLY),
    ("sluice-operator", "create", "resource.k8s.io/resourceclaims", APPLY),
    ("sluice-operator", "delete", "/services", OLDER),
    ("sluice-operator", "delete", "policy/poddisruptionbudgets", OLDER),
    ("sluice-operator", "update", "sluice.dev/gpupools/finalizers", OWNERS),
    ("sluice-operator", "update", "sluice.dev/modeltenants/finalizers", OWNERS),
];
const APPLY: &str =
    "an apply of what is not there is checked as a create as well, of which the audit log says nothing";
const FOREIGN: &str =
    "a slice of the node that the driver did not make goes: operator/devices/tests make one";
const OLDER: &str = "these go with their owner, unless an older release called them otherwise";
const OWNERS: &str = "asked by the admission plugin OwnerReferencesPermissionEnforcement, which is off here";

/// Records that a test with an installed product has finished; the last one compares rights.
///
/// # Panics
/// If the chart grants an unused right that is not an exception; if an exception was used, or is not granted; and
/// if an account used a right that is not granted.
pub fn end_of(run: Run, product: &Product<'_>) {
    let api = product.node.api();
    if api.audit_log_path().is_none() {
        return skipped("rights are compared by an audit log of ours");
    }
    if !is_last(run) {
        return;
    }
    let log = api.audit_log().expect("it has a path");
    let faults = compare(&granted::by_chart(product), &used(&log), &EXCEPTIONS);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Whether this test is the last one to finish.
fn is_last(run: Run) -> bool {
    let mut ended = ended();
    if ended.is_empty() {
        // No test can check this: any of them may be the last.
        check_at_exit(all_have_ended);
    }
    ended.insert(run);
    missing(&ended).is_empty()
}

/// Returns the tests that have finished.
fn ended() -> MutexGuard<'static, BTreeSet<Run>> {
    static ENDED: Mutex<BTreeSet<Run>> = Mutex::new(BTreeSet::new());
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the tests that have not finished.
fn missing(ended: &BTreeSet<Run>) -> Vec<Run> {
    RUNS.into_iter().filter(|run| !ended.contains(run)).collect()
}

/// Checks at the end of this process that rights were compared. Outside CI, and where tests were left out, a
/// printed line is enough.
fn all_have_ended() -> Result<(), String> {
    let missing = missing(&ended());
    let words = format!("used and granted rights were not compared: {missing:?} did not come to an end");
    if missing.is_empty() {
        return Ok(());
    }
    if is_ci() && !leaves_out(std::env::args().skip(1)) {
        return Err(words);
    }
    eprintln!("SKIPPED: {words}");
    Ok(())
}

/// Whether these arguments make a test binary leave tests out: an option, or names of tests.
fn leaves_out(arguments: impl IntoIterator<Item = String>) -> bool {
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        if WITH_VALUE.contains(&argument.as_str()) {
            arguments.next();
        } else if !argument.starts_with('-') || LEAVE_OUT.iter().any(|option| argument.starts_with(option)) {
            return true;
        }
    }
    false
}

/// Returns the requests that accounts of the product made with a right of the chart.
fn used(log: &[audit::Record]) -> BTreeSet<Right> {
    // The API server grants some rights to every user, by groups.
    let own =
        log.iter().filter(|record| record.is_allowed() && record.right().contains(" to ServiceAccount "));
    own.filter_map(right_of).collect()
}

fn right_of(record: &audit::Record) -> Option<Right> {
    let (_, account) = record.user.username.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let (account, object) = (ACCOUNTS.iter().find(|one| **one == account)?, record.object.as_ref()?);
    let mut resource = format!("{}/{}", object.api_group, object.resource);
    if !object.subresource.is_empty() {
        resource = format!("{resource}/{}", object.subresource);
    }
    Some(Right::new(account, &record.verb, &resource))
}

/// Returns the differences, one per line.
fn compare(
    granted: &BTreeSet<Right>,
    used: &BTreeSet<Right>,
    exceptions: &[(&str, &str, &str, &str)],
) -> Vec<String> {
    let exceptions: BTreeMap<Right, &str> = exceptions
        .iter()
        .map(|(account, verb, resource, why)| (Right::new(account, verb, resource), *why))
        .collect();
    let unused = granted.difference(used).filter(|right| !exceptions.contains_key(right));
    let unused = unused.map(|right| format!("granted and never used: {right}"));
    let beyond = used.difference(granted).map(|right| format!("used and not granted: {right}"));
    let wrong_exceptions = exceptions.iter().filter_map(|(right, why)| match () {
        () if used.contains(right) => Some(format!("an exception that is used: {right} ({why})")),
        () if !granted.contains(right) => Some(format!("an exception that is not granted: {right} ({why})")),
        () => None,
    });
    unused.chain(beyond).chain(wrong_exceptions).collect()
}

#[test]
fn a_run_is_whole_unless_names_or_options_leave_tests_out() {
    let leaves_out = |line: &str| leaves_out(line.split_whitespace().map(str::to_owned));
    for whole in
        ["", "--nocapture", "--test-threads 1", "--test-threads=1 --color never", "--include-ignored"]
    {
        assert!(!leaves_out(whole), "{whole}");
    }
    for part in
        ["product", "--test-threads 1 product", "--exact product", "--skip a", "--skip=a", "--ignored"]
    {
        assert!(leaves_out(part), "{part}");
    }
}

#[test]
fn every_permission_difference_is_reported() {
    let rights =
        |verbs: &[&str]| verbs.iter().map(|verb| Right::new("a", verb, "/pods")).collect::<BTreeSet<_>>();
    let differences = |granted: &[&str], used: &[&str], exception: &str| {
        compare(&rights(granted), &rights(used), &[("a", exception, "/pods", "why")])
    };
    assert_eq!(differences(&["get", "list"], &["get"], "list"), [""; 0]);
    assert_eq!(
        differences(&["get", "list", "watch"], &["get"], "list"),
        ["granted and never used: a: watch /pods"]
    );
    assert_eq!(differences(&["list"], &["get"], "list"), ["used and not granted: a: get /pods"]);
    assert_eq!(differences(&["list"], &["list"], "list"), ["an exception that is used: a: list /pods (why)"]);
    assert_eq!(differences(&[], &[], "list"), ["an exception that is not granted: a: list /pods (why)"]);
}
