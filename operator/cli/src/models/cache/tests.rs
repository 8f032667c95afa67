use super::*;

fn hub(text: &str) -> HubModel {
    HubModel::parse(text, DEFAULT_ENDPOINT).unwrap()
}

fn cache() -> (tempfile::TempDir, ModelCache) {
    let dir = tempfile::tempdir().unwrap();
    let cache = ModelCache::open(Some(dir.path())).unwrap();
    (dir, cache)
}

fn fill(folder: &Path, bytes: usize, promised: usize) {
    std::fs::write(folder.join("model.safetensors"), vec![0; bytes]).unwrap();
    let receipt = format!(
        r#"{{"version":1,"source":"s","items":[{{"name":"model.safetensors","bytes":{promised}}}]}}"#
    );
    std::fs::write(folder.join(CompletionMarker::FILE), receipt).unwrap();
}

#[test]
fn models_are_listed_with_size_and_completeness() {
    let (_dir, cache) = cache();
    assert_eq!(cache.models().unwrap(), []);
    fill(cache.acquire(&hub("org/tiny")).unwrap().folder(), 10, 10);
    fill(cache.acquire(&hub("org/tiny@a/b")).unwrap().folder(), 10, 11);
    let part = cache.acquire(&hub("http://127.0.0.1:9/org/part")).unwrap();
    std::fs::write(part.folder().join("model.safetensors.part"), [0; 7]).unwrap();
    let listed = cache.models().unwrap();
    let seen = |m: &CachedModel| (m.to_string(), m.bytes, m.whole, m.in_use);
    let expected = [
        ("127.0.0.1:9/org/part", 7, false, true),
        ("org/tiny@a/b", 10, false, false),
        ("org/tiny", 10, true, false),
    ];
    let expected = expected.map(|(name, bytes, whole, in_use)| (name.to_owned(), bytes, whole, in_use));
    assert_eq!(listed.iter().map(seen).collect::<Vec<_>>(), expected);
    assert!(listed.iter().all(|model| model.last_used_unix_ms > 1_600_000_000_000));
}

#[test]
fn a_model_in_use_is_not_removed_and_a_removed_one_leaves_no_folder() {
    let (dir, cache) = cache();
    let held = cache.acquire(&hub("org/tiny")).unwrap();
    fill(held.folder(), 10, 10);
    let model = cache.models().unwrap().remove(0);
    let refused = cache.remove(&model).unwrap_err().to_string();
    assert_eq!(refused, "org/tiny is in use by a running `sluice run`; end that process first");
    assert!(held.is_complete());
    drop(held);
    assert_eq!(cache.remove(&model).unwrap(), 10);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    // A model that is removed is whole only after another download.
    assert!(!cache.acquire(&hub("org/tiny")).unwrap().is_complete());
}

#[test]
fn only_downloads_are_listed_and_interrupted_removal_is_completed() {
    let (dir, cache) = cache();
    // The layout of another program's cache.
    let other = dir.path().join("hub/models--org--tiny/snapshots/0123");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("model.safetensors"), [0; 7]).unwrap();
    let folder = cache.acquire(&hub("org/tiny")).unwrap().folder().to_owned();
    let left = folder.parent().unwrap().join(".removed-1");
    std::fs::create_dir(&left).unwrap();
    std::fs::write(left.join(USE_FILE), "").unwrap();
    let models = cache.models().unwrap();
    assert_eq!(models.iter().map(ToString::to_string).collect::<Vec<_>>(), ["org/tiny"]);
    cache.remove(&models[0]).unwrap();
    assert!(!left.exists() && !folder.exists() && other.join("model.safetensors").exists());
}

#[test]
fn concurrent_start_and_removal_leave_model_locked_or_complete() {
    let (_dir, cache) = cache();
    let model = hub("org/tiny");
    let holds = |cache: &ModelCache| {
        for _ in 0..200 {
            let held = cache.acquire(&model).unwrap();
            fill(held.folder(), 10, 10);
            std::thread::yield_now();
            assert!(held.is_complete(), "it was removed while it was held");
        }
    };
    std::thread::scope(|scope| {
        let run = scope.spawn(|| holds(&cache));
        while !run.is_finished() {
            // It is in use, or already removed: both are fine.
            cache.models().unwrap().iter().for_each(|model| drop(cache.remove(model)));
        }
        run.join().unwrap();
    });
}

#[test]
fn a_user_names_all_revisions_of_a_model_or_one() {
    let (_dir, cache) = cache();
    for name in ["org/tiny", "org/tiny@v1", "http://127.0.0.1:9/org/tiny"] {
        cache.acquire(&hub(name)).unwrap();
    }
    let models = cache.models().unwrap();
    let named = |text: &str| {
        models.iter().filter(|m| m.matches_name(text)).map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(named("org/tiny"), ["org/tiny", "org/tiny@v1"]);
    assert_eq!(named("org/tiny@v1"), ["org/tiny@v1"]);
    assert_eq!(named("127.0.0.1:9/org/tiny"), ["127.0.0.1:9/org/tiny"]);
    assert_eq!(named("http://127.0.0.1:9/org/tiny"), ["127.0.0.1:9/org/tiny"]);
    assert_eq!(named("https://huggingface.co/org/tiny/tree/v1"), ["org/tiny@v1"]);
    assert_eq!(named("tiny"), [""; 0]);
}

#[test]
fn revision_is_escaped_to_one_path_component() {
    for text in ["main", "refs/pr/1", "..", ".", "100%", "a b", "ü", "%2F"] {
        let escaped = escape(text);
        assert!(!escaped.contains('/') && !escaped.starts_with('.'), "{escaped}");
        assert_eq!(unescape(&escaped), text);
    }
}
