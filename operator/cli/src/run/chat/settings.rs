//! Parameters of a chat's requests: the user's values, else those of the model's author, else these defaults.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Number, Value};

/// Longest answer of a model without a chat template, tokens: such a model seldom ends by itself.
const COMPLETION_TOKENS: u32 = 256;
/// Where neither the user nor the model's author names another one. A small model answers nonsense at the 1.0 of
/// the API.
const TEMPERATURE: f64 = 0.7;
/// Default, as for the temperature. Excludes the least likely tokens.
const TOP_P: f64 = 0.95;

/// Names of settings, and whether a value may have a fraction.
const SETTINGS: [(&str, bool); 5] =
    [("max_tokens", false), ("seed", false), ("temperature", true), ("top_k", false), ("top_p", true)];

/// A parameter of all later requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Name in the API.
    pub name: &'static str,
    /// A number.
    pub value: Number,
}

impl Setting {
    /// Parses the arguments of `/set`.
    ///
    /// # Errors
    /// No setting has this name, or the value has the wrong type; the message is for users.
    pub fn parse(name: &str, value: &str) -> Result<Setting, String> {
        let (name, fraction) = find_setting(name)?;
        let number = value.parse::<Number>().ok().filter(|number| fraction || !number.is_f64());
        let kind = if fraction { "a number" } else { "a whole number" };
        number.map(|value| Setting { name, value }).ok_or_else(|| format!("{name}: `{value}` is not {kind}"))
    }

    /// Whether the API takes this value in a request to `model`: the limits are those of the sidecar's gateway.
    ///
    /// # Errors
    /// The accepted values, for users.
    pub fn check(&self, model: ModelSettings<'_>) -> Result<(), String> {
        // The gateway reads fractions as f32.
        let number = self.value.as_f64().unwrap_or(f64::NAN) as f32;
        let whole = self.value.as_i64();
        let (fits, wanted) = match self.name {
            "temperature" => ((0.0..=2.0).contains(&number), "a number from 0 to 2".to_owned()),
            "top_p" => (number > 0.0 && number <= 1.0, "a number above 0 and at most 1".to_owned()),
            "top_k" => {
                let most = u32::MAX;
                let fits = whole.is_some_and(|whole| (-1..=i64::from(most)).contains(&whole));
                (fits, format!("a whole number from 1 to {most}, or 0 or -1 for all tokens"))
            }
            "max_tokens" => {
                let most = model.context_tokens;
                let fits = whole.is_some_and(|whole| (1..=i64::from(most)).contains(&whole));
                (fits, format!("a whole number from 1 to {most}, the context of this model"))
            }
            _ => (whole.is_some(), format!("a whole number from {} to {}", i64::MIN, i64::MAX)),
        };
        if fits { Ok(()) } else { Err(format!("{} must be {wanted}, not {}.", self.name, self.value)) }
    }
}

/// Returns the setting `name`, and whether its value may have a fraction.
fn find_setting(name: &str) -> Result<(&'static str, bool), String> {
    SETTINGS.into_iter().find(|(known, _)| *known == name).ok_or_else(|| {
        let names: Vec<_> = SETTINGS.iter().map(|(name, _)| *name).collect();
        format!("`{name}` is not a setting; the settings are {}", names.join(", "))
    })
}

/// Returns the static name of the setting `name`.
///
/// # Errors
/// There is no such setting; the message is for users.
pub fn name_of(name: &str) -> Result<&'static str, String> {
    find_setting(name).map(|(name, _)| name)
}

/// Sampling that the model's author recommends, by the names of settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recommended(BTreeMap<&'static str, Number>);

impl Recommended {
    /// File in a model's folder that contains them.
    const GENERATION_CONFIG: &str = "generation_config.json";

    /// Reads the recommendation of the model in `folder`. Its sidecar refuses a file that is not JSON.
    pub fn from_folder(folder: &Path) -> Recommended {
        let file = std::fs::read(folder.join(Recommended::GENERATION_CONFIG)).unwrap_or_default();
        let file: Value = serde_json::from_slice(&file).unwrap_or_default();
        let named = ["temperature", "top_k", "top_p"].into_iter().filter_map(|name| match &file[name] {
            Value::Number(number) => Some((name, number.clone())),
            _ => None,
        });
        Recommended(named.collect())
    }
}

