//! Two replicas, message by message.

use super::own_load::{Local, LocalRank};
use super::replica::{JOIN_TIME_MAX, Outgoing, Replica};
use super::wire::ReplicaId;
use forebay_base::NanosSinceStart;
use std::sync::Arc;
use std::time::Duration;

/// A claim is lost, and the next message acknowledges a grant that came before the claim. Once nine
/// places of eight were used.
#[test]
fn an_acknowledgement_beside_a_lost_claim_frees_nothing() {
    let mut now = NanosSinceStart(1);
    let max = 4;
    let mut replicas = [1, 2].map(|id| Replica::new(ReplicaId(id), format!("node-{id}"), now));
    for replica in &mut replicas {
        replica.add_rank(&Arc::from("engine:8000"), 0, now);
        replica.add_rank(&Arc::from("beside:8000"), 0, now);
    }
    let [mut leader, mut other] = replicas;
    let (_, said) = other.turn(&[local(0, 0, max); 2], &[], now);
    tell(&mut leader, said, now);
    if leader.steward(0) != Some(leader.id()) {
        std::mem::swap(&mut leader, &mut other);
    }
    let wants = |places: u64, beside: u64| [local(places, max, max), local(beside, beside, max)];
    let idle = [local(0, 0, max); 2];
    // They know each other, and all goes to the one that wants it.
    for _ in 0..200 {
        now = now.plus(ms(5));
        let (_, said) = leader.turn(&idle, &[], now);
        tell(&mut other, said, now);
        let (_, said) = other.turn(&wants(0, 0), &[], now);
        if other.elsewhere(0, &wants(0, 0)[0]).places == 0 {
            break;
        }
        tell(&mut leader, said, now);
    }
    assert_eq!(other.elsewhere(0, &wants(0, 0)[0]).places, 0, "may use four");
    now = now.plus(ms(5));
    let (_, lost) = other.turn(&wants(4, 0), &[], now);
    assert!(lost.is_some(), "a claim of four");
    // The leader wants its half. The follower has no news of the rank.
    now = now.plus(ms(5));
    let (_, said) = leader.turn(&wants(0, 0), &[], now);
    tell(&mut other, said, now);
    now = now.plus(ms(5));
    let (_, said) = other.turn(&wants(4, 1), &[], now);
    assert_eq!(other.elsewhere(0, &wants(4, 1)[0]).places, 2, "obeys");
    tell(&mut leader, said, now);
    now = now.plus(ms(5));
    leader.turn(&wants(0, 0), &[], now);
    assert_eq!(leader.elsewhere(0, &wants(0, 0)[0]).places, max, "four still run");
    // The next full report has what was lost.
    for _ in 0..2 {
        now = now.plus(ms(1_000));
        let (_, said) = other.turn(&wants(2, 1), &[], now);
        tell(&mut leader, said, now);
    }
    leader.turn(&wants(0, 0), &[], now);
    assert_eq!(leader.elsewhere(0, &wants(0, 0)[0]).places, 2);
}

/// After a pause of a process, messages of its peers are still unread.
#[test]
fn a_router_that_stood_still_begins_like_a_joiner() {
    let mut now = NanosSinceStart(1);
    let max = 4;
    let mut replicas = [1, 2].map(|id| Replica::new(ReplicaId(id), format!("node-{id}"), now));
    replicas.iter_mut().for_each(|replica| replica.add_rank(&Arc::from("engine:8000"), 0, now));
    let [mut other, mut stopped] = replicas;
    let busy = [local(2, max, max)];
    let mut said = None;
    for _ in 0..200 {
        now = now.plus(ms(5));
        said = other.turn(&busy, &[], now).1.or(said);
        tell(&mut stopped, said.clone(), now);
        let (_, own) = stopped.turn(&busy, &[], now);
        tell(&mut other, own, now);
    }
    assert_eq!(stopped.elsewhere(0, &busy[0]).places, 2, "half of the rank");
    now = now.plus(ms(10_000));
    let (silent, _) = stopped.turn(&busy, &[], now);
    assert_eq!((silent.len(), stopped.elsewhere(0, &busy[0]).places), (1, 3), "one place");
    now = now.plus(JOIN_TIME_MAX);
    stopped.turn(&busy, &[], now);
    assert_eq!(stopped.elsewhere(0, &busy[0]).places, 0, "nothing came: it is alone");
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn local(held: u64, want: u64, max: u64) -> LocalRank {
    LocalRank { places: Local { max, held, want }, ..LocalRank::default() }
}

fn tell(replica: &mut Replica, said: Option<Outgoing>, now: NanosSinceStart) {
    if let Some((kind, bytes)) = said {
        replica.hear(&kind.subject("test"), &bytes, now);
    }
}
