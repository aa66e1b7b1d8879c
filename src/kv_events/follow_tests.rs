//! Feeds that follow publishers over sockets.

use super::*;

/// A publisher comes, goes and comes back; the feed follows, clears the rank and follows again.
#[test]
fn follows_a_publisher_through_its_restart() {
    use zeromq::Socket;
    let payload = vectors().into_iter().find(|v| v.name == "vllm-0.33.0-mixed").unwrap().payload;
    let stored =
        vectors().into_iter().find(|v| v.name == "vllm-0.22.0-bytes_hashes").unwrap().payload;
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let shard = Shard::default();
        let counters = Rc::new(FeedCounters::new());
        let (notices, mut noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(spec(&place), shard.clone(), Rc::clone(&counters), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));

        let mut number = 0;
        publish_until(&mut publisher, &mut number, &stored, || counters.block_count() > 0).await;
        let live = next_live(&mut noticed).await;
        assert!(live.live);
        until(|| counters.batch_count(BatchResult::Applied) > 0).await;

        // The engine dies: everything of it goes.
        publisher.close().await;
        until(|| counters.block_count() == 0).await;
        until(|| shard.ops.borrow().last().is_some_and(|op| matches!(op, KvOp::Remove { .. })))
            .await;
        assert_eq!(counters.reset_count(ResetReason::Disconnect), 1);

        // It comes back on the same port and begins again at 0.
        let mut publisher = zeromq::PubSocket::new();
        publisher.bind(&place).await.unwrap();
        let mut number = 0;
        publish_until(&mut publisher, &mut number, &stored, || counters.block_count() > 0).await;
        publish_until(&mut publisher, &mut number, &payload, || counters.block_count() == 0).await;
        let mut last = live;
        while let Ok(notice) = noticed.try_recv() {
            last = notice;
        }
        assert!(last.live && last.block_size_tokens == 16);

        stop.send(()).unwrap();
        task.await.unwrap();
        assert!(counters.stall_count() > 0, "every third post is refused");
        let mut stores = 0;
        let mut removes = 0;
        for op in shard.ops.borrow().iter() {
            match op {
                KvOp::Store { .. } => stores += 1,
                KvOp::Hold { .. } => panic!("no windows"),
                KvOp::Remove { .. } => removes += 1,
            }
        }
        assert_eq!(stores, removes);
    });
}

/// The engine connects to us.
#[test]
fn listens_for_engines_that_connect() {
    use zeromq::Socket;
    let stored =
        vectors().into_iter().find(|v| v.name == "vllm-0.22.0-bytes_hashes").unwrap().payload;
    block_on_local(async move {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kv").display().to_string();
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(
            spec(&format!("bind:ipc://{path}")),
            Shard::default(),
            Rc::clone(&counters),
            notices,
        );
        let task = tokio::task::spawn_local(feed.run(stopped));
        until(|| std::path::Path::new(&path).exists()).await;
        let mut publisher = zeromq::PubSocket::new();
        publisher.connect(&format!("ipc://{path}")).await.unwrap();
        let mut number = 0;
        publish_until(&mut publisher, &mut number, &stored, || counters.block_count() > 0).await;
        stop.send(()).unwrap();
        task.await.unwrap();
        assert_eq!(counters.block_count(), 0);
    });
}

/// Another server listens there: the feed has a fault, tries on, and reads a bounded part.
#[test]
fn a_peer_that_is_no_publisher_is_left() {
    use tokio::io::AsyncWriteExt;
    block_on_local(async move {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap();
        let (notices, mut noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let feed = Feed::new(
            spec(&format!("tcp://{place}")),
            Shard::default(),
            Rc::new(FeedCounters::new()),
            notices,
        );
        let task = tokio::task::spawn_local(feed.run(stopped));
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&[b'H'; 64]).await.unwrap();
        }
        stop.send(()).unwrap();
        task.await.unwrap();
        assert!(!noticed.try_recv().unwrap().live && noticed.try_recv().is_err());
    });
}

/// Numbers of the batches that an engine remembers.
type History = Rc<RefCell<std::ops::Range<u64>>>;

/// Replays the remembered batches of the chain.
async fn answer_history(router: zeromq::RouterSocket, history: History) {
    answer_replays(router, true, history, Rc::default()).await;
}

/// Answers replay requests for remembered batches until dropped; records the numbers of requests.
async fn answer_replays(
    mut router: zeromq::RouterSocket,
    with_topic: bool,
    history: History,
    asked: Rc<RefCell<Vec<u64>>>,
) {
    use zeromq::{SocketRecv, SocketSend, ZmqMessage};
    loop {
        let request = router.recv().await.unwrap();
        assert_eq!(request.len(), 3, "identity, delimiter, start");
        let start = u64::from_be_bytes(request.get(2).unwrap()[..].try_into().unwrap());
        asked.borrow_mut().push(start);
        let answer = |number: u64, payload: Vec<u8>| {
            let mut message = ZmqMessage::from(request.get(0).unwrap().clone());
            message.push_back(Vec::new().into());
            if with_topic {
                message.push_back(b"kv".to_vec().into());
            }
            message.push_back(number.to_be_bytes().to_vec().into());
            message.push_back(payload.into());
            message
        };
        let history = history.borrow().clone();
        for number in start.max(history.start)..history.end {
            router.send(answer(number, chained(u8::try_from(number).unwrap()))).await.unwrap();
        }
        router.send(answer(u64::MAX, Vec::new())).await.unwrap();
    }
}

