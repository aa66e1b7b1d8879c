//! Names the images of a chat: a `uuid` in the body lets the engine identify equal images, and the
//! engine reports the same name in its KV events.
//!
//! The name is written before the other members of an image's part, where vLLM reads it. A part
//! with a name keeps it. Only images in the body itself are named: the content behind a URL may
//! change.

use super::rename::wide;
use super::request::ApiRequest;
use forebay_base::limits::{NAMED_IMAGE_BYTES_MAX, NAMED_IMAGES_MAX};
use forebay_json::{Cursor, JsonError};
use forebay_text::ImageKey;
use std::ops::Range;

/// Members of a body that change the tokens of an image.
const CHANGE_IMAGES: [&str; 2] = ["mm_processor_kwargs", "media_io_kwargs"];

#[derive(Debug, PartialEq, Eq)]
struct UnnamedImage {
    /// Behind the brace of its part.
    at: usize,
    url: Range<usize>,
    detail: Range<usize>,
}

/// Spans of URL and detail.
type ImageSource = (Range<usize>, Range<usize>);

impl ApiRequest {
    /// Writes names into the body of a chat, which stands at `start` in the message. A body without
    /// images that can be named stays as it is.
    pub fn name_images(&mut self, message: &mut Vec<u8>, start: usize, key: &ImageKey) {
        let body = message.get(start..).unwrap_or_default();
        let Ok(images) = unnamed(body) else { return };
        let bytes = |range: &Range<usize>| body.get(range.clone()).unwrap_or_default();
        let mut inserts = Vec::new();
        let mut named_bytes = 0_usize;
        for UnnamedImage { at, url, detail } in images.into_iter().take(NAMED_IMAGES_MAX) {
            named_bytes = named_bytes.saturating_add(url.len());
            if named_bytes > NAMED_IMAGE_BYTES_MAX {
                named_bytes -= url.len();
                break;
            }
            let name = key.name(&[bytes(&url), bytes(&detail)]);
            inserts.push((at, format!("\"uuid\":\"{name}\",")));
        }
        if inserts.is_empty() {
            return;
        }
        self.named_bytes = u64::try_from(named_bytes).unwrap_or(0);
        insert(message, start, &inserts);
        self.move_places(|place| {
            let at = wide(place);
            let before = inserts.iter().take_while(|(insert, _)| *insert <= at);
            let added: usize = before.map(|(_, text)| text.len()).sum();
            place.saturating_add(u32::try_from(added).unwrap_or(u32::MAX))
        });
    }
}

/// Inserts texts into the body at ascending places, starting with the last, so that each byte moves
/// once.
fn insert(message: &mut Vec<u8>, start: usize, inserts: &[(usize, String)]) {
    let added: usize = inserts.iter().map(|(_, text)| text.len()).sum();
    let mut end = message.len();
    let mut to = message.len() + added;
    message.resize(to, 0);
    for (at, text) in inserts.iter().rev() {
        let from = start + at;
        to -= end - from;
        message.copy_within(from..end, to);
        to -= text.len();
        if let Some(place) = message.get_mut(to..to + text.len()) {
            place.copy_from_slice(text.as_bytes());
        }
        end = from;
    }
    debug_assert_eq!(to, end, "what is in front of the first one stays");
}

/// The images of a body without a name, in order; empty where the body changes how images become
/// tokens.
fn unnamed(body: &[u8]) -> Result<Vec<UnnamedImage>, JsonError> {
    let mut cursor = Cursor::new(body)?;
    let mut found = Vec::new();
    cursor.blanks();
    if cursor.peek() != Some(b'{') {
        return Ok(found);
    }
    cursor.open();
    let mut first = true;
    let mut is_changed = false;
    while let Some(key) = cursor.next_key(&mut first)? {
        match cursor.slice(&key.span) {
            // The last of two members with the same name counts.
            "messages" if cursor.peek() == Some(b'[') => {
                found.clear();
                let mut first = true;
                cursor.open();
                while cursor.next_element(&mut first)? {
                    message(&mut cursor, &mut found)?;
                }
            }
            name => {
                let may_change = key.escaped || CHANGE_IMAGES.contains(&name);
                is_changed |= may_change && cursor.peek() != Some(b'n');
                cursor.skip_value(1)?;
            }
        }
    }
    if is_changed {
        found.clear();
    }
    Ok(found)
}

