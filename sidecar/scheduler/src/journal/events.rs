//! Encodes events as words and decodes them.

use std::sync::Arc;

use sluice_policy::event::{Completion, Failure, Outcome};
use sluice_policy::geometry::ActivationCost;
use sluice_policy::ids::{ActionId, RequestId, RowId, StepId};
use sluice_policy::params::Bounds;
use sluice_policy::placement_planner::request::{PlanAnswer, PlanResult};
use sluice_policy::reclaim::PolicyName;
use sluice_ports::compute::{ComputeEvent, EngineHello, FailedSequence, Sampled, SequenceFailure, StepDone};
use sluice_ports::sampling::{Sampling, TokenLogprobs};

use super::peers;
use super::text_codec::{Encoder, Reader, by_code, code_of};
use crate::event::{Event, Request, Sleep};

const FAILURES: [Failure; 5] =
    [Failure::OutOfMemory, Failure::CopyFailed, Failure::Dropped, Failure::Refused, Failure::Busy];

const SLEEPS: [Sleep; 4] = [Sleep::Idle, Sleep::Ordered, Sleep::Discard, Sleep::WakeUp];

/// Code of [`SequenceFailure::NoCandidate`].
const NO_CANDIDATE: u64 = 0;
/// Code of [`SequenceFailure::Refused`]; its reason follows.
const REFUSED: u64 = 1;

/// Events that had another name up to version 15 of the journal, and their names now.
const FORMER_NAMES: [(&str, &str); 5] = [
    ("turn", "slice_granted"),
    ("sought", "slice_requested"),
    ("overtaken", "slice_taken_over"),
    ("turn_passed", "stale_epoch"),
    ("letter", "peer"),
];

/// Returns the name now of an event in a journal of version 15 or before.
pub fn current_name(name: &str) -> &str {
    FORMER_NAMES.iter().find(|(former, _)| *former == name).map_or(name, |(_, now)| now)
}

/// Encodes an event; returns its name and words.
pub fn encode(event: &Event) -> (&'static str, Encoder) {
    let mut words = Encoder::default();
    let name = match event {
        Event::Submit(request) => {
            put_request(&mut words, request);
            "submit"
        }
        Event::Cancel(id) => {
            words.put(id.0);
            "cancel"
        }
        Event::Memory(completion) => {
            put_completion(&mut words, completion);
            "memory"
        }
        Event::Compute(event) => put_compute(&mut words, event),
        Event::Peer(event) => peers::put(&mut words, event),
        Event::Sleep(order) => {
            words.put(code_of(&SLEEPS, order));
            "sleep"
        }
        Event::Policy(policy) => {
            words.put(code_of(&PolicyName::ALL, policy));
            "policy"
        }
        Event::Bounds(Bounds { share_chunks, remap_cap_permille }) => {
            words.put(*share_chunks).put(*remap_cap_permille);
            "bounds"
        }
        Event::Plan(answer) => {
            put_plan(&mut words, answer);
            "plan"
        }
        Event::Tick => "tick",
    };
    (name, words)
}

/// Decodes the event with this name.
pub fn decode(name: &str, r: &mut Reader<'_>) -> Result<Event, String> {
    Ok(match name {
        "submit" => Event::Submit(request(r)?),
        "cancel" => Event::Cancel(RequestId(r.u64()?)),
        "memory" => Event::Memory(completion(r)?),
        "sleep" => Event::Sleep(by_code(&SLEEPS, r)?),
        "policy" => Event::Policy(by_code(&PolicyName::ALL, r)?),
        "bounds" => Event::Bounds(Bounds { share_chunks: r.int()?, remap_cap_permille: r.int()? }),
        "plan" => Event::Plan(plan(r)?),
        "tick" => Event::Tick,
        "attached" => Event::Compute(ComputeEvent::Attached(hello(r)?)),
        "lost" => Event::Compute(ComputeEvent::Lost),
        "done" => Event::Compute(ComputeEvent::Done(done(r)?)),
        "stale_epoch" => Event::Compute(ComputeEvent::StaleEpoch { id: StepId(r.u64()?), attempt: r.int()? }),
        "refused" => Event::Compute(ComputeEvent::Refused {
            id: StepId(r.u64()?),
            attempt: r.int()?,
            message: text(r)?,
        }),
        name if peers::NAMES.contains(&name) => Event::Peer(peers::read(name, r)?),
        other => return Err(format!("`{other}` is not an event")),
    })
}

