//! Files of one type whose methods call each other in a circle: such methods can only be read together, as if they stood
//! in one file. A type with many of them has parts that want to be types of their own.
//!
//! Only calls on `self` count, of methods that an `impl` block of the same type in another file of the crate defines.
//! [`ALLOWED`] names the types that still have such files; the number may only fall.

use std::collections::{BTreeMap, BTreeSet};

use crate::lint_violation::LintViolation;
use crate::rust_text::blank;
use crate::rust_text::test_code::without_tests;
use crate::rust_text::tokens::tokens;
use crate::workspace::Member;

const RULE: &str = "method-circle";
const REMEDY: &str = "move a method to the part that owns what it needs, or pass a value in";

/// Types whose methods call each other across files in circles, with the number of these files.
const ALLOWED: [(&str, &str, usize); 5] = [
    ("operator/manager", "Reconciler", 2),
    ("sidecar/memory", "SliceQueue", 3),
    ("sidecar/memory", "DeviceMemory", 4),
    ("sidecar/sim", "SimDevice", 5),
    ("sidecar/sim", "Gpu", 4),
];

/// The methods that the `impl` blocks of one type define in one file, and those that they call on `self`.
#[derive(Debug, Default)]
struct Methods {
    defined: BTreeSet<String>,
    called: BTreeSet<String>,
}

/// The methods of each type, by its name and by file.
type Types = BTreeMap<String, BTreeMap<String, Methods>>;

/// What the sources of one crate say.
#[derive(Debug, Default)]
struct Sources {
    types: Types,
    /// The files that define a type of each name.
    homes: BTreeMap<String, BTreeSet<String>>,
}

impl Sources {
    /// The types of the crate: one name can stand for several, each with its own home.
    fn types(self) -> BTreeMap<(String, String), BTreeMap<String, Methods>> {
        let mut types = BTreeMap::<_, BTreeMap<_, _>>::new();
        for (name, parts) in self.types {
            for (file, methods) in parts {
                let homes = self.homes.get(&name).into_iter().flatten();
                let home = homes.max_by_key(|home| shared_prefix(home, &file)).unwrap_or(&file).clone();
                types.entry((name.clone(), home)).or_default().insert(file, methods);
            }
        }
        types
    }
}

/// Bytes that two paths have in common at their beginnings, without the extension.
fn shared_prefix(left: &str, right: &str) -> usize {
    let left = left.trim_end_matches(".rs").bytes();
    left.zip(right.trim_end_matches(".rs").bytes()).take_while(|(left, right)| left == right).count()
}

/// Findings for the sources of every member. `files` lists all files, `text` gives the text of one.
pub fn check<'a>(
    members: &[Member],
    files: &[String],
    text: impl Fn(&str) -> Option<&'a str>,
) -> Vec<LintViolation> {
    let allowed: Vec<(&str, &str, usize)> = ALLOWED.to_vec();
    check_against(&allowed, members, files, text)
}

fn check_against<'a>(
    allowed: &[(&str, &str, usize)],
    members: &[Member],
    files: &[String],
    text: impl Fn(&str) -> Option<&'a str>,
) -> Vec<LintViolation> {
    let mut findings = Vec::new();
    for member in members {
        let sources = format!("{}/src/", member.folder);
        let mut crate_sources = Sources::default();
        for file in files.iter().filter(|file| file.starts_with(&sources) && file.ends_with(".rs")) {
            read(file, text(file).unwrap_or_default(), &mut crate_sources);
        }
        for ((name, _), parts) in &crate_sources.types() {
            let row = allowed.iter().find(|(folder, of, _)| *folder == member.folder && of == name);
            let allowed = row.map_or(0, |(.., count)| *count);
            findings.extend(finding(name, &in_circles(parts), allowed, &sources));
        }
    }
    findings
}

