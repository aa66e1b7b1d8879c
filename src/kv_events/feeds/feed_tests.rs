//! Feeds in trouble, against real sockets: what holds when this side is at fault.

use crate::blocks::tests::store as store_event;
use crate::test_support::block_on_local;
use crate::tests::{Shard, chained, chained_in, frames, publish_until, spec, until, vectors};
use crate::*;
use forebay_base::{RankIndex, ShardIndex};
use forebay_fleet::worker::TierRanks;
use forebay_index::{KvBatch, KvOp};
use forebay_kv_decode::{BlockStored, Medium};
use forebay_zmq::{LossReason, ZmqEndpoint, ZmqSource};
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use zeromq::{Socket, SocketSend};

/// A process that was killed leaves its socket file behind; the next one listens there all the
/// same. One that is alive is not pushed aside.
#[test]
fn a_socket_file_that_was_left_behind_is_not_in_the_way() {
    block_on_local(async move {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv");
        let endpoint = ZmqEndpoint::parse(&format!("bind:ipc://{}", path.display()), "").unwrap();
        let first = ZmqSource::open(&endpoint).await.unwrap();
        let busy = ZmqSource::open(&endpoint).await.unwrap_err();
        assert_eq!(busy.reason(), LossReason::Io);
        drop(first);
        assert!(path.exists());
        ZmqSource::open(&endpoint).await.unwrap();
        // What is no socket is left alone.
        let file = dir.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let endpoint = ZmqEndpoint::parse(&format!("bind:ipc://{}", file.display()), "").unwrap();
        assert!(ZmqSource::open(&endpoint).await.is_err() && file.exists());
    });
}

/// A fault of ours in the middle of a message: the rank is forgotten and followed again.
#[test]
fn a_feed_survives_its_own_panic() {
    struct Faulty(Shard, Cell<bool>);
    impl KvPort for Faulty {
        fn post(&self, slice: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
            assert!(!self.1.replace(false), "planted");
            self.0.post(slice, batch)
        }
    }
    let stored =
        vectors().into_iter().find(|v| v.name == "vllm-0.22.0-bytes_hashes").unwrap().payload;
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let shard = Shard::default();
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(64);
        let (stop, stopped) = oneshot::channel();
        let port = Faulty(shard.clone(), Cell::new(true));
        let feed = Feed::new(spec(&place), port, Rc::clone(&counters), notices);
        let status = feed.status();
        let task = tokio::task::spawn_local(feed.run(stopped));
        let mut number = 0;
        publish_until(&mut publisher, &mut number, &stored, || {
            status.losses() == 1 && counters.block_count() > 0
        })
        .await;
        assert_eq!(status.state(), FeedState::Live);
        stop.send(()).unwrap();
        task.await.unwrap();
        let ops = shard.ops.borrow();
        let stores = ops.iter().filter(|op| matches!(op, KvOp::Store { .. })).count();
        assert_eq!(stores * 2, ops.len(), "all is taken out again");
    });
}

