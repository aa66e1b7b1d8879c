//! A JSON string that comes in reads. Only a short name is stored.

/// Longer strings are no name of a member that is read.
const NAME_BYTES_MAX: usize = NO_NAME as usize;
/// Length of a string that is too long, or has an escape.
const NO_NAME: u8 = 28;

/// The string that was read last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortText {
    name: [u8; NAME_BYTES_MAX],
    length: u8,
    state: TextState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextState {
    Outside,
    Inside,
    Escaped,
}

impl ShortText {
    pub(crate) const fn new() -> Self {
        Self { name: [0; NAME_BYTES_MAX], length: 0, state: TextState::Outside }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.state != TextState::Outside
    }

    /// The opening quote was read.
    pub(crate) fn begin(&mut self) {
        self.state = TextState::Inside;
        self.length = 0;
    }

    /// The string, if it is short and has no escape.
    pub(crate) fn name(&self) -> &[u8] {
        let length = usize::from(self.length);
        self.name.get(..length).filter(|_| self.length < NO_NAME).unwrap_or_default()
    }

    /// Stores no name any longer.
    pub(crate) fn forget(&mut self) {
        self.length = 0;
    }

    /// Reads up to the end of the string or behind an escape. Returns the bytes read.
    pub(crate) fn read(&mut self, data: &[u8]) -> usize {
        if self.state == TextState::Escaped {
            // The escaped byte ends nothing.
            self.state = TextState::Inside;
            return data.len().min(1);
        }
        let end = memchr::memchr2(b'"', b'\\', data);
        let text = data.get(..end.unwrap_or(data.len())).unwrap_or_default();
        self.push(text);
        match data.get(text.len()) {
            Some(b'"') => self.state = TextState::Outside,
            Some(b'\\') => {
                // A name with an escape is another name.
                self.state = TextState::Escaped;
                self.length = NO_NAME;
            }
            _ => return text.len(),
        }
        text.len() + 1
    }

    fn push(&mut self, text: &[u8]) {
        let length = usize::from(self.length);
        match self.name.get_mut(length..length.saturating_add(text.len())) {
            Some(place) => {
                place.copy_from_slice(text);
                self.length =
                    self.length.saturating_add(u8::try_from(text.len()).unwrap_or(NO_NAME));
            }
            None => self.length = NO_NAME,
        }
    }
}
