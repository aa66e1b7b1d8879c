//! Images in the blocks of an event. The keys of a block contain each image of the block as
//! `[name, offset]`; vLLM counts the offset from the block's first token.

use super::msgpack::{MsgpackReader, Value};
use forebay_base::limits::IMAGE_NAME_BYTES_MAX;
use std::str::from_utf8;

/// The images of successive blocks; empty in events without images.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockImages<'a> {
    /// Reader at the keys of the next block.
    keys: Option<MsgpackReader<'a>>,
    /// Number of blocks with keys to come.
    left: u32,
}

/// The images of a block in their order: name, and offset of the first token. The offset is
/// negative for an image that began in an earlier block.
#[derive(Clone, Debug, Default)]
pub struct ImagesOfBlock<'a> {
    keys: Option<MsgpackReader<'a>>,
    left: u32,
}

impl<'a> BlockImages<'a> {
    /// Images from the keys of so many blocks, which [`super::fields`] has checked.
    pub(super) const fn new(keys: MsgpackReader<'a>, blocks: u32) -> Self {
        Self { keys: Some(keys), left: blocks }
    }

    /// The images of the next block.
    pub fn next_block(&mut self) -> ImagesOfBlock<'a> {
        let Some(reader) = self.keys.as_mut().filter(|_| self.left > 0) else {
            return ImagesOfBlock::default();
        };
        self.left -= 1;
        let mut keys = *reader;
        if reader.skip().is_err() {
            self.left = 0;
        }
        match keys.value() {
            Ok(Value::Array(left)) => ImagesOfBlock { keys: Some(keys), left },
            _ => ImagesOfBlock::default(),
        }
    }

    /// Skips so many blocks.
    pub(super) fn skip(&mut self, blocks: usize) {
        for _ in 0..blocks.min(usize::try_from(self.left).unwrap_or(0)) {
            self.next_block();
        }
    }
}

impl ImagesOfBlock<'_> {
    /// True for a block without images.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_none() || self.clone().next().is_none()
    }
}

impl<'a> Iterator for ImagesOfBlock<'a> {
    type Item = (&'a str, i32);

    fn next(&mut self) -> Option<Self::Item> {
        let reader = self.keys.as_mut()?;
        while self.left > 0 {
            self.left -= 1;
            let mut key = *reader;
            reader.skip().ok()?;
            if let Some(image) = image(&mut key) {
                return Some(image);
            }
        }
        None
    }
}

/// The image in a key; `None` for other keys.
pub(super) fn image<'a>(key: &mut MsgpackReader<'a>) -> Option<(&'a str, i32)> {
    let (Ok(Value::Array(2)), Ok(Value::Text(name)), Ok(Value::Integer { bits, .. })) =
        (key.value(), key.value(), key.value())
    else {
        return None;
    };
    let name = from_utf8(name).ok().filter(|name| is_name(name))?;
    Some((name, i32::try_from(bits.cast_signed()).ok()?))
}

fn is_name(name: &str) -> bool {
    (1..=IMAGE_NAME_BYTES_MAX).contains(&name.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decoder, KvEvent};

    type TestKey<'a> = (&'a str, Option<i64>);

    /// Blocks of one token, with their keys: `None` is nil, a pair is an image, a name alone a
    /// text.
    fn payload(keys: &[Option<&[TestKey<'_>]>]) -> Vec<u8> {
        let mut out = Vec::new();
        let count = u32::try_from(keys.len()).unwrap();
        let array = |out: &mut Vec<u8>, length| {
            rmp::encode::write_array_len(out, length).unwrap();
        };
        array(&mut out, 2);
        rmp::encode::write_f64(&mut out, 1.0).unwrap();
        array(&mut out, 1);
        array(&mut out, 9);
        rmp::encode::write_str(&mut out, "BlockStored").unwrap();
        array(&mut out, count);
        (0..count).for_each(|hash| rmp::encode::write_u32(&mut out, hash).map(drop).unwrap());
        rmp::encode::write_u32(&mut out, 77).unwrap();
        array(&mut out, count);
        (0..count).for_each(|token| rmp::encode::write_u32(&mut out, token).map(drop).unwrap());
        rmp::encode::write_u32(&mut out, 1).unwrap();
        (0..3).for_each(|_| rmp::encode::write_nil(&mut out).unwrap());
        array(&mut out, count);
        for keys in keys {
            let Some(keys) = keys else {
                rmp::encode::write_nil(&mut out).unwrap();
                continue;
            };
            array(&mut out, u32::try_from(keys.len()).unwrap());
            for (name, offset) in *keys {
                offset.iter().for_each(|_| array(&mut out, 2));
                rmp::encode::write_str(&mut out, name).unwrap();
                offset.iter().for_each(|offset| {
                    rmp::encode::write_sint(&mut out, *offset).map(drop).unwrap();
                });
            }
        }
        out
    }

    /// The images of each block, and the first block that is not text, in parts of so many blocks.
    fn read(payload: &[u8], blocks_max: usize) -> (Vec<Vec<(String, i32)>>, Option<usize>) {
        let mut decoder = Decoder::new();
        let mut batch = crate::Batch::begin(payload).unwrap();
        let mut all = Vec::new();
        let mut opaque = None;
        while let Some(part) = decoder.next(&mut batch, blocks_max).unwrap() {
            let KvEvent::Stored(stored) = part.event else { panic!("{part:?}") };
            let mut images = stored.extra_keys.images;
            for position in 0..stored.hashes.len() {
                if stored.extra_keys.is_opaque(position) {
                    opaque.get_or_insert(all.len());
                }
                let of_block = images.next_block();
                all.push(of_block.map(|(name, at)| (name.to_owned(), at)).collect());
            }
        }
        (all, opaque)
    }

    #[test]
    fn images_are_those_of_their_blocks_in_parts_too() {
        let long = "x".repeat(IMAGE_NAME_BYTES_MAX + 1);
        let keys: [Option<&[_]>; 6] = [
            None,
            Some(&[("a", Some(3)), ("b", Some(9))]),
            Some(&[("b", Some(-7))]),
            None,
            Some(&[("c", Some(0))]),
            Some(&[(&long, Some(0))]),
        ];
        let payload = payload(&keys);
        let named = |images: &[(&str, i32)]| -> Vec<(String, i32)> {
            images.iter().map(|(name, at)| ((*name).to_owned(), *at)).collect()
        };
        let wanted = [
            named(&[]),
            named(&[("a", 3), ("b", 9)]),
            named(&[("b", -7)]),
            named(&[]),
            named(&[("c", 0)]),
            named(&[]),
        ];
        for blocks_max in [1, 2, 4, usize::MAX] {
            let (images, opaque) = read(&payload, blocks_max);
            assert_eq!(images, wanted, "{blocks_max}");
            assert_eq!(opaque, Some(5), "a name that is too long: {blocks_max}");
        }
    }

    #[test]
    fn names_without_a_place_are_not_followed() {
        let payload = payload(&[None, Some(&[("a", None)]), Some(&[("b", Some(0))])]);
        assert_eq!(read(&payload, usize::MAX).1, Some(1));
    }
}
