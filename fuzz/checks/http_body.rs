//! Any bytes as a chunked body. Must hold: the data, the end and the verdict do not depend on how
//! the bytes are cut; what follows the body is untouched; the decoder agrees with a second one that
//! is written for clarity.

use forebay_http1::{BodyError, BodyLimits, ChunkedDecoder, LAST_CHUNK, encode_chunk_header};

const LIMITS: BodyLimits =
    BodyLimits { body_bytes_max: 4_096, extension_bytes_max: 64, trailer_bytes_max: 64 };

/// Panics when a rule above is broken. The first byte says how the rest is cut.
pub(crate) fn check(data: &[u8]) {
    let Some((cut, body)) = data.split_first() else { return };
    let whole = decode(body, body.len().max(1));
    for step in [1, 2, 3, usize::from(*cut).max(1)] {
        assert_eq!(decode(body, step), whole, "in steps of {step}");
    }
    assert_eq!(
        whole.clone().map(|(data, end)| (data, end.is_some())).ok(),
        plainly(body),
        "second decoder"
    );
    if let Ok((data, Some(end))) = &whole {
        assert!(*end <= body.len());
        round_trip(data, usize::from(*cut));
    }
}

type Outcome = Result<(Vec<u8>, Option<usize>), BodyError>;

/// Data so far, and where the body ended.
fn decode(body: &[u8], step: usize) -> Outcome {
    let mut decoder = ChunkedDecoder::new(&LIMITS);
    let mut data = Vec::new();
    let mut at = 0;
    for piece in body.chunks(step) {
        let mut bytes = piece.to_vec();
        let decoded = decoder.decode(&mut bytes)?;
        assert!(
            decoded.data_bytes <= decoded.consumed_bytes && decoded.consumed_bytes <= piece.len()
        );
        assert_eq!(
            bytes[decoded.consumed_bytes..],
            piece[decoded.consumed_bytes..],
            "bytes after the body changed"
        );
        data.extend_from_slice(&bytes[..decoded.data_bytes]);
        at += decoded.consumed_bytes;
        if decoded.done {
            return Ok((data, Some(at)));
        }
        assert_eq!(decoded.consumed_bytes, piece.len());
    }
    Ok((data, None))
}

fn round_trip(data: &[u8], cut: usize) {
    let mut wire = Vec::new();
    for piece in data.chunks(cut.max(1)) {
        let mut header = [0; 10];
        let start = encode_chunk_header(piece.len(), &mut header);
        wire.extend_from_slice(&header[start..]);
        wire.extend_from_slice(piece);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(LAST_CHUNK);
    let end = wire.len();
    wire.extend_from_slice(b"next");
    assert_eq!(decode(&wire, 7), Ok((data.to_vec(), Some(end))));
}

/// The same grammar, line by line: data so far and whether the body ended; `None` for an error.
fn plainly(body: &[u8]) -> Option<(Vec<u8>, bool)> {
    let mut rest = body;
    let mut data = Vec::new();
    let mut size_left = 4_096_u64;
    let mut extension_left = 64_usize;
    let mut trailer_left = 64_usize;
    loop {
        let line = match line(rest) {
            Line::Whole(line) => line,
            Line::Open(open) => {
                let more_may_follow = !rest.ends_with(b"\r");
                return size_line(open, more_may_follow, &mut extension_left)
                    .map(|_| (data, false));
            }
            Line::Broken => return None,
        };
        let size = size_line(line, false, &mut extension_left)?;
        rest = &rest[line.len() + 2..];
        if size == 0 {
            break;
        }
        size_left = size_left.checked_sub(size)?;
        let size = usize::try_from(size).unwrap();
        if rest.len() <= size {
            data.extend_from_slice(rest);
            return Some((data, false));
        }
        data.extend_from_slice(&rest[..size]);
        match &rest[size..] {
            [b'\r'] => return Some((data, false)),
            [b'\r', b'\n', more @ ..] => rest = more,
            _ => return None,
        }
    }
    loop {
        let (line, whole) = match line(rest) {
            Line::Whole(line) => (line, true),
            Line::Open(line) => (line, false),
            Line::Broken => return None,
        };
        if line.is_empty() {
            return Some((data, whole));
        }
        let name = line.iter().position(|byte| !is_token(*byte)).unwrap_or(line.len());
        let valid = match line.get(name) {
            None => name > 0 && !whole && !rest.ends_with(b"\r"),
            Some(b':') => name > 0 && line[name..].iter().all(|byte| is_value(*byte)),
            Some(_) => false,
        };
        // The decoder counts a line and its CR.
        let counted = line.len() + usize::from(whole || rest.ends_with(b"\r"));
        trailer_left = trailer_left.checked_sub(counted)?;
        if !valid {
            return None;
        }
        if !whole {
            return Some((data, false));
        }
        rest = &rest[line.len() + 2..];
    }
}

enum Line<'a> {
    Whole(&'a [u8]),
    /// Not ended yet, its CR (if there) cut off.
    Open(&'a [u8]),
    Broken,
}

fn line(rest: &[u8]) -> Line<'_> {
    let end = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')).unwrap_or(rest.len());
    match &rest[end..] {
        [] | [b'\r'] => Line::Open(&rest[..end]),
        [b'\r', b'\n', ..] => Line::Whole(&rest[..end]),
        _ => Line::Broken,
    }
}

/// Size of a chunk line. `open`: more of it may follow.
fn size_line(line: &[u8], open: bool, extension_left: &mut usize) -> Option<u64> {
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (size, extension) = line.split_at(digits);
    if size.len() > 16 || (size.is_empty() && !(open && line.is_empty())) {
        return None;
    }
    *extension_left = extension_left.checked_sub(extension.len())?;
    let valid = extensions(extension, open);
    let text = std::str::from_utf8(size).unwrap();
    valid.then(|| u64::from_str_radix(text, 16).unwrap_or(0))
}

fn blanks(bytes: &[u8]) -> &[u8] {
    let run = bytes.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &bytes[run..]
}

fn token(bytes: &[u8]) -> (&[u8], &[u8]) {
    bytes.split_at(bytes.iter().take_while(|byte| is_token(**byte)).count())
}

/// `*( BWS ";" BWS name [ BWS "=" BWS value ] )`; with `open`, any beginning of it.
fn extensions(mut rest: &[u8], open: bool) -> bool {
    loop {
        if rest.is_empty() {
            return true;
        }
        let Some((b';', after)) = blanks(rest).split_first() else {
            return open && blanks(rest).is_empty();
        };
        let (name, after) = token(blanks(after));
        if name.is_empty() {
            return open && after.is_empty();
        }
        rest = after;
        let Some((b'=', after)) = blanks(after).split_first() else { continue };
        let after = blanks(after);
        if let Some((b'"', mut quoted)) = after.split_first() {
            rest = loop {
                quoted = match quoted {
                    [] => return open,
                    [b'"', end @ ..] => break end,
                    [b'\\'] => return open,
                    [b'\\', byte, more @ ..] | [byte, more @ ..] if is_value(*byte) => more,
                    _ => return false,
                };
            };
        } else {
            let (value, end) = token(after);
            if value.is_empty() {
                return open && end.is_empty();
            }
            rest = end;
        }
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

fn is_value(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}
