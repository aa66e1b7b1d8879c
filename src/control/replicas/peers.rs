//! The other replicas, as far as they were heard. Sans-IO; bounded in replicas, ranks and windows.

use super::tally::MessageOutcome;
use super::wire::{Message, MessageKind, ReplicaId, UseWord, WindowLeg};
use forebay_base::NanosSinceStart;
use forebay_base::limits::{RANKS_MAX, REPLICAS_MAX};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A replica that says nothing for so long is gone: it should say something every second.
pub(super) const GONE_AFTER: Duration = Duration::from_secs(3);
/// Nobody's window lasts longer, whatever a message says.
const WINDOW_MAX: Duration = Duration::from_secs(60 * 60);
/// Models of one replica whose windows are remembered.
const WINDOWS_MAX: usize = RANKS_MAX;

/// All that are alive.
#[derive(Debug, Default)]
pub(super) struct Peers {
    by_id: BTreeMap<ReplicaId, Peer>,
}

/// One of them.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) heard_at: NanosSinceStart,
    pub(super) first_heard_at: NanosSinceStart,
    /// Its last message.
    pub(super) seq: u64,
    /// All up to this one was heard.
    pub(super) whole_seq: u64,
    /// Our last message up to which it had heard all when it last was whole here: its claims are
    /// not older.
    pub(super) obeys_seq: u64,
    /// Whom it hears.
    hears: Vec<ReplicaId>,
    /// By the position of the rank in this process.
    ranks: Vec<Option<PeerRank>>,
    /// Until when, by model.
    windows: HashMap<String, NanosSinceStart>,
    /// The same for the ranks that prefill for others.
    prefill_windows: HashMap<String, NanosSinceStart>,
}

/// What it has on a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerRank {
    pub(super) prefill: u64,
    pub(super) places: PeerUse,
    pub(super) kv: PeerUse,
}

/// The same for one of the rank's limits.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerUse {
    pub(super) held: u64,
    pub(super) max: u64,
    pub(super) claim: u64,
    pub(super) want: u64,
    pub(super) by: ReplicaId,
    pub(super) grant: Option<u64>,
}

/// What a message changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerChange {
    pub(super) outcome: MessageOutcome,
    /// Its sender was not known, or asks: it should be told everything.
    pub(super) wants_all: bool,
    pub(super) windows: bool,
}

impl Peers {
    /// Those who are alive, in the order of their ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ReplicaId, &Peer)> {
        self.by_id.iter().map(|(id, peer)| (*id, peer))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Nobody hears anybody who is not here, and each has said all it has.
    pub(super) fn is_complete(&self, me: ReplicaId) -> bool {
        let is_here = |id: &ReplicaId| *id == me || self.by_id.contains_key(id);
        self.by_id.values().all(|peer| peer.whole_seq > 0 && peer.hears.iter().all(is_here))
    }

    /// Takes a message in. `position` tells where a rank is in this process.
    pub(super) fn hear(
        &mut self,
        kind: MessageKind,
        message: &Message,
        me: ReplicaId,
        now: NanosSinceStart,
        position: impl Fn(&str, u32) -> Option<usize>,
    ) -> PeerChange {
        let nothing = |outcome| PeerChange { outcome, wants_all: false, windows: false };
        if message.replica == me {
            return nothing(MessageOutcome::Own);
        }
        let id = message.replica;
        if kind == MessageKind::Bye {
            let known = self.by_id.remove(&id);
            return PeerChange { windows: known.is_some(), ..nothing(MessageOutcome::Taken) };
        }
        let is_new = !self.by_id.contains_key(&id);
        if is_new && self.by_id.len() >= REPLICAS_MAX {
            return nothing(MessageOutcome::TooMany);
        }
        let peer = self.by_id.entry(id).or_insert_with(|| Peer::new(now));
        if !is_new && message.seq <= peer.seq {
            return nothing(MessageOutcome::Stale);
        }
        peer.take(kind, message, me, now);
        for rank in &message.ranks {
            if let Some(position) = position(&rank.worker, rank.dp).filter(|at| *at < RANKS_MAX) {
                if peer.ranks.len() <= position {
                    peer.ranks.resize(position + 1, None);
                }
                if let Some(slot) = peer.ranks.get_mut(position) {
                    *slot = Some(PeerRank {
                        prefill: rank.prefill,
                        places: of_word(&rank.places, message, me),
                        kv: of_word(&rank.kv, message, me),
                    });
                }
            }
        }
        let windows = message.full || message.windows().next().is_some();
        PeerChange {
            outcome: MessageOutcome::Taken,
            wants_all: is_new || kind == MessageKind::Hello,
            windows,
        }
    }

    /// Forgets those who are silent; their names.
    pub(super) fn forget_silent(&mut self, now: NanosSinceStart) -> Vec<String> {
        let is_silent = |peer: &Peer| now > peer.heard_at.plus(GONE_AFTER);
        let gone = self.by_id.values().filter(|peer| is_silent(peer));
        let gone: Vec<String> = gone.map(|peer| peer.name.clone()).collect();
        self.by_id.retain(|_, peer| !is_silent(peer));
        gone
    }

    /// Until when others have a window of one of these models open.
    pub(super) fn window_until(&self, leg: WindowLeg, models: &[&str]) -> Option<NanosSinceStart> {
        let of_peer = |peer: &Peer| {
            let windows = match leg {
                WindowLeg::Answer => &peer.windows,
                WindowLeg::Prefill => &peer.prefill_windows,
            };
            models.iter().filter_map(|model| windows.get(*model).copied()).max()
        };
        self.by_id.values().filter_map(of_peer).max()
    }
}

