//! Alerts and dashboards: expressions that parse, metrics that exist, and texts for the person on call.

use std::collections::BTreeSet;

use promql_parser::parser::{self, Expr};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::Value;

use super::{Helm, named};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/");
const ON: &str = "monitoring.rules=true,monitoring.dashboards=true,monitoring.serviceMonitor=true";

fn page(name: &str) -> String {
    std::fs::read_to_string(format!("{FOLDER}{name}")).unwrap()
}

/// Returns the names of metrics in the documentation, as Prometheus stores them.
fn documented() -> BTreeSet<String> {
    let pages = ["metrics.md", "operator.md", "kubernetes.md"].map(page).join("\n");
    let quoted = pages.split('`').skip(1).step_by(2);
    let names = quoted.map(|quoted| quoted.split('{').next().unwrap_or_default().to_owned());
    let ours = names.filter(|name| name.starts_with("sluice_") || name.starts_with("vllm:"));
    let parts = ["", "_bucket", "_sum", "_count"];
    ours.flat_map(|name| parts.map(|part| format!("{name}{part}"))).collect()
}

/// Returns the metrics that an expression reads.
fn metrics(expression: &str) -> BTreeSet<String> {
    struct Names(BTreeSet<String>);
    impl ExprVisitor for Names {
        type Error = ();
        fn pre_visit(&mut self, expression: &Expr) -> Result<bool, ()> {
            let selector = match expression {
                Expr::VectorSelector(selector) => Some(selector),
                Expr::MatrixSelector(matrix) => Some(&matrix.vs),
                _ => None,
            };
            self.0.extend(selector.map(|selector| selector.name.clone().expect("a metric is named")));
            Ok(true)
        }
    }
    let parsed = parser::parse(expression).unwrap_or_else(|error| panic!("{expression}: {error}"));
    let mut names = Names(BTreeSet::new());
    walk_expr(&mut names, &parsed).unwrap();
    names.0
}

/// Fails if an expression reads no metric, or an undocumented one.
#[track_caller]
fn known(expression: &str, documented: &BTreeSet<String>) {
    let read = metrics(expression);
    assert!(!read.is_empty(), "{expression} reads nothing");
    // `up` is Prometheus's own metric of every target.
    for name in read.into_iter().filter(|name| name != "up") {
        assert!(documented.contains(&name), "{expression} reads {name}, which no page lists");
    }
}

#[test]
fn every_alert_can_be_evaluated_and_has_a_runbook() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", ON]);
    let rule = named(&objects, "PrometheusRule/sluice");
    let (documented, runbooks) = (documented(), page("runbooks.md"));
    let groups = rule["spec"]["groups"].as_array().unwrap();
    let alerts: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().unwrap()).collect();
    assert!(alerts.len() >= 10, "{}", alerts.len());
    for alert in &alerts {
        let name = alert["alert"].as_str().unwrap();
        known(alert["expr"].as_str().unwrap(), &documented);
        assert!(["critical", "warning"].contains(&alert["labels"]["severity"].as_str().unwrap()), "{name}");
        for words in ["summary", "description"] {
            assert!(
                alert["annotations"][words].as_str().is_some_and(|words| words.len() > 20),
                "{name}: {words}"
            );
        }
        assert!(runbooks.contains(&format!("\n## {name}\n")), "docs/runbooks.md has nothing about {name}");
    }
    let runbook_names: BTreeSet<&str> =
        runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let there: BTreeSet<&str> = alerts.iter().filter_map(|alert| alert["alert"].as_str()).collect();
    assert_eq!(runbook_names, there, "a runbook of an alert that is gone");
}

/// Returns the alert `name` of the chart's file, as a Prometheus without its operator loads it.
fn alert(name: &str) -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/sluice/monitoring/alerts.yaml");
    let rules: Value = serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let mut alerts = groups.flat_map(|group| group["rules"].as_array().unwrap());
    alerts.find(|alert| alert["alert"] == name).unwrap_or_else(|| panic!("no alert {name}")).clone()
}

