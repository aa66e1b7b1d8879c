//! KV tokens that a lease takes of its rank's limit: its own tokens, and the tokens of prefixes
//! that several requests share.

use crate::{PrefixPins, ShardBoard};
use forebay_base::RankIndex;
use forebay_index::{PrefixMarks, step_bytes};

/// The prefixes of a prompt, as leases compare them.
#[derive(Clone, Copy, Debug)]
pub struct PromptPrefixes<'a> {
    /// Names of the prefixes.
    pub marks: &'a PrefixMarks,
    /// Bytes of the prompt that make a token.
    pub bytes_per_token: f32,
}

/// KV tokens that a lease holds.
#[derive(Debug, Default)]
pub(super) struct HeldTokens {
    /// Tokens that no other request shares.
    own_tokens: u64,
    /// Boxed: leases are stored in the futures of connections, several times in each.
    shared: Option<Box<SharedPrefixes>>,
}

/// The prefixes that a lease has pinned on its rank.
#[derive(Debug)]
struct SharedPrefixes {
    marks: PrefixMarks,
    pinned: PrefixPins,
}

impl HeldTokens {
    /// Tokens that have been taken, none of them shared.
    pub(super) fn unshared(own_tokens: u64) -> Self {
        Self { own_tokens, ..Self::default() }
    }

    /// Pins the prompt's prefixes for a request that holds `all_tokens`, of which `taken_tokens`
    /// have been taken. Corrects the rank's sum by the prefixes that other requests share.
    pub(super) fn pin(
        board: &ShardBoard,
        rank: RankIndex,
        all_tokens: u64,
        taken_tokens: u64,
        prompt: PromptPrefixes<'_>,
    ) -> Self {
        let PromptPrefixes { marks, bytes_per_token } = prompt;
        let (Some(prefixes), Some(cell)) = (board.pinned(rank), board.rank(rank)) else {
            return Self::unshared(taken_tokens);
        };
        let pinned = prefixes.pin(marks, |number| step_tokens(number, bytes_per_token));
        let own_tokens = all_tokens.saturating_sub(pinned.tokens);
        cell.correct(taken_tokens, own_tokens + pinned.new_tokens);
        let is_pinned = !pinned.is_empty();
        let shared = is_pinned.then(|| Box::new(SharedPrefixes { marks: marks.clone(), pinned }));
        Self { own_tokens, shared }
    }

    /// Tokens that the lease gives back to the rank.
    pub(super) fn unpin(self, board: &ShardBoard, rank: RankIndex) -> u64 {
        let Self { own_tokens, shared } = self;
        let (Some(prefixes), Some(shared)) = (board.pinned(rank), shared) else {
            return own_tokens;
        };
        own_tokens + prefixes.unpin(&shared.marks, shared.pinned)
    }
}

/// Tokens between prefix `number` and the prefix before.
fn step_tokens(number: usize, bytes_per_token: f32) -> u64 {
    let bytes = step_bytes(number);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate of a step of at most 64 KiB, not negative"
    )]
    let tokens = (bytes as f32 / bytes_per_token.max(1.0)) as u64;
    tokens
}
