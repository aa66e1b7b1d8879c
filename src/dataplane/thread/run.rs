//! Lifetime of a shard: runtime, listeners, tasks, the tick, the end.

use super::configure;
use super::drain::DrainProgress;
use super::inbox::Inbox;
use super::slice::OwnSlice;
use crate::conn::connection;
use crate::ingress::{BoundListener, Deadline, Listeners, NewConnection};
use crate::resolve::preflight;
use crate::runtime::{self, Driver, Offload, Sleeper, Tools, WakeSource};
use crate::state::env::Env;
use crate::state::io::Io;
use crate::state::links::{ControlLinks, Links};
use crate::state::prompt_text::PromptText;
use crate::state::routing::RoutingState;
use crate::state::shard::{Intake, Queues, Shard};
use crate::state::workers::Workers;
use forebay_base::limits::{HISTOGRAM_PERIOD, SHARD_BEAT_PERIOD};
use forebay_base::{Clock, RouterId, ShardIndex, is_out_of_sockets};
use forebay_board::account::{Count, ShardCounters, ShardPhase, StageHistograms};
use forebay_board::admit::InFlight;
use forebay_board::{LoadBoard, LoadReport, LoadReports, ShardBoard};
use forebay_config::Config;
use forebay_identity::AddressRules;
use forebay_index::{ExpiringChunks, IndexReader, SliceWriter};
use forebay_mailbox::AdminConnector;
use forebay_mailbox::{ShardEnd, ShardPeers, ToControl};
use forebay_net::{IoCounts, end_turn};
use forebay_ring::{Consumer, Producer};
use forebay_router::dispatch::RetryBudget;
use forebay_router::request::{Loads, StageRules, Stages};
use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// Period at which a draining shard checks whether it is empty.
const DRAIN_TICK: Duration = Duration::from_millis(20);
/// Time for requests to end once a drain has cut their connections, with their records and the
/// aborts at engines. Well below the time after which the process ends without its shards.
const CUT_TIME_MAX: Duration = Duration::from_secs(1);
/// Pause after the kernel refused a connection for lack of descriptors. Other connections may close
/// meanwhile.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Time for handshakes under way when the router stops.
const LAST_CALL: Duration = Duration::from_millis(150);
/// Connections accepted before other tasks get a turn.
const ACCEPTS_A_TURN_MAX: usize = 32;

type AcceptResult = io::Result<NewConnection>;

/// Everything a shard's thread starts with.
#[derive(Debug)]
pub struct ShardSetup {
    pub config: Arc<Config>,
    pub clock: Clock,
    pub thread: ShardThread,
    /// Rings to the other threads.
    pub end: ShardEnd,
    /// Loads of all ranks.
    pub board: Arc<LoadBoard>,
    /// Reads the slices of all shards.
    pub index: IndexReader,
    /// Writes its own slice.
    pub slice: SliceWriter,
    /// Id of this router in `via` fields.
    pub router_id: RouterId,
}

/// Core, driver, sockets and wake source of a shard's thread.
#[derive(Debug)]
pub struct ShardThread {
    /// The core to pin to.
    pub core: usize,
    pub driver: Driver,
    pub listeners: Vec<BoundListener>,
    /// Connection count per client address, shared by all shards.
    pub addresses: Arc<AddressRules>,
    /// Connector to the admin API, if clients may call that API through the client port.
    pub connector: Option<Arc<dyn AdminConnector>>,
    /// Wakes the thread from its sleep.
    pub wake: WakeSource,
}

/// Runs the shard on the calling thread until it has drained.
///
/// # Errors
/// When the runtime cannot be built or the sockets cannot be taken into it.
pub fn run(setup: ShardSetup) -> io::Result<()> {
    // Not fatal: a container may not own the core. The shard then runs unpinned and logs a warning.
    if !core_affinity::set_for_current(core_affinity::CoreId { id: setup.thread.core }) {
        tracing::warn!(
            core = setup.thread.core,
            "could not pin a shard to its core; it runs unpinned"
        );
    }
    let _end = End(Arc::clone(&setup.end.counters));
    let number = setup.end.index;
    // Not fatal: a shard on epoll costs more CPU, and a shard that ends takes the router with it.
    let without_ring = |error: &io::Error| {
        tracing::warn!(
            shard = number.index(),
            "this shard runs on epoll and needs more CPU, because io_uring was refused: {error}; \
             raise the limit of locked memory (`ulimit -l`, LimitMEMLOCK=)"
        );
    };
    runtime::block_on(setup.thread.driver, setup.clock, without_ring, main(setup))?
}

