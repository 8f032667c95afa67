//! The live page's script, run: what it makes of an overview that the wire's own types wrote.

use rquickjs::{Context, Runtime};
use sluice_wire::overview::{GpuOverview, Overview};
use sluice_wire::state::{
    EngineHang, Move, Neighbourhood, OwnerBytes, Percentiles, Phase, Residency, State, Takeover,
    TenantReport, TurnState,
};

const DOM: &str = include_str!("page/dom.js");
const INDEX: &str = include_str!("../src/page/index.html");
const SCRIPT: &str = include_str!("../src/page/page.js");

const NOW: u64 = 1_790_000_000_000;
const MIB: u64 = 1 << 20;

/// The page as a browser has it after its first look.
struct Page {
    context: Context,
    _runtime: Runtime,
}

impl Page {
    /// Of a leader that answers with `overview`, or refuses in these words.
    fn of(overview: &Overview, refused: &str) -> Page {
        let runtime = Runtime::new().unwrap();
        let context = Context::full(&runtime).unwrap();
        let ids: Vec<&str> =
            INDEX.split(" id=\"").skip(1).map(|rest| rest.split('"').next().unwrap()).collect();
        context.with(|js| {
            let globals = js.globals();
            globals.set("IDS", ids).unwrap();
            globals.set("OVERVIEW", serde_json::to_string(overview).unwrap()).unwrap();
            globals.set("REFUSED", refused).unwrap();
        });
        let page = Page { context, _runtime: runtime };
        page.run::<()>(DOM);
        page.run::<()>(SCRIPT);
        while page._runtime.execute_pending_job().unwrap() {}
        page
    }

    /// What an expression is.
    fn run<T: for<'js> rquickjs::FromJs<'js>>(&self, source: &str) -> T {
        use rquickjs::CatchResultExt as _;
        self.context.with(|js| js.eval(source).catch(&js).unwrap_or_else(|thrown| panic!("{thrown}")))
    }

    fn text(&self, id: &str) -> String {
        self.run(&format!("document.getElementById('{id}').textContent"))
    }

    fn titles(&self) -> Vec<String> {
        self.run("document.getElementById('gpus').titles")
    }
}

fn state() -> State {
    let mut state = State { phase: Phase::Idle, policy: "Unified".into(), ..State::default() };
    state.tenant.name = "<b>chat".into();
    state.idle_since_unix_ms = Some(NOW - 30_000);
    state.layers =
        vec![Residency::Resident, Residency::Moving { slot: 0 }, Residency::Loading, Residency::Resident];
    state.activity.absent_layers = 1;
    (state.remap.alpha, state.remap.cap_layers) = (1, 2);
    (state.queue.running, state.queue.waiting) = (3, 4);
    state.memory.capacity_bytes = 10 * MIB;
    state.memory.owners =
        OwnerBytes { weights_layers_bytes: 6 * MIB, kv_bytes: 4 * MIB, ..OwnerBytes::default() };
    state.figures.delivered_tbt = Percentiles { samples: 9, p50_ns: 12_300_000, p99_ns: 45_600_000 };
    (state.slo.tbt_attained_permille, state.slo.ttft_attained_permille) = (Some(987), Some(750));
    (state.slo.ttft_overdue, state.slo.tbt_overdue) = (2, 1);
    state.neighbourhood =
        Some(Neighbourhood { borrowed_bytes: 3 * MIB, lent_bytes: 2048, ..Neighbourhood::default() });
    let moved = |at_unix_ms, detail: &str| {
        let (reason, detail) = ("neighbour_lends".to_owned(), detail.to_owned());
        Move { at_unix_ms, reason, detail, bytes: 512, ..Move::default() }
    };
    state.moves = vec![moved(NOW - 300_000, "older"), moved(NOW - 5_000, "newer")];
    state
}

fn overview() -> Overview {
    let lost = TenantReport::Unreachable {
        namespace: "team".into(),
        name: "code".into(),
        reason: "no answer in 2 s".into(),
    };
    let gpu = GpuOverview {
        namespace: "team".into(),
        pool: "trial".into(),
        name: "trial-shared-0".into(),
        node: Some("node-7".into()),
        read_unix_ms: Some(NOW - 2_000),
        problem: Some("one is silent".into()),
        tenants: vec![TenantReport::State(Box::new(state())), lost],
    };
    Overview { at_unix_ms: NOW, operator: "1.2.3".into(), gpus: vec![gpu], ..Overview::default() }
}

