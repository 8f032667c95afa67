//! The results of an experiment.

use serde::Serialize;

use super::row::ComparisonRow;

/// A line of a figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points of the line.
    pub points: Vec<(f64, f64)>,
}

/// A figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Title above the figure.
    pub title: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Label of the vertical axis.
    pub y: String,
    /// Names of the values 1, 2, … of the horizontal axis; empty if it is numeric.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Lines of the figure.
    pub lines: Vec<Series>,
}

/// The results of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExperimentReport {
    /// Comparisons, in the paper's order.
    pub rows: Vec<ComparisonRow>,
    /// Figures, drawn one below the other.
    pub figures: Vec<Figure>,
    /// Measurements of each run if there are several: a heading and lines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Vec<String>>,
}

impl ExperimentReport {
    /// Creates a report of comparisons and one figure.
    pub fn new(rows: Vec<ComparisonRow>, figure: Figure) -> ExperimentReport {
        ExperimentReport { rows, figures: vec![figure], details: Vec::new() }
    }

    /// Whether every figure agrees or has a reason to differ, and every requirement holds.
    pub fn has_passed(&self) -> bool {
        self.rows.iter().all(|row| row.verdict.is_pass())
    }
}
