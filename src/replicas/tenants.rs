//! Limits of tenants, in sum over replicas. Each replica sends every second the cumulative usage of
//! each limited tenant. The increase since another replica's last message is deducted here too.
//! Requests in flight elsewhere count here until their replica reports otherwise or falls silent.
//! Without NATS each replica enforces the limits by itself. Sans-IO.
//!
//! Subject `<prefix>.v1.use`:
//! ```json
//! {"replica":"5be1c0ffee1560","tenants":[{"name":"a","requests":17,"tokens":9100,"in_flight":3}]}
//! ```

use super::wire::{ReplicaId, word_of};
use forebay_base::limits::{REPLICAS_MAX, TENANT_NAME_BYTES_MAX, TENANTS_MAX};
use forebay_base::{NanosSinceStart, TenantIndex};
use forebay_board::TenantBoard;
use forebay_fleet::tenant::{ANY_TENANT, Quota, Tenants};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;

/// Last word of the subject of these messages.
pub(crate) const USE: &str = "use";
/// Time between two messages of a replica.
const PERIOD: Duration = Duration::from_millis(900);
/// Time after which a silent replica is removed. Its next message is a new baseline.
const SILENT_MAX: Duration = Duration::from_secs(10);
/// Longest message that is read.
const USE_BYTES_MAX: usize = 64 * 1024;
/// Most requests in flight that a replica may report. The sum over all replicas fits into a
/// counter.
const IN_FLIGHT_SAID_MAX: u32 = 1 << 20;

/// Usage reported by other replicas.
#[derive(Debug, Default)]
pub(crate) struct TenantShare {
    by_replica: HashMap<ReplicaId, PeerTenants>,
    said_at: Option<NanosSinceStart>,
}

#[derive(Debug)]
struct PeerTenants {
    heard_at: NanosSinceStart,
    said: HashMap<TenantIndex, TenantUse>,
}