fn put_plan(words: &mut Encoder, answer: &PlanAnswer) {
    let found = answer.result.as_ref();
    words.put(answer.id).put_option(found.map(|found| found.step_ns));
    words.put(found.map_or(0, |found| found.bound_ns));
    words.put(found.map_or(0, |found| found.paused)).put(found.map_or(0, |found| found.admitted));
    let chosen = found.map_or(&[][..], |found| &found.chosen);
    words.put_list(chosen, |w, at| {
        w.put(*at);
    });
}

fn plan(r: &mut Reader<'_>) -> Result<PlanAnswer, String> {
    let (id, step_ns, bound_ns) = (r.u64()?, r.option()?, r.u64()?);
    let (paused, admitted, chosen) = (r.int()?, r.int()?, r.list(Reader::int)?);
    Ok(PlanAnswer {
        id,
        result: step_ns.map(|step_ns| PlanResult { paused, admitted, chosen, step_ns, bound_ns }),
    })
}

fn put_text(words: &mut Encoder, text: &str) {
    words.put_list(text.as_bytes(), |w, byte| {
        w.put(*byte);
    });
}

fn text(r: &mut Reader<'_>) -> Result<String, String> {
    String::from_utf8(r.list(Reader::int)?).map_err(|_| "a text is not UTF-8".into())
}

fn put_tokens(words: &mut Encoder, tokens: &[u32]) {
    words.put_list(tokens, |w, token| {
        w.put(*token);
    });
}

fn put_pairs(words: &mut Encoder, pairs: &[(u32, f32)]) {
    words.put_list(pairs, |w, (token, value)| {
        w.put(*token).put_f32(*value);
    });
}

fn pairs(r: &mut Reader<'_>) -> Result<Vec<(u32, f32)>, String> {
    r.list(|r| Ok((r.int()?, r.f32()?)))
}

fn put_request(words: &mut Encoder, request: &Request) {
    let Request { id, prompt, max_tokens, sampling, priority, salt, paced } = request;
    words.put(id.0).put(*max_tokens).put(priority.cast_unsigned()).put(*salt).put(*paced);
    put_tokens(words, prompt);
    put_sampling(words, sampling);
}

fn request(r: &mut Reader<'_>) -> Result<Request, String> {
    let (id, max_tokens) = (RequestId(r.u64()?), r.int()?);
    let (priority, salt, paced) = (r.int::<u32>()?.cast_signed(), r.u64()?, r.bool()?);
    let prompt = r.list(Reader::int)?;
    Ok(Request { id, prompt, max_tokens, sampling: Arc::new(sampling(r)?), priority, salt, paced })
}

fn put_sampling(words: &mut Encoder, sampling: &Sampling) {
    let Sampling { temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, .. } = sampling;
    let Sampling {
        repetition_penalty, logit_bias, seed, stop_tokens, min_tokens, ignore_stop, logprobs, ..
    } = sampling;
    for float in [temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty] {
        words.put_f32(*float);
    }
    words.put(*top_k).put(*seed).put(*min_tokens).put(*ignore_stop).put_option(logprobs.map(u64::from));
    put_pairs(words, logit_bias);
    put_tokens(words, stop_tokens);
}

fn sampling(r: &mut Reader<'_>) -> Result<Sampling, String> {
    Ok(Sampling {
        temperature: r.f32()?,
        top_p: r.f32()?,
        min_p: r.f32()?,
        presence_penalty: r.f32()?,
        frequency_penalty: r.f32()?,
        repetition_penalty: r.f32()?,
        top_k: r.int()?,
        seed: r.u64()?,
        min_tokens: r.int()?,
        ignore_stop: r.bool()?,
        logprobs: r
            .option()?
            .map(|n| u8::try_from(n).map_err(|_| format!("{n} is too large")))
            .transpose()?,
        logit_bias: pairs(r)?,
        stop_tokens: r.list(Reader::int)?,
    })
}

fn put_completion(words: &mut Encoder, completion: &Completion) {
    words.put(completion.id.0);
    match completion.outcome {
        Outcome::Done { bytes, duration_ns } => words.put(0u64).put(bytes).put(duration_ns),
        Outcome::Failed(failure) => {
            let code = FAILURES.iter().position(|f| *f == failure).expect("every failure is listed");
            words.put(1u64).put(code as u64)
        }
    };
}

