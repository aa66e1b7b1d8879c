//! Images in the text of a prompt. An image is a run of the same token, and only the engine knows
//! its length. The text contains the name of the image once, at the start of the run, and no bytes
//! for the other tokens. So the text of a prompt does not depend on the length, and blocks inside
//! of an image have no bytes.
//!
//! A name is between bytes that UTF-8 text never contains, so no prompt of text looks like an
//! image.

use super::Vocabulary;
use forebay_base::limits::{BLOCK_BYTES_MAX, IMAGE_FILL, IMAGE_TEXT_BYTES};
use memchr::memmem;

/// Appends the text of an image with that name.
fn push_image(name: &str, out: &mut Vec<u8>) {
    let end = out.len() + IMAGE_TEXT_BYTES.max(name.len() + 2);
    out.push(IMAGE_FILL);
    out.extend_from_slice(name.as_bytes());
    out.resize(end, IMAGE_FILL);
}

impl Vocabulary {
    /// True if images with names are matched.
    #[must_use]
    pub const fn follows_images(&self) -> bool {
        self.media.image().is_some()
    }

    /// Placeholder of an image in a rendered prompt.
    #[must_use]
    pub fn image_text(&self) -> Option<&[u8]> {
        self.bytes(self.media.image()?)
    }

    /// Number of image placeholders in a rendered prompt.
    #[must_use]
    pub fn count_images(&self, text: &[u8]) -> usize {
        self.image_text().map_or(0, |image| memmem::find_iter(text, image).count())
    }

    /// Replaces the placeholders in `text[from..]` by images of these names, in order.
    pub fn put_images(&self, text: &mut Vec<u8>, from: usize, names: &[String]) {
        let Some(image) = self.image_text() else { return };
        let tail = text.split_off(from.min(text.len()));
        text.reserve(tail.len() + names.len() * IMAGE_TEXT_BYTES);
        let mut done = 0;
        for (place, name) in memmem::find_iter(&tail, image).zip(names) {
            text.extend_from_slice(tail.get(done..place).unwrap_or_default());
            push_image(name, text);
            done = place + image.len();
        }
        text.extend_from_slice(tail.get(done..).unwrap_or_default());
    }

    /// Appends the bytes of a block with images, each with its name and the offset of its first
    /// token in the block, negative for an image that began before the block. False when the images
    /// do not fit the tokens; the appended bytes are then invalid.
    pub fn decode_images(
        &self,
        ids: &[u32],
        images: &mut dyn Iterator<Item = (&str, i32)>,
        out: &mut Vec<u8>,
    ) -> bool {
        let Some(image) = self.media.image() else { return false };
        let mut at = 0;
        let mut next = images.next();
        if next.is_some_and(|(_, begins)| begins < 0) {
            next = images.next();
            let end = run_end(ids, 0, image, next);
            if end == 0 {
                return false;
            }
            at = end;
        }
        while let Some(id) = ids.get(at) {
            match next {
                Some((name, begins)) if usize::try_from(begins) == Ok(at) => {
                    if *id != image {
                        return false;
                    }
                    push_image(name, out);
                    if out.len() > BLOCK_BYTES_MAX {
                        return false;
                    }
                    next = images.next();
                    at = run_end(ids, at, image, next);
                }
                _ => {
                    if !self.push_text(*id, out) {
                        return false;
                    }
                    at += 1;
                }
            }
        }
        // An image that is left begins in another image, or behind the block.
        next.is_none()
    }

    fn push_text(&self, id: u32, out: &mut Vec<u8>) -> bool {
        let bytes = self.bytes(id).filter(|_| !self.has_media(&[id]));
        bytes.map(|bytes| out.extend_from_slice(bytes)).is_some()
    }
}

