//! Health as counted: checks in, changes out. Sans-IO.

use forebay_config::HealthConfig;

/// What the checks have come to so far.
#[derive(Debug, Default)]
pub(super) struct Reached {
    state: Option<bool>,
    good: u32,
    bad: u32,
    recovered: bool,
    /// It was said that it cannot be reached, or that it is busy.
    pub(super) complained: bool,
}

/// What a failed check says of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadCheck {
    /// Nothing yet, or nothing new.
    Counted,
    /// It would be down, but it lives. Said once.
    Excused,
    /// It goes down by it.
    Down,
}

impl Reached {
    /// With the state that another probe has left, if there was one.
    pub(super) fn from(state: Option<bool>) -> Self {
        Self { state, ..Self::default() }
    }

    /// A good check; true when the worker becomes usable by it.
    pub(super) fn good(&mut self, health: &HealthConfig) -> bool {
        self.bad = 0;
        self.good = self.good.saturating_add(1);
        if self.state == Some(true) {
            self.complained = false;
            return false;
        }
        if self.good < health.healthy_after {
            return false;
        }
        self.recovered = self.state == Some(false);
        self.state = Some(true);
        self.complained = false;
        true
    }

    /// A bad check of a worker that was never up, or is busy with requests, changes nothing.
    pub(super) fn bad(&mut self, health: &HealthConfig, is_busy: bool) -> BadCheck {
        self.good = 0;
        self.bad = self.bad.saturating_add(1);
        if self.state != Some(true) || self.bad < health.unhealthy_after {
            return BadCheck::Counted;
        }
        if is_busy {
            let is_new = !std::mem::replace(&mut self.complained, true);
            return if is_new { BadCheck::Excused } else { BadCheck::Counted };
        }
        self.state = Some(false);
        BadCheck::Down
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == Some(true)
    }

    /// A recovery that did not hold.
    pub(super) fn relapse(&mut self) {
        self.state = Some(false);
        self.good = 0;
    }

    /// True once after a recovery.
    pub(super) fn was_down(&mut self) -> bool {
        std::mem::take(&mut self.recovered)
    }
}