/// The model's part of the settings.
#[derive(Clone, Copy, Debug)]
pub struct ModelSettings<'a> {
    /// Whether it has a chat template, so that its answers end by themselves.
    pub has_template: bool,
    /// Context, tokens.
    pub context_tokens: u32,
    /// Recommendation of its author.
    pub recommended: &'a Recommended,
}

impl ModelSettings<'_> {
    /// Returns the value to send if the user sets none.
    fn default(&self, name: &str) -> Option<Number> {
        match name {
            "max_tokens" if !self.has_template => {
                Some(COMPLETION_TOKENS.min(self.context_tokens / 2).max(1).into())
            }
            // The server applies the author's recommendation by itself.
            _ if self.recommended.0.contains_key(name) => None,
            "temperature" => Number::from_f64(TEMPERATURE),
            "top_p" => Number::from_f64(TOP_P),
            _ => None,
        }
    }

    /// Describes the value that applies if none is sent.
    fn implicit_default(&self, name: &str) -> String {
        match (self.recommended.0.get(name), name) {
            (Some(value), _) => format!("{value} (from {})", Recommended::GENERATION_CONFIG),
            (None, "max_tokens") => format!("the rest of the context of {} tokens", self.context_tokens),
            (None, "seed") => "a new one for each answer".to_owned(),
            (None, _) => "all tokens".to_owned(),
        }
    }
}

