//! Tests `sluice-operator` as a process against a real API server, with exactly the rights of `rbac.yaml`. The tests
//! write the changes of controllers, the scheduler, kubelets and drivers.
// Helpers outside test functions also unwrap.
#![allow(clippy::unwrap_used)]

mod fakes;
mod leader_election;
mod leader_fencing;
mod placement;
mod pods;
mod serving;
mod test_namespace;
// Sidecars over real TLS; these tests do not use all of the module.
#[allow(dead_code)]
#[path = "modules/stub.rs"]
mod stub;
mod traces;
mod two_kinds;
