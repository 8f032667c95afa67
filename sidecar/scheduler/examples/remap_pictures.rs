//! Draws how the layers of an idle tenant change when the other tenant of its GPU needs memory: the pictures of
//! `docs/explain/remap.md`, from the journals of a real run.
//!
//! How to make the committed pictures (`run` is an empty folder):
//!
//! ```sh
//! cp docs/pictures/remap.yaml run/
//! sluice-model-gen --out run/model --layers 16 --hidden 256 --heads 8
//! sluice up -f run/remap.yaml --journal run/journals  # in another terminal; wait for two lines `ready`
//! sluice bench -n 15 --lengths 16:100                                 # 15 requests to the tenant `busy`
//! curl localhost:8001/v1/completions -H 'content-type: application/json' \
//!   -d '{"model": "idle", "prompt": "Hello", "max_tokens": 20}'       # then one to the tenant `idle`
//! cargo run -p sluice-scheduler --example remap_pictures -- \
//!   run/journals/default.idle.journal run/journals/default.busy.journal docs/pictures
//! ```
//!
//! Stop `sluice up` before the last command. The pictures are `remap-1.svg` to `remap-6.svg`; every width in them is
//! that of the replayed state.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufReader;
use std::process::ExitCode;

use sluice_policy::chunk_table::Owner;
use sluice_policy::ids::LayerId;
use sluice_scheduler::journal::replay_with;
use sluice_scheduler::scheduler::Scheduler;

const USAGE: &str = "\
Draws the loan of an idle tenant's layers from the journals of two tenants of one GPU.

Usage: remap_pictures IDLE_JOURNAL BUSY_JOURNAL FOLDER

IDLE_JOURNAL  journal of the tenant that lends, as `sluice up --journal DIR` writes it
BUSY_JOURNAL  journal of the tenant that borrows, of the same run
FOLDER        where remap-1.svg to remap-6.svg are written
";

const MIB: f64 = 1024.0 * 1024.0;
// Lengths in a picture are units of its view box: about one pixel on a phone with a width of 400 pixels.
/// Left edge of all content.
const LEFT: f64 = 10.0;
/// Width of a picture.
const WIDTH: f64 = 400.0;
/// Display width of the picture on a wide page, pixels.
const SHOWN_WIDTH: f64 = 480.0;
/// Length of one MiB: a row has space for 38 MiB.
const SCALE: f64 = 10.0;
/// Height of a row.
const BAR: f64 = 30.0;
/// Maximum characters of a caption line.
const LINE: usize = 54;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|word| word == "--help" || word == "-h") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let [idle, busy, folder] = arguments.as_slice() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match draw(idle, busy, folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("remap_pictures: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn draw(idle: &str, busy: &str, folder: &str) -> Result<(), String> {
    let (idle, busy) = (read(idle)?, read(busy)?);
    for (number, frame) in (1..).zip(frames(&idle, &busy)?) {
        let path = format!("{folder}/remap-{number}.svg");
        fs::write(&path, frame.svg(number)).map_err(|error| format!("{path}: {error}"))?;
        println!("{path}: {}", frame.caption);
    }
    Ok(())
}

/// State of one layer's device memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    /// Its weights are resident.
    Resident,
    /// Its memory is mapped again and its weights are loading.
    Loading,
    /// Its memory is lent.
    Lent,
}

/// A tenant's state at one moment; sizes in MiB.
struct Moment {
    seconds: f64,
    layers: Vec<Layer>,
    layer_mib: f64,
    other_mib: f64,
    kv_used_mib: f64,
    kv_free_mib: f64,
    /// Requests in the batch.
    running: u32,
    /// Requests that wait, and those of them that ran before.
    waiting: u32,
    preempted: u32,
}

impl Moment {
    fn of(seconds: f64, core: &Scheduler) -> Moment {
        let manager = core.manager();
        let (geometry, ledger, kv) =
            (manager.geometry(), manager.figures().ledger(), manager.figures().kv_counts());
        let requests = core.snapshot();
        let mib = |chunks: u32| f64::from(chunks) * geometry.chunk_bytes as f64 / MIB;
        let layers =
            (0..geometry.layers()).zip(manager.figures().residency()).map(|(layer, residency)| {
                match (ledger.count(Owner::WeightsLayer(LayerId(layer))), residency.present) {
                    (0, _) => Layer::Lent,
                    (_, true) => Layer::Resident,
                    (_, false) => Layer::Loading,
                }
            });
        let kv_mib = mib(ledger.count(Owner::Kv));
        let kv_used_mib = f64::from(kv.used_layer_blocks) * geometry.layer_block_bytes as f64 / MIB;
        let other =
            [Owner::WeightsGlobal, Owner::Activation, Owner::Staging].map(|owner| ledger.count(owner));
        Moment {
            seconds,
            layers: layers.collect(),
            layer_mib: mib(geometry.slab_chunks(0)),
            other_mib: mib(other.iter().sum()),
            kv_used_mib,
            kv_free_mib: (kv_mib - kv_used_mib).max(0.0),
            running: requests.running,
            waiting: requests.waiting,
            preempted: requests.preempted,
        }
    }

