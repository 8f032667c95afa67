//! The files that one source file names: `mod x;`, `#[path = ".."] mod x;`, `include!("..")`.

use crate::rust_text::{blank, is_word};

/// A file that is compiled, and where its child modules are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Path relative to the workspace root.
    pub file: String,
    /// Folder of `x.rs` for a `mod x;` in it.
    children: String,
}

impl Source {
    /// The root of a target, or a file named by `#[path]`: its modules are in the same folder.
    pub fn root(file: String) -> Self {
        let children = parent(&file).to_owned();
        Self { file, children }
    }

    /// An ordinary module: the modules of `a/b.rs` lie in `a/b/`.
    fn module(file: String) -> Self {
        let children = file.strip_suffix(".rs").unwrap_or(&file).to_owned();
        Self { file, children }
    }
}

/// Every file that `source`, with text `text`, may name. Some of them need not exist.
pub fn declared(source: &Source, text: &str) -> Vec<Source> {
    let blanked = blank(text);
    let mut reader =
        Reader { source, text, inline: Vec::new(), depth: 0, paths: Vec::new(), found: Vec::new() };
    let tokens = tokens(&blanked);
    for at in 0..tokens.len() {
        reader.read(&blanked, &tokens[at..]);
    }
    reader.found
}

/// A word or a single other byte of blanked source, as a byte range.
type Token = std::ops::Range<usize>;

fn tokens(blanked: &str) -> Vec<Token> {
    let bytes = blanked.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let length = bytes[at..].iter().take_while(|&&byte| is_word(byte)).count();
        let end = at + length.max(1);
        if !bytes[at].is_ascii_whitespace() {
            tokens.push(at..end);
        }
        at = end;
    }
    tokens
}

struct Reader<'a> {
    source: &'a Source,
    text: &'a str,
    /// Inline modules around the present place: folder name, and the depth of braces inside it.
    inline: Vec<(String, usize)>,
    depth: usize,
    /// Values of `path = ".."` in the attributes of the item that comes next.
    paths: Vec<String>,
    found: Vec<Source>,
}

impl Reader<'_> {
    /// Reads the first of `tokens`, looking ahead where it has to.
    fn read(&mut self, blanked: &str, tokens: &[Token]) {
        let word = |at: usize| tokens.get(at).map_or("", |token| &blanked[token.clone()]);
        match word(0) {
            "mod" if word(2) == ";" => self.module_file(word(1)),
            "mod" if word(2) == "{" => self.inline_module(word(1)),
            "path" if word(1) == "=" && word(2) == "\"" => self.paths.extend(self.literal(&tokens[2])),
            "include" if [word(1), word(2), word(3)] == ["!", "(", "\""] => self.include(&tokens[3]),
            "{" => self.depth += 1,
            "}" => self.close(),
            ";" => self.paths.clear(),
            _ => {}
        }
    }

    /// The string whose opening quote is `quote`, which the blanked text does not show.
    fn literal(&self, quote: &Token) -> Option<String> {
        let rest = &self.text[quote.end..];
        rest.split('"').next().map(str::to_owned)
    }

    fn module_file(&mut self, name: &str) {
        let folder = self.folder();
        self.found.push(Source::module(join(&folder, &format!("{name}.rs"))));
        self.found.push(Source::root(join(&folder, &format!("{name}/mod.rs"))));
        // Outside inline modules a path starts at the file's own folder, inside at the folder of the module.
        let base = if self.inline.is_empty() { parent(&self.source.file).to_owned() } else { folder };
        let paths = std::mem::take(&mut self.paths);
        self.found.extend(paths.iter().map(|path| Source::root(join(&base, path))));
    }

    fn inline_module(&mut self, name: &str) {
        let folder = self.paths.pop().unwrap_or_else(|| name.to_owned());
        self.paths.clear();
        self.inline.push((folder, self.depth + 1));
    }

    fn close(&mut self) {
        if self.inline.last().is_some_and(|(_, depth)| *depth == self.depth) {
            self.inline.pop();
        }
        self.depth = self.depth.saturating_sub(1);
        self.paths.clear();
    }

    fn include(&mut self, quote: &Token) {
        if let Some(path) = self.literal(quote) {
            self.found.push(Source::root(join(parent(&self.source.file), &path)));
        }
    }

    fn folder(&self) -> String {
        self.inline.iter().fold(self.source.children.clone(), |folder, (name, _)| join(&folder, name))
    }
}

fn parent(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// `folder/path` with `.` and `..` resolved.
fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
