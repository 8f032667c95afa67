//! Pieces that both kinds use. Own types rather than k8s-openapi's: those ignore fields that they do not know.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::{CpuQuantity, Quantity};
use crate::rules;

/// Reference to an object of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NameRef {
    /// Name of the object, in the same namespace. Required.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Reference to one key of a Secret of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecretKeyRef {
    /// Name of the Secret, in the same namespace. Required.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in the Secret. Required.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// CPUs and memory of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Resources {
    /// Amounts that the scheduler reserves. Default: computed by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<ResourceList>,
    /// Most that the container may use. Default: computed by the operator; memory limit = memory request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<ResourceList>,
}

impl Resources {
    /// Whether what the scheduler is to set aside of CPUs is no more than may be used.
    pub fn cpu_is_within_its_limit(&self) -> bool {
        let millis = |list: &Option<ResourceList>| Some(list.as_ref()?.cpu.as_ref()?.millis());
        millis(&self.requests).zip(millis(&self.limits)).is_none_or(|(asked, most)| asked <= most)
    }
}

/// Amounts of CPU and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ResourceList {
    /// CPUs, as a quantity (`2`, `500m`). Default: computed by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuQuantity>,
    /// Memory, bytes as a quantity (`2Gi`). Default: computed by the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// One environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnvVar {
    /// Name of the variable. Required.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its value. Default empty.
    #[serde(default)]
    #[schemars(length(max = 4096))]
    pub value: String,
}

/// Effect of a taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// New pods are not placed.
    NoSchedule,
    /// New pods are placed only when there is no other node.
    PreferNoSchedule,
    /// Running pods are evicted.
    NoExecute,
}

/// How a toleration's key is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TolerationOperator {
    /// Key and value are equal.
    #[default]
    Equal,
    /// The key is there, whatever its value.
    Exists,
}

/// A taint that pods accept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Toleration {
    /// Key of the taint. Default: any (with operator Exists).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 316))]
    pub key: Option<String>,
    /// `Equal` compares key and value, `Exists` the key alone. Default Equal.
    pub operator: TolerationOperator,
    /// Value of the taint. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub value: Option<String>,
    /// Effect: NoSchedule, PreferNoSchedule or NoExecute. Default: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "TaintEffect")]
    pub effect: Option<TaintEffect>,
    /// Time that a pod stays after a NoExecute taint, seconds. Default: for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 86_400))]
    pub toleration_seconds: Option<i32>,
}

/// Selects by labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LabelSelector {
    /// Labels that must all be there with these values. Default: none, which selects everything.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    pub match_labels: BTreeMap<String, Label>,
}

/// Value of a label: at most 63 characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Label(
    /// The text.
    #[schemars(length(max = 63))]
    pub String,
);

/// Value of an annotation: at most 4096 characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Annotation(
    /// The text.
    #[schemars(length(max = 4096))]
    pub String,
);

/// The pool that a tenant belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolRef {
    /// Name of the GpuPool, in the same namespace. Required.
    #[schemars(length(min = 1, max = 40), extend("pattern" = rules::DNS_LABEL))]
    pub name: String,
}
