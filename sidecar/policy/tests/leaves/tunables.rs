//! Tests the policy's tunables by name.

use sluice_policy::params::Params;
use sluice_policy::tunables::{TUNABLES, TunableError, Tuned};

#[test]
fn each_tunable_changes_only_its_value() {
    let usual = Params::default();
    for tunable in &TUNABLES {
        let (least, most) = tunable.range;
        let default = tunable.of(&usual);
        assert!((least..=most).contains(&default), "{}: the default is {default}", tunable.name);
        for value in [least, most] {
            let mut tuned = Tuned::default();
            tuned.set(tunable.name, value).unwrap();
            let params = tuned.of(usual.clone());
            assert_eq!(tunable.of(&params), value, "{} holds it whole", tunable.name);
            tuned.set(tunable.name, default).unwrap();
            assert_eq!(
                tuned.of(params),
                usual,
                "{}: the last value counts, and nothing else changes",
                tunable.name
            );
        }
        if let Some(below) = least.checked_sub(1) {
            assert!(Tuned::default().set(tunable.name, below).is_err(), "{}", tunable.name);
        }
        let said = Tuned::default().set(tunable.name, most + 1).unwrap_err().to_string();
        assert_eq!(said, format!("{} is {}, and must be {least} to {most}", tunable.name, most + 1));
    }
}

#[test]
fn names_are_unique_and_unknown_name_lists_all() {
    let mut names: Vec<_> = TUNABLES.iter().map(|tunable| tunable.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), TUNABLES.len());
    let refused = Tuned::default().set("patience", 1).unwrap_err();
    assert_eq!(refused, TunableError::Unknown { name: "patience".into() });
    let said = refused.to_string();
    assert!(said.starts_with("`patience` is not a tunable (stall_allowance_permille, "), "{said}");
    assert!(names.iter().all(|name| said.contains(name)), "{said}");
}

#[test]
fn former_name_sets_the_tunable_that_replaces_it() {
    for (former, name, value) in
        [("loss_window_steps", "cost_window_steps", 7), ("remedies_by_loss", "reclaim_by_cost", 0)]
    {
        let set = |name: &str| {
            let mut tuned = Tuned::default();
            tuned.set(name, value).expect("a tunable");
            tuned.of(Params::default())
        };
        assert_eq!(set(former), set(name), "{former}");
        assert_ne!(set(former), Params::default(), "{former}");
    }
}

#[test]
fn guide_lists_each_default() {
    let guide = include_str!("../../../../docs/policies.md");
    let section = guide.split("## Tunables").nth(1).unwrap().split("Other mechanisms have").next().unwrap();
    let rows: Vec<_> = section.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), TUNABLES.len());
    for (row, tunable) in rows.iter().zip(&TUNABLES) {
        let begins = format!("| `{}` | {} | ", tunable.name, tunable.of(&Params::default()));
        assert!(row.starts_with(&begins), "{row}, not {begins}");
    }
}