/// A shard that is paused fills its ring; the feed stops reading, the publisher drops what it
/// cannot send, among it that everything was cleared. When the shard goes on the gap shows, and
/// nothing of before is left.
#[test]
fn a_paused_shard_leads_to_a_resync() {
    struct Gate(Shard, Rc<Cell<bool>>);
    impl KvPort for Gate {
        fn post(&self, _: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
            if !self.1.get() {
                return Err(batch);
            }
            self.0.ops.borrow_mut().extend(batch.ops);
            Ok(())
        }
    }
    // [0.0, [["BlockRemoved", 7,000 unknown hashes]]]
    let mut padding = vec![0x92, 0xca, 0, 0, 0, 0, 0x91, 0x92, 0xac];
    padding.extend_from_slice(b"BlockRemoved");
    padding.extend_from_slice(&[0xdc, 0x1b, 0x58]);
    (0..7_000_u64).for_each(|hash| {
        padding.push(0xcf);
        padding.extend_from_slice(&(u64::MAX - hash).to_be_bytes());
    });
    let mut cleared = vec![0x92, 0xca, 0, 0, 0, 0, 0x91, 0x91, 0xb0];
    cleared.extend_from_slice(b"AllBlocksCleared");
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let shard = Shard::default();
        let open = Rc::new(Cell::new(true));
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(64);
        let (stop, stopped) = oneshot::channel();
        let port = Gate(shard.clone(), Rc::clone(&open));
        let feed = Feed::new(spec(&place), port, Rc::clone(&counters), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));
        let mut number = 0;
        publish_until(&mut publisher, &mut number, &chained(0), || counters.block_count() == 1)
            .await;
        open.set(false);
        publisher.send(frames(number, &chained(1))).await.unwrap();
        until(|| counters.stall_count() > 10).await;
        // 63 kB each: more than the sockets between hold.
        for _ in 0..400 {
            number += 1;
            publisher.send(frames(number, &padding)).await.unwrap();
            tokio::task::yield_now().await;
        }
        number += 1;
        publisher.send(frames(number, &cleared)).await.unwrap();
        let seen = counters.batch_count(BatchResult::Applied);
        assert!(seen < 400, "the feed does not read on");
        open.set(true);
        number += 1;
        publish_until(&mut publisher, &mut number, &chained(0), || {
            counters.reset_count(ResetReason::Gap) == 1 && counters.block_count() == 1
        })
        .await;
        assert_eq!(
            counters.event_count(EventKind::Cleared, BatchOutcome::Applied),
            0,
            "it was lost"
        );
        until(|| {
            let mut held = HashSet::new();
            for op in shard.ops.borrow().iter() {
                match op {
                    KvOp::Store { key, .. } => assert!(held.insert(*key)),
                    KvOp::Hold { .. } => panic!("no windows"),
                    KvOp::Remove { key } => assert!(held.remove(key)),
                }
            }
            held.len() == 1
        })
        .await;
        stop.send(()).unwrap();
        task.await.unwrap();
    });
}

/// A publisher that tells what the host stores and never what the host evicts: without another
/// event the feed takes its block out of the index again.
#[test]
fn a_block_of_a_tier_without_removals_leaves_a_quiet_feed() {
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let shard = Shard::default();
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(64);
        let (stop, stopped) = oneshot::channel();
        let mut spec = spec(&place);
        spec.lower_tiers.ttl = Duration::from_millis(300);
        let feed = Feed::new(spec, shard.clone(), Rc::clone(&counters), notices);
        let status = feed.status();
        let task = tokio::task::spawn_local(feed.run(stopped));
        let mut number = 0;
        let stored = chained_in(0, "CPU");
        publish_until(&mut publisher, &mut number, &stored, || counters.block_count() == 1).await;
        until(|| counters.expired_count(Tier::Host) == 1).await;
        assert_eq!((counters.block_count(), counters.tier_block_count(Tier::Host)), (0, 0));
        until(|| matches!(shard.ops.borrow()[..], [KvOp::Store { .. }, KvOp::Remove { .. }])).await;
        assert_eq!((status.state(), status.resets(), status.losses()), (FeedState::Live, 0, 0));
        stop.send(()).unwrap();
        task.await.unwrap();
    });
}

/// A pool whose ranks are not connected: what is too old leaves all the same, and the rest with the
/// last rank.
#[test]
fn a_pool_is_kept_without_a_connected_feed() {
    block_on_local(async move {
        let shard = Shard::default();
        let counters = Rc::new(FeedCounters::new());
        let ttl = Duration::from_millis(300);
        let pool = PoolBlocks::new(spec("tcp://127.0.0.1:1").naming, 100, ttl, RankIndex(1_000));
        let pool: SharedPool = Rc::new(RefCell::new(pool));
        let keep = run_pool(Rc::clone(&pool), shard.clone(), counters);
        let task = tokio::task::spawn_local(keep);
        let store = |hash: u64, token: u32| {
            let hashes = [hash];
            let tokens = [token, token];
            let event =
                BlockStored { medium: Medium::Shared, ..store_event(None, &hashes, &tokens) };
            assert_eq!(pool.borrow_mut().stored(&event, 2), BatchOutcome::Applied);
        };
        store(1, 40);
        until(|| matches!(shard.ops.borrow()[..], [KvOp::Store { .. }, KvOp::Remove { .. }])).await;
        pool.borrow_mut().set_ttl(Duration::ZERO);
        (2..50).for_each(|hash| store(hash, 39 + u32::try_from(hash).unwrap()));
        drop(pool);
        task.await.unwrap();
        let ops = shard.ops.borrow();
        let stores = ops.iter().filter(|op| matches!(op, KvOp::Store { .. })).count();
        assert_eq!((stores, ops.len()), (49, 98), "all is taken out again");
    });
}