impl Peer {
    fn new(now: NanosSinceStart) -> Self {
        Self {
            name: String::new(),
            heard_at: now,
            first_heard_at: now,
            seq: 0,
            whole_seq: 0,
            obeys_seq: 0,
            hears: Vec::new(),
            ranks: Vec::new(),
            windows: HashMap::new(),
            prefill_windows: HashMap::new(),
        }
    }

    pub(super) fn rank(&self, position: usize) -> Option<&PeerRank> {
        self.ranks.get(position)?.as_ref()
    }

    /// Windows that are open, by model.
    pub(super) fn windows(
        &self,
        now: NanosSinceStart,
    ) -> impl Iterator<Item = (&str, WindowLeg, u64)> {
        let answer = self.windows.iter().map(|window| (WindowLeg::Answer, window));
        let prefill = self.prefill_windows.iter().map(|window| (WindowLeg::Prefill, window));
        let open = answer.chain(prefill).filter(move |(_, (_, until))| **until > now);
        open.map(move |(leg, (model, until))| (model.as_str(), leg, until.since(now)))
    }

    /// Everything but the ranks.
    fn take(&mut self, kind: MessageKind, message: &Message, me: ReplicaId, now: NanosSinceStart) {
        self.name.clone_from(&message.name);
        self.heard_at = now;
        // After a gap the message is taken, but what was lost may matter: only the next full one
        // makes the picture whole.
        let is_next = self.seq > 0 && self.whole_seq == self.seq;
        let is_whole = message.full || is_next && message.seq == self.seq.saturating_add(1);
        if is_whole {
            self.whole_seq = message.seq;
        }
        self.seq = message.seq;
        if kind == MessageKind::Load {
            // What it obeys counts together with its claims, and of those a message names only what
            // changed: after a gap the claim known here may be one of before a larger grant, not
            // what it has left of it.
            if is_whole {
                let ours = message.heard.iter().find(|(id, _)| *id == me);
                self.obeys_seq = ours.map_or(0, |(_, seq)| *seq);
            }
            self.hears = message.heard.iter().map(|(id, _)| *id).take(REPLICAS_MAX).collect();
        }
        if message.full {
            self.ranks.clear();
            self.windows.clear();
            self.prefill_windows.clear();
        }
        for (leg, window) in message.windows() {
            let windows = match leg {
                WindowLeg::Answer => &mut self.windows,
                WindowLeg::Prefill => &mut self.prefill_windows,
            };
            let remaining = Duration::from_millis(window.remaining_ms).min(WINDOW_MAX);
            let until = now.plus(remaining);
            for model in &window.models {
                if remaining.is_zero() {
                    windows.remove(model);
                } else if let Some(known) = windows.get_mut(model) {
                    *known = until;
                } else {
                    if windows.len() >= WINDOWS_MAX {
                        windows.retain(|_, until| *until > now);
                    }
                    if windows.len() < WINDOWS_MAX {
                        windows.insert(model.clone(), until);
                    }
                }
            }
        }
    }
}

fn of_word(word: &UseWord, message: &Message, me: ReplicaId) -> PeerUse {
    let is_me = |number: usize| message.replica_at(number) == Some(me);
    PeerUse {
        held: word.held,
        max: word.max,
        claim: word.claim,
        want: word.want,
        by: message.replica_at(word.by).unwrap_or_default(),
        grant: word.grants.iter().find(|(number, _)| is_me(*number)).map(|(_, granted)| *granted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_prefill_ranks_are_not_those_of_the_models() {
        let heard = |text: &str| {
            let mut peers = Peers::default();
            let message = Message::decode(text.as_bytes()).unwrap();
            let now = NanosSinceStart(5);
            peers.hear(MessageKind::Window, &message, ReplicaId(1), now, |_, _| None);
            let until = |leg| peers.window_until(leg, &["m"]).map(|until| until.since(now));
            (until(WindowLeg::Answer), until(WindowLeg::Prefill))
        };
        let words = |field: &str| {
            format!(
                r#"{{"replica":"2","name":"n","seq":1,"{field}":[{{"models":["m"],"remaining_ms":1}}]}}"#
            )
        };
        assert_eq!(heard(&words("windows")), (Some(1_000_000), None));
        assert_eq!(heard(&words("prefill_windows")), (None, Some(1_000_000)));
    }

    #[test]
    fn what_it_obeys_counts_only_while_nothing_of_it_is_missing() {
        let mut peers = Peers::default();
        let mut obeys = |seq: u64, full: bool, heard: u64| {
            let text = format!(
                r#"{{"replica":"2","name":"n","seq":{seq},"full":{full},"heard":[["1",{heard}]]}}"#
            );
            let message = Message::decode(text.as_bytes()).unwrap();
            peers.hear(MessageKind::Load, &message, ReplicaId(1), NanosSinceStart(5), |_, _| None);
            peers.iter().next().map(|(_, peer)| peer.obeys_seq).unwrap()
        };
        assert_eq!(obeys(1, true, 3), 3);
        assert_eq!(obeys(2, false, 4), 4);
        assert_eq!(obeys(4, false, 6), 4, "the third is missing");
        assert_eq!(obeys(3, false, 5), 4, "and too late");
        assert_eq!(obeys(5, false, 7), 4, "still");
        assert_eq!(obeys(6, true, 8), 8, "this one says all");
    }
}
