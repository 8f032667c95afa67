//! Hints: the known names that an unknown name resembles.

use std::cmp::Reverse;

use serde_json::Value;

use super::schema::{Field, KINDS, KindSchema, fold};
use super::{Path, Segment};

/// Most fields that one hint names.
const MAX_HINTS: usize = 3;

/// A field that a hint names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldHint {
    /// The name if the field belongs to the same mapping, else the path.
    pub text: String,
    /// From the root up to the first list: an item's index is not known.
    pub path: Path,
}

/// What an unknown field resembles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hint {
    /// Fields of the kind, equally likely; at least one.
    Fields(Vec<FieldHint>),
    /// A field of this other kind's spec.
    OtherKind(&'static str),
    /// Nothing.
    None,
}

impl Hint {
    fn of(fields: Vec<FieldHint>) -> Option<Hint> {
        (!fields.is_empty()).then_some(Hint::Fields(fields))
    }
}

/// How a written name resembles a known one, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Similarity {
    /// Only case, `-` or `_` differ.
    Same,
    /// This many letters are wrong.
    Typo(usize),
    /// One begins with the other: `ttft` and `ttftMilliseconds`.
    Prefix,
    /// It is a part of the known name: `quantum` and `minQuantumMilliseconds`.
    Substring,
}

/// The known name that `written` resembles most.
pub(super) fn closest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let written = fold(written);
    let alike = known.into_iter().filter_map(|name| Some((similarity(&written, &fold(name))?, name)));
    alike.min_by_key(|(likeness, _)| *likeness).map(|(_, name)| name)
}

/// What the unknown field `written` in the mapping at `path`, with schema `here`, resembles.
pub(super) fn suggest(kind: &KindSchema, here: &Value, path: &Path, written: &str) -> Hint {
    let folded = fold(written);
    let names = here["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let siblings: Vec<(Similarity, &str)> =
        names.filter_map(|name| Some((similarity(&folded, &fold(name))?, name))).collect();
    let within = steps(path);
    let sibling = |least| Hint::of(best(siblings.iter().filter(|(likeness, _)| *likeness <= least), path));
    let elsewhere = |least| Hint::of(fields_elsewhere(kind, &within, &folded, least));
    sibling(Similarity::Same)
        .or_else(|| elsewhere(Similarity::Same))
        .or_else(|| sibling(Similarity::Typo(usize::MAX)))
        .or_else(|| sibling(Similarity::Substring))
        .or_else(|| other_kind(kind, written).map(Hint::OtherKind))
        .or_else(|| elsewhere(Similarity::Prefix))
        .unwrap_or(Hint::None)
}

/// The other kind, if its spec has a field of this name.
fn other_kind(kind: &KindSchema, written: &str) -> Option<&'static str> {
    let mut others = KINDS.into_iter().filter(|other| *other != kind.kind).filter_map(KindSchema::of);
    let has = |other: &&KindSchema| other.root["properties"]["spec"]["properties"].get(written).is_some();
    others.find(has).map(|other| other.kind)
}

/// The fields of one mapping with the best likeness.
fn best<'a>(alike: impl Iterator<Item = &'a (Similarity, &'a str)> + Clone, path: &Path) -> Vec<FieldHint> {
    let Some(least) = alike.clone().map(|(likeness, _)| *likeness).min() else { return Vec::new() };
    let names = alike.filter(|(likeness, _)| *likeness == least).take(MAX_HINTS);
    names.map(|(_, name)| FieldHint { text: (*name).to_owned(), path: path.key(name) }).collect()
}

/// The best and nearest fields of other mappings with at least the likeness `least`. Only fields in or around this
/// mapping count, and fields whose name is unique in the kind.
fn fields_elsewhere(
    kind: &KindSchema,
    within: &[String],
    written: &str,
    least: Similarity,
) -> Vec<FieldHint> {
    let near = |field: &Field| field.within.starts_with(within) || within.starts_with(&field.within);
    let unique = |field: &Field| kind.fields.iter().filter(|other| other.name == field.name).count() == 1;
    let alike = kind.fields.iter().filter(|field| field.within != within).filter_map(|field| {
        let likeness = similarity(written, &field.folded).filter(|likeness| *likeness <= least)?;
        let shared = field.within.iter().zip(within).take_while(|(one, other)| one == other).count();
        let rank = (likeness, Reverse(shared), field.within.len());
        (near(field) || unique(field)).then_some((rank, field))
    });
    let alike: Vec<_> = alike.collect();
    let Some(rank) = alike.iter().map(|(rank, _)| *rank).min() else { return Vec::new() };
    alike
        .iter()
        .filter(|(other, _)| *other == rank)
        .take(MAX_HINTS)
        .map(|(_, field)| field_hint(field))
        .collect()
}

fn field_hint(field: &Field) -> FieldHint {
    let steps = || field.within.iter().chain([&field.name]);
    let text = steps().map(String::as_str).collect::<Vec<_>>().join(".").replace(".[]", "[]");
    let certain = steps().take_while(|step| *step != "[]");
    FieldHint { text, path: Path(certain.map(|step| Segment::Key(step.clone())).collect()) }
}

