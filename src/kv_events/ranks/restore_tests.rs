//! What a snapshot told of a rank: confirmed by the engine's stream, or forgotten.

use super::rank::KvMessage;
use crate::test_support::{block_on_local, vocabulary};
use crate::*;
use forebay_base::{DpRank, RankIndex, ShardIndex};
use forebay_index::{BlockKey, KeySeed, KvBatch, KvOp};
use forebay_snapshot::{Link, Paths};
use forebay_zmq::ZmqEndpoint;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

fn slice_of(_: BlockKey, _: usize) -> ShardIndex {
    ShardIndex(0)
}

fn naming() -> Naming<Arc<forebay_text::Vocabulary>> {
    let text = Some(Arc::new(vocabulary()));
    Naming { seed: KeySeed(1), model: "m".into(), text, slice_of, shard_count: 1 }
}

/// A store of one block, the `number`-th of one chain, in a batch with a time, as every engine's
/// have.
fn chained(time: u8, number: u8) -> Vec<u8> {
    let mut payload = vec![0x92, 0xca, 0, 0, 0, time, 0x91, 0x95, 0xab];
    payload.extend_from_slice(b"BlockStored");
    let parent = if number == 0 { 0xc0 } else { number };
    payload.extend_from_slice(&[0x91, number + 1, parent, 0x91, number, 1]);
    payload
}

fn take(feed: &mut RankFeed<Arc<forebay_text::Vocabulary>>, time: u8, number: u8) -> MessageResult {
    let parts = (u64::from(number).to_be_bytes(), chained(time, number));
    let mut ops = SliceOps::new(1);
    feed.message(&[b"", &parts.0, &parts.1], &FeedCounters::new(), &mut ops)
}

/// What a snapshot would have after batches 0 to 5 of the engine's life `time`.
fn snapshot(time: u8) -> (RankState<BlocksCopy>, Vec<Link>) {
    let mut feed = RankFeed::new(naming(), 100);
    let mut ops = SliceOps::new(1);
    let mut links = Vec::new();
    for number in 0..=5 {
        let parts = (u64::from(number).to_be_bytes(), chained(time, number));
        feed.message(&[b"", &parts.0, &parts.1], &FeedCounters::new(), &mut ops);
    }
    for (slice, ops) in ops.slices_mut() {
        links.extend(ops.drain(..).filter_map(|op| match op {
            KvOp::Store { parent, key, block_bytes } => {
                Some(Link { parent, key, block_bytes, slice })
            }
            KvOp::Hold { .. } | KvOp::Remove { .. } => None,
        }));
    }
    (feed.state().expect("something is held"), links)
}

/// The same after a restart, with what tells the index.
fn state(time: u8) -> (RankState<RestoredBlocks>, SliceOps) {
    let (before, links) = snapshot(time);
    let paths = Paths::new(links);
    let mut restoring =
        RestoreBuilder::new(&paths, 1, LowerTiers::default(), before.blocks.trees, 100);
    restoring.add_all(before.blocks.kept.entries().collect());
    let (blocks, ops, left) = restoring.finish();
    assert_eq!(left, OmittedEntries::default());
    let RankState { sequence, payload_hash, block_size_tokens, .. } = before;
    (RankState { blocks, sequence, payload_hash, block_size_tokens }, ops)
}

fn restored(counters: &FeedCounters) -> RankFeed<Arc<forebay_text::Vocabulary>> {
    let mut feed = RankFeed::new(naming(), 100);
    feed.restore(state(1).0, counters);
    assert!(feed.is_unverified() && feed.is_continued());
    assert_eq!((feed.block_count(), feed.block_size_tokens(), feed.last_number()), (6, 1, Some(5)));
    feed
}

#[test]
fn only_the_very_same_batch_is_the_one_before() {
    let counters = FeedCounters::new();
    let feed = restored(&counters);
    for (number, payload, arrival) in [
        (5, chained(1, 5), BatchArrival::Repeated),
        (5, chained(2, 5), BatchArrival::Restarted),
        (7, chained(1, 6), BatchArrival::Gap { missed: 1 }),
        (3, chained(1, 3), BatchArrival::Restarted),
    ] {
        let number = u64::to_be_bytes(number);
        let message = KvMessage::read(&[b"", &number, &payload]).unwrap();
        assert_eq!(feed.arrival(&message), arrival);
    }
}

