//! The data-parallel rank that a client asks for by `X-Data-Parallel-Rank`, the field of both
//! engines (vLLM 0.11.1, SGLang 0.5.10 and newer). The router then chooses among the ranks of that
//! number, and sets the field for the engine.

use crate::parse::Reason;
use crate::parse::Refusal;
use forebay_base::DpRank;
use forebay_http1::{FieldKind, RequestHead};

/// The rank asked for, if any.
///
/// # Errors
/// A refusal when it is no number: an engine would not do what the client asks for either.
pub fn rank_pin(head: &RequestHead, buffer: &[u8]) -> Result<Option<DpRank>, Refusal> {
    let Some(value) = head.value_of(FieldKind::DpRank, buffer) else { return Ok(None) };
    let number =
        std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
    match number.and_then(|text| text.parse().ok()) {
        Some(rank) => Ok(Some(DpRank(rank))),
        None => {
            let shown = value.get(..value.len().min(40)).unwrap_or_default();
            let shown = String::from_utf8_lossy(shown);
            Err(Refusal::new(Reason::BadRequest).with_message(format!(
                "`X-Data-Parallel-Rank: {}` is no rank: send a whole number from 0 on, or leave \
                 the field out.",
                shown.escape_debug()
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_http1::{HeadLimits, parse_request};

    fn pin(field: &str) -> Result<Option<u32>, u16> {
        let text = format!("POST / HTTP/1.1\r\nhost: h\r\n{field}\r\n");
        let mut head = RequestHead::default();
        let limits = HeadLimits { head_bytes_max: 4_096, fields_max: 16 };
        assert!(parse_request(text.as_bytes(), &limits, &mut head).is_ok());
        let pin = rank_pin(&head, text.as_bytes());
        pin.map(|pin| pin.map(|rank| rank.0)).map_err(|refusal| refusal.status())
    }

    #[test]
    fn a_rank_is_a_whole_number_or_a_clear_no() {
        assert_eq!(pin(""), Ok(None));
        assert_eq!(pin("X-Data-Parallel-Rank: 3\r\n"), Ok(Some(3)));
        assert_eq!(pin("x-data-parallel-rank: 0\r\n"), Ok(Some(0)));
        for wrong in ["-1", "+1", "one", "", "1.0", "4294967296", "1,2"] {
            assert_eq!(pin(&format!("x-data-parallel-rank: {wrong}\r\n")), Err(400), "{wrong}");
        }
    }
}
