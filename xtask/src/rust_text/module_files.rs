//! The files that a target compiles: `mod x;`, `#[path = ".."] mod x;`, `include!("..")`.

use std::collections::BTreeSet;

use super::blank;
use super::tokens::{Token, tokens};

/// Names of modules from the root of a target to one module, which is empty for the root.
pub type ModulePath = Vec<String>;

/// A file that is compiled, and where its child modules are looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompiledFile {
    /// Path relative to the workspace root.
    pub file: String,
    /// Its module, from the root of the target.
    pub module: ModulePath,
    /// Folder of `x.rs` for a `mod x;` in it.
    children: String,
}

impl CompiledFile {
    /// The root of a target.
    fn root(file: String) -> Self {
        Self::with_modules_next_to_it(file, ModulePath::new())
    }

    /// A file that holds its modules in its own folder: a root, or one named by `#[path]`.
    fn with_modules_next_to_it(file: String, module: ModulePath) -> Self {
        let children = parent(&file).to_owned();
        Self { file, module, children }
    }

    /// An ordinary module: the modules of `a/b.rs` lie in `a/b/`.
    fn ordinary(file: String, module: ModulePath) -> Self {
        let children = file.strip_suffix(".rs").unwrap_or(&file).to_owned();
        Self { file, module, children }
    }
}

/// All files that `roots` reach by `mod` declarations and `include!`. `text` gives the text of a file, or `None` if
/// there is no such file.
pub fn reached<'a>(
    roots: impl Iterator<Item = String>,
    text: impl Fn(&str) -> Option<&'a str>,
) -> Vec<CompiledFile> {
    let mut waiting: Vec<CompiledFile> = roots.map(CompiledFile::root).collect();
    let mut seen = BTreeSet::new();
    let mut reached = Vec::new();
    while let Some(source) = waiting.pop() {
        let Some(content) = text(&source.file) else { continue };
        if seen.insert(source.file.clone()) {
            waiting.extend(declared(&source, content));
            reached.push(source);
        }
    }
    reached
}

/// Every file that `source`, with text `text`, may name. Some of them need not exist.
fn declared(source: &CompiledFile, text: &str) -> Vec<CompiledFile> {
    let blanked = blank(text);
    let mut reader =
        Reader { source, text, inline: Vec::new(), depth: 0, paths: Vec::new(), found: Vec::new() };
    let tokens = tokens(&blanked);
    for at in 0..tokens.len() {
        reader.read(&blanked, &tokens[at..]);
    }
    reader.found
}

struct Reader<'a> {
    source: &'a CompiledFile,
    text: &'a str,
    /// Inline modules around the present place, the innermost last.
    inline: Vec<InlineModule>,
    depth: usize,
    /// Values of `path = ".."` in the attributes of the item that comes next.
    paths: Vec<String>,
    found: Vec<CompiledFile>,
}

struct InlineModule {
    name: String,
    folder: String,
    /// Depth of braces inside it.
    depth: usize,
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
        let inline = self.inline.iter().map(|module| &module.name);
        let module: ModulePath =
            self.source.module.iter().chain(inline).cloned().chain([name.to_owned()]).collect();
        self.found.push(CompiledFile::ordinary(join(&folder, &format!("{name}.rs")), module.clone()));
        let at = |file| CompiledFile::with_modules_next_to_it(file, module.clone());
        self.found.push(at(join(&folder, &format!("{name}/mod.rs"))));
        // Outside inline modules a path starts at the file's own folder, inside at the folder of the module.
        let base = if self.inline.is_empty() { parent(&self.source.file).to_owned() } else { folder };
        let paths = std::mem::take(&mut self.paths);
        self.found.extend(paths.iter().map(|path| at(join(&base, path))));
    }

    fn inline_module(&mut self, name: &str) {
        let folder = self.paths.pop().unwrap_or_else(|| name.to_owned());
        self.paths.clear();
        self.inline.push(InlineModule { name: name.to_owned(), folder, depth: self.depth + 1 });
    }

    fn close(&mut self) {
        if self.inline.last().is_some_and(|module| module.depth == self.depth) {
            self.inline.pop();
        }
        self.depth = self.depth.saturating_sub(1);
        self.paths.clear();
    }

    fn include(&mut self, quote: &Token) {
        if let Some(path) = self.literal(quote) {
            let file = join(parent(&self.source.file), &path);
            self.found.push(CompiledFile::with_modules_next_to_it(file, self.source.module.clone()));
        }
    }

    fn folder(&self) -> String {
        let inner = self.inline.iter().map(|module| &module.folder);
        inner.fold(self.source.children.clone(), |folder, name| join(&folder, name))
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