#[test]
fn without_replay_the_next_number_decides() {
    for (number, reset, held) in
        [(6, None, 7), (7, Some(ResetReason::Gap), 0), (0, Some(ResetReason::Restart), 1)]
    {
        let counters = FeedCounters::new();
        let mut feed = restored(&counters);
        let parts = (u64::from(number).to_be_bytes(), chained(1, number));
        let mut ops = SliceOps::new(1);
        let taken = feed.message(&[b"", &parts.0, &parts.1], &counters, &mut ops);
        assert_eq!((taken.reset, feed.block_count()), (reset, held));
        assert!(!feed.is_unverified());
        assert_eq!(feed.is_continued(), reset.is_none());
        let dropped: u64 =
            DropReason::ALL.iter().map(|(why, _)| counters.dropped_count(*why)).sum();
        assert_eq!(dropped, if reset.is_some() { 6 } else { 0 });
    }
}

#[test]
fn nothing_held_is_nothing_to_keep() {
    let mut feed = RankFeed::new(naming(), 100);
    assert!(feed.state().is_none(), "nothing was ever heard");
    let mut ops = SliceOps::new(1);
    take(&mut feed, 1, 0);
    assert!(feed.state().is_some());
    feed.disconnected(&FeedCounters::new(), &mut ops);
    assert!(feed.state().is_none());
    // What is unconfirmed is kept as it was: the next process may confirm it.
    let again = restored(&FeedCounters::new()).state().unwrap();
    assert_eq!((again.sequence, again.payload_hash), (5, snapshot(1).0.payload_hash));
}

#[derive(Debug)]
struct NoTiers;

impl TierNumbers for NoTiers {
    fn number(&self, _: RankIndex, _: Tree) -> Option<RankIndex> {
        None
    }
}

/// Notes what the index is told.
#[derive(Clone, Default)]
struct Shard(Rc<RefCell<Vec<KvOp>>>);

impl KvPort for Shard {
    fn post(&self, _: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
        self.0.borrow_mut().extend(batch.ops);
        Ok(())
    }
}