/// Marks the shard as ended when dropped, also by a panic.
struct End(Arc<ShardCounters>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.add(Count::TasksPanicked, u64::from(std::thread::panicking()));
        self.0.set_phase(ShardPhase::Ended);
    }
}

async fn main(setup: ShardSetup) -> io::Result<()> {
    let ShardSetup { config, clock, thread, end, board, index, slice, router_id } = setup;
    let sleeper = Sleeper::new(thread.wake)?;
    let ShardEnd { index: number, kv, fleet, reports, commands, to_control, .. } = end;
    let ToControl { mut histograms, traces, adapters } = to_control;
    let ShardPeers { mesh, bells, counters: shards } = end.peers;
    let bell = bells.get(number.index()).map(Arc::clone).ok_or(io::ErrorKind::InvalidInput)?;
    let limits = config.limits;
    let in_flight = Rc::new(InFlight::new(limits.in_flight_max, limits.buffered_bytes_max));
    let tools = Tools::new(&index, clock);
    let (offload, replies) = Offload::start(number, &bell, &in_flight, tools)?;
    let inbox = Inbox {
        kv,
        fleet,
        commands,
        mesh: mesh.receiver,
        bell,
        replies,
        slice: OwnSlice::new(slice, ExpiringChunks::new(configure::expiring(&config, bells.len()))),
        alarm: Deadline::new(clock),
    };
    let board = ShardBoard::from(board);
    let routing = routing(number, &config, board.clone(), reports, index);
    let trusted = configure::trusted(&config).unwrap_or_default();
    let cors = preflight::cors(&config.cors);
    let shard = Rc::new_cyclic(|me| Shard {
        io: Io::new(offload, config.timeouts.upstream_idle),
        workers: Workers::new(board),
        routing,
        links: Links::new(
            mesh.sender,
            bells,
            shards,
            ControlLinks { admin: thread.connector, adapters, router_id },
        ),
        queues: Queues::new(number, fastrand::u64(..)),
        intake: Intake::new(in_flight, thread.addresses, trusted, cors, runtime::least_us()),
        env: Env::new(number, clock, config, end.counters, traces),
        me: Weak::clone(me),
    });
    forebay_net::spawn(watched_inbox(Rc::clone(&shard), inbox, sleeper));
    let listeners = Listeners::new(thread.listeners)?;
    forebay_net::spawn(accept(Rc::clone(&shard), listeners));
    tick(&shard, &mut histograms).await;
    Ok(())
}

async fn watched_inbox(shard: Rc<Shard>, inbox: Inbox, sleeper: Sleeper) {
    let number = shard.env.number;
    let least_us = shard.intake.holds_least_us;
    runtime::watched(number, least_us, "inbox", inbox.run(shard, sleeper)).await;
}

fn routing(
    number: ShardIndex,
    config: &Config,
    board: ShardBoard,
    load_reports: Consumer<LoadReport>,
    index: IndexReader,
) -> RoutingState {
    let loads = Loads { board, reports: LoadReports::new(config.load.age_max) };
    let retry = RetryBudget::new(config.retry.budget_percent);
    let rules = StageRules::of(config);
    let random = fastrand::Rng::new();
    RoutingState {
        stages: RefCell::new(Stages::new(number, rules, loads, retry, random)),
        load_reports: RefCell::new(load_reports),
        index,
        reported_paths: RefCell::default(),
        stored_responses: RefCell::default(),
        text: PromptText::default(),
    }
}

/// Accepts connections from the first fleet until the drain. Earlier clients wait in the kernel,
/// because an answer would be a refusal for lack of workers. No connected client is reset: the
/// sockets are closed only once no new connection can begin.
async fn accept(shard: Rc<Shard>, mut listeners: Listeners) {
    let seat = shard.env.draining.seat();
    let ready = shard.intake.ready.seat();
    poll_fn(|cx| if seat.poll(cx).is_ready() { Poll::Ready(()) } else { ready.poll(cx) }).await;
    drop(ready);
    if !shard.env.draining.is_set() {
        shard.env.counters.set_phase(ShardPhase::Listening);
    }
    accept_all(&shard, &mut listeners, |listeners, cx| match seat.poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => listeners.poll_accept(cx).map(Some),
    })
    .await;
    let has_heir = shard.env.leaving.order.get().is_some_and(|order| order.has_heir);
    if !has_heir && begin_none(&shard, &listeners) {
        // Accept handshakes under way and connections queued in the kernel.
        let mut over = pin!(forebay_net::sleep(LAST_CALL));
        accept_all(&shard, &mut listeners, |listeners, cx| match listeners.poll_accept(cx) {
            Poll::Ready(accepted) => Poll::Ready(Some(accepted)),
            Poll::Pending => over.as_mut().poll(cx).map(|()| None),
        })
        .await;
    }
    shard.env.counters.set_phase(ShardPhase::Draining);
}

