//! A scripted engine's KV events: a naive model of a prefix cache, a PUB socket and a ROUTER socket
//! that do what the test says. Nothing here is shared with the router's code but the encoder of the
//! simulated engine.

use super::frames::{Unit, encode, handshake, read_unit};
use forebay::engine::{BlockHash, CacheEvent, encode_batch};
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::{BTreeMap, VecDeque};
use std::io::{Result, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use twox_hash::XxHash3_64;

/// Tokens per block of every scripted engine.
pub(crate) const BLOCK: usize = 4;

/// How the replay socket answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replay {
    /// As engines do since 2026: with the topic.
    Topic,
    /// As they did before.
    Plain,
    /// Takes the request and says nothing.
    Silent,
    /// Answers with a message that is none.
    Garbage,
    /// Leaves out every so manyth batch of an answer.
    Partly(usize),
    /// Breaks off after so many batches, without a word.
    BreaksOff(usize),
    /// Pauses before each batch.
    Slow(Duration),
}

/// The process of an engine as its sockets show it.
pub(crate) struct Publisher {
    pub(crate) live: SocketAddr,
    pub(crate) replay: SocketAddr,
    shared: Arc<Shared>,
    random: fastrand::Rng,
    /// Paths of token ids that are held, with the number of copies.
    held: BTreeMap<Vec<u32>, u32>,
    /// Every prompt that was ever stored.
    pub(crate) prompts: Vec<Vec<u32>>,
    pending: Vec<CacheEvent>,
    /// Tells one process from the next, as the clock does.
    born: f64,
}

struct Shared {
    minor: u8,
    pongs: bool,
    state: Mutex<State>,
    asked: AtomicUsize,
}

struct State {
    next: u64,
    buffer: VecDeque<(u64, Vec<u8>)>,
    buffer_max: usize,
    mode: Replay,
    subscribers: Vec<Subscriber>,
}

struct Subscriber {
    stream: TcpStream,
    /// What the kernel did not take yet.
    pending: Vec<u8>,
    dropped: usize,
}

/// What waits for one subscriber at most; past it messages are dropped, as engines do.
const PENDING_BYTES_MAX: usize = 256 * 1024;

