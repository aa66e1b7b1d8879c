//! Members of a request's body that KV transfers change or go by.

use forebay_prompt::parse::{Cursor, Text};
use forebay_text::chat::unescape_into;
use std::ops::Range;

/// A member that some KV transfer changes: in the leg's body it is cut, replaced or put anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    BootstrapHost,
    BootstrapPort,
    BootstrapRoom,
    /// SGLang's name of the request, by which it can be aborted.
    Rid,
    /// The same in `/v1/responses`.
    RequestId,
    RoutedDpRank,
    /// The older name of [`Named::RoutedDpRank`].
    DataParallelRank,
    DisaggPrefillDpRank,
    KvTransferParams,
    MaxTokens,
    MaxCompletionTokens,
    MaxOutputTokens,
    MinTokens,
    Stream,
    StreamOptions,
}

impl Named {
    /// All of them, with the keys that engines know them by.
    const KEYS: [(&'static str, Self); 15] = [
        ("bootstrap_host", Self::BootstrapHost),
        ("bootstrap_port", Self::BootstrapPort),
        ("bootstrap_room", Self::BootstrapRoom),
        ("rid", Self::Rid),
        ("request_id", Self::RequestId),
        ("routed_dp_rank", Self::RoutedDpRank),
        ("data_parallel_rank", Self::DataParallelRank),
        ("disagg_prefill_dp_rank", Self::DisaggPrefillDpRank),
        ("kv_transfer_params", Self::KvTransferParams),
        ("max_tokens", Self::MaxTokens),
        ("max_completion_tokens", Self::MaxCompletionTokens),
        ("max_output_tokens", Self::MaxOutputTokens),
        ("min_tokens", Self::MinTokens),
        ("stream", Self::Stream),
        ("stream_options", Self::StreamOptions),
    ];

    pub(super) fn of(key: &str) -> Option<Self> {
        Self::KEYS.iter().find(|(name, _)| *name == key).map(|(_, named)| *named)
    }

    pub(super) fn key(self) -> &'static str {
        Self::KEYS.iter().find(|(_, named)| *named == self).map_or("", |(name, _)| name)
    }
}

/// Where a member of the top object stands. Bodies are below 4 GiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub named: Named,
    /// Members before it.
    pub position: u32,
    /// Behind the value of the member before, or behind the opening brace.
    pub after_previous: u32,
    /// From the key's quote to the end of the value.
    pub span: Range<u32>,
    /// The value.
    pub value: Range<u32>,
    /// Quote of the next member's key; `None` for the last member.
    pub next: Option<u32>,
}

/// Longest key that is compared in its escaped form: six bytes for each character of the longest
/// name.
const ESCAPED_KEY_BYTES_MAX: usize = 6 * 24;

/// A key as it is compared; empty for an escaped one that is too long to be any that is known.
pub(super) fn name_of<'s, 'a: 's>(
    key: &Text,
    cursor: &Cursor<'a>,
    decoded: &'s mut String,
) -> &'s str {
    let raw = cursor.slice(&key.span);
    if !key.escaped {
        return raw;
    }
    if raw.len() <= ESCAPED_KEY_BYTES_MAX {
        let mut bytes = Vec::with_capacity(raw.len());
        unescape_into(raw.as_bytes(), &mut bytes);
        *decoded = String::from_utf8(bytes).unwrap_or_default();
    }
    decoded
}
