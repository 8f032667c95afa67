//! The page in a browser: its structure in six states, at two widths, in light and in dark colours.

use std::path::{Path, PathBuf};

use base64::Engine as _;

use sluice_e2e::browser::{Chromium, PageView};

use crate::scenes;
use crate::served::PageServer;

const WIDTHS: [u32; 2] = [1400, 360];
/// Environment variable: a folder for pictures of all states.
const PICTURES: &str = "SLUICE_PAGE_PICTURES";
/// Environment variable: writes the structures anew instead of comparing them.
const ACCEPT: &str = "SLUICE_PAGE_ACCEPT";

/// What of the page each state is looked at by: a fragment, and what it has when it is drawn.
fn view(scene: &str) -> (&'static str, &'static str) {
    match scene {
        "pool" => ("#gpu=team%2Ffleet-a-7", ".gpu .tenant"),
        "missed" => ("#gpu=team%2Fbox-one-0&tenant=team%2Fchat", ".view .moves"),
        _ => ("", ".gpu .moves"),
    }
}

fn structure_file(scene: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/structure/{scene}.txt"))
}

#[test]
fn six_states_have_the_committed_structure_at_both_widths_and_in_both_colours() {
    let Some(chromium) = Chromium::find("the structure of the page") else { return };
    for scene in scenes::ALL {
        let served = scenes::served(scene);
        let (fragment, drawn) = view(scene);
        for (width, dark) in WIDTHS.into_iter().flat_map(|width| [(width, false), (width, true)]) {
            let sight = chromium.page(width, dark);
            sight.open(&served.url(&format!("/{fragment}")), drawn);
            let what = format!("{scene} at {width} px, {}", if dark { "dark" } else { "light" });
            looks_right(&sight, &what);
            save(&sight, scene, width, dark);
            let structure = sight.structure();
            let file = structure_file(scene);
            if std::env::var_os(ACCEPT).is_some() {
                std::fs::write(&file, &structure).unwrap();
            }
            let committed = std::fs::read_to_string(&file).unwrap_or_default();
            let other =
                (1..).zip(structure.lines().zip(committed.lines())).find(|(_, (now, then))| now != then);
            let file = file.display();
            assert_eq!(other, None, "{what}: this line is not that of {file}; {ACCEPT}=1 writes it anew");
            let lines = |text: &str| text.lines().count();
            assert_eq!(lines(&structure), lines(&committed), "lines of {what} and of {file}");
        }
    }
}

/// Checks that no element is wider than the screen, no resource is from another host, the page is small, and text
/// has enough contrast.
fn looks_right(sight: &PageView, what: &str) {
    sight.is_narrow_and_small(what);
    let faint = sight.value(FAINT);
    assert!(faint.as_array().unwrap().is_empty(), "{what}: too little contrast: {faint}");
}

