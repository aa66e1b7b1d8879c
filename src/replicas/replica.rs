//! The state machine of a replica, without sockets and clocks: messages and turns in, messages and
//! allowances out.

use super::account::{Account, AccountReport, OtherReport, OwnUsage, SharedLimit, steward};
use super::overcount::{CountedUse, Overcount};
use super::own_load::{ForeignUsage, Local, LocalRank, LocalWindow};
use super::peers::{GONE_AFTER, PeerChange, PeerRank, PeerUse, Peers};
use super::tally::{MessageOutcome, Tally};
use super::wire::{Message, MessageKind, RankWord, ReplicaId, UseWord, WindowLeg, WindowWord};
use forebay_base::NanosSinceStart;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use twox_hash::XxHash3_64;

/// Interval of full reports.
const FULL_PERIOD: Duration = Duration::from_secs(1);
/// Shortest time between turns.
const TURN_MIN: Duration = Duration::from_millis(5);
/// Turn intervals while nothing changes, and without other replicas.
const TURN_IDLE: Duration = Duration::from_millis(20);
const TURN_ALONE: Duration = Duration::from_millis(250);
/// Further time per rank in the last message: at most 10,000 ranks per second.
const TURN_PER_RANK: Duration = Duration::from_micros(100);
/// Time after which a replica counts as alone: the first without a connection, the second when
/// connected.
pub(crate) const JOIN_TIME_MAX: Duration = Duration::from_millis(500);
const ANSWER_TIME_MAX: Duration = Duration::from_millis(150);
/// Smallest extension of a window that is published again.
const LONGER_MIN: Duration = Duration::from_millis(50);

/// A message to publish.
pub type Outgoing = (MessageKind, Vec<u8>);

/// This router among its replicas.
#[derive(Debug)]
pub struct Replica {
    author: Author,
    peers: Peers,
    ranks: Vec<ReplicaRank>,
    positions: HashMap<Arc<str>, Vec<(u32, usize)>>,
    told_windows: Vec<LocalWindow>,
    turns: Turns,
    /// No replica is known to exist of which nothing is known, as of the last turn.
    knows_all: bool,
    tally: Tally,
}

/// Sender fields of this router's messages.
#[derive(Debug)]
struct Author {
    id: ReplicaId,
    name: String,
    /// Number of the last message.
    seq: u64,
}

/// Times of the next turns.
#[derive(Debug)]
struct Turns {
    /// Time of the next full report.
    full_at: NanosSinceStart,
    next_at: NanosSinceStart,
    /// Earliest time of the next turn, whatever other replicas request.
    rested_at: NanosSinceStart,
    busy_until: NanosSinceStart,
    /// All reachable replicas should have answered by then.
    alone_at: NanosSinceStart,
}

impl Author {
    /// The next message, without content.
    fn message(&mut self) -> Message {
        self.seq += 1;
        let replica = self.id;
        let name = self.name.clone();
        let seq = self.seq;
        Message { replica, name, seq, ..Message::default() }
    }
}

#[derive(Debug)]
struct ReplicaRank {
    worker: Arc<str>,
    dp: u32,
    hash: u64,
    /// Number of the first message that names the rank. Reports of the rank before that may have
    /// been dropped here: the rank was unknown.
    named_seq: Option<u64>,
    places: Account,
    kv: Account,
    overcount: Overcount,
    /// Last published state of the rank.
    told: Option<RankWord>,
}

impl Replica {
    /// A replica without peers and without ranks.
    #[must_use]
    pub fn new(id: ReplicaId, name: String, now: NanosSinceStart) -> Self {
        Self {
            author: Author { id, name, seq: 0 },
            peers: Peers::default(),
            ranks: Vec::new(),
            positions: HashMap::new(),
            told_windows: Vec::new(),
            turns: Turns {
                full_at: now,
                next_at: now,
                rested_at: now,
                busy_until: now,
                alone_at: now.plus(JOIN_TIME_MAX),
            },
            knows_all: true,
            tally: Tally::default(),
        }
    }

    pub(crate) const fn id(&self) -> ReplicaId {
        self.author.id
    }

    pub(crate) fn name(&self) -> &str {
        &self.author.name
    }

    pub(crate) const fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(crate) const fn tally(&self) -> &Tally {
        &self.tally
    }

    pub(crate) const fn tally_mut(&mut self) -> &mut Tally {
        &mut self.tally
    }

    /// When the next turn is due.
    pub(crate) const fn turn_at(&self) -> NanosSinceStart {
        self.turns.next_at
    }

