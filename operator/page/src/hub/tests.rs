use sluice_wire::State;

use sluice_wire::state::TenantReport;

use super::*;

fn hub() -> Arc<Hub> {
    let (source, note) = ("test".to_owned(), "nothing yet".to_owned());
    Hub::new(HubConfig { source, interval: Duration::from_secs(1), moves: 4, note })
}

fn tenant(name: &str) -> TenantReport {
    let mut state = State::default();
    (state.tenant.namespace, state.tenant.name) = ("team".into(), name.into());
    TenantReport::State(Box::new(state))
}

/// Gives `hub` these GPUs, each with the names of its tenants, as they are read at `at`.
fn update_hub(hub: &Hub, at: u64, gpus: &[(&str, &[&str])]) {
    hub.update(at, |update| {
        for (name, tenants) in gpus {
            let tenants: Vec<_> = tenants.iter().map(|name| tenant(name)).collect();
            let read_unix_ms = Some(at);
            update.gpu(&Reading {
                namespace: "team",
                name,
                read_unix_ms,
                tenants: &tenants,
                ..Reading::default()
            });
        }
    });
}

/// The kinds of the next messages, and the first of them.
fn next(viewer: &mut Viewer) -> (Vec<&'static str>, serde_json::Value) {
    let number = *viewer.updates.borrow_and_update();
    let messages = viewer.messages(number);
    let kinds = messages.iter().map(|(kind, _)| *kind).collect();
    (kinds, serde_json::from_str(&messages[0].1).unwrap())
}

fn colours(hub: &Hub, titles: &[&str]) -> Vec<usize> {
    let inner = lock(&hub.inner);
    titles.iter().map(|title| inner.colours.0[*title]).collect()
}

#[test]
fn tenant_keeps_colour_and_peers_have_different_ones() {
    let hub = hub();
    update_hub(&hub, 1, &[("a", &["one", "two"]), ("b", &["three"])]);
    let before = colours(&hub, &["team/one", "team/two", "team/three"]);
    assert_eq!(before, [0, 1, 2]);
    let many: Vec<String> = (0..7).map(|n| format!("x{n}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).chain(["three"]).collect();
    update_hub(&hub, 2, &[("a", &["one", "two"]), ("b", &many)]);
    assert_eq!(colours(&hub, &["team/one", "team/two", "team/three"]), before);
    let mut own: Vec<usize> = lock(&hub.inner).colours.0.values().copied().collect();
    own.sort_unstable();
    assert_eq!(own, [0, 0, 1, 1, 2, 3, 4, 5, 6, 7], "eight on one GPU have eight colours");
    update_hub(&hub, 3, &[("b", &["three"])]);
    assert_eq!(lock(&hub.inner).colours.0.len(), 8, "those of the GPU that is gone need none");
}

#[test]
fn colour_is_reused_after_tenant_is_gone() {
    let hub = hub();
    let minute = 60_000;
    for n in 0..20 {
        let name = format!("x{n}");
        update_hub(&hub, (1 + 5 * n) * minute, &[("a", &["stays", &name])]);
    }
    let taken = lock(&hub.inner).colours.0.clone();
    assert_eq!(taken.len(), 1 + 4, "the last quarter of an hour has four others: {taken:?}");
    let different: BTreeSet<usize> = taken.values().copied().collect();
    assert_eq!(different.len(), taken.len(), "no two of them look alike: {taken:?}");
    assert_eq!(taken["team/stays"], 0);
}

#[test]
fn a_viewer_is_sent_whole_gpus_where_there_are_few_and_one_where_there_are_many() {
    let hub = hub();
    let mut first = hub.viewer(None).unwrap();
    let (kinds, list) = next(&mut first);
    assert_eq!((kinds, list["note"].as_str()), (vec!["list"], Some("nothing yet")));
    let names = ["a", "b", "c", "d", "e"];
    let gpus = |count: usize| -> Vec<(&str, &[&str])> {
        names[..count].iter().map(|name| (*name, &["one"][..])).collect()
    };
    update_hub(&hub, 1, &gpus(4));
    assert_eq!(next(&mut first).0.len(), 1 + 2 * 4, "the list, and of each its history and its present");
    update_hub(&hub, 2, &gpus(5));
    assert_eq!(next(&mut first).0, ["list"]);
    let mut one = hub.viewer(Some("team/e".into())).unwrap();
    assert_eq!(next(&mut one).0, ["list"], "not before the next update");
    update_hub(&hub, 2, &gpus(5));
    assert_eq!(next(&mut one).0, ["list", "history", "gpu"]);
    assert_eq!(next(&mut one).0, ["list"], "nothing is new");
    drop(one);
    update_hub(&hub, 3, &gpus(5));
    assert!(lock(&hub.inner).gpus.values().all(|known| known.detail.is_none()), "no client watches");
}

#[test]
fn list_is_incremental_and_complete_after_gpu_is_removed() {
    let hub = hub();
    update_hub(&hub, 1, &[("a", &["one"]), ("b", &["two"])]);
    let mut viewer = hub.viewer(None).unwrap();
    let next_list = |viewer: &mut Viewer| {
        let list = next(viewer).1;
        let keys: Vec<String> =
            list["gpus"].as_array().unwrap().iter().map(|gpu| gpu["key"].to_string()).collect();
        (list["all"] == true, keys.join(" "))
    };
    assert_eq!(next_list(&mut viewer), (true, "\"team/a\" \"team/b\"".into()));
    update_hub(&hub, 2, &[("a", &["one"]), ("b", &["two", "three"])]);
    assert_eq!(next_list(&mut viewer), (false, "\"team/b\"".into()));
    update_hub(&hub, 3, &[("b", &["two", "three"])]);
    assert_eq!(next_list(&mut viewer), (true, "\"team/b\"".into()));
}