fn message(cursor: &mut Cursor<'_>, found: &mut Vec<UnnamedImage>) -> Result<(), JsonError> {
    if cursor.peek() != Some(b'{') {
        return cursor.skip_value(2);
    }
    cursor.open();
    let mut first = true;
    let before = found.len();
    while let Some(key) = cursor.next_key(&mut first)? {
        if cursor.slice(&key.span) != "content" {
            cursor.skip_value(3)?;
            continue;
        }
        found.truncate(before);
        if cursor.peek() != Some(b'[') {
            cursor.skip_value(3)?;
            continue;
        }
        cursor.open();
        let mut first = true;
        while cursor.next_element(&mut first)? {
            found.extend(part(cursor)?);
        }
    }
    Ok(())
}

/// The part that the cursor stands on, if it is an image that can be named.
fn part(cursor: &mut Cursor<'_>) -> Result<Option<UnnamedImage>, JsonError> {
    if cursor.peek() != Some(b'{') {
        return cursor.skip_value(4).map(|()| None);
    }
    cursor.open();
    let at = cursor.at();
    let mut first = true;
    let mut is_image = false;
    let mut is_plain = true;
    let mut source = None;
    while let Some(key) = cursor.next_key(&mut first)? {
        // A name written with escapes may be any of these.
        is_plain &= !key.escaped;
        match cursor.slice(&key.span) {
            "type" if cursor.peek() == Some(b'"') => {
                let kind = cursor.string()?;
                is_image = cursor.slice(&kind.span) == "image_url";
            }
            "image_url" => source = image_url(cursor)?,
            name => {
                is_plain &= name != "uuid";
                cursor.skip_value(5)?;
            }
        }
    }
    let named = source.filter(|_| is_image && is_plain);
    Ok(named.map(|(url, detail)| UnnamedImage { at, url, detail }))
}

