//! Parameters of a chat's requests: set by the user, else by the model's author, else these defaults.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Number, Value};

/// Longest answer of a model without a chat template, tokens: such a model seldom ends by itself.
const COMPLETION_TOKENS: u32 = 256;
/// Where neither the user nor the model's author names another one. A small model answers nonsense at the 1.0 of the API.
const TEMPERATURE: f64 = 0.7;
/// As above. It leaves out the least likely tokens.
const TOP_P: f64 = 0.95;

/// Names of settings, and whether a value may have a fraction.
const SETTINGS: [(&str, bool); 5] =
    [("max_tokens", false), ("seed", false), ("temperature", true), ("top_k", false), ("top_p", true)];

/// A parameter of all requests from now on.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// As in the API.
    pub name: &'static str,
    /// A number.
    pub value: Number,
}

impl Setting {
    /// Reads what `/set` was given.
    ///
    /// # Errors
    /// No setting has this name, or the value is not one of its kind; for people.
    pub fn parse(name: &str, value: &str) -> Result<Setting, String> {
        let Some((name, fraction)) = SETTINGS.into_iter().find(|(known, _)| *known == name) else {
            let names: Vec<_> = SETTINGS.iter().map(|(name, _)| *name).collect();
            return Err(format!("`{name}` is no setting; there are {}", names.join(", ")));
        };
        let number = value.parse::<Number>().ok().filter(|number| fraction || !number.is_f64());
        let kind = if fraction { "a number" } else { "a whole number" };
        number.map(|value| Setting { name, value }).ok_or_else(|| format!("{name}: `{value}` is not {kind}"))
    }
}

/// Sampling that the model's author recommends, by the names of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recommended(BTreeMap<&'static str, Number>);

impl Recommended {
    /// File of a model's folder that names it.
    const FILE: &str = "generation_config.json";

    /// What the model in `folder` names. Its sidecar refuses a file that is no JSON.
    pub fn of(folder: &Path) -> Recommended {
        let file = std::fs::read(folder.join(Recommended::FILE)).unwrap_or_default();
        let file: Value = serde_json::from_slice(&file).unwrap_or_default();
        let named = ["temperature", "top_k", "top_p"].into_iter().filter_map(|name| match &file[name] {
            Value::Number(number) => Some((name, number.clone())),
            _ => None,
        });
        Recommended(named.collect())
    }
}

/// What a request leaves to the settings of its model.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    /// It has a chat template, so its answers end by themselves.
    pub has_template: bool,
    /// Its context, tokens.
    pub context_tokens: u32,
    /// Of its author.
    pub recommended: &'a Recommended,
}

impl Model<'_> {
    /// The value that is sent where the user sets none.
    fn default(&self, name: &str) -> Option<Number> {
        match name {
            "max_tokens" if !self.has_template => {
                Some(COMPLETION_TOKENS.min(self.context_tokens / 2).max(1).into())
            }
            // The server takes what the author recommends by itself.
            _ if self.recommended.0.contains_key(name) => None,
            "temperature" => Number::from_f64(TEMPERATURE),
            "top_p" => Number::from_f64(TOP_P),
            _ => None,
        }
    }

    /// What applies where nothing is sent.
    fn unsent(&self, name: &str) -> String {
        match (self.recommended.0.get(name), name) {
            (Some(value), _) => format!("{value} (from {})", Recommended::FILE),
            (None, "max_tokens") => format!("what the context of {} tokens leaves", self.context_tokens),
            (None, "seed") => "another one for each answer".to_owned(),
            (None, _) => "all tokens".to_owned(),
        }
    }
}

/// All settings of the user.
#[derive(Clone, Debug, Default)]
pub struct Settings(BTreeMap<&'static str, Number>);

impl Settings {
    /// Another value for one.
    pub fn set(&mut self, setting: Setting) {
        self.0.insert(setting.name, setting.value);
    }

    /// Writes them into a request to `model`.
    pub fn apply(&self, model: Model<'_>, body: &mut Value) {
        for (name, _) in SETTINGS {
            if let Some(value) = self.0.get(name).cloned().or_else(|| model.default(name)) {
                body[name] = Value::Number(value);
            }
        }
    }

    /// The value of each for a request to `model`, one a line.
    pub fn list(&self, model: Model<'_>) -> String {
        let value = |name| match (self.0.get(name), model.default(name)) {
            (Some(value), _) => format!("{value} (set)"),
            (None, Some(value)) => format!("{value} (default)"),
            (None, None) => model.unsent(name),
        };
        let lines: Vec<_> = SETTINGS.iter().map(|(name, _)| format!("{name:12} {}", value(name))).collect();
        lines.join("\n")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn recommended(file: &str) -> Recommended {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(Recommended::FILE), file).unwrap();
        Recommended::of(dir.path())
    }

    fn set(all: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        all.iter().for_each(|(name, value)| settings.set(Setting::parse(name, value).unwrap()));
        settings
    }

    fn sent(settings: &Settings, model: Model<'_>) -> Value {
        let mut body = json!({});
        settings.apply(model, &mut body);
        body
    }

    #[test]
    fn the_user_goes_before_the_author_and_the_author_before_the_defaults() {
        let nothing = recommended(r#"{"eos_token_id": 2, "temperature": null}"#);
        let chat = Model { has_template: true, context_tokens: 512, recommended: &nothing };
        assert_eq!(sent(&set(&[]), chat), json!({"temperature": 0.7, "top_p": 0.95}));
        let author = recommended(r#"{"temperature": 0.6, "top_k": 20}"#);
        let of_author = Model { recommended: &author, ..chat };
        assert_eq!(sent(&set(&[]), of_author), json!({"top_p": 0.95}), "the server takes the rest");
        let settings = set(&[("temperature", "0"), ("top_k", "5"), ("temperature", "0.5"), ("seed", "1")]);
        let all = json!({"seed": 1, "temperature": 0.5, "top_k": 5, "top_p": 0.95});
        assert_eq!((sent(&settings, chat), sent(&settings, of_author)), (all.clone(), all));
    }

    #[test]
    fn an_answer_without_a_template_has_256_tokens_or_half_of_a_short_context() {
        let nothing = Recommended::default();
        let tokens = |has_template, context_tokens| {
            let model = Model { has_template, context_tokens, recommended: &nothing };
            sent(&set(&[]), model)["max_tokens"].as_u64()
        };
        assert_eq!([tokens(false, 8192), tokens(false, 64), tokens(true, 64)], [Some(256), Some(32), None]);
    }

    #[test]
    fn every_value_is_listed_with_its_origin() {
        let author = recommended(r#"{"top_k": 20}"#);
        let plain = Model { has_template: false, context_tokens: 8192, recommended: &author };
        let expected = "\
max_tokens   256 (default)
seed         another one for each answer
temperature  0.5 (set)
top_k        20 (from generation_config.json)
top_p        0.95 (default)";
        assert_eq!(set(&[("temperature", "0.5")]).list(plain), expected);
        let nothing = Recommended::of(Path::new("/nowhere"));
        let chat = Model { has_template: true, recommended: &nothing, ..plain };
        let listed = set(&[("seed", "7")]).list(chat);
        let expected = "max_tokens   what the context of 8192 tokens leaves\nseed         7 (set)\n";
        assert!(listed.starts_with(expected) && listed.contains("top_k        all tokens"), "{listed}");
    }
}
