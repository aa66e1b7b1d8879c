//! Reads a prefill rank's answer as it arrives. Buffers at most [`PREFILL_ANSWER_BYTES_MAX`]: the
//! body of a JSON answer, or an event of a stream.

use super::error::KvTransferError;
use super::verdict::{Params, read};
use forebay_base::limits::PREFILL_ANSWER_BYTES_MAX;
use forebay_fleet::worker::KvTransfer;

/// Form of an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// A single JSON value.
    Json,
    /// A stream of server-sent events (`text/event-stream`).
    Events,
}

/// Parameters of the prefill leg for the decode leg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefillHandover {
    /// No parameters: the engines connect by themselves, or the response ended with its first
    /// token. Older engines then send no parameters, and decode can compute the whole response.
    Nothing,
    /// The object for decode's `kv_transfer_params`, byte for byte.
    Params(Vec<u8>),
}

impl PrefillHandover {
    /// The object for `kv_transfer_params`, if any.
    #[must_use]
    pub fn params(&self) -> Option<&[u8]> {
        match self {
            Self::Nothing => None,
            Self::Params(params) => Some(params),
        }
    }
}

/// Reader of an answer with status 200.
#[derive(Debug)]
pub struct PrefillAnswer {
    form: AnswerForm,
    /// Decode waits for `kv_transfer_params`. Otherwise only failures matter, and a body too long
    /// for a failure is not read.
    is_awaited: bool,
    /// The body so far, or the line so far.
    buffer: Vec<u8>,
    /// The body or line is longer than the buffer may be.
    is_cut: bool,
    /// The response ended before its token limit.
    is_over: bool,
    found: Option<Vec<u8>>,
    failure: Option<KvTransferError>,
}

impl PrefillAnswer {
    /// A reader of an answer to a prefill leg of that flow.
    #[must_use]
    pub fn new(kv_transfer: &KvTransfer, form: AnswerForm) -> Self {
        Self {
            form,
            is_awaited: matches!(kv_transfer, KvTransfer::TwoPhase),
            buffer: Vec::new(),
            is_cut: false,
            is_over: false,
            found: None,
            failure: None,
        }
    }

