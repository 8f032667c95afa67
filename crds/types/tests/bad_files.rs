//! Files that do not load: each kind of error, with its line, field and words.

use sluice_types::load::{LoadError, MAX_FILE_BYTES, Problem, load_str, load_valid_str};

use crate::good_files::{POOL, TENANT, both};

fn errors(text: &str) -> Vec<LoadError> {
    load_str(text, "pool.yaml").unwrap_err().to_vec()
}

/// Panics unless the one unknown field is `path`, on this line.
#[track_caller]
fn expect_unknown(text: &str, path: &str, line: usize) {
    let found = errors(text);
    let unknown = |e: &LoadError| matches!(e.problem, Problem::UnknownField { .. });
    let found: Vec<_> = found.iter().filter(|e| unknown(e)).map(|e| (e.path.to_string(), e.line)).collect();
    assert_eq!(found, [(path.to_owned(), line)], "{text}");
}

/// The one mistake of a file.
#[track_caller]
fn error(text: &str) -> LoadError {
    let all = load_str(text, "pool.yaml").unwrap_err();
    assert_eq!(all.len(), 1, "{all}");
    all[0].clone()
}

#[track_caller]
fn expect(text: &str, message: &str) {
    assert_eq!(error(text).to_string(), message);
}

#[test]
fn an_unknown_field_is_named_with_its_place_and_a_hint() {
    let text = POOL.replace("- name: chat", "- name: chat\n    sharing:\n      mod: Temporal");
    expect(&text, "pool.yaml:14:7: spec.gpus[0].sharing.mod: unknown field; did you mean `mode`?");
    let found = error(&text);
    assert_eq!(
        (found.line, found.column, found.path.to_string().as_str()),
        (14, 7, "spec.gpus[0].sharing.mod")
    );
    let suggestions = vec!["mode".to_owned()];
    let expected = ["isolated", "mode", "spatial", "temporal"].map(ToOwned::to_owned).into();
    assert_eq!(found.problem, Problem::UnknownField { expected, suggestions, other_kind: None });
    // Where nothing is alike, all that there is.
    expect(
        &text.replace("mod:", "colour:"),
        "pool.yaml:14:7: spec.gpus[0].sharing.colour: unknown field, expected one of `isolated`, `mode`, `spatial`, \
         `temporal`",
    );
}

#[test]
fn an_unknown_field_is_found_at_every_depth() {
    expect(
        &format!("{POOL}extra: 1\n"),
        "pool.yaml:13:1: extra: unknown field, expected one of `apiVersion`, `kind`, `metadata`, `spec`",
    );
    let text = POOL.replace("  name: local", "  name: local\n  nmespace: x");
    expect(&text, "pool.yaml:5:3: metadata.nmespace: unknown field; did you mean `namespace`?");
    let found = error(&format!("{TENANT}  slo: {{tbt: 5}}\n"));
    assert_eq!((found.line, found.column, found.path.to_string().as_str()), (13, 9, "spec.slo.tbt"));
    let found =
        error(&format!("{TENANT}  engine:\n    env:\n    - {{name: A}}\n    - name: B\n      valeu: x\n"));
    assert_eq!((found.line, found.column), (17, 7));
    assert_eq!(found.path.to_string(), "spec.engine.env[1].valeu");
}

#[test]
fn misplaced_field_is_named_with_its_path() {
    for (line, message) in [
        (
            "  ttft: 200",
            "pool.yaml:13:3: spec.ttft: unknown field; did you mean `spec.slo.ttftMilliseconds`?",
        ),
        ("replicas: 1", "pool.yaml:13:1: replicas: unknown field; did you mean `spec.replicas`?"),
        (
            "  memory: {replicas: 1}",
            "pool.yaml:13:12: spec.memory.replicas: unknown field; did you mean `spec.replicas`?",
        ),
        (
            "  memory: {hostkv: 1}",
            "pool.yaml:13:12: spec.memory.hostkv: unknown field; did you mean `hostKv`?",
        ),
    ] {
        expect(&format!("{TENANT}{line}\n"), message);
    }
    // One mistake: `gpus` is not missing as well.
    let text = POOL.replace("  gpus:\n  - name: chat", "gpus:\n- name: chat");
    expect(&text, "pool.yaml:11:1: gpus: unknown field; did you mean `spec.gpus`?");
}