fn finding(name: &str, circle: &[&str], allowed: usize, sources: &str) -> Option<LintViolation> {
    if circle.len() == allowed {
        return None;
    }
    let place = circle.first().map_or_else(|| format!("{sources}lib.rs"), |file| (*file).to_owned());
    let short: Vec<&str> = circle.iter().map(|file| file.strip_prefix(sources).unwrap_or(file)).collect();
    let what = format!("methods of {name} call each other across {} files", circle.len());
    let (problem, remedy) = if circle.len() > allowed {
        (format!("{what}, {allowed} are allowed: {}", short.join(", ")), REMEDY)
    } else {
        (format!("{what}, {allowed} are allowed"), "lower the number in rules/method_circles.rs")
    };
    Some(LintViolation::new(RULE, &place, 1, problem, remedy))
}

/// The files from which calls lead back to themselves through another file.
fn in_circles(parts: &BTreeMap<String, Methods>) -> Vec<&str> {
    parts.keys().map(String::as_str).filter(|start| reached_from(start, parts).contains(start)).collect()
}

/// The files that `start` calls, and those that they call, and so on.
fn reached_from<'a>(start: &'a str, parts: &'a BTreeMap<String, Methods>) -> BTreeSet<&'a str> {
    let (mut reached, mut waiting) = (BTreeSet::new(), vec![start]);
    while let Some(from) = waiting.pop() {
        let called = &parts[from].called;
        let others = parts.iter().filter(|(file, _)| *file != from);
        let calls = others.filter(|(_, part)| !part.defined.is_disjoint(called));
        waiting.extend(calls.map(|(file, _)| file.as_str()).filter(|next| reached.insert(*next)));
    }
    reached
}

/// Adds what the `impl` blocks of `file` define and call. Code of tests is free.
fn read(file: &str, text: &str, sources: &mut Sources) {
    let code = blank(&without_tests(text));
    let words: Vec<&str> = tokens(&code).into_iter().map(|token| &code[token]).collect();
    for pair in words.windows(2).filter(|pair| matches!(pair[0], "struct" | "enum")) {
        sources.homes.entry(pair[1].to_owned()).or_default().insert(file.to_owned());
    }
    let mut at = 0;
    while at < words.len() {
        let Some((name, start)) = (words[at] == "impl").then(|| type_of(&words, at + 1)).flatten() else {
            at += 1;
            continue;
        };
        let end = block_end(&words, start);
        let methods = sources.types.entry(name.to_owned()).or_default().entry(file.to_owned()).or_default();
        for i in start..end {
            match words[i..end] {
                ["fn", name, ..] => _ = methods.defined.insert(name.to_owned()),
                ["self", ".", name, "(", ..] => _ = methods.called.insert(name.to_owned()),
                _ => {}
            }
        }
        at = end;
    }
}

/// The type of the `impl` whose tokens begin at `from`, and the token after its opening brace. `None` if there is no
/// block: `impl Trait` in a signature.
fn type_of<'a>(words: &[&'a str], from: usize) -> Option<(&'a str, usize)> {
    let (mut depth, mut name) = (0_i32, None);
    let mut ended = false;
    for (at, word) in words.iter().enumerate().skip(from) {
        match *word {
            "<" => depth += 1,
            // The arrow of a function type ends no list.
            ">" if at > 0 && words[at - 1] != "-" => depth -= 1,
            "{" if depth == 0 => return Some((name?, at + 1)),
            ";" | ")" | "," | "=" if depth == 0 => return None,
            "for" if depth == 0 => name = None,
            "where" if depth == 0 => ended = true,
            word if depth == 0 && !ended && word.bytes().all(crate::rust_text::is_word) => name = Some(word),
            _ => {}
        }
    }
    None
}

/// The token that closes the block whose first token is at `start`.
fn block_end(words: &[&str], start: usize) -> usize {
    let mut depth = 1;
    for (at, word) in words.iter().enumerate().skip(start) {
        depth += i32::from(*word == "{") - i32::from(*word == "}");
        if depth == 0 {
            return at;
        }
    }
    words.len()
}

#[cfg(test)]
mod tests;