#[derive(Debug, Serialize, Deserialize)]
struct UseMessage {
    replica: ReplicaId,
    tenants: Vec<TenantWord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct TenantWord {
    name: String,
    #[serde(flatten)]
    used: TenantUse,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct TenantUse {
    requests: u64,
    /// Decreases if a request used fewer tokens than were charged.
    tokens: u64,
    #[serde(default)]
    in_flight: u32,
}

pub(crate) fn is_use(subject: &str) -> bool {
    word_of(subject) == Some(USE)
}

impl TenantShare {
    /// The message that is due; `None` without limits, or if it was sent recently.
    pub(crate) fn say(
        &mut self,
        me: ReplicaId,
        tenants: &Tenants,
        board: &TenantBoard,
        now: NanosSinceStart,
    ) -> Option<Vec<u8>> {
        if self.said_at.is_some_and(|at| now < at.plus(PERIOD)) {
            return None;
        }
        self.forget_silent(board, now);
        let words = limited(tenants).filter_map(|number| {
            let cell = board.of(number)?;
            let (requests, tokens) = cell.used();
            let in_flight = cell.in_flight().get();
            let used = TenantUse { requests, tokens, in_flight };
            Some(TenantWord { name: tenants.name(number).to_owned(), used })
        });
        let message = UseMessage { replica: me, tenants: words.collect() };
        if message.tenants.is_empty() {
            return None;
        }
        self.said_at = Some(now);
        serde_json::to_vec(&message).ok()
    }

    /// Applies a report of another replica; false if it is malformed.
    pub(crate) fn hear(
        &mut self,
        bytes: &[u8],
        tenants: &Tenants,
        board: &TenantBoard,
        now: NanosSinceStart,
    ) -> bool {
        if bytes.len() > USE_BYTES_MAX {
            return false;
        }
        let Ok(message) = serde_json::from_slice::<UseMessage>(bytes) else { return false };
        let is_long = |word: &TenantWord| word.name.len() > TENANT_NAME_BYTES_MAX;
        if message.tenants.len() > TENANTS_MAX || message.tenants.iter().any(is_long) {
            return false;
        }
        self.forget_silent(board, now);
        let is_known = self.by_replica.contains_key(&message.replica);
        if !is_known && self.by_replica.len() >= REPLICAS_MAX {
            return false;
        }
        let nothing = PeerTenants { heard_at: now, said: HashMap::new() };
        let peer = self.by_replica.entry(message.replica).or_insert(nothing);
        peer.heard_at = now;
        for TenantWord { name, mut used } in message.tenants {
            let number = match name.as_str() {
                ANY_TENANT => Some(TenantIndex::default()),
                name => tenants.with_table(name.as_bytes()),
            };
            let Some(number) = number else { continue };
            let Some(cell) = board.of(number) else { continue };
            used.in_flight = used.in_flight.min(IN_FLIGHT_SAID_MAX);
            let before = peer.said.insert(number, used);
            cell.in_flight_elsewhere(before.map_or(0, |before| before.in_flight), used.in_flight);
            // The first report of a replica is only a baseline: it has no start time.
            let Some(before) = before else { continue };
            let quota = tenants.get(number).map(|tenant| tenant.quota).unwrap_or_default();
            let requests = used.requests.wrapping_sub(before.requests).cast_signed();
            let tokens = used.tokens.wrapping_sub(before.tokens).cast_signed();
            cell.use_elsewhere(quota, now, requests, tokens);
        }
        true
    }

    /// Requests in flight at a silent replica have ended, or their end will never be reported.
    fn forget_silent(&mut self, board: &TenantBoard, now: NanosSinceStart) {
        self.by_replica.retain(|_, peer| {
            let is_there = now <= peer.heard_at.plus(SILENT_MAX);
            for (number, said) in peer.said.iter().filter(|_| !is_there) {
                if let Some(cell) = board.of(*number) {
                    cell.in_flight_elsewhere(said.in_flight, 0);
                }
            }
            is_there
        });
    }
}

/// Tenants with their own limit, and `*` if it has a limit.
fn limited(tenants: &Tenants) -> impl Iterator<Item = TenantIndex> {
    let numbered = tenants.all().iter().enumerate();
    numbered.filter_map(|(number, tenant)| {
        let number = TenantIndex::try_from_index(number)?;
        let has_limits = tenant.quota != Quota::default();
        (has_limits && tenant.billed == number).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::TenantConfig;
    use forebay_fleet::tenant::MinuteRate;

    fn tenants() -> Tenants {
        let table = |name: &str, requests, tokens| TenantConfig {
            name: name.to_owned(),
            requests_per_minute: requests,
            tokens_per_minute: tokens,
            ..TenantConfig::default()
        };
        let tables = [table("a", 10, 1_000), table("free", 0, 0), table("*", 5, 0)];
        Tenants::new(&Tenants::default(), &tables, None)
    }

    const A: TenantIndex = TenantIndex(1);

    fn at(millis: u64) -> NanosSinceStart {
        NanosSinceStart(millis * 1_000_000)
    }

    #[test]
    fn what_one_replica_takes_is_taken_at_the_other() {
        let tenants = tenants();
        let here = TenantBoard::new();
        let there = TenantBoard::new();
        let requests = MinuteRate::of(10).unwrap();
        let tokens = MinuteRate::of(1_000).unwrap();
        let mut author = TenantShare::default();
        let mut share = TenantShare::default();
        let mut tell = |now: u64| {
            let said = author.say(ReplicaId(7), &tenants, &there, at(now));
            said.is_some_and(|said| share.hear(&said, &tenants, &here, at(now)))
        };
        let left = |now: u64| {
            let cell = here.of(A).unwrap();
            (cell.requests(requests, at(now)).remaining, cell.tokens(tokens, at(now)).remaining)
        };
        let cell = there.of(A).unwrap();
        cell.take_request(requests, at(0)).unwrap();
        assert!(tell(0) && !tell(500), "said a moment ago");
        assert_eq!(left(0), (10, 1_000), "its beginning");
        let taken = [(); 3].map(|()| {
            cell.take_request(requests, at(1_000)).unwrap();
            cell.take_tokens(tokens, at(1_000), 200).unwrap()
        });
        assert!(tell(1_000));
        assert_eq!(left(1_000), (7, 400));
        // Less was used than taken.
        cell.correct_tokens(taken[2], at(1_900), 50);
        assert!(tell(1_900));
        assert_eq!(left(1_900).1, 400 + 150 + 15, "with what has flowed in");
        // After a silence, its word is a new beginning.
        cell.take_tokens(tokens, at(30_000), 500).unwrap();
        assert!(tell(30_000));
        assert_eq!(left(30_000).1, 1_000);
    }

    #[test]
    fn requests_in_flight_elsewhere_count_until_their_replica_is_silent() {
        let tenants = tenants();
        let here = TenantBoard::new();
        let there = TenantBoard::new();
        let mut author = TenantShare::default();
        let mut share = TenantShare::default();
        let mut tell = |now: u64| {
            let said = author.say(ReplicaId(7), &tenants, &there, at(now)).unwrap();
            assert!(share.hear(&said, &tenants, &here, at(now)));
        };
        let far = there.of(A).unwrap();
        let near = here.of(A).unwrap();
        assert!(far.enter(3) && far.enter(3));
        tell(0);
        assert!(near.enter(3), "one is left");
        assert!(!near.enter(3) && !near.enter(2) && !near.enter(1));
        far.in_flight().exit();
        tell(1_000);
        assert!(near.enter(3) && !near.enter(3));
        share.say(ReplicaId(8), &tenants, &here, at(11_001)).unwrap();
        assert!(near.enter(3), "the other fell silent");
        for number in 0..2 * REPLICAS_MAX {
            let lie = format!(
                "{{\"replica\":\"{number:x}\",\"tenants\":[{{\"name\":\"a\",\"requests\":0,\
                 \"tokens\":0,\"in_flight\":{}}}]}}",
                u32::MAX
            );
            share.hear(lie.as_bytes(), &tenants, &here, at(12_000));
        }
        assert!(!near.enter(3));
        share.say(ReplicaId(8), &tenants, &here, at(23_000)).unwrap();
        near.in_flight().exit();
        assert!(near.enter(3), "lies are forgotten too");
    }

    #[test]
    fn only_limited_tenants_are_told_and_lies_cost_a_minute_at_most() {
        let tenants = tenants();
        let board = TenantBoard::new();
        let mut share = TenantShare::default();
        let said = share.say(ReplicaId(1), &tenants, &board, at(0)).unwrap();
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("\"a\"") && said.contains("\"*\"") && !said.contains("free"));
        let word = |name: &str, requests: u64| {
            format!(
                "{{\"replica\":\"9\",\"tenants\":[{{\"name\":\"{name}\",\"requests\":{requests},\
                 \"tokens\":0}}]}}"
            )
        };
        for (name, requests) in [("a", 0), ("a", u64::MAX / 2), ("unknown", 3)] {
            assert!(share.hear(word(name, requests).as_bytes(), &tenants, &board, at(1)));
        }
        let rate = MinuteRate::of(10).unwrap();
        let standing = board.of(A).unwrap().requests(rate, at(1));
        assert_eq!((standing.remaining, standing.reset_ns), (0, 60_000_000_000));
        for number in 0..200_u64 {
            let requests = u64::MAX / 2 + number * 1_000;
            share.hear(word("a", requests).as_bytes(), &tenants, &board, at(1));
        }
        let standing = board.of(A).unwrap().requests(rate, at(1));
        assert_eq!(standing.reset_ns, 300_000_000_000, "many lies cost some minutes at most");
        for bad in ["", "{}", "[]", &word(&"x".repeat(100), 1), &" ".repeat(USE_BYTES_MAX + 1)] {
            assert!(!share.hear(bad.as_bytes(), &tenants, &board, at(1)), "{bad:.20}");
        }
        for number in 0..2 * REPLICAS_MAX {
            let other = word("a", 1).replace("\"9\"", &format!("\"{number:x}\""));
            share.hear(other.as_bytes(), &tenants, &board, at(2));
        }
        assert_eq!(share.by_replica.len(), REPLICAS_MAX);
        assert!(Tenants::default().all().len() == 1);
        assert_eq!(share.say(ReplicaId(1), &Tenants::default(), &board, at(5_000)), None);
    }
}
