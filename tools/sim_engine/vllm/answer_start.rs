//! The start of an answer: KV from another engine if requested, then a rank for each choice.

use super::answer::{AnswerChoice, OpenAiAnswer};
use super::error::ApiError;
use super::legs::taken;
use crate::batching::ranks::ScheduleRefusal;
use crate::batching::schedule::{LegPart, TokenStep, Work};
use crate::state::EngineState;
use crate::transfer::TransferRequest;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum StartRefusal {
    Refused,
    Error(ApiError),
}

/// An answer in progress, with the receiver of its tokens.
pub(super) type BegunAnswer = (OpenAiAnswer, mpsc::UnboundedReceiver<TokenStep>);

/// Waits for KV from another engine, if any, then submits every choice to a rank.
pub(super) async fn begin(
    state: EngineState,
    mut answer: OpenAiAnswer,
    prompts: Vec<Vec<u32>>,
    output_tokens: usize,
    part: LegPart,
    wanted: Option<TransferRequest>,
) -> Result<BegunAnswer, StartRefusal> {
    if let (Some(wanted), Some(prompt)) = (&wanted, prompts.first())
        && !taken(&state, wanted, prompt, &answer.asked.salt).await
    {
        answer.timed.ended("failed");
        state.requests.tally.failed();
        return Err(StartRefusal::Error(ApiError::internal()));
    }
    let (sink, steps) = mpsc::unbounded_channel();
    for prompt in prompts {
        let prompt: Arc<[u32]> = prompt.into();
        for at in 0..answer.asked.choice_count {
            let work = Work {
                prompt: prompt.to_vec(),
                output: state.encode.tokenizer().answer(&prompt, at, output_tokens),
                salt: answer.asked.salt.clone(),
                part,
            };
            match state.ranks.submit(answer.asked.dp_rank, work, sink.clone()).await {
                Ok(submitted) => {
                    answer.choices.push(AnswerChoice::new(submitted, prompt.clone(), at == 0));
                }
                Err(ScheduleRefusal::Stopping) => {
                    return Err(StartRefusal::Error(ApiError::stopping()));
                }
                // Dropping the answer removes its earlier choices.
                Err(ScheduleRefusal::Refused) => {
                    answer.timed.ended("refused");
                    return Err(StartRefusal::Refused);
                }
            }
        }
    }
    Ok((answer, steps))
}

/// Most tokens in a write when several are ready.
pub(super) const STEPS_AT_ONCE: usize = 64;
