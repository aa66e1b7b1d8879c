//! Divides a rank's limit among replicas by their demand. Pure.

/// Reserved part of a replica's even share while it has no demand, as a divisor: a request at an
/// idle replica should not have to wait until busy replicas have received its demand.
const RESERVE: u64 = 16;

/// Demand of a replica.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplicaDemand {
    /// Most that it could use; above the limit: it needs the whole limit.
    pub(crate) want: u64,
    pub(crate) held: u64,
}

/// Shares of the limit; in sum at most `max`, but at least 1 each. A small demand is met, the other
/// replicas get equal shares (max-min fair), and the rest is spread evenly as reserve.
pub(crate) fn divide(max: u64, wishes: &[ReplicaDemand]) -> Vec<u64> {
    let count = u64::try_from(wishes.len()).unwrap_or(u64::MAX).max(1);
    if let Some(alone) = needs_all(max, wishes) {
        return (0..wishes.len()).map(|at| if at == alone { max } else { 0 }).collect();
    }
    let capacity = max.max(count);
    let reserve = max / count / RESERVE;
    let demand = |wish: &ReplicaDemand| wish.want.min(max).max(reserve);
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by_key(|&at| wishes.get(at).map(demand));
    let mut shares = vec![0; wishes.len()];
    let mut left = capacity;
    let mut takers = count;
    for at in order {
        let (Some(share), Some(wish)) = (shares.get_mut(at), wishes.get(at)) else { continue };
        *share = demand(wish).min(left / takers.max(1));
        left -= *share;
        takers -= 1;
    }
    let even = left / count;
    let mut odd = left % count;
    for share in &mut shares {
        *share += even + u64::from(odd > 0);
        odd = odd.saturating_sub(1);
    }
    shares
}

/// The replica that gets the whole limit: every other replica has no usage, and either no demand or
/// the same demand at a later position.
fn needs_all(max: u64, wishes: &[ReplicaDemand]) -> Option<usize> {
    let greedy = wishes.iter().position(|wish| wish.want > max)?;
    let mut others =
        wishes.iter().enumerate().filter(|(at, _)| *at != greedy).map(|(_, wish)| wish);
    others.all(|wish| wish.held == 0 && (wish.want == 0 || wish.want > max)).then_some(greedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shares(max: u64, wants: &[u64]) -> Vec<u64> {
        let wish = |&want: &u64| ReplicaDemand { want, held: want.min(1) };
        divide(max, &wants.iter().map(wish).collect::<Vec<_>>())
    }

    #[test]
    fn those_who_want_little_leave_the_rest() {
        assert_eq!(shares(4, &[0, 0]), [2, 2], "idle: even");
        assert_eq!(shares(4, &[0, 0, 0]), [2, 1, 1], "the rest by order");
        assert_eq!(shares(4, &[9, 9]), [2, 2], "overload: even");
        assert_eq!(shares(4, &[0, 4]), [0, 4], "an idle one gives a small limit away");
        assert_eq!(shares(256, &[0, 256]), [8, 248], "and keeps some of a large one");
        assert_eq!(shares(100, &[10, 80, 80]), [10, 45, 45]);
        assert_eq!(shares(100, &[10, 20, 30]), [24, 33, 43], "what is left is at hand for all");
        assert_eq!(shares(2, &[2, 2, 2, 2]), [1, 1, 1, 1], "at least one each");
        assert_eq!(shares(4, &[4]), [4]);
        assert!(shares(4, &[]).is_empty());
    }

    #[test]
    fn a_request_larger_than_all_shares_gets_the_rank_when_it_is_empty() {
        let idle = ReplicaDemand::default();
        let all = ReplicaDemand { want: 1_001, held: 0 };
        assert_eq!(divide(1_000, &[idle, all, idle]), [0, 1_000, 0]);
        assert_eq!(divide(1_000, &[all, all]), [1_000, 0], "one after the other");
        let busy = ReplicaDemand { want: 100, held: 50 };
        assert_eq!(divide(1_000, &[busy, all]), [100, 900]);
    }

    proptest! {
        #[test]
        fn never_more_than_there_is_and_nobody_is_left_out(
            max in 1_u64..1_000,
            wants in proptest::collection::vec(0_u64..1_200, 1..32),
        ) {
            let count = wants.len() as u64;
            let shares = shares(max, &wants);
            prop_assert_eq!(shares.iter().sum::<u64>(), max.max(count));
            for (share, want) in shares.iter().zip(&wants) {
                prop_assert!(*share >= (*want).min(max / count), "{:?} of {:?}", shares, wants);
                prop_assert!(*want == 0 || *share >= 1);
            }
        }
    }
}
