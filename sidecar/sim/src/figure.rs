//! Draws figures as SVG.

use std::ops::Range;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Circle, Color, DrawingArea, DrawingAreaErrorKind, DrawingBackend, IntoDrawingArea,
    LineSeries, Palette, Palette99, PathElement, SVGBackend, TRANSPARENT, Text, WHITE,
};
use thiserror::Error;

use crate::experiments::Figure;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type DrawError<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Size of each figure, pixels.
const SIZE: (u32, u32) = (960, 500);
const FONT: (&str, u32) = ("sans-serif", 16);
const SMALL: (&str, u32) = ("sans-serif", 12);
/// Width of the legend on the right, pixels.
const LEGEND: u32 = 200;
const LEGEND_TOP: i32 = 44;
const LEGEND_ROW: i32 = 18;
const SMALLEST: (&str, u32) = ("sans-serif", 10);
/// Largest number of names on the axis in the normal font size.
const FEW_NAMES: usize = 6;

/// A figure that cannot be drawn. The drawing library's errors borrow from its backend; their text is what a user needs.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot draw: {0}")]
pub struct DrawingFailed(String);

/// Draws figures into a file, one below the other.
///
/// # Errors
/// The file cannot be written.
pub fn draw(figures: &[Figure], file: &Path) -> Result<(), DrawingFailed> {
    try_draw(figures, file).map_err(|error| DrawingFailed(error.to_string()))
}

fn try_draw(figures: &[Figure], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let size = (SIZE.0, SIZE.1 * figures.len().max(1) as u32);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, figure) in area.split_evenly((figures.len().max(1), 1)).iter().zip(figures) {
        draw_panel(figure, part).map_err(|error| error.to_string())?;
    }
    area.present()?;
    Ok(())
}

fn draw_panel<'a>(figure: &Figure, area: &Area<'a>) -> Result<(), DrawError<'a>> {
    let points = || figure.lines.iter().flat_map(|line| &line.points);
    let (x, y) = (x_range(figure), range(points().map(|point| point.1)));
    // The legend would cover the lines, so it has its own area.
    let (lines, beside) = area.split_horizontally(SIZE.0 - LEGEND);
    let mut chart = ChartBuilder::on(&lines)
        .caption(&figure.title, FONT)
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)?;
    let marks = |at: &f64| x_label(figure, *at);
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(TRANSPARENT).x_desc(&figure.x).y_desc(&figure.y).y_label_formatter(&number);
    let font = if figure.names.len() > FEW_NAMES { SMALLEST } else { SMALL };
    mesh.x_label_style(font).x_label_formatter(&marks).x_labels(2 * figure.names.len().max(5) + 1).draw()?;
    for (index, line) in figure.lines.iter().enumerate() {
        let color = Palette99::pick(index).mix(1.0);
        chart.draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)))?;
        chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 3, color.filled())))?;
        let at = LEGEND_TOP + LEGEND_ROW * index as i32;
        beside.draw(&PathElement::new([(0, at), (18, at)], color.stroke_width(2)))?;
        beside.draw(&Text::new(line.name.as_str(), (26, at - LEGEND_ROW / 3), SMALL))?;
    }
    Ok(())
}

/// Returns the range of the horizontal axis.
fn x_range(figure: &Figure) -> Range<f64> {
    match figure.names.len() {
        0 => range(figure.lines.iter().flat_map(|line| &line.points).map(|point| point.0)),
        names => 0.5..names as f64 + 0.5,
    }
}

/// Returns the label at a mark of the horizontal axis.
fn x_label(figure: &Figure, at: f64) -> String {
    if figure.names.is_empty() {
        return number(&at);
    }
    let at = at - 1.0;
    let named = figure.names.get(at as usize).filter(|_| at >= 0.0 && at.fract().abs() < 1e-9);
    named.cloned().unwrap_or_default()
}

/// Formats a number with at most six decimals.
fn number(value: &f64) -> String {
    format!("{}", (value * 1e6).round() / 1e6)
}

/// Returns the range from zero, or the smallest value below it, to slightly above the largest, which is at least 1.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) =
        values.fold((0.0_f64, 1.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    least..most * 1.05
}