/// What happened before the connection, and in a gap, is fetched; what comes twice is taken once.
#[test]
fn missed_batches_are_replayed() {
    use zeromq::{Socket, SocketSend};
    for with_topic in [true, false] {
        block_on_local(async move {
            let mut publisher = zeromq::PubSocket::new();
            let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
            let mut router = zeromq::RouterSocket::new();
            let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
            let asked = Rc::new(RefCell::new(Vec::new()));
            let history = Rc::new(RefCell::new(0..6));
            tokio::task::spawn_local(answer_replays(
                router,
                with_topic,
                Rc::clone(&history),
                Rc::clone(&asked),
            ));
            let counters = Rc::new(FeedCounters::new());
            let (notices, mut noticed) = mpsc::channel(16);
            let (stop, stopped) = oneshot::channel();
            let mut spec = spec(&place);
            spec.replay = Some(ZmqEndpoint::parse(&replay, "").unwrap());
            let feed = Feed::new(spec, Shard::default(), Rc::clone(&counters), notices);
            let task = tokio::task::spawn_local(feed.run(stopped));

            // A silent engine with six batches behind it.
            until(|| counters.block_count() == 6).await;
            assert!(next_live(&mut noticed).await.live);
            // The last of them arrives again, then three are lost, and the engine remembers none.
            *history.borrow_mut() = 9..10;
            for number in [4, 5, 9_u64] {
                let payload = chained(u8::try_from(number).unwrap());
                publisher.send(frames(number, &payload)).await.unwrap();
            }
            until(|| counters.reset_count(ResetReason::Gap) == 1).await;
            until(|| counters.replay_count(ReplayResult::Incomplete) == 1).await;
            assert_eq!(asked.borrow()[..2], [0, 5], "from the last batch taken");
            assert_eq!(counters.replay_count(ReplayResult::Complete), 1);
            let applied = counters.event_count(EventKind::Stored, BatchOutcome::Applied);
            assert_eq!(applied, 6, "nothing was applied twice");
            stop.send(()).unwrap();
            task.await.unwrap();
        });
    }
}

/// A gap that the engine can fill leaves no trace.
#[test]
fn a_gap_is_filled() {
    use zeromq::{Socket, SocketSend};
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let mut router = zeromq::RouterSocket::new();
        let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let history = Rc::new(RefCell::new(0..2));
        tokio::task::spawn_local(answer_history(router, Rc::clone(&history)));
        let counters = Rc::new(FeedCounters::new());
        let (notices, _noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let mut spec = spec(&place);
        spec.replay = Some(ZmqEndpoint::parse(&replay, "").unwrap());
        let feed = Feed::new(spec, Shard::default(), Rc::clone(&counters), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));
        until(|| counters.block_count() == 2).await;
        // Batches 2 and 3 are lost on the way; batch 4 arrives.
        *history.borrow_mut() = 0..5;
        publisher.send(frames(4, &chained(4))).await.unwrap();
        until(|| counters.block_count() == 5).await;
        assert_eq!(counters.reset_count(ResetReason::Gap), 0);
        assert_eq!(counters.event_count(EventKind::Stored, BatchOutcome::Applied), 5);
        stop.send(()).unwrap();
        task.await.unwrap();
    });
}

/// Issue 39: the rank had the blocks of another engine, silently. The first live batch shows the
/// foreign replay endpoint, whichever batch it is.
#[test]
fn a_replay_of_another_engine_is_found_by_the_first_live_batch() {
    use zeromq::{Socket, SocketSend};
    // The number is in the foreign history, or beyond its end.
    for number in [0, 2, 9_u64] {
        block_on_local(async move {
            let mut publisher = zeromq::PubSocket::new();
            let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
            let mut router = zeromq::RouterSocket::new();
            let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
            let history = Rc::new(RefCell::new(0..6));
            tokio::task::spawn_local(answer_history(router, history));
            let counters = Rc::new(FeedCounters::new());
            let (notices, mut noticed) = mpsc::channel(16);
            let (stop, stopped) = oneshot::channel();
            let mut spec = spec(&place);
            spec.replay = Some(ZmqEndpoint::parse(&replay, "").unwrap());
            spec.timers.replay_pause = Duration::from_millis(1);
            spec.timers.audit_after = Duration::from_millis(20);
            let feed = Feed::new(spec, Shard::default(), Rc::clone(&counters), notices);
            let task = tokio::task::spawn_local(feed.run(stopped));
            until(|| counters.block_count() == 6).await;
            assert!(!next_live(&mut noticed).await.has_foreign_replay, "nothing shows it yet");
            publisher.send(frames(number, &chained_in(0, "GPU"))).await.unwrap();
            let mut notice = noticed.recv().await.unwrap();
            while !notice.has_foreign_replay {
                notice = noticed.recv().await.unwrap();
            }
            until(|| counters.block_count() == 1).await;
            let resets = counters.reset_count(ResetReason::Replay);
            // Neither silence nor a gap brings the foreign blocks again.
            until(|| counters.replay_count(ReplayResult::Incomplete) >= 3).await;
            assert_eq!(counters.block_count(), 1, "silence after batch {number}");
            publisher.send(frames(number + 5, &chained_in(0, "GPU"))).await.unwrap();
            until(|| counters.reset_count(ResetReason::Gap) == 1).await;
            until(|| counters.block_count() == 1).await;
            assert_eq!(counters.reset_count(ResetReason::Replay), resets);
            stop.send(()).unwrap();
            task.await.unwrap();
        });
    }
}