/// Where URL and detail stand in the value that the cursor stands on, if the image is in the body.
fn image_url(cursor: &mut Cursor<'_>) -> Result<Option<ImageSource>, JsonError> {
    if cursor.peek() != Some(b'{') {
        return cursor.skip_value(5).map(|()| None);
    }
    cursor.open();
    let mut first = true;
    let mut is_plain = true;
    let mut url = None;
    let mut detail = 0..0;
    while let Some(key) = cursor.next_key(&mut first)? {
        is_plain &= !key.escaped;
        let is_text = cursor.peek() == Some(b'"');
        match cursor.slice(&key.span) {
            "url" if is_text => url = Some(cursor.string()?.span),
            "detail" if is_text => detail = cursor.string()?.span,
            name => {
                is_plain &= name == "detail" && cursor.peek() == Some(b'n');
                // The last `detail` counts.
                detail = 0..0;
                cursor.skip_value(6)?;
            }
        }
    }
    let url = url.filter(|url| is_plain && cursor.slice(url).starts_with("data:"));
    Ok(url.map(|url| (url, detail)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Endpoint, scan};
    use proptest::prelude::*;

    const HEAD: &[u8] = b"POST / HTTP/1.1\r\n\r\n";
    const DATA: &str = r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}"#;

    fn named(body: &str) -> (ApiRequest, String) {
        let mut request = ApiRequest::default();
        request.clear();
        scan(body.as_bytes(), Endpoint::ChatCompletions, &mut request).unwrap();
        let mut message = [HEAD, body.as_bytes()].concat();
        request.name_images(&mut message, HEAD.len(), &ImageKey::new("secret"));
        (request, String::from_utf8(message.split_off(HEAD.len())).unwrap())
    }

    fn chat(parts: &str) -> String {
        format!(r#"{{"messages":[{{"role":"user","content":[{parts}]}}],"model":"m"}}"#)
    }

    fn names(body: &str) -> Vec<String> {
        let parts = body.split("\"uuid\":\"").skip(1);
        parts.map(|rest| rest.split('"').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn images_in_the_body_are_named_and_nothing_else_changes() {
        let other = DATA.replace("AAAA", "AAAB");
        let detailed = DATA.replace(r#""}}"#, r#"","detail":"low"}}"#);
        let body = chat(&[DATA, &other, DATA, &detailed].join(" , "));
        let (request, sent) = named(&body);
        let names = names(&sent);
        assert_eq!(names.len(), 4);
        assert_eq!(names[0], names[2], "the same image");
        assert!(names[0] != names[1] && names[0] != names[3] && names[1] != names[3]);
        let without = names
            .iter()
            .fold(sent, |sent, name| sent.replacen(&format!("\"uuid\":\"{name}\","), "", 1));
        assert_eq!(without, body);
        assert_eq!(request.named_bytes, 4 * 26);
    }

    #[test]
    fn the_last_detail_counts() {
        let nulled = DATA.replace(r#""}}"#, r#"","detail":"low","detail":null}}"#);
        let names = names(&named(&chat(&[DATA, &nulled].join(","))).1);
        assert_eq!(names[0], names[1], "null is none");
    }

    #[test]
    fn what_cannot_be_named_is_left_byte_for_byte() {
        let text = r#"{"type":"text","text":"a"}"#;
        for parts in [
            text.to_owned(),
            DATA.replace("data:image/png", "https://a/b"),
            DATA.replacen('{', r#"{"uuid":"mine","#, 1),
            DATA.replacen('{', r#"{"uuid":null,"#, 1),
            DATA.replacen('{', r#"{"\u0075uid":"mine","#, 1),
            DATA.replace(r#""}}"#, r#"","\u0075rl":"data:b"}}"#),
            DATA.replace(r#""}}"#, r#"","more":1}}"#),
            DATA.replace("\"type\":\"image_url\"", "\"type\":\"video_url\""),
            r#"{"type":"image_url","image_url":"data:x"}"#.to_owned(),
            r#"{"type":"image_url","image_url":null}"#.to_owned(),
            "7".to_owned(),
        ] {
            let body = chat(&parts);
            assert_eq!(named(&body).1, body);
        }
        let escaped = r#""media_io_kwarg\u0073":{"a":1}"#;
        for more in [r#""mm_processor_kwargs":{"a":1}"#, r#""media_io_kwargs":{}"#, escaped] {
            let body = chat(DATA).replacen('{', &format!("{{{more},"), 1);
            assert_eq!(named(&body).1, body);
        }
        let body = chat(DATA).replacen('{', r#"{"mm_processor_kwargs":null,"#, 1);
        assert_eq!(names(&named(&body).1).len(), 1);
        for body in ["{}", r#"{"messages":"a"}"#, r#"{"messages":[7]}"#] {
            assert_eq!(named(body).1, body);
        }
    }

    #[test]
    fn the_last_of_two_members_is_the_one() {
        let image = |data: &str| DATA.replace("AAAA", data);
        let twice = format!(
            r#"{{"messages":[{{"content":[{}]}}],"messages":[{{"content":[{}],"content":[{}]}}]}}"#,
            image("A"),
            image("B"),
            image("C")
        );
        let (_, sent) = named(&twice);
        assert_eq!((names(&sent).len(), sent.matches("uuid").count()), (1, 1));
        assert!(sent.find("uuid").unwrap() > sent.find("base64,B").unwrap());
        let (_, alone) = named(&chat(&image("C")));
        assert_eq!(names(&sent), names(&alone));
    }

    #[test]
    fn only_so_many_are_named() {
        let body = chat(&vec![DATA; NAMED_IMAGES_MAX + 3].join(","));
        assert_eq!(names(&named(&body).1).len(), NAMED_IMAGES_MAX);
        let large = DATA.replace("AAAA", &"A".repeat(NAMED_IMAGE_BYTES_MAX / 2));
        assert_eq!(names(&named(&chat(&[&large, &*large].join(","))).1).len(), 1);
    }

    proptest! {
        #[test]
        fn what_was_found_is_what_a_scan_of_the_new_body_finds(
            kinds in proptest::collection::vec(0..3_usize, 0..6),
            place in 0..4_usize,
            user in "[a-z]{0,5}",
        ) {
            let other = DATA.replace("AAAA", "B");
            let text = r#"{"text":"uuid","type":"text"}"#;
            let parts: Vec<&str> = kinds.iter().map(|kind| [DATA, &other, text][*kind]).collect();
            let parts = parts.join(",");
            let messages = format!(r#""messages":[{{"role":"user","content":[{parts}]}}]"#);
            let user = format!("\"user\":\"{user}\"");
            let mut members = ["\"model\":\"m\"", &user, "\"n\":2"].map(str::to_owned).to_vec();
            members.insert(place, messages);
            let (moved, sent) = named(&format!("{{{}}}", members.join(", ")));
            let mut scanned = ApiRequest::default();
            scanned.clear();
            scan(sent.as_bytes(), Endpoint::ChatCompletions, &mut scanned).unwrap();
            scanned.named_bytes = moved.named_bytes;
            prop_assert_eq!(format!("{moved:?}"), format!("{scanned:?}"));
            let images = kinds.iter().filter(|kind| **kind < 2).count();
            prop_assert_eq!(names(&sent).len(), images);
        }
    }
}
