//! A MODEL of the command line: a folder, or a model of a hub.

use std::path::{Path, PathBuf};

use crate::Misconfigured;
use crate::models::hub_model::HubModel;

const MODEL_SYNTAX: &str = "a MODEL is a folder with a config.json, ORG/NAME[@REVISION] of a Hugging Face hub, or \
    https://HOST/ORG/NAME[/tree/REVISION]";

/// The location of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelRef {
    /// A folder of this machine, absolute path.
    Folder(PathBuf),
    /// A repository of a hub.
    Hub(HubModel),
}

impl ModelRef {
    /// Resolves one MODEL. A folder has precedence over a repository of the same name; `endpoint` is the hub of
    /// `ORG/NAME`.
    ///
    /// # Errors
    /// The argument has none of the forms, or the folder has no model. The message names the argument, the attempts and
    /// the valid forms.
    pub fn resolve(argument: &str, endpoint: &str) -> Result<ModelRef, Misconfigured> {
        let path = Path::new(argument);
        if path.is_dir() {
            return folder(argument, path);
        }
        if path.is_file() {
            return Err(invalid_model(argument, "this is a file; name the folder that holds it"));
        }
        if is_path(argument) {
            return Err(invalid_model(argument, "there is no such folder"));
        }
        let hub = HubModel::parse(argument, endpoint);
        hub.map(ModelRef::Hub).map_err(|bad| match argument.contains("://") {
            true => invalid_model(argument, &bad.to_string()),
            false => {
                invalid_model(argument, &format!("there is no such folder, and as a model of a hub: {bad}"))
            }
        })
    }

    /// Returns the served name: `ORG/NAME` of a hub, or the name of the folder.
    pub fn served_name(&self) -> String {
        match self {
            ModelRef::Hub(model) => model.repo.clone(),
            ModelRef::Folder(folder) => folder
                .file_name()
                .map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned()),
        }
    }
}

fn folder(argument: &str, path: &Path) -> Result<ModelRef, Misconfigured> {
    if !path.join("config.json").is_file() {
        let problem = "this folder has no config.json, so it holds no model in Hugging Face layout";
        return Err(invalid_model(argument, problem));
    }
    // `.` has no name of its own, so the path is made absolute.
    let folder = path.canonicalize().map_err(|error| invalid_model(argument, &error.to_string()))?;
    Ok(ModelRef::Folder(folder))
}

/// Whether the argument can only be a path.
fn is_path(argument: &str) -> bool {
    argument.starts_with(['/', '.', '~']) || argument.ends_with('/')
}

fn invalid_model(argument: &str, problem: &str) -> Misconfigured {
    Misconfigured(format!("MODEL `{argument}`: {problem}; {MODEL_SYNTAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::hub_model::DEFAULT_ENDPOINT;

    fn refused(argument: &str) -> String {
        ModelRef::resolve(argument, DEFAULT_ENDPOINT).unwrap_err().to_string()
    }

    #[test]
    fn folder_takes_precedence_over_repository() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("tiny");
        std::fs::create_dir(&model).unwrap();
        let named = model.to_str().unwrap();
        let no_model = refused(named);
        assert!(
            no_model.starts_with(&format!("MODEL `{named}`: this folder has no config.json")),
            "{no_model}"
        );
        std::fs::write(model.join("config.json"), "{}").unwrap();
        let found = ModelRef::resolve(named, DEFAULT_ENDPOINT).unwrap();
        assert_eq!(found, ModelRef::Folder(model.canonicalize().unwrap()));
        assert_eq!(found.served_name(), "tiny");
        let file = refused(model.join("config.json").to_str().unwrap());
        assert!(file.contains("this is a file"), "{file}");
    }

    #[test]
    fn a_repository_is_served_by_its_name() {
        for argument in
            ["org/tiny", "org/tiny@v1", "https://huggingface.co/org/tiny", "http://h:1/org/tiny/tree/v1"]
        {
            let found = ModelRef::resolve(argument, DEFAULT_ENDPOINT).unwrap();
            assert_eq!(found.served_name(), "org/tiny", "{argument}");
        }
    }

    #[test]
    fn invalid_model_error_names_argument_attempts_and_syntax() {
        for (argument, tried) in [
            ("./nowhere", "there is no such folder; "),
            ("/nowhere/tiny", "there is no such folder; "),
            ("tiny", "there is no such folder, and as a model of a hub: `tiny` is not ORG/NAME; "),
            ("https://h/tiny", "`https://h/tiny` is not https://HOST/ORG/NAME"),
        ] {
            let words = refused(argument);
            assert!(words.starts_with(&format!("MODEL `{argument}`: {tried}")), "{words}");
            assert!(words.ends_with(MODEL_SYNTAX), "{words}");
        }
    }
}
