//! MessagePack values as far as KV events need them: a thin layer over `rmp` that borrows texts and
//! bytes from the payload and skips values. Allocates nothing, never recurses, trusts no claimed
//! length, accepts any header width (engines write wider headers than they need).

use rmp::Marker as M;
use rmp::decode::{self, ValueReadError};
use thiserror::Error;

/// Why bytes are not the expected value. Always the engine's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MsgpackError {
    /// The bytes end inside a value.
    #[error("the payload ends inside a value")]
    Truncated,
    /// A well-formed value of another type.
    #[error("a value has another type than expected")]
    Type,
    /// The byte that MessagePack never uses.
    #[error("the payload holds the reserved byte 0xc1")]
    Reserved,
}

/// A value, or the length of a container with the items to follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Nil,
    /// True or false; events do not depend on which.
    Boolean,
    /// An integer of either sign as its two's complement bits.
    Integer {
        /// As `u64`, or as `i64` where negative.
        bits: u64,
        /// True for a number below zero.
        negative: bool,
    },
    /// A float of either width.
    Float(f64),
    /// Text that need not be UTF-8.
    Text(&'a [u8]),
    Binary(&'a [u8]),
    /// Number of items to follow.
    Array(u32),
    /// Number of pairs to follow.
    Map(u32),
    /// An extension type, which is skipped.
    Extension,
}

/// A reader at a position in a payload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MsgpackReader<'a> {
    bytes: &'a [u8],
}

impl<'a> MsgpackReader<'a> {
    /// A reader at the start of a payload.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Bytes not read yet: an upper bound on the values that can follow.
    pub fn remaining(&self) -> usize {
        self.bytes.len()
    }

    /// Reads an unsigned integer of up to 32 bits, if that is next. Nearly all values of events are
    /// token ids, and [`Self::value`] takes several times as long.
    #[inline]
    pub fn short_unsigned(&mut self) -> Option<u32> {
        let (value, rest) = match *self.bytes {
            [short @ 0..=0x7f, ref rest @ ..] => (u32::from(short), rest),
            [0xcc, a, ref rest @ ..] => (u32::from(a), rest),
            [0xcd, a, b, ref rest @ ..] => (u32::from(u16::from_be_bytes([a, b])), rest),
            [0xce, a, b, c, d, ref rest @ ..] => (u32::from_be_bytes([a, b, c, d]), rest),
            _ => return None,
        };
        self.bytes = rest;
        Some(value)
    }

    /// Reads a value, or the header of a container.
    pub fn value(&mut self) -> Result<Value<'a>, MsgpackError> {
        if let Some(value) = self.short_unsigned() {
            return Ok(Value::Integer { bits: u64::from(value), negative: false });
        }
        let mut after = self.bytes;
        let marker = decode::read_marker(&mut after).map_err(cut)?;
        let bytes = &mut self.bytes;
        Ok(match marker {
            M::FixPos(_) | M::U8 | M::U16 | M::U32 | M::U64 => {
                Value::Integer { bits: decode::read_int(bytes).map_err(cut)?, negative: false }
            }
            M::FixNeg(_) | M::I8 | M::I16 | M::I32 | M::I64 => {
                let value: i64 = decode::read_int(bytes).map_err(cut)?;
                Value::Integer { bits: value.cast_unsigned(), negative: value < 0 }
            }
            M::FixArray(_) | M::Array16 | M::Array32 => {
                Value::Array(decode::read_array_len(bytes).map_err(cut)?)
            }
            M::FixMap(_) | M::Map16 | M::Map32 => {
                Value::Map(decode::read_map_len(bytes).map_err(cut)?)
            }
            M::FixStr(_) | M::Str8 | M::Str16 | M::Str32 => {
                Value::Text(self.take(decode::read_str_len)?)
            }
            M::Bin8 | M::Bin16 | M::Bin32 => Value::Binary(self.take(decode::read_bin_len)?),
            M::F32 => Value::Float(f64::from(decode::read_f32(bytes).map_err(cut)?)),
            M::F64 => Value::Float(decode::read_f64(bytes).map_err(cut)?),
            M::Reserved => return Err(MsgpackError::Reserved),
            M::Null | M::True | M::False => {
                self.bytes = after;
                if marker == M::Null { Value::Nil } else { Value::Boolean }
            }
            // The other markers are the eight forms of extensions.
            _ => {
                self.take(|bytes| Ok(decode::read_ext_meta(bytes)?.size))?;
                Value::Extension
            }
        })
    }

    /// Reads a value with everything inside it. Bounded by the payload: every step takes at least a
    /// byte.
    pub fn skip(&mut self) -> Result<(), MsgpackError> {
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

    /// Reads a length, then borrows so many bytes of the payload, which `rmp` itself would copy.
    fn take(&mut self, length: ReadLength<'a>) -> Result<&'a [u8], MsgpackError> {
        let length = usize::try_from(length(&mut self.bytes).map_err(cut)?).map_err(cut)?;
        let (head, rest) = self.bytes.split_at_checked(length).ok_or(MsgpackError::Truncated)?;
        self.bytes = rest;
        Ok(head)
    }
}

type ReadLength<'a> = fn(&mut &'a [u8]) -> Result<u32, ValueReadError>;

/// Maps an error of `rmp` after a marker of the right type: the slice can only end too early.
fn cut<E>(_: E) -> MsgpackError {
    MsgpackError::Truncated
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
            let mut reader = MsgpackReader::new(bytes);
            assert_eq!(reader.value(), Ok(value), "{bytes:02x?}");
            assert_eq!(reader.remaining(), 0, "{bytes:02x?}");
            for cut in 0..bytes.len() {
                assert_eq!(MsgpackReader::new(&bytes[..cut]).value(), Err(MsgpackError::Truncated));
            }
        }
    }

    #[test]
    fn claimed_lengths_are_not_believed() {
        assert_eq!(
            MsgpackReader::new(&[0xdd, 0xff, 0xff, 0xff, 0xff]).skip(),
            Err(MsgpackError::Truncated)
        );
        assert_eq!(
            MsgpackReader::new(&[0xdf, 0xff, 0xff, 0xff, 0xff]).skip(),
            Err(MsgpackError::Truncated)
        );
        assert_eq!(
            MsgpackReader::new(&[0xc6, 0xff, 0xff, 0xff, 0xff]).skip(),
            Err(MsgpackError::Truncated)
        );
    }

    #[test]
    fn deep_nesting_costs_no_stack() {
        let mut bytes = vec![0x91; 2_000_000];
        bytes.push(0xc0);
        let mut reader = MsgpackReader::new(&bytes);
        assert_eq!(reader.skip(), Ok(()));
        assert_eq!(reader.remaining(), 0);
    }

    proptest! {
        #[test]
        fn never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = MsgpackReader::new(&bytes);
            while reader.skip().is_ok() {}
        }
    }
}