impl Subscriber {
    /// False once it is gone.
    fn send(&mut self, message: &[u8]) -> bool {
        if self.pending.len() > PENDING_BYTES_MAX {
            self.dropped += 1;
        } else {
            self.pending.extend_from_slice(message);
        }
        while !self.pending.is_empty() {
            match rustix::net::send(
                &self.stream,
                &self.pending,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            ) {
                Ok(count) => drop(self.pending.drain(..count)),
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

impl Publisher {
    /// Listens; `minor` is its version of ZMTP 3, and from 1 on it answers PING.
    pub(crate) fn start(minor: u8, mode: Replay) -> Self {
        Self::on(minor, mode, [any(), any()])
    }

    /// The same on these ports.
    pub(crate) fn on(minor: u8, mode: Replay, places: [SocketAddr; 2]) -> Self {
        let [live, replay] = places.map(|place| TcpListener::bind(place).unwrap());
        let publisher =
            Self::silent(minor, mode, [&live, &replay].map(|l| l.local_addr().unwrap()));
        let shared = Arc::clone(&publisher.shared);
        std::thread::spawn(move || {
            for stream in live.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || drop(shared.publish_to(stream)));
            }
        });
        let shared = Arc::clone(&publisher.shared);
        std::thread::spawn(move || {
            for stream in replay.incoming().flatten() {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || drop(shared.answer(stream)));
            }
        });
        publisher
    }

    /// Without sockets of its own; see [`Self::connect`].
    pub(crate) fn silent(minor: u8, mode: Replay, [live, replay]: [SocketAddr; 2]) -> Self {
        let state = State {
            next: 0,
            buffer: VecDeque::new(),
            buffer_max: 10_000,
            mode,
            subscribers: Vec::new(),
        };
        let born = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        Self {
            live,
            replay,
            shared: Arc::new(Shared {
                minor,
                pongs: minor > 0,
                state: Mutex::new(state),
                asked: AtomicUsize::new(0),
            }),
            random: fastrand::Rng::with_seed(7),
            held: BTreeMap::new(),
            prompts: Vec::new(),
            pending: Vec::new(),
            born,
        }
    }

    /// Connects to a subscriber that listens; true once it can be published to.
    pub(crate) fn connect(&self, to: SocketAddr) -> bool {
        let Ok(stream) = TcpStream::connect(to) else { return false };
        let shared = Arc::clone(&self.shared);
        std::thread::spawn(move || drop(shared.publish_to(stream)));
        true
    }

    /// Another process takes over the same sockets: empty cache, numbers from 0. Open connections
    /// stay, as behind a forwarder.
    pub(crate) fn restart_behind_its_connections(&mut self) {
        let mut state = self.shared.state.lock().unwrap();
        state.next = 0;
        state.buffer = VecDeque::new();
        self.held.clear();
        self.born += 1e6;
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.shared.state.lock().unwrap().subscribers.len()
    }

    /// Messages that were dropped because a subscriber did not read.
    pub(crate) fn dropped(&self) -> usize {
        self.shared.state.lock().unwrap().subscribers.iter().map(|one| one.dropped).sum()
    }

    pub(crate) fn replays_asked(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }

    pub(crate) fn answer_replays(&self, mode: Replay) {
        self.shared.state.lock().unwrap().mode = mode;
    }

    /// Keeps so many batches for replays.
    pub(crate) fn remember(&self, batches: usize) {
        self.shared.state.lock().unwrap().buffer_max = batches;
    }

    /// Closes the connections of all subscribers.
    pub(crate) fn hang_up(&self) {
        for subscriber in self.shared.state.lock().unwrap().subscribers.drain(..) {
            let _ = subscriber.stream.shutdown(Shutdown::Both);
        }
    }

    /// Stores what of the prompt is not held yet.
    pub(crate) fn store(&mut self, prompt: &[u32]) {
        let whole = prompt.len() / BLOCK * BLOCK;
        let from = self.held_blocks(prompt) * BLOCK;
        if from < whole {
            self.announce(prompt, from, whole);
        }
        self.prompts.push(prompt[..whole].to_vec());
    }

    fn announce(&mut self, prompt: &[u32], from: usize, to: usize) {
        let ends: Vec<usize> = (from + BLOCK..=to).step_by(BLOCK).collect();
        for end in &ends {
            *self.held.entry(prompt[..*end].to_vec()).or_insert(0) += 1;
        }
        self.pending.push(CacheEvent::Stored {
            hashes: ends.iter().map(|end| hash(&prompt[..*end])).collect(),
            parent: (from > 0).then(|| hash(&prompt[..from])),
            token_ids: prompt[from..to].to_vec(),
            salt: String::new(),
        });
    }

    /// Evicts one copy of a block that nothing continues.
    fn evict(&mut self) {
        let leaf = |path: &&Vec<u32>| {
            let mut after = self.held.range::<Vec<u32>, _>((
                std::ops::Bound::Excluded(*path),
                std::ops::Bound::Unbounded,
            ));
            after.next().is_none_or(|(next, _)| !next.starts_with(path))
        };
        let leaves: Vec<Vec<u32>> = self.held.keys().filter(leaf).cloned().collect();
        let Some(path) = self.random.choice(leaves) else { return };
        self.pending.push(CacheEvent::Removed { hash: hash(&path) });
        let copies = self.held.get_mut(&path).unwrap();
        *copies -= 1;
        if *copies == 0 {
            self.held.remove(&path);
        }
    }

    /// One step of a busy engine: something is stored, stored twice or evicted, seldom everything
    /// is cleared; published as one batch.
    pub(crate) fn churn(&mut self) {
        match self.random.u32(0..100) {
            0 => {
                self.held.clear();
                self.pending.push(CacheEvent::Cleared);
            }
            1..40 => (0..self.random.u32(1..4)).for_each(|_| self.evict()),
            40..50 if !self.held.is_empty() => {
                // The last block of a prompt that is repeated exactly.
                let at = self.random.usize(0..self.held.len());
                let path = self.held.keys().nth(at).unwrap().clone();
                self.announce(&path, path.len() - BLOCK, path.len());
            }
            _ => {
                let mut prompt = match self.prompts.len() {
                    0 => Vec::new(),
                    count => {
                        let old = self.prompts[self.random.usize(0..count)].clone();
                        old[..self.random.usize(0..=old.len() / BLOCK) * BLOCK].to_vec()
                    }
                };
                let more = BLOCK * self.random.usize(1..4);
                prompt.extend((0..more).map(|_| self.random.u32(200..2_000)));
                prompt.truncate(40 * BLOCK);
                self.store(&prompt);
            }
        }
        self.publish();
    }

    /// A long batch that changes nothing: removals of blocks that nobody was told of.
    pub(crate) fn pad(&mut self, removals: usize) {
        let random = &mut self.random;
        let removed =
            (0..removals).map(|_| CacheEvent::Removed { hash: BlockHash(random.u64(..)) });
        self.pending.extend(removed);
        self.publish();
    }

    /// Publishes what has happened as one batch.
    pub(crate) fn publish(&mut self) {
        let events = std::mem::take(&mut self.pending);
        let number = self.shared.state.lock().unwrap().next;
        // The time is what tells two processes apart.
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let payload =
            encode_batch(self.born + number as f64, &events, 0, u32::try_from(BLOCK).unwrap());
        self.say(&payload);
    }

    /// Publishes a batch of another engine.
    pub(crate) fn say(&self, payload: &[u8]) {
        let mut state = self.shared.state.lock().unwrap();
        let number = state.next;
        state.next += 1;
        if state.buffer.len() >= state.buffer_max {
            state.buffer.pop_front();
        }
        state.buffer.push_back((number, payload.to_vec()));
        let parts = vec![Vec::new(), number.to_be_bytes().to_vec(), payload.to_vec()];
        let bytes = encode(&Unit::Message(parts));
        state.subscribers.retain_mut(|subscriber| subscriber.send(&bytes));
    }

    /// Leading blocks of a prompt that are held.
    pub(crate) fn held_blocks(&self, prompt: &[u32]) -> usize {
        let ends = (BLOCK..=prompt.len()).step_by(BLOCK);
        ends.take_while(|&end| self.held.contains_key(&prompt[..end])).count()
    }

    /// Blocks held, copies counted once.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }
}

impl Shared {
    /// A subscriber: listens to it until it leaves.
    fn publish_to(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        handshake(&mut stream, "PUB", self.minor)?;
        loop {
            match read_unit(&mut stream)? {
                Unit::Message(parts) if parts[0].first() == Some(&1) => {
                    let mut state = self.state.lock().unwrap();
                    let stream = stream.try_clone()?;
                    state.subscribers.push(Subscriber { stream, pending: Vec::new(), dropped: 0 });
                }
                Unit::Command(body) if self.pongs && body.starts_with(b"\x04PING") => {
                    let pong = [b"\x04PONG", &body[7..]].concat();
                    let _publishing = self.state.lock().unwrap();
                    stream.write_all(&encode(&Unit::Command(pong)))?;
                }
                _ => {}
            }
        }
    }

