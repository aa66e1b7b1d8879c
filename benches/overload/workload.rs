//! Conversations of two clients: many prompts with few beginnings, so that it matters which engine
//! gets which; one client sends four times as much as the other; some leave when they get nothing.

use crate::burst::post;
use crate::client::Ask;
use crate::load::{Next, Planned};
use crate::options::ModesOptions;
use serde_json::json;
use std::rc::Rc;
use std::time::Duration;

/// The one that sends most.
pub(crate) const HEAVY: u8 = 0;
/// The one that sends little.
pub(crate) const LIGHT: u8 = 1;

/// What follows a beginning.
const REST_TOKENS: u64 = 48;
/// Of a hundred requests: from the light client; from somebody without patience.
const LIGHT_PERCENT: u64 = 20;
const LEAVER_PERCENT: u64 = 15;
/// The header that tells the router whose request it is.
pub(crate) const TENANT_HEADER: &str = "x-tenant";
/// Ids of plain words in the tokenizer of tests/data.
const TOKEN_IDS: std::ops::Range<u64> = 260..500;

/// Requests for answers of so many tokens; leavers wait that long for the first one.
pub(crate) fn conversations(modes: &ModesOptions, tokens: u32, patience: Duration) -> Next {
    let beginnings = modes.beginnings;
    let prompt_tokens = modes.prompt_tokens;
    Rc::new(move |number| {
        let mut random = fastrand::Rng::with_seed(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let prompt = if beginnings == 0 {
            words(&mut random, prompt_tokens)
        } else {
            let beginning = random.u64(..beginnings);
            let shared = words(&mut fastrand::Rng::with_seed(beginning + 1), prompt_tokens);
            [shared, words(&mut random, REST_TOKENS)].concat()
        };
        let client = if random.u64(..100) < LIGHT_PERCENT { LIGHT } else { HEAVY };
        let patience = (random.u64(..100) < LEAVER_PERCENT).then_some(patience);
        let body = json!({
            "model": "sim", "prompt": prompt, "max_tokens": tokens, "stream": true,
            "stream_options": { "include_usage": true },
        });
        let tenant = if client == LIGHT { "light" } else { "heavy" };
        let bytes = post(&body.to_string(), &[(TENANT_HEADER, tenant)]);
        Planned { ask: Ask { bytes, stream: true, patience }, client }
    })
}

fn words(random: &mut fastrand::Rng, count: u64) -> Vec<u64> {
    (0..count).map(|_| random.u64(TOKEN_IDS)).collect()
}
