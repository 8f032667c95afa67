//! Columns of text, as wide as they need to be.

/// Prints rows under a heading; columns are two spaces apart.
pub fn print<const N: usize>(heading: [&str; N], rows: &[[String; N]]) {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
    });
    line(heading, widths);
    rows.iter().for_each(|row| line(std::array::from_fn(|column| row[column].as_str()), widths));
}

/// The same where the number of columns is not known before.
pub fn print_lines(heading: &[String], lines: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = lines.iter().map(Vec::as_slice).chain([heading]).filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..heading.len()).map(width).collect();
    for line in std::iter::once(heading).chain(lines.iter().map(Vec::as_slice)) {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn line<const N: usize>(cells: [&str; N], widths: [usize; N]) {
    let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
    println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
}
