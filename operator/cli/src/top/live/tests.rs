//! The live screen on test terminals: recorded states at many sizes, and every key.

use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};
use sluice_wire::overview::GpuOverview;
use sluice_wire::state::{Move, TenantReport};
use sluice_wire::{Overview, State};

use super::app::ActiveView;
use super::keys::{BINDINGS, KeyCommand, command};
use super::model::Sort;
use super::screen::TopScreen;
use super::theme::Theme;

/// Output of `sluice top --json` for `examples/three-tenants.yaml` under the load of its tutorial.
const RECORDED: &str = include_str!("tests/three-tenants.json");
const INTERVAL: Duration = Duration::from_millis(500);

fn recorded() -> Vec<State> {
    serde_json::from_str(RECORDED).unwrap()
}

fn overview(states: &[State], silent: &[&str]) -> Overview {
    let now_unix_ms = states.iter().map(|state| state.at_unix_ms).max().unwrap_or(1);
    let mut tenants: Vec<_> =
        states.iter().map(|state| TenantReport::State(Box::new(state.clone()))).collect();
    tenants.extend(silent.iter().map(|name| TenantReport::Unreachable {
        namespace: "default".into(),
        name: (*name).into(),
        reason: "connection refused".into(),
    }));
    let gpu = GpuOverview {
        namespace: "default".into(),
        name: "local-shared-0".into(),
        read_unix_ms: Some(now_unix_ms),
        tenants,
        ..GpuOverview::default()
    };
    Overview { at_unix_ms: now_unix_ms, gpus: vec![gpu], ..Overview::default() }
}

/// Two minutes that end with the recorded states. Each tenant's figures rise and fall.
fn screen_of(states: &[State], silent: &[&str], colour: bool) -> TopScreen {
    let mut screen = TopScreen::with_interval(INTERVAL, "no tenant", Theme { colour });
    for step in (0..240_u64).rev() {
        let past = states.iter().map(|state| {
            let mut state = state.clone();
            state.at_unix_ms -= step * 500;
            state.figures.decode_tokens_total =
                state.figures.decode_tokens_total.saturating_sub(step * 500 + step * step * 2);
            let figures = &mut state.figures;
            figures.preemptions_total = figures.preemptions_total.saturating_sub(step);
            figures.recomputed_tokens_total = figures.recomputed_tokens_total.saturating_sub(step * 700);
            let slower = |ns: u64| ns * (100 + step % 40) / 100;
            state.figures.ttft.p99_ns = slower(state.figures.ttft.p99_ns);
            state.figures.delivered_tbt.p99_ns = slower(state.figures.delivered_tbt.p99_ns);
            state
        });
        let past: Vec<_> = past.collect();
        let overview = overview(&past, silent);
        let now_unix_ms = overview.at_unix_ms;
        screen.update(overview, now_unix_ms);
    }
    screen
}

fn screen() -> TopScreen {
    screen_of(&recorded(), &[], false)
}

fn draw(screen: &mut TopScreen, width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> String {
    let symbols: Vec<_> = buffer.content.iter().map(ratatui::buffer::Cell::symbol).collect();
    let rows = symbols.chunks(usize::from(buffer.area.width).max(1));
    let rows: Vec<_> = rows.map(|row| row.concat().trim_end().to_owned()).collect();
    rows.join("\n").trim_end().to_owned()
}

fn press(screen: &mut TopScreen, code: KeyCode) -> bool {
    screen.on_event(&Event::Key(code.into()), 24)
}

fn row<'a>(text: &'a str, start: &str) -> &'a str {
    let found = text.lines().find(|line| line.trim_start_matches(['>', ' ']).starts_with(start));
    found.unwrap_or_else(|| panic!("{start}:\n{text}"))
}

#[test]
fn list_matches_snapshots_at_four_widths() {
    for (width, expected) in [
        (40, include_str!("tests/list-40.txt")),
        (80, include_str!("tests/list-80.txt")),
        (120, include_str!("tests/list-120.txt")),
        (200, include_str!("tests/list-200.txt")),
    ] {
        assert_snapshot(&text(&draw(&mut screen(), width, 24)), expected, &format!("list-{width}"));
    }
}

