//! Either leg of a pair fails at each phase: the client hears of it at once and hears the truth,
//! the other leg is let go, and nothing is left behind.

use crate::rig::pairs::{ask, idle, pair_config, ready, reason, text};
use crate::rig::stub::{STREAM_HEAD, Step, Stub, answer, chunk, reply_bytes, stream_of};
use crate::rig::stub_pages::Pages;
use crate::rig::{Client, PATIENCE, Reply, metric, until};
use forebay::config::{Config, TenantConfig};
use forebay::server::ServerHandle;
use std::time::{Duration, Instant};

/// The promise, from the moment at which the fault can be seen to the client's answer and to the
/// other leg's end. The machine may run other things: one of [`ATTEMPTS`] has to keep it, all have
/// to be right.
const SOON: Duration = Duration::from_millis(100);
const ATTEMPTS: usize = 12;
/// Until a silent leg is given up, in the cases where one is silent.
const SILENCE: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// SGLang: both legs at once.
    Bootstrap,
    /// vLLM: decode after prefill.
    TwoPhase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Prefill,
    Decode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Refused,
    BeforeHead,
    InHead,
    AfterHead,
    MidBody,
    Hang,
}

const PHASES: [Phase; 6] = [
    Phase::Refused,
    Phase::BeforeHead,
    Phase::InHead,
    Phase::AfterHead,
    Phase::MidBody,
    Phase::Hang,
];

#[derive(Clone, Copy, Debug)]
struct Case {
    flow: Flow,
    side: Side,
    phase: Phase,
    stream: bool,
}

struct Fleet {
    prefill: Vec<Stub>,
    decode: Vec<Stub>,
    router: ServerHandle,
}

impl Flow {
    fn stub(self, side: Side) -> Stub {
        Stub::start(match (self, side) {
            (Self::TwoPhase, _) => Pages::vllm(),
            (Self::Bootstrap, Side::Prefill) => Pages::sglang("prefill"),
            (Self::Bootstrap, Side::Decode) => Pages::sglang("decode"),
        })
    }

