//! Several replicas over a network that is late, loses and parts, in simulated time: what they hold
//! together, and that they agree again.

use super::own_load::{Local, LocalRank, LocalWindow};
use super::replica::{Outgoing, Replica};
use super::wire::{ReplicaId, WindowLeg};
use forebay_base::{NanosSinceStart, PoolIndex};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const RANKS: usize = 3;
const KV_MAX: u64 = 1_000;
const STEP: Duration = Duration::from_millis(1);

struct Network {
    random: fastrand::Rng,
    delay_ms_max: u64,
    loss_percent: u32,
    /// Later messages may be earlier. NATS never does that to those of one sender.
    is_disorderly: bool,
    /// When the last message from one to the other arrives.
    last_at: BTreeMap<(usize, usize), u64>,
    /// Which side of a partition each node is on.
    side: Vec<u8>,
    under_way: BTreeMap<(u64, u64), (usize, String, Vec<u8>)>,
    sent: u64,
}

struct Node {
    replica: Replica,
    /// Ranks that the replica has found: the first of all.
    rank_count: usize,
    is_up: bool,
    /// Tokens and end of what runs, by rank.
    running: Vec<Vec<(u64, NanosSinceStart)>>,
    elsewhere: Vec<super::own_load::ForeignUsage>,
    /// Requests that wait, for any rank.
    waiting: u64,
    /// How many wait always.
    load: u64,
    windows: Vec<LocalWindow>,
    done: u64,
}

struct Sim {
    nodes: Vec<Node>,
    network: Network,
    places_max: u64,
    /// 0: no limit.
    kv_max: u64,
    lasting_ms_max: u64,
    tokens_min: u64,
    tokens_max: u64,
    now: NanosSinceStart,
    /// Most that ran at once on a rank since the last look.
    peak_places: u64,
    peak_tokens: u64,
    /// The same of what ran or might have been started.
    peak_usable: u64,
    peak_usable_tokens: u64,
}

impl Sim {
    fn new(seed: u64, places_max: u64) -> Self {
        Self {
            nodes: Vec::new(),
            network: Network {
                random: fastrand::Rng::with_seed(seed),
                delay_ms_max: 3,
                loss_percent: 0,
                is_disorderly: false,
                last_at: BTreeMap::new(),
                side: Vec::new(),
                under_way: BTreeMap::new(),
                sent: 0,
            },
            places_max,
            kv_max: KV_MAX,
            lasting_ms_max: 100,
            tokens_min: 1,
            tokens_max: 100,
            now: NanosSinceStart(1),
            peak_places: 0,
            peak_tokens: 0,
            peak_usable: 0,
            peak_usable_tokens: 0,
        }
    }

    fn join(&mut self) -> usize {
        let number = self.nodes.len();
        let id = ReplicaId(self.network.random.u64(1..));
        let mut replica = Replica::new(id, format!("node-{number}"), self.now);
        for rank in 0..RANKS {
            replica.add_rank(&engine(rank), 0, self.now);
        }
        self.join_as(replica, RANKS)
    }

    /// Adds a replica that has found `rank_count` of the ranks.
    fn join_as(&mut self, replica: Replica, rank_count: usize) -> usize {
        let number = self.nodes.len();
        self.nodes.push(Node {
            replica,
            rank_count,
            is_up: true,
            running: vec![Vec::new(); RANKS],
            elsewhere: vec![super::own_load::ForeignUsage::default(); RANKS],
            waiting: 0,
            load: 0,
            windows: Vec::new(),
            done: 0,
        });
        self.network.side.push(0);
        let hello = self.nodes[number].replica.connected(self.now);
        self.send(number, hello);
        self.turn(number);
        number
    }

    fn send(&mut self, from: usize, message: Option<Outgoing>) {
        let Some((kind, bytes)) = message else { return };
        let network = &mut self.network;
        for to in 0..self.nodes.len() {
            let is_lost = network.random.u32(0..100) < network.loss_percent;
            if to == from || is_lost || network.side[to] != network.side[from] {
                continue;
            }
            let late = network.random.u64(0..=network.delay_ms_max * 1_000_000);
            network.sent += 1;
            let last_at = network.last_at.entry((from, to)).or_default();
            let at = self.now.0 + late;
            *last_at = if network.is_disorderly { at } else { at.max(*last_at) };
            let key = (*last_at, network.sent);
            network.under_way.insert(key, (to, kind.subject("test"), bytes.clone()));
        }
    }