#[test]
fn tenant_page_matches_snapshots_at_two_widths() {
    for (width, expected) in
        [(80, include_str!("tests/tenant-80.txt")), (120, include_str!("tests/tenant-120.txt"))]
    {
        let mut screen = screen();
        press(&mut screen, KeyCode::Enter);
        assert_snapshot(&text(&draw(&mut screen, width, 60)), expected, &format!("tenant-{width}"));
    }
}

#[test]
fn tenant_page_reports_missed_objective_once() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Enter);
    let shown = text(&draw(&mut screen, 120, 80)).to_lowercase();
    assert_eq!((shown.matches("missed").count(), shown.matches("95.6 %").count()), (1, 1), "{shown}");
}

#[test]
fn manually_sleeping_tenant_shows_wake_command() {
    let mut states = recorded();
    states[1].sleep_ordered = true;
    let shown = text(&draw(&mut screen_of(&states, &[], false), 120, 24));
    assert!(row(&shown, "■code").contains(" asleep by hand "), "{shown}");
    assert!(row(&shown, "■summary").contains(" hibernated "), "{shown}");
    let below = shown.lines().skip_while(|line| !line.contains("■code")).nth(1).unwrap();
    assert!(
        below
            .trim()
            .starts_with("Asleep by hand: no request wakes it. On this machine: `sluice wake default/code`;"),
        "{shown}"
    );
}