    /// Reads the next bytes of the body. An error is final: the prefill leg has failed.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), KvTransferError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let taken = match self.form {
            AnswerForm::Json => self.append(bytes),
            AnswerForm::Events => self.lines(bytes),
        };
        taken.inspect_err(|failure| self.failure = Some(failure.clone()))
    }

    /// Ends the body, and returns its parameters.
    pub fn finish(mut self) -> Result<PrefillHandover, KvTransferError> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        match self.form {
            AnswerForm::Json if !self.is_cut => {
                let body = std::mem::take(&mut self.buffer);
                self.value(&body)?;
            }
            AnswerForm::Json => {}
            AnswerForm::Events => self.line()?,
        }
        match self.found {
            Some(params) if self.is_awaited => Ok(PrefillHandover::Params(params)),
            None if self.is_awaited && !self.is_over => Err(KvTransferError::Missing),
            _ => Ok(PrefillHandover::Nothing),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), KvTransferError> {
        if self.is_cut {
            return Ok(());
        }
        if bytes.len() > PREFILL_ANSWER_BYTES_MAX - self.buffer.len() {
            if self.is_awaited {
                return Err(KvTransferError::TooLong);
            }
            self.is_cut = true;
            self.buffer = Vec::new();
            return Ok(());
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Splits bytes into lines, which end in CR, LF or both. Empty lines do not matter, because
    /// every event of an engine is a single line of data.
    fn lines(&mut self, bytes: &[u8]) -> Result<(), KvTransferError> {
        let mut rest = bytes;
        while let Some(end) = memchr::memchr2(b'\n', b'\r', rest) {
            let (line, behind) = rest.split_at(end);
            self.append(line)?;
            self.line()?;
            rest = behind.get(1..).unwrap_or_default();
        }
        self.append(rest)
    }

    /// Reads the buffered line, which has ended.
    fn line(&mut self) -> Result<(), KvTransferError> {
        let mut line = std::mem::take(&mut self.buffer);
        let is_whole = !std::mem::take(&mut self.is_cut);
        if let Some(data) = line.strip_prefix(b"data:")
            && is_whole
            && data.trim_ascii_start().first() == Some(&b'{')
        {
            self.value(data)?;
        }
        line.clear();
        self.buffer = line;
        Ok(())
    }

    /// Reads a whole JSON value. Unless parameters are awaited, bytes that are no JSON are ignored.
    fn value(&mut self, bytes: &[u8]) -> Result<(), KvTransferError> {
        let verdict = match read(bytes) {
            Ok(verdict) => verdict,
            Err(_) if self.is_awaited => return Err(KvTransferError::NotJson),
            Err(_) => return Ok(()),
        };
        if let Some(failure) = verdict.failure {
            return Err(failure);
        }
        self.is_over |= verdict.is_over;
        match verdict.params {
            _ if !self.is_awaited => {}
            Params::Absent => {}
            Params::Other => return Err(KvTransferError::NotObject),
            Params::Object(range) => self.found = bytes.get(range).map(<[u8]>::to_vec),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::MESSAGE_CHARS_MAX;
    use forebay_fleet::worker::Bootstrap;
    use proptest::prelude::*;

    fn sglang() -> KvTransfer {
        let host = "h".into();
        KvTransfer::Bootstrap(Bootstrap { host, port: None, dp_size: 1, follows_room: true })
    }

    fn answered(
        kv_transfer: &KvTransfer,
        form: AnswerForm,
        body: &[u8],
    ) -> Result<PrefillHandover, KvTransferError> {
        let mut answer = PrefillAnswer::new(kv_transfer, form);
        answer.feed(body)?;
        answer.finish()
    }

    fn two_phase(body: &str) -> Result<PrefillHandover, KvTransferError> {
        answered(&KvTransfer::TwoPhase, AnswerForm::Json, body.as_bytes())
    }

    fn engine(message: &str) -> Result<PrefillHandover, KvTransferError> {
        engine_at(message, None)
    }

    fn engine_at(message: &str, status: Option<u16>) -> Result<PrefillHandover, KvTransferError> {
        Err(KvTransferError::Engine { message: message.to_owned(), status })
    }

    #[test]
    fn the_params_are_handed_over_as_they_came() {
        let params = r#"{"do_remote_prefill": true ,"remote_block_ids":[[1,2]],"x":1e999}"#;
        let body = format!(
            r#"{{"id":"c","kv_transfer_params":null,"kv_transfer\u005fparams":{params} }}"#
        );
        assert_eq!(two_phase(&body), Ok(PrefillHandover::Params(params.into())));
        let twice = r#"{"kv_transfer_params":{"a":1},"kv_transfer_params":{"a":2}}"#;
        assert_eq!(two_phase(twice), Ok(PrefillHandover::Params(br#"{"a":2}"#.to_vec())));
        let nested = r#"{"choices":[{"kv_transfer_params":{"a":1}}]}"#;
        assert_eq!(two_phase(nested), Err(KvTransferError::Missing), "only at the top");
        let listed = r#"[{"kv_transfer_params":{"a":1}}]"#;
        assert_eq!(two_phase(listed), Err(KvTransferError::Missing), "not of a batch");
    }

    /// Row D7: whatever is wrong with the params has a name.
    #[test]
    fn malformed_params_have_a_name() {
        for (body, wanted) in [
            ("", KvTransferError::NotJson),
            ("{", KvTransferError::NotJson),
            (r#"{"kv_transfer_params":{"a":}}"#, KvTransferError::NotJson),
            (r#"{"kv_transfer_params":{}} x"#, KvTransferError::NotJson),
            ("<html>", KvTransferError::NotJson),
            ("{}", KvTransferError::Missing),
            ("[]", KvTransferError::Missing),
            ("7", KvTransferError::Missing),
            (r#"{"kv_transfer_params":null}"#, KvTransferError::Missing),
            (r#"{"kv_transfer_params":"x"}"#, KvTransferError::NotObject),
            (r#"{"kv_transfer_params":[{}]}"#, KvTransferError::NotObject),
            (r#"{"kv_transfer_params":false}"#, KvTransferError::NotObject),
        ] {
            assert_eq!(two_phase(body), Err(wanted), "{body}");
        }
        let deep = format!(r#"{{"kv_transfer_params":{}1{}}}"#, "[".repeat(200), "]".repeat(200));
        assert_eq!(two_phase(&deep), Err(KvTransferError::NotJson));
    }

    /// Older vLLM hands over nothing where the one token ends the answer (NIXL before
    /// `pull_scheduler.py`; Mooncake).
    #[test]
    fn an_answer_that_is_over_has_nothing_to_hand_over() {
        for body in [
            r#"{"choices":[{"index":0,"finish_reason":"stop"}],"kv_transfer_params":null}"#,
            r#"{"choices":[{"finish_reason":"tool_calls"}]}"#,
            r#"{"type":"message","stop_reason":"end_turn","content":[]}"#,
            r#"{"stop_reason":"stop_sequence"}"#,
            r#"{"object":"response","status":"completed","error":null}"#,
        ] {
            assert_eq!(two_phase(body), Ok(PrefillHandover::Nothing), "{body}");
            let params = body.replacen('{', r#"{"kv_transfer_params":{"a":1},"#, 1);
            let params = params.replace(r#","kv_transfer_params":null"#, "");
            assert_eq!(
                two_phase(&params),
                Ok(PrefillHandover::Params(br#"{"a":1}"#.to_vec())),
                "{params}"
            );
        }
        for body in [
            r#"{"choices":[{"finish_reason":"length"}]}"#,
            r#"{"choices":[{"finish_reason":null,"text":"stop"}],"finish_reason":"stop"}"#,
            r#"{"stop_reason":"max_tokens","content":[{"stop_reason":"end_turn"}]}"#,
            r#"{"status":"incomplete","output":[{"status":"completed"}]}"#,
        ] {
            assert_eq!(two_phase(body), Err(KvTransferError::Missing), "{body}");
        }
        let failed = r#"{"choices":[{"finish_reason":"stop"}],"error":"no"}"#;
        assert_eq!(two_phase(failed), engine("no"));
    }

    #[test]
    fn failures_inside_of_a_success() {
        let json = |body: &str| answered(&sglang(), AnswerForm::Json, body.as_bytes());
        let aborted = r#"{"text":"","meta_info":{"finish_reason":{"message":"no KV","type":"abort","status_code":500}}}"#;
        assert_eq!(json(aborted), engine_at("no KV", Some(500)));
        assert_eq!(
            json(&format!("[{{}}, {aborted}]")),
            engine_at("no KV", Some(500)),
            "one of a batch"
        );
        assert_eq!(
            json(r#"{"choices":[{"finish_reason":"abort"}]}"#),
            engine_at("abort", Some(500)),
            "an abort is a failure of the engine's, whatever it does not say"
        );
        assert_eq!(
            json(r#"{"error":{"message":"out of \"memory\""}}"#),
            engine("out of \"memory\"")
        );
        assert_eq!(json(r#"{"error":"no"}"#), engine("no"));
        assert_eq!(json(r#"{"error":{"code":7}}"#), engine_at(r#"{"code":7}"#, Some(7)));
        assert_eq!(
            json(r#"{"error":null,"meta_info":{"finish_reason":null}}"#),
            Ok(PrefillHandover::Nothing)
        );
        assert_eq!(
            json("<html>"),
            Ok(PrefillHandover::Nothing),
            "status 200, and no decode leg waits for parameters"
        );
        let events = |body: &str| answered(&sglang(), AnswerForm::Events, body.as_bytes());
        assert_eq!(
            events("data: {\"text\":\"a\"}\n\ndata: [DONE]\n\n"),
            Ok(PrefillHandover::Nothing)
        );
        assert_eq!(events("data: {}\r\n\r\ndata:{\"error\":{\"message\":\"m\"}}\r"), engine("m"));
        let failed = "event: response.failed\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"r\"}}}";
        assert_eq!(events(failed), engine("r"), "also without a line's end");
        assert_eq!(
            events("data: {}\rdata: {\"error\":\"c\"}\rdata: {}\r"),
            engine("c"),
            "CR alone"
        );
    }

    #[test]
    fn a_request_that_is_at_fault_has_an_answer() {
        let said = |body: &str| {
            let failure = answered(&sglang(), AnswerForm::Json, body.as_bytes()).unwrap_err();
            let (status, body) = failure.refusal()?;
            Some((status, String::from_utf8(body).unwrap()))
        };
        let refused = r#"{"error":{"message":"bad \"grammar\"","type":"BadRequestError","param":null,"code":400}}"#;
        let body = r#"{"error":{"message":"bad \"grammar\"","type":"x","code":400}}"#;
        assert_eq!(said(body), Some((400, refused.to_owned())));
        for code in ["429", "500", "503", "7", "null", "\"400\""] {
            let body = format!(r#"{{"error":{{"message":"m","code":{code}}}}}"#);
            assert_eq!(said(&body), None, "{code} is not the client's fault, or not said to be");
        }
    }

    #[test]
    fn a_failure_in_a_stream_is_told_at_once() {
        let mut answer = PrefillAnswer::new(&sglang(), AnswerForm::Events);
        assert_eq!(answer.feed(b"data: {\"error\":\"m\"}"), Ok(()));
        let failure = KvTransferError::Engine { message: "m".to_owned(), status: None };
        assert_eq!(answer.feed(b"\n"), Err(failure.clone()));
        assert_eq!(answer.feed(b"\ndata: {}\n"), Err(failure.clone()), "and stays");
        assert_eq!(answer.finish(), Err(failure));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let long = format!(
            r#"{{"x":"{}","kv_transfer_params":{{}}}}"#,
            "y".repeat(PREFILL_ANSWER_BYTES_MAX)
        );
        assert_eq!(two_phase(&long), Err(KvTransferError::TooLong));
        assert_eq!(
            answered(&sglang(), AnswerForm::Json, long.as_bytes()),
            Ok(PrefillHandover::Nothing),
            "scores of a long prompt are no failure"
        );
        let mut answer = PrefillAnswer::new(&sglang(), AnswerForm::Events);
        for _ in 0..40 {
            answer.feed(&vec![b'z'; 100_000]).unwrap();
            assert!(answer.buffer.capacity() <= 2 * PREFILL_ANSWER_BYTES_MAX);
        }
        let after = answer.feed(b"\ndata: {\"error\":\"m\"}\n");
        assert_eq!(
            after,
            Err(KvTransferError::Engine { message: "m".to_owned(), status: None }),
            "the next line is read"
        );
        let message = "m".repeat(2_000);
        let Err(KvTransferError::Engine { message, .. }) =
            answered(&sglang(), AnswerForm::Json, format!(r#"{{"error":"{message}"}}"#).as_bytes())
        else {
            panic!("no failure");
        };
        assert_eq!(message.len(), MESSAGE_CHARS_MAX);
    }

    proptest! {
        #[test]
        fn an_answer_says_the_same_at_every_cut(
            pick in 0_usize..7,
            form in any::<bool>(),
            flow in any::<bool>(),
        ) {
            let body = [
                r#"{"choices":[{"finish_reason":"stop"}],"status":"completed"}"#,
                r#"{"id":"cmpl","kv_transfer_params":{"remote_host":"h","x":"é"},"usage":{}}"#,
                "data: {\"choices\":[]}\n\ndata: {\"kv_transfer_params\":{\"a\":[1]}}\r\n\r\ndata: [DONE]\n\n",
                "data: {\"error\":{\"message\":\"m\"}}\n\ndata: {\"error\":\"later\"}\n\n",
                r#"[{"meta_info":{"finish_reason":{"type":"abort","message":"gone"}}}]"#,
                r#"{"kv_transfer_params":7}"#,
                ": ping\n\ndata: {\"kv_transfer_params\":\"x\"}\n\n",
            ][pick].as_bytes();
            let form = if form { AnswerForm::Json } else { AnswerForm::Events };
            let kv_transfer = if flow { KvTransfer::TwoPhase } else { sglang() };
            let whole = answered(&kv_transfer, form, body);
            for at in 0..=body.len() {
                let mut answer = PrefillAnswer::new(&kv_transfer, form);
                let cut = answer
                    .feed(&body[..at])
                    .and_then(|()| answer.feed(&body[at..]))
                    .and_then(|()| answer.finish());
                prop_assert_eq!(&cut, &whole, "cut at {}", at);
            }
        }
    }
}
