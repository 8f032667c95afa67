//! The model of a tenant and where its files come from.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rules;
use crate::shared::{NameRef, SecretKeyRef};

/// The model that is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// Where the model's files (config.json, safetensors, tokenizer.json) come from. Required.
    #[x_kube(validation = rules::SOURCE.rule())]
    pub source: Source,
    /// Names under which clients may ask for the model. Default: the tenant's name; at most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 256)),
        extend("x-kubernetes-list-type" = "set")
    )]
    pub served_names: Vec<String>,
    /// Type of the weights in memory: Auto (as in the files), Float32, Float16 or BFloat16. Default Auto.
    #[serde(default)]
    pub dtype: WeightType,
    /// Longest sequence (prompt and answer), tokens. Default: the model's own limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_216))]
    pub max_model_len: Option<i32>,
}

/// A volume that keeps downloaded models.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Cache {
    /// Name of the PersistentVolumeClaim, in the same namespace: writable for user or group 65532, and ReadWriteMany
    /// for pods on several nodes. Each commit of a model has its own folder. Required.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
}

/// Type of the weights in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WeightType {
    /// As in the files.
    #[default]
    Auto,
    /// 32 bits.
    Float32,
    /// 16 bits, IEEE.
    Float16,
    /// 16 bits, bfloat16.
    BFloat16,
}

/// Where the files come from. A union: exactly the field that `type` names must be set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Source {
    /// HuggingFace, PersistentVolumeClaim, Image, S3 or File. Required.
    #[serde(rename = "type")]
    pub kind: SourceType,
    /// A repository of a Hugging Face hub. Required when type is HuggingFace, refused otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugging_face: Option<HuggingFaceSource>,
    /// A folder of a volume. Required when type is PersistentVolumeClaim, refused otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PvcSource>,
    /// A folder of an image. Required when type is Image, refused otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<ImageSource>,
    /// Objects of a bucket. Required when type is S3, refused otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub s3: Option<S3Source>,
    /// A folder of this machine, only for `sluice up`. Required when type is File, refused otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<FileSource>,
}

/// Discriminator of [`Source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SourceType {
    /// A repository of a Hugging Face hub.
    HuggingFace,
    /// A folder of a volume.
    PersistentVolumeClaim,
    /// An OCI image mounted as a volume (Kubernetes 1.36).
    Image,
    /// Objects under a prefix.
    S3,
    /// A folder of this machine.
    File,
}

impl SourceType {
    /// The name as written in a manifest.
    pub const fn as_str(self) -> &'static str {
        match self {
            SourceType::HuggingFace => "HuggingFace",
            SourceType::PersistentVolumeClaim => "PersistentVolumeClaim",
            SourceType::Image => "Image",
            SourceType::S3 => "S3",
            SourceType::File => "File",
        }
    }
}

/// A repository of a Hugging Face hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HuggingFaceSource {
    /// Repository, as OWNER/NAME. Required.
    #[schemars(length(min = 1, max = 256))]
    pub repo: String,
    /// Branch, tag or commit. Default main.
    #[serde(default = "default_revision")]
    #[schemars(length(min = 1, max = 128))]
    pub revision: String,
    /// Address of the hub. Default https://huggingface.co.
    #[serde(default = "default_hub")]
    #[schemars(length(min = 1, max = 512))]
    pub endpoint: String,
    /// Secret that holds the access token. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_secret_ref: Option<SecretKeyRef>,
}

fn default_revision() -> String {
    "main".to_owned()
}

fn default_hub() -> String {
    "https://huggingface.co".to_owned()
}

/// A folder of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PvcSource {
    /// Name of the PersistentVolumeClaim, in the same namespace. Required.
    #[schemars(length(min = 1, max = 253))]
    pub claim_name: String,
    /// Folder of the model in the volume. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), extend("pattern" = rules::PATH))]
    pub path: Option<String>,
}

/// An OCI image mounted as a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ImageSource {
    /// Reference of the image, by digest if it must not change. Required.
    #[schemars(length(min = 1, max = 1024))]
    pub reference: String,
    /// Folder of the model in the image. Default: its root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), extend("pattern" = rules::PATH))]
    pub path: Option<String>,
}

/// Objects under a prefix of a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct S3Source {
    /// Bucket. Required.
    #[schemars(length(min = 3, max = 63))]
    pub bucket: String,
    /// Prefix of the model's objects. Default empty.
    #[serde(default)]
    #[schemars(length(max = 1024))]
    pub prefix: String,
    /// Region. Default us-east-1.
    #[serde(default = "default_region")]
    #[schemars(length(min = 1, max = 64))]
    pub region: String,
    /// Address of the service. Default: that of AWS in the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub endpoint: Option<String>,
    /// Secret with the keys `accessKeyId` and `secretAccessKey`. Default: none, anonymous access.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<NameRef>,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}

/// A folder of this machine, only for `sluice up`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FileSource {
    /// Folder of the model; a relative path starts at the folder of the YAML file. Required.
    #[schemars(length(min = 1, max = 4096), extend("pattern" = rules::PATH))]
    pub path: String,
}
