//! A request under another model name: the name in its body is replaced in place, and all places
//! that the scan found move along.

use super::request::{ApiRequest, PromptSource};
use std::ops::Range;

impl ApiRequest {
    /// The model name that the client sent.
    #[must_use]
    pub fn asked_model(&self) -> &str {
        self.requested_model.as_deref().unwrap_or(&self.model)
    }

    /// Does the request go to another model than the client has named?
    #[must_use]
    pub fn is_renamed(&self) -> bool {
        self.requested_model.as_deref().is_some_and(|asked| asked != self.model)
    }

    /// Routes the request to `model`. Its body still contains the client's name.
    pub fn rename(&mut self, model: &str) {
        let asked = std::mem::replace(&mut self.model, model.to_owned());
        self.requested_model.get_or_insert(asked);
    }

    /// Bytes of the body behind the name, which move if the new name has another length.
    #[must_use]
    pub fn behind_model(&self, body_bytes: usize) -> usize {
        body_bytes.saturating_sub(wide(self.model_span.end))
    }

    /// Writes the model into the body, which stands at `start` in the message.
    pub fn write_model(&mut self, message: &mut Vec<u8>, start: usize) {
        let name = match self.is_form {
            true => self.model.clone(),
            false => serde_json::Value::from(self.model.as_str()).to_string(),
        };
        let quotes = usize::from(!self.is_form);
        let name = name.get(quotes..name.len().saturating_sub(quotes)).unwrap_or_default();
        let before = self.model_span.clone();
        let place =
            start.saturating_add(wide(before.start))..start.saturating_add(wide(before.end));
        if place.start > place.end || message.get(place.clone()).is_none() {
            debug_assert!(false, "a model that is not in the body");
            return;
        }
        message.splice(place, name.bytes());
        let added = i64::try_from(name.len()).unwrap_or(0) - i64::from(before.end - before.start);
        self.move_places(|at| if at < before.end { at } else { shifted(at, added) });
        self.model_span.start = before.start;
    }

    /// Moves all places in the body that the scan has found.
    pub(super) fn move_places(&mut self, moved: impl Fn(u32) -> u32) {
        self.model_span = moved(self.model_span.start)..moved(self.model_span.end);
        match &mut self.prompt {
            PromptSource::Text(span) | PromptSource::TokenIds(span) | PromptSource::Batch(span) => {
                *span = moved(span.start)..moved(span.end);
            }
            PromptSource::None | PromptSource::PlainMessages | PromptSource::Messages => {}
        }
        for message in &mut self.messages {
            message.content = moved(message.content.start)..moved(message.content.end);
        }
        for text in &mut self.text_members {
            let place = |span: &Range<u32>| moved(span.start)..moved(span.end);
            text.name = place(&text.name);
            text.value = place(&text.value);
        }
    }
}

pub(super) fn wide(at: u32) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

fn shifted(at: u32, added: i64) -> u32 {
    u32::try_from(i64::from(at).saturating_add(added)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Endpoint, scan};
    use proptest::prelude::*;

    const HEAD: &[u8] = b"POST / HTTP/1.1\r\n\r\n";

    fn renamed(body: &str, endpoint: Endpoint, model: &str) -> (ApiRequest, String) {
        let mut request = ApiRequest::default();
        scan(body.as_bytes(), endpoint, &mut request).unwrap();
        let mut message = [HEAD, body.as_bytes()].concat();
        request.rename(model);
        request.write_model(&mut message, HEAD.len());
        (request, String::from_utf8(message.split_off(HEAD.len())).unwrap())
    }

    #[test]
    fn the_name_is_replaced_and_nothing_else() {
        let body = r#"{ "stream":true, "model" : "chat","prompt":"model \"chat\"", "user": "u" }"#;
        let (request, sent) = renamed(body, Endpoint::Completions, "org/llama \"x\"");
        assert_eq!(sent, body.replacen("\"chat\",", r#""org/llama \"x\"","#, 1));
        assert_eq!((&*request.model, request.asked_model()), ("org/llama \"x\"", "chat"));
        let (again, _) = renamed(&sent, Endpoint::Completions, "b");
        assert_eq!((&*again.model, again.asked_model()), ("b", "org/llama \"x\""));
    }

    #[test]
    fn the_last_of_two_names_is_the_one() {
        let (_, sent) = renamed(r#"{"model":"a","model":"b"}"#, Endpoint::Embeddings, "c");
        assert_eq!(sent, r#"{"model":"a","model":"c"}"#);
    }

    proptest! {
        #[test]
        fn what_was_found_is_what_a_scan_of_the_new_body_finds(
            name in "[a-z\"\\\\é/:]{0,12}",
            to in "[a-z\"\\\\é/:\n]{1,40}",
            place in 0_usize..4,
            kind in 0_usize..4,
        ) {
            let chat = r#"[{"role":"user","content":"hi"},{"role":"user","content":"\u0061"}]"#;
            let chat = format!("\"messages\": {chat}");
            let (endpoint, prompt) = [
                (Endpoint::Completions, r#""prompt": "a é \n b""#),
                (Endpoint::Completions, r#""prompt": [[1, 2], [3]]"#),
                (Endpoint::Completions, r#""prompt": [7, 8]"#),
                (Endpoint::ChatCompletions, &*chat),
            ][kind];
            let model = format!("\"model\": {}", serde_json::Value::from(name.clone()));
            let mut members = [prompt, "\"user\": \"u\"", "\"n\": 2"].map(str::to_owned).to_vec();
            members.insert(place, model);
            let (moved, sent) = renamed(&format!("{{{}}}", members.join(", ")), endpoint, &to);
            let mut scanned = ApiRequest::default();
            scan(sent.as_bytes(), endpoint, &mut scanned).unwrap();
            prop_assert_eq!(&scanned.model, &to);
            scanned.requested_model = Some(name);
            prop_assert_eq!(format!("{moved:?}"), format!("{scanned:?}"));
        }
    }
}
