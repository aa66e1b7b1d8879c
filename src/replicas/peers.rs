//! The known replicas and their reports. Sans-IO; bounded in replicas, ranks and windows.

use super::tally::MessageOutcome;
use super::wire::{Message, MessageKind, ReplicaId, UseWord, WindowLeg, WindowWord};
use forebay_base::NanosSinceStart;
use forebay_base::limits::{RANKS_MAX, REPLICAS_MAX};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A replica is gone after this silence: it should send a message every second.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(3);
/// Longest window of a peer, whatever a message specifies.
const WINDOW_MAX: Duration = Duration::from_secs(60 * 60);
/// Most windows per replica.
const WINDOWS_MAX: usize = RANKS_MAX;

/// All replicas that are alive.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    by_id: BTreeMap<ReplicaId, Peer>,
}

/// A replica that is alive.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) name: String,
    pub(crate) heard_at: NanosSinceStart,
    pub(crate) first_heard_at: NanosSinceStart,
    pub(crate) heard: MessageSequences,
    /// Replicas whose messages it receives.
    hears: Vec<ReplicaId>,
    /// By the position of the rank in this process.
    ranks: Vec<Option<PeerRank>>,
    windows: PeerWindows,
}

/// Sequence numbers of messages in both directions.
#[derive(Debug, Default)]
pub(crate) struct MessageSequences {
    /// Sequence number of its last message.
    seq: u64,
    /// Up to this message all its messages were received.
    pub(crate) whole_seq: u64,
    /// This router's last message that it has acknowledged in a message without a gap before it:
    /// its claims are not older.
    pub(crate) obeys_seq: u64,
}

/// Open windows of a replica by model.
#[derive(Debug, Default)]
struct PeerWindows {
    answer: HashMap<String, PeerWindow>,
    /// Windows of ranks that serve the prefill leg.
    prefill: HashMap<String, PeerWindow>,
}

/// Ends of an open window by origin. The longer end hides the shorter end of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerWindow {
    /// The replica has no room.
    pub(crate) queue_until: Option<NanosSinceStart>,
    /// An operator of the replica opened the window.
    pub(crate) hand_until: Option<NanosSinceStart>,
}

impl PeerWindow {
    fn of(window: &WindowWord, now: NanosSinceStart) -> Self {
        let end = |ms: u64| now.plus(Duration::from_millis(ms).min(WINDOW_MAX));
        Self {
            queue_until: (window.remaining_ms > window.hand_ms).then(|| end(window.remaining_ms)),
            hand_until: (window.hand_ms > 0).then(|| end(window.hand_ms)),
        }
    }

    fn until(self) -> Option<NanosSinceStart> {
        self.queue_until.max(self.hand_until)
    }

    fn is_open(self, now: NanosSinceStart) -> bool {
        self.until().is_some_and(|until| until > now)
    }

    /// The later end of each origin.
    fn joined(self, other: Self) -> Self {
        Self {
            queue_until: self.queue_until.max(other.queue_until),
            hand_until: self.hand_until.max(other.hand_until),
        }
    }
}

/// Load of the replica on a rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerRank {
    pub(crate) prefill: u64,
    pub(crate) places: PeerUse,
    pub(crate) kv: PeerUse,
}

/// Usage and claims for a limit of the rank.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PeerUse {
    pub(crate) held: u64,
    pub(crate) max: u64,
    pub(crate) claim: u64,
    pub(crate) want: u64,
    pub(crate) by: ReplicaId,
    pub(crate) grant: Option<u64>,
}

/// Effects of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerChange {
    pub(crate) outcome: MessageOutcome,
    /// The sender was unknown, asks for it, or names a rank for the first time and has dropped
    /// earlier reports of the rank: it needs a full report.
    pub(crate) wants_all: bool,
    pub(crate) windows: bool,
}

impl Peers {
    /// Replicas that are alive, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ReplicaId, &Peer)> {
        self.by_id.iter().map(|(id, peer)| (*id, peer))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// True if every replica received from is known here, and each has sent a full report.
    pub(crate) fn is_complete(&self, me: ReplicaId) -> bool {
        let is_here = |id: &ReplicaId| *id == me || self.by_id.contains_key(id);
        self.by_id.values().all(|peer| peer.heard.whole_seq > 0 && peer.hears.iter().all(is_here))
    }

