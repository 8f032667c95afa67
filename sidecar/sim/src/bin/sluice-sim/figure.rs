//! Figures as SVG.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Color, DrawingArea, DrawingAreaErrorKind, DrawingBackend, IntoDrawingArea, LineSeries,
    Palette, Palette99, PathElement, SVGBackend, WHITE,
};
use sluice_sim::experiments::Figure;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed<'a> = DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>;

/// Of each figure.
const SIZE: (u32, u32) = (800, 500);
const FONT: (&str, u32) = ("sans-serif", 16);

/// Draws figures into a file, one below the other.
pub fn draw(figures: &[Figure], file: &Path) -> Result<()> {
    // The drawing library's errors borrow from its backend; their text is what a user needs.
    try_draw(figures, file).map_err(|error| anyhow!("cannot draw: {error}"))
}

fn try_draw(figures: &[Figure], file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let size = (SIZE.0, SIZE.1 * figures.len().max(1) as u32);
    let area = SVGBackend::new(file, size).into_drawing_area();
    area.fill(&WHITE)?;
    for (part, figure) in area.split_evenly((figures.len().max(1), 1)).iter().zip(figures) {
        panel(figure, part).map_err(|error| error.to_string())?;
    }
    area.present()?;
    Ok(())
}

fn panel<'a>(figure: &Figure, area: &Area<'a>) -> Result<(), Failed<'a>> {
    let points = || figure.lines.iter().flat_map(|line| &line.points);
    let (x, y) = (range(points().map(|point| point.0)), range(points().map(|point| point.1)));
    let mut chart = ChartBuilder::on(area)
        .caption(&figure.title, FONT)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(x, y)?;
    chart.configure_mesh().x_desc(&figure.x).y_desc(&figure.y).draw()?;
    for (index, line) in figure.lines.iter().enumerate() {
        let color = Palette99::pick(index).mix(1.0);
        let style = color.stroke_width(2);
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), style))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).draw()
}

/// From zero, or the least value below it, to a little above the largest.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) =
        values.fold((0.0_f64, 1.0_f64), |(least, most), value| (least.min(value), most.max(value)));
    least..most * 1.05
}
