//! A bounds-checked reader of MessagePack values, as far as KV events need them. Allocates nothing, never recurses,
//! trusts no claimed length, accepts any header width (engines write wider headers than they need).

use thiserror::Error;

/// Why bytes are not the value that was expected. Always the engine's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MsgpackError {
    /// The bytes end inside a value.
    #[error("the payload ends inside a value")]
    Truncated,
    /// A well-formed value of another type.
    #[error("a value has another type than expected")]
    Type,
    /// The one byte that MessagePack never uses.
    #[error("the payload holds the reserved byte 0xc1")]
    Reserved,
}

/// One value; containers give only their length, their items follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Nil,
    Boolean,
    /// An integer of either sign as its two's complement bits.
    Integer {
        bits: u64,
        negative: bool,
    },
    Float(f64),
    Text(&'a [u8]),
    Binary(&'a [u8]),
    Array(u32),
    Map(u32),
    Extension,
}

/// A position in a payload.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Bytes not read yet: an upper bound on the values that can follow.
    pub(super) fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Reads one value, or the header of one container.
    pub(super) fn value(&mut self) -> Result<Value<'a>, MsgpackError> {
        let [marker] = self.fixed::<1>()?;
        Ok(match marker {
            0x00..=0x7f => Value::Integer { bits: u64::from(marker), negative: false },
            0x80..=0x8f => Value::Map(u32::from(marker & 0x0f)),
            0x90..=0x9f => Value::Array(u32::from(marker & 0x0f)),
            0xa0..=0xbf => Value::Text(self.take(u32::from(marker & 0x1f))?),
            0xc0 => Value::Nil,
            0xc1 => return Err(MsgpackError::Reserved),
            0xc2 | 0xc3 => Value::Boolean,
            0xc4..=0xc6 => {
                let length = self.unsigned(marker - 0xc4)?;
                Value::Binary(self.take_wide(length)?)
            }
            0xc7..=0xc9 => {
                let length = self.unsigned(marker - 0xc7)?;
                self.take(1)?;
                self.take_wide(length)?;
                Value::Extension
            }
            0xca => Value::Float(f64::from(f32::from_be_bytes(self.fixed()?))),
            0xcb => Value::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc..=0xcf => Value::Integer { bits: self.unsigned(marker - 0xcc)?, negative: false },
            0xd0..=0xd3 => signed(self.unsigned(marker - 0xd0)?, marker - 0xd0),
            0xd4..=0xd8 => {
                self.take(1 + (1 << (marker - 0xd4)))?;
                Value::Extension
            }
            0xd9..=0xdb => {
                let length = self.unsigned(marker - 0xd9)?;
                Value::Text(self.take_wide(length)?)
            }
            0xdc | 0xdd => Value::Array(self.length(marker - 0xdc)?),
            0xde | 0xdf => Value::Map(self.length(marker - 0xde)?),
            0xe0..=0xff => signed(u64::from(marker), 0),
        })
    }

    /// Reads one value and everything inside it. Bounded by the payload: every step takes at least a byte.
    pub(super) fn skip(&mut self) -> Result<(), MsgpackError> {
        let mut pending = 1_u64;
        while pending > 0 {
            pending -= 1;
            pending = pending.saturating_add(match self.value()? {
                Value::Array(length) => u64::from(length),
                Value::Map(length) => 2 * u64::from(length),
                _ => 0,
            });
        }
        Ok(())
    }

    fn length(&mut self, width: u8) -> Result<u32, MsgpackError> {
        let length = self.unsigned(width + 1)?;
        u32::try_from(length).map_err(|_| MsgpackError::Truncated)
    }

    /// A big-endian unsigned number of `1 << width` bytes.
    fn unsigned(&mut self, width: u8) -> Result<u64, MsgpackError> {
        Ok(match width {
            0 => u64::from(u8::from_be_bytes(self.fixed()?)),
            1 => u64::from(u16::from_be_bytes(self.fixed()?)),
            2 => u64::from(u32::from_be_bytes(self.fixed()?)),
            _ => u64::from_be_bytes(self.fixed()?),
        })
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], MsgpackError> {
        let (head, rest) = self.bytes.split_first_chunk::<N>().ok_or(MsgpackError::Truncated)?;
        self.bytes = rest;
        Ok(*head)
    }

    fn take_wide(&mut self, length: u64) -> Result<&'a [u8], MsgpackError> {
        self.take(u32::try_from(length).map_err(|_| MsgpackError::Truncated)?)
    }

    fn take(&mut self, length: u32) -> Result<&'a [u8], MsgpackError> {
        let length = usize::try_from(length).map_err(|_| MsgpackError::Truncated)?;
        let (head, rest) = self.bytes.split_at_checked(length).ok_or(MsgpackError::Truncated)?;
        self.bytes = rest;
        Ok(head)
    }
}

