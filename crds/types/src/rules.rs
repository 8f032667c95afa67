//! Rules that hold between fields, each written once: the CEL that the API server evaluates and the message that both
//! the API server and [`crate::load::validate`] give.

use kube::core::Rule;
use serde_json::Value;

/// Longest name of a pool, a tenant or a GPU group: leaves room for `-<slot>`, `-<n>-e<epoch>` in 63 characters.
pub const MAX_NAME_LENGTH: usize = 40;
/// Pattern of a DNS-1123 label.
pub const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// Pattern of a MIG profile.
pub const MIG_PROFILE: &str = r"^[1-9]g\.[1-9][0-9]{0,3}gb(\.me)?$";
/// Pattern of a relative or absolute path with no NUL or line break.
pub const PATH: &str = r"^[^\x00\r\n]+$";

/// A CEL rule and its message.
#[derive(Debug)]
pub struct CelRule {
    /// The expression; `self` is the value that the rule is attached to.
    pub cel: &'static str,
    /// What a refused user reads.
    pub message: &'static str,
}

impl CelRule {
    /// For the CRD.
    pub fn rule(&self) -> Rule {
        Rule::new(self.cel).message(self.message)
    }
}

/// On a pool: its name.
pub const OBJECT_NAME: CelRule = CelRule {
    cel: "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    message: "metadata.name must be a DNS-1123 label (lower case letters, digits, '-') of at most 40 characters",
};
/// On a tenant: its name, which is also that of its Service, and Services are called stricter.
pub const TENANT_NAME: CelRule = CelRule {
    cel: "self.metadata.name.size() <= 40 && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    message: "metadata.name must be a DNS-1035 label (lower case letters, digits, '-', a letter first) of at most 40 \
              characters: the tenant's Service has the same name",
};
/// On the pool's spec: host memory is described exactly when the GPUs are made of it.
pub const HOST_DEVICE: CelRule = CelRule {
    cel: "(self.deviceClassName == 'host.sluice.dev') == (has(self.device) && has(self.device.host))",
    message: "device.host must be set when deviceClassName is host.sluice.dev, and only then",
};
/// On `device.host`: sizes in which chunks can be traded.
pub const HOST_CHUNK: CelRule = CelRule {
    cel: "quantity(string(self.chunkBytes)).asInteger() in [65536, 131072, 262144, 524288, 1048576, 2097152]",
    message: "chunkBytes must be 64Ki, 128Ki, 256Ki, 512Ki, 1Mi or 2Mi",
};
/// On `device.host`: there is something to share.
pub const HOST_MEMORY: CelRule = CelRule {
    cel: "quantity(string(self.memory)).compareTo(quantity(string(self.chunkBytes))) >= 0",
    message: "memory must hold at least one chunk",
};
/// On `device.host`: a link that never moves a byte would hang every fill.
pub const HOST_LINK: CelRule = CelRule {
    cel: "!has(self.linkBytesPerSecond) || quantity(string(self.linkBytesPerSecond)).isGreaterThan(quantity('0'))",
    message: "linkBytesPerSecond must be larger than 0; omit it for no limit",
};
/// On `device`: contexts are of CUDA.
pub const HOST_CONTEXTS: CelRule = CelRule {
    cel: "!(has(self.host) && has(self.contextReserve))",
    message: "contextReserve is for CUDA devices; a host-backed GPU has no contexts, so omit it",
};
/// GPUs that a pool may have, all groups together.
pub const MAX_GPUS: usize = 1024;
/// On `gpus`: the status of a pool names them all.
pub const POOL_SIZE: CelRule = CelRule {
    cel: "self.map(group, group.count).sum() <= 1024",
    message: "a pool has at most 1024 GPUs, all groups together: create another pool",
};
/// On `sharing.temporal`.
pub const QUANTUM_ORDER: CelRule = CelRule {
    cel: "self.minQuantumMilliseconds <= self.maxQuantumMilliseconds",
    message: "minQuantumMilliseconds must not exceed maxQuantumMilliseconds",
};
/// On the tenant's `memory`.
pub const KV_WITHIN_LIMIT: CelRule = CelRule {
    cel: "!has(self.guaranteedKv) || !has(self.kvLimit) || \
          quantity(string(self.guaranteedKv)).compareTo(quantity(string(self.kvLimit))) <= 0",
    message: "guaranteedKv must not exceed kvLimit",
};
/// On the tenant's `engine` and `sidecar`: the API server takes no pod that asks for more than it may use. Memory is
/// asked for as it is limited.
pub const CPU_WITHIN_LIMIT: CelRule = CelRule {
    cel: "!has(self.resources) || !has(self.resources.requests) || !has(self.resources.requests.cpu) || \
          !has(self.resources.limits) || !has(self.resources.limits.cpu) || \
          quantity(string(self.resources.requests.cpu)).compareTo(quantity(string(self.resources.limits.cpu))) <= 0",
    message: "resources.requests.cpu must not exceed resources.limits.cpu",
};
/// On the tenant's `engine`.
pub const ENGINE_IMAGE: CelRule = CelRule {
    cel: "self.kind != 'Vllm' || has(self.image)",
    message: "image must be set when kind is Vllm: only the native engine has a default image",
};
/// On the tenant's `engine`: of a proxied engine no sidecar sees whether it gets on.
pub const ENGINE_HANG_TIMEOUT: CelRule = CelRule {
    cel: "self.kind != 'Vllm' || !has(self.hangTimeoutSeconds)",
    message: "hangTimeoutSeconds is only for the native engine: Sluice does not detect hangs of a Vllm engine",
};
/// On the pool's `tolerations`, as the API server has it of a pod's.
pub const TOLERATION_KEY: CelRule = CelRule {
    cel: "self.all(one, one.operator == 'Exists' || (has(one.key) && one.key != ''))",
    message: "a toleration without key must have operator Exists",
};
/// On the pool's `tolerations`.
pub const TOLERATION_VALUE: CelRule = CelRule {
    cel: "self.all(one, one.operator != 'Exists' || !has(one.value) || one.value == '')",
    message: "a toleration with operator Exists must have no value",
};
/// On the pool's `tolerations`.
pub const TOLERATION_SECONDS: CelRule = CelRule {
    cel: "self.all(one, !has(one.tolerationSeconds) || (has(one.effect) && one.effect == 'NoExecute'))",
    message: "a toleration with tolerationSeconds must have effect NoExecute",
};
/// On the tenant's `idle`.
pub const HIBERNATE_AFTER_IDLE: CelRule = CelRule {
    cel: "self.hibernateAfterSeconds > self.afterSeconds",
    message: "hibernateAfterSeconds must be larger than afterSeconds",
};
/// On the tenant's `access`.
pub const ONE_KEY_SOURCE: CelRule = CelRule {
    cel: "!has(self.apiKeysSecretRef) || !has(self.apiKeysFile)",
    message: "apiKeysSecretRef and apiKeysFile must not both be set",
};
/// On the tenant's spec: a folder that several pods read, some of them for months, must never be about to change. A
/// branch moves, and the objects of a bucket are replaced.
pub const CACHE: CelRule = CelRule {
    cel: "!has(self.cache) || (has(self.model.source.huggingFace) && \
          self.model.source.huggingFace.revision.matches('^[0-9a-f]{40}$'))",
    message: "cache needs a source of type HuggingFace whose revision is a commit (40 hexadecimal digits)",
};
/// Beginnings of the keys of labels by which policies, Services and the operator itself know its pods.
const OWN_LABELS: [&str; 2] = [OWN_ANNOTATIONS, "app.kubernetes.io/"];
/// Beginning of the keys of annotations that the operator writes and reads.
const OWN_ANNOTATIONS: &str = "sluice.dev/";
/// On the tenant's `podLabels`: a label of ours on a pod opens what a policy closes.
pub const POD_LABELS: CelRule = CelRule {
    cel: "!self.exists(key, key.startsWith('sluice.dev/') || key.startsWith('app.kubernetes.io/'))",
    message: "podLabels must have no key that begins with sluice.dev/ or app.kubernetes.io/: the operator \
              sets them, and network policies and Services select pods by them",
};
/// On the tenant's `podAnnotations`.
pub const POD_ANNOTATIONS: CelRule = CelRule {
    cel: "!self.exists(key, key.startsWith('sluice.dev/'))",
    message: "podAnnotations must have no key that begins with sluice.dev/: the operator sets them",
};
/// On the tenant's `poolRef`.
pub const POOL_REF_IMMUTABLE: CelRule = CelRule { cel: "self == oldSelf", message: "poolRef is immutable" };
/// On the tenant's `model`.
pub const MODEL_IMMUTABLE: CelRule = CelRule { cel: "self == oldSelf", message: "model is immutable" };
/// On the tenant's spec, so that taking `engine` out and putting it back does not get round it.
pub const ENGINE_KIND_IMMUTABLE: CelRule =
    CelRule { cel: "self.engine.kind == oldSelf.engine.kind", message: "engine.kind is immutable" };

