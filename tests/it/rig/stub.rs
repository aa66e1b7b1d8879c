//! A stub engine for pairs: tells about itself what the router asks, notes when each request came
//! and when the router let go of it, and does to it what the test says, step by step.

use super::PATIENCE;
use super::stub_pages::Pages;
use rustix::net::{Shutdown, shutdown};
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What is done with a request, one after the other. After the last one the connection is kept.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    /// Until [`Stub::let_go`], or the router closes.
    Word,
    /// Closes the connection.
    Close,
}

/// A request that asks for tokens.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// When its head was complete.
    pub(crate) at: Instant,
    pub(crate) path: String,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// When the stub began to send the end of its answer.
    pub(crate) answered: Option<Instant>,
    /// When the stub itself closed.
    pub(crate) cut: Option<Instant>,
    /// When the router closed its connection.
    pub(crate) closed: Option<Instant>,
}

/// A listening engine; its threads end with the process.
pub(crate) struct Stub {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    pages: Pages,
    steps: Vec<Step>,
    /// For the next requests, before `steps` counts again.
    first: VecDeque<Vec<Step>>,
    arrivals: Vec<Arrival>,
    aborts: Vec<(Instant, String)>,
    connections: Vec<TcpStream>,
    words: usize,
    in_flight: usize,
    in_flight_peak: usize,
    /// Numbers of arrivals count from here, so that threads of earlier ones do no harm.
    forgotten: usize,
}

impl Stub {
    /// Answers every request with `{}` until it is told otherwise.
    pub(crate) fn start(pages: Pages) -> Self {
        Self::listening(TcpListener::bind("127.0.0.1:0").unwrap(), pages)
    }