    fn turn(&mut self, number: usize) {
        let now = self.now;
        let limits = (self.places_max, self.kv_max);
        let node = &mut self.nodes[number];
        let local: Vec<LocalRank> =
            (0..node.rank_count).map(|rank| node.local(rank, limits)).collect();
        let windows: Vec<LocalWindow> =
            node.windows.iter().filter(|window| window.until > now).cloned().collect();
        let edge = node.replica.windows(&windows, now);
        let (_, load) = node.replica.turn(&local, &windows, now);
        for (rank, local) in local.iter().enumerate() {
            node.elsewhere[rank] = node.replica.elsewhere(rank, local);
        }
        self.send(number, edge);
        self.send(number, load);
    }

    /// Runs so long, and looks after each step.
    fn run(&mut self, time: Duration) {
        let end = self.now.plus(time);
        while self.now < end {
            self.now = self.now.plus(STEP);
            let later = self.network.under_way.split_off(&(self.now.0, u64::MAX));
            for (_, (to, subject, bytes)) in std::mem::replace(&mut self.network.under_way, later) {
                if self.nodes[to].is_up {
                    self.nodes[to].replica.hear(&subject, &bytes, self.now);
                }
            }
            for number in 0..self.nodes.len() {
                if self.nodes[number].is_up {
                    self.serve(number);
                    if self.nodes[number].replica.turn_at() <= self.now {
                        self.turn(number);
                    }
                }
            }
            self.look();
        }
    }

    /// What the shards of a node do in a step.
    fn serve(&mut self, number: usize) {
        let now = self.now;
        let node = &mut self.nodes[number];
        for running in &mut node.running {
            let before = running.len();
            running.retain(|(_, end)| *end > now);
            node.done += (before - running.len()) as u64;
        }
        node.waiting = node.load;
        for rank in 0..node.rank_count {
            while node.waiting > 0 {
                let tokens = self.network.random.u64(self.tokens_min..=self.tokens_max);
                let (places, held) = node.held(rank);
                let elsewhere = node.elsewhere[rank];
                let is_free = self.kv_max == 0 || places + elsewhere.places == 0;
                let fits = is_free || held + elsewhere.kv + tokens <= self.kv_max;
                if places + elsewhere.places >= self.places_max || !fits {
                    break;
                }
                let lasting = self.network.random.u64(1..=self.lasting_ms_max);
                node.running[rank].push((tokens, now.plus(Duration::from_millis(lasting))));
                node.waiting -= 1;
            }
        }
    }

    fn look(&mut self) {
        for rank in 0..RANKS {
            let alive = self.nodes.iter().filter(|node| node.is_up).map(|node| node.held(rank));
            let (places, tokens) = alive.fold((0, 0), |sum, held| (sum.0 + held.0, sum.1 + held.1));
            self.peak_places = self.peak_places.max(places);
            self.peak_tokens = self.peak_tokens.max(tokens);
            let alive = self.nodes.iter().filter(|node| node.is_up);
            let usable = alive.map(|node| node.usable(rank, (self.places_max, self.kv_max)));
            let (places, tokens) = usable.fold((0, 0), |sum, may| (sum.0 + may.0, sum.1 + may.1));
            self.peak_usable = self.peak_usable.max(places);
            self.peak_usable_tokens = self.peak_usable_tokens.max(tokens);
        }
    }

    fn forget_peaks(&mut self) {
        self.peak_places = 0;
        self.peak_tokens = 0;
        self.peak_usable = 0;
        self.peak_usable_tokens = 0;
    }

    fn held(&self, node: usize) -> u64 {
        (0..RANKS).map(|rank| self.nodes[node].held(rank).0).sum()
    }

    fn knows_window(&self, node: usize) -> bool {
        let until = self.nodes[node].replica.peers().window(WindowLeg::Answer, &["m"]).queue_until;
        until.is_some_and(|until| until > self.now)
    }