/// A union: a discriminator and the member that each of its values takes.
#[derive(Debug)]
pub struct OneOf {
    /// Name of the discriminator: `type`, `mode`.
    pub discriminator: &'static str,
    /// The members.
    pub members: &'static [OneOfMember],
    /// What a refused user reads.
    pub message: &'static str,
}

/// A member of a union.
#[derive(Debug)]
pub struct OneOfMember {
    /// The discriminator's value.
    pub value: &'static str,
    /// The field that belongs to it.
    pub field: &'static str,
    /// Whether the field must be there, or may be left out for its defaults.
    pub required: bool,
}

/// `sharing` of a GPU group.
pub const SHARING: OneOf = OneOf {
    discriminator: "mode",
    members: &[
        OneOfMember { value: "Temporal", field: "temporal", required: false },
        OneOfMember { value: "Spatial", field: "spatial", required: false },
        OneOfMember { value: "Isolated", field: "isolated", required: true },
    ],
    message: "only the field that mode names may be set, and mode Isolated needs the field isolated",
};
/// `model.source`.
pub const SOURCE: OneOf = OneOf {
    discriminator: "type",
    members: &[
        OneOfMember { value: "HuggingFace", field: "huggingFace", required: true },
        OneOfMember { value: "PersistentVolumeClaim", field: "persistentVolumeClaim", required: true },
        OneOfMember { value: "Image", field: "image", required: true },
        OneOfMember { value: "S3", field: "s3", required: true },
        OneOfMember { value: "File", field: "file", required: true },
    ],
    message: "exactly the field that type names must be set",
};

