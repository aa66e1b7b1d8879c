//! Who of a pair is blamed for what: the rank whose fault it is, and nobody where that cannot be
//! told. All breakers here open at the first failure and stay open, so a rank that was blamed gets
//! nothing any more.

use crate::rig::pairs::{ask, idle, pair_config, ready, reason};
use crate::rig::stub::{STREAM_HEAD, Step, Stub, answer, chunk, reply_bytes, stream_of};
use crate::rig::stub_pages::Pages;
use crate::rig::{Client, Reply, until};
use forebay::config::Config;
use forebay::server::ServerHandle;
use std::time::Duration;

/// Until a silent leg is given up, in the cases where one is.
const SILENCE: Duration = Duration::from_millis(700);
const PREFILLED: &str = "data: {\"prefill\":1}\n\n";
const TOKENS: [&str; 2] = ["data: {\"decode\":1}\n\n", "data: [DONE]\n\n"];

/// SGLang's.
struct Fleet {
    prefill: Vec<Stub>,
    decode: Vec<Stub>,
    router: ServerHandle,
}

impl Fleet {
    fn start(prefills: usize, decodes: usize, change: impl FnOnce(&mut Config)) -> Self {
        let many = |count, mode| (0..count).map(|_| Stub::start(Pages::sglang(mode))).collect();
        let prefill: Vec<_> = many(prefills, "prefill");
        let decode: Vec<_> = many(decodes, "decode");
        let workers: Vec<_> = prefill.iter().chain(&decode).map(|stub| (stub, "")).collect();
        let mut config = pair_config(&workers, "");
        change(&mut config);
        // Not before all take part: what they are asked meanwhile may fail.
        let failures = std::mem::replace(&mut config.breaker.failures, 1);
        assert!(failures > 1, "the rig's");
        config.breaker.open = Duration::from_secs(600);
        config.retry.budget_percent = 100;
        let router = ready(config, &workers);
        let fleet = Self { prefill, decode, router };
        fleet.be_well();
        fleet
    }

    fn stubs(&self) -> impl Iterator<Item = &Stub> {
        self.prefill.iter().chain(&self.decode)
    }

    fn be_well(&self) {
        for stub in self.stubs() {
            stub.forget();
        }
        for stub in &self.prefill {
            stub.always(vec![Step::Send(stream_of(&[PREFILLED]))]);
        }
        for stub in &self.decode {
            stub.always(vec![Step::Send(stream_of(&TOKENS))]);
        }
    }

