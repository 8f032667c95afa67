//! Formats text tables with columns of minimum width.

/// Formats rows under a heading, two spaces between columns and no final newline.
pub fn text<const N: usize>(heading: [&str; N], rows: &[[String; N]]) -> String {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heading[column].chars().count()]).max().unwrap_or(0)
    });
    let rows = rows.iter().map(|row| line(&row.each_ref().map(String::as_str), &widths));
    std::iter::once(line(&heading, &widths)).chain(rows).collect::<Vec<_>>().join("\n")
}

/// Formats rows with a variable number of columns.
pub fn text_of_lines(heading: &[String], lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = lines.iter().map(Vec::as_slice).chain([heading]).filter_map(|line| line.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<_> = (0..heading.len()).map(width).collect();
    let row = |cells: &[String]| line(&cells.iter().map(String::as_str).collect::<Vec<_>>(), &widths);
    std::iter::once(heading).chain(lines.iter().map(Vec::as_slice)).map(row).collect::<Vec<_>>().join("\n")
}

fn line(cells: &[&str], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}