/// End of the run of the image token from `from` on: at another token, or at the next image.
fn run_end(ids: &[u32], from: usize, image: u32, next: Option<(&str, i32)>) -> usize {
    let begins = next.and_then(|(_, begins)| usize::try_from(begins).ok());
    let end = begins.filter(|begins| *begins > from).unwrap_or(ids.len()).min(ids.len());
    let run = ids.get(from..end).unwrap_or_default();
    from + run.iter().take_while(|id| **id == image).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IMAGE: u32 = 9;
    const START: u32 = 7;

    fn vocabulary() -> Vocabulary {
        let added: Vec<String> = [
            (7, "<|vision_start|>"),
            (8, "<|vision_end|>"),
            (9, "<|image_pad|>"),
            (10, "<|video_pad|>"),
        ]
        .map(|(id, name)| format!(r#"{{"id":{id},"content":"{name}"}}"#))
        .into();
        let added = added.join(",");
        let file = format!(
            r#"{{"added_tokens":[{added}],"pre_tokenizer":{{"type":"ByteLevel"}},
            "decoder":{{"type":"ByteLevel"}},
            "model":{{"type":"BPE","vocab":{{"a":0,"b":1,"c":2}}}}}}"#
        );
        Vocabulary::from_tokenizer_json(&file).unwrap()
    }

    fn decoded(ids: &[u32], images: &[(&str, i32)]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        let vocabulary = vocabulary().with_images(IMAGE, &[7, 8]);
        vocabulary.decode_images(ids, &mut images.iter().copied(), &mut out).then_some(out)
    }

    fn text(parts: &[Result<&str, &str>]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in parts {
            match part {
                Ok(text) => out.extend_from_slice(text.as_bytes()),
                Err(name) => push_image(name, &mut out),
            }
        }
        out
    }

    #[test]
    fn a_run_is_its_name_once() {
        for (ids, images, wanted) in [
            (
                &[0, 7, 9, 9, 8, 1][..],
                &[("x", 2)][..],
                &[Ok("a<|vision_start|>"), Err("x"), Ok("<|vision_end|>b")][..],
            ),
            (&[9, 9, 9], &[("x", -1)], &[]),
            (&[9, 0], &[("x", -30)], &[Ok("a")]),
            (&[0, 9], &[("x", 1)], &[Ok("a"), Err("x")]),
            // One after the other, and behind one that goes on.
            (&[9, 9, 9, 0], &[("x", 0), ("y", 2)], &[Err("x"), Err("y"), Ok("a")]),
            (&[9, 9, 0, 9], &[("x", -4), ("y", 3)], &[Ok("a"), Err("y")]),
        ] {
            assert_eq!(decoded(ids, images), Some(text(wanted)), "{ids:?} {images:?}");
        }
    }

    #[test]
    fn what_does_not_fit_the_tokens_is_not_followed() {
        for (ids, images) in [
            // The run begins with another token, as that of Gemma 3 does.
            (&[0, 9, 9][..], &[("x", 0)][..]),
            (&[0, 1], &[("x", 1)]),
            (&[0, 1], &[("x", -1)]),
            // No image is there, or there are more.
            (&[9, 0, 9], &[("x", 0)]),
            (&[0, 9], &[("x", 1), ("y", 2)]),
            (&[0, 9], &[("x", 1), ("y", 1)]),
            (&[9, 9], &[("x", -2), ("y", -1)]),
            (&[0, 9], &[("x", 5)]),
            // Something else that is not text.
            (&[9, 10], &[("x", 0)]),
            (&[9, 77], &[("x", 0)]),
        ] {
            assert_eq!(decoded(ids, images), None, "{ids:?} {images:?}");
        }
        // More images than a block may have bytes.
        let many: Vec<(&str, i32)> = (0..3_000).map(|begins| ("x", begins)).collect();
        let ids = vec![IMAGE; many.len()];
        let mut out = Vec::new();
        let vocabulary_of_images = vocabulary().with_images(IMAGE, &[START, 8]);
        let is_read = vocabulary_of_images.decode_images(&ids, &mut many.into_iter(), &mut out);
        assert!(!is_read && out.len() < 2 * BLOCK_BYTES_MAX, "{}", out.len());
        let plain = vocabulary();
        assert!(!plain.decode_images(&[9], &mut [("x", 0)].into_iter(), &mut out));
        assert!(plain.has_media(&[START]) && !plain.follows_images());
        let follows = plain.with_images(IMAGE, &[START, 8]);
        assert!(!follows.has_media(&[START, 8]) && follows.has_media(&[IMAGE]));
        assert!(follows.has_media(&[10]));
    }

    #[test]
    fn names_take_the_places_of_images_in_order() {
        let vocabulary = vocabulary().with_images(IMAGE, &[7, 8]);
        let mut out = b"<|image_pad|>a<|image_pad|>b<|image_pad|>".to_vec();
        assert_eq!(vocabulary.count_images(&out), 3);
        vocabulary.put_images(&mut out, 3, &["x".to_owned(), "y".to_owned()]);
        let wanted = text(&[Ok("<|image_pad|>a"), Err("x"), Ok("b"), Err("y")]);
        assert_eq!(out, wanted);
        assert_eq!(text(&[Err("x")]).len(), IMAGE_TEXT_BYTES);
    }

    proptest! {
        /// However a prompt is cut into blocks, its blocks are its text.
        #[test]
        fn blocks_of_any_size_make_the_text(
            parts in proptest::collection::vec((0..3_u32, 1..40_usize, 0..3_usize), 1..12),
            block in 1..9_usize,
        ) {
            let mut ids = Vec::new();
            let mut images = Vec::new();
            let mut wanted = Vec::new();
            let names = ["one", "two", "three"];
            for (token, run, name) in parts {
                ids.extend([token, START]);
                wanted.push(b'a' + u8::try_from(token).unwrap());
                wanted.extend_from_slice(b"<|vision_start|>");
                images.push((names[name], ids.len()..ids.len() + run));
                ids.extend(vec![IMAGE; run]);
                push_image(names[name], &mut wanted);
            }
            let mut text = Vec::new();
            for (number, block_ids) in ids.chunks(block).enumerate() {
                let start = number * block;
                // As vLLM counts them.
                let inside = images.iter().filter(|(_, run)| {
                    run.start < start + block_ids.len() && run.end > start
                });
                let place = |at: usize| i32::try_from(at).unwrap();
                let keys: Vec<(&str, i32)> =
                    inside.map(|(name, run)| (*name, place(run.start) - place(start))).collect();
                let decoded = match keys.is_empty() {
                    true => {
                        let mut out = Vec::new();
                        let vocabulary = vocabulary().with_images(IMAGE, &[START]);
                        prop_assert!(vocabulary.decode_into(block_ids, &mut out));
                        out
                    }
                    false => decoded(block_ids, &keys).expect("followed"),
                };
                text.extend(decoded);
            }
            prop_assert_eq!(text, wanted);
        }
    }
}
