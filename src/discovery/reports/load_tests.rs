//! A worker that is asked; a rank that is listened to.

use super::load_tasks::LoadTasks;
use crate::http::WorkerClients;
use axum::Router;
use axum::http::{StatusCode, Uri};
use forebay_base::{Clock, RankIndex, WorkerIndex};
use forebay_board::{LoadBoard, LoadReport};
use forebay_config::{Config, Connectors, LoadConfig};
use forebay_fleet::worker::{RoomDemand, RoomLimits};
use forebay_kv_events::test_support::block_on_local;
use forebay_load::{AnnouncedLoad, LoadPlan, LoadReporter, PlannedRank, ReadFault, ReportSource};
use forebay_zmq::ZmqEndpoint;
use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// What SGLang 0.5.19 sends; recorded.
const LOAD_STAT: &[u8] = b"\x96\xa8LoadStat\x0c\x03\xcd\xa0\x00\xce\x00\x04\x00\x00\x01";

struct Bench {
    reporter: Rc<LoadReporter>,
    board: Arc<LoadBoard>,
    tasks: LoadTasks,
    /// What the shards would have got; they are full.
    posted: Rc<RefCell<Vec<LoadReport>>>,
}

fn bench() -> Bench {
    let board = Arc::new(LoadBoard::new());
    let clock = Clock::start();
    let posted = Rc::new(RefCell::new(Vec::new()));
    let to = Rc::clone(&posted);
    let post = Box::new(move |reports: &[LoadReport]| {
        to.borrow_mut().extend_from_slice(reports);
        u64::try_from(reports.len()).unwrap()
    });
    let reporter =
        Rc::new(LoadReporter::new(clock, Arc::clone(&board), Duration::from_secs(60), post));
    let client = WorkerClients::new(&Config::default(), &Connectors::default()).unwrap();
    let config = LoadConfig {
        interval: Duration::from_millis(100),
        back_off: false,
        ..LoadConfig::default()
    };
    let tasks = LoadTasks::new(Rc::clone(&reporter), clock, client, config, Duration::from_secs(5));
    Bench { reporter, board, tasks, posted }
}

fn plan(authority: &str, source: ReportSource, publisher: Option<&AnnouncedLoad>) -> LoadPlan {
    let rank = |rank| PlannedRank {
        rank: RankIndex(rank),
        capacity_tokens: 0,
        publisher: publisher.cloned(),
    };
    LoadPlan {
        first: 0,
        worker: WorkerIndex(0),
        name: "w".into(),
        authority: authority.into(),
        api_key: None,
        source,
        ranks: vec![Some(rank(4))],
    }
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..1_000 {
        if done() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("gave up waiting: {what}");
}

#[test]
fn a_worker_is_asked_in_the_form_it_knows_and_what_is_ours_is_taken_off() {
    block_on_local(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        // An older server: the newer path is unknown.
        let app = Router::new().fallback(|uri: Uri| async move {
            let body = r#"[{"dp_rank":0,"num_reqs":9,"num_waiting_reqs":0,"num_tokens":70}]"#;
            if uri.path() == "/get_load" {
                (StatusCode::OK, body)
            } else {
                (StatusCode::NOT_FOUND, "")
            }
        });
        tokio::task::spawn_local(async move { axum::serve(listener, app).await });
        let mut bench = bench();
        for _ in 0..3 {
            assert!(
                bench
                    .board
                    .rank(RankIndex(4))
                    .unwrap()
                    .try_acquire(RoomLimits::default(), RoomDemand::default())
                    .is_some()
            );
        }
        bench.tasks.adjust(vec![plan(&address.to_string(), ReportSource::Loads, None)]);
        let foreign =
            || bench.reporter.reports().newest(RankIndex(4)).map(|report| report.foreign.requests);
        until("a report", || foreign() == Some(6)).await;
        assert_eq!(bench.reporter.fault_count(WorkerIndex(0), ReadFault::Status), 1);
        assert!(bench.reporter.scrapes().buckets.iter().sum::<u64>() > 0);

        // The first is handed over at once, what comes within a tick at its end.
        let posted = || bench.posted.borrow().len();
        assert_eq!(posted(), 1);
        let seen = || bench.reporter.reports().newest(RankIndex(4)).map(|report| report.at);
        let first = seen();
        until("the next report", || seen() > first).await;
        assert_eq!(posted(), 1);
        bench.reporter.tick(5);
        assert_eq!((posted(), bench.posted.borrow()[1].foreign.requests), (2, 6));
        bench.reporter.tick(5);
        assert_eq!((posted(), bench.reporter.dropped_count()), (2, 2));
        assert_eq!(bench.tasks.source(WorkerIndex(0)), Some(ReportSource::Loads));
        bench.tasks.adjust(vec![]);
        assert_eq!(bench.tasks.source(WorkerIndex(0)), None);
    });
}

