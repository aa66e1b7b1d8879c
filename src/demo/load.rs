//! The load: a fixed number of users of the model. Each asks, reads the answer, pauses and asks
//! again. A task per user on the demo's runtime; all outcomes go to the same channel. Closed loop:
//! a slow answer delays only that user.

use super::client::ChatClient;
use super::conversations::{Conversations, ReplyForm};
use super::meter::DemoOutcome;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// Channel of outcomes to the meter. Unbounded by type; between two reads it receives at most 1 per
/// user.
pub(super) type OutcomeSink = mpsc::UnboundedSender<(ReplyForm, DemoOutcome)>;

/// All users. The load ends when this is dropped.
#[derive(Debug)]
pub(super) struct DemoUsers {
    people: JoinSet<()>,
    leave: watch::Sender<bool>,
}

impl DemoUsers {
    /// Starts all users. `forms` are assigned in turn.
    pub(super) fn start(
        conversations: &Arc<Conversations>,
        client: &ChatClient,
        url: &Arc<str>,
        outcomes: &OutcomeSink,
        forms: &[ReplyForm],
    ) -> Self {
        let (leave, leaving) = watch::channel(false);
        let mut people = JoinSet::new();
        let forms = forms.iter().cycle();
        for (slot, form) in (0..conversations.sizes().slots).zip(forms) {
            let person = Person {
                slot,
                form: *form,
                conversations: conversations.clone(),
                client: client.clone(),
                url: url.clone(),
                outcomes: outcomes.clone(),
                leaving: leaving.clone(),
                random: fastrand::Rng::with_seed(slot.into()),
            };
            people.spawn(person.talk());
        }
        Self { people, leave }
    }

    /// Ends the load after the current answers, which the client's timeout bounds.
    pub(super) async fn leave(mut self) {
        self.leave.send_replace(true);
        while self.people.join_next().await.is_some() {}
    }
}

struct Person {
    slot: u32,
    form: ReplyForm,
    conversations: Arc<Conversations>,
    client: ChatClient,
    url: Arc<str>,
    outcomes: OutcomeSink,
    leaving: watch::Receiver<bool>,
    random: fastrand::Rng,
}

impl Person {
    async fn talk(mut self) {
        let slots = self.conversations.sizes().slots;
        // Random start times avoid a burst.
        let share = self.random.f64() * 2.0;
        if self.leaves_during(share).await {
            return;
        }
        for number in (self.slot..).step_by(slots.max(1) as usize) {
            let mut conversation = self.conversations.begin(number, self.form);
            while let Some(body) = self.conversations.ask(&mut conversation) {
                let (outcome, text) = self.client.chat(&self.url, body, self.form).await;
                if self.outcomes.send((self.form, outcome)).is_err() {
                    return;
                }
                conversation.answered(&text);
                let exponential = -(1.0 - self.random.f64()).ln();
                if self.leaves_during(exponential.min(4.0)).await {
                    return;
                }
                if !matches!(outcome, DemoOutcome::Answered { .. }) {
                    break;
                }
            }
        }
    }

    /// Pauses; true if the load ends meanwhile.
    async fn leaves_during(&mut self, share: f64) -> bool {
        let ms = self.conversations.sizes().think_ms * share;
        let pause = Duration::try_from_secs_f64(ms / 1_000.0).unwrap_or_default();
        let called = self.leaving.wait_for(|leaves| *leaves);
        tokio::time::timeout(pause, called).await.is_ok()
    }
}