    /// Has every replica acknowledged this router's message? Each report is later than the message.
    pub(crate) fn have_read(&self, seq: u64) -> bool {
        self.by_id.values().all(|peer| peer.heard.obeys_seq >= seq)
    }

    /// Processes a message. `position` returns a rank's position in this process.
    pub(crate) fn hear(
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
        if !is_new && message.seq <= peer.heard.seq {
            return nothing(MessageOutcome::Stale);
        }
        let mut named = message.ranks.iter().filter_map(|rank| position(&rank.worker, rank.dp));
        let names_more = named.any(|position| peer.rank(position).is_none());
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
            wants_all: is_new || names_more || kind == MessageKind::Hello,
            windows,
        }
    }

    /// True if messages of the replica arrive.
    pub(crate) fn knows(&self, id: ReplicaId) -> bool {
        self.by_id.contains_key(&id)
    }

    /// Removes silent replicas; returns their names.
    pub(crate) fn forget_silent(&mut self, now: NanosSinceStart) -> Vec<String> {
        let is_silent = |peer: &Peer| now > peer.heard_at.plus(GONE_AFTER);
        let gone = self.by_id.values().filter(|peer| is_silent(peer));
        let gone: Vec<String> = gone.map(|peer| peer.name.clone()).collect();
        self.by_id.retain(|_, peer| !is_silent(peer));
        gone
    }

    /// Ends of the longest windows of other replicas for these models.
    pub(crate) fn window(&self, leg: WindowLeg, models: &[&str]) -> PeerWindow {
        let windows = self.by_id.values().map(|peer| peer.window(leg, models));
        windows.fold(PeerWindow::default(), PeerWindow::joined)
    }

    /// Names of the replicas that hold a window of these models open.
    pub(crate) fn window_holders(
        &self,
        leg: WindowLeg,
        models: &[&str],
        now: NanosSinceStart,
    ) -> Vec<String> {
        let holders = self.by_id.values().filter(|peer| peer.window(leg, models).is_open(now));
        holders.map(|peer| peer.name.clone()).collect()
    }
}

impl Peer {
    fn new(now: NanosSinceStart) -> Self {
        Self {
            name: String::new(),
            heard_at: now,
            first_heard_at: now,
            heard: MessageSequences::default(),
            hears: Vec::new(),
            ranks: Vec::new(),
            windows: PeerWindows::default(),
        }
    }

    pub(crate) fn rank(&self, position: usize) -> Option<&PeerRank> {
        self.ranks.get(position)?.as_ref()
    }

    fn window(&self, leg: WindowLeg, models: &[&str]) -> PeerWindow {
        let windows = self.windows.of(leg);
        let windows = models.iter().filter_map(|model| windows.get(*model).copied());
        windows.fold(PeerWindow::default(), PeerWindow::joined)
    }

    /// Open windows by model, with the rest in nanoseconds.
    pub(crate) fn windows(
        &self,
        now: NanosSinceStart,
    ) -> impl Iterator<Item = (&str, WindowLeg, u64)> {
        let of = |leg| self.windows.of(leg).iter().map(move |window| (leg, window));
        let open = of(WindowLeg::Answer).chain(of(WindowLeg::Prefill));
        open.filter_map(move |(leg, (model, window))| {
            let until = window.until().filter(|until| *until > now)?;
            Some((model.as_str(), leg, until.since(now)))
        })
    }

    /// Applies everything but the ranks.
    fn take(&mut self, kind: MessageKind, message: &Message, me: ReplicaId, now: NanosSinceStart) {
        self.name.clone_from(&message.name);
        self.heard_at = now;
        let is_whole = self.heard.is_whole(message);
        if kind == MessageKind::Load {
            // An acknowledgement counts only together with the claims, and a message contains only
            // changed claims: after a gap, the claim known here may predate a larger grant instead
            // of being the rest of it.
            if is_whole {
                let ours = message.heard.iter().find(|(id, _)| *id == me);
                self.heard.obeys_seq = ours.map_or(0, |(_, seq)| *seq);
            }
            self.hears = message.heard.iter().map(|(id, _)| *id).take(REPLICAS_MAX).collect();
        }
        if message.full {
            self.ranks.clear();
            self.windows = PeerWindows::default();
        }
        for (leg, window) in message.windows() {
            self.windows.take(leg, window, now);
        }
    }
}

