//! Tables of built pages: where names in them may break, and to which column a cell belongs.
//!
//! A browser alone breaks a long name in the middle of a word, or not at all. `docs/site.css` has it break nowhere
//! but at the marks that are made here. On a narrow screen it shows the cells of a row below each other, each with
//! its label.

/// `page` (HTML) with a `<wbr>` behind the `.`, `_`, `/`, `,` and blanks of code in cells, and a `data-label` on
/// each cell.
pub fn prepare(page: &str) -> String {
    inside(page, "<table", "</table>", |table| {
        let marked = inside(table, "<td", "</td>", |cell| inside(cell, "<code>", "</code>", mark));
        label(&marked)
    })
}

/// `text` with `change` made to all that stands between `start` and `end`.
fn inside(text: &str, start: &str, end: &str, change: impl Fn(&str) -> String) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(from) = rest.find(start).map(|at| at + start.len()) {
        let Some(to) = rest[from..].find(end).map(|at| from + at) else { break };
        out.push_str(&rest[..from]);
        out.push_str(&change(&rest[from..to]));
        rest = &rest[to..];
    }
    out + rest
}

fn mark(name: &str) -> String {
    let mut marked = String::with_capacity(name.len() + 16);
    let mut before = ' ';
    let mut characters = name.chars().peekable();
    while let Some(character) = characters.next() {
        marked.push(character);
        let joins = before != ' ' && characters.peek().is_some_and(|next| next.is_alphabetic());
        if matches!(character, ' ' | ',') || joins && matches!(character, '.' | '_' | '/') {
            marked.push_str("<wbr>");
        }
        before = character;
    }
    marked
}

/// The inner part of a table with the text of a column's heading as the label of each cell in it.
fn label(table: &str) -> String {
    let headings: Vec<&str> =
        table.split("<th>").skip(1).filter_map(|rest| rest.split("</th>").next()).collect();
    inside(table, "<tr>", "</tr>", |row| {
        let mut cells = row.split("<td>");
        let mut labelled = cells.next().unwrap_or_default().to_owned();
        for (column, cell) in cells.enumerate() {
            match headings.get(column).filter(|heading| !heading.is_empty() && !heading.contains(['<', '"']))
            {
                Some(heading) => labelled.push_str(&format!("<td data-label=\"{heading}\">{cell}")),
                None => labelled.push_str(&format!("<td>{cell}")),
            }
        }
        labelled
    })
}

#[cfg(test)]
mod tests {
    use super::prepare;

    fn cell(code: &str) -> String {
        format!("<table><tr><td><code>{code}</code> a.b</td></tr></table>")
    }

    #[test]
    fn names_in_cells_may_break_behind_their_parts() {
        for (name, marked) in [
            ("spec.gpus[].count", "spec.<wbr>gpus[].<wbr>count"),
            ("sluice_moves_total{reason}", "sluice_<wbr>moves_<wbr>total{reason}"),
            ("GET /v1/state", "GET <wbr>/v1/<wbr>state"),
            (".name", ".name"),
            ("a,b", "a,<wbr>b"),
            ("0.1", "0.1"),
            ("...", "..."),
        ] {
            assert_eq!(prepare(&cell(name)), cell(marked));
        }
    }

    #[test]
    fn cells_know_the_heading_of_their_column() {
        let table = "<table><thead><tr><th></th><th>limit</th></tr></thead>\
                     <tbody><tr><td>a</td><td>1</td></tr></tbody></table>";
        let labelled = "<table><thead><tr><th></th><th>limit</th></tr></thead>\
                        <tbody><tr><td>a</td><td data-label=\"limit\">1</td></tr></tbody></table>";
        assert_eq!(prepare(table), labelled);
    }

    #[test]
    fn text_outside_of_tables_stays() {
        let page =
            "<p><code>spec.gpus</code></p><pre><code class=\"language-yaml\">spec.gpus</code></pre><td>";
        assert_eq!(prepare(page), page);
    }
}
