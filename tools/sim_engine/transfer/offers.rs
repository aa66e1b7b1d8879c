//! Offers of a prefill engine, and the decodes that wait for them. A single task owns the table;
//! handles send notes to the task. Offers and questions may come in either order, because a router
//! sends both legs of a request at once.

use crate::random_id::random_u64;
use ahash::AHashMap;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// Data of a prefill for its decode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedKv {
    /// First token of the answer.
    pub(crate) token_id: u32,
    /// Prompt tokens that the prefill found in its cache.
    pub(crate) cached_tokens: usize,
    /// Length and digest of the prompt, because KV of another prompt is of no use.
    pub(crate) prompt_tokens: usize,
    pub(crate) prompt_digest: u64,
    /// Rank that computed the prompt.
    pub(crate) dp_rank: usize,
}

/// Answer to a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TransferResult {
    /// The KV, which the prefill engine does not hold any more.
    Kv(HandedKv),
    /// The prefill failed for this reason.
    Failed(String),
}

/// Counts of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransferCounts {
    /// Offers that no decode has requested yet, or that are not computed yet.
    pub(crate) open: usize,
    /// Offers that are computed but not taken.
    pub(crate) ready: usize,
    /// Questions for offers that do not exist (yet).
    pub(crate) early: usize,
    /// Offers refused because their name was in use.
    pub(crate) duplicates: u64,
}

type TakenReply = oneshot::Sender<TransferResult>;

enum Note {
    Open { key: String, offer: NewOffer, opened: oneshot::Sender<bool> },
    Ready { key: String, id: u64, kv: HandedKv },
    Closed { key: String, id: u64, why: String },
    Take { key: String, reply: TakenReply },
}

struct NewOffer {
    id: u64,
    asked: oneshot::Sender<()>,
    taken: oneshot::Sender<()>,
}

/// Handle of the table. Cheap to clone; the task ends with the last clone.
#[derive(Clone, Debug)]
pub(crate) struct TransferTable {
    /// Unbounded by type, because dropping uses it; each request sends a few notes.
    notes: mpsc::UnboundedSender<Note>,
    counts: watch::Receiver<TransferCounts>,
}

/// An offer. When dropped before it is taken, the waiting decode gets `why`.
#[derive(Debug)]
pub(crate) struct TransferOffer {
    key: String,
    id: u64,
    notes: mpsc::UnboundedSender<Note>,
    asked: oneshot::Receiver<()>,
    taken: oneshot::Receiver<()>,
    /// Reason for the waiting decode if the offer is dropped.
    why: String,
}

impl TransferTable {
    /// Starts the task on the current runtime.
    pub(crate) fn start() -> Self {
        let (notes, mut inbox) = mpsc::unbounded_channel();
        let (counts_out, counts) = watch::channel(TransferCounts::default());
        tokio::spawn(async move {
            let mut table = OfferTable::default();
            loop {
                let forgets = tokio::time::sleep(FORGET_INTERVAL);
                tokio::select! {
                    note = inbox.recv() => match note {
                        Some(note) => table.note(note),
                        None => return,
                    },
                    () = forgets, if !table.early.is_empty() => {}
                }
                table.early.retain(|_, reply| !reply.is_closed());
                counts_out.send_replace(table.counts());
            }
        });
        Self { notes, counts }
    }

    /// Makes an offer with that key; `None` if the key is in use.
    pub(crate) async fn offer(&self, key: String) -> Option<TransferOffer> {
        let id = random_u64();
        let (asked_out, asked) = oneshot::channel();
        let (taken_out, taken) = oneshot::channel();
        let (opened, answer) = oneshot::channel();
        let new = NewOffer { id, asked: asked_out, taken: taken_out };
        let why = "the prefill was aborted".to_owned();
        let offer =
            TransferOffer { key: key.clone(), id, notes: self.notes.clone(), asked, taken, why };
        self.notes.send(Note::Open { key, offer: new, opened }).ok()?;
        answer.await.ok()?.then_some(offer)
    }

    /// Requests an offer, which may not exist yet. The answer never comes if a later question with
    /// the same key replaces this question.
    pub(crate) fn take(&self, key: String) -> oneshot::Receiver<TransferResult> {
        let (reply, answer) = oneshot::channel();
        let _stopping = self.notes.send(Note::Take { key, reply });
        answer
    }

    /// The counts after the last note.
    pub(crate) fn counts(&self) -> TransferCounts {
        *self.counts.borrow()
    }
}