    /// Adds a rank of this router; ranks come in the order of their numbers and stay.
    pub fn add_rank(&mut self, worker: &Arc<str>, dp: u32, now: NanosSinceStart) {
        let mut name = worker.as_bytes().to_vec();
        name.extend_from_slice(&dp.to_le_bytes());
        self.positions.entry(Arc::clone(worker)).or_default().push((dp, self.ranks.len()));
        self.ranks.push(ReplicaRank {
            worker: Arc::clone(worker),
            dp,
            hash: XxHash3_64::oneshot(&name),
            named_seq: None,
            places: Account::default(),
            kv: Account::default(),
            overcount: Overcount::default(),
            told: None,
        });
        self.turns.next_at = now;
        self.turns.full_at = now;
    }

    /// Number of other known replicas.
    #[must_use]
    pub fn others_count(&self) -> usize {
        self.peers.len()
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.ranks.len()
    }

    /// Called after each connection: asks all replicas for full reports.
    pub fn connected(&mut self, now: NanosSinceStart) -> Option<Outgoing> {
        self.turns.alone_at = self.turns.alone_at.min(now.plus(ANSWER_TIME_MAX));
        self.repeat_all(now);
        self.write(MessageKind::Hello, |_| ())
    }

    /// Makes the next turn send a full report.
    pub(crate) fn repeat_all(&mut self, now: NanosSinceStart) {
        self.turns.full_at = now;
        self.turns.next_at = now.max(self.turns.rested_at);
    }

    /// Without a connection: this replica counts as alone until it is connected.
    pub(crate) fn unreachable(&mut self, now: NanosSinceStart) {
        if self.turns.alone_at > now {
            self.turns.alone_at = now;
            self.turns.next_at = now;
        }
    }

    /// The message of a replica that leaves.
    pub(crate) fn leave(&mut self) -> Option<Outgoing> {
        self.write(MessageKind::Bye, |_| ())
    }

    /// Processes a message from NATS. True if windows may have changed.
    pub fn hear(&mut self, subject: &str, bytes: &[u8], now: NanosSinceStart) -> bool {
        let Some(kind) = MessageKind::of_subject(subject) else {
            self.tally.count(None, MessageOutcome::Foreign);
            return false;
        };
        let heard = match Message::decode(bytes) {
            Ok(message) => {
                self.tally.count_unknown_fields(message.unknown.len());
                let positions = &self.positions;
                let position = |worker: &str, dp: u32| {
                    let ranks = positions.get(worker)?;
                    ranks.iter().find(|(number, _)| *number == dp).map(|(_, position)| *position)
                };
                self.peers.hear(kind, &message, self.author.id, now, position)
            }
            Err(error) => {
                let outcome = MessageOutcome::of_fault(&error);
                PeerChange { outcome, wants_all: false, windows: false }
            }
        };
        self.tally.count(Some(kind), heard.outcome);
        if heard.wants_all {
            self.repeat_all(now);
        }
        heard.windows
    }

    /// Compares this router's open windows with the published windows. The returned changes must be
    /// published at once.
    pub(crate) fn windows(
        &mut self,
        open: &[LocalWindow],
        now: NanosSinceStart,
    ) -> Option<Outgoing> {
        let told = &self.told_windows;
        let is_told = |window: &&LocalWindow| {
            let before = told.iter().find(|before| before.pool == window.pool);
            before.is_some_and(|before| is_covered(window, before))
        };
        let opened = open.iter().filter(|window| !is_told(window)).map(|w| (w.leg, word(w, now)));
        let is_open = |pool| open.iter().any(|window| window.pool == pool);
        let early = told.iter().filter(|before| before.until > now && !is_open(before.pool));
        let closed = early.map(|before| {
            (before.leg, WindowWord { models: before.models.clone(), ..WindowWord::default() })
        });
        let changed: Vec<(WindowLeg, WindowWord)> = opened.chain(closed).collect();
        // Keeps the published end time as the reference for later extensions.
        let kept = |window: &LocalWindow| {
            let before = self.told_windows.iter().find(|before| before.pool == window.pool);
            before.filter(|before| is_covered(window, before)).cloned()
        };
        self.told_windows =
            open.iter().map(|window| kept(window).unwrap_or_else(|| window.clone())).collect();
        if changed.is_empty() {
            return None;
        }
        self.write(MessageKind::Window, |message| message.set_windows(changed))
    }

