//! `sluice-operator` as a process against a real API server, under exactly the rights of `rbac.yaml`. What controllers, the
//! scheduler, kubelets and drivers do is written by the tests.
// Helpers outside test functions unwrap too.
#![allow(clippy::unwrap_used)]

mod fakes;
mod leader_election;
mod leader_fencing;
mod placement;
mod pods;
mod serving;
mod test_namespace;
// Sidecars over real TLS; not everything of them is needed here.
#[allow(dead_code)]
#[path = "modules/stub.rs"]
mod stub;
mod traces;