fn completion(r: &mut Reader<'_>) -> Result<Completion, String> {
    let id = ActionId(r.u64()?);
    let outcome = match r.u64()? {
        0 => Outcome::Done { bytes: r.u64()?, duration_ns: r.u64()? },
        _ => {
            let code: usize = r.int()?;
            Outcome::Failed(*FAILURES.get(code).ok_or(format!("{code} is not a failure"))?)
        }
    };
    Ok(Completion { id, outcome })
}

fn put_compute(words: &mut Encoder, event: &ComputeEvent) -> &'static str {
    match event {
        ComputeEvent::Attached(hello) => {
            let a = hello.activation;
            words.put(hello.pid).put(a.fixed_bytes).put(a.stream_per_token_bytes);
            words.put(a.chunk_per_token_bytes).put(a.chunk_tokens);
            words.put(a.per_sequence_bytes).put(a.per_logit_row_bytes);
            "attached"
        }
        ComputeEvent::Lost => "lost",
        ComputeEvent::Done(done) => {
            put_done(words, done);
            "done"
        }
        ComputeEvent::Refused { id, attempt, message } => {
            words.put(id.0).put(*attempt);
            put_text(words, message);
            "refused"
        }
        ComputeEvent::StaleEpoch { id, attempt } => {
            words.put(id.0).put(*attempt);
            "stale_epoch"
        }
    }
}

fn hello(r: &mut Reader<'_>) -> Result<EngineHello, String> {
    let pid = r.int()?;
    let activation = ActivationCost {
        fixed_bytes: r.u64()?,
        stream_per_token_bytes: r.u64()?,
        chunk_per_token_bytes: r.u64()?,
        chunk_tokens: r.int()?,
        per_sequence_bytes: r.u64()?,
        per_logit_row_bytes: r.u64()?,
    };
    Ok(EngineHello { activation, pid })
}

fn put_done(words: &mut Encoder, done: &StepDone) {
    let put_ns = |w: &mut Encoder, ns: &u64| {
        w.put(*ns);
    };
    words.put(done.id.0).put(done.attempt).put(done.total_ns);
    words.put_list(&done.layer_ns, put_ns).put_list(&done.stall_ns, put_ns);
    words.put_list(&done.kv_stall_ns, put_ns);
    words.put_list(&done.sampled, put_sampled);
    words.put_list(&done.failed, put_failed);
}

fn put_sampled(words: &mut Encoder, sampled: &Sampled) {
    words.put(sampled.row.0).put(sampled.token).put(sampled.logprobs.is_some());
    if let Some(logprobs) = &sampled.logprobs {
        words.put_f32(logprobs.chosen);
        put_pairs(words, &logprobs.top);
    }
}

fn done(r: &mut Reader<'_>) -> Result<StepDone, String> {
    Ok(StepDone {
        id: StepId(r.u64()?),
        attempt: r.int()?,
        total_ns: r.u64()?,
        layer_ns: r.list(Reader::u64)?,
        stall_ns: r.list(Reader::u64)?,
        kv_stall_ns: r.list(Reader::u64)?,
        sampled: r.list(sampled)?,
        failed: r.list(failed)?,
    })
}

fn put_failed(words: &mut Encoder, failed: &FailedSequence) {
    words.put(failed.row.0);
    match &failed.failure {
        SequenceFailure::NoCandidate => drop(words.put(NO_CANDIDATE)),
        SequenceFailure::Refused(reason) => put_text(words.put(REFUSED), reason),
    }
}

fn failed(r: &mut Reader<'_>) -> Result<FailedSequence, String> {
    let row = RowId(r.int()?);
    let failure = match r.u64()? {
        NO_CANDIDATE => SequenceFailure::NoCandidate,
        REFUSED => SequenceFailure::Refused(text(r)?),
        code => return Err(format!("{code} is not a failure of a sequence")),
    };
    Ok(FailedSequence { row, failure })
}

fn sampled(r: &mut Reader<'_>) -> Result<Sampled, String> {
    let (row, token) = (RowId(r.int()?), r.int()?);
    let logprobs = match r.bool()? {
        false => None,
        true => Some(TokenLogprobs { chosen: r.f32()?, top: pairs(r)? }),
    };
    Ok(Sampled { row, token, logprobs })
}