    fn lent(&self) -> usize {
        self.layers.iter().filter(|layer| **layer == Layer::Lent).count()
    }

    /// Describes its requests.
    fn requests(&self) -> String {
        let Moment { running, waiting, preempted, .. } = self;
        match (running + waiting, *preempted) {
            (0, _) => "no request".to_owned(),
            (_, 0) => format!("requests: {running} run, {waiting} wait"),
            (_, lost) if lost == *waiting => {
                format!("requests: {running} run, {waiting} wait without their KV")
            }
            (_, lost) => format!("requests: {running} run, {waiting} wait, {lost} of them without their KV"),
        }
    }

    fn held_mib(&self) -> f64 {
        let layers = (self.layers.len() - self.lent()) as f64 * self.layer_mib;
        layers + self.other_mib + self.kv_used_mib + self.kv_free_mib
    }
}

/// Returns all moments of a journal from the one at which its tenant is loaded.
fn read(path: &str) -> Result<Vec<Moment>, String> {
    let file = File::open(path).map_err(|error| format!("{path}: {error}"))?;
    let mut moments = Vec::new();
    let report = replay_with(BufReader::new(file), |now, core| {
        if !moments.is_empty() || core.manager().status().is_loaded() {
            moments.push(Moment::of(now.0 as f64 / 1e9, core));
        }
    });
    report.map_err(|error| format!("{path}: {error}"))?;
    if moments.is_empty() { Err(format!("{path}: the tenant never loaded")) } else { Ok(moments) }
}

/// Both tenants at one moment, with a caption.
struct Frame<'a> {
    caption: &'static str,
    seconds: f64,
    idle: &'a Moment,
    busy: &'a Moment,
}

/// Selects six moments of the loan.
///
/// A journal's clock starts with its sidecar. The first loan, which is in both journals, aligns the two clocks.
fn frames<'a>(idle: &'a [Moment], busy: &'a [Moment]) -> Result<Vec<Frame<'a>>, String> {
    let (own, share) = (idle[0].held_mib(), busy[0].held_mib());
    let lends = find(idle, 0, "the first tenant lends nothing", |moment| moment.held_mib() < own)?;
    let borrows = find(busy, 0, "the second tenant borrows nothing", |moment| moment.held_mib() > share)?;
    let (start, shift) = (idle[lends].seconds, busy[borrows].seconds - idle[lends].seconds);

    let most = idle.iter().map(Moment::lent).max().unwrap_or(0);
    let first = find(idle, lends, "the first tenant lends no layer", |moment| moment.lent() > 0)?;
    let half = find(idle, first, "half of the layers never go", |moment| 2 * moment.lent() >= most)?;
    let all = find(idle, half, "the layers never go", |moment| moment.lent() == most)?;
    let back = find(idle, all, "no layer comes back", |moment| moment.lent() < most)?;
    let after = |moment: &&Moment| moment.seconds - shift >= idle[all].seconds;
    let peak = busy.iter().filter(after).max_by(|one, other| one.kv_used_mib.total_cmp(&other.kv_used_mib));
    let peak = peak.ok_or("the second tenant never uses the layers' memory")?.seconds - shift;
    let rests = |moment: &Moment| moment.seconds <= peak && moment.running + moment.waiting == 0;
    let full = idle.iter().rposition(rests).unwrap_or(all);
    let loads = |moment: &Moment| {
        moment.layers.contains(&Layer::Loading)
            && 2 * moment.layers.iter().filter(|layer| **layer != Layer::Resident).count() <= most
    };
    let loading = find(idle, back, "no layer loads again", loads)?;
    let home = find(idle, loading, "not all layers come back", |moment| {
        moment.layers.iter().all(|layer| *layer == Layer::Resident)
    })?;
    let chosen = [
        (
            lends.saturating_sub(1),
            "Each tenant holds its share. The requests of busy need more KV than it has left.",
        ),
        (first - 1, "Free KV memory of idle goes to busy first."),
        (half, "Then layers of idle go, the last one first."),
        (full, "The memory of the lent layers holds KV of busy."),
        (loading, "A request comes for idle. busy has given the memory back, and the layers of idle load."),
        (home, "All layers are back, and idle answers."),
    ];
    let frame = |(at, caption): (usize, &'static str)| {
        let moment: &Moment = &idle[at];
        let before = |other: &&Moment| match at < lends {
            // An idle tenant has few moments, so take the busy tenant's last moment before the first loan.
            true => other.seconds < busy[borrows].seconds,
            false => other.seconds - shift <= moment.seconds,
        };
        let other = busy.iter().rev().find(before);
        let seconds = (moment.seconds - start).max(0.0);
        Frame { caption, seconds, idle: moment, busy: other.unwrap_or(&busy[0]) }
    };
    Ok(chosen.into_iter().map(frame).collect())
}

fn find(
    moments: &[Moment],
    from: usize,
    problem: &str,
    fits: impl Fn(&Moment) -> bool,
) -> Result<usize, String> {
    let found = moments[from..].iter().position(fits);
    found.map(|at| from + at).ok_or_else(|| problem.to_owned())
}

