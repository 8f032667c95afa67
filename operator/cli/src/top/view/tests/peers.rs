//! Output for tenants that share a GPU.

use ratatui::style::Color;
use sluice_wire::state::{Direction, EngineHang, GrantState, SharingState, TimeSliceState};

use super::*;
use crate::top::SidecarPoll;

const THREE_TENANTS: &str = "\
sluice top   3 tenants
GPU local-shared-0   30 MiB, 3 tenants   shares 30 MiB   borrowed 3 MiB
    lent 3 MiB   slice default/chat, 2 waiting
  default/chat   share 10 MiB   budget 13 MiB   borrowed 2 MiB from code
  borrowed 1 MiB from mail
GGGGGGGGGGGGGGGGGGGGGGGGWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
WWWWWWWW........................................................................
................................................
  default/code   share 10 MiB   budget 8 MiB   lent 2 MiB to chat
GGGGGGGGGGGGGGGGGGGGGGGGWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
WWWWWWWW........................................
  default/mail   share 10 MiB   budget 9 MiB   lent 1 MiB to chat
GGGGGGGGGGGGGGGGGGGGGGGGWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWWW
WWWWWWWW........................................................
G global  W layers  S slots  K kv used  k kv cached/free  A activations  . free
  TENANT       PHASE     RUN+WAIT  TOK/S   KV  A/B/CAP   TBT-ENG   TBT-OUT
  default/chat active        4+12    123  75%    2/1/5     12/30     50/61
  default/code active        4+12    123  75%    2/1/5     12/30     50/61
  default/mail active        4+12    123  75%    2/1/5     12/30     50/61";

/// A tenant of a GPU with time slices. Its share is a third of 480 chunks.
fn peer(name: &str, borrowed: u64, lent: u64, grants: &[(Direction, &str, u64)], holds: bool) -> SidecarPoll {
    let mut sighting = answered(name);
    let state = sighting.state.as_mut().unwrap();
    state.tenant.namespace = "default".into();
    state.tenant.gpu = "local-shared-0".into();
    let budget = (160 + borrowed - lent) * CHUNK;
    state.memory.capacity_bytes = budget;
    state.memory.owners = OwnerBytes {
        weights_global_bytes: 24 * CHUNK,
        weights_layers_bytes: 64 * CHUNK,
        free_bytes: budget - 88 * CHUNK,
        ..OwnerBytes::default()
    };
    let grant = |&(direction, name, chunks): &(Direction, &str, u64)| GrantState {
        namespace: "default".into(),
        name: name.into(),
        direction,
        nonce: chunks,
        bytes: chunks * CHUNK,
        expires_in_ms: 5_000,
    };
    state.peers = Some(SharingState {
        instance: 1,
        share_bytes: 160 * CHUNK,
        floor_bytes: 32 * CHUNK,
        budget_bytes: budget,
        lendable_bytes: 8 * CHUNK,
        held_bytes: 88 * CHUNK,
        lent_bytes: lent * CHUNK,
        borrowed_bytes: borrowed * CHUNK,
        grants: grants.iter().map(grant).collect(),
        time_slice: Some(TimeSliceState {
            holds,
            epoch: 9,
            waiting: 2,
            held_ns_total: 3_100_000_000,
            slices_total: 70,
            handover: Percentiles { samples: 70, p50_ns: 100_000, p99_ns: 400_000 },
            wait: Percentiles { samples: 70, p50_ns: 40_000_000, p99_ns: 101_000_000 },
            ..TimeSliceState::default()
        }),
        ..SharingState::default()
    });
    sighting
}

pub fn peers() -> [SidecarPoll; 3] {
    use Direction::{Borrowed, Lent};
    [
        peer("chat", 48, 0, &[(Borrowed, "code", 16), (Borrowed, "mail", 16), (Borrowed, "code", 16)], true),
        peer("code", 0, 32, &[(Lent, "chat", 16), (Lent, "chat", 16)], false),
        peer("mail", 0, 16, &[(Lent, "chat", 16)], false),
    ]
}

#[test]
fn tenants_of_gpu_are_grouped_with_their_loans() {
    let shown = rows(&peers(), 80);
    let (maps_and_table, details) = shown.split_at(shown.iter().position(String::is_empty).unwrap());
    assert_eq!(maps_and_table.join("\n"), THREE_TENANTS);
    for line in [
        "budget   share 10 MiB  budget 8 MiB  held 5.5 MiB  floor 2 MiB",
        "         could lend 512 KiB",
        "slice    does not hold it  70 so far, 3.1s in all",
        "         p50/p99 ms: wait 40/101, hand-over 0.1/0.4",
    ] {
        assert!(details.iter().any(|shown| shown == line), "{line}: {details:#?}");
    }
}