impl MessageSequences {
    /// Records a message; true if no message before it is missing. After a gap the message is
    /// applied, but the lost message may matter: only the next full message closes the gap.
    fn is_whole(&mut self, message: &Message) -> bool {
        let is_next = self.seq > 0 && self.whole_seq == self.seq;
        let is_whole = message.full || is_next && message.seq == self.seq.saturating_add(1);
        if is_whole {
            self.whole_seq = message.seq;
        }
        self.seq = message.seq;
        is_whole
    }
}

impl PeerWindows {
    const fn of(&self, leg: WindowLeg) -> &HashMap<String, PeerWindow> {
        match leg {
            WindowLeg::Answer => &self.answer,
            WindowLeg::Prefill => &self.prefill,
        }
    }

    fn take(&mut self, leg: WindowLeg, window: &WindowWord, now: NanosSinceStart) {
        let windows = match leg {
            WindowLeg::Answer => &mut self.answer,
            WindowLeg::Prefill => &mut self.prefill,
        };
        let received = PeerWindow::of(window, now);
        for model in &window.models {
            if !received.is_open(now) {
                windows.remove(model);
            } else if let Some(known) = windows.get_mut(model) {
                *known = received;
            } else {
                if windows.len() >= WINDOWS_MAX {
                    windows.retain(|_, window| window.is_open(now));
                }
                if windows.len() < WINDOWS_MAX {
                    windows.insert(model.clone(), received);
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
            let until = |leg| Some(peers.window(leg, &["m"]).until()?.since(now));
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

    /// The window of an operator keeps its origin. A message of a replica without `hand_ms` is a
    /// queue's.
    #[test]
    fn a_window_by_hand_is_told_from_a_full_queue() {
        let now = NanosSinceStart(5);
        let ms = |ms: u64| now.plus(Duration::from_millis(ms));
        let received = |member: &str| {
            let mut peers = Peers::default();
            let text = format!(
                r#"{{"replica":"2","name":"n","seq":1,"windows":[{{"models":["m"],{member}}}]}}"#
            );
            let message = Message::decode(text.as_bytes()).unwrap();
            peers.hear(MessageKind::Window, &message, ReplicaId(1), now, |_, _| None);
            let holders = peers.window_holders(WindowLeg::Answer, &["m"], now);
            assert_eq!(holders.is_empty(), !peers.window(WindowLeg::Answer, &["m"]).is_open(now));
            peers.window(WindowLeg::Answer, &["m"])
        };
        for (member, queue_until, hand_until) in [
            (r#""remaining_ms":7"#, Some(ms(7)), None),
            (r#""remaining_ms":7,"hand_ms":7"#, None, Some(ms(7))),
            (r#""remaining_ms":9,"hand_ms":7"#, Some(ms(9)), Some(ms(7))),
            (r#""remaining_ms":0,"hand_ms":0"#, None, None),
        ] {
            assert_eq!(received(member), PeerWindow { queue_until, hand_until }, "{member}");
        }
        let far = format!(r#""remaining_ms":{0},"hand_ms":{0}"#, u64::MAX);
        assert_eq!(received(&far).until(), Some(now.plus(WINDOW_MAX)), "bounded");
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
            peers.iter().next().map(|(_, peer)| peer.heard.obeys_seq).unwrap()
        };
        assert_eq!(obeys(1, true, 3), 3);
        assert_eq!(obeys(2, false, 4), 4);
        assert_eq!(obeys(4, false, 6), 4, "the third is missing");
        assert_eq!(obeys(3, false, 5), 4, "and too late");
        assert_eq!(obeys(5, false, 7), 4, "still");
        assert_eq!(obeys(6, true, 8), 8, "this one says all");
    }
}