#[test]
fn where_nothing_is_published_after_all_the_worker_is_asked() {
    block_on_local(async {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().fallback(|| async {
            r#"{"loads":[{"dp_rank":0,"num_running_reqs":7,"num_waiting_reqs":0}]}"#
        });
        tokio::task::spawn_local(async move { axum::serve(listener, app).await });
        // A port on which nobody listens any more.
        let gone = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let place = format!("tcp://{}", gone.local_addr().unwrap());
        drop(gone);
        let endpoint = ZmqEndpoint::parse(&place, "").unwrap();
        let publisher = AnnouncedLoad { endpoint, topic: "load".into() };
        let mut bench = bench();
        let plan = plan(&address.to_string(), ReportSource::Push, Some(&publisher));
        bench.tasks.adjust(vec![plan.clone()]);
        let running = || bench.reporter.reports().newest(RankIndex(4)).map(|report| report.running);
        until("a report", || running() == Some(7)).await;
        assert!(bench.reporter.has_recent_reports(&plan, Duration::from_secs(60)));
        assert!(!bench.reporter.has_recent_reports(&plan, Duration::ZERO));
    });
}

/// Publishes what SGLang would, with the sockets of another implementation.
async fn publish(socket: &mut zeromq::PubSocket, payload: &[u8]) {
    use zeromq::SocketSend;
    let mut message = zeromq::ZmqMessage::from("load");
    message.push_back(41_u64.to_be_bytes().to_vec().into());
    message.push_back(payload.to_vec().into());
    socket.send(message).await.unwrap();
}

#[test]
fn a_rank_is_listened_to_and_found_again() {
    use zeromq::Socket;
    block_on_local(async {
        let mut socket = zeromq::PubSocket::new();
        let place = socket.bind("tcp://127.0.0.1:0").await.unwrap().to_string();
        let endpoint = ZmqEndpoint::parse(&place, "").unwrap();
        let publisher = AnnouncedLoad { endpoint, topic: "load".into() };
        let mut bench = bench();
        bench.tasks.adjust(vec![plan("127.0.0.1:1", ReportSource::Push, Some(&publisher))]);
        let running = |reporter: &LoadReporter| {
            reporter.reports().newest(RankIndex(4)).map(|report| report.running)
        };
        for _ in 0..1_000 {
            publish(&mut socket, LOAD_STAT).await;
            sleep(Duration::from_millis(10)).await;
            if running(&bench.reporter).is_some() {
                break;
            }
        }
        assert_eq!(running(&bench.reporter), Some(12));
        publish(&mut socket, b"junk").await;
        let malformed = || bench.reporter.fault_count(WorkerIndex(0), ReadFault::Malformed);
        until("junk is counted", || malformed() == 1).await;
        drop(socket);
        let mut socket = zeromq::PubSocket::new();
        let mut other = LOAD_STAT.to_vec();
        other[10] = 33;
        until_bound(&mut socket, &place).await;
        for _ in 0..1_000 {
            publish(&mut socket, &other).await;
            sleep(Duration::from_millis(10)).await;
            if running(&bench.reporter) == Some(33) {
                return;
            }
        }
        panic!("not found again");
    });
}

async fn until_bound(socket: &mut zeromq::PubSocket, place: &str) {
    use zeromq::Socket;
    for _ in 0..500 {
        if socket.bind(place).await.is_ok() {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("{place} is not free again");
}