impl TransferOffer {
    /// Returns once a decode has requested the offer.
    pub(crate) async fn asked(&mut self) {
        if (&mut self.asked).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Adds the computed KV, which the waiting decode gets.
    pub(crate) fn ready(&self, kv: HandedKv) {
        let _stopping = self.notes.send(Note::Ready { key: self.key.clone(), id: self.id, kv });
    }

    /// Withdraws the offer. The waiting decode gets `why`.
    pub(crate) fn withdraw(mut self, why: &str) {
        self.why = why.to_owned();
    }

    /// Returns once a decode has the KV.
    pub(crate) async fn taken(&mut self) {
        if (&mut self.taken).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for TransferOffer {
    fn drop(&mut self) {
        let key = std::mem::take(&mut self.key);
        let why = std::mem::take(&mut self.why);
        let _stopping = self.notes.send(Note::Closed { key, id: self.id, why });
    }
}

#[derive(Default)]
struct OfferTable {
    offers: AHashMap<String, OfferEntry>,
    early: AHashMap<String, TakenReply>,
    duplicates: u64,
}

struct OfferEntry {
    id: u64,
    asked: Option<oneshot::Sender<()>>,
    taken: Option<oneshot::Sender<()>>,
    kv: Option<HandedKv>,
    waiter: Option<TakenReply>,
}

impl OfferTable {
    fn note(&mut self, note: Note) {
        match note {
            Note::Open { key, offer, opened } => {
                let is_new = !self.offers.contains_key(&key);
                if is_new {
                    self.open(key, offer);
                } else {
                    self.duplicates += 1;
                }
                let _client_left = opened.send(is_new);
            }
            Note::Ready { key, id, kv } => {
                if let Some(entry) = self.offers.get_mut(&key).filter(|entry| entry.id == id) {
                    entry.kv = Some(kv);
                    self.hand_over(&key);
                }
            }
            Note::Closed { key, id, why } => {
                if self.offers.get(&key).is_some_and(|entry| entry.id == id) {
                    let waiter = self.offers.remove(&key).and_then(|entry| entry.waiter);
                    if let Some(reply) = waiter {
                        let _decode_left = reply.send(TransferResult::Failed(why));
                    }
                }
            }
            Note::Take { key, reply } => match self.offers.get_mut(&key) {
                Some(entry) => {
                    entry.waiter = Some(reply);
                    entry.asked.take().map(|asked| asked.send(()));
                    self.hand_over(&key);
                }
                None => drop(self.early.insert(key, reply)),
            },
        }
    }

    fn open(&mut self, key: String, offer: NewOffer) {
        let waiter = self.early.remove(&key).filter(|reply| !reply.is_closed());
        let NewOffer { id, asked, taken } = offer;
        let mut entry = OfferEntry { id, asked: Some(asked), taken: Some(taken), kv: None, waiter };
        if entry.waiter.is_some() {
            entry.asked.take().map(|asked| asked.send(()));
        }
        self.offers.insert(key, entry);
    }

    fn hand_over(&mut self, key: &str) {
        let Some(entry) = self.offers.get_mut(key) else { return };
        let Some(kv) = entry.kv.clone() else { return };
        let Some(waiter) = entry.waiter.take() else { return };
        // If the decode just left, the offer stays.
        if waiter.send(TransferResult::Kv(kv)).is_ok() {
            entry.taken.take().map(|taken| taken.send(()));
            self.offers.remove(key);
        }
    }

    fn counts(&self) -> TransferCounts {
        let ready = self.offers.values().filter(|entry| entry.kv.is_some()).count();
        TransferCounts {
            open: self.offers.len() - ready,
            ready,
            early: self.early.len(),
            duplicates: self.duplicates,
        }
    }
}

/// Longest time until questions of decodes that left are dropped.
const FORGET_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn kv() -> HandedKv {
        HandedKv { token_id: 7, cached_tokens: 0, prompt_tokens: 3, prompt_digest: 9, dp_rank: 0 }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("runtime").block_on(test);
    }

    #[test]
    fn either_side_may_come_first() {
        run(async {
            let table = TransferTable::start();
            let mut first = table.offer("a".into()).await.expect("new");
            first.ready(kv());
            assert_eq!(table.take("a".into()).await, Ok(TransferResult::Kv(kv())));
            first.taken().await;

            let early = table.take("b".into());
            let mut second = table.offer("b".into()).await.expect("new");
            second.asked().await;
            second.ready(kv());
            assert_eq!(early.await, Ok(TransferResult::Kv(kv())));
            second.taken().await;
            assert_eq!(table.counts(), TransferCounts::default());
        });
    }

    #[test]
    fn names_are_used_once_and_a_dropped_offer_fails_its_decode() {
        run(async {
            let table = TransferTable::start();
            let offer = table.offer("a".into()).await.expect("new");
            assert!(table.offer("a".into()).await.is_none());
            assert_eq!((table.counts().open, table.counts().duplicates), (1, 1));
            let waits = table.take("a".into());
            drop(offer);
            assert!(matches!(waits.await, Ok(TransferResult::Failed(_))));
            assert!(table.offer("a".into()).await.is_some(), "the name is free again");
        });
    }

    #[test]
    fn a_decode_that_left_takes_nothing() {
        run(async {
            let table = TransferTable::start();
            drop(table.take("a".into()));
            let mut offer = table.offer("a".into()).await.expect("new");
            offer.ready(kv());
            let asked = tokio::time::timeout(Duration::from_millis(20), offer.asked()).await;
            assert!(asked.is_err(), "its question does not count");
            drop(table.take("a".into()));
            assert_eq!(table.take("a".into()).await, Ok(TransferResult::Kv(kv())));
            offer.taken().await;
        });
    }
}