struct Running {
    counters: Rc<FeedCounters>,
    shard: Shard,
    noticed: mpsc::Receiver<FeedNotice>,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    /// A feed that goes on from [`state`].
    fn start(endpoint: &str, replay: Option<&str>, patience: Duration) -> Self {
        let parse = |text: &str| ZmqEndpoint::parse(text, "127.0.0.1").unwrap();
        let spec = FeedSpec {
            rank: RankIndex(0),
            dp_rank: DpRank(0),
            worker: "w".into(),
            endpoint: parse(endpoint),
            shares_endpoint: false,
            replay: replay.map(parse),
            topic: String::new(),
            naming: naming(),
            text_dir: None,
            entries_max: 100,
            lower_tiers: LowerTiers::default(),
            expects_tiers: false,
            tier_numbers: Rc::new(NoTiers),
            pool: None,
            timers: FeedTimers::default(),
        };
        let counters = Rc::new(FeedCounters::new());
        let shard = Shard::default();
        let (notices, noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let mut feed = Feed::new(spec, shard.clone(), Rc::clone(&counters), notices);
        let (state, ops) = state(1);
        let restored = FeedRestore { state, ops, verified_by: Instant::now() + patience };
        let task = tokio::task::spawn_local(async move {
            feed.restore(restored).await;
            feed.run(stopped).await;
        });
        Self { counters, shard, noticed, stop, task }
    }

    fn told(&self) -> (usize, usize) {
        let ops = self.shard.0.borrow();
        let stores = ops.iter().filter(|op| matches!(op, KvOp::Store { .. })).count();
        (stores, ops.len() - stores)
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
        let ops = self.shard.0.borrow();
        let removes = ops.iter().filter(|op| matches!(op, KvOp::Remove { .. })).count();
        assert_eq!(removes * 2, ops.len(), "everything is taken back");
    }
}

async fn until(mut done: impl FnMut() -> bool) {
    for _ in 0..500 {
        if done() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("did not happen within 5 s");
}

/// Replays batches from `first` to before `until` of the engine's life `time`.
async fn answer_replays(mut router: RouterSocket, time: u8, first: u8, until: u8) {
    loop {
        let request = router.recv().await.unwrap();
        let start = u64::from_be_bytes(request.get(2).unwrap()[..].try_into().unwrap());
        let wanted = (first..until).filter(|number| u64::from(*number) >= start);
        let batches = wanted.map(|number| (u64::from(number), chained(time, number)));
        for (number, payload) in batches.chain([(u64::MAX, Vec::new())]) {
            let mut message = ZmqMessage::from(request.get(0).unwrap().clone());
            message.push_back(Vec::new().into());
            message.push_back(number.to_be_bytes().to_vec().into());
            message.push_back(payload.into());
            router.send(message).await.unwrap();
        }
    }
}

async fn sockets() -> (PubSocket, String, RouterSocket, String) {
    let mut publisher = PubSocket::new();
    let mut router = RouterSocket::new();
    let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
    (publisher, place, router, replay)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_replay_confirms_and_catches_up_or_begins_again() {
    for (time, first, until_number, dropped, held) in [
        // Silent since; gone on; begun again with less and with more; gone on too far.
        (1, 0, 6, None, 6),
        (1, 3, 9, None, 9),
        (2, 0, 4, Some(DropReason::Restart), 4),
        (2, 0, 9, Some(DropReason::Restart), 9),
        (1, 6, 9, Some(DropReason::Gap), 0),
    ] {
        block_on_local(async move {
            let (_publisher, place, router, replay) = sockets().await;
            tokio::task::spawn_local(answer_replays(router, time, first, until_number));
            let mut running = Running::start(&place, Some(&replay), LONG);
            let first_notice = running.noticed.recv().await.unwrap();
            assert_eq!((first_notice.live, first_notice.block_size_tokens), (false, 1), "a hint");
            let counters = Rc::clone(&running.counters);
            until(|| {
                counters.replay_count(ReplayResult::Complete) == 1
                    || counters.replay_count(ReplayResult::Incomplete) == 1
            })
            .await;
            assert!(running.noticed.recv().await.unwrap().live);
            assert_eq!(counters.block_count(), held, "life {time}, {first} to {until_number}");
            assert_eq!(counters.restored_count(), 6);
            let lost = if dropped.is_some() { 6 } else { 0 };
            assert_eq!(dropped.map_or(0, |why| counters.dropped_count(why)), lost);
            let (stores, removes) = running.told();
            assert_eq!((stores - removes, removes as u64), (held, lost));
            running.end().await;
        });
    }
}

#[test]
fn what_nobody_confirms_goes_in_time() {
    block_on_local(async {
        // Nobody listens at the one, a silent publisher at the other.
        let (_publisher, place, _router, _) = sockets().await;
        for endpoint in ["tcp://127.0.0.1:1", &place] {
            let mut running = Running::start(endpoint, None, Duration::from_millis(300));
            assert_eq!(running.noticed.recv().await.unwrap().block_size_tokens, 1);
            assert_eq!(running.told(), (6, 0), "believed at first");
            let counters = Rc::clone(&running.counters);
            until(|| counters.reset_count(ResetReason::Unverified) == 1).await;
            assert_eq!(counters.dropped_count(DropReason::Unverified), 6);
            until(|| running.told() == (6, 6)).await;
            assert_eq!(counters.block_count(), 0);
            running.end().await;
        }
    });
}

#[test]
fn what_is_confirmed_outlives_the_deadline_and_a_lost_connection_does_not_refute() {
    block_on_local(async {
        // The first connection ends before anything was said.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = format!("tcp://{}", listener.local_addr().unwrap());
        let patience = Duration::from_secs(3);
        let overdue_at = Instant::now() + patience + Duration::from_millis(200);
        let running = Running::start(&place, None, patience);
        drop(listener.accept().await.unwrap());
        drop(listener);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(running.told(), (6, 0));
        let mut publisher = PubSocket::new();
        publisher.bind(&place).await.unwrap();
        let counters = Rc::clone(&running.counters);
        let mut message = ZmqMessage::from("");
        message.push_back(6_u64.to_be_bytes().to_vec().into());
        message.push_back(chained(1, 6).into());
        // What is sent before the subscription has arrived is lost.
        while counters.batch_count(BatchResult::Applied) == 0 {
            publisher.send(message.clone()).await.unwrap();
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(Instant::now() < overdue_at, "a machine too busy for this test");
        assert_eq!(counters.dropped_count(DropReason::Restart), 0);
        tokio::time::sleep_until(overdue_at).await;
        assert_eq!(counters.reset_count(ResetReason::Unverified), 0);
        running.end().await;
    });
}

#[test]
fn a_replay_that_fails_leaves_it_to_the_live_stream() {
    block_on_local(async {
        let (mut publisher, place, _, _) = sockets().await;
        // Nobody answers there, and the engine began again: its low numbers must not pass for old
        // ones.
        let running = Running::start(&place, Some("tcp://127.0.0.1:1"), LONG);
        let counters = Rc::clone(&running.counters);
        until(|| counters.replay_count(ReplayResult::Incomplete) == 1).await;
        assert_eq!(running.told(), (6, 0), "not refuted");
        for number in (0..5_u8).cycle().take(500) {
            // What is sent before the subscription has arrived is lost.
            let mut message = ZmqMessage::from("");
            message.push_back(u64::from(number).to_be_bytes().to_vec().into());
            message.push_back(chained(2, number).into());
            publisher.send(message).await.unwrap();
            if counters.dropped_count(DropReason::Restart) == 6 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(counters.dropped_count(DropReason::Restart), 6);
        until(|| counters.block_count() <= 5).await;
        running.end().await;
    });
}
