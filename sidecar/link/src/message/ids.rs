//! Serde forms of the policy's ids, which are free of serde: an id is its number.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sluice_policy::ids::{ActionId, KvChunkId, LayerId};

/// A field of type [`ActionId`].
pub(super) mod action {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(id: &ActionId, serializer: S) -> Result<S::Ok, S::Error> {
        id.0.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ActionId, D::Error> {
        u64::deserialize(deserializer).map(ActionId)
    }
}

/// A field of type `Vec<LayerId>`.
pub(super) mod layers {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(layers: &[LayerId], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(layers.iter().map(|layer| layer.0))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<LayerId>, D::Error> {
        Ok(Vec::<u16>::deserialize(deserializer)?.into_iter().map(LayerId).collect())
    }
}

/// A field of type `Vec<KvChunkId>`.
pub(super) mod kv_chunks {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(chunks: &[KvChunkId], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(chunks.iter().map(|chunk| chunk.0))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<KvChunkId>, D::Error> {
        Ok(Vec::<u32>::deserialize(deserializer)?.into_iter().map(KvChunkId).collect())
    }
}