#[test]
fn a_hang_wakes_with_the_tenant_and_the_pod_that_report_it() {
    let hung = alert("SluiceEngineHung");
    let read = metrics(hung["expr"].as_str().unwrap());
    let expected = [
        "sluice_engine_hangs_total",
        "sluice_sidecar_hangs_total",
        "sluice_time_slice_skips_total",
        "sluice_time_slice_takeovers_total",
        "sluice_time_slice_losses_total",
    ];
    assert_eq!(read, expected.into_iter().chain(["sluice_tenant_info"]).map(str::to_owned).collect());
    let words = format!("{} {}", hung["annotations"]["summary"], hung["annotations"]["description"]);
    for label in ["tenant", "what", "namespace", "pod", "gpu"] {
        assert!(words.contains(&format!("{{{{ $labels.{label} }}}}")), "{label}: {words}");
    }
    let held = alert("SluiceTimeSliceHeld");
    let read = metrics(held["expr"].as_str().unwrap());
    assert!(read.contains("sluice_time_slice_holder_overdue_seconds"), "{read:?}");
    assert_eq!(held["labels"]["severity"], "critical");
}

#[test]
fn an_alert_names_its_runbook_where_that_can_be_read() {
    let Some(helm) = Helm::find() else { return };
    let alerts = |values: &str| {
        let objects = helm.render(&["--set", values]);
        let groups = named(&objects, "PrometheusRule/sluice")["spec"]["groups"].clone();
        let groups = groups.as_array().unwrap().clone();
        groups.into_iter().flat_map(|group| group["rules"].as_array().unwrap().clone()).collect::<Vec<_>>()
    };
    let (plain, linked) =
        (alerts(ON), alerts(&format!("{ON},monitoring.runbookUrl=https://wiki.example/runbooks")));
    assert_eq!(plain.len(), linked.len());
    for (plain, mut linked) in plain.into_iter().zip(linked) {
        let name = plain["alert"].as_str().unwrap().to_lowercase();
        let url = linked["annotations"].as_object_mut().unwrap().remove("runbook_url").unwrap();
        assert_eq!(url, format!("https://wiki.example/runbooks#{name}"));
        assert_eq!(plain, linked, "nothing else is changed");
    }
}

#[test]
fn every_panel_of_a_dashboard_shows_a_metric_that_there_is() {
    let Some(helm) = Helm::find() else { return };
    let objects = helm.render(&["--set", ON]);
    let config = named(&objects, "ConfigMap/sluice-dashboards");
    assert_eq!(config["metadata"]["labels"]["grafana_dashboard"], "1");
    let files = config["data"].as_object().unwrap();
    assert_eq!(files.keys().collect::<Vec<_>>(), ["sluice-operator.json", "sluice-tenants.json"]);
    let documented = documented();
    for (file, text) in files {
        let dashboard: Value = serde_json::from_str(text.as_str().unwrap()).unwrap();
        assert_eq!(format!("{}.json", dashboard["uid"].as_str().unwrap()), *file);
        let panels = dashboard["panels"].as_array().unwrap();
        assert!(panels.len() >= 10, "{file}");
        for panel in panels {
            assert!(
                panel["title"].is_string() && panel["fieldConfig"]["defaults"]["unit"].is_string(),
                "{panel}"
            );
            for target in panel["targets"].as_array().unwrap() {
                // Grafana replaces the variable by an interval.
                let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
                known(&expression, &documented);
            }
        }
    }
}

#[test]
fn unknown_metric_is_detected() {
    let documented = documented();
    assert!(
        documented.contains("sluice_layers_remapped") && documented.contains("sluice_revoke_seconds_bucket")
    );
    assert!(!documented.contains("sluice_layers_borrowed"));
    let read = metrics("sum(rate(a_total[5m])) / on (pod) b > 0");
    assert_eq!(read, BTreeSet::from(["a_total".to_owned(), "b".to_owned()]));
}

#[test]
fn operator_alerts_without_scraping_are_refused() {
    let Some(helm) = Helm::find() else { return };
    let refused = helm.template("ns", &["--set", "monitoring.rules=true"]).unwrap_err();
    assert!(refused.contains("monitoring.scrapedElsewhere=true"), "{refused}");
    helm.render(&["--set", "monitoring.rules=true,monitoring.scrapedElsewhere=true"]);
}

#[test]
fn alerts_and_dashboards_are_off_by_default() {
    let Some(helm) = Helm::find() else { return };
    let kinds = |object: &Value| object["kind"].as_str().unwrap().to_owned();
    let objects = helm.render(&[]);
    assert!(objects.iter().all(|object| kinds(object) != "PrometheusRule"));
    assert!(objects.iter().all(|object| object["metadata"]["name"] != "sluice-dashboards"));
}