/// The user's settings.
#[derive(Clone, Debug, Default)]
pub struct Settings(BTreeMap<&'static str, Number>);

impl Settings {
    /// Sets a value.
    pub fn set(&mut self, setting: Setting) {
        self.0.insert(setting.name, setting.value);
    }

    /// Removes the user's value of `name`, and returns the value that now applies to a request to `model`.
    pub fn unset(&mut self, name: &'static str, model: ModelSettings<'_>) -> String {
        self.0.remove(name);
        model.default(name).map_or_else(|| model.implicit_default(name), |value| value.to_string())
    }

    /// Writes the values into a request to `model`.
    pub fn apply(&self, model: ModelSettings<'_>, body: &mut Value) {
        for (name, _) in SETTINGS {
            if let Some(value) = self.0.get(name).cloned().or_else(|| model.default(name)) {
                body[name] = Value::Number(value);
            }
        }
    }

    /// Lists the value of each setting for a request to `model`, one per line.
    pub fn list(&self, model: ModelSettings<'_>) -> String {
        let lines: Vec<_> = SETTINGS.iter().map(|(name, _)| self.setting_line(name, model)).collect();
        lines.join("\n")
    }

    /// Formats `name` and its value for a request to `model`.
    pub fn setting_line(&self, name: &'static str, model: ModelSettings<'_>) -> String {
        let value = match (self.0.get(name), model.default(name)) {
            (Some(value), _) => format!("{value} (set)"),
            (None, Some(value)) => format!("{value} (default)"),
            (None, None) => model.implicit_default(name),
        };
        format!("{name:12} {value}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn recommended(file: &str) -> Recommended {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(Recommended::GENERATION_CONFIG), file).unwrap();
        Recommended::from_folder(dir.path())
    }

    fn set(all: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        all.iter().for_each(|(name, value)| settings.set(Setting::parse(name, value).unwrap()));
        settings
    }

    fn sent(settings: &Settings, model: ModelSettings<'_>) -> Value {
        let mut body = json!({});
        settings.apply(model, &mut body);
        body
    }

    #[test]
    fn user_setting_overrides_author_and_author_overrides_default() {
        let nothing = recommended(r#"{"eos_token_id": 2, "temperature": null}"#);
        let chat = ModelSettings { has_template: true, context_tokens: 512, recommended: &nothing };
        assert_eq!(sent(&set(&[]), chat), json!({"temperature": 0.7, "top_p": 0.95}));
        let author = recommended(r#"{"temperature": 0.6, "top_k": 20}"#);
        let of_author = ModelSettings { recommended: &author, ..chat };
        assert_eq!(sent(&set(&[]), of_author), json!({"top_p": 0.95}), "the server takes the rest");
        let settings = set(&[("temperature", "0"), ("top_k", "5"), ("temperature", "0.5"), ("seed", "1")]);
        let all = json!({"seed": 1, "temperature": 0.5, "top_k": 5, "top_p": 0.95});
        assert_eq!((sent(&settings, chat), sent(&settings, of_author)), (all.clone(), all));
    }

    #[test]
    fn a_value_that_the_api_refuses_is_refused_with_the_limits() {
        let nothing = Recommended::default();
        let model = ModelSettings { has_template: true, context_tokens: 512, recommended: &nothing };
        let check = |name, value| Setting::parse(name, value).unwrap().check(model);
        for (name, values) in [
            ("temperature", ["0", "2", "2.0"]),
            ("top_p", ["0.001", "1", "1.0"]),
            ("top_k", ["-1", "0", "4294967295"]),
            ("max_tokens", ["1", "256", "512"]),
            ("seed", ["-9223372036854775808", "0", "9223372036854775807"]),
        ] {
            values.iter().for_each(|value| assert_eq!(check(name, value), Ok(()), "{name} {value}"));
        }
        for (name, values, wanted) in [
            ("temperature", ["9", "-0.1", "2.1"], "a number from 0 to 2"),
            ("top_p", ["3", "0", "-1"], "a number above 0 and at most 1"),
            ("top_p", ["1e-60", "1.1", "-0.5"], "a number above 0 and at most 1"),
            (
                "top_k",
                ["-2", "4294967296", "18446744073709551615"],
                "a whole number from 1 to 4294967295, or",
            ),
            ("max_tokens", ["-1", "0", "513"], "a whole number from 1 to 512, the context of this model"),
            ("max_tokens", ["99999", "-9", "4294967297"], "a whole number from 1 to 512"),
        ] {
            for value in values {
                let refused = check(name, value).unwrap_err();
                assert!(refused.starts_with(&format!("{name} must be {wanted}")), "{refused}");
            }
        }
        assert!(check("seed", "9223372036854775808").is_err());
    }

    #[test]
    fn a_setting_that_is_taken_back_has_the_default_of_its_model() {
        let author = recommended(r#"{"top_k": 20}"#);
        let model = ModelSettings { has_template: true, context_tokens: 512, recommended: &author };
        let mut settings = set(&[("temperature", "0"), ("top_k", "5"), ("max_tokens", "9")]);
        assert_eq!(settings.setting_line("temperature", model), "temperature  0 (set)");
        assert_eq!(settings.unset("temperature", model), "0.7");
        assert_eq!(settings.setting_line("temperature", model), "temperature  0.7 (default)");
        assert_eq!(settings.unset("top_k", model), "20 (from generation_config.json)");
        assert_eq!(settings.unset("max_tokens", model), "the rest of the context of 512 tokens");
        assert_eq!(sent(&settings, model), sent(&set(&[]), model));
    }

    #[test]
    fn an_answer_without_a_template_has_256_tokens_or_half_of_a_short_context() {
        let nothing = Recommended::default();
        let tokens = |has_template, context_tokens| {
            let model = ModelSettings { has_template, context_tokens, recommended: &nothing };
            sent(&set(&[]), model)["max_tokens"].as_u64()
        };
        assert_eq!([tokens(false, 8192), tokens(false, 64), tokens(true, 64)], [Some(256), Some(32), None]);
    }

    #[test]
    fn every_value_is_listed_with_its_origin() {
        let author = recommended(r#"{"top_k": 20}"#);
        let plain = ModelSettings { has_template: false, context_tokens: 8192, recommended: &author };
        let expected = "\
max_tokens   256 (default)
seed         a new one for each answer
temperature  0.5 (set)
top_k        20 (from generation_config.json)
top_p        0.95 (default)";
        assert_eq!(set(&[("temperature", "0.5")]).list(plain), expected);
        let nothing = Recommended::from_folder(Path::new("/nowhere"));
        let chat = ModelSettings { has_template: true, recommended: &nothing, ..plain };
        let listed = set(&[("seed", "7")]).list(chat);
        let expected = "max_tokens   the rest of the context of 8192 tokens\nseed         7 (set)\n";
        assert!(listed.starts_with(expected) && listed.contains("top_k        all tokens"), "{listed}");
    }
}
