//! The paths that one source file names: those of its `use` items, and those in its code, such as `super::name`.

use std::collections::BTreeSet;

use super::module_files::ModulePath;
use super::tokens::{Token, is_word, tokens};
use super::{blank, line_of};

/// A path as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPath {
    /// The inline modules of the file that the path stands in.
    pub inline: ModulePath,
    /// Its segments; the last one of a glob is `*`, and the first one of `::a` is empty.
    pub segments: Vec<String>,
    /// What the path is for.
    pub purpose: Purpose,
    /// Counted from 1.
    pub line: usize,
}

/// What a path is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A `use` that gives the item this name in its module.
    Import(String),
    /// A `pub use`, which also gives the name to other modules.
    Reexport(String),
    /// A path in code.
    Code,
}

/// What a source file names.
#[derive(Debug, Default)]
pub struct SourceNames {
    /// Every path of two segments or more, and every `use`.
    pub paths: Vec<NamedPath>,
    /// The inline modules, with those around them.
    pub inline_modules: Vec<ModulePath>,
    /// Words of the code outside `use` items that can name an item: no field, no method, no declaration.
    pub words: BTreeSet<String>,
}

/// Reads the names of the source file `text`.
pub fn read(text: &str) -> SourceNames {
    let blanked = blank(text);
    let tokens = tokens(&blanked);
    let mut reader = Reader {
        blanked: &blanked,
        tokens: &tokens,
        at: 0,
        inline: Vec::new(),
        depth: 0,
        found: SourceNames::default(),
    };
    while reader.at < tokens.len() {
        reader.item();
    }
    reader.found
}

struct Reader<'a> {
    blanked: &'a str,
    tokens: &'a [Token],
    /// Index of the next token.
    at: usize,
    /// Inline modules around the next token, each with the depth of braces inside it.
    inline: Vec<(String, usize)>,
    depth: usize,
    found: SourceNames,
}

impl Reader<'_> {
    /// The token `ahead` of the next one; empty beyond either end.
    fn word(&self, ahead: isize) -> &str {
        let token = self.at.checked_add_signed(ahead).and_then(|at| self.tokens.get(at));
        token.map_or("", |token| &self.blanked[token.clone()])
    }

    fn is_word(&self, ahead: isize) -> bool {
        self.word(ahead).bytes().next().is_some_and(is_word)
    }

    /// Whether `::` starts at the token `ahead` of the next one.
    fn separator(&self, ahead: isize) -> bool {
        self.word(ahead) == ":" && self.word(ahead + 1) == ":"
    }

    /// Reads what starts at the next token.
    fn item(&mut self) {
        match self.word(0) {
            "use" if self.word(1) != "<" => self.import(),
            "mod" if self.word(2) == "{" => self.inline_module(),
            "mod" => self.at += 2,
            "{" => {
                self.depth += 1;
                self.at += 1;
            }
            "}" => self.close(),
            _ if self.is_word(0) => self.path_in_code(),
            _ => self.at += 1,
        }
    }

    fn inline_module(&mut self) {
        self.inline.push((self.word(1).to_owned(), self.depth + 1));
        self.found.inline_modules.push(self.inline_path());
        self.at += 2;
    }

    fn close(&mut self) {
        if self.inline.last().is_some_and(|(_, depth)| *depth == self.depth) {
            self.inline.pop();
        }
        self.depth = self.depth.saturating_sub(1);
        self.at += 1;
    }

    fn inline_path(&self) -> ModulePath {
        self.inline.iter().map(|(name, _)| name.clone()).collect()
    }

    fn import(&mut self) {
        // Before a `use`, a parenthesis can only end `pub(..)`.
        let public = matches!(self.word(-1), "pub" | ")");
        self.at += 1;
        self.tree(Vec::new(), public);
    }

    /// Reads a tree of a `use` item, whose first segments are `segments`.
    fn tree(&mut self, mut segments: Vec<String>, public: bool) {
        loop {
            if self.separator(0) {
                segments.push(String::new());
                self.at += 2;
            }
            if self.word(0) == "{" {
                return self.group(&segments, public);
            }
            if self.word(0) != "self" || segments.is_empty() {
                segments.push(self.word(0).to_owned());
            }
            self.at += 1;
            if !self.separator(0) {
                break;
            }
            self.at += 2;
        }
        let mut name = segments.last().cloned().unwrap_or_default();
        if self.word(0) == "as" {
            name = self.word(1).to_owned();
            self.at += 2;
        }
        let purpose = if public { Purpose::Reexport(name) } else { Purpose::Import(name) };
        self.found_path(segments, purpose);
    }

    fn group(&mut self, segments: &[String], public: bool) {
        self.at += 1;
        while !matches!(self.word(0), "}" | "") {
            self.tree(segments.to_vec(), public);
            if self.word(0) == "," {
                self.at += 1;
            }
        }
        self.at += 1;
    }

    /// Reads a word of the code and the path that it may start.
    fn path_in_code(&mut self) {
        let restricts = self.word(-1) == "in" && self.word(-2) == "(" && self.word(-3) == "pub";
        let starts = !self.separator(-2) && !restricts;
        if starts && !matches!(self.word(-1), "." | "fn") {
            self.found.words.insert(self.word(0).to_owned());
        }
        let mut segments = vec![self.word(0).to_owned()];
        self.at += 1;
        while self.separator(0) && self.is_word(2) {
            segments.push(self.word(2).to_owned());
            self.at += 3;
        }
        if starts && segments.len() > 1 {
            self.found_path(segments, Purpose::Code);
        }
    }

    fn found_path(&mut self, segments: Vec<String>, purpose: Purpose) {
        let end = self.tokens[self.at.min(self.tokens.len()) - 1].start;
        let line = line_of(self.blanked, end);
        self.found.paths.push(NamedPath { inline: self.inline_path(), segments, purpose, line });
    }
}