    fn open_window(&mut self, node: usize, lasting: Duration) {
        let until = self.now.plus(lasting);
        let leg = WindowLeg::Answer;
        let models = vec!["m".to_owned()];
        let pool = PoolIndex(0);
        let window = LocalWindow { pool, leg, models, until, hand_until: None };
        self.nodes[node].windows = vec![window];
        let open = self.nodes[node].windows.clone();
        let edge = self.nodes[node].replica.windows(&open, self.now);
        self.send(node, edge);
    }
}

impl Node {
    fn held(&self, rank: usize) -> (u64, u64) {
        let running = &self.running[rank];
        (running.len() as u64, running.iter().map(|(tokens, _)| tokens).sum())
    }

    /// What runs there or may be started at once.
    fn usable(&self, rank: usize, (places_max, kv_max): (u64, u64)) -> (u64, u64) {
        let (places, tokens) = self.held(rank);
        if rank >= self.rank_count {
            return (places, tokens);
        }
        let elsewhere = self.elsewhere[rank];
        let allowed = places_max - elsewhere.places;
        // Without a place there is no use for tokens.
        let usable = if places < allowed { kv_max.saturating_sub(elsewhere.kv) } else { 0 };
        (places.max(allowed), tokens.max(usable))
    }

    fn local(&self, rank: usize, (places_max, kv_max): (u64, u64)) -> LocalRank {
        let (places, tokens) = self.held(rank);
        let is_active = places > 0 || self.waiting > 0;
        let want = |max: u64, held: u64, waiting: u64| {
            let headroom = if is_active { (max / 8).max(1) } else { 0 };
            let is_starved = places == 0 && self.waiting > 0;
            let want = (held + waiting + headroom).min(max);
            Local { max, held, want: if is_starved { max + 1 } else { want } }
        };
        LocalRank {
            places: want(places_max, places, self.waiting.div_ceil(RANKS as u64)),
            kv: want(kv_max, tokens, self.waiting * 50),
            prefill: 0,
            kv_in_use: None,
        }
    }
}