    const fn lines(self, side: Side) -> &'static str {
        match (self, side) {
            (Self::Bootstrap, _) => "",
            (Self::TwoPhase, Side::Prefill) => "role = \"prefill\"",
            (Self::TwoPhase, Side::Decode) => "role = \"decode\"",
        }
    }

    fn fleet(self, of_each: usize, lines: &str, change: impl FnOnce(&mut Config)) -> Fleet {
        let many = |side| (0..of_each).map(|_| self.stub(side)).collect::<Vec<_>>();
        let prefill = many(Side::Prefill);
        let decode = many(Side::Decode);
        let mut workers = Vec::new();
        workers.extend(prefill.iter().map(|stub| (stub, self.lines(Side::Prefill))));
        workers.extend(decode.iter().map(|stub| (stub, self.lines(Side::Decode))));
        let mut config = pair_config(&workers, lines);
        change(&mut config);
        let router = ready(config, &workers);
        Fleet { prefill, decode, router }
    }

    /// A prefill leg that is done.
    fn done(self, stream: bool) -> Vec<Step> {
        match (self, stream) {
            (Self::TwoPhase, _) => answer(br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#),
            (Self::Bootstrap, false) => answer(br#"{"prefill":1}"#),
            (Self::Bootstrap, true) => {
                vec![Step::Send(stream_of(&["data: {\"prefill\":1}\n\n", "data: [DONE]\n\n"]))]
            }
        }
    }
}

impl Fleet {
    fn forget(&self) {
        for stub in self.prefill.iter().chain(&self.decode) {
            stub.forget();
        }
    }

    fn ask(&self, stream: bool) -> Client {
        let body = format!(r#"{{"model":"m","prompt":"hi","max_tokens":5,"stream":{stream}}}"#);
        ask(&self.router, "/v1/completions", &body)
    }
}

const TOKENS: [&str; 2] = ["data: {\"decode\":1}\n\n", "data: [DONE]\n\n"];

fn decoded(stream: bool) -> Vec<Step> {
    if stream { vec![Step::Send(stream_of(&TOKENS))] } else { answer(br#"{"decode":1}"#) }
}

fn is_decoded(reply: &Reply, stream: bool) -> bool {
    let expected = if stream { TOKENS.concat() } else { r#"{"decode":1}"#.to_owned() };
    (reply.status, reply.complete) == (200, true) && reply.text() == expected
}

/// Head of an answer that has a body of 100 bytes, and the beginning of the body.
fn parts(stream: bool) -> (Vec<u8>, Vec<u8>) {
    if stream {
        (STREAM_HEAD.to_vec(), chunk(TOKENS[0].as_bytes()))
    } else {
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n".to_vec(), b"short".to_vec())
    }
}

impl Case {
    /// What the failing stub does; the fault comes with the test's word.
    fn fault(&self) -> Vec<Step> {
        let (head, beginning) = parts(self.stream);
        match self.phase {
            Phase::Refused | Phase::Hang => vec![Step::Word],
            Phase::BeforeHead => vec![Step::Word, Step::Close],
            Phase::InHead => {
                let beginning = b"HTTP/1.1 200 OK\r\ncontent-ty".to_vec();
                vec![Step::Send(beginning), Step::Word, Step::Close]
            }
            Phase::AfterHead => vec![Step::Send(head), Step::Word, Step::Close],
            Phase::MidBody => {
                vec![Step::Send(head), Step::Send(beginning), Step::Word, Step::Close]
            }
        }
    }

    /// The client has a part of decode's answer when it breaks.
    fn is_cut(&self) -> bool {
        (self.side, self.phase) == (Side::Decode, Phase::MidBody)
    }

    fn fleet(&self) -> Fleet {
        let timeout = match (self.side, self.phase) {
            (Side::Prefill, Phase::Hang) => SILENCE,
            _ => Duration::from_secs(20),
        };
        let lines =
            format!("fallback = \"reject\"\nprefill_timeout = \"{}ms\"", timeout.as_millis());
        self.flow.fleet(1, &lines, |config| {
            if (self.side, self.phase) == (Side::Decode, Phase::Hang) {
                config.timeouts.first_byte = SILENCE;
            }
        })
    }

    /// One request that meets the fault; how late the client's answer and the other leg's end were.
    fn meet(&self, fleet: &Fleet) -> (Duration, Duration) {
        fleet.forget();
        let prefill = &fleet.prefill[0];
        let decode = &fleet.decode[0];
        let both = self.flow == Flow::Bootstrap;
        let (hit, other) = match self.side {
            Side::Prefill => (prefill, decode),
            Side::Decode => (decode, prefill),
        };
        hit.always(self.fault());
        other.always(match self.flow {
            Flow::Bootstrap => vec![Step::Word],
            Flow::TwoPhase => self.flow.done(self.stream),
        });
        let sent = Instant::now();
        let mut client = fleet.ask(self.stream);
        let visible = match self.phase {
            Phase::Refused => sent,
            Phase::Hang => hit.arrival(0).at + SILENCE,
            _ => {
                hit.arrival(0);
                if both {
                    other.arrival(0);
                }
                if self.is_cut() {
                    client.peek("the beginning reaches the client");
                }
                // What has been sent before is with the router.
                std::thread::sleep(Duration::from_millis(20));
                hit.let_go();
                hit.cut(0)
            }
        };
        let reply = client.reply();
        let answered = Instant::now().saturating_duration_since(visible);
        self.check(&reply);
        let let_go = self
            .check_other(hit, other)
            .map_or(Duration::ZERO, |at| at.saturating_duration_since(visible));
        idle(&fleet.router);
        (answered, let_go)
    }

    fn check(&self, reply: &Reply) {
        let text = reply.text();
        let what = format!("{self:?}\n{}{text}", reply.head);
        if self.is_cut() {
            assert_eq!((reply.status, reply.complete), (200, false), "{what}");
            match self.stream {
                true => {
                    assert!(text.starts_with(TOKENS[0]) && text.contains("\"error\""), "{what}");
                }
                false => assert_eq!(text, "short", "{what}"),
            }
            return;
        }
        let expected = match self.phase {
            Phase::Hang => (504, "upstream-timeout"),
            _ => (502, "upstream-failed"),
        };
        assert_eq!((reply.status, reason(reply)), expected, "{what}");
        assert!(reply.complete && text.contains("\"error\":{\"message\":"), "{what}");
    }

    /// The leg that did not fail is ended; when. `None`: there is none.
    fn check_other(&self, hit: &Stub, other: &Stub) -> Option<Instant> {
        match (self.flow, self.side) {
            (Flow::TwoPhase, Side::Prefill) => {
                assert!(other.arrivals().is_empty(), "{self:?}: no decode without prefill");
                None
            }
            (Flow::TwoPhase, Side::Decode) => None,
            (Flow::Bootstrap, _) if self.phase == Phase::Refused && other.arrivals().is_empty() => {
                None
            }
            (Flow::Bootstrap, _) => {
                let closed = other.closed(0);
                let asked = aborted(other);
                if self.phase == Phase::Hang {
                    hit.closed(0);
                    aborted(hit);
                }
                Some(closed.max(asked))
            }
        }
    }
}

/// Waits until the engine was told to abort its first request; when.
fn aborted(stub: &Stub) -> Instant {
    let (at, body) = stub.abort();
    let leg = stub.arrival(0);
    let rid = text(leg.text(), "rid").expect("a rid");
    assert_eq!(body, format!("{{\"rid\":\"{rid}\"}}"));
    at
}

#[test]
fn each_leg_may_fail_at_each_phase() {
    let mut table = Vec::new();
    let mut late = Vec::new();
    for flow in [Flow::Bootstrap, Flow::TwoPhase] {
        for side in [Side::Prefill, Side::Decode] {
            for phase in PHASES {
                for stream in [false, true] {
                    let case = Case { flow, side, phase, stream };
                    let (answered, ended) = attempts(case);
                    table.push(format!("{answered:>9.1?} {ended:>9.1?}  {case:?}"));
                    if answered > SOON || ended > SOON {
                        late.push(table.last().cloned().unwrap());
                    }
                }
            }
        }
    }
    // `--nocapture`: how long clients waited after each fault, and the other leg's engine.
    println!("   client     other  case\n{}", table.join("\n"));
    assert!(late.is_empty(), "later than {SOON:?}:\n{}", late.join("\n"));
}

/// The least of some attempts, each in time for its own reasons.
fn attempts(case: Case) -> (Duration, Duration) {
    let fleet = case.fleet();
    if case.phase == Phase::Refused {
        match case.side {
            Side::Prefill => fleet.prefill[0].vanish(),
            Side::Decode => fleet.decode[0].vanish(),
        }
    }
    let mut least = (Duration::MAX, Duration::MAX);
    for _ in 0..ATTEMPTS {
        let (answered, ended) = case.meet(&fleet);
        least = (least.0.min(answered), least.1.min(ended));
        if least.0 < SOON && least.1 < SOON {
            break;
        }
    }
    if case.phase != Phase::Refused {
        fleet.forget();
        fleet.prefill[0].always(case.flow.done(case.stream));
        fleet.decode[0].always(decoded(case.stream));
        let reply = fleet.ask(case.stream).reply();
        assert!(
            is_decoded(&reply, case.stream),
            "afterwards all is well, {case:?} {}",
            reply.text()
        );
    }
    idle(&fleet.router);
    least
}

#[test]
fn another_pair_is_asked_while_the_client_has_nothing() {
    for flow in [Flow::Bootstrap, Flow::TwoPhase] {
        for side in [Side::Prefill, Side::Decode] {
            for phase in &PHASES[..5] {
                let case = Case { flow, side, phase: *phase, stream: true };
                if !case.is_cut() {
                    retried(case);
                }
            }
        }
    }
}

fn retried(case: Case) {
    let fleet = case.flow.fleet(2, "", |_| {});
    let bad = match case.side {
        Side::Prefill => &fleet.prefill,
        Side::Decode => &fleet.decode,
    };
    // KV takes its time, so that a prefill leg fails before decode could answer.
    let slowly = |steps: Vec<Step>| [vec![Step::Pause(Duration::from_millis(200))], steps].concat();
    for stub in &fleet.prefill {
        stub.always(case.flow.done(true));
    }
    for stub in &fleet.decode {
        stub.always(slowly(decoded(true)));
    }
    if case.phase == Phase::Refused {
        bad[0].vanish();
    } else {
        // At once.
        let now = case.fault().into_iter().filter(|step| !matches!(step, Step::Word));
        bad[0].always(now.collect());
    }
    let met = || match case.phase {
        Phase::Refused => metric(&fleet.router, "forebay_retries_total") > 0.0,
        _ => !bad[0].arrivals().is_empty(),
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reply = fleet.ask(true).reply();
        assert!(is_decoded(&reply, true), "{case:?}\n{}{}", reply.head, reply.text());
        if met() {
            let field = match case.side {
                Side::Prefill => "x-forebay-prefill-worker",
                Side::Decode => "x-forebay-worker",
            };
            assert_eq!(reply.field(field), Some(&*bad[1].address.to_string()), "{case:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{case:?}: the bad one is never asked");
    }
    idle(&fleet.router);
}

#[test]
fn each_leg_is_judged_by_its_own_breaker() {
    for flow in [Flow::Bootstrap, Flow::TwoPhase] {
        for side in [Side::Prefill, Side::Decode] {
            let fleet = flow.fleet(2, "", |config| {
                config.breaker.failures = 2;
                config.breaker.open = Duration::from_secs(60);
                config.retry.budget_percent = 100;
            });
            for stub in &fleet.prefill {
                stub.always(flow.done(true));
            }
            for stub in &fleet.decode {
                stub.always([vec![Step::Pause(Duration::from_millis(50))], decoded(true)].concat());
            }
            let (bad, others) = match side {
                Side::Prefill => (&fleet.prefill[0], &fleet.decode),
                Side::Decode => (&fleet.decode[0], &fleet.prefill),
            };
            bad.always(vec![Step::Close]);
            for _ in 0..16 {
                let reply = fleet.ask(true).reply();
                assert!(is_decoded(&reply, true), "{flow:?} {side:?} {}", reply.text());
            }
            assert_eq!(bad.arrivals().len(), 3, "{flow:?} {side:?}: left alone after a trial");
            // Nobody is blamed for the other leg.
            for other in others {
                assert!(other.arrivals().len() >= 6, "{flow:?} {side:?}");
            }
            idle(&fleet.router);
        }
    }
}

#[test]
fn a_success_stays_one_whatever_becomes_of_prefill() {
    for phase in PHASES {
        let case = Case { flow: Flow::Bootstrap, side: Side::Prefill, phase, stream: true };
        if phase == Phase::Refused {
            continue;
        }
        let fleet = case.fleet();
        let prefill = &fleet.prefill[0];
        let decode = &fleet.decode[0];
        prefill.always(case.fault());
        decode.always(vec![
            Step::Send(STREAM_HEAD.to_vec()),
            Step::Send(chunk(TOKENS[0].as_bytes())),
            Step::Word,
            Step::Send([chunk(TOKENS[1].as_bytes()), chunk(b"")].concat()),
        ]);
        // In the middle of the answer, and behind its end.
        for end_first in [false, true] {
            fleet.forget();
            let mut client = fleet.ask(true);
            client.peek("the first token");
            prefill.arrival(0);
            if end_first {
                decode.let_go();
                until("decode has answered", || decode.arrival(0).answered.is_some());
            }
            match phase {
                Phase::Hang => std::thread::sleep(SILENCE * 3 / 2),
                _ => {
                    prefill.let_go();
                    prefill.cut(0);
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            if !end_first {
                decode.let_go();
            }
            let reply = client.reply();
            assert!(is_decoded(&reply, true), "{case:?}\n{}{}", reply.head, reply.text());
            idle(&fleet.router);
            if phase == Phase::Hang {
                prefill.closed(0);
                aborted(prefill);
            }
        }
    }
}

/// What decode has done when the client leaves.
const LEAVES: [&str; 4] = ["nothing", "head", "token", "prefill is done"];

#[test]
fn a_client_that_leaves_takes_both_legs_with_it() {
    for flow in [Flow::Bootstrap, Flow::TwoPhase] {
        let fleet = flow.fleet(1, "", |_| {});
        for when in LEAVES {
            let mut least = Duration::MAX;
            for _ in 0..ATTEMPTS {
                least = least.min(leave(&fleet, flow, when));
                if least < SOON {
                    break;
                }
            }
            assert!(least < SOON, "{flow:?}, {when}: {least:?}");
        }
    }
}

fn leave(fleet: &Fleet, flow: Flow, when: &str) -> Duration {
    fleet.forget();
    let prefill = &fleet.prefill[0];
    let decode = &fleet.decode[0];
    let waits_for_prefill = flow == Flow::TwoPhase && when == "nothing";
    let busy = flow == Flow::Bootstrap && when != "prefill is done" || waits_for_prefill;
    prefill.always(if busy { vec![Step::Word] } else { flow.done(true) });
    let (head, beginning) = parts(true);
    decode.always(match when {
        "head" => vec![Step::Send(head), Step::Word],
        "token" | "prefill is done" => vec![Step::Send(head), Step::Send(beginning), Step::Word],
        _ => vec![Step::Word],
    });
    let client = fleet.ask(true);
    prefill.arrival(0);
    if !waits_for_prefill {
        decode.arrival(0);
    }
    if matches!(when, "token" | "prefill is done") {
        client.peek("the first token");
    }
    std::thread::sleep(Duration::from_millis(30));
    let left = Instant::now();
    drop(client);
    let mut ends = Vec::new();
    let legs = [(prefill, busy), (decode, !waits_for_prefill)];
    for (stub, _) in legs.iter().filter(|(_, open)| *open) {
        ends.push(stub.closed(0));
        if flow == Flow::Bootstrap {
            ends.push(aborted(stub));
        }
    }
    idle(&fleet.router);
    assert!(!waits_for_prefill || decode.arrivals().is_empty(), "nobody waits for decode's answer");
    ends.iter().map(|end| end.saturating_duration_since(left)).max().unwrap_or_default()
}

#[test]
fn what_an_engine_answers_is_what_the_client_hears() {
    const FAULT: &[u8] = br#"{"error":{"message":"too long","type":"BadRequest","code":400}}"#;
    let limits =
        TenantConfig { name: "*".to_owned(), requests_per_minute: 6_000, ..Default::default() };
    for flow in [Flow::Bootstrap, Flow::TwoPhase] {
        let fleet = flow.fleet(1, "", |config| config.flow.tenants = vec![limits.clone()]);
        let counted = || {
            let all = metric(&fleet.router, "forebay_tenant_requests_total{");
            let is_answered = r#"forebay_tenant_requests_total{tenant="*",result="answered"}"#;
            let answered = metric(&fleet.router, is_answered);
            [answered, all - answered]
        };
        let before = counted();
        let prefill = &fleet.prefill[0];
        let decode = &fleet.decode[0];
        // Prefill refuses the request itself: no other rank would take it.
        prefill.always(vec![Step::Word, Step::Send(reply_bytes(400, "", FAULT))]);
        decode.always(vec![Step::Word]);
        let mut client = fleet.ask(true);
        if flow == Flow::Bootstrap {
            decode.arrival(0);
        }
        prefill.let_go();
        let reply = client.reply();
        assert_eq!((reply.status, reply.body.as_slice()), (400, FAULT), "{flow:?}");
        assert_eq!(reply.field("x-ratelimit-limit-requests"), Some("6000"), "{}", reply.head);
        if flow == Flow::Bootstrap {
            decode.closed(0);
            aborted(decode);
        }
        assert_eq!(prefill.arrivals().len(), 1, "asked once");
        idle(&fleet.router);
        // Decode does.
        for status in [400, 422] {
            fleet.forget();
            prefill.always(if flow == Flow::Bootstrap {
                vec![Step::Word]
            } else {
                flow.done(true)
            });
            decode.always(vec![Step::Word, Step::Send(reply_bytes(status, "", FAULT))]);
            let mut client = fleet.ask(true);
            prefill.arrival(0);
            decode.let_go();
            let reply = client.reply();
            assert_eq!((reply.status, reply.body.as_slice()), (status, FAULT), "{flow:?}");
            if flow == Flow::Bootstrap {
                prefill.closed(0);
                aborted(prefill);
            }
            idle(&fleet.router);
        }
        // The engine has answered: the router refused nothing, and the request is no failure.
        assert_eq!(counted(), [before[0] + 3.0, before[1]], "{flow:?}");
    }
}

#[test]
fn errors_inside_an_answer_are_errors() {
    let fleet = Flow::Bootstrap.fleet(1, "", |_| {});
    let prefill = &fleet.prefill[0];
    let decode = &fleet.decode[0];
    let in_stream = "data: {\"error\":{\"message\":\"Prefill bootstrap failed\",\"code\":500}}\n\n";
    for (stream, steps) in [
        (true, vec![Step::Send(stream_of(&[in_stream, "data: [DONE]\n\n"]))]),
        (
            false,
            answer(
                br#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"Prefill transfer failed","status_code":500}}}"#,
            ),
        ),
    ] {
        fleet.forget();
        prefill.always([vec![Step::Word], steps].concat());
        decode.always(vec![Step::Word]);
        let mut client = fleet.ask(stream);
        decode.arrival(0);
        prefill.let_go();
        let reply = client.reply();
        assert_eq!((reply.status, reason(&reply)), (502, "upstream-failed"), "{}", reply.text());
        decode.closed(0);
        aborted(decode);
        idle(&fleet.router);
    }
    // Decode's own, while no token has come: as if it had answered so.
    fleet.forget();
    prefill.always(vec![Step::Word]);
    decode.always(vec![Step::Word, Step::Send(stream_of(&[in_stream, "data: [DONE]\n\n"]))]);
    let mut client = fleet.ask(true);
    prefill.arrival(0);
    decode.let_go();
    let reply = client.reply();
    assert_eq!((reply.status, reason(&reply)), (502, "upstream-failed"), "{}", reply.text());
    prefill.closed(0);
    aborted(prefill);
    idle(&fleet.router);
    // One that blames the client comes as it is.
    fleet.forget();
    let refused = in_stream.replace("500", "400");
    decode.always(vec![Step::Word, Step::Send(stream_of(&[&refused, "data: [DONE]\n\n"]))]);
    let mut client = fleet.ask(true);
    prefill.arrival(0);
    decode.let_go();
    let reply = client.reply();
    assert_eq!((reply.status, reply.complete), (200, true));
    assert_eq!(reply.text(), format!("{refused}data: [DONE]\n\n"));
    prefill.closed(0);
    aborted(prefill);
    idle(&fleet.router);
    // Behind a token nothing is changed any more.
    fleet.forget();
    prefill.always(Flow::Bootstrap.done(true));
    let events = [TOKENS[0], in_stream, "data: [DONE]\n\n"];
    let rest = [chunk(events[1].as_bytes()), chunk(events[2].as_bytes()), chunk(b"")].concat();
    let (head, token) = parts(true);
    decode.always(vec![Step::Send([head, token].concat()), Step::Word, Step::Send(rest)]);
    let mut client = fleet.ask(true);
    client.peek("the first token");
    decode.let_go();
    let reply = client.reply();
    assert_eq!((reply.status, reply.complete, reply.text()), (200, true, events.concat()));
    idle(&fleet.router);
}

#[test]
fn an_engine_without_room_is_no_failure() {
    const BUSY: &[u8] = br#"{"error":{"message":"The engine is currently busy","code":503}}"#;
    for flow in [Flow::Bootstrap, Flow::TwoPhase] {
        for side in [Side::Prefill, Side::Decode] {
            let fleet = flow.fleet(1, "", |_| {});
            let prefill = &fleet.prefill[0];
            let decode = &fleet.decode[0];
            prefill.always(flow.done(true));
            decode.always([vec![Step::Pause(Duration::from_millis(100))], decoded(true)].concat());
            let busy = match side {
                Side::Prefill => prefill,
                Side::Decode => decode,
            };
            busy.once(vec![Step::Send(reply_bytes(503, "", BUSY))]);
            let reply = fleet.ask(true).reply();
            assert!(is_decoded(&reply, true), "{flow:?} {side:?}\n{}{}", reply.head, reply.text());
            assert_eq!(busy.arrivals().len(), 2, "{flow:?} {side:?}: asked again later");
            idle(&fleet.router);
        }
    }
}

/// A name of the client's own goes to the next attempt as it is: an abort of the first would end
/// the second, and those of other clients whose names begin with it.
#[test]
fn nothing_is_aborted_by_a_name_that_the_client_chose() {
    let broken = Flow::Bootstrap.stub(Side::Prefill);
    let prefill = Flow::Bootstrap.stub(Side::Prefill);
    let decode = Flow::Bootstrap.stub(Side::Decode);
    let workers = [(&broken, ""), (&prefill, ""), (&decode, "")];
    let router = ready(pair_config(&workers, ""), &workers);
    broken.always(vec![Step::Word, Step::Close]);
    prefill.always(Flow::Bootstrap.done(false));
    decode.always(decoded(false));
    for rid in ["session-0123456789abcdef-0123456789abcdef-1", r"\u0066\u0062\u002d\u0030"] {
        let body = format!(r#"{{"model":"m","prompt":"hi","rid":"{rid}"}}"#);
        until("a request has met the broken worker and went on with the other", || {
            decode.forget();
            broken.forget();
            prefill.forget();
            // The decode leg of the first attempt waits, as for KV, until it is given up.
            decode.once([vec![Step::Word], decoded(false)].concat());
            let mut client = ask(&router, "/v1/completions", &body);
            decode.arrival(0);
            let is_sent = |stub: &Stub| !stub.arrivals().is_empty();
            until("prefill is sent", || is_sent(&broken) || is_sent(&prefill));
            let met = is_sent(&broken);
            if met {
                broken.let_go();
            } else {
                decode.let_go();
            }
            let reply = client.reply();
            assert!(is_decoded(&reply, false), "{}{}", reply.head, reply.text());
            idle(&router);
            met
        });
        decode.closed(0);
        std::thread::sleep(Duration::from_millis(50));
        for stub in [&broken, &prefill, &decode] {
            assert!(stub.aborts().is_empty(), "{:?}", stub.aborts());
        }
    }
}

/// vLLM's decode engine says no more than that it failed when the prefill engine has gone with the
/// KV. That is no illness, and it can compute the prompt.
#[test]
fn a_decode_rank_whose_kv_is_gone_takes_the_request_whole() {
    let fleet = Flow::TwoPhase.fleet(1, "", |config| config.breaker.failures = 1);
    let prefill = &fleet.prefill[0];
    let decode = &fleet.decode[0];
    for stream in [false, true] {
        fleet.forget();
        prefill.always(Flow::TwoPhase.done(stream));
        decode.always(decoded(stream));
        let failed = br#"{"error":{"message":"Internal server error","code":500}}"#;
        decode.once(vec![Step::Send(reply_bytes(500, "", failed))]);
        let reply = fleet.ask(stream).reply();
        assert!(is_decoded(&reply, stream), "{stream}\n{}{}", reply.head, reply.text());
        let asked: Vec<bool> =
            decode.arrivals().iter().map(|one| one.text().contains("kv_transfer_params")).collect();
        assert_eq!(asked, [true, false], "{stream}: with the KV, then without");
        assert_eq!(prefill.arrivals().len(), 1, "{stream}");
        idle(&fleet.router);
    }
}
