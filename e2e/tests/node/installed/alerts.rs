//! Evaluates alerts of the chart over scraped metrics. Supports only the part of PromQL that the alerts about hangs
//! use.

use std::collections::BTreeMap;
use std::time::Duration;

use promql_parser::parser::{self, BinaryExpr, Call, Expr, MatrixSelector, VectorSelector};
use serde_json::Value as Json;
use sluice_common::metrics_text;

/// Names and values.
pub type Labels = BTreeMap<String, String>;
/// Labels and value of each series.
type Vector = Vec<(Labels, f64)>;

/// Returns the expression of the alert `name` of the chart.
pub fn expression(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/sluice/monitoring/alerts.yaml");
    let rules: Json = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let mut alerts = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let alert = alerts.find(|alert| alert["alert"] == name).unwrap_or_else(|| panic!("no alert {name}"));
    alert["expr"].as_str().unwrap().to_owned()
}

/// Scraped samples of pods, ordered by time.
#[derive(Debug, Default)]
pub struct Scrapes(Vec<Sample>);

#[derive(Clone, Debug)]
struct Sample {
    at: Duration,
    name: String,
    labels: Labels,
    value: f64,
}

impl Scrapes {
    /// Adds the metrics of a pod, with the target labels that Prometheus adds.
    pub fn add(&mut self, at: Duration, namespace: &str, pod: &str, metrics: &str) {
        self.0.extend(metrics_text::samples(metrics).map(|sample| {
            let own = sample.labels.iter().map(|(name, value)| (*name, value.as_ref()));
            let labels = own.chain([("namespace", namespace), ("pod", pod)]);
            let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            Sample { at, name: sample.name.to_owned(), labels, value: sample.value }
        }));
    }

