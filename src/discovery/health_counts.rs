//! Counts health checks: checks in, state changes out. Sans-IO.

use forebay_config::HealthConfig;

/// State after the checks so far.
#[derive(Debug, Default)]
pub(super) struct HealthCounts {
    state: Option<bool>,
    good: u32,
    bad: u32,
    recovered: bool,
    /// A busy worker has passed its checks again.
    is_calm: bool,
    /// A log line already reported that the worker is unreachable or busy.
    pub(super) complained: bool,
    /// Last reported reason why the worker is not up, or may be down soon; empty for no reason.
    /// `None`: the probe has reported nothing yet.
    trouble: Option<String>,
    /// Log lines for further reasons of this outage.
    changes: u32,
}

/// Most log lines for further reasons of an outage: reasons may alternate for hours.
const CHANGES_MAX: u32 = 5;

/// Consequence of a failed check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CheckFailure {
    /// No change of state, and no log line.
    Counted,
    /// The worker would be down, but shows signs of life. Reported once.
    Excused,
    /// The worker goes down.
    Down,
}

impl HealthCounts {
    /// Whether another reason of the same outage is worth a log line.
    pub(super) fn may_log_again(&mut self, error: &str) -> bool {
        let is_other = self.trouble.as_deref() != Some(error) && self.changes < CHANGES_MAX;
        self.changes += u32::from(is_other);
        is_other
    }

    /// Starts from the previous probe's state, if there was a probe.
    pub(super) fn from(state: Option<bool>) -> Self {
        Self { state, ..Self::default() }
    }

    /// A good check; true if the worker becomes usable.
    pub(super) fn good(&mut self, health: &HealthConfig) -> bool {
        self.bad = 0;
        self.good = self.good.saturating_add(1);
        if self.state == Some(true) {
            self.is_calm = std::mem::take(&mut self.complained);
            self.changes = 0;
            return false;
        }
        if self.good < health.healthy_after {
            return false;
        }
        self.recovered = self.state == Some(false);
        self.state = Some(true);
        self.complained = false;
        self.changes = 0;
        true
    }

    /// A bad check. Changes nothing for a worker that was never up, or is busy with requests.
    pub(super) fn bad(&mut self, health: &HealthConfig, is_busy: bool) -> CheckFailure {
        self.good = 0;
        self.bad = self.bad.saturating_add(1);
        if self.state != Some(true) || self.bad < health.unhealthy_after {
            return CheckFailure::Counted;
        }
        if is_busy {
            let is_new = !std::mem::replace(&mut self.complained, true);
            return if is_new { CheckFailure::Excused } else { CheckFailure::Counted };
        }
        self.state = Some(false);
        CheckFailure::Down
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == Some(true)
    }

    /// Why the checks of a worker that is still up fail. A busy worker stays up.
    pub(super) fn failing(&self, health: &HealthConfig, error: &str) -> String {
        let after = health.unhealthy_after;
        match self.bad < after {
            true => format!("health checks fail, and it is down after {after}: {error}"),
            false => format!("health checks fail, but it answers requests: {error}"),
        }
    }

    /// Takes the reason to report, empty for none; true if it was not the last reported reason.
    pub(super) fn take_trouble(&mut self, error: &str) -> bool {
        let is_new = self.trouble.as_deref() != Some(error);
        if is_new {
            self.trouble = Some(error.to_owned());
        }
        is_new
    }

    /// Reverts a recovery that did not last.
    pub(super) fn relapse(&mut self) {
        self.state = Some(false);
        self.good = 0;
    }

    /// True once after a worker that was excused has passed a check.
    pub(super) fn take_calm(&mut self) -> bool {
        std::mem::take(&mut self.is_calm)
    }

    /// True once after a recovery.
    pub(super) fn take_recovery(&mut self) -> bool {
        std::mem::take(&mut self.recovered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M1: an excuse that the log has reported ends with a line.
    #[test]
    fn an_excuse_ends_once() {
        let health = HealthConfig::default();
        let mut counts = HealthCounts::from(Some(true));
        counts.good(&health);
        assert!(!counts.take_calm(), "no excuse");
        let checks = (0..9).map(|_| counts.bad(&health, true)).collect::<Vec<_>>();
        assert!(checks.contains(&CheckFailure::Excused), "{checks:?}");
        counts.good(&health);
        assert!(counts.take_calm() && !counts.take_calm());
    }

    #[test]
    fn another_reason_is_worth_a_line_but_not_for_ever() {
        let mut counts = HealthCounts::default();
        assert!(counts.take_trouble("refused") && !counts.take_trouble("refused"));
        assert!(!counts.may_log_again("refused"));
        let logged = (0..100).filter(|_| counts.may_log_again("status 500")).count();
        assert_eq!(logged, 5);
    }
}
