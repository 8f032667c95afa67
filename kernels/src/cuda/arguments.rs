//! Arguments of kernels: structures that a kernel reads as they lie in memory.

/// A field of a kernel's argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Fields of the field, where it is a structure.
    pub inner: &'static [Field],
}

/// The layout of a structure, to be compared with what the PTX reads.
pub trait Layout {
    /// Its fields; empty for a number.
    const FIELDS: &'static [Field];
}

impl Layout for u32 {
    const FIELDS: &'static [Field] = &[];
}

impl Layout for u64 {
    const FIELDS: &'static [Field] = &[];
}

impl Layout for f32 {
    const FIELDS: &'static [Field] = &[];
}

/// Declares a structure that a kernel takes as its argument, or a part of one. `Pod` refuses hidden padding.
macro_rules! arguments {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl $crate::cuda::Layout for $name {
            const FIELDS: &'static [$crate::cuda::Field] = &[$($crate::cuda::Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
                bytes: size_of::<$type>(),
                inner: <$type as $crate::cuda::Layout>::FIELDS,
            }),*];
        }
    };
}

pub(crate) use arguments;