    /// A turn: decides this router's part of each rank, and returns a message with the changes.
    /// `local` has a value for each rank. Returns the names of replicas that are gone.
    pub fn turn(
        &mut self,
        local: &[LocalRank],
        open: &[LocalWindow],
        now: NanosSinceStart,
    ) -> (Vec<String>, Option<Outgoing>) {
        if now > self.turns.next_at.plus(GONE_AFTER) {
            // The process was suspended. Messages of other replicas since then are unread.
            self.turns.alone_at = now.plus(JOIN_TIME_MAX);
        }
        let gone = self.peers.forget_silent(now);
        self.knows_all = now >= self.turns.alone_at && self.peers.is_complete(self.author.id);
        let heard: Vec<(ReplicaId, u64)> =
            self.peers.iter().map(|(id, peer)| (id, peer.heard.whole_seq)).collect();
        let is_full = now >= self.turns.full_at;
        if is_full {
            let next_seq = self.author.seq + 1;
            self.ranks.iter_mut().for_each(|rank| _ = rank.named_seq.get_or_insert(next_seq));
        }
        let mut words = Vec::new();
        for position in 0..self.ranks.len().min(local.len()) {
            let Some(local) = local.get(position) else { continue };
            let word = self.turn_of(position, local, &heard, now);
            let Some(rank) = self.ranks.get_mut(position) else { continue };
            if is_full || rank.told.as_ref() != Some(&word) {
                rank.told = Some(word.clone());
                words.push(word);
            }
        }
        self.pace(words.len(), is_full, now);
        let is_needed = is_full || !words.is_empty() && !self.peers.is_empty();
        let windows = if is_full {
            open.iter().map(|window| (window.leg, self::word(window, now))).collect()
        } else {
            Vec::new()
        };
        if is_full {
            self.told_windows = open.to_vec();
        }
        let message = is_needed.then(|| {
            self.write(MessageKind::Load, |message| {
                message.full = is_full;
                message.heard = heard;
                message.ranks = words;
                message.set_windows(windows);
            })
        });
        (gone, message.flatten())
    }

    fn pace(&mut self, words: usize, is_full: bool, now: NanosSinceStart) {
        if is_full {
            self.turns.full_at = now.plus(FULL_PERIOD);
        } else if words > 0 {
            self.turns.busy_until = now.plus(FULL_PERIOD);
        }
        let pause = match () {
            () if self.peers.is_empty() => TURN_ALONE,
            () if now >= self.turns.busy_until => TURN_IDLE,
            () => TURN_MIN,
        };
        let words = u32::try_from(words).unwrap_or(u32::MAX);
        self.turns.rested_at = now.plus(TURN_MIN);
        self.turns.next_at = now.plus(pause.max(TURN_PER_RANK.saturating_mul(words)));
        if self.peers.is_empty() && self.turns.alone_at > now {
            self.turns.next_at = self.turns.next_at.min(self.turns.alone_at);
        }
    }

    fn turn_of(
        &mut self,
        position: usize,
        local: &LocalRank,
        heard: &[(ReplicaId, u64)],
        now: NanosSinceStart,
    ) -> RankWord {
        let others_places = self.others(position, |rank| &rank.places);
        let others_kv = self.others(position, |rank| &rank.kv);
        let counted = self.counted(position, local);
        let replicas = u64::try_from(self.peers.len()).unwrap_or(u64::MAX).saturating_add(1);
        let id = self.author.id;
        let next_seq = self.author.seq + 1;
        let is_alone = self.peers.is_empty() && now >= self.turns.alone_at;
        let Some(rank) = self.ranks.get_mut(position) else {
            forebay_base::count_broken_invariant();
            return RankWord {
                worker: String::new(),
                dp: 0,
                prefill: 0,
                places: UseWord::default(),
                kv: UseWord::default(),
            };
        };
        let knows_all = self.knows_all
            && rank.named_seq.is_some_and(|named_seq| self.peers.have_read(named_seq));
        rank.overcount.observe(local.kv_in_use, counted);
        let kv_max = rank.overcount.limit(local.kv.max, replicas, now);
        let own = |of: &Local, all: u64, unheard_max: u64| OwnUsage {
            id,
            limit: SharedLimit { each: of.max, all },
            held: of.held,
            want: of.want,
            unheard_max: (!is_alone && !knows_all).then_some(unheard_max),
            knows_all,
            next_seq,
            now,
        };
        // A single place, whatever the size of its request.
        let places = use_word(
            &local.places,
            || {
                rank.places.turn(
                    &own(&local.places, local.places.max, 1),
                    rank.hash,
                    &others_places,
                )
            },
            heard,
        );
        let kv = use_word(
            &local.kv,
            || rank.kv.turn(&own(&local.kv, kv_max, u64::MAX), rank.hash, &others_kv),
            heard,
        );
        RankWord {
            worker: rank.worker.to_string(),
            dp: rank.dp,
            prefill: local.prefill,
            places,
            kv,
        }
    }

