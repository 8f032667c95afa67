//! Mutants that are known mistakes: missing fragments, wrong bounds, alignment, masks, strides, and mistakes of the
//! host. `hand_picked.txt` holds them: a sentence each, and the edits that make it.

use std::cell::Cell;

use sluice_kernels::cuda::LaunchPlan;

use super::generate::KernelText;
use super::suite::Suite;

/// One edit of a mutant: of the kernel's text, of its argument, or of its grid.
enum Edit {
    /// The first line with `from` has `to` in its place.
    Text { from: String, to: String },
    /// Adds `by` to the number of `bytes` bytes at `offset` of the argument.
    Argument { offset: usize, bytes: usize, by: i64 },
    /// The grid has `by` blocks more in one dimension.
    Grid { axis: usize, by: i64 },
}

/// A mistake, and what makes it.
struct Mistake {
    sentence: String,
    kernel: String,
    edits: Vec<Edit>,
}

fn mistakes() -> Vec<Mistake> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/mutants/hand_picked.txt");
    std::fs::read_to_string(path).unwrap().split("\n\n").map(mistake).collect()
}

fn mistake(paragraph: &str) -> Mistake {
    let (sentence, lines) = paragraph.split_once('\n').unwrap();
    let (mut kernel, mut edits) = ("", Vec::new());
    for line in lines.lines() {
        let (kind, rest) = line.split_once(' ').unwrap();
        let words: Vec<_> = rest.split(' ').collect();
        kernel = words[0];
        edits.push(match kind {
            "text" => {
                let parts: Vec<_> = rest.split(" | ").collect();
                Edit::Text { from: parts[1].to_owned(), to: parts[2].to_owned() }
            }
            "argument" => {
                let bytes = if words[2] == "u64" { 8 } else { 4 };
                Edit::Argument { offset: words[1].parse().unwrap(), bytes, by: words[3].parse().unwrap() }
            }
            "grid" => Edit::Grid { axis: words[1].parse().unwrap(), by: words[2].parse().unwrap() },
            other => panic!("an edit of {other}"),
        });
    }
    Mistake { sentence: sentence.trim_start_matches("# ").to_owned(), kernel: kernel.to_owned(), edits }
}

impl Mistake {
    /// Edits the kernel's text.
    fn text(&self, text: &KernelText) -> String {
        let mut lines = Vec::new();
        for edit in &self.edits {
            if let Edit::Text { from, to } = edit {
                lines.push(
                    text.replaced(from, to).unwrap_or_else(|| panic!("{}: no line {from}", self.sentence)),
                );
            }
        }
        let lines: Vec<_> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
        text.with_lines(&lines)
    }

    /// Edits a launch.
    fn launch(&self, plan: &mut LaunchPlan) {
        for edit in &self.edits {
            match edit {
                Edit::Text { .. } => {}
                Edit::Argument { offset, bytes, by } => {
                    let place = &mut plan.params[*offset..offset + bytes];
                    let mut wide = [0; 8];
                    wide[..*bytes].copy_from_slice(place);
                    let number = u64::from_le_bytes(wide).wrapping_add_signed(*by);
                    place.copy_from_slice(&number.to_le_bytes()[..*bytes]);
                }
                Edit::Grid { axis, by } => {
                    let blocks = i64::from(plan.grid[*axis]) + by;
                    plan.grid[*axis] = blocks.max(1) as u32;
                }
            }
        }
    }
}

#[test]
fn every_known_mistake_is_caught() {
    let suite = Suite::shared();
    let texts = KernelText::all();
    let mut passing = Vec::new();
    let mistakes = mistakes();
    assert!(mistakes.len() >= 36, "{}", mistakes.len());
    for mistake in mistakes {
        let text = texts.iter().find(|text| text.kernel == mistake.kernel).unwrap();
        let module = sluice_ptx::Module::parse(&mistake.text(text)).unwrap();
        let edited = Cell::new(false);
        let edit = |plan: &mut LaunchPlan| {
            edited.set(true);
            mistake.launch(plan);
        };
        if suite.run(text.kernel, &module, &edit).is_none() {
            passing.push(mistake.sentence.clone());
        }
        assert!(edited.get(), "{}: its kernel was launched", mistake.sentence);
    }
    assert!(passing.is_empty(), "not caught: {passing:#?}");
}