#[test]
fn gpus_are_distinguished_by_namespace_and_name() {
    let mut sightings = peers().to_vec();
    sightings.insert(1, answered("story"));
    let mut stranger = peer("chat", 0, 0, &[], false);
    stranger.title = "other/chat".into();
    stranger.state.as_mut().unwrap().tenant.namespace = "other".into();
    sightings.push(stranger);
    let view = RenderContext { polls: &sightings, colour: false, now_unix_ms: NOW, empty_text: "no tenant" };
    let gpus = GpuTenants::group_by_gpu(&view);
    let titles = |gpu: &GpuTenants| {
        gpu.tenants.iter().map(|(title, _)| (*title).to_owned()).collect::<Vec<_>>().join(" ")
    };
    let expected = ["default/chat default/code default/mail", "default/story", "other/chat"];
    assert_eq!(gpus.iter().map(titles).collect::<Vec<_>>(), expected);
    assert_eq!(gpus.iter().map(GpuTenants::is_shared).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn peer_lines_fit_80_columns_and_slice_can_be_free() {
    let long = "a-tenant-with-a-name-of-forty-characters";
    let mut sightings = peers();
    for sighting in &mut sightings {
        let own = sighting.state.as_mut().unwrap().peers.as_mut().unwrap();
        own.grants.iter_mut().for_each(|grant| grant.name = long.into());
        own.time_slice.as_mut().unwrap().holds = false;
    }
    sightings[0].title = format!("default/{long}");
    let view = RenderContext { polls: &sightings, colour: false, now_unix_ms: NOW, empty_text: "no tenant" };
    let lines: Vec<_> = text(&view, 80).iter().map(ToString::to_string).collect();
    assert!(lines.iter().all(|line| line.chars().count() <= 80), "{lines:#?}");
    let words = lines.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    for whole in [
        "GPU local-shared-0 30 MiB, 3 tenants shares 30 MiB borrowed 3 MiB lent 3 MiB slice free, 2 waiting",
        &format!("default/{long} share 10 MiB budget 13 MiB borrowed 3 MiB from {long}"),
        &format!("lent 2 MiB to {long}"),
        "slice does not hold it 70 so far, 3.1s in all p50/p99 ms: wait 40/101, hand-over 0.1/0.4",
    ] {
        assert!(words.contains(whole), "{whole}: {lines:#?}");
    }
}

#[test]
fn tenants_without_peer_info_are_grouped_by_gpu() {
    let mut sightings = peers();
    for sighting in &mut sightings {
        let state = sighting.state.as_mut().unwrap();
        (state.peers, state.memory.capacity_bytes) = (None, 480 * CHUNK);
    }
    let shown = rows(&sightings, 80);
    assert_eq!(shown[1], "GPU local-shared-0   30 MiB, 3 tenants");
    assert!(shown[2].starts_with("  default/chat   DOES NOT BALANCE   30 MiB   "), "{shown:#?}");
}

/// Returns the peers of `code`, which does not answer, and holds the time slice past its deadline.
fn peers_with_stopped_holder() -> [SidecarPoll; 3] {
    let mut sightings = peers();
    sightings[1].state = Err("timed out".into());
    for at in [0, 2] {
        let own = sightings[at].state.as_mut().unwrap().peers.as_mut().unwrap();
        let slice = own.time_slice.as_mut().unwrap();
        (slice.holds, slice.holder, slice.holder_overdue_ms) = (false, Some("default/code".into()), 1_500);
    }
    sightings
}

/// Returns the red words.
fn red_text(lines: &[Line<'static>]) -> String {
    let spans = lines.iter().flat_map(|line| &line.spans);
    let red = spans.filter(|span| span.style.fg == Some(Color::Red)).map(|span| span.content.to_string());
    red.collect::<Vec<_>>().join(" ").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn join_lines(lines: &[Line<'static>]) -> String {
    lines.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn late_slice_holder_is_shown_in_red_above_peers() {
    let shown = lines(&peers_with_stopped_holder(), true, 100);
    let text = join_lines(&shown);
    assert!(text.contains("slice default/code, 1500 ms past its deadline, 2 waiting"), "{text}");
    assert!(
        text.contains("hang     default/code holds the time slice and is 1500 ms past its deadline"),
        "{text}"
    );
    let red = red_text(&shown);
    let heading = "slice default/code, 1500 ms past its deadline";
    let detail = "default/code holds the time slice and is 1500 ms past its deadline";
    assert!(red.contains(heading) && red.contains(detail) && red.contains("no answer: timed out"), "{red}");
    assert!(!red.contains("waiting"), "{red}");
    let mut well = peers_with_stopped_holder();
    for at in [0, 2] {
        let own = well[at].state.as_mut().unwrap().peers.as_mut().unwrap();
        own.time_slice.as_mut().unwrap().holder_overdue_ms = 0;
    }
    let text = rows(&well, 100).join("\n");
    assert!(text.contains("slice default/code, 2 waiting") && !text.contains("deadline"), "{text}");
}

#[test]
fn hung_engine_is_red_and_recovered_engine_is_not() {
    let picture = |alive| {
        let mut sightings = peers();
        let engine = &mut sightings[1].state.as_mut().unwrap().engine;
        let hang = EngineHang {
            at_unix_ms: NOW - 12_000,
            during: "step".into(),
            waited_ms: 2_300,
            limit_ms: 2_250,
            alive,
        };
        (engine.hangs, engine.last_hang) = (1, Some(hang));
        lines(&sightings, true, 100)
    };
    let (lives, gone) = (picture(true), picture(false));
    let said = "hang     engine hung 12s ago: 2300 ms without progress (step; the limit is 2250 ms); ";
    for (shown, row, rest) in [
        (&lives, "  default/code hung ", "its process has"),
        (&gone, "  default/code active ", "it was killed"),
    ] {
        let text = join_lines(shown);
        assert!(text.contains(row) && text.contains(&format!("{said}{rest}")), "{text}");
    }
    assert!(
        red_text(&lives).contains("hung") && red_text(&lives).contains("engine hung 12s ago"),
        "{}",
        red_text(&lives)
    );
    assert!(!red_text(&gone).contains("hung"), "{}", red_text(&gone));
}
