//! Events that are too long to be read: their lists of ids are not for the client.

use super::Transcript;
use forebay_board::account::NoContinuation;
use forebay_prompt::parse::Endpoint;

#[test]
fn an_event_that_is_too_long_passes_without_ids() {
    let many = vec!["12345678"; 100_000].join(",");
    let event = |ids: &str| {
        // The text names a list too.
        let text = r#""text":"prompt_token_ids\":[7] ttoken_ids""#;
        let lists = format!(r#""token_ids":{ids},"prompt_token_ids":{ids}"#);
        format!("data: {{\"choices\":[{{\"index\":0,{text},{lists}}}]}}\n\n")
    };
    for (read_bytes, end) in
        [(7, ""), (13, ""), (65_536, ""), (usize::MAX, ""), (70_000, "data: x")]
    {
        let body = br#"{"model":"m","prompt":"hi","stream":true}"#;
        let mut transcript = Transcript::of(Endpoint::Completions, body).unwrap();
        let mut out = Vec::new();
        let long = event(&format!("[{many}]"));
        let sent = [&long, &event("[1,2]"), &long, end].concat();
        for part in sent.as_bytes().chunks(read_bytes) {
            transcript.feed(part, &mut out);
        }
        transcript.flush(&mut out);
        let wanted = event("null").repeat(3) + end;
        assert!(out == wanted.as_bytes(), "{read_bytes}: {} bytes", out.len());
        assert_eq!(transcript.may_go_on(), Err(NoContinuation::TooLong));
    }
}