    fn answer(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        handshake(&mut stream, "ROUTER", self.minor)?;
        let Unit::Message(request) = read_unit(&mut stream)? else { return Ok(()) };
        assert_eq!(request.len(), 2, "delimiter and start");
        let start = u64::from_be_bytes(request[1][..].try_into().unwrap());
        self.asked.fetch_add(1, Ordering::SeqCst);
        let (mode, batches) = {
            let state = self.state.lock().unwrap();
            let wanted = state.buffer.iter().filter(|(number, _)| *number >= start);
            (state.mode, wanted.cloned().collect::<Vec<_>>())
        };
        let end = (u64::MAX, Vec::new());
        for (at, (number, payload)) in batches.into_iter().chain([end]).enumerate() {
            match mode {
                Replay::Silent => break,
                Replay::Garbage => {
                    stream.write_all(&encode(&Unit::Message(vec![Vec::new(), vec![1, 2, 3]])))?;
                    break;
                }
                Replay::Partly(each) if number != u64::MAX && at % each == each - 1 => continue,
                Replay::BreaksOff(after) if at >= after => break,
                Replay::Slow(pause) => std::thread::sleep(pause),
                _ => {}
            }
            let number = number.to_be_bytes().to_vec();
            let mut parts = vec![Vec::new(), Vec::new(), number, payload];
            if mode == Replay::Plain {
                parts.remove(0);
            }
            stream.write_all(&encode(&Unit::Message(parts)))?;
        }
        // Open until the other side closes.
        let _ = read_unit(&mut stream);
        Ok(())
    }
}

fn hash(path: &[u32]) -> BlockHash {
    let bytes: Vec<u8> = path.iter().flat_map(|token| token.to_le_bytes()).collect();
    BlockHash(XxHash3_64::oneshot(&bytes))
}

fn any() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}