#[test]
fn a_gpu_is_drawn_with_every_figure_and_names_stay_text() {
    let page = Page::of(&overview(), "");
    let text = page.text("gpus").replace('\u{a0}', " ");
    let head =
        "trial-shared-0| |pool trial, namespace team, node node-7, read 2 s ago|one is silent|tenant|phase|";
    assert!(text.starts_with(head), "{text}");
    let row = "<b>chat|Unified|Idle|idle for 30 s|10.0 MiB|3.0 MiB / 2.0 KiB|1 / 2|3 + 4|12.3 / 45.6|98.7 %|3 overdue|75.0 %|code|no answer: no answer in 2 s|";
    assert!(text.contains(row), "{text}");
    let moves =
        "5 s ago  <b>chat: neighbour lends, newer (512 B)|5 min ago  <b>chat: neighbour lends, older (512 B)";
    assert!(text.ends_with(moves), "{text}");
    let titles: Vec<String> = page.titles().into_iter().map(|title| title.replace('\u{a0}', " ")).collect();
    let expected = [
        "weights 6291456 0 0 resident layers: 6.0 MiB",
        "kv 4194304 0 0 KV: 4.0 MiB",
        "weights  layer 0: resident",
        "slots  layer 1: moving",
        "activations  layer 2: loading",
        "absent  layer 3: lent away",
    ];
    assert_eq!(titles, expected);
    assert!(page.text("legend").contains("promised to a neighbour"));
}

#[test]
fn the_filter_takes_names_of_pools_nodes_and_tenants() {
    let page = Page::of(&overview(), "");
    for (filter, shown) in [("node-7", 1), ("code", 1), ("tria", 1), ("somebody else", 0), ("", 1)] {
        page.run::<()>(&format!("filterFor('{filter}')"));
        assert_eq!(page.text("gpus").contains("trial-shared-0"), shown == 1, "{filter}");
        let of = if shown == 1 { "1 GPU with tenants, " } else { "0 of 1 GPU, " };
        assert!(page.text("now").starts_with(of), "{filter}: {}", page.text("now"));
        assert!(page.text("now").ends_with(", operator 1.2.3"));
    }
}

#[test]
fn a_leader_that_does_not_answer_is_told() {
    let page = Page::of(&overview(), "not the leader");
    assert_eq!(page.text("now"), "The leader does not answer: not the leader");
    assert_eq!(page.text("gpus"), "");
}

/// The words of the page that are red.
fn red(overview: &Overview) -> Vec<String> {
    Page::of(overview, "").run("document.getElementById('gpus').of('bad')")
}

#[test]
fn a_hang_and_a_late_holder_are_told_and_red_while_they_last() {
    let hang = |alive, ago_ms| {
        let at_unix_ms = NOW - ago_ms;
        Some(EngineHang { at_unix_ms, during: "step".into(), waited_ms: 2_300, limit_ms: 2_250, alive })
    };
    // Overdue tokens are red as well, and another test's.
    let calm = || {
        let mut overview = overview();
        let TenantReport::State(state) = &mut overview.gpus[0].tenants[0] else { panic!("a state") };
        (state.slo.ttft_overdue, state.slo.tbt_overdue) = (0, 0);
        overview
    };
    let with = |last_hang, turn| {
        let mut overview = calm();
        let TenantReport::State(state) = &mut overview.gpus[0].tenants[0] else { panic!("a state") };
        state.engine.last_hang = last_hang;
        state.neighbourhood = Some(Neighbourhood { turn, ..Neighbourhood::default() });
        overview
    };
    let well = red(&calm());
    assert_eq!(well, ["one is silent", "no answer: no answer in 2 s"]);
    assert_eq!(red(&with(None, Some(TurnState::default()))), well);
    let holder = Some("team/code".to_owned());
    let late = TurnState { holder, holder_overdue_ms: 1_500, ..TurnState::default() };
    let lasts = red(&with(hang(true, 12_000), Some(late)));
    let words = [
        "team/code holds the turn and is 1500 ms past its deadline",
        "engine hung 12 s ago (step, 2300 ms without progress): it still lives",
    ];
    assert_eq!(lasts, [well[0].as_str(), words[0], words[1], well[1].as_str()]);
    let taken = |ago_ms| {
        let (from, at_unix_ms) = ("team/code".to_owned(), NOW - ago_ms);
        let last_takeover = Some(Takeover { from, at_unix_ms, overdue_ms: 260 });
        Some(TurnState { last_takeover, ..TurnState::default() })
    };
    let over = with(hang(false, 12_000), taken(30_000));
    assert_eq!(red(&over), well, "what is over is told without colour");
    let text = Page::of(&over, "").text("gpus");
    let hung = "engine hung 12 s ago (step, 2300 ms without progress): it was killed";
    let took = "took the turn from team/code 30 s ago, 260 ms past its deadline";
    assert!(text.contains(hung) && text.contains(took), "{text}");
    let later = Page::of(&with(hang(false, 600_000), taken(600_000)), "").text("gpus");
    assert!(!later.contains("hung") && !later.contains("took the turn"), "{later}");
}