impl OneOf {
    /// For the CRD: generated from the same table that [`OneOf::holds`] reads.
    pub fn rule(&self) -> Rule {
        let terms: Vec<String> = self.members.iter().map(|member| self.term(member)).collect();
        Rule::new(terms.join(" && ")).message(self.message)
    }

    fn term(&self, member: &OneOfMember) -> String {
        let (name, OneOfMember { value, field, .. }) = (self.discriminator, member);
        match member.required {
            true => format!("(self.{name} == '{value}') == has(self.{field})"),
            false => format!("(self.{name} == '{value}' || !has(self.{field}))"),
        }
    }

    /// Whether the serialised union obeys the rule.
    pub fn holds(&self, union: &Value) -> bool {
        let chosen = union[self.discriminator].as_str();
        self.members.iter().all(|member| {
            let (selected, present) = (chosen == Some(member.value), union.get(member.field).is_some());
            if member.required { selected == present } else { selected || !present }
        })
    }
}

/// Whether `text` is a DNS-1123 label, without regard to its length.
pub fn is_dns_label(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !text.is_empty() && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Whether `text` is a DNS-1035 label, without regard to its length: what a Service may be called.
pub fn is_service_name(text: &str) -> bool {
    is_dns_label(text) && text.starts_with(|first: char| first.is_ascii_lowercase())
}

/// Whether a pod's label `key` is one that only the operator sets.
pub fn is_own_label(key: &str) -> bool {
    OWN_LABELS.iter().any(|begin| key.starts_with(begin))
}

/// Whether a pod's annotation `key` is one that only the operator sets.
pub fn is_own_annotation(key: &str) -> bool {
    key.starts_with(OWN_ANNOTATIONS)
}

/// Whether `text` is a MIG profile: `3g.71gb`, `1g.18gb.me`.
pub fn is_mig_profile(text: &str) -> bool {
    let Some((slices, memory)) = text.strip_suffix(".me").unwrap_or(text).split_once("g.") else {
        return false;
    };
    let digits = |text: &str, most: usize| {
        !text.is_empty()
            && text.len() <= most
            && !text.starts_with('0')
            && text.bytes().all(|b| b.is_ascii_digit())
    };
    digits(slices, 1) && memory.strip_suffix("gb").is_some_and(|gb| digits(gb, 4))
}

/// Whether `text` can be a path.
pub fn is_path(text: &str) -> bool {
    !text.is_empty() && !text.contains(['\0', '\r', '\n'])
}

/// A pattern of the schema: the check that stands for it here.
pub struct Pattern {
    /// As in the schema.
    pub regex: &'static str,
    /// Whether a text matches.
    pub holds: fn(&str) -> bool,
    /// What a refused user reads.
    pub message: &'static str,
}

/// Every pattern that the schemas use.
pub const PATTERNS: &[Pattern] = &[
    Pattern {
        regex: DNS_LABEL,
        holds: is_dns_label,
        message: "must be a DNS-1123 label (lower case letters, digits, '-')",
    },
    Pattern { regex: MIG_PROFILE, holds: is_mig_profile, message: "must be a MIG profile such as 3g.71gb" },
    Pattern { regex: PATH, holds: is_path, message: "must be a path without line breaks" },
    // Reading into the types refuses what does not match.
    Pattern { regex: crate::Quantity::PATTERN, holds: |_| true, message: "" },
    Pattern { regex: crate::CpuQuantity::PATTERN, holds: |_| true, message: "" },
];

/// Whether a reader of YAML 1.1 (kubectl, Helm) takes the bare word for a boolean and one of YAML 1.2 does not.
pub fn is_yaml11_boolean(text: &str) -> bool {
    let cased = |word: &str| {
        let capital = format!("{}{}", word[..1].to_ascii_uppercase(), &word[1..]);
        text == word || text == capital || text == word.to_ascii_uppercase()
    };
    ["y", "n", "yes", "no", "on", "off"].into_iter().any(cased)
}