    /// Reports of other replicas that have a limit there too.
    fn others(&self, position: usize, of: impl Fn(&PeerRank) -> &PeerUse) -> Vec<OtherReport> {
        let other = |(id, peer): (ReplicaId, &super::peers::Peer)| {
            let said = of(peer.rank(position)?);
            (said.max > 0).then_some(OtherReport {
                id,
                held: said.held,
                claim: said.claim,
                want: said.want,
                by: said.by,
                grant: said.grant,
                obeys_seq: peer.heard.obeys_seq,
            })
        };
        self.peers.iter().filter_map(other).collect()
    }

    /// Usage that counts as elsewhere, after a turn: the limit less this replica's part, or without
    /// a limit the other replicas' reported usage.
    #[must_use]
    pub fn elsewhere(&self, position: usize, local: &LocalRank) -> ForeignUsage {
        let Some(rank) = self.ranks.get(position) else { return ForeignUsage::default() };
        let reported = self.reported(position);
        let less = |max: u64, account: &Account, reported: u64| {
            if max == 0 { reported } else { max.saturating_sub(account.allowed()) }
        };
        ForeignUsage {
            places: less(local.places.max, &rank.places, reported.places),
            kv: less(local.kv.max, &rank.kv, reported.kv),
            ..reported
        }
    }

    /// Load of all replicas on a rank.
    fn counted(&self, position: usize, local: &LocalRank) -> CountedUse {
        let ForeignUsage { places, kv, prefill } = self.reported(position);
        CountedUse {
            requests: places.saturating_add(local.places.held),
            kv_tokens: kv.saturating_add(local.kv.held),
            prefill_tokens: prefill.saturating_add(local.prefill),
        }
    }

    /// Load of the other replicas on a rank.
    pub(crate) fn reported(&self, position: usize) -> ForeignUsage {
        let ranks = self.peers.iter().filter_map(|(_, peer)| peer.rank(position));
        ranks.fold(ForeignUsage::default(), |sum, rank| ForeignUsage {
            places: sum.places.saturating_add(rank.places.held),
            kv: sum.kv.saturating_add(rank.kv.held),
            prefill: sum.prefill.saturating_add(rank.prefill),
        })
    }

    /// The steward of a rank.
    pub(crate) fn steward(&self, position: usize) -> Option<ReplicaId> {
        let rank = self.ranks.get(position)?;
        let others = self.others(position, |rank| &rank.places);
        steward(rank.hash, others.iter().map(|other| other.id).chain([self.author.id]))
    }

    fn write(&mut self, kind: MessageKind, fill: impl FnOnce(&mut Message)) -> Option<Outgoing> {
        let mut message = self.author.message();
        fill(&mut message);
        match message.encode() {
            Ok(bytes) => Some((kind, bytes)),
            Err(_) => {
                self.tally.count(Some(kind), MessageOutcome::TooLongToSend);
                None
            }
        }
    }
}

/// Whether the published window includes this window.
fn is_covered(window: &LocalWindow, published: &LocalWindow) -> bool {
    let hand_end = |window: &LocalWindow| window.hand_until.unwrap_or_default();
    window.until <= published.until.plus(LONGER_MIN)
        && hand_end(window) <= hand_end(published).plus(LONGER_MIN)
}

fn word(window: &LocalWindow, now: NanosSinceStart) -> WindowWord {
    let rest = |until: NanosSinceStart| until.since(now).div_ceil(1_000_000);
    let remaining_ms = rest(window.until);
    let hand_ms = window.hand_until.map_or(0, rest);
    WindowWord { models: window.models.clone(), remaining_ms, hand_ms }
}

/// Without a limit no part is computed.
fn use_word(
    local: &Local,
    turn: impl FnOnce() -> AccountReport,
    heard: &[(ReplicaId, u64)],
) -> UseWord {
    let held = local.held;
    if local.max == 0 {
        return UseWord { held, ..UseWord::default() };
    }
    let told = turn();
    let number = |id: ReplicaId| {
        heard.iter().position(|(replica, _)| *replica == id).map_or(0, |position| position + 1)
    };
    let grants = told.grants.iter().map(|(id, granted)| (number(*id), *granted)).collect();
    let claim = told.claim;
    let by = number(told.by);
    UseWord { held, max: local.max, claim, want: local.want, by, grants }
}
