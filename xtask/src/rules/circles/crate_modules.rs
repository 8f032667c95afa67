//! The modules of one target, and which file of it uses which items of which other one.

use std::collections::{BTreeMap, BTreeSet};

use crate::rust_text::module_files::{ModulePath, reached};
use crate::rust_text::named_paths::{self, NamedPath, Purpose, SourceNames};
use crate::rust_text::test_code::without_tests;

/// For each file, the files that it uses, each with the items and the first line that names each item.
pub type Uses = BTreeMap<String, BTreeMap<String, BTreeMap<String, usize>>>;

/// The modules of one target.
pub struct CrateModules {
    /// Every file, with its module and what it names outside tests.
    sources: Vec<(String, ModulePath, SourceNames)>,
    /// The file that holds each module.
    files: BTreeMap<ModulePath, String>,
    /// What each name that a `use` brings into a module stands for: a path in that module.
    imports: BTreeMap<(ModulePath, String), Vec<String>>,
}

/// What a path leads to.
enum Found {
    Module(ModulePath),
    Item { file: String, name: String },
}

impl CrateModules {
    /// Reads the target that starts at the file `root`. `text` gives the text of a file.
    pub fn read<'a>(root: &str, text: impl Fn(&str) -> Option<&'a str>) -> Self {
        let mut modules = Self { sources: Vec::new(), files: BTreeMap::new(), imports: BTreeMap::new() };
        for source in reached([root.to_owned()].into_iter(), &text) {
            let code = without_tests(text(&source.file).unwrap_or_default());
            modules.add(source.file, source.module, named_paths::read(&code));
        }
        modules
    }

    fn add(&mut self, file: String, module: ModulePath, names: SourceNames) {
        for inner in [ModulePath::new()].iter().chain(&names.inline_modules) {
            self.files.insert([module.as_slice(), inner].concat(), file.clone());
        }
        for path in &names.paths {
            if let Purpose::Import(name) | Purpose::Reexport(name) = &path.purpose {
                let place = [module.as_slice(), &path.inline].concat();
                self.imports.insert((place, name.clone()), path.segments.clone());
            }
        }
        self.sources.push((file, module, names));
    }

    /// Which file uses which items of which other file.
    pub fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (file, module, names) in &self.sources {
            for path in names.paths.iter().filter(|path| is_use(path, names)) {
                let place = [module.as_slice(), &path.inline].concat();
                if let Some(Found::Item { file: other, name }) = self.find(&place, &path.segments)
                    && other != *file
                {
                    let items = uses.entry(file.clone()).or_default().entry(other).or_default();
                    items.entry(name).or_insert(path.line);
                }
            }
        }
        uses
    }

    fn find(&self, module: &ModulePath, segments: &[String]) -> Option<Found> {
        self.find_unseen(module, segments, &mut BTreeSet::new())
    }

    /// What `segments` lead to from `module`; `None` if they lead out of the target or to an item of `module`.
    /// `seen` holds the imports that were followed, because two imports can name each other.
    fn find_unseen(
        &self,
        module: &ModulePath,
        segments: &[String],
        seen: &mut BTreeSet<(ModulePath, String)>,
    ) -> Option<Found> {
        let mut here = module.clone();
        let mut rest = segments;
        match segments.first()?.as_str() {
            "crate" => here.clear(),
            "self" | "super" => {}
            name if self.binds(module, name) => {}
            _ => return None,
        }
        while let Some((name, after)) = rest.split_first() {
            rest = after;
            let child = [here.as_slice(), std::slice::from_ref(name)].concat();
            if name == "super" {
                here.pop()?;
            } else if matches!(name.as_str(), "crate" | "self") {
                continue;
            } else if self.files.contains_key(&child) {
                here = child;
            } else if let Some(target) = self.imports.get(&(here.clone(), name.clone()))
                && seen.insert((here.clone(), name.clone()))
            {
                match self.find_unseen(&here, target, seen)? {
                    Found::Module(module) => here = module,
                    item @ Found::Item { .. } => return Some(item),
                }
            } else {
                return Some(Found::Item { file: self.files.get(&here)?.clone(), name: name.clone() });
            }
        }
        Some(Found::Module(here))
    }

    /// Whether `name` is a child or an import of `module`.
    fn binds(&self, module: &ModulePath, name: &str) -> bool {
        self.files.contains_key(&[module.as_slice(), &[name.to_owned()]].concat())
            || self.imports.contains_key(&(module.clone(), name.to_owned()))
    }
}

/// A re-export counts where the code of its file names the item too.
fn is_use(path: &NamedPath, names: &SourceNames) -> bool {
    match &path.purpose {
        Purpose::Reexport(name) => names.words.contains(name),
        Purpose::Import(_) | Purpose::Code => true,
    }
}