/// Text with a contrast below 4.5 to 1 (WCAG 2, level AA), by the colours that the browser computed.
const FAINT: &str = "(() => {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const paint = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const grounds = (one) => (one ? [...grounds(one.parentElement), getComputedStyle(one).backgroundColor] : []);
  const found = [];
  for (const one of document.querySelectorAll('body *')) {
    const own = [...one.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || one.closest('noscript, .hidden, option, script, title')) continue;
    const style = getComputedStyle(one);
    const ground = grounds(one);
    const ink = one instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(paint([...ground, ink])), light(paint(ground))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) found.push(`${one.textContent.slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return found.slice(0, 5);
})()";

fn save(sight: &PageView, scene: &str, width: u32, dark: bool) {
    let Some(folder) = std::env::var_os(PICTURES).map(PathBuf::from) else { return };
    std::fs::create_dir_all(&folder).unwrap();
    let colours = if dark { "dark" } else { "light" };
    let picture = base64::engine::general_purpose::STANDARD.decode(sight.picture()).unwrap();
    std::fs::write(folder.join(format!("{scene}-{width}-{colours}.png")), picture).unwrap();
}

#[test]
fn the_keyboard_reaches_every_part_and_moves_over_the_map() {
    let Some(chromium) = Chromium::find("the page by keyboard") else { return };
    let served = scenes::served("lending");
    let sight = chromium.page(1400, false);
    sight.open(&served.url("/"), ".gpu .moves");
    let stops = sight.tab_stops(9);
    let expected = [
        "Skip to the GPUs",
        "Sluice",
        "Memory now, MiB",
        "chat",
        "code",
        "summary",
        "The last moves of memory",
    ];
    assert_eq!(stops[..7], expected, "{stops:?}");
    let served = scenes::served("pool");
    let sight = chromium.page(1400, false);
    sight.open(&served.url("/"), ".map .cell");
    let name = "document.activeElement.getAttribute('aria-label')";
    sight.value("document.querySelector('.cell').focus()");
    let first = sight.value(name);
    sight.press("ArrowRight");
    let second = sight.value(name);
    assert_ne!(first, second);
    for key in ["ArrowDown", "ArrowUp", "ArrowLeft"] {
        sight.press(key);
    }
    assert_eq!(sight.value(name), first);
    assert!(first.as_str().unwrap().contains("with problems"), "the first of all has trouble: {first}");
    sight.press("Enter");
    sight.until("Boolean(document.querySelector('.gpu .tenant'))");
    assert!(sight.value("document.activeElement.innerText").as_str().unwrap().starts_with("GPU fleet-a-"));
}

#[test]
fn page_updates_while_viewed_and_keeps_focus() {
    let Some(chromium) = Chromium::find("updates of the page") else { return };
    let hub = scenes::empty();
    let served = PageServer::new(hub.clone());
    let sight = chromium.page(1400, false);
    sight.open(&served.url("/"), "#link");
    sight.until("document.getElementById('link').textContent === 'Nothing was read yet.'");
    scenes::one_gpu(&hub, "lending", 100);
    sight.until("document.querySelectorAll('.tenant').length === 3");
    assert!(
        sight
            .value("document.querySelector('.loans').innerText")
            .as_str()
            .unwrap()
            .contains("No tenant lends")
    );
    sight.value("document.querySelectorAll('.tenant a')[1].focus()");
    scenes::one_gpu(&hub, "lending", 898);
    scenes::one_gpu(&hub, "lending", 899);
    sight.until("document.querySelector('.loans').innerText.includes('code lends 8\u{a0}MiB to chat')");
    assert_eq!(sight.value("document.activeElement.innerText"), "code");
    sight.until("document.querySelectorAll('.band').length >= 9");
    assert_eq!(sight.value("document.getElementById('announce').textContent"), "", "nothing is wrong");
    scenes::one_gpu(&hub, "late-holder", 900);
    sight.until("document.getElementById('announce').textContent.includes('team/code holds the time slice')");
}

#[test]
fn refused_viewer_sees_reason_and_page_after_another_disconnects() {
    let Some(chromium) = Chromium::find("a page with too many viewers") else { return };
    let hub = scenes::empty();
    let served = PageServer::new(hub.clone());
    scenes::one_gpu(&hub, "quiet", 900);
    let viewers: Vec<_> = std::iter::from_fn(|| hub.viewer(None)).collect();
    assert_eq!(viewers.len(), 32);
    let sight = chromium.page(1400, false);
    sight.open(&served.url("/"), "#link");
    let why = "Too many viewers have this page open. Close one of them.\\n";
    sight.until(&format!("document.getElementById('link').textContent === '{why}'"));
    drop(viewers);
    sight.until("document.getElementById('link').className === 'live'");
}

#[test]
fn move_with_late_size_has_one_row() {
    let Some(chromium) = Chromium::find("moves of the page") else { return };
    let hub = scenes::empty();
    let served = PageServer::new(hub.clone());
    let sight = chromium.page(1400, false);
    scenes::one_loan(&hub, 1, 0);
    sight.open(&served.url("/"), ".moves tbody tr");
    let rows = "[...document.querySelectorAll('.moves tbody tr')].map((row) => row.lastElementChild.innerText).join()";
    assert_eq!(sight.value(rows), "–", "decided, not moved");
    scenes::one_loan(&hub, 2, 3 << 20);
    sight.until(&format!("{rows} === '3\u{a0}MiB'"));
}

#[test]
fn moves_of_all_tenants_are_sorted_newest_first() {
    let Some(chromium) = Chromium::find("the order of moves") else { return };
    for (ago_ms, expected) in [([9_000, 20_000], "chat,code"), ([20_000, 9_000], "code,chat")] {
        let hub = scenes::empty();
        scenes::two_moves(&hub, ago_ms);
        let served = PageServer::new(hub);
        let sight = chromium.page(1400, false);
        sight.open(&served.url("/"), ".moves tbody tr");
        let names =
            "[...document.querySelectorAll('.moves tbody tr')].map((row) => row.cells[1].innerText).join()";
        assert_eq!(sight.value(names), expected);
    }
}

#[test]
fn the_map_is_searched_and_sorted() {
    let Some(chromium) = Chromium::find("the map of a pool") else { return };
    let served = scenes::served("pool");
    let sight = chromium.page(360, true);
    sight.open(&served.url("/"), ".map .cell");
    assert_eq!(sight.value("document.querySelectorAll('.cell').length"), 300);
    let first = "document.querySelector('.cell').getAttribute('aria-label')";
    let set = |id: &str, value: &str| {
        let act = "one.dispatchEvent(new Event('input', { bubbles: true }))";
        sight.value(&format!(
            "((one) => {{ one.value = '{value}'; {act}; }})(document.getElementById('{id}'))"
        ));
    };
    set("sort", "name");
    sight.until(&format!("{first}.startsWith('team/fleet-a-0:')"));
    set("filter", "node-12");
    sight.until("document.querySelectorAll('.cell').length === 8");
    set("filter", "nothing of this name");
    sight.until("document.querySelectorAll('.cell').length === 0");
}
