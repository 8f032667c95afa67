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
    /// Type of a condition. All are set at the first reconciliation (`Unknown`), each with `observedGeneration`.
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
        /// Only of a pool that is being deleted: what it waits for.
        Terminating,
    }
}

impl ConditionType {
    /// Those of a tenant, in the order in which they are written.
    pub const OF_TENANT: &'static [ConditionType] = &[
        ConditionType::Accepted,
        ConditionType::Placed,
        ConditionType::DevicesAllocated,
        ConditionType::WeightsLoaded,
        ConditionType::Serving,
        ConditionType::Degraded,
        ConditionType::Ready,
    ];
    /// Those of a pool.
    pub const OF_POOL: &'static [ConditionType] = &[
        ConditionType::Accepted,
        ConditionType::Placed,
        ConditionType::DevicesAllocated,
        ConditionType::Degraded,
        ConditionType::Ready,
    ];
}

names! {
    /// Reason of a condition.
    Reason {
        /// Nothing is wrong.
        AsExpected,
        /// Not reconciled yet.
        NotObserved,
        /// `Accepted`: the floor of the model exceeds one GPU.
        ModelLargerThanGpu,
        /// `Accepted`: image volumes need Kubernetes 1.36.
        ImageVolumesUnsupported,
        /// `Accepted`: KV of one sequence of `maxModelLen` exceeds `kvLimit`.
        ContextDoesNotFit,
        /// `Accepted`: a block of KV is larger than the pool's chunks.
        ChunkTooSmall,
        /// `Accepted`: no pool of that name in the namespace.
        PoolNotFound,
        /// `Accepted`: the pool is being deleted, and takes no new tenant.
        PoolTerminating,
        /// `Accepted`: the pool has no group of that name.
        GroupNotFound,
        /// `Accepted`: `File` sources and key files exist only for local processes.
        LocalOnly,
        /// `Accepted`: a `Vllm` engine has no image; there is no default for it.
        EngineImageMissing,
        /// `Accepted`: the model's files cannot be downloaded, or not with this credential.
        ModelUnreadable,
        /// `Accepted`: the engine does not support the model in these files.
        ModelUnsupported,
        /// `Placed`: the model's geometry is not known yet.
        ModelNotInspected,
        /// `Placed`: the model could not be inspected.
        InspectionFailed,
        /// `Placed`: no GPU has room.
        Unschedulable,
        /// `DevicesAllocated`: no node with such a device takes the pod yet.
        NotAllocated,
        /// `DevicesAllocated`: the driver refused to prepare the claim.
        DriverRefused,
        /// `DevicesAllocated`, `WeightsLoaded`, `Serving`: a slot's pod cannot be made.
        PodsRefused,
        /// `WeightsLoaded`: the floor is taken; the sidecar waits.
        WaitingForMemory,
        /// `WeightsLoaded`, `Serving`: the pod is starting.
        PodNotReady,
        /// `WeightsLoaded`, `Serving`, `Degraded`: containers of a pod do not start, or end again and again.
        PodFailing,
        /// `Serving`: `suspend` is set.
        Suspended,
        /// `Serving`: `replicas` is 0.
        ScaledToZero,
        /// `Degraded`, and where that leaves a slot without a pod or a tenant without its Service: an object that is
        /// not the operator's has a name that one of its own needs.
        NameTaken,
        /// `Degraded`, and where that leaves a slot without a pod: the API server refused an object.
        ApplyFailed,
        /// `Degraded`, of a pool: a change of the spec waits until no tenant is on the GPU.
        UpdateWaits,
        /// `Degraded`, of a pool: too many nodes are not ready at once, so no GPU moves to another node.
        NodesNotReady,
        /// `Degraded`: a sidecar cannot be reached or refuses its directive, and follows the last one that it accepted.
        DirectiveNotTaken,
        /// `Degraded`: a fatal fault of one MPS client ended all clients of the GPU.
        MpsFault,
        /// `Degraded`: an engine exceeded a deadline; its sidecar ends it.
        EngineHung,
        /// `Degraded`, and where it does not answer `WeightsLoaded` and `Serving`: a sidecar held the time slice of its
        /// GPU past its deadline, as its peers report.
        SidecarHung,
        /// `Degraded`: the tenant waits for a time slice, which a peer holds past its deadline.
        PeerHung,
        /// `Terminating`: tenants still refer to the pool.
        TenantsRemain,
    }
}
