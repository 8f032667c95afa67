//! Named experiments: the paper's figures, our figures, and whether they agree.

pub mod ablation;
mod context;
pub mod ellm;
pub mod oneiros;
pub mod orbitflow;
pub mod pie;
mod report;
pub mod row;
pub mod runs;
pub mod tenants;
pub mod unified;

pub use context::ExperimentContext;
pub use report::{ExperimentReport, Figure, Series};
pub use row::{ComparisonRow, DeviationReason, ExperimentCheck, PaperValue};

/// The kind of an experiment.
#[derive(Clone, Copy, Debug)]
pub enum ExperimentKind {
    /// A worked example of a paper, without virtual time.
    Analytic(fn() -> ExperimentReport),
    /// Runs in virtual time, with loads from trace files.
    Simulated(fn(&ExperimentContext<'_>) -> Result<ExperimentReport, String>),
}

/// An experiment.
#[derive(Clone, Copy, Debug)]
pub struct Experiment {
    /// Name on the command line.
    pub name: &'static str,
    /// Description, with the place in the paper.
    pub about: &'static str,
    /// How it is run.
    pub kind: ExperimentKind,
}

impl Experiment {
    /// Runs the experiment.
    ///
    /// # Errors
    /// A file that cannot be read, or a load that cannot be served.
    pub fn run(&self, lab: &ExperimentContext<'_>) -> Result<ExperimentReport, String> {
        match self.kind {
            ExperimentKind::Analytic(run) => Ok(run()),
            ExperimentKind::Simulated(run) => run(lab),
        }
    }
}

/// All experiments.
pub const ALL: [Experiment; 9] = [
    Experiment {
        name: "orbitflow-fig3",
        about: "stalls and memory of three placements of two requests (OrbitFlow Fig. 3)",
        kind: ExperimentKind::Analytic(orbitflow::fig3),
    },
    Experiment {
        name: "orbitflow-dl",
        about: "distinct placements of a request by the number of layers (OrbitFlow 4.2)",
        kind: ExperimentKind::Analytic(orbitflow::dl),
    },
    Experiment {
        name: "pie-fig4",
        about: "first swaps, stay, stalls and longest queues without one (Pie 3.3, Fig. 4)",
        kind: ExperimentKind::Analytic(pie::fig4),
    },
    Experiment {
        name: "oneiros-alpha",
        about: "layers whose memory KV can use without a stall, with one slot and two (Oneiros 5.4)",
        kind: ExperimentKind::Analytic(oneiros::alpha),
    },
    Experiment {
        name: "ellm-algorithms",
        about: "admission, inflation, the elastic buffer and changes of owner, case by case (eLLM Algorithms 1 and 2)",
        kind: ExperimentKind::Analytic(ellm::algorithms),
    },
    Experiment {
        name: "oneiros-c1",
        about: "throughput and tails over load: OPT-13B, Llama-2-13B and Llama-3-8B in time slices on a \
                GH200 (Oneiros Fig. 8)",
        kind: ExperimentKind::Simulated(tenants::c1),
    },
    Experiment {
        name: "oneiros-c2",
        about: "the same of OPT-30B and OPT-6.7B (Oneiros Fig. 8)",
        kind: ExperimentKind::Simulated(tenants::c2),
    },
    Experiment {
        name: "orbitflow-ladder",
        about: "tokens in time as OrbitFlow's parts are added, at SLO scale 1 and 2.5, Llama-3-8B on an A5000 (OrbitFlow, ablation)",
        kind: ExperimentKind::Simulated(ablation::run),
    },
    Experiment {
        name: unified::NAME,
        about: "goodput of Unified against every single policy, in twelve scenarios with and without mixes \
                (our requirement)",
        kind: ExperimentKind::Simulated(unified::run),
    },
];

/// Returns the experiment of this name.
pub fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.name == name)
}