impl Frame<'_> {
    fn svg(&self, number: usize) -> String {
        let lines = lines(&format!("{number}. {} ({:.2}\u{a0}s)", self.caption, self.seconds));
        let mut body = String::new();
        let mut top = 6.0;
        for line in &lines {
            text(&mut body, LEFT, top + 16.0, 15, line);
            top += 20.0;
        }
        for (name, tenant) in [("idle", self.idle), ("busy", self.busy)] {
            top = rows(&mut body, name, tenant, top + 10.0);
        }
        let height = legend(&mut body, top + 14.0) + 6.0;
        let shown_height = height * SHOWN_WIDTH / WIDTH;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" width=\"{SHOWN_WIDTH:.0}\" \
             height=\"{shown_height:.0}\" font-family=\"sans-serif\">\n\
             <title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n",
            self.caption
        )
    }
}

/// Breaks a caption into lines at spaces.
fn lines(caption: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in caption.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + word.chars().count() < LINE => {
                *line = format!("{line} {word}")
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Colour and name of a memory owner.
type Holder = (&'static str, &'static str);
const OTHER: Holder = ("#9aa5b1", "embeddings, activations");
const RESIDENT: Holder = ("#3b82c4", "layer");
const LOADING: Holder = ("#9ecbf0", "layer that loads");
const LENT: Holder = ("#ffffff", "layer whose memory is lent");
const KV_USED: Holder = ("#e08a1e", "KV with tokens");
const KV_FREE: Holder = ("#f7dcb4", "KV, free");

/// Draws a tenant's memory: a row of weights and activations and a row of KV. Returns the bottom edge.
fn rows(svg: &mut String, name: &str, tenant: &Moment, top: f64) -> f64 {
    text(svg, LEFT, top + 14.0, 15, &format!("{name} holds {:.1} MiB", tenant.held_mib()));
    let row = top + 20.0;
    let mut at = LEFT;
    piece(svg, &mut at, row, tenant.other_mib, OTHER, "");
    for (number, layer) in tenant.layers.iter().enumerate() {
        let holder = match layer {
            Layer::Resident => RESIDENT,
            Layer::Loading => LOADING,
            Layer::Lent => LENT,
        };
        piece(svg, &mut at, row, tenant.layer_mib, holder, &number.to_string());
    }
    let row = row + BAR + 3.0;
    let mut at = LEFT;
    piece(svg, &mut at, row, tenant.kv_used_mib, KV_USED, "");
    piece(svg, &mut at, row, tenant.kv_free_mib, KV_FREE, "");
    let words = format!(
        "memory of {} of {} layers; KV {:.1} MiB, with tokens {:.1} MiB",
        tenant.layers.len() - tenant.lent(),
        tenant.layers.len(),
        tenant.kv_used_mib + tenant.kv_free_mib,
        tenant.kv_used_mib
    );
    text(svg, LEFT, row + BAR + 16.0, 13, &words);
    text(svg, LEFT, row + BAR + 32.0, 13, &tenant.requests());
    row + BAR + 38.0
}

/// Draws a box with a label, as wide as the owner's memory. Moves `at` from its left to its right edge.
fn piece(svg: &mut String, at: &mut f64, top: f64, mib: f64, holder: Holder, word: &str) {
    if mib <= 0.0 {
        return;
    }
    let (width, colour) = (mib * SCALE, holder.0);
    let line = if holder == LENT { "#9aa5b1\" stroke-dasharray=\"3 2" } else { "#ffffff" };
    let place = format!("x=\"{at:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{BAR}\"");
    writeln!(svg, "<rect {place} fill=\"{colour}\" stroke=\"{line}\"/>").expect("a String takes all");
    if !word.is_empty() {
        let ink = if holder == RESIDENT { "#ffffff" } else { "#52606d" };
        let place = format!("x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\"", *at + width / 2.0, top + 20.0);
        writeln!(svg, "<text {place} font-size=\"13\" fill=\"{ink}\">{word}</text>")
            .expect("a String takes all");
    }
    *at += width;
}

/// Draws the legend: three rows of two names. Returns the bottom edge.
fn legend(svg: &mut String, top: f64) -> f64 {
    let holders = [OTHER, RESIDENT, LOADING, LENT, KV_USED, KV_FREE];
    for (number, (colour, name)) in holders.into_iter().enumerate() {
        let left = LEFT + if number % 2 == 0 { 0.0 } else { 190.0 };
        let row = top + 20.0 * (number / 2) as f64;
        let place = format!("x=\"{left:.0}\" y=\"{row:.0}\" width=\"12\" height=\"12\"");
        writeln!(svg, "<rect {place} fill=\"{colour}\" stroke=\"#9aa5b1\"/>").expect("a String takes all");
        text(svg, left + 18.0, row + 11.0, 13, name);
    }
    top + 20.0 * (holders.len() / 2) as f64
}

fn text(svg: &mut String, x: f64, y: f64, size: u32, words: &str) {
    writeln!(svg, "<text x=\"{x:.0}\" y=\"{y:.0}\" font-size=\"{size}\" fill=\"#1f2933\">{words}</text>")
        .expect("a String takes all");
}
