//! What a request is expected to cost a rank.

use super::PickRequest;
use forebay_base::RankIndex;
use forebay_fleet::account::LeaseCost;
use forebay_fleet::worker::Leg;

/// Output tokens expected of a request that does not say.
const OUTPUT_TOKENS_DEFAULT: u32 = 256;

/// Output tokens counted at most: limits like 128k are ceilings, not expectations.
const OUTPUT_TOKENS_COUNTED_MAX: u32 = 2_048;
const _: () = assert!(OUTPUT_TOKENS_DEFAULT <= OUTPUT_TOKENS_COUNTED_MAX);

/// Output tokens that a request is expected to make.
#[must_use]
pub fn output_tokens(max_tokens: Option<u32>) -> u32 {
    max_tokens.unwrap_or(OUTPUT_TOKENS_DEFAULT).min(OUTPUT_TOKENS_COUNTED_MAX)
}

/// What a request costs a rank.
#[must_use]
pub fn lease_cost(request: &PickRequest<'_>, rank: RankIndex, output_tokens: u32) -> LeaseCost {
    let uncached = request.uncached_tokens(rank);
    // Who prefills for another rank makes one token and is done.
    let output = if request.leg == Leg::Prefill { 1 } else { u64::from(output_tokens) };
    debug_assert!(uncached <= request.prompt_tokens(), "more to compute than the prompt has");
    LeaseCost {
        prefill_tokens: if request.leg == Leg::Decode { 0 } else { uncached },
        decode_tokens: request.prompt_tokens().saturating_add(output),
        // Who only decodes is sent what it has not got.
        kv_tokens: uncached.saturating_add(output),
    }
}