/// A third element that is no rank is skipped whole, whatever follows it.
#[test]
fn odd_elements_after_the_events_are_skipped_whole() {
    let array = |elements: &[&[u8]]| {
        let mut payload = vec![0x90 | u8::try_from(elements.len()).unwrap()];
        elements.iter().for_each(|element| payload.extend_from_slice(element));
        payload
    };
    let time: &[u8] = &[0xcb, 0, 0, 0, 0, 0, 0, 0, 0];
    let none: &[u8] = &[0x90];
    let odd: [&[u8]; 4] = [b"\xa3abc", b"\x92\x01\x02", b"\x81\xa1k\x01", b"\xff"];
    for element in odd {
        let payload = array(&[time, none, element, b"\x07"]);
        let head = Decoder::new().decode(&payload, |_| panic!("no event"));
        assert_eq!(head.unwrap().rank, None, "{element:02x?}");
    }
}

/// Keys by the number of the rank or tier that holds them.
#[derive(Clone, Default)]
struct Trees(Rc<RefCell<std::collections::BTreeSet<(u16, u64)>>>);

impl KvPort for Trees {
    fn post(&self, _: ShardIndex, batch: KvBatch) -> Result<(), KvBatch> {
        let mut held = self.0.borrow_mut();
        for op in batch.ops {
            match op {
                KvOp::Store { key, .. } => assert!(held.insert((batch.rank.0, key.to_word()))),
                KvOp::Hold { .. } => panic!("no windows"),
                KvOp::Remove { key } => assert!(held.remove(&(batch.rank.0, key.to_word()))),
            }
        }
        Ok(())
    }
}

impl Trees {
    fn counts(&self) -> [usize; 3] {
        [0, 900, 901].map(|rank| self.0.borrow().iter().filter(|held| held.0 == rank).count())
    }
}

/// The host shows up in the middle of the history: it is taken again, so that what came before is
/// in the host's tree too.
#[test]
fn a_tier_that_shows_up_in_the_history_gets_all_of_it() {
    use zeromq::{Socket, SocketRecv, SocketSend, ZmqMessage};
    block_on_local(async move {
        let mut publisher = zeromq::PubSocket::new();
        let place = publisher.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let mut router = zeromq::RouterSocket::new();
        let replay = router.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        tokio::task::spawn_local(async move {
            loop {
                let request = router.recv().await.unwrap();
                let answer = |number: u64, payload: Vec<u8>| {
                    let mut message = ZmqMessage::from(request.get(0).unwrap().clone());
                    for part in [Vec::new(), number.to_be_bytes().to_vec(), payload] {
                        message.push_back(part.into());
                    }
                    message
                };
                for (number, medium) in [(0, "GPU"), (1, "GPU"), (2, "CPU")] {
                    let payload = chained_in(number, medium);
                    router.send(answer(u64::from(number), payload)).await.unwrap();
                }
                router.send(answer(u64::MAX, Vec::new())).await.unwrap();
            }
        });
        let counters = Rc::new(FeedCounters::new());
        let (notices, mut noticed) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel();
        let mut spec = spec(&place);
        spec.replay = Some(ZmqEndpoint::parse(&replay, "").unwrap());
        let trees = Trees::default();
        let feed = Feed::new(spec, trees.clone(), Rc::clone(&counters), notices);
        let task = tokio::task::spawn_local(feed.run(stopped));
        let notice = next_live(&mut noticed).await;
        assert!(notice.live);
        assert_eq!(notice.tiers.host, Some(RankIndex(900)));
        assert_eq!(notice.tiers.disk, None);
        assert_eq!(trees.counts(), [2, 3, 0]);
        assert_eq!(counters.tier_block_count(Tier::Host), 1);
        assert_eq!(counters.reset_count(ResetReason::Gap), 0);
        // A disk later on: from then on.
        publisher.send(frames(3, &chained_in(3, "DISK"))).await.unwrap();
        until(|| trees.counts() == [2, 3, 1]).await;
        stop.send(()).unwrap();
        task.await.unwrap();
        assert_eq!(trees.counts(), [0; 3]);
        assert_eq!((counters.block_count(), counters.byte_count()), (0, 0));
    });
}