/// Compares with the committed text. With `SLUICE_TOP_ACCEPT=1` the text is overwritten.
fn assert_snapshot(shown: &str, expected: &str, name: &str) {
    if std::env::var_os("SLUICE_TOP_ACCEPT").is_some() {
        let file = format!("{}/src/top/live/tests/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(file, format!("{shown}\n")).unwrap();
        return;
    }
    assert_eq!(shown, expected.trim_end(), "{name}; SLUICE_TOP_ACCEPT=1 writes it anew");
}

#[test]
fn no_line_is_wider_than_the_terminal_and_no_size_is_too_small() {
    let mut long = recorded();
    long[0].tenant.name = "a-tenant-模型-with-a-name-of-some-length".into();
    long[0].moves.push(Move { detail: "x".repeat(300), bytes: 1, ..Move::default() });
    for states in [recorded(), long, Vec::new()] {
        let mut screen = screen_of(&states, &["gone"], true);
        for code in [KeyCode::Null, KeyCode::Enter, KeyCode::Char('?')] {
            press(&mut screen, code);
            for (width, height) in [
                (1, 1),
                (2, 2),
                (3, 1),
                (1, 9),
                (9, 3),
                (20, 5),
                (40, 10),
                (79, 24),
                (80, 24),
                (120, 40),
                (250, 60),
            ] {
                let wide: Vec<_> = screen
                    .lines(width, height)
                    .into_iter()
                    .chain(super::help::lines(width))
                    .filter(|line| line.width() > width)
                    .collect();
                assert!(wide.is_empty(), "{width} x {height}: {wide:#?}");
                assert!(screen.lines(width, height).len() <= height);
                draw(&mut screen, width as u16, height as u16);
            }
        }
    }
}

#[test]
fn screen_before_first_poll_says_so_then_shows_hint() {
    let mut screen = TopScreen::with_interval(INTERVAL, "no tenant is here", Theme { colour: false });
    assert!(text(&draw(&mut screen, 80, 24)).starts_with("sluice top   looking for sidecars"));
    screen.update(Overview::default(), 1);
    for code in [KeyCode::Enter, KeyCode::Down, KeyCode::PageUp] {
        press(&mut screen, code);
    }
    assert!(text(&draw(&mut screen, 80, 24)).starts_with("sluice top   no tenant is here"));
}

#[test]
fn missed_objective_shows_explain_reason() {
    let mut states = recorded();
    let chat = &mut states[0];
    (chat.slo.tbt_attained_permille, chat.slo.allowed_miss_permille) = (Some(882), 10);
    (chat.queue.running, chat.queue.waiting, chat.kv.utilisation_permille) = (45, 3, 980);
    let shown = text(&draw(&mut screen_of(&states, &[], false), 120, 30));
    assert!(row(&shown, "■chat").contains("✗ 88.2 %"), "{shown}");
    let explained = sluice_page::text::explain::reasons(&states[0], states[0].at_unix_ms, None);
    let cause = explained.iter().find(|one| one.kind == "cause").unwrap();
    let below = shown.lines().skip_while(|line| !line.contains("✗ 88.2 %")).nth(1).unwrap();
    assert!(cause.text.starts_with(below.trim()), "{below}: {cause:?}");
    states[0].slo.tbt_attained_permille = Some(1000);
    let shown = text(&draw(&mut screen_of(&states, &[], false), 120, 30));
    assert!(row(&shown, "■chat").contains('✓') && !shown.contains(below.trim()), "{shown}");
}

#[test]
fn an_objective_is_green_when_met_and_red_when_missed_and_a_plain_screen_has_no_colour() {
    let colour_of = |permille, colour| {
        let mut states = recorded();
        (states[0].slo.tbt_attained_permille, states[0].slo.allowed_miss_permille) = (Some(permille), 10);
        let buffer = draw(&mut screen_of(&states, &[], colour), 80, 24);
        let cell = buffer.content.iter().find(|cell| ["✓", "✗"].contains(&cell.symbol())).unwrap().fg;
        let coloured =
            buffer.content.iter().filter(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset);
        (cell, coloured.count() > 0)
    };
    assert_eq!(colour_of(882, true), (Color::Indexed(160), true));
    assert_eq!(colour_of(1000, true), (Color::Indexed(28), true));
    assert_eq!(colour_of(882, false), (Color::Reset, false));
}

#[test]
fn a_sidecar_that_does_not_answer_is_a_row_with_its_reason() {
    let shown = text(&draw(&mut screen_of(&recorded(), &["gone"], false), 80, 24));
    assert!(shown.starts_with("sluice top   4 tenants   1 without an answer"), "{shown}");
    assert!(row(&shown, "■gone").contains("no answer"), "{shown}");
    assert!(shown.contains("Its sidecar does not answer: connection refused."), "{shown}");
}

#[test]
fn the_bar_names_each_owner_in_the_colour_of_its_row() {
    let buffer = draw(&mut screen_of(&recorded(), &[], true), 80, 24);
    let shown = text(&buffer);
    let (at, bar) = shown.lines().enumerate().find(|(_, line)| line.contains('▓')).unwrap();
    assert!(bar.starts_with("chat"), "{shown}");
    assert_eq!(ratatui::text::Line::from(bar).width(), 80);
    let label = &buffer[(0, at as u16)];
    assert!(label.modifier.contains(Modifier::REVERSED));
    let (swatch, _) = shown.lines().enumerate().find(|(_, line)| line.contains("■chat")).unwrap();
    assert_eq!(buffer[(2, swatch as u16)].fg, label.fg);
}

#[test]
fn the_help_lists_every_key_and_every_key_of_it_does_something() {
    let mut help = screen();
    press(&mut help, KeyCode::Char('?'));
    let shown = text(&draw(&mut help, 120, 60));
    for binding in &BINDINGS {
        let line = row(&shown, &binding.label());
        assert!(line.ends_with(binding.help), "{}: {shown}", binding.label());
        for (code, ctrl) in binding.keys {
            let modifiers = if *ctrl { KeyModifiers::CONTROL } else { KeyModifiers::NONE };
            let event = Event::Key(KeyEvent::new(*code, modifiers));
            // From this state each key changes something: the middle row is selected, and no key sets the current
            // order.
            let mut screen = screen();
            press(&mut screen, KeyCode::Down);
            match binding.command {
                KeyCommand::Back => assert!(!press(&mut screen, KeyCode::Enter)),
                KeyCommand::Sort(Sort::Name) => assert!(!press(&mut screen, KeyCode::Char('t'))),
                _ => {}
            }
            let before = screen.app.clone();
            let ends = screen.on_event(&event, 24);
            assert_eq!(ends, binding.command == KeyCommand::Quit, "{binding:?}");
            assert_eq!(screen.app != before, !ends, "{binding:?} changes nothing");
        }
    }
}

#[test]
fn the_page_of_the_command_line_lists_the_same_keys() {
    let page = include_str!("../../../../../docs/cli.md");
    for binding in &BINDINGS {
        let row = page.lines().find(|line| line.ends_with(&format!("| {} |", binding.help)));
        let labels = binding.label().replace("Page ", "Page_");
        let listed =
            |label: &str| row.is_some_and(|row| row.contains(&format!("`{}`", label.replace('_', " "))));
        assert!(labels.split(' ').all(listed), "{} {}", binding.label(), binding.help);
    }
}

#[test]
fn no_key_is_handled_that_the_help_does_not_list() {
    let characters = (' '..='~').map(KeyCode::Char);
    let named = [KeyCode::Up, KeyCode::Down, KeyCode::Left, KeyCode::Right, KeyCode::Enter, KeyCode::Esc];
    let more =
        [KeyCode::Tab, KeyCode::Home, KeyCode::End, KeyCode::PageUp, KeyCode::PageDown, KeyCode::Delete];
    let help = super::help::lines(120).iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for code in characters.chain(named).chain(more) {
        let event = KeyEvent::from(code);
        let Some(asked) = command(&event) else {
            let mut screen = screen_of(&[], &[], false);
            let before = screen.app.clone();
            assert!(!screen.on_event(&Event::Key(event), 24));
            assert_eq!(screen.app, before, "{code:?}");
            continue;
        };
        let binding = BINDINGS.iter().find(|one| one.command == asked && one.keys.contains(&(code, false)));
        assert!(help.contains(&binding.unwrap().label()), "{code:?}");
    }
}

#[test]
fn sort_orders_put_worst_first_and_r_reverses() {
    let mut states = recorded();
    let figures = |state: &mut State, ttft, tbt, used, permille| {
        (state.figures.ttft.samples, state.figures.ttft.p99_ns) = (1, ttft);
        (state.figures.delivered_tbt.samples, state.figures.delivered_tbt.p99_ns) = (1, tbt);
        (state.kv.layer_blocks_total, state.kv.layer_blocks_used, state.kv.layer_block_bytes) =
            (100, used, 1 << 10);
        (state.slo.tbt_attained_permille, state.slo.ttft_attained_permille) = (Some(permille), None);
        state.slo.allowed_miss_permille = 10;
        state.phase = sluice_wire::state::Phase::Active;
    };
    // chat, code, summary.
    figures(&mut states[0], 3, 1, 20, 995);
    figures(&mut states[1], 1, 2, 30, 900);
    figures(&mut states[2], 2, 3, 10, 950);
    let mut screen = screen_of(&states, &[], false);
    let mut order = |character| {
        press(&mut screen, KeyCode::Char(character));
        let rows = screen.board.rows(screen.app.sort, screen.app.reverse);
        rows.iter()
            .map(|row| row.tenant.title.trim_start_matches("default/").to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(order('n'), "chat code summary");
    assert_eq!(order('r'), "summary code chat");
    assert_eq!(order('s'), "code summary chat", "a new order is not turned round");
    assert_eq!(order('f'), "chat summary code");
    assert_eq!(order('b'), "summary code chat");
    assert_eq!(order('v'), "code chat summary");
    assert_eq!(order('r'), "summary chat code");
}

#[test]
fn unknown_values_sort_last_and_unreachable_tenant_ranks_worst() {
    let screen = screen_of(&recorded(), &["a-silent-one"], false);
    for sort in [Sort::Tokens, Sort::Ttft, Sort::Tbt, Sort::Kv, Sort::Layers] {
        let rows = screen.board.rows(sort, false);
        let known = |row: &super::model::Row<'_>| match sort {
            Sort::Tokens => row.tenant.tokens_per_s.is_some(),
            Sort::Ttft => row.tenant.ttft_ns.is_some(),
            Sort::Tbt => row.tenant.tbt_ns.is_some(),
            Sort::Kv => row.tenant.kv_total_bytes > 0,
            _ => row.tenant.answers,
        };
        assert!(rows.is_sorted_by_key(|row| !known(row)) && !known(&rows[3]), "{sort:?}");
    }
    assert_eq!(screen.board.rows(Sort::Slo, false)[0].tenant.title, "default/a-silent-one");
}

#[test]
fn selection_follows_tenant_when_rows_change() {
    let all = recorded();
    let mut screen = screen_of(&all[1..], &[], false);
    press(&mut screen, KeyCode::Down);
    let selected = |screen: &TopScreen| {
        let rows = screen.board.rows(screen.app.sort, screen.app.reverse);
        rows.get(screen.app.index(&rows)).map(|row| row.tenant.title.clone())
    };
    assert_eq!(selected(&screen).as_deref(), Some("default/summary"));
    screen.update(overview(&all, &[]), 1);
    assert_eq!(selected(&screen).as_deref(), Some("default/summary"));
    screen.update(overview(&all[..1], &[]), 2);
    assert_eq!(selected(&screen).as_deref(), Some("default/chat"));
}

#[test]
fn the_selected_tenant_is_in_view_among_many() {
    let many: Vec<State> = (0..40)
        .map(|at| {
            let mut state = recorded()[0].clone();
            state.tenant.name = format!("t{at:02}");
            state
        })
        .collect();
    let mut screen = TopScreen::with_interval(INTERVAL, "no tenant", Theme { colour: false });
    screen.update(overview(&many, &[]), many[0].at_unix_ms);
    for at in 0..40 {
        let shown = text(&draw(&mut screen, 80, 24));
        assert!(shown.lines().any(|line| line.starts_with(&format!("> ■t{at:02} "))), "{shown}");
        press(&mut screen, KeyCode::Down);
    }
}

#[test]
fn paused_screen_ignores_updates_until_resumed() {
    let mut screen = screen();
    let now = screen.board.now_unix_ms;
    press(&mut screen, KeyCode::Char('p'));
    screen.update(overview(&[], &[]), now + 500);
    let shown = text(&draw(&mut screen, 80, 24));
    assert!(shown.starts_with("sluice top   PAUSED   3 tenants"), "{shown}");
    press(&mut screen, KeyCode::Char('p'));
    screen.update(overview(&[], &[]), now + 500);
    assert!(text(&draw(&mut screen, 80, 24)).starts_with("sluice top   no tenant"));
}

#[test]
fn page_scroll_is_clamped_and_esc_returns_to_list() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Enter);
    (0..300).for_each(|_| assert!(!press(&mut screen, KeyCode::Down)));
    let end = text(&draw(&mut screen, 80, 24));
    assert!(end.contains("figures") && end.contains("link     "), "{end}");
    press(&mut screen, KeyCode::Char('?'));
    press(&mut screen, KeyCode::Esc);
    assert_eq!(
        (screen.app.view, screen.app.is_help_open),
        (ActiveView::Tenant, false),
        "first the help goes"
    );
    press(&mut screen, KeyCode::Esc);
    assert_eq!(screen.app.view, ActiveView::List);
    assert!(!press(&mut screen, KeyCode::Esc), "it never ends");
}

#[test]
fn histories_are_bounded_by_a_quarter_of_an_hour() {
    let mut states = recorded();
    let mut screen = TopScreen::with_interval(INTERVAL, "no tenant", Theme { colour: false });
    for _ in 0..2_500 {
        states.iter_mut().for_each(|state| state.at_unix_ms += 500);
        screen.update(overview(&states, &[]), states[0].at_unix_ms);
    }
    let gpu = screen.board.gpus().next().unwrap();
    let samples = gpu.history().series("default/chat", sluice_page::history::Metric::Tokens).count();
    assert_eq!(samples, 1800, "two a second");
    assert_eq!(screen.board.span_ms(), 900_000);
}
