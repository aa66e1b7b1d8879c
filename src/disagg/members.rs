//! Members of a request's body that KV transfers read or change.

use forebay_json::{Cursor, Text, unescape_into};
use std::ops::Range;

/// Name of a member that a KV transfer cuts, replaces or adds in a leg's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberName {
    BootstrapHost,
    BootstrapPort,
    BootstrapRoom,
    /// SGLang's id of the request, for aborts.
    Rid,
    /// The same id in `/v1/responses`.
    RequestId,
    RoutedDpRank,
    /// The older name of [`MemberName::RoutedDpRank`].
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

impl MemberName {
    /// All members with their JSON keys.
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

/// Positions of a member of the top object. Bodies are below 4 GiB.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub named: MemberName,
    /// Number of members before this member.
    pub position: u32,
    /// End of the member before, or of the opening brace.
    pub after_previous: u32,
    /// From the key's quote to the end of the value.
    pub span: Range<u32>,
    pub value: Range<u32>,
    /// Quote of the next member's key; `None` for the last member.
    pub next: Option<u32>,
}

/// Longest escaped key that is unescaped: 6 bytes for each character of the longest name.
const ESCAPED_KEY_BYTES_MAX: usize = 6 * 24;

/// A key without escapes; empty for an escaped key that is longer than any known name.
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