    pub(crate) fn listening(listener: TcpListener, mut pages: Pages) -> Self {
        let address = listener.local_addr().unwrap();
        pages.port = address.port();
        let state = State {
            pages,
            steps: answer(b"{}"),
            first: VecDeque::new(),
            arrivals: Vec::new(),
            aborts: Vec::new(),
            connections: Vec::new(),
            words: 0,
            in_flight: 0,
            in_flight_peak: 0,
            forgotten: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let accepting = listener.try_clone().unwrap();
        let for_all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in accepting.incoming() {
                let Ok(stream) = stream else { return };
                let shared = Arc::clone(&for_all);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { address, listener, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it does with every request from now on.
    pub(crate) fn always(&self, steps: Vec<Step>) {
        self.shared.lock().steps = steps;
    }

    /// What it does with one request.
    pub(crate) fn once(&self, steps: Vec<Step>) {
        self.shared.lock().first.push_back(steps);
    }

    pub(crate) fn pages(&self, change: impl FnOnce(&mut Pages)) {
        change(&mut self.shared.lock().pages);
    }

    /// One request at [`Step::Word`] goes on: one that stands there, or the next.
    pub(crate) fn let_go(&self) {
        self.shared.lock().words += 1;
        self.shared.changed.notify_all();
    }

    /// Request number `number`, once it has come.
    pub(crate) fn arrival(&self, number: usize) -> Arrival {
        let what = format!("request {number} reaches {}", self.address);
        self.wait(&what, |state| state.arrivals.get(number).cloned())
    }

    pub(crate) fn arrivals(&self) -> Vec<Arrival> {
        self.shared.lock().arrivals.clone()
    }

    /// When the router closed the connection of that request.
    pub(crate) fn closed(&self, number: usize) -> Instant {
        let what = format!("the router closes request {number} at {}", self.address);
        self.wait(&what, |state| state.arrivals.get(number)?.closed)
    }

    /// When the stub itself closed it.
    pub(crate) fn cut(&self, number: usize) -> Instant {
        let what = format!("{} closes request {number}", self.address);
        self.wait(&what, |state| state.arrivals.get(number)?.cut)
    }

    /// Body of the first `POST /abort_request`, once it has come.
    pub(crate) fn abort(&self) -> (Instant, String) {
        let what = format!("{} is told to abort", self.address);
        self.wait(&what, |state| state.aborts.first().cloned())
    }

    /// Bodies of all that came.
    pub(crate) fn aborts(&self) -> Vec<(Instant, String)> {
        self.shared.lock().aborts.clone()
    }

    fn wait<T>(&self, what: &str, found: impl Fn(&State) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        loop {
            if let Some(found) = found(&state) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "gave up waiting: {what}");
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Most requests that it had at a time.
    pub(crate) fn in_flight_peak(&self) -> usize {
        self.shared.lock().in_flight_peak
    }

    /// As if nothing had come yet.
    pub(crate) fn forget(&self) {
        let mut state = self.shared.lock();
        state.forgotten += state.arrivals.len();
        state.arrivals.clear();
        state.aborts.clear();
        state.words = 0;
        state.in_flight = 0;
        state.in_flight_peak = 0;
    }

    /// Refuses connections from now on, and closes those that are open.
    pub(crate) fn vanish(&self) {
        shutdown(&self.listener, Shutdown::Both).unwrap();
        self.cut_all();
    }

    /// Closes every connection; new ones are welcome.
    pub(crate) fn cut_all(&self) {
        for stream in self.shared.lock().connections.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Reads requests until the router closes; another thread answers, so that a close is seen at
    /// once.
    fn serve(self: &Arc<Self>, mut stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        self.lock().connections.push(stream.try_clone().unwrap());
        let (sender, asked) = channel();
        let answering = stream.try_clone().unwrap();
        let shared = Arc::clone(self);
        std::thread::spawn(move || shared.answer(answering, &asked));
        let mut last = None;
        self.read(&mut stream, &sender, &mut last);
        let mut state = self.lock();
        if let Some(number) = last
            && let Some(arrival) = state.arrival(number)
        {
            let open = arrival.answered.is_none() && arrival.closed.is_none();
            if arrival.cut.is_none() {
                arrival.closed = Some(Instant::now());
            }
            if open {
                state.in_flight = state.in_flight.saturating_sub(1);
            }
        }
        self.changed.notify_all();
    }

    fn read(&self, stream: &mut TcpStream, asked: &Sender<Asked>, last: &mut Option<usize>) {
        let mut input = Vec::new();
        loop {
            let head = loop {
                if let Some(end) = memchr::memmem::find(&input, b"\r\n\r\n") {
                    break String::from_utf8(input.drain(..end + 4).collect()).unwrap();
                }
                if !more(stream, &mut input) {
                    return;
                }
            };
            let at = Instant::now();
            let length = length_of(&head);
            while input.len() < length {
                if !more(stream, &mut input) {
                    return;
                }
            }
            let body: Vec<u8> = input.drain(..length).collect();
            let asks = self.lock().take(at, head, body, last);
            self.changed.notify_all();
            // An error: the other thread has closed.
            if asked.send(asks).is_err() {
                return;
            }
        }
    }

    fn answer(&self, mut stream: TcpStream, asked: &Receiver<Asked>) {
        while let Ok(Asked { number, steps }) = asked.recv() {
            let last = steps.len().saturating_sub(1);
            for (position, step) in steps.into_iter().enumerate() {
                if position == last && matches!(step, Step::Send(_)) {
                    // Before its end is seen: the router may use the place at once.
                    self.answered(number);
                }
                let goes_on = match step {
                    Step::Send(bytes) => stream.write_all(&bytes).is_ok(),
                    Step::Pause(time) => {
                        std::thread::sleep(time);
                        true
                    }
                    Step::Word => self.word(number),
                    Step::Close => {
                        self.cut(number);
                        let _ = stream.shutdown(std::net::Shutdown::Both);
                        false
                    }
                };
                if !goes_on {
                    return;
                }
            }
        }
    }

    fn answered(&self, number: Option<usize>) {
        let mut state = self.lock();
        if let Some(arrival) = number.and_then(|number| state.arrival(number)) {
            arrival.answered = Some(Instant::now());
            if arrival.closed.is_none() {
                state.in_flight = state.in_flight.saturating_sub(1);
            }
        }
        self.changed.notify_all();
    }

    /// Waits for the test's word; false if the router closes meanwhile.
    fn word(&self, number: Option<usize>) -> bool {
        let mut state = self.lock();
        loop {
            if state.words > 0 {
                state.words -= 1;
                return true;
            }
            match number.and_then(|number| state.arrival(number)) {
                Some(arrival) if arrival.closed.is_none() => {}
                _ => return false,
            }
            let (next, waited) = self.changed.wait_timeout(state, PATIENCE).unwrap();
            state = next;
            if waited.timed_out() {
                return false;
            }
        }
    }

    fn cut(&self, number: Option<usize>) {
        let mut state = self.lock();
        if let Some(arrival) = number.and_then(|number| state.arrival(number)) {
            arrival.cut = Some(Instant::now());
        }
        self.changed.notify_all();
    }
}

/// What the answering thread is to do; `number` for what asks for tokens.
struct Asked {
    number: Option<usize>,
    steps: Vec<Step>,
}

impl State {
    fn arrival(&mut self, number: usize) -> Option<&mut Arrival> {
        self.arrivals.get_mut(number.checked_sub(self.forgotten)?)
    }

    fn take(
        &mut self,
        at: Instant,
        head: String,
        body: Vec<u8>,
        last: &mut Option<usize>,
    ) -> Asked {
        let mut words = head.split(' ');
        let method = words.next().unwrap().to_owned();
        let path = words.next().unwrap().to_owned();
        if method == "GET" {
            let (status, text) = self.pages.get(&path);
            return Asked { number: None, steps: answer_with(status, text.as_bytes()) };
        }
        if path == "/abort_request" {
            self.aborts.push((at, String::from_utf8(body).unwrap()));
            return Asked { number: None, steps: answer(b"") };
        }
        let number = self.forgotten + self.arrivals.len();
        *last = Some(number);
        let answered = None;
        let cut = None;
        let closed = None;
        self.arrivals.push(Arrival { at, path, head, body, answered, cut, closed });
        self.in_flight += 1;
        self.in_flight_peak = self.in_flight_peak.max(self.in_flight);
        let steps = self.first.pop_front().unwrap_or_else(|| self.steps.clone());
        Asked { number: Some(number), steps }
    }
}

impl Arrival {
    /// Values of that field, in order.
    pub(crate) fn fields(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, it)| it.trim()).collect()
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

/// 200 with this JSON.
pub(crate) fn answer(body: &[u8]) -> Vec<Step> {
    answer_with(200, body)
}

pub(crate) fn answer_with(status: u16, body: &[u8]) -> Vec<Step> {
    vec![Step::Send(reply_bytes(status, "", body))]
}

/// A whole answer; `fields`: further lines of its head.
pub(crate) fn reply_bytes(status: u16, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{fields}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Head of a stream of events.
pub(crate) const STREAM_HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

/// One chunk of a chunked body; an empty one ends it.
pub(crate) fn chunk(data: &[u8]) -> Vec<u8> {
    [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat()
}

/// A whole stream, one chunk an event.
pub(crate) fn stream_of(events: &[&str]) -> Vec<u8> {
    let mut bytes = STREAM_HEAD.to_vec();
    for event in events.iter().chain(&[""]) {
        bytes.extend_from_slice(&chunk(event.as_bytes()));
    }
    bytes
}

fn length_of(head: &str) -> usize {
    let length = |line: &str| -> Option<usize> {
        line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
    };
    head.lines().find_map(length).unwrap_or(0)
}

fn more(stream: &mut TcpStream, input: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 65_536];
    match stream.read(&mut buffer) {
        Ok(count) => {
            input.extend_from_slice(&buffer[..count]);
            count > 0
        }
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => more(stream, input),
        Err(_) => false,
    }
}
