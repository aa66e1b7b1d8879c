//! How much of everything happened: a simulator that never does a thing proves nothing about it.

use super::request::Answer;
use std::collections::BTreeMap;

macro_rules! figures {
    ($($(#[$about:meta])* $name:ident,)*) => {
        #[derive(Debug, Default)]
        pub(crate) struct Stats {
            $($(#[$about])* pub(crate) $name: u64,)*
            pub(crate) answers: BTreeMap<Answer, u64>,
        }

        impl Stats {
            pub(crate) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
                for (answer, count) in &other.answers {
                    *self.answers.entry(*answer).or_default() += count;
                }
            }

            /// Least of all figures.
            pub(crate) fn least(&self) -> u64 {
                let never = (self.answers.len() < Answer::COUNT).then_some(0);
                let answers = self.answers.values().copied().chain(never);
                [$(self.$name),*].into_iter().chain(answers).min().unwrap_or(0)
            }
        }
    };
}

figures! {
    steps,
    /// Without a wait.
    bound,
    waited,
    granted,
    rerouted,
    /// Grants that found their request gone.
    returned,
    /// Messages that a full ring refused.
    kept,
    /// Turns of a home after which a rank is left to a request without room there yet.
    held_back,
    quiet_checks,
    /// Rejection windows.
    opened,
    closed_early,
    /// Refused by a full queue that was not full for others.
    turned_alone,
    /// Requests that were routed whole though their model has other ranks.
    stayed_whole,
    /// Requests that no rank could take for want of a pair.
    no_pair,
    pairs,
    instead_of_a_pair,
    waited_for_decode,
    waited_for_prefill,
    /// Requests whose decode rank, or all prefill ranks near it, went while they waited.
    lost_its_pair,
    prefill_failed,
    cancelled,
}