#[test]
fn every_struct_of_the_spec_refuses_an_unknown_field() {
    let inside = [
        ("  slo: {x: 1}", "spec.slo.x"),
        ("  scheduling: {x: 1}", "spec.scheduling.x"),
        ("  memory: {x: 1}", "spec.memory.x"),
        ("  pacing: {x: 1}", "spec.pacing.x"),
        ("  idle: {x: 1}", "spec.idle.x"),
        ("  engine: {x: 1}", "spec.engine.x"),
        ("  engine: {resources: {x: 1}}", "spec.engine.resources.x"),
        ("  engine: {resources: {limits: {x: 1}}}", "spec.engine.resources.limits.x"),
        ("  engine: {env: [{name: A, x: 1}]}", "spec.engine.env[0].x"),
        ("  sidecar: {x: 1}", "spec.sidecar.x"),
        ("  limits: {x: 1}", "spec.limits.x"),
        ("  access: {x: 1}", "spec.access.x"),
        ("  access: {apiKeysSecretRef: {x: 1}}", "spec.access.apiKeysSecretRef.x"),
        ("  access: {from: [{x: 1}]}", "spec.access.from[0].x"),
        ("  access: {from: [{podSelector: {x: 1}}]}", "spec.access.from[0].podSelector.x"),
        ("  imagePullSecrets: [{x: 1}]", "spec.imagePullSecrets[0].x"),
        ("  x: 1", "spec.x"),
    ];
    for (line, path) in inside {
        expect_unknown(&format!("{TENANT}{line}\n"), path, 13);
    }
    let in_source = ["huggingFace", "persistentVolumeClaim", "image", "s3", "file"];
    for member in in_source {
        let text = TENANT.replace("file:\n        path: models/story", &format!("{member}: {{x: 1}}"));
        expect_unknown(&text, &format!("spec.model.source.{member}.x"), 11);
    }
    let in_pool = [
        ("  remap: {x: 1}", "spec.remap.x"),
        ("  tolerations: [{x: 1}]", "spec.tolerations[0].x"),
        ("    sharing: {temporal: {x: 1}}", "spec.gpus[0].sharing.temporal.x"),
        ("    sharing: {spatial: {x: 1}}", "spec.gpus[0].sharing.spatial.x"),
        ("    sharing: {isolated: {x: 1}}", "spec.gpus[0].sharing.isolated.x"),
        ("    x: 1", "spec.gpus[0].x"),
    ];
    for (line, path) in in_pool {
        expect_unknown(&format!("{POOL}{line}\n"), path, 13);
    }
    let found = error(&POOL.replace("memory: 96Mi", "memory: 96Mi\n      x: 1"));
    assert_eq!((found.path.to_string().as_str(), found.line), ("spec.device.host.x", 10));
}

#[test]
fn a_wrong_type_names_what_was_found_and_expected() {
    expect(
        &POOL.replace("name: chat", "name: 5"),
        "pool.yaml:12:5: spec.gpus[0].name: wrong type: found integer `5`, expected a string; write \"5\"",
    );
    expect(
        &format!("{TENANT}  replicas: two\n"),
        "pool.yaml:13:3: spec.replicas: wrong type: found string \"two\", expected an integer of 32 bits",
    );
    expect(
        &format!("{TENANT}  replicas: \"2\"\n"),
        "pool.yaml:13:3: spec.replicas: wrong type: found string \"2\", expected an integer of 32 bits; write 2 without quotes",
    );
    expect(
        &format!("{TENANT}  replicas: 1.5\n"),
        "pool.yaml:13:3: spec.replicas: wrong type: found floating point `1.5`, expected an integer of 32 bits",
    );
    expect(
        &format!("{TENANT}  suspend: 1\n"),
        "pool.yaml:13:3: spec.suspend: wrong type: found integer `1`, expected a boolean",
    );
    let found = error(&format!("{TENANT}  slo:\n  - 5\n"));
    assert_eq!((found.line, found.path.to_string().as_str()), (13, "spec.slo"));
    assert!(matches!(found.problem, Problem::WrongType { .. }), "{found}");
    expect(
        &format!("{TENANT}  engine: x\n"),
        "pool.yaml:13:3: spec.engine: wrong type: found string \"x\", expected a mapping",
    );
    let found = error(&format!("{TENANT}  pacing: {{mode: 3}}\n"));
    assert_eq!((found.line, found.path.to_string().as_str()), (13, "spec.pacing.mode"));
    assert!(matches!(found.problem, Problem::WrongType { .. }), "{found}");
    let found = error(&format!("{TENANT}  gpuGroup: [a]\n"));
    assert!(matches!(found.problem, Problem::WrongType { .. }), "{found}");
    expect(
        &format!("{TENANT}  slo: null\n").replace("slo: null", "replicas: null"),
        "pool.yaml:13:3: spec.replicas: wrong type: found null, expected an integer of 32 bits",
    );
}

