//! Mutants of the kernels: each barrier, wait and predicate of the committed PTX removed in turn. The kernels' own
//! cases must catch them. `mutants/survivors.txt` lists those that no case can catch, with the reason.

mod generate;
mod hand_picked;
mod panics;
mod suite;
mod survivors;

use std::collections::BTreeSet;
use std::sync::Mutex;

use super::cases::on_all_cores;
use generate::{KernelText, Mutant};
use suite::Suite;
use survivors::{Survivors, WRITE};

/// Of how many mutants a change runs one. A prime, so that all kernels and changes come up.
const EVERY: usize = 199;

/// Most of the mutants that may survive.
const SURVIVORS_PERMILLE: usize = 50;

/// A mutant and the kernel that it is one of.
type One<'a> = (&'a KernelText, Mutant);

fn all(texts: &[KernelText]) -> Vec<One<'_>> {
    texts.iter().flat_map(|text| text.mutants().into_iter().map(move |mutant| (text, mutant))).collect()
}

/// Runs mutants. Returns the names of those that survive.
fn survivors(mutants: &[&One<'_>]) -> BTreeSet<String> {
    let suite = Suite::shared();
    let surviving = Mutex::new(BTreeSet::new());
    on_all_cores(mutants, |(text, mutant)| {
        let ptx = text.with(mutant);
        let module = sluice_ptx::Module::parse(&ptx).unwrap_or_else(|e| panic!("{}: {e}", mutant.name));
        if suite.run(text.kernel, &module, &|_| ()).is_none() {
            surviving.lock().unwrap().insert(mutant.name.clone());
        }
    });
    surviving.into_inner().unwrap()
}

fn check(mutants: &[&One<'_>]) {
    let names: BTreeSet<_> = mutants.iter().map(|(_, mutant)| mutant.name.clone()).collect();
    let listed = Survivors::committed();
    let expected: BTreeSet<_> = listed.names().filter(|name| names.contains(*name)).cloned().collect();
    let found = survivors(mutants);
    let new: Vec<_> = found.difference(&expected).collect();
    let caught: Vec<_> = expected.difference(&found).collect();
    assert!(new.is_empty(), "{} mutants survive that are not listed: {new:#?}", new.len());
    assert!(caught.is_empty(), "{} listed mutants are caught: {caught:#?}", caught.len());
}

#[test]
fn one_of_many_mutants_is_caught_unless_it_is_listed() {
    let texts = KernelText::all();
    let all = all(&texts);
    check(&all.iter().step_by(EVERY).collect::<Vec<_>>());
}

#[test]
#[ignore = "cargo xtask nightly: every mutant takes minutes"]
fn every_mutant_is_caught_unless_it_is_listed() {
    Suite::shared().check_baseline();
    let texts = KernelText::all();
    let all = all(&texts);
    // Starts of names, separated by commas; all without the variable.
    let only = std::env::var("SLUICE_MUTANTS").unwrap_or_default();
    let is_chosen = |name: &str| only.split(',').any(|start| name.starts_with(start));
    let chosen: Vec<_> = all.iter().filter(|(_, mutant)| is_chosen(&mutant.name)).collect();
    if std::env::var_os(WRITE).is_some() {
        Survivors::committed().replace(is_chosen, survivors(&chosen)).write();
        return;
    }
    check(&chosen);
}

#[test]
fn listed_survivors_are_mutants_with_a_reason_and_at_most_one_in_twenty() {
    let texts = KernelText::all();
    let all = all(&texts);
    let names: BTreeSet<_> = all.iter().map(|(_, mutant)| &mutant.name).collect();
    assert_eq!(names.len(), all.len(), "a name of its own for each");
    let listed = Survivors::committed();
    for name in listed.names() {
        assert!(names.contains(name), "{name} is no mutant: the PTX has changed");
    }
    listed.check_reasons();
    let count = listed.names().count();
    assert!(count * 1000 <= SURVIVORS_PERMILLE * all.len(), "{count} of {} survive", all.len());
    assert!(all.len() > 5000, "{} mutants", all.len());
}
