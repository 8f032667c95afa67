//! Reads Hugging Face folders: tensors by name, and slabs in the sidecar's layout.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use sluice_kernels::generate::tensor_name;
use sluice_link::model::ModelSpec;
use sluice_link::slab::{Slab, slab_layout};

use crate::memory::Bytes;

/// All tensors of a folder: raw bytes, and values widened to f64.
pub struct Checkpoint {
    raw: BTreeMap<String, Vec<u8>>,
    values: BTreeMap<String, Vec<f64>>,
}

impl Checkpoint {
    pub fn read(folder: &Path) -> Checkpoint {
        let mut checkpoint = Checkpoint { raw: BTreeMap::new(), values: BTreeMap::new() };
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "safetensors") {
                let bytes = std::fs::read(&path).unwrap();
                for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                    checkpoint.values.insert(name.clone(), widened(tensor.dtype(), tensor.data()));
                    checkpoint.raw.insert(name, tensor.data().to_vec());
                }
            }
        }
        checkpoint
    }

    pub fn values(&self, name: &str) -> &[f64] {
        self.values.get(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub fn find(&self, name: &str) -> Option<&[f64]> {
        self.values.get(name).map(Vec::as_slice)
    }

    pub fn len(&self) -> usize {
        self.raw.len()
    }

    pub fn global_slab(&self, spec: &ModelSpec) -> Bytes {
        self.slab(spec, &slab_layout(spec).global, 0)
    }

    pub fn layer_slab(&self, spec: &ModelSpec, layer: usize) -> Bytes {
        self.slab(spec, &slab_layout(spec).layer, layer)
    }

    fn slab(&self, spec: &ModelSpec, slab: &Slab, layer: usize) -> Bytes {
        let mut bytes = Bytes::poisoned(slab.bytes as usize);
        for place in &slab.tensors {
            let data = &self.raw[&tensor_name(spec.family, place.tensor, layer)];
            let start = place.offset_bytes as usize;
            bytes.as_mut_slice()[start..start + place.bytes as usize].copy_from_slice(data);
        }
        bytes
    }
}

fn widened(dtype: Dtype, data: &[u8]) -> Vec<f64> {
    let halves = || data.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        Dtype::F32 => {
            data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect()
        }
        Dtype::F16 => halves().map(|b| f16::from_le_bytes(b).to_f64()).collect(),
        Dtype::BF16 => halves().map(|b| bf16::from_le_bytes(b).to_f64()).collect(),
        other => panic!("dtype {other:?}"),
    }
}
