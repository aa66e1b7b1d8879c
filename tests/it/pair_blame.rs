//! Who of a pair is blamed for what: the rank whose fault it is, and nobody where that cannot be told. All breakers here open at
//! the first failure and stay open, so a rank that was blamed gets nothing any more.

use crate::rig::pairs::{ask, idle, pair_config, ready, reason};
use crate::rig::stub::{Step, Stub, answer, stream_of};
use crate::rig::stub_pages::Pages;
use crate::rig::{Client, Reply};
use forebay::config::Config;
use forebay::server::ServerHandle;
use std::time::Duration;

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
        let (prefill, decode): (Vec<_>, Vec<_>) =
            (many(prefills, "prefill"), many(decodes, "decode"));
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
            stub.always(vec![Step::Send(stream_of(&["data: {\"prefill\":1}\n\n"]))]);
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

/// Engines that stream have said 200 before they look at the request.
#[test]
fn a_fault_of_the_request_in_a_stream_is_nobodys() {
    const BAD: &str = r#"{"message":"bad grammar","code":400}"#;
    const TOO_LONG: &str = r#"{"message":"too long"}"#;
    let fleet = Fleet::start(1, 1, |_| {});
    let (prefill, decode) = (&fleet.prefill[0], &fleet.decode[0]);
    let stream = |error| vec![Step::Send(stream_of(&[&event(error), "data: [DONE]\n\n"]))];
    let aborted = br#"{"meta_info":{"finish_reason":{"type":"abort","message":"bad grammar","status_code":400}}}"#;
    for (steps, status, words) in [
        (stream(BAD), 400, "bad grammar"),
        (answer(aborted), 400, "bad grammar"),
        // SGLang's `/generate` does not say more. What it was cannot be told, and another pair would do no better.
        (stream(TOO_LONG), 502, "too long"),
    ] {
        prefill.always(steps);
        decode.always(vec![Step::Word]);
        let reply = fleet.ask().reply();
        assert_eq!(reply.status, status, "{}", reply.text());
        assert!(reply.text().contains(words), "{}", reply.text());
        assert_eq!(reason(&reply), if status == 502 { "upstream-failed" } else { "" });
        assert_eq!(prefill.arrivals().len(), 1, "{words}: asked once");
        decode.closed(0);
        assert_eq!(fleet.serve(2), [2, 2], "{words}");
    }
    for error in [BAD, TOO_LONG] {
        prefill.always(vec![Step::Word]);
        decode.always(stream(error));
        let reply = fleet.ask().reply();
        assert_eq!((reply.status, reply.complete), (200, true));
        assert_eq!(reply.text(), event(error) + "data: [DONE]\n\n", "as it came");
        assert_eq!(decode.arrivals().len(), 1, "{error}: asked once");
        prefill.closed(0);
        assert_eq!(fleet.serve(2), [2, 2], "{error}");
    }
}
