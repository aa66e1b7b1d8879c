//! The items of a chunk, all of the same type. Sans-IO.

use super::{Link, SnapshotEntry};
use crate::framing::NumberReader;
use std::marker::PhantomData;

/// An item of a chunk.
pub trait Item: Sized {
    /// Reads an item from the front; `None` unless it follows the format.
    fn take(reader: &mut NumberReader<'_>) -> Option<Self>;
}

impl Item for SnapshotEntry {
    fn take(reader: &mut NumberReader<'_>) -> Option<Self> {
        Self::decode(reader)
    }
}

impl Item for Link {
    fn take(reader: &mut NumberReader<'_>) -> Option<Self> {
        Self::decode(reader)
    }
}

/// The items of a chunk, all of which follow the format.
#[derive(Clone, Copy, Debug)]
pub struct Items<'a, T> {
    plain: NumberReader<'a>,
    left: usize,
    of: PhantomData<T>,
}

impl<'a, T: Item> Items<'a, T> {
    /// Checks the items; `None` unless the bytes are exactly `count` items.
    pub(super) fn check(plain: &'a [u8], count: usize) -> Option<Self> {
        let mut reader = NumberReader(plain);
        for _ in 0..count {
            T::take(&mut reader)?;
        }
        let items = Self { plain: NumberReader(plain), left: count, of: PhantomData };
        reader.0.is_empty().then_some(items)
    }
}

impl<T: Item> Iterator for Items<'_, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        T::take(&mut self.plain)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}