/// What a feed before it told may be all that is known of the rank.
#[test]
fn the_first_state_of_a_feed_is_told() {
    block_on_local(async move {
        let (notices, mut noticed) = mpsc::channel(64);
        let (stop, stopped) = oneshot::channel();
        let spec = spec("tcp://127.0.0.1:1");
        let feed = Feed::new(spec, Shard::default(), Rc::new(FeedCounters::new()), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));
        let first = timeout(Duration::from_secs(5), noticed.recv()).await.unwrap().unwrap();
        assert_eq!((first.live, first.tiers), (false, TierRanks::default()));
        stop.send(()).unwrap();
        task.await.unwrap();
    });
}

/// AMD-AGI/Infera#121: a relay carries the batches of all ranks in one stream. Each batch counts
/// for the rank that it names, and the other ranks' numbers are no gaps.
#[test]
fn a_relay_of_several_ranks_goes_by_the_batches_rank() {
    let rooted = vectors().into_iter().find(|v| v.name == "vllm-0.22.0-bytes_hashes").unwrap();
    // The last byte of a batch is its rank.
    let of_rank = |rank: u8| {
        let mut payload = rooted.payload.clone();
        *payload.last_mut().unwrap() = rank;
        assert_eq!(forebay_kv_decode::Batch::rank(&payload), Some(u32::from(rank)));
        payload
    };
    let mut nameless = rooted.payload.clone();
    nameless.pop();
    // An array of two elements.
    *nameless.first_mut().unwrap() -= 1;
    assert_eq!(forebay_kv_decode::Batch::rank(&nameless), None);
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(64);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(spec(&place), Shard::default(), Rc::clone(&counters), notices);
        let status = feed.status();
        let task = tokio::task::spawn_local(feed.run(stopped));
        let mut number = 0;
        let own = of_rank(0);
        publish_until(&mut publisher, &mut number, &own, || counters.block_count() > 0).await;
        let mixed = || counters.reset_count(ResetReason::Contradiction) == 1;
        let mut foreign = 70;
        publish_until(&mut publisher, &mut foreign, &of_rank(1), mixed).await;
        until(|| counters.block_count() == 0).await;
        publish_until(&mut publisher, &mut number, &own, || counters.block_count() > 0).await;
        let resets = status.resets();
        for step in 0..3 {
            publisher.send(frames(foreign + step, &of_rank(1))).await.unwrap();
            publisher.send(frames(number + step, &own)).await.unwrap();
        }
        let batches = counters.batch_count(BatchResult::Applied);
        until(|| counters.batch_count(BatchResult::Applied) >= batches).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(status.resets(), resets, "the other rank's numbers are no gaps");
        assert!(counters.block_count() > 0);
        // A batch without a rank may be of this rank: each such batch clears what is known.
        for contradictions in 2..4 {
            let cleared = || counters.reset_count(ResetReason::Contradiction) == contradictions;
            number += 10;
            publisher.send(frames(number, &nameless)).await.unwrap();
            until(cleared).await;
            until(|| counters.block_count() == 0).await;
            publish_until(&mut publisher, &mut number, &own, || counters.block_count() > 0).await;
        }
        stop.send(()).unwrap();
        task.await.unwrap();
    });
}

/// An engine that emptied its cache by the router's order holds nothing at once.
#[test]
fn an_emptied_rank_has_no_block_while_its_stream_is_quiet() {
    let rooted = vectors().into_iter().find(|v| v.name == "vllm-0.22.0-bytes_hashes").unwrap();
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let shard = Shard::default();
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(64);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(spec(&place), shard.clone(), Rc::clone(&counters), notices);
        let status = feed.status();
        let task = tokio::task::spawn_local(feed.run(stopped));
        let mut number = 0;
        let held = || counters.block_count() > 0;
        publish_until(&mut publisher, &mut number, &rooted.payload, held).await;
        status.empty();
        until(|| counters.block_count() == 0).await;
        until(|| {
            let ops = shard.ops.borrow();
            ops.iter().filter(|op| matches!(op, KvOp::Store { .. })).count() * 2 == ops.len()
        })
        .await;
        stop.send(()).unwrap();
        task.await.unwrap();
    });
}
