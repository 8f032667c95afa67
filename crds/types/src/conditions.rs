//! Types of conditions and the closed set of their reasons.

macro_rules! names {
    ($(#[$meta:meta])* $type:ident { $($(#[$doc:meta])* $name:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $type { $($(#[$doc])* $name),+ }

        impl $type {
            /// All of them, in a stable order.
            pub const ALL: &'static [$type] = &[$($type::$name),+];

            /// The name as it stands in a condition.
            pub const fn as_str(self) -> &'static str {
                match self { $($type::$name => stringify!($name)),+ }
            }
        }
    };
}

names! {
    /// Type of a condition. All are set at first sight (`Unknown`), each with `observedGeneration`.
    ConditionType {
        /// The spec can be served at all.
        Accepted,
        /// Every slot has a GPU.
        Placed,
        /// The claims of all slots are allocated and prepared.
        DevicesAllocated,
        /// The weights are in host memory.
        WeightsLoaded,
        /// Requests are answered or held.
        Serving,
        /// Something runs worse than it should.
        Degraded,
        /// The only summary.
        Ready,
    }
}

names! {
    /// Reason of a condition.
    Reason {
        /// Nothing is wrong.
        AsExpected,
        /// Not looked at yet.
        NotObserved,
        /// `Accepted`: the floor of the model exceeds one GPU.
        ModelLargerThanGpu,
        /// `Accepted`: image volumes need Kubernetes 1.36.
        ImageVolumesUnsupported,
        /// `Accepted`: KV of `maxModelLen` fits neither `guaranteedKv` nor the host tier.
        ContextDoesNotFit,
        /// `Accepted`: no pool of that name in the namespace.
        PoolNotFound,
        /// `Accepted`: the pool has no group of that name.
        GroupNotFound,
        /// `Accepted`: `File` sources and key files exist only for local processes.
        LocalOnly,
        /// `Placed`: the model's geometry is not known yet.
        ModelNotInspected,
        /// `Placed`: no GPU has room.
        NoRoom,
        /// `DevicesAllocated`: the driver refused to prepare the claim.
        DriverRefused,
        /// `WeightsLoaded`: the floor is taken; the sidecar waits.
        WaitingForMemory,
        /// `Degraded`: a fatal fault of one MPS client ended all of the GPU.
        MpsFault,
        /// `Terminating`: tenants still refer to the pool.
        TenantsRemain,
    }
}
