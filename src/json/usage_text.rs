//! A text of JSON as it comes, of which only a short name is kept.

/// Longer texts are no name that is looked for.
const NAME_BYTES_MAX: usize = 28;

/// The last text that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextReader {
    state: TextState,
    name: [u8; NAME_BYTES_MAX],
    length: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextState {
    Outside,
    Inside,
    Escaped,
}

impl TextReader {
    pub(super) const fn new() -> Self {
        Self { state: TextState::Outside, name: [0; NAME_BYTES_MAX], length: 0 }
    }

    pub(super) fn is_open(&self) -> bool {
        self.state != TextState::Outside
    }

    pub(super) fn begin(&mut self) {
        self.state = TextState::Inside;
        self.length = 0;
    }

    /// The text, if it is short and has no escape.
    pub(super) fn name(&self) -> &[u8] {
        self.name.get(..self.length).filter(|name| name.len() < NAME_BYTES_MAX).unwrap_or_default()
    }

    /// Reads on to the end of the text or to an escape; returns how much.
    pub(super) fn read(&mut self, data: &[u8]) -> usize {
        if self.state == TextState::Escaped {
            // Whatever it is, it ends nothing.
            self.state = TextState::Inside;
            return data.len().min(1);
        }
        let end = memchr::memchr2(b'"', b'\\', data);
        let text = data.get(..end.unwrap_or(data.len())).unwrap_or_default();
        let place = self.name.get_mut(self.length..).unwrap_or_default();
        for (place, byte) in place.iter_mut().zip(text) {
            *place = *byte;
        }
        self.length = (self.length + text.len()).min(NAME_BYTES_MAX);
        match data.get(text.len()) {
            Some(b'"') => self.state = TextState::Outside,
            Some(b'\\') => {
                // A name that is written with an escape is another one.
                self.state = TextState::Escaped;
                self.length = NAME_BYTES_MAX;
            }
            _ => return text.len(),
        }
        text.len() + 1
    }
}
