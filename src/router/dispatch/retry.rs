//! Retry budget of a shard: retries may be at most a share of requests, so that a failing fleet
//! does not get twice the traffic (like gRFC A6 and Envoy's retry budgets).

/// Hundredths of a retry kept in reserve, so that a quiet router can still retry.
const RESERVE_MAX_PERCENT: u32 = 1_000;
const _: () = assert!(RESERVE_MAX_PERCENT >= 100, "a reserve of less than one retry is none");

/// Each request earns a share of a retry.
#[derive(Debug)]
pub struct RetryBudget {
    share_percent: u32,
    balance_percent: u32,
}

impl RetryBudget {
    /// `share_percent`: retries per hundred requests.
    #[must_use]
    pub const fn new(share_percent: u32) -> Self {
        let balance_percent = if share_percent == 0 { 0 } else { RESERVE_MAX_PERCENT };
        Self { share_percent, balance_percent }
    }

    /// Sets the retries per hundred requests. The balance stays.
    pub const fn set_share(&mut self, share_percent: u32) {
        if share_percent == 0 || self.share_percent == 0 {
            *self = Self::new(share_percent);
        }
        self.share_percent = share_percent;
    }

    /// Adds the share of a new request.
    pub fn deposit(&mut self) {
        let full = if self.share_percent == 0 { 0 } else { RESERVE_MAX_PERCENT };
        self.balance_percent = self.balance_percent.saturating_add(self.share_percent).min(full);
        self.check_invariants();
    }

    fn check_invariants(&self) {
        debug_assert!(self.balance_percent <= RESERVE_MAX_PERCENT, "more saved than may be");
        debug_assert!(self.share_percent > 0 || self.balance_percent == 0, "retries are off");
    }

    /// Takes a retry from the budget; false: the balance is too low.
    #[must_use]
    pub fn withdraw(&mut self) -> bool {
        let enough = self.balance_percent >= 100;
        if enough {
            self.balance_percent -= 100;
        }
        self.check_invariants();
        enough
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
                budget.deposit();
                budget.withdraw()
            })
            .count();
        assert!((200..=210).contains(&retries), "{retries} of 1000");
    }

    #[test]
    fn none_at_zero_percent() {
        let mut budget = RetryBudget::new(0);
        budget.deposit();
        assert!(!budget.withdraw());
    }
}