/// Sign-extends a number of `1 << width` bytes.
fn signed<'a>(bits: u64, width: u8) -> Value<'a> {
    let unused = 64_u32.saturating_sub(8 << width.min(3));
    let extended = (bits << unused).cast_signed() >> unused;
    Value::Integer { bits: extended.cast_unsigned(), negative: extended < 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn integer(value: i64) -> Value<'static> {
        Value::Integer { bits: value.cast_unsigned(), negative: value < 0 }
    }

    #[test]
    fn reads_every_marker() {
        let cases: [(&[u8], Value<'_>); 20] = [
            (&[0x7f], integer(127)),
            (&[0xff], integer(-1)),
            (&[0xe0], integer(-32)),
            (&[0xcc, 0xff], integer(255)),
            (&[0xcd, 1, 0], integer(256)),
            (&[0xce, 0, 1, 0, 0], integer(65_536)),
            (&[0xcf, 0, 0, 0, 0, 0, 0, 0, 9], integer(9)),
            (&[0xd0, 0x80], integer(-128)),
            (&[0xd1, 0xff, 0x7f], integer(-129)),
            (&[0xd2, 0xff, 0xff, 0xff, 0xfe], integer(-2)),
            (&[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0], integer(i64::MIN)),
            (&[0xc0], Value::Nil),
            (&[0xc3], Value::Boolean),
            (&[0xa2, b'h', b'i'], Value::Text(b"hi")),
            (&[0xdb, 0, 0, 0, 1, b'x'], Value::Text(b"x")),
            (&[0xc4, 1, 7], Value::Binary(&[7])),
            (&[0xdc, 0, 3], Value::Array(3)),
            (&[0xdf, 0, 0, 0, 2], Value::Map(2)),
            (&[0xca, 0x3f, 0x80, 0, 0], Value::Float(1.0)),
            (&[0xd4, 1, 2], Value::Extension),
        ];
        for (bytes, value) in cases {
            let mut reader = Reader::new(bytes);
            assert_eq!(reader.value(), Ok(value), "{bytes:02x?}");
            assert_eq!(reader.remaining(), 0, "{bytes:02x?}");
            for cut in 0..bytes.len() {
                assert_eq!(Reader::new(&bytes[..cut]).value(), Err(MsgpackError::Truncated));
            }
        }
    }

    #[test]
    fn claimed_lengths_are_not_believed() {
        assert_eq!(
            Reader::new(&[0xdd, 0xff, 0xff, 0xff, 0xff]).skip(),
            Err(MsgpackError::Truncated)
        );
        assert_eq!(
            Reader::new(&[0xdf, 0xff, 0xff, 0xff, 0xff]).skip(),
            Err(MsgpackError::Truncated)
        );
        assert_eq!(
            Reader::new(&[0xc6, 0xff, 0xff, 0xff, 0xff]).skip(),
            Err(MsgpackError::Truncated)
        );
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let mut bytes = vec![0x91; 2_000_000];
        bytes.push(0xc0);
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.skip(), Ok(()));
        assert_eq!(reader.remaining(), 0);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = Reader::new(&bytes);
            while reader.skip().is_ok() {}
        }
    }
}
