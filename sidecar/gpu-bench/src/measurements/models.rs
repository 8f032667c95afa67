//! Measurement 4: tokens per second of models of published shapes, with weights made on the device.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use sluice_kernels::cuda::{Products, Results};
use sluice_kernels::engine::CudaKernels;
use sluice_memory::cuda::{self, Address, Event, PinnedMemory, Stream};
use sluice_probe::Error;
use sluice_probe::bench::Bench;
use sluice_probe::checks::Check;
use sluice_probe::report::Answer;
use sluice_probe::results::Findings;
use sluice_probe::statistics::Figure;

use crate::device_data::DeviceData;
use crate::device_model::{self, CapturedDecode, DeviceModel, StepWork};
use crate::products;
use crate::scale::Scale;
use crate::shapes;

/// Measurement 4.
pub const CHECK: Check = Check {
    id: 4,
    name: "models",
    text: "Steps of whole models as the engine runs them, without a sidecar: decode as a graph, and without one; prefill; \
           with products of our kernel and of cuBLASLt",
    mib: 40_960,
    quick_mib: 6144,
    limit: Duration::from_secs(180),
    ask,
};

/// More than the inputs of a measured step.
const INPUT_BYTES: u64 = 8 << 20;

fn ask(bench: &Bench, findings: &mut Findings<'_>) -> Result<Answer, Error> {
    let scale = Scale::of(bench);
    let data = DeviceData::new(&bench.context)?;
    let (kernels, all_products) = products::load(bench, findings)?;
    for shape in shapes::all(scale) {
        bench.progress(shape.name);
        let mut model = DeviceModel::new(&data, &shape.spec, shape.spec.layers, &shape.steps)?;
        for products in &all_products {
            model = model.with_products(*products);
            let inputs = RefCell::new(PinnedMemory::allocate(&bench.context, INPUT_BYTES)?);
            let rounds = scale.pick(2, 5, 20);
            let study = Study { data: &data, kernels: &kernels, model: &model, inputs, rounds };
            for step in &shape.steps {
                let name = shape.step_name(*step) + products::suffix(*products);
                study.step(&name, *step, findings)?;
            }
        }
    }
    Ok(Answer::Yes)
}

/// Returns the name of the figure with the time of a step of this name.
pub fn step_figure(step_name: &str, products: Products) -> String {
    format!("{step_name}{}: step", products::suffix(products))
}

struct Study<'a> {
    data: &'a DeviceData,
    kernels: &'a CudaKernels,
    model: &'a DeviceModel,
    /// Page-locked memory from which inputs are copied, as the engine does.
    inputs: RefCell<PinnedMemory>,
    rounds: usize,
}

impl Study<'_> {
    /// Measures a step as the engine runs it; a decode also without a graph.
    fn step(&self, name: &str, step: StepWork, findings: &mut Findings<'_>) -> Result<(), Error> {
        if !step.is_decode() {
            let times = self.times(|| self.by_kernels(step))?;
            findings.figures.extend(figures(name, step, &times));
            return Ok(());
        }
        let captured = self.model.capture(&self.data.stream, self.kernels, self.model.pack(step))?;
        let graph = self.times(|| self.by_graph(step, &captured))?;
        findings.figures.extend(figures(name, step, &graph));
        let kernels = self.times(|| self.by_kernels(step))?;
        findings.figures.extend(figures(&format!("{name}, without a graph"), step, &kernels));
        Ok(())
    }

    /// Runs a step several times after a warm-up.
    fn times(&self, run: impl Fn() -> Result<[f64; 2], Error>) -> Result<Times, Error> {
        let warm_up = self.rounds.div_ceil(4);
        let all = (0..warm_up + self.rounds).map(|_| run()).collect::<Result<Vec<_>, _>>()?;
        let of = |part: usize| all[warm_up..].iter().map(|times| times[part]).collect();
        Ok(Times { whole_us: of(0), device_us: of(1) })
    }

    /// Plans a step, launches it kernel by kernel, and waits for its tokens. Returns the time of all by the host's
    /// clock, and the part of it in which the device had its kernels, by the device's; microseconds.
    fn by_kernels(&self, step: StepWork) -> Result<[f64; 2], Error> {
        let start = Instant::now();
        let program = self.model.plan(&self.model.ranges, step);
        self.upload(program.inputs_at, &program.inputs)?;
        self.follow(start, &program.results, |stream| device_model::launch(stream, self.kernels, &program))
    }

    /// Packs the inputs of a decode, launches its graph, and waits for its tokens.
    fn by_graph(&self, step: StepWork, captured: &CapturedDecode) -> Result<[f64; 2], Error> {
        let start = Instant::now();
        let packed = self.model.pack(step);
        self.upload(packed.inputs_at, &packed.inputs)?;
        self.follow(start, &captured.results, |stream| captured.graph.launch(stream))
    }

    fn upload(&self, to: Address, inputs: &[u8]) -> Result<(), Error> {
        let mut memory = self.inputs.borrow_mut();
        memory.write(inputs);
        Ok(self.data.stream.upload(to, &memory, 0, inputs.len() as u64)?)
    }

    fn follow(
        &self,
        start: Instant,
        results: &Results,
        launch: impl FnOnce(&Stream) -> Result<(), cuda::Error>,
    ) -> Result<[f64; 2], Error> {
        let stream = &self.data.stream;
        let first = Event::after(stream)?;
        launch(stream)?;
        let last = Event::after(stream)?;
        device_model::finish(stream, results)?;
        Ok([start.elapsed().as_secs_f64() * 1e6, last.since_ns(&first)? / 1000.0])
    }
}

/// Times of a step, microseconds.
struct Times {
    /// From its plan until its tokens are on the host.
    whole_us: Vec<f64>,
    /// On the device.
    device_us: Vec<f64>,
}

fn figures(name: &str, step: StepWork, times: &Times) -> [Figure; 3] {
    let tokens = f64::from(step.sequences * step.tokens);
    let rates: Vec<f64> = times.whole_us.iter().map(|us| tokens / us * 1e6).collect();
    [
        Figure::of(name, "tokens/s", &rates),
        Figure::of(format!("{name}: step"), "us", &times.whole_us),
        Figure::of(format!("{name}: on the device"), "us", &times.device_us),
    ]
}
