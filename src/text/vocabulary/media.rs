//! Placeholder tokens of content that is not text. Every image has the same placeholder, so the
//! tokens of a block with a placeholder do not determine its content. Engines since vLLM 0.17
//! report such blocks in the event, older engines do not.

use super::file::TokenizerFile;

/// Words in the names of placeholders and of the marks around them: `<|image_pad|>`,
/// `<image_soft_token>`, `[IMG]`, `<IMG_CONTEXT>`, `<|vision_start|>`, `<|AUDIO|>`, `<|patch|>`. A
/// false positive costs a miss.
const WORDS: [&str; 7] = ["image", "img", "video", "vision", "audio", "speech", "patch"];

/// Ids of placeholders, ascending. Text models have at most a handful.
#[derive(Debug)]
pub(super) struct MediaTokens {
    ids: Box<[u32]>,
    image: Option<u32>,
}

impl MediaTokens {
    /// The placeholders among the added tokens of a file.
    pub(super) fn new(file: &TokenizerFile) -> Self {
        let named = file.added_tokens.iter().filter(|token| is_placeholder(&token.content));
        let mut ids: Vec<u32> = named.map(|token| token.id).collect();
        ids.sort_unstable();
        ids.dedup();
        Self { ids: ids.into(), image: None }
    }

    /// Enables images with names: `image` is their placeholder, and the marks around it count as
    /// text.
    pub(super) fn follow_images(&mut self, image: u32, marks: &[u32]) {
        let is_media = |id: &u32| *id == image || !marks.contains(id);
        let mut ids: Vec<u32> = self.ids.iter().copied().filter(is_media).collect();
        if let Err(place) = ids.binary_search(&image) {
            ids.insert(place, image);
        }
        self.ids = ids.into();
        self.image = Some(image);
    }

    /// The placeholder of images, if images with names are enabled.
    pub(super) const fn image(&self) -> Option<u32> {
        self.image
    }

    /// True if an id is a placeholder.
    pub(super) fn has_any(&self, ids: &[u32]) -> bool {
        let (Some(first), Some(last)) = (self.ids.first(), self.ids.last()) else { return false };
        let range = *first..=*last;
        ids.iter().any(|id| range.contains(id) && self.ids.binary_search(id).is_ok())
    }
}

fn is_placeholder(content: &str) -> bool {
    let inner = content
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'))
        .or_else(|| content.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')));
    let Some(inner) = inner else { return false };
    let inner = inner.to_ascii_lowercase();
    WORDS.iter().any(|word| inner.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_known_by_their_names() {
        for name in [
            "<|image_pad|>",
            "<|vision_start|>",
            "<|video_pad|>",
            "<image_soft_token>",
            "<start_of_image>",
            "<image>",
            "<|image|>",
            "[IMG]",
            "[IMG_BREAK]",
            "<IMG_CONTEXT>",
            "<|AUDIO|>",
            "<|audio_bos|>",
            "<|patch|>",
        ] {
            assert!(is_placeholder(name), "{name}");
        }
        for name in ["<|im_start|>", "<|im_end|>", "<s>", "[INST]", "image", "<tool_call>", "<>"] {
            assert!(!is_placeholder(name), "{name}");
        }
    }

    #[test]
    fn one_of_them_is_enough() {
        let file = r#"{"added_tokens":[{"id":9,"content":"<|image_pad|>"},{"id":5,"content":"[IMG]"},
            {"id":7,"content":"<|im_end|>"}],"model":{"vocab":{"a":0}}}"#;
        let media = MediaTokens::new(&serde_json::from_str(file).unwrap());
        assert!(media.has_any(&[1, 2, 9]) && media.has_any(&[5]));
        assert!(!media.has_any(&[1, 7, 8, 4, 10]) && !media.has_any(&[]));
    }
}
