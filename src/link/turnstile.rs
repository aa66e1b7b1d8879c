//! Limits TLS handshakes to a single handshake per turn of the loop.

use forebay_base::NanosSinceStart;
use forebay_net::{end_turn, now};
use std::cell::Cell;

/// Admits a single task in each turn of the thread's loop. The cryptography of a handshake takes
/// some hundred microseconds: active requests wait for at most a single handshake, however many
/// clients connect.
#[derive(Debug, Default)]
pub struct Turnstile {
    passed_in: Cell<Option<NanosSinceStart>>,
}

impl Turnstile {
    /// Waits for a turn in which no task has passed.
    pub async fn pass(&self) {
        while let Some(turn) = now() {
            if self.passed_in.replace(Some(turn)) != Some(turn) {
                return;
            }
            end_turn().await;
        }
    }
}
