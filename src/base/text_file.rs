//! Text from outside, up to a bound.

use std::io::{self, Read};

/// The whole text.
///
/// # Errors
/// It cannot be read, is no UTF-8, or is longer than `bytes_max`.
pub fn read_text(source: impl Read, bytes_max: usize) -> io::Result<String> {
    let (mut text, limit) = (String::new(), bytes_max as u64);
    source.take(limit.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() > bytes_max {
        return Err(io::Error::other(format!("it is longer than {bytes_max} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::read_text;

    #[test]
    fn a_text_has_a_bound() {
        assert_eq!(read_text(&b"abc"[..], 3).unwrap(), "abc");
        let error = read_text(std::io::repeat(b'a'), 3).unwrap_err();
        assert_eq!(error.to_string(), "it is longer than 3 bytes");
        assert!(read_text(&b"\xff"[..], 3).is_err());
    }
}
