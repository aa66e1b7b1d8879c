//! How long a tunnel may wait: for bytes of either side, for a side that does not take its bytes,
//! for the end of the second side.

use forebay_base::NanosSinceStart;
use std::time::Duration;

/// Which side bytes go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunnelDirection {
    /// Bytes of the worker go to the client.
    Client,
    /// Bytes of the client go to the worker.
    Worker,
}

impl TunnelDirection {
    /// The side that such bytes come from.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Worker,
            Self::Worker => Self::Client,
        }
    }
}

/// Why a tunnel is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TunnelOver {
    /// Neither side has sent anything, or the second side does not end.
    Idle,
    /// That side does not take its bytes.
    Stalled(TunnelDirection),
}

/// What is waited for how long.
#[derive(Clone, Copy, Debug)]
pub struct TunnelLimits {
    /// For a byte of either side.
    pub idle_max: Duration,
    /// The same, after a side has ended.
    pub half_closed_max: Duration,
    /// For the client to take a chunk.
    pub client_write_max: Duration,
    /// The same of the worker.
    pub worker_write_max: Duration,
}

/// The waits of a tunnel.
#[derive(Debug)]
pub(super) struct TunnelClock {
    limits: TunnelLimits,
    moved_at: NanosSinceStart,
    is_half_closed: bool,
    /// Start of the chunk that is on its way to the client.
    client_since: Option<NanosSinceStart>,
    worker_since: Option<NanosSinceStart>,
}

impl TunnelClock {
    pub(super) const fn new(limits: TunnelLimits, now: NanosSinceStart) -> Self {
        let client_since = None;
        let worker_since = None;
        Self { limits, moved_at: now, is_half_closed: false, client_since, worker_since }
    }

    /// A chunk is on its way.
    pub(super) const fn sends(&mut self, toward: TunnelDirection, now: NanosSinceStart) {
        self.moved_at = now;
        *self.since(toward) = Some(now);
    }

    /// The chunk has been taken.
    pub(super) const fn sent(&mut self, toward: TunnelDirection, now: NanosSinceStart) {
        self.moved_at = now;
        *self.since(toward) = None;
    }

    /// A side has ended.
    pub(super) const fn half_closed(&mut self, now: NanosSinceStart) {
        self.moved_at = now;
        self.is_half_closed = true;
    }

    /// When the first wait is over.
    pub(super) fn due_at(&self) -> NanosSinceStart {
        let [client, worker] = self.stalls();
        self.idle_at().min(client).min(worker)
    }

    /// The first wait that is over.
    pub(super) fn over(&self, now: NanosSinceStart) -> Option<TunnelOver> {
        let [client, worker] = self.stalls();
        if now >= client {
            Some(TunnelOver::Stalled(TunnelDirection::Client))
        } else if now >= worker {
            Some(TunnelOver::Stalled(TunnelDirection::Worker))
        } else {
            (now >= self.idle_at()).then_some(TunnelOver::Idle)
        }
    }

    fn idle_at(&self) -> NanosSinceStart {
        let TunnelLimits { idle_max, half_closed_max, .. } = self.limits;
        let max = if self.is_half_closed { half_closed_max.min(idle_max) } else { idle_max };
        self.moved_at.plus(max)
    }

    fn stalls(&self) -> [NanosSinceStart; 2] {
        let at = |since: Option<NanosSinceStart>, max| {
            since.map_or(NanosSinceStart(u64::MAX), |since| since.plus(max))
        };
        let TunnelLimits { client_write_max, worker_write_max, .. } = self.limits;
        [at(self.client_since, client_write_max), at(self.worker_since, worker_write_max)]
    }

    const fn since(&mut self, toward: TunnelDirection) -> &mut Option<NanosSinceStart> {
        match toward {
            TunnelDirection::Client => &mut self.client_since,
            TunnelDirection::Worker => &mut self.worker_since,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: TunnelLimits = TunnelLimits {
        idle_max: Duration::from_nanos(100),
        half_closed_max: Duration::from_nanos(10),
        client_write_max: Duration::from_nanos(30),
        worker_write_max: Duration::from_nanos(40),
    };

    const fn at(nanos: u64) -> NanosSinceStart {
        NanosSinceStart(nanos)
    }

    #[test]
    fn silence_counts_from_the_last_byte_of_either_side() {
        let mut clock = TunnelClock::new(LIMITS, at(5));
        assert_eq!((clock.due_at(), clock.over(at(104))), (at(105), None));
        assert_eq!(clock.over(at(105)), Some(TunnelOver::Idle));
        clock.sends(TunnelDirection::Worker, at(50));
        clock.sent(TunnelDirection::Worker, at(60));
        assert_eq!((clock.due_at(), clock.over(at(159))), (at(160), None));
        clock.half_closed(at(70));
        assert_eq!((clock.due_at(), clock.over(at(80))), (at(80), Some(TunnelOver::Idle)));
    }

    #[test]
    fn a_side_that_takes_nothing_is_named_whatever_the_other_sends() {
        let mut clock = TunnelClock::new(LIMITS, at(0));
        clock.sends(TunnelDirection::Client, at(1));
        clock.sends(TunnelDirection::Worker, at(20));
        assert_eq!((clock.due_at(), clock.over(at(30))), (at(31), None));
        assert_eq!(clock.over(at(31)), Some(TunnelOver::Stalled(TunnelDirection::Client)));
        clock.sent(TunnelDirection::Client, at(31));
        assert_eq!(clock.over(at(60)), Some(TunnelOver::Stalled(TunnelDirection::Worker)));
        clock.sent(TunnelDirection::Worker, at(60));
        assert_eq!(clock.due_at(), at(160));
    }
}
