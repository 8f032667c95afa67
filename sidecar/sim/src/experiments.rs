//! Named experiments: what a paper says, what we get, and whether that is the same.

use serde::Serialize;

pub mod ellm;
pub mod oneiros;
pub mod orbitflow;
pub mod pie;

/// One figure of an experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What is compared.
    pub what: String,
    /// What the paper, or the closed form derived from it, says.
    pub paper: String,
    /// What the production code gives.
    pub ours: String,
    /// They agree.
    pub agrees: bool,
}

impl Row {
    /// Two values that should be equal.
    pub fn equal<T: PartialEq + ToString>(what: impl Into<String>, paper: &T, ours: &T) -> Row {
        Row { what: what.into(), paper: paper.to_string(), ours: ours.to_string(), agrees: paper == ours }
    }
}

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Above it.
    pub title: String,
    /// Below the horizontal axis.
    pub x: String,
    /// Beside the vertical axis.
    pub y: String,
    /// Its lines.
    pub lines: Vec<Line>,
}

/// What an experiment found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Comparisons, in the paper's order.
    pub rows: Vec<Row>,
    /// What to draw.
    pub figure: Figure,
}

impl Report {
    /// Every figure agrees.
    pub fn agrees(&self) -> bool {
        self.rows.iter().all(|row| row.agrees)
    }
}

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows, and where the paper says so.
    pub about: &'static str,
    /// Runs it.
    pub run: fn() -> Report,
}

/// All of them.
pub const ALL: [Experiment; 5] = [
    Experiment {
        name: "orbitflow-fig3",
        about: "stalls and memory of three placements of two requests (OrbitFlow Fig. 3)",
        run: orbitflow::fig3,
    },
    Experiment {
        name: "orbitflow-dl",
        about: "distinct placements of a request by the number of layers (OrbitFlow 4.2)",
        run: orbitflow::dl,
    },
    Experiment {
        name: "pie-fig4",
        about: "first swaps, stay and longest queues without a stall (Pie 3.3, Fig. 4)",
        run: pie::fig4,
    },
    Experiment {
        name: "oneiros-alpha",
        about: "layers that can be given away without a stall, over one slot and two (Oneiros 5.4)",
        run: oneiros::alpha,
    },
    Experiment {
        name: "ellm-algorithms",
        about: "admission, inflation and the elastic buffer, case by case (eLLM Algorithms 1 and 2)",
        run: ellm::algorithms,
    },
];

/// The experiment of this name.
pub fn named(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}
