//! The CRDs of both kinds, generated from the types.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use serde_json::Value;

use crate::{GpuPool, ModelTenant};

/// First lines of a generated file.
const HEADER: &str = "# Generated from crds/types; do not edit.\n";

/// Both CRDs: file name and content, as committed in `crds/generated`.
pub fn crd_yaml() -> Vec<(&'static str, String)> {
    let file = |crd: CustomResourceDefinition| {
        let yaml = serde_yaml::to_string(&crd_value(&crd)).expect("a JSON value is valid YAML");
        format!("{HEADER}{yaml}")
    };
    vec![
        ("sluice.dev_gpupools.yaml", file(GpuPool::crd())),
        ("sluice.dev_modeltenants.yaml", file(ModelTenant::crd())),
    ]
}

/// A CRD as JSON, made fit for the API server (see [`forbid_null_where_defaulted`]).
fn crd_value(crd: &CustomResourceDefinition) -> Value {
    let mut value = serde_json::to_value(crd).expect("a CRD serialises");
    forbid_null_where_defaulted(&mut value);
    value
}

/// The schemas of both kinds' `spec`, for readers that must know every field.
pub fn spec_schemas() -> [Value; 2] {
    [spec_schema(&GpuPool::crd()), spec_schema(&ModelTenant::crd())]
}

/// The schema of a kind's `spec`, as the API server sees it.
pub(crate) fn spec_schema(crd: &CustomResourceDefinition) -> Value {
    crd_value(crd)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].take()
}

/// The API server prunes a null and then applies the default, but only where null is not allowed; where it is, the null
/// stays and no reader of these types takes it.
fn forbid_null_where_defaulted(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.contains_key("default") && object.get("nullable") == Some(&Value::Bool(true)) {
                object.remove("nullable");
            }
            object.values_mut().for_each(forbid_null_where_defaulted);
        }
        Value::Array(items) => items.iter_mut().for_each(forbid_null_where_defaulted),
        _ => {}
    }
}