    /// Returns the series for which an expression holds at the last scrape.
    pub fn evaluate(&self, expression: &str) -> Vector {
        let parsed = parser::parse(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
        self.vector(&parsed)
    }

    fn vector(&self, expression: &Expr) -> Vector {
        match expression {
            Expr::Paren(inner) => self.vector(&inner.expr),
            Expr::VectorSelector(selector) => self.last(selector),
            Expr::Call(call) => self.call(call),
            Expr::Binary(binary) => self.binary(binary),
            other => panic!("{other} is not evaluated here"),
        }
    }

    /// Returns the samples of a selector, by series.
    fn series(&self, selector: &VectorSelector) -> BTreeMap<&Labels, Vec<&Sample>> {
        assert!(selector.matchers.matchers.is_empty(), "{selector} selects by labels");
        let mut series = BTreeMap::<_, Vec<_>>::new();
        for sample in self.0.iter().filter(|sample| Some(&sample.name) == selector.name.as_ref()) {
            series.entry(&sample.labels).or_default().push(sample);
        }
        series
    }

    fn last(&self, selector: &VectorSelector) -> Vector {
        let series = self.series(selector).into_iter();
        series.map(|(labels, samples)| (labels.clone(), samples.last().expect("one").value)).collect()
    }

    fn within(&self, matrix: &MatrixSelector) -> BTreeMap<&Labels, Vec<f64>> {
        let now = self.0.iter().map(|sample| sample.at).max().unwrap_or_default();
        let recent = |sample: &&Sample| sample.at + matrix.range > now;
        let values =
            |samples: Vec<&Sample>| samples.into_iter().filter(recent).map(|one| one.value).collect();
        let series = self.series(&matrix.vs).into_iter();
        series
            .map(|(labels, samples)| (labels, values(samples)))
            .filter(|(_, values): &(_, Vec<_>)| !values.is_empty())
            .collect()
    }

    fn call(&self, Call { func, args }: &Call) -> Vector {
        let text = |at: usize| match &*args.args[at] {
            Expr::StringLiteral(text) => text.val.as_str(),
            other => panic!("{other} is no text"),
        };
        match (func.name, &*args.args[0]) {
            ("increase", Expr::MatrixSelector(matrix)) => self.over(matrix, increase),
            ("min_over_time", Expr::MatrixSelector(matrix)) => {
                self.over(matrix, |values| Some(values.iter().copied().fold(f64::INFINITY, f64::min)))
            }
            ("label_replace", vector) => {
                assert_eq!((text(3), text(4)), ("", ""), "a label is only set");
                let with = |(mut labels, value): (Labels, f64)| {
                    labels.insert(text(1).to_owned(), text(2).to_owned());
                    (labels, value)
                };
                self.vector(vector).into_iter().map(with).collect()
            }
            (name, _) => panic!("{name} is not evaluated here"),
        }
    }

    fn over(&self, matrix: &MatrixSelector, of: impl Fn(&[f64]) -> Option<f64>) -> Vector {
        let series = self.within(matrix).into_iter();
        series.filter_map(|(labels, values)| Some((labels.clone(), of(&values)?))).collect()
    }

    fn binary(&self, BinaryExpr { op, lhs, rhs, modifier }: &BinaryExpr) -> Vector {
        let left = self.vector(lhs);
        if let Expr::NumberLiteral(number) = &**rhs {
            assert_eq!(op.to_string(), ">");
            return left.into_iter().filter(|(_, value)| *value > number.val).collect();
        }
        let right = self.vector(rhs);
        let on = modifier.as_ref().and_then(|modifier| modifier.matching.as_ref());
        let on: Vec<&String> = on.iter().flat_map(|on| &on.labels().labels).collect();
        let same = |a: &Labels, b: &Labels| on.iter().all(|name| a.get(*name) == b.get(*name));
        match op.to_string().as_str() {
            "or" => {
                let more =
                    right.into_iter().filter(|(labels, _)| left.iter().all(|(known, _)| known != labels));
                let more: Vec<_> = more.collect();
                left.into_iter().chain(more).collect()
            }
            "and" => {
                left.into_iter().filter(|(own, _)| right.iter().any(|(other, _)| same(own, other))).collect()
            }
            "*" => {
                let more = modifier.as_ref().and_then(|modifier| modifier.card.labels());
                let more: Vec<&String> = more.iter().flat_map(|more| &more.labels).collect();
                let joined = |(mut labels, value): (Labels, f64)| {
                    let (other, factor) = right.iter().find(|(other, _)| same(&labels, other))?;
                    labels.extend(
                        more.iter().filter_map(|name| Some(((*name).clone(), other.get(*name)?.clone()))),
                    );
                    Some((labels, value * factor))
                };
                left.into_iter().filter_map(joined).collect()
            }
            other => panic!("{other} is not evaluated here"),
        }
    }
}

/// Growth of a counter, without Prometheus's extrapolation to the bounds of the window.
fn increase(values: &[f64]) -> Option<f64> {
    let grown = |pair: &[f64]| if pair[1] >= pair[0] { pair[1] - pair[0] } else { pair[1] };
    (values.len() > 1).then(|| values.windows(2).map(grown).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "sluice_tenant_info{gpu=\"g\",model_name=\"m\",tenant=\"t\"} 1";

    /// Returns the labels `what` of the series for which the alert holds after scrapes of one pod, 30 s apart.
    fn holds(alert: &str, scrapes: &[&str]) -> Vec<String> {
        let mut all = Scrapes::default();
        for (at, metrics) in scrapes.iter().enumerate() {
            all.add(
                Duration::from_secs(at as u64 * 30),
                "ns",
                "p",
                &format!("# HELP x y\n{INFO}\n{metrics}\n"),
            );
        }
        let firing = all.evaluate(&expression(alert)).into_iter();
        firing
            .map(|(labels, value)| {
                let of = |name: &str| labels.get(name).cloned().unwrap_or_default();
                format!("{} {} {} {value}", of("tenant"), of("pod"), of("what"))
            })
            .collect()
    }

    #[test]
    fn hang_alert_names_tenant_once_a_counter_grows() {
        let hangs = |count: u32| format!("sluice_engine_hangs_total{{model_name=\"m\"}} {count}");
        let of = |counts: &[u32]| {
            let scrapes: Vec<String> = counts.iter().map(|count| hangs(*count)).collect();
            holds("SluiceEngineHung", &scrapes.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(of(&[1]), [""; 0], "one scrape is no growth");
        assert_eq!(of(&[1, 1]), [""; 0]);
        assert_eq!(of(&[0, 1]), ["t p its engine hung and was killed 1"]);
        let long_ago = [&[0, 1][..], &[1; 31]].concat();
        assert_eq!(of(&long_ago), [""; 0], "15 minutes later");
    }

    #[test]
    fn slice_alert_fires_while_every_scrape_is_overdue_and_requests_are_open() {
        let late = |seconds: u32, open: u32| {
            format!(
                "sluice_time_slice_holder_overdue_seconds{{model_name=\"m\"}} {seconds}\nsluice_open_requests{{model_name=\"m\"}} {open}"
            )
        };
        let of = |scrapes: [String; 2]| holds("SluiceTimeSliceHeld", &scrapes.each_ref().map(String::as_str));
        assert_eq!(of([late(4, 1), late(5, 1)]), [" p  4"]);
        assert_eq!(of([late(0, 1), late(5, 1)]), [""; 0]);
        assert_eq!(of([late(4, 1), late(5, 0)]), [""; 0]);
    }
}
