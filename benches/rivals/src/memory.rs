//! Bytes for each block that a rank holds.

use crate::byte_keyed::{Feeds, byte_index};
use crate::counting::bytes_in_use;
use crate::dynamo::{Dynamo, router_event};
use crate::history::{History, shared};
use crate::report::{row, three_digits, title};
use crate::token_keyed::TokenFeeds;
use crate::words::Words;

/// Bytes of the structures, one after the other.
struct Bytes {
    index: usize,
    with_feeds: usize,
    table: usize,
    table_with_feeds: usize,
    dynamo: usize,
}

pub(crate) fn measure(words: &Words, quick: bool) {
    let columns =
        ["ranks per block", "(rank, block) pairs", "Forebay, index", "Forebay, index and feeds"];
    let columns =
        [&columns[..], &["tokens, table", "tokens, table and feeds", "Dynamo, all"]].concat();
    title("Memory: bytes per (rank, block)", &columns);
    for sharing in [1, 4, 16] {
        let pairs = if quick { 100_000 } else { 1_000_000 };
        let history = shared(words, pairs / usize::from(sharing), sharing, 64);
        let pairs = history.stored_blocks();
        let bytes = Bytes::of(words, &history);
        let all =
            [bytes.index, bytes.with_feeds, bytes.table, bytes.table_with_feeds, bytes.dynamo];
        let each = all.into_iter().map(|bytes| three_digits(bytes as f64 / pairs as f64));
        row([sharing.to_string(), pairs.to_string()].into_iter().chain(each));
    }
}

impl Bytes {
    fn of(words: &Words, history: &History) -> Self {
        let before = bytes_in_use();
        let (reader, mut writer) = byte_index(64);
        let mut feeds = Feeds::new(&words.vocabulary);
        for event in &history.events {
            feeds.take(&history.prompts, event, |rank, op| writer.apply(rank, op));
        }
        assert_eq!(reader.refused(), 0);
        let with_feeds = bytes_in_use() - before;
        drop(feeds);
        let index = bytes_in_use() - before;
        drop((reader, writer));

        let before = bytes_in_use();
        let mut feeds = TokenFeeds::default();
        history.events.iter().for_each(|event| feeds.take(&history.prompts, event));
        let table_with_feeds = bytes_in_use() - before;
        let table = feeds.into_table();
        let table_alone = bytes_in_use() - before;
        drop(table);

        let before = bytes_in_use();
        let dynamo = Dynamo::new();
        history.events.iter().for_each(|event| dynamo.send(router_event(&history.prompts, event)));
        dynamo.flush();
        let dynamo = bytes_in_use() - before;
        Self { index, with_feeds, table: table_alone, table_with_feeds, dynamo }
    }
}