#[test]
fn a_number_that_does_not_fit_is_an_error() {
    let found = error(&format!("{TENANT}  replicas: 99999999999\n"));
    assert_eq!((found.line, found.path.to_string().as_str()), (13, "spec.replicas"));
    let found = error(&format!("{TENANT}  replicas: 99999999999999999999999\n"));
    assert_eq!((found.line, found.path.to_string().as_str()), (13, "spec.replicas"));
}

#[test]
fn a_bad_quantity_shows_good_ones() {
    expect(
        &POOL.replace("96Mi", "96MB"),
        "pool.yaml:9:7: spec.device.host.memory: `96MB` is not a size; examples: `400Gi`, `64Ki`, `1.5G` or \
         `1048576`",
    );
    let found = error(&POOL.replace("96Mi", "-5"));
    assert_eq!((found.line, found.path.to_string().as_str()), (9, "spec.device.host.memory"));
}

#[test]
fn an_unknown_enum_value_lists_the_known_ones() {
    expect(
        &format!("{TENANT}  pacing:\n    mode: Fast\n"),
        "pool.yaml:14:5: spec.pacing.mode: unknown value `Fast`, expected one of `TokenDeposit`, `Immediate`",
    );
}

#[test]
fn a_missing_field_is_named_on_the_line_of_what_lacks_it() {
    expect(
        &POOL.replace("  hostMemoryPerGPU: 400Mi\n", ""),
        "pool.yaml:5:1: spec.hostMemoryPerGPU: missing field",
    );
    expect(&POOL.replace("  name: local", "  namespace: x"), "pool.yaml:3:1: metadata.name: missing field");
    expect(
        &TENANT.replace("        path: models/story", "        {}"),
        "pool.yaml:11:7: spec.model.source.file.path: missing field",
    );
    expect(&POOL.replace("- name: chat", "- count: 2"), "pool.yaml:12:5: spec.gpus[0].name: missing field");
    let spec = POOL.find("spec:").unwrap();
    expect(&POOL[..spec], "pool.yaml:1:1: spec: missing field");
}

#[test]
fn document_needs_kind_and_api_version() {
    expect(&POOL.replace("kind: GpuPool\n", ""), "pool.yaml:1:1: kind: missing field");
    expect(
        &POOL.replace("apiVersion: sluice.dev/v1alpha1\n", ""),
        "pool.yaml:1:1: apiVersion: missing field",
    );
    expect(
        &POOL.replace("GpuPool", "GpuPol"),
        "pool.yaml:2:1: kind: unknown kind `GpuPol`, expected `GpuPool` or `ModelTenant`; did you mean `GpuPool`?",
    );
    expect(
        &POOL.replace("v1alpha1", "v1"),
        "pool.yaml:1:1: apiVersion: unknown apiVersion `sluice.dev/v1`, expected `sluice.dev/v1alpha1`",
    );
    let found = error(&POOL.replace("kind: GpuPool", "kind: 7"));
    assert!(matches!(found.problem, Problem::WrongType { .. }), "{found}");
    for text in ["- a\n", "just words\n"] {
        let found = error(text);
        assert!(found.path.is_root() && matches!(found.problem, Problem::WrongType { .. }), "{found}");
    }
}

#[test]
fn a_duplicate_key_names_both_lines() {
    let text = format!("{POOL}  policy: Pie\n  policy: Ellm\n");
    expect(&text, "pool.yaml:14:3: spec.policy: duplicate key, first given on line 13");
    expect(&format!("{POOL}kind: GpuPool\n"), "pool.yaml:13:1: kind: duplicate key, first given on line 2");
}

#[test]
fn errors_of_a_later_document_count_lines_of_the_file() {
    let text = format!("{}  replicas: x\n", both());
    let found = error(&text);
    assert!(found.to_string().starts_with("pool.yaml:26:3: spec.replicas: "), "{found}");
    let text = format!("{POOL}---\n# nothing\n---\n{}", POOL.replace("GpuPool", "x"));
    assert_eq!(error(&text).line, 17);
    let duplicate = format!("{}  replicas: 1\n  replicas: 1\n", both());
    assert_eq!(error(&duplicate).line, 27);
}

