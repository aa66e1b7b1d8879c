//! Fields that the router adds to a forwarded message.

use crate::exchange::rate_fields::RATE_FIELDS;
use forebay_identity::AnswerField;

/// Most fields that the router adds: few, because each is compared with every field of the message.
/// Further fields are left out.
const ADDED_FIELDS_MAX: usize = 8 + RATE_FIELDS;

/// Fields that the router adds to a forwarded message, in order.
pub(crate) struct AddedFields<'a> {
    fields: [AnswerField<'a>; ADDED_FIELDS_MAX],
    count: usize,
}

impl<'a> AddedFields<'a> {
    pub(crate) const fn new() -> Self {
        Self { fields: [("", &[]); ADDED_FIELDS_MAX], count: 0 }
    }

    pub(crate) fn push(&mut self, field: AnswerField<'a>) {
        let place = self.fields.get_mut(self.count);
        debug_assert!(place.is_some(), "more fields than a message gets");
        if let Some(place) = place {
            *place = field;
            self.count += 1;
        }
    }

    pub(crate) fn extend(&mut self, fields: impl IntoIterator<Item = AnswerField<'a>>) {
        fields.into_iter().for_each(|field| self.push(field));
    }

    pub(crate) fn get(&self) -> &[AnswerField<'a>] {
        self.fields.get(..self.count).unwrap_or_default()
    }
}
