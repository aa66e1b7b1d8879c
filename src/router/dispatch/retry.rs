//! Retry budget of a shard: retries may be at most a share of requests, so that a failing fleet
//! does not get twice the traffic (like gRFC A6 and Envoy's retry budgets). Each caller has a
//! balance of its own: requests that fail at each engine use up the retries of their caller alone.

/// Hundredths of a retry kept in reserve, so that a quiet caller can still retry.
const RESERVE_MAX_PERCENT: u32 = 1_000;
const _: () = assert!(RESERVE_MAX_PERCENT >= 100, "a reserve of less than one retry is none");

/// Balances. Callers with the same remainder share a balance.
const BALANCES: usize = 64;

/// Each request earns its caller a share of a retry.
#[derive(Debug)]
pub struct RetryBudget {
    share_percent: u32,
    balances_percent: [u32; BALANCES],
}

impl RetryBudget {
    /// `share_percent`: retries per hundred requests.
    #[must_use]
    pub const fn new(share_percent: u32) -> Self {
        let reserve = if share_percent == 0 { 0 } else { RESERVE_MAX_PERCENT };
        Self { share_percent, balances_percent: [reserve; BALANCES] }
    }

    /// Sets the retries per hundred requests. The balances stay.
    pub const fn set_share(&mut self, share_percent: u32) {
        if share_percent == 0 || self.share_percent == 0 {
            *self = Self::new(share_percent);
        }
        self.share_percent = share_percent;
    }

    /// Adds the share of a new request. `caller`: hash of the tenant or address.
    pub fn deposit(&mut self, caller: u32) {
        let full = if self.share_percent == 0 { 0 } else { RESERVE_MAX_PERCENT };
        let share_percent = self.share_percent;
        if let Some(balance) = self.balance(caller) {
            *balance = balance.saturating_add(share_percent).min(full);
        }
    }

    /// Takes a retry from the budget of the caller; false: the balance is too low.
    #[must_use]
    pub fn withdraw(&mut self, caller: u32) -> bool {
        let Some(balance) = self.balance(caller) else { return false };
        let rest = balance.checked_sub(100);
        *balance = rest.unwrap_or(*balance);
        rest.is_some()
    }

    fn balance(&mut self, caller: u32) -> Option<&mut u32> {
        self.balances_percent.get_mut(caller as usize % BALANCES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_stay_within_their_share() {
        let mut budget = RetryBudget::new(20);
        let retries = (0..1_000)
            .filter(|_| {
                budget.deposit(7);
                budget.withdraw(7)
            })
            .count();
        assert!((200..=210).contains(&retries), "{retries} of 1000");
    }

    #[test]
    fn a_caller_whose_requests_all_fail_uses_no_retry_of_another() {
        let mut budget = RetryBudget::new(20);
        for turn in 0..10_000 {
            budget.deposit(1);
            let _ = budget.withdraw(1);
            if turn % 10 == 0 {
                budget.deposit(2);
            }
            // An eighth of the other caller's requests.
            assert!(turn % 80 != 0 || budget.withdraw(2), "turn {turn}");
        }
    }

    #[test]
    fn none_at_zero_percent() {
        let mut budget = RetryBudget::new(0);
        budget.deposit(0);
        assert!(!budget.withdraw(0));
    }
}