/// A path as [`Field::within`] has it.
fn steps(path: &Path) -> Vec<String> {
    let step = |segment: &Segment| match segment {
        Segment::Key(key) => key.clone(),
        Segment::Index(_) => "[]".to_owned(),
    };
    path.0.iter().map(step).collect()
}

/// How `written` resembles `known`, both folded.
fn similarity(written: &str, known: &str) -> Option<Similarity> {
    let longer = written.chars().count().max(known.chars().count());
    let shorter = written.chars().count().min(known.chars().count());
    let most = (longer / 4).max(1).min(shorter.saturating_sub(1));
    // The distance is at least the difference in length.
    let wrong = (longer - shorter <= most).then(|| strsim::osa_distance(written, known));
    if written == known {
        Some(Similarity::Same)
    } else if let Some(wrong) = wrong.filter(|wrong| *wrong <= most) {
        Some(Similarity::Typo(wrong))
    } else if shorter >= 3 && (known.starts_with(written) || written.starts_with(known)) {
        Some(Similarity::Prefix)
    } else if written.chars().count() >= 4 && known.contains(written) {
        Some(Similarity::Substring)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_by_case_by_typo_and_by_its_beginning() {
        for (written, known, alike) in [
            ("temporal", "Temporal", Some(Similarity::Same)),
            ("gpu_group", "gpuGroup", Some(Similarity::Same)),
            ("polizy", "policy", Some(Similarity::Typo(1))),
            ("valeu", "value", Some(Similarity::Typo(1))),
            ("hibernatAfterSecond", "hibernateAfterSeconds", Some(Similarity::Typo(2))),
            ("ttft", "ttftMilliseconds", Some(Similarity::Prefix)),
            ("replicaCount", "replica", Some(Similarity::Prefix)),
            ("quantum", "minQuantumMilliseconds", Some(Similarity::Substring)),
            ("mode", "name", None),
            ("x", "s3", None),
            ("Fast", "Immediate", None),
        ] {
            assert_eq!(similarity(&fold(written), &fold(known)), alike, "{written} {known}");
        }
        assert_eq!(closest("Temporel", ["Spatial", "Temporal"]), Some("Temporal"));
        assert_eq!(closest("Magic", ["Spatial", "Temporal"]), None);
    }

    fn hints(kind: &str, path: &str, written: &str) -> Vec<String> {
        let kind = KindSchema::of(kind).unwrap();
        let (mut schema, mut at) = (&kind.root, Path::default());
        for step in path.split('.').filter(|step| !step.is_empty()) {
            at = if step == "0" { at.index(0) } else { at.key(step) };
            schema = if step == "0" { &schema["items"] } else { &schema["properties"][step] };
        }
        match suggest(kind, schema, &at, written) {
            Hint::Fields(fields) => fields.into_iter().map(|hint| hint.text).collect(),
            Hint::OtherKind(kind) => vec![kind.to_owned()],
            Hint::None => Vec::new(),
        }
    }

    #[test]
    fn a_field_is_found_in_its_mapping_and_elsewhere() {
        for (kind, path, written, expected) in [
            ("ModelTenant", "spec.slo", "ttft", &["ttftMilliseconds"][..]),
            ("ModelTenant", "spec", "ttft", &["spec.slo.ttftMilliseconds"]),
            ("ModelTenant", "spec", "ttftMilliseconds", &["spec.slo.ttftMilliseconds"]),
            ("ModelTenant", "", "replicas", &["spec.replicas"]),
            ("ModelTenant", "spec.slo", "replicas", &["spec.replicas"]),
            ("GpuPool", "", "gpus", &["spec.gpus"]),
            ("GpuPool", "spec", "chunkBytes", &["spec.device.host.chunkBytes"]),
            ("GpuPool", "spec", "mode", &["spec.gpus[].sharing.mode"]),
            ("GpuPool", "spec.gpus.0", "mode", &["spec.gpus[].sharing.mode"]),
            ("GpuPool", "spec", "namespace", &["metadata.namespace"]),
            (
                "GpuPool",
                "spec.gpus.0.sharing.temporal",
                "quantum",
                &["maxQuantumMilliseconds", "minQuantumMilliseconds"],
            ),
            // An exact name elsewhere before a misspelt one here.
            ("ModelTenant", "spec.model", "type", &["spec.model.source.type"]),
            ("ModelTenant", "spec.engine", "hostKv", &["spec.memory.hostKv"]),
            ("ModelTenant", "metadata", "poolRef", &["spec.poolRef"]),
            ("GpuPool", "", "name", &["metadata.name"]),
            // A name that many mappings have says nothing of one that is in none of them.
            ("ModelTenant", "spec.engine.env.0", "key", &[]),
            ("ModelTenant", "spec", "policy", &["GpuPool"]),
            ("GpuPool", "spec", "model", &["ModelTenant"]),
            ("GpuPool", "spec", "x", &[]),
            ("GpuPool", "spec", "colour", &[]),
        ] {
            assert_eq!(hints(kind, path, written), expected, "{kind} {path}.{written}");
        }
    }
}