#[test]
fn broken_yaml_names_its_line() {
    let found = error(&format!("{POOL}  tolerations: [{{}}, {{}}\n---\n"));
    assert!(matches!(found.problem, Problem::Syntax(_)), "{found}");
    assert!(found.line >= 13, "{found}");
    let found = error("a: b: c\n");
    assert!(matches!(found.problem, Problem::Syntax(_)), "{found}");
    assert_eq!(found.line, 1);
}

#[test]
fn scalars_that_yaml_readers_disagree_on_are_refused() {
    for word in ["on", "Off", "YES", "no", "y", "N", "012", "0x10", "0o17", "1_000", "1:30", "+012"] {
        let found = error(&format!("{TENANT}  serviceAccountName: {word}\n"));
        assert_eq!((found.line, found.path.to_string().as_str()), (13, "spec.serviceAccountName"), "{word}");
        assert!(matches!(found.problem, Problem::Unsupported(_)), "{word}: {found}");
    }
}

#[test]
fn anchors_aliases_tags_and_deep_nesting_are_refused() {
    let deep = format!("{TENANT}  podLabels: {{a: {}{}}}\n", "[".repeat(40), "]".repeat(40));
    let unresolved = format!("{TENANT}  slo: *a\n");
    for text in [
        format!("{TENANT}  slo: &a {{}}\n"),
        format!("{TENANT}  serviceAccountName: &a x\n"),
        format!("{TENANT}  replicas: !!int \"3\"\n"),
        format!("{TENANT}  ? [a]\n  : b\n"),
    ] {
        let found = error(&text);
        assert!(matches!(found.problem, Problem::Unsupported(_)), "{found}");
        assert_eq!(found.line, 13, "{found}");
    }
    assert_eq!(error(&unresolved).line, 13);
    let found = errors(&deep);
    assert!(found.iter().any(|e| e.line == 13 && e.problem.to_string() == "nested too deeply"), "{found:?}");
}

#[test]
fn a_file_without_objects_or_of_absurd_size_is_refused() {
    for text in ["", "# nothing\n", "---\n---\n", "\n\n"] {
        assert!(matches!(error(text).problem, Problem::Empty), "{text:?}");
    }
    expect("", "pool.yaml:1:1: the file holds no object");
    let large = " ".repeat(MAX_FILE_BYTES + 1);
    assert!(matches!(error(&large).problem, Problem::TooLarge(_)));
}

#[test]
fn status_is_not_the_users_to_write() {
    let found = error(&format!("{POOL}status: {{}}\n"));
    assert_eq!((found.line, found.path.to_string().as_str()), (13, "status"));
}

#[test]
fn no_prefix_of_a_good_file_panics() {
    let text = both();
    let refused = (0..text.len()).filter(|&end| load_str(&text[..end], "f").is_err()).count();
    assert!(refused > text.len() / 2, "most prefixes lack something");
}

/// The text without each character, with a tab in its place, and with each line left out, repeated or moved by a
/// column.
fn small_changes(text: &str) -> Vec<String> {
    let characters = text.char_indices().flat_map(|(at, character)| {
        let (before, after) = (&text[..at], &text[at + character.len_utf8()..]);
        [format!("{before}{after}"), format!("{before}\t{after}"), format!("{before}[{after}")]
    });
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let of_lines = (0..lines.len()).flat_map(|at| {
        let line = lines[at];
        let changes = [String::new(), format!("{line}{line}"), format!(" {line}"), line.replacen(' ', "", 1)];
        changes.map(|line| format!("{}{line}{}", lines[..at].concat(), lines[at + 1..].concat()))
    });
    characters.chain(of_lines).collect()
}

#[test]
fn every_mistake_of_a_changed_file_has_a_place_in_it() {
    let changes = small_changes(&both());
    assert!(changes.len() > 1000);
    for text in changes {
        let Err(errors) = load_valid_str(&text, "f") else { continue };
        let lines: Vec<&str> = text.lines().collect();
        for error in errors.iter() {
            let line = lines.get(error.line - 1).map_or(0, |line| line.chars().count());
            assert!(error.line <= lines.len() + 1 && error.column <= line + 1, "{text}\n{errors}");
        }
        // One small change is few mistakes.
        assert!(errors.len() <= 6, "{text}\n{errors}");
    }
}