fn engine(rank: usize) -> Arc<str> {
    Arc::from(format!("engine-{rank}:8000"))
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Most places and tokens at once, of replicas that know each other, under one load after the other
/// over a bad network: its longest delay, its losses, and whether later messages may be earlier.
/// What might be started counts, started or not.
fn peaks(
    seed: u64,
    count: usize,
    (places_max, kv_max): (u64, u64),
    (lasting_ms_max, tokens_max): (u64, u64),
    (delay_ms_max, loss_percent, is_disorderly): (u64, u32, bool),
    loads: &[Vec<u64>],
) -> (u64, u64) {
    let mut sim = Sim::new(seed, places_max);
    sim.kv_max = kv_max;
    sim.lasting_ms_max = lasting_ms_max;
    sim.tokens_max = tokens_max;
    for _ in 0..count {
        sim.join();
    }
    sim.run(ms(2_000));
    sim.forget_peaks();
    sim.network.delay_ms_max = delay_ms_max;
    sim.network.loss_percent = loss_percent;
    sim.network.is_disorderly = is_disorderly;
    for loads in loads {
        for (node, load) in sim.nodes.iter_mut().zip(loads) {
            node.load = *load;
        }
        sim.run(ms(300));
    }
    (sim.peak_usable, sim.peak_usable_tokens)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// The bound: never more than the limit (or one each) while the same replicas are there,
    /// whatever is late, lost or out of order, from idle to overload and back.
    #[test]
    fn the_limit_holds_in_sum(
        seed in any::<u64>(),
        count in 2_usize..6,
        places_max in 1_u64..12,
        delay_ms_max in 0_u64..60,
        loss_percent in 0_u32..30,
        is_disorderly in any::<bool>(),
        has_kv in any::<bool>(),
        lasting_ms_max in prop_oneof![Just(100), Just(1_000)],
        tokens_max in prop_oneof![Just(100), Just(950)],
        loads in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![0_u64..40, 0_u64..4], 5), 6,
        ),
    ) {
        let network = (delay_ms_max, loss_percent, is_disorderly);
        let limits = (places_max, if has_kv { KV_MAX } else { 0 });
        let requests = (lasting_ms_max, tokens_max);
        let (places, tokens) = peaks(seed, count, limits, requests, network, &loads);
        prop_assert!(places <= places_max.max(count as u64), "{places} places of {places_max}");
        // Else each may take a rank for empty, which has room for a request of any size.
        let is_shared = has_kv && places_max >= count as u64;
        prop_assert!(!is_shared || tokens <= KV_MAX, "{tokens} tokens");
    }

    /// While they come, one each may be too many; after that the limit holds again.
    #[test]
    fn joining_costs_one_place_each(
        seed in any::<u64>(),
        count in 2_usize..6,
        places_max in 1_u64..12,
        delay_ms_max in 0_u64..40,
    ) {
        let mut sim = Sim::new(seed, places_max);
        sim.network.delay_ms_max = delay_ms_max;
        for number in 0..count {
            sim.join();
            sim.nodes[number].load = 30;
            let pause = sim.network.random.u64(0..700);
            sim.run(ms(if number == 0 { 800 } else { pause }));
        }
        let most = places_max + count as u64 - 1;
        prop_assert!(sim.peak_places <= most, "{} of {most}", sim.peak_places);
        sim.run(ms(2_000));
        sim.forget_peaks();
        sim.run(ms(1_000));
        prop_assert!(sim.peak_places <= places_max.max(count as u64));
    }

    /// Replicas that know each other find the ranks at different times, as their probes end. Once
    /// each has found a rank, and its messages have arrived, the limit holds.
    #[test]
    fn replicas_find_a_rank_at_different_times(
        seed in any::<u64>(),
        count in 2_usize..6,
        places_max in 6_u64..12,
        delay_ms_max in 0_u64..40,
    ) {
        let mut sim = Sim::new(seed, places_max);
        sim.network.delay_ms_max = delay_ms_max;
        for number in 0..count {
            let id = ReplicaId(sim.network.random.u64(1..));
            sim.join_as(Replica::new(id, format!("node-{number}"), sim.now), 0);
        }
        sim.run(ms(2_000));
        let mut finds: Vec<(u64, usize)> = (0..count * RANKS)
            .map(|find| (sim.network.random.u64(0..400), find / RANKS))
            .collect();
        finds.sort_unstable();
        let begin = sim.now;
        for (at_ms, number) in finds {
            sim.run(Duration::from_nanos(begin.plus(ms(at_ms)).since(sim.now)));
            let node = &mut sim.nodes[number];
            node.replica.add_rank(&engine(node.rank_count), 0, sim.now);
            node.rank_count += 1;
            // Before any shard can choose the rank, as `Replicas::set_fleet`.
            sim.turn(number);
        }
        // Six messages, each after the pause of an idle replica.
        sim.run(ms(6 * (delay_ms_max + 20)));
        sim.forget_peaks();
        for node in &mut sim.nodes {
            node.load = 30;
        }
        sim.run(ms(900));
        prop_assert!(sim.peak_usable <= places_max, "{} of {places_max}", sim.peak_usable);
    }

    /// Parted, each side goes on alone; together again they come back under the limit, and to
    /// agreement.
    #[test]
    fn a_partition_heals(seed in any::<u64>(), count in 2_usize..5, places_max in 1_u64..12) {
        let mut sim = Sim::new(seed, places_max);
        for number in 0..count {
            sim.join();
            sim.nodes[number].load = 30;
        }
        sim.run(ms(1_000));
        sim.network.side[0] = 1;
        sim.run(ms(4_000));
        prop_assert_eq!(sim.nodes[0].replica.peers().len(), 0);
        prop_assert_eq!(sim.held(0), places_max * RANKS as u64, "alone it has all");
        sim.network.side[0] = 0;
        let hello = { let now = sim.now; sim.nodes[0].replica.connected(now) };
        sim.send(0, hello);
        sim.run(ms(1_000));
        sim.forget_peaks();
        sim.run(ms(1_000));
        let bound = places_max.max(count as u64);
        prop_assert!(sim.peak_places <= bound, "{} of {bound}", sim.peak_places);
        for node in &sim.nodes {
            prop_assert_eq!(node.replica.peers().len(), count - 1);
        }
    }
}

/// Once nine places of eight: claims of three places were overtaken by a message that acknowledged
/// a grant of two and, as nothing had changed since, did not name the rank.
#[test]
fn an_acknowledgement_that_overtakes_a_claim_frees_nothing() {
    let loads = [
        vec![30, 0, 3, 38, 27],
        vec![11, 26, 38, 6, 31],
        vec![5, 2, 26, 6, 11],
        vec![35, 20, 25, 12, 19],
        vec![11, 31, 16, 30, 12],
        vec![10, 26, 6, 4, 20],
    ];
    let network = (18, 17, true);
    let (places, _) = peaks(1_882_440_598_734_874_804, 5, (8, KV_MAX), (100, 100), network, &loads);
    assert!(places <= 8, "{places} places of 8");
}