    fn ask(&self) -> Client {
        ask(&self.router, "/v1/completions", r#"{"model":"m","prompt":"hi","stream":true}"#)
    }

    /// So many requests that are served; how many of them each stub had, prefill first.
    fn serve(&self, count: usize) -> Vec<usize> {
        idle(&self.router);
        self.be_well();
        for _ in 0..count {
            let reply = self.ask().reply();
            assert!(is_decoded(&reply), "{}{}", reply.head, reply.text());
        }
        idle(&self.router);
        let counts = self.stubs().map(|stub| stub.arrivals().len()).collect();
        self.be_well();
        counts
    }
}

fn is_decoded(reply: &Reply) -> bool {
    (reply.status, reply.complete) == (200, true) && reply.text() == TOKENS.concat()
}

fn event(error: &str) -> String {
    format!("data: {{\"error\":{error}}}\n\n")
}

/// What SGLang 0.5.23 says.
fn words(of: &str, why: &str) -> String {
    let room = "KVTransferError(bootstrap_room=7)";
    let what =
        format!("{of} failed for request rank=0 req.rid='fb-1' with exception {room}: {why}");
    format!("{{\"message\":\"{what}\",\"type\":\"InternalServerError\",\"code\":500}}")
}

/// The two forms in which it comes.
fn forms(error: &str) -> [Vec<Step>; 2] {
    let body = format!("{{\"error\":{error}}}");
    [
        vec![Step::Send(reply_bytes(500, "", body.as_bytes()))],
        vec![Step::Send(stream_of(&[&event(error), "data: [DONE]\n\n"]))],
    ]
}

/// Waits until a leg has come to one of these. A fault before that may come before the leg.
fn leg_comes(stubs: &[Stub]) {
    until("the other leg comes", || stubs.iter().any(|stub| !stub.arrivals().is_empty()));
}

/// Number of the stub whose request the router has closed.
fn given_up(stubs: &[Stub]) -> usize {
    let closed = |stub: &Stub| stub.arrivals().iter().any(|one| one.closed.is_some());
    until("the router gives up the silent leg", || stubs.iter().any(closed));
    stubs.iter().position(closed).unwrap()
}

/// Whoever waits says after its 300 s that the other one never came. It is the other one that
/// hangs.
#[test]
fn a_leg_that_says_that_the_other_never_came_is_well() {
    let by_prefill =
        words("Prefill bootstrap", "Request 7 timed out after 300.0s in KVPoll.Bootstrapping");
    for said in forms(&by_prefill) {
        let fleet = Fleet::start(1, 2, |_| {});
        let prefill = &fleet.prefill[0];
        prefill.once([vec![Step::Word], said].concat());
        for decode in &fleet.decode {
            decode.always(vec![Step::Word, Step::Send(stream_of(&TOKENS))]);
        }
        let mut client = fleet.ask();
        leg_comes(&fleet.decode);
        prefill.let_go();
        let silent = given_up(&fleet.decode);
        fleet.decode[1 - silent].let_go();
        let reply = client.reply();
        assert!(is_decoded(&reply), "{}{}", reply.head, reply.text());
        // There is no other, and it answers. Its leg goes by another shard, and may come after the
        // decode rank has answered.
        until("the prefill leg comes again", || prefill.arrivals().len() == 2);
        assert_eq!(fleet.decode[silent].arrivals().len(), 1);
        let served = fleet.serve(4);
        assert_eq!((served[0], served[1 + silent], served[2 - silent]), (4, 0, 4));
    }
    let by_decode =
        words("Decode transfer", "Request 7 timed out after 300.0s in KVPoll.WaitingForInput");
    for said in forms(&by_decode) {
        let fleet = Fleet::start(2, 1, |_| {});
        let decode = &fleet.decode[0];
        decode.once([vec![Step::Word], said].concat());
        for prefill in &fleet.prefill {
            prefill.always(vec![Step::Word, Step::Send(stream_of(&[PREFILLED]))]);
        }
        let mut client = fleet.ask();
        leg_comes(&fleet.prefill);
        decode.let_go();
        let reply = client.reply();
        assert!(is_decoded(&reply), "{}{}", reply.head, reply.text());
        let silent = given_up(&fleet.prefill);
        assert_eq!(decode.arrivals().len(), 2);
        assert_eq!(fleet.prefill[silent].arrivals().len(), 1);
        fleet.prefill[1 - silent].let_go();
        let served = fleet.serve(4);
        assert_eq!((served[silent], served[1 - silent], served[2]), (0, 4, 4));
    }
}

#[test]
fn after_a_hang_both_workers_are_left_out() {
    let fleet = Fleet::start(2, 2, |_| {});
    let said =
        words("Prefill bootstrap", "Request 7 timed out after 300.0s in KVPoll.Bootstrapping");
    let [said, _] = forms(&said);
    until("the prefill worker that waits in vain is asked", || {
        fleet.be_well();
        fleet.prefill[0].always([vec![Step::Word], said.clone()].concat());
        for decode in &fleet.decode {
            decode.always(vec![Step::Word, Step::Send(stream_of(&TOKENS))]);
        }
        let mut client = fleet.ask();
        let is_hit = || !fleet.prefill[0].arrivals().is_empty();
        until("it is sent", || is_hit() || !fleet.prefill[1].arrivals().is_empty());
        if is_hit() {
            leg_comes(&fleet.decode);
            fleet.prefill[0].let_go();
            let silent = given_up(&fleet.decode);
            fleet.decode[1 - silent].let_go();
        } else {
            fleet.decode.iter().for_each(Stub::let_go);
        }
        let reply = client.reply();
        assert!(is_decoded(&reply), "{}{}", reply.head, reply.text());
        idle(&fleet.router);
        is_hit()
    });
    for stub in fleet.stubs() {
        assert_eq!(stub.arrivals().len(), 1, "the second pair shares nobody with the first");
    }
}

/// The KV did not get from one to the other. Each of the two lays it to the other one.
#[test]
fn a_transfer_that_fails_is_laid_to_nobody() {
    let fleet = Fleet::start(1, 1, |_| {});
    let prefill = &fleet.prefill[0];
    let decode = &fleet.decode[0];
    let dead =
        words("Prefill transfer", "Decode instance could be dead, remote session is not alive");
    let gone =
        words("Decode transfer", "Failed to get kvcache from prefill instance, it might be dead");
    for (stub, other, error) in [(prefill, decode, dead), (decode, prefill, gone)] {
        for said in forms(&error) {
            stub.once([vec![Step::Word], said].concat());
            other.once(vec![Step::Word]);
            let mut client = fleet.ask();
            other.arrival(0);
            stub.let_go();
            let reply = client.reply();
            // The same pair once more: there is no other.
            assert!(is_decoded(&reply) || reply.status == 502, "{}{}", reply.head, reply.text());
            assert_eq!(fleet.serve(2), [2, 2], "{error}");
        }
    }
}

fn silent(fleet: &Fleet) {
    for stub in fleet.stubs() {
        stub.always(vec![Step::Word]);
    }
}

/// Both legs of SGLang's wait for each other: who is late first says nothing.
#[test]
fn two_that_hang_together_are_not_blamed() {
    let long = Duration::from_secs(20);
    for (prefill, decode) in [(SILENCE, SILENCE), (SILENCE, long), (long, SILENCE)] {
        let fleet = Fleet::start(1, 1, |config| {
            config.flow.disaggregation.prefill_timeout = Some(prefill);
            config.timeouts.first_byte = decode;
        });
        silent(&fleet);
        let reply = fleet.ask().reply();
        assert_eq!((reply.status, reason(&reply)), (504, "upstream-timeout"), "{}", reply.text());
        assert_eq!(fleet.serve(2), [2, 2], "{prefill:?} {decode:?}");
    }
}

/// A leg has one deadline, whatever its engine sends meanwhile.
#[test]
fn a_prefill_leg_that_comes_to_no_end_is_late() {
    let trickle = |head: &[u8], piece: &[u8]| {
        let mut steps = vec![Step::Send(head.to_vec())];
        for _ in 0..200 {
            steps.extend([Step::Pause(Duration::from_millis(100)), Step::Send(chunk(piece))]);
        }
        steps
    };
    let fleet = Fleet::start(1, 1, |config| {
        config.flow.disaggregation.prefill_timeout = Some(SILENCE);
    });
    fleet.prefill[0].always(trickle(STREAM_HEAD, b": ping\n\n"));
    fleet.decode[0].always(vec![Step::Word]);
    let reply = fleet.ask().reply();
    assert_eq!((reply.status, reason(&reply)), (504, "upstream-timeout"), "{}", reply.text());
    fleet.decode[0].closed(0);
    // With vLLM's two phases it waits for nobody: its breaker hears of it.
    let prefill = Stub::start(Pages::vllm());
    let decode = Stub::start(Pages::vllm());
    let workers = [(&prefill, "role = \"prefill\""), (&decode, "role = \"decode\"")];
    let mut config = pair_config(&workers, "fallback = \"reject\"");
    config.flow.disaggregation.prefill_timeout = Some(SILENCE);
    config.breaker.failures = 1;
    config.breaker.open = Duration::from_secs(600);
    let router = ready(config, &workers);
    let head =
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    prefill.always(trickle(head, b" "));
    let asked = || ask(&router, "/v1/completions", r#"{"model":"m","prompt":"hi"}"#).reply();
    let reply = asked();
    assert_eq!((reply.status, reason(&reply)), (504, "upstream-timeout"), "{}", reply.text());
    prefill.closed(0);
    // The last rank of a model is never closed: it gets the next request too.
    let reply = asked();
    assert_eq!((reply.status, reason(&reply)), (504, "upstream-timeout"), "{}", reply.text());
}

/// Its partner answers others meanwhile.
#[test]
fn one_that_hangs_with_everybody_is_found_out() {
    let fleet = Fleet::start(2, 1, |config| {
        config.flow.disaggregation.prefill_timeout = Some(SILENCE);
    });
    let decode = &fleet.decode[0];
    let mut late = 0;
    until("the rank that hangs is left alone", || {
        fleet.be_well();
        fleet.prefill[0].always(vec![Step::Word]);
        decode.always(vec![Step::Word, Step::Send(stream_of(&TOKENS))]);
        let mut client = fleet.ask();
        decode.arrival(0);
        until("prefill is sent", || fleet.prefill.iter().any(|stub| !stub.arrivals().is_empty()));
        if fleet.prefill[0].arrivals().is_empty() {
            decode.let_go();
        }
        let reply = client.reply();
        assert!(is_decoded(&reply) || reply.status == 504, "{}{}", reply.head, reply.text());
        late += usize::from(reply.status == 504);
        idle(&fleet.router);
        late == 2
    });
    assert_eq!(fleet.serve(4), [0, 4, 4]);
}

/// Engines that stream have said 200 before they look at the request.
#[test]
fn a_fault_of_the_request_in_a_stream_is_nobodys() {
    const BAD: &str = r#"{"message":"bad grammar","code":400}"#;
    const TOO_LONG: &str = r#"{"message":"too long"}"#;
    let fleet = Fleet::start(1, 1, |_| {});
    let prefill = &fleet.prefill[0];
    let decode = &fleet.decode[0];
    let stream = |error| vec![Step::Send(stream_of(&[&event(error), "data: [DONE]\n\n"]))];
    let aborted = br#"{"meta_info":{"finish_reason":{"type":"abort","message":"bad grammar","status_code":400}}}"#;
    for (steps, status, words) in [
        (stream(BAD), 400, "bad grammar"),
        (answer(aborted), 400, "bad grammar"),
        // SGLang's `/generate` does not say more. What it was cannot be told, and another pair
        // would do no better.
        (stream(TOO_LONG), 502, "too long"),
    ] {
        prefill.always([vec![Step::Word], steps].concat());
        decode.always(vec![Step::Word]);
        let mut client = fleet.ask();
        decode.arrival(0);
        prefill.let_go();
        let reply = client.reply();
        assert_eq!(reply.status, status, "{}", reply.text());
        assert!(reply.text().contains(words), "{}", reply.text());
        assert_eq!(reason(&reply), if status == 502 { "upstream-failed" } else { "" });
        assert_eq!(prefill.arrivals().len(), 1, "{words}: asked once");
        decode.closed(0);
        assert_eq!(fleet.serve(2), [2, 2], "{words}");
    }
    for error in [BAD, TOO_LONG] {
        prefill.always(vec![Step::Word]);
        decode.always([vec![Step::Word], stream(error)].concat());
        let mut client = fleet.ask();
        prefill.arrival(0);
        decode.let_go();
        let reply = client.reply();
        assert_eq!((reply.status, reply.complete), (200, true));
        assert_eq!(reply.text(), event(error) + "data: [DONE]\n\n", "as it came");
        assert_eq!(decode.arrivals().len(), 1, "{error}: asked once");
        prefill.closed(0);
        assert_eq!(fleet.serve(2), [2, 2], "{error}");
    }
}

/// vLLM's, with two phases: two that compute prompts and two that answer, all well.
fn two_phases() -> (Vec<Stub>, ServerHandle) {
    let stubs: Vec<_> = (0..4).map(|_| Stub::start(Pages::vllm())).collect();
    let roles = ["role = \"prefill\"", "role = \"decode\""];
    let workers: Vec<_> =
        stubs.iter().enumerate().map(|(number, stub)| (stub, roles[number / 2])).collect();
    let mut config = pair_config(&workers, "");
    config.breaker.failures = 3;
    config.breaker.open = Duration::from_secs(600);
    config.retry.budget_percent = 100;
    let router = ready(config, &workers);
    for stub in &stubs {
        stub.always(answer(br#"{"kv_transfer_params":{"do_remote_prefill":true}}"#));
    }
    (stubs, router)
}

/// So many requests, one after the other: how many were served, and what each stub had.
fn served(stubs: &[Stub], router: &ServerHandle, count: usize) -> (usize, Vec<usize>) {
    let asked = || ask(router, "/v1/completions", r#"{"model":"m","prompt":"hi"}"#).reply();
    let served = (0..count).filter(|_| asked().status == 200).count();
    idle(router);
    (served, stubs.iter().map(|stub| stub.arrivals().len()).collect())
}

/// A request that it fails may lack its KV. Round robin pairs it with the same prefill rank again
/// and again, until single requests part the two.
#[test]
fn a_decode_rank_that_fails_with_everybody_is_paused() {
    let (stubs, router) = two_phases();
    let failed = br#"{"error":{"message":"Internal server error","code":500}}"#;
    stubs[2].always(vec![Step::Send(reply_bytes(500, "", failed))]);
    let (served, had) = served(&stubs, &router, 60);
    assert_eq!(served, 60, "another pair is asked: {had:?}");
    assert!(had[2] <= 12, "a few, and a trial: {had:?}");
    assert!(had[0] >= 24 && had[1] >= 24, "neither prefill rank is blamed: {had:?}");
}

/// It has computed the prompt, and the KV is gone before the decode rank comes for it.
#[test]
fn a_decode_rank_that_finds_no_kv_now_and_then_is_well() {
    let (stubs, router) = two_phases();
    let failed = br#"{"error":{"message":"Internal server error","code":500}}"#;
    let mut all = [0; 4];
    for round in 0..8 {
        stubs[2 + round % 2].once(vec![Step::Send(reply_bytes(500, "", failed))]);
        let (served, had) = served(&stubs, &router, 6);
        assert_eq!(served, 6, "{had:?}");
        all = std::array::from_fn(|number| had[number]);
    }
    assert!(all.iter().all(|had| *had >= 20), "all of them serve: {all:?}");
}

#[test]
fn a_prefill_rank_that_hands_nothing_over_is_paused() {
    let (stubs, router) = two_phases();
    stubs[0].always(answer(b"{}"));
    let (served, had) = served(&stubs, &router, 60);
    assert_eq!(had[0], 4, "three failures, and a trial: {had:?}");
    assert_eq!((served, had[1]), (56, 56), "{had:?}");
    assert!(had[2] >= 24 && had[3] >= 24, "no decode rank is blamed: {had:?}");
}
