//! Publishers with contradictory or very large messages: their cost, and the state after them.

use super::ranks::rank::KvMessage;
use super::tests::{Digits, Shard, frames, naming, next_live, spec, until};
use super::*;
use crate::test_support::block_on_local;
use forebay_base::broken_invariant_count;
use forebay_index::KvOp;
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use tokio::sync::{mpsc, oneshot};
use zeromq::{Socket, SocketSend};

/// `BlockStored` of blocks with one token each, as one message.
fn stored(hashes: std::ops::Range<u64>, token: impl Fn(u64) -> u32) -> Vec<u8> {
    let count = u32::try_from(hashes.end - hashes.start).unwrap();
    let mut out = vec![0x92, 0, 0x91, 0x95, 0xab];
    out.extend_from_slice(b"BlockStored");
    let list = |out: &mut Vec<u8>| {
        out.push(0xdd);
        out.extend_from_slice(&count.to_be_bytes());
    };
    list(&mut out);
    for hash in hashes.clone() {
        out.push(0xcf);
        out.extend_from_slice(&hash.to_be_bytes());
    }
    out.push(0xc0);
    list(&mut out);
    for hash in hashes {
        out.push(0xce);
        out.extend_from_slice(&token(hash).to_be_bytes());
    }
    out.push(1);
    out
}

/// 47 texts, each under ever more hashes: more than any table of keys could hold.
#[test]
fn one_text_under_many_hashes_is_forgotten_ever_less_often() {
    let before = broken_invariant_count();
    let mut feed = RankFeed::new(naming(Digits), 1_000_000);
    let counters = FeedCounters::new();
    let mut ops = SliceOps::new(1);
    let mut held = HashSet::new();
    for number in 0..1_000_u64 {
        let base = 1 + number * 64;
        let text = u32::try_from(number % 47 * 1_000).unwrap();
        let payload = stored(base..base + 64, |hash| text + u32::try_from(hash - base).unwrap());
        feed.message(&[b"", &number.to_be_bytes(), &payload], &counters, &mut ops);
        for (_, _, ops) in ops.trees_mut() {
            for op in ops.drain(..) {
                match op {
                    KvOp::Store { key, .. } => assert!(held.insert(key.to_word())),
                    KvOp::Hold { .. } => panic!("no windows"),
                    KvOp::Remove { key } => assert!(held.remove(&key.to_word())),
                }
            }
        }
    }
    assert_eq!(broken_invariant_count(), before);
    let resets = counters.reset_count(ResetReason::Contradiction);
    assert!((1..=12).contains(&resets), "{resets} resets for 40,000 lies");
    assert!(feed.block_count() <= 47 * 64 * 8);
    feed.disconnected(&counters, &mut ops);
    ops.trees_mut().flat_map(|(_, _, ops)| ops.drain(..)).for_each(|op| match op {
        KvOp::Remove { key } => assert!(held.remove(&key.to_word())),
        KvOp::Store { .. } | KvOp::Hold { .. } => panic!("stored at the end"),
    });
    assert!(held.is_empty());
}

/// One hash for many texts.
#[test]
fn one_hash_for_many_texts_is_a_contradiction() {
    let mut feed = RankFeed::new(naming(Digits), 1_000_000);
    let counters = FeedCounters::new();
    let mut ops = SliceOps::new(1);
    for number in 0..4_000_u64 {
        let payload = stored(7..8, |_| u32::try_from(number).unwrap());
        feed.message(&[b"", &number.to_be_bytes(), &payload], &counters, &mut ops);
    }
    assert_eq!(counters.reset_count(ResetReason::Contradiction), 2, "after 1,024 and 2,048 more");
}

#[test]
fn a_long_message_is_the_same_in_parts() {
    let payload = stored(1..50_001, |hash| u32::try_from(hash).unwrap());
    let message: [&[u8]; 3] = [b"", &[0; 8], &payload];
    let counters = FeedCounters::new();
    let mut whole_ops = SliceOps::new(1);
    let mut whole = RankFeed::new(naming(Digits), 1_000_000);
    assert_eq!(whole.message(&message, &counters, &mut whole_ops).result, BatchResult::Applied);
    let mut feed = RankFeed::new(naming(Digits), 1_000_000);
    let mut ops = SliceOps::new(1);
    let mut taking = feed.begin(KvMessage::read(&message), &counters, &mut ops).unwrap();
    let mut steps = 0;
    let taken = loop {
        steps += 1;
        let ended = feed.step(&mut taking, 1_000, &counters, &mut ops);
        assert!(feed.block_count() <= steps * 1_000 && taking.take_work() <= 1_002);
        assert!(ended.is_some() || feed.state().is_none(), "half a message is worth no copy");
        if let Some(taken) = ended {
            break taken;
        }
    };
    assert_eq!((taken.result, feed.block_count()), (BatchResult::Applied, 50_000));
    assert_eq!(counters.event_count(EventKind::Stored, BatchOutcome::Applied), 2, "one event each");
    let all = |ops: &mut SliceOps| {
        let ops = ops.trees_mut().flat_map(|(_, _, ops)| ops.drain(..));
        ops.map(|op| format!("{op:?}")).collect::<Vec<_>>()
    };
    assert_eq!(all(&mut whole_ops), all(&mut ops));
}

#[test]
fn a_message_given_up_half_way_is_a_gap() {
    let payload = stored(1..5_001, |hash| u32::try_from(hash).unwrap());
    let counters = FeedCounters::new();
    let mut ops = SliceOps::new(1);
    let mut feed = RankFeed::new(naming(Digits), 1_000_000);
    let mut taking =
        feed.begin(KvMessage::read(&[b"", &[0; 8], &payload]), &counters, &mut ops).unwrap();
    assert!(feed.step(&mut taking, 100, &counters, &mut ops).is_none());
    let next = stored(9_001..9_002, |_| 1);
    let taken = feed.message(&[b"", &1_u64.to_be_bytes(), &next], &counters, &mut ops);
    assert_eq!((taken.reset, feed.block_count()), (Some(ResetReason::Gap), 1));
}

/// However long a message is, the other tasks of its thread run all the while: counted, not timed.
#[test]
fn a_long_message_leaves_the_thread_to_others() {
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let counters = Rc::new(FeedCounters::new());
        let (notices, mut noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let mut spec = spec(&place);
        spec.entries_max = 1_000_000;
        let feed = Feed::new(spec, Shard::default(), Rc::clone(&counters), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));
        // Most blocks that were taken between two turns of this task.
        let most = Rc::new(Cell::new(0));
        let seen = Rc::clone(&most);
        let watched = Rc::clone(&counters);
        let watch = tokio::task::spawn_local(async move {
            let mut before = 0;
            loop {
                let now = watched.block_count();
                seen.set(seen.get().max(now.saturating_sub(before)));
                before = now;
                tokio::task::yield_now().await;
            }
        });
        assert!(next_live(&mut noticed).await.live);
        let payload = stored(1..60_001, |hash| u32::try_from(hash % 200).unwrap());
        let mut number = 0;
        until(|| {
            let sent = publisher.send(frames(number, &payload));
            futures_util::FutureExt::now_or_never(sent);
            number += 1;
            counters.block_count() > 0
        })
        .await;
        until(|| counters.block_count() == 60_000).await;
        assert!((1..=1_024).contains(&most.get()), "{} blocks in one turn", most.get());
        watch.abort();
        stop.send(()).unwrap();
        task.await.unwrap();
    });
}