#[cfg(test)]
mod tests {
    use super::{Purpose, read};

    fn paths(text: &str) -> Vec<String> {
        let show = |purpose| match purpose {
            Purpose::Import(name) => format!(" as {name}"),
            Purpose::Reexport(name) => format!(" as pub {name}"),
            Purpose::Code => String::new(),
        };
        read(text).paths.into_iter().map(|path| path.segments.join("::") + &show(path.purpose)).collect()
    }

    #[test]
    fn a_use_gives_one_path_for_each_leaf() {
        let text = "use a::{b::{self, C as D}, e::*};\npub(crate) use self::f;\nuse ::g;";
        let found = ["a::b as b", "a::b::C as D", "a::e::* as *", "self::f as pub f", "::g as g"];
        assert_eq!(paths(text), found);
    }

    #[test]
    fn a_path_in_code_ends_where_its_words_end() {
        let text = "fn f(a: super::A<crate::B>) -> Vec<u8> { c::d::<u8>(a.e); x: ::std::y(); }";
        assert_eq!(paths(text), ["super::A", "crate::B", "c::d"]);
    }

    #[test]
    fn comments_strings_and_the_scope_of_pub_name_nothing() {
        assert_eq!(
            paths("// crate::a\npub(in crate::b) const C: &str = \"crate::d\";"),
            Vec::<String>::new()
        );
    }

    #[test]
    fn a_path_knows_the_inline_module_and_the_line_it_stands_in() {
        let found = read("mod a {\n    mod b { use super::c; }\n    const D: E = super::E;\n}\nuse f::g;");
        let places: Vec<_> =
            found.paths.into_iter().map(|path| (path.inline.join("::"), path.line)).collect();
        assert_eq!(places, [("a::b".to_owned(), 2), ("a".to_owned(), 3), (String::new(), 5)]);
        assert_eq!(found.inline_modules, [vec!["a".to_owned()], vec!["a".to_owned(), "b".to_owned()]]);
    }

    #[test]
    fn fields_methods_and_declared_functions_are_no_words_that_name_an_item() {
        let words = read("mod m; use n; fn f(a: A) { a.b(); a.c; d(e) }").words;
        assert_eq!(words.iter().map(String::as_str).collect::<Vec<_>>(), ["A", "a", "d", "e", "fn"]);
    }
}