/// Stops new connections. False where the kernel does not support that: closing the sockets then
/// resets connections queued in the kernel.
fn begin_none(shard: &Shard, listeners: &Listeners) -> bool {
    let done = listeners.begin_none();
    if let Err(error) = &done {
        let shard = shard.env.number.index();
        tracing::warn!(shard, %error, "clients that connect while the router stops may be reset");
    }
    done.is_ok()
}

/// Serves every connection that `next` returns, until `None`.
async fn accept_all(
    shard: &Rc<Shard>,
    listeners: &mut Listeners,
    mut next: impl FnMut(&mut Listeners, &mut Context<'_>) -> Poll<Option<AcceptResult>>,
) {
    let mut turn_count = 0;
    loop {
        // Thousands of connections may arrive at once. Serve accepted connections, and read the
        // first bytes of new connections, before accepting the rest.
        turn_count += 1;
        if turn_count >= ACCEPTS_A_TURN_MAX {
            turn_count = 0;
            end_turn().await;
        }
        match poll_fn(|cx| next(listeners, cx)).await {
            None => return,
            Some(Ok(arrival))
                if shard.intake.connection_count() < shard.env.config().limits.connections_max =>
            {
                shard.env.count(Count::ConnectionsAccepted);
                // Count here, not in the connection's task: a burst would pass the limit before the
                // first task runs.
                let place = shard.intake.enter(&arrival.socket);
                forebay_net::spawn(connection::serve(Rc::clone(shard), arrival, place));
            }
            Some(Ok(_)) => shard.env.count(Count::ConnectionsRefused),
            Some(Err(error)) => {
                if is_out_of_sockets(&error) {
                    shard.io.out_of_sockets(&shard.env, "a client could not be accepted");
                }
                forebay_net::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Beats, and does housekeeping once per [`HISTOGRAM_PERIOD`]. Ends when the shard has drained. At
/// the deadline of the drain, connections are cut, and their requests have [`CUT_TIME_MAX`].
async fn tick(shard: &Shard, histograms: &mut Producer<Box<StageHistograms>>) {
    let mut next = shard.env.now();
    let mut drain = DrainProgress::default();
    let mut counted = IoCounts::default();
    loop {
        let now = shard.env.now();
        counted = show_io(&shard.env, counted);
        shard.workers.show_life();
        shard.env.counters.set_offloaded(shard.io.offload.out_count());
        // A stuck offload thread serves no large request, so the shard counts as stalled too.
        if !shard.io.offload.is_stuck(now) {
            shard.env.counters.beat();
        }
        if let Some(deadline) = shard.env.drain_until()
            && (drain.advance(shard) || now >= deadline.plus(CUT_TIME_MAX))
        {
            deliver(shard, histograms);
            shard.io.offload.close();
            // Wait for turns of the ring: it must first cancel the last reads of closed sockets.
            return forebay_net::sleep(2 * DRAIN_TICK).await;
        }
        if shard.env.is_cut(now) {
            // At each tick, because a connection may have been accepted since the last.
            shard.intake.cut_connections();
        }
        if now >= next {
            next = now.plus(HISTOGRAM_PERIOD);
            deliver(shard, histograms);
            shard.io.upstreams.borrow_mut().sweep(now);
            shard.routing.observe_drain(&shard.workers, now);
            // Idle shards choose no ranks; without this their ring would fill with stale reports.
            drop(shard.routing.informed());
            // The inbox removes expired chunks whenever it is awake. Wake it at least this often.
            if let Some(bell) = shard.links.bells.get(shard.env.number.index()) {
                bell.ring();
            }
        }
        if shard.env.drain_until().is_some() {
            forebay_net::sleep(DRAIN_TICK).await;
        } else {
            pause(shard).await;
        }
    }
}

/// Counts the system calls of the loop since `counted`. Returns the totals so far.
fn show_io(env: &Env, counted: IoCounts) -> IoCounts {
    let now = forebay_net::io_counts();
    env.counters.add(Count::IoSubmissions, now.submissions - counted.submissions);
    env.counters.add(Count::IoWaits, now.waits - counted.waits);
    env.counters.add(Count::IoSends, now.sends - counted.sends);
    env.counters.add(Count::IoReceives, now.receives - counted.receives);
    now
}

/// Waits until the next beat is due; a drain ends the wait.
async fn pause(shard: &Shard) {
    let seat = shard.env.draining.seat();
    let mut sleeping = pin!(forebay_net::sleep(SHARD_BEAT_PERIOD));
    poll_fn(|cx| match sleeping.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(()),
        Poll::Pending => seat.poll(cx),
    })
    .await;
}

/// Sends the latency histograms to the control plane. If the ring is full, keeps recording into
/// them.
fn deliver(shard: &Shard, histograms: &mut Producer<Box<StageHistograms>>) {
    let mut current = shard.env.histograms.borrow_mut();
    if !current.is_empty()
        && let Err(unsent) = histograms.push(std::mem::take(&mut *current))
    {
        *current = unsent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingress;
    use crate::runtime::wake_pair;
    use forebay_base::{ModelIndex, NanosSinceStart, RankIndex, ShardIndex};
    use forebay_board::account::{Lease, LeaseCost, LeaseRequest, PromptPrefixes};
    use forebay_fleet::worker::{Requester, RoomLimits};
    use forebay_index::KeySeed;
    use forebay_mailbox::{DrainOrder, MeshMessage, ShardCommand, Ticket, Verdict, wire};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let clock = Clock::start();
        let patience = NanosSinceStart::default().plus(PATIENCE);
        while !condition() {
            assert!(clock.now() < patience, "gave up waiting: {what}");
            std::thread::yield_now();
        }
    }

    #[test]
    fn an_end_by_panic_is_an_end() {
        let counters = Arc::new(ShardCounters::new());
        let end = End(Arc::clone(&counters));
        let panicked = std::thread::spawn(move || {
            let _end = end;
            panic!("as a shard that a fault ends");
        });
        assert!(panicked.join().is_err());
        let count = counters.value(Count::TasksPanicked);
        assert_eq!((counters.phase(), count), (ShardPhase::Ended, 1));
    }

    /// A lease that is returned twice panics in debug builds, here in a shard's inbox. The shard
    /// must keep running.
    #[test]
    #[cfg(debug_assertions)]
    fn a_shard_outlives_a_panic_of_its_inbox() {
        let driver = Driver::detect();
        let (wakes, mut sources): (Vec<_>, Vec<_>) = (0..2).map(|_| wake_pair().unwrap()).unzip();
        let (mut control, mut ends) = wire(wakes);
        let mut other = ends.pop().unwrap();
        let end = ends.pop().unwrap();
        let socket = ingress::bind_first(([127, 0, 0, 1], 0).into(), false).unwrap();
        let listeners = vec![BoundListener { socket, is_tls: false }];
        let (reader, mut slices) = forebay_index::index(2, KeySeed(1), 1 << 20);
        let bells = other.peers.bells.clone();
        let board = Arc::new(LoadBoard::with_bells(bells.clone()));
        let setup = ShardSetup {
            router_id: RouterId::from_random(1),
            config: Arc::new(Config::default()),
            clock: Clock::start(),
            thread: ShardThread {
                core: 0,
                driver,
                listeners,
                addresses: Arc::default(),
                connector: None,
                wake: sources.remove(0),
            },
            end,
            board: Arc::clone(&board),
            index: reader,
            slice: slices.remove(0),
        };
        let counters = Arc::clone(&setup.end.counters);
        let thread = std::thread::spawn(move || run(setup));
        for panics in 1..3 {
            let rank = RankIndex(panics);
            let now = NanosSinceStart(1);
            let cost = LeaseCost::default();
            let limits = RoomLimits::default();
            let own = ShardBoard::from(Arc::clone(&board));
            let requester = Requester { caller: 0, model: ModelIndex(0), is_forced: false };
            let marks = &forebay_index::PrefixMarks::NONE;
            let prefixes = PromptPrefixes { marks, bytes_per_token: 4.0 };
            let wanted = LeaseRequest { rank, requester, cost, limits, prefixes };
            let lease = Lease::try_take(&own, wanted, now).unwrap();
            board.rank(rank).unwrap().release(0);
            let ticket = Ticket { shard: ShardIndex(0), slot: 9, life: 9 };
            let verdict = Box::new(Verdict::Granted(lease));
            let message = MeshMessage::Verdict { ticket, verdict };
            assert!(other.peers.mesh.sender.send(ShardIndex(0), message).is_ok());
            bells[0].ring();
            let count = || counters.value(Count::TasksPanicked);
            until("it is counted", || count() == u64::from(panics));
        }
        other.counters.set_phase(ShardPhase::Ended);
        let far = NanosSinceStart(u64::MAX);
        let order =
            DrainOrder { silent_until: far, deadline: far, is_handed_over: false, has_heir: false };
        control.shards[0].commands.push(ShardCommand::Drain(order)).unwrap();
        bells[0].ring();
        thread.join().unwrap().unwrap();
        assert_eq!(counters.phase(), ShardPhase::Ended);
    }
}
