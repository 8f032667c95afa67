//! Loads files together: a tenant in one may name a pool in another.

use std::path::Path as FilePath;

use super::document::{self, ParsedDocument};
use super::errors::{LoadError, LoadErrors};
use super::problem::Problem;
use super::spanned_object::SpannedObject;
use super::spanned_tree::{self, Position};
use super::validate::{Subject, Violation, violations};
use super::{MAX_FILE_BYTES, ManifestObject, Path};
use crate::DEFAULT_NAMESPACE;

/// A file to be read.
#[derive(Clone, Debug)]
pub struct SourceFile {
    name: String,
    text: Result<String, String>,
}

impl SourceFile {
    /// A file whose text is known. `name` is used in errors alone.
    pub fn new(name: &str, text: &str) -> Self {
        SourceFile { name: name.to_owned(), text: Ok(text.to_owned()) }
    }

    /// Reads a file. A failure to read it is an error of [`Loader::load`], like all other mistakes.
    pub fn read(path: &FilePath) -> Self {
        let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
        SourceFile { name: path.display().to_string(), text }
    }
}

/// How files are read.
#[derive(Clone, Debug)]
pub struct Loader {
    namespace: String,
    rules: bool,
}

impl Default for Loader {
    fn default() -> Self {
        Self::new()
    }
}

/// What files hold.
#[derive(Debug)]
pub struct Loaded {
    /// Objects of documents without mistakes, in order. They may break rules.
    pub objects: Vec<SpannedObject>,
    /// Every mistake.
    pub errors: LoadErrors,
}

impl Loaded {
    /// The objects, if there is no mistake.
    ///
    /// # Errors
    /// Every mistake.
    pub fn into_result(self) -> Result<Vec<SpannedObject>, LoadErrors> {
        if self.errors.is_empty() { Ok(self.objects) } else { Err(self.errors) }
    }
}

impl Loader {
    /// Applies all rules; objects that name no namespace are in `default`.
    pub fn new() -> Self {
        Loader { namespace: DEFAULT_NAMESPACE.to_owned(), rules: true }
    }

    /// Objects that name no namespace are in this one.
    pub fn in_namespace(self, namespace: &str) -> Self {
        Loader { namespace: namespace.to_owned(), ..self }
    }

    /// No rules are applied.
    pub(super) fn without_rules(self) -> Self {
        Loader { rules: false, ..self }
    }

    /// Loads all files and finds every mistake: text that is no YAML, fields that are unknown or missing, values of
    /// another type, and broken rules. A rule is not applied where it reads a value that is not known.
    pub fn load(&self, sources: &[SourceFile]) -> Loaded {
        let mut batch = Batch::default();
        for (index, source) in sources.iter().enumerate() {
            batch.read(&source.name, index, &source.text);
        }
        if self.rules {
            batch.apply_rules(&self.namespace);
        }
        batch.finish()
    }
}

/// The objects and mistakes so far.
#[derive(Default)]
struct Batch<'a> {
    objects: Vec<ManifestObject>,
    /// Of each object.
    written: Vec<LoadedDocument<'a>>,
    /// There may be a GpuPool that could not be read.
    unread_pool: bool,
    errors: Vec<LoadError>,
}

/// The document of an object.
struct LoadedDocument<'a> {
    file: (&'a str, usize),
    reading: ParsedDocument,
    /// It has no mistakes.
    is_sound: bool,
}

impl<'a> Batch<'a> {
    fn read(&mut self, name: &'a str, index: usize, text: &Result<String, String>) {
        let file = (name, index);
        let documents = match text {
            Err(error) => Err((Position::default(), Problem::Unreadable(error.clone()))),
            Ok(text) if text.len() > MAX_FILE_BYTES => Err((START, Problem::TooLarge(text.len()))),
            Ok(text) => Ok(spanned_tree::parse(text)),
        };
        let documents = documents.and_then(|documents| match documents.is_empty() {
            true => Err((START, Problem::Empty)),
            false => Ok(documents),
        });
        match documents {
            Ok(documents) => {
                documents.into_iter().for_each(|document| self.add(document::read(document), file))
            }
            Err((at, problem)) => {
                self.unread_pool |= problem != Problem::Empty;
                self.errors.push(LoadError::new(file, at, Path::default(), problem));
            }
        }
    }

    fn add(&mut self, mut reading: ParsedDocument, file: (&'a str, usize)) {
        self.unread_pool |= reading.is_possibly_pool;
        let faults = std::mem::take(&mut reading.faults);
        let is_sound = faults.is_empty() && reading.unread.is_empty();
        self.errors.extend(
            faults.into_iter().map(|fault| LoadError::new(file, fault.at, fault.path, fault.problem)),
        );
        if let Some(object) = reading.object.take() {
            self.objects.push(object);
            self.written.push(LoadedDocument { file, reading, is_sound });
        }
    }

    fn apply_rules(&mut self, namespace: &str) {
        for violation in violations(&self.objects, namespace) {
            let may_be_there = violation.subject == Subject::Pool && self.unread_pool;
            if !may_be_there && self.is_known(&violation) {
                self.errors.push(self.error(violation));
            }
        }
    }

    /// Whether the values that the rule reads are known.
    fn is_known(&self, violation: &Violation) -> bool {
        !violation.reads.iter().any(|read| {
            let ParsedDocument { unread, root, .. } = &self.written[read.object].reading;
            match read.is_presence_only {
                true => unread.can_hide(&read.path, root),
                false => unread.covers(&read.path, root),
            }
        })
    }

    fn error(&self, violation: Violation) -> LoadError {
        let LoadedDocument { file, reading, .. } = &self.written[violation.index];
        let mut message = violation.message;
        if let Some(first) = violation.first {
            let LoadedDocument { file, reading, .. } = &self.written[first];
            message = format!("{message}, at {}:{}", file.0, reading.root.position_of(&violation.path).line);
        }
        let at = reading.root.position_of(&violation.path);
        let problem = match violation.subject {
            Subject::Value => Problem::Value(message),
            Subject::Pool | Subject::Group => Problem::Reference(message),
        };
        LoadError::new(*file, at, violation.path, problem)
    }

    fn finish(self) -> Loaded {
        let sound = self.objects.into_iter().zip(self.written).filter(|(_, written)| written.is_sound);
        let objects = sound.map(|(object, written)| {
            SpannedObject::new(object, written.reading.root, written.file.0, written.file.1)
        });
        Loaded { objects: objects.collect(), errors: self.errors.into_iter().collect() }
    }
}

/// The beginning of a file.
const START: Position = Position { line: 1, column: 1 };