#[test]
fn what_one_does_not_use_another_gets_and_gives_back() {
    let mut sim = Sim::new(7, 8);
    for _ in 0..4 {
        sim.join();
    }
    sim.run(ms(1_000));
    sim.nodes[0].load = 100;
    sim.run(ms(500));
    assert_eq!(sim.held(0), 8 * RANKS as u64, "all to the busy one");
    for node in &mut sim.nodes {
        node.load = 100;
    }
    sim.run(ms(500));
    let held: Vec<u64> = (0..4).map(|node| sim.held(node)).collect();
    assert_eq!(held, [2 * RANKS as u64; 4], "even shares under even load");
    assert!(sim.peak_places <= 8, "{}", sim.peak_places);
    // Little is lost to asking and giving back.
    for node in &mut sim.nodes {
        node.done = 0;
    }
    sim.run(ms(4_000));
    let done: u64 = sim.nodes.iter().map(|node| node.done).sum();
    let possible = 8 * RANKS as u64 * 4_000 / 51;
    assert!(done * 100 >= possible * 90, "{done} of {possible}");
}

#[test]
fn a_request_larger_than_the_whole_cache_gets_an_empty_rank() {
    let mut sim = Sim::new(3, 100);
    for _ in 0..3 {
        sim.join();
    }
    sim.run(ms(1_000));
    sim.nodes[0].load = 4;
    sim.run(ms(500));
    sim.nodes[0].load = 0;
    sim.tokens_min = 2 * KV_MAX;
    sim.tokens_max = 2 * KV_MAX;
    sim.nodes[2].load = 1;
    sim.run(ms(300));
    assert!(sim.nodes[2].done > 0, "{:?}", sim.nodes[2].elsewhere);
    assert!(sim.peak_tokens == 2 * KV_MAX, "one at a time");
}

#[test]
fn the_dead_and_the_leaving_are_forgotten() {
    let mut sim = Sim::new(5, 6);
    for number in 0..3 {
        sim.join();
        sim.nodes[number].load = 30;
    }
    sim.run(ms(1_000));
    sim.open_window(0, ms(60_000));
    sim.run(ms(50));
    assert!(sim.knows_window(1) && sim.knows_window(2));
    sim.nodes[0].is_up = false;
    sim.run(ms(2_000));
    assert!(sim.knows_window(1), "silent is not dead");
    sim.run(ms(1_500));
    assert!(!sim.knows_window(1) && !sim.knows_window(2));
    assert_eq!(sim.held(1) + sim.held(2), 6 * RANKS as u64, "its places are given to the others");
    let bye = sim.nodes[1].replica.leave();
    sim.nodes[1].is_up = false;
    sim.send(1, bye);
    sim.run(ms(200));
    assert_eq!(sim.held(2), 6 * RANKS as u64);
    assert!(sim.nodes[2].replica.peers().is_empty());
}

#[test]
fn windows_are_told_at_once_to_late_joiners_and_after_a_loss() {
    let mut sim = Sim::new(9, 4);
    sim.join();
    sim.join();
    sim.run(ms(1_000));
    sim.open_window(0, ms(900));
    sim.run(ms(4));
    assert!(sim.knows_window(1), "within the network's delay");
    sim.join();
    sim.run(ms(20));
    assert!(sim.knows_window(2), "a late joiner");
    sim.nodes[0].windows.clear();
    let now = sim.now;
    let edge = sim.nodes[0].replica.windows(&[], now);
    sim.send(0, edge);
    sim.run(ms(4));
    assert!(!sim.knows_window(1) && !sim.knows_window(2), "closed early");
    sim.network.loss_percent = 100;
    sim.open_window(0, ms(3_000));
    sim.run(ms(4));
    assert!(!sim.knows_window(1));
    sim.network.loss_percent = 0;
    sim.run(ms(1_100));
    assert!(sim.knows_window(1), "the next full report");
    sim.run(ms(2_000));
    assert!(!sim.knows_window(1), "it ends by the clock");
}
