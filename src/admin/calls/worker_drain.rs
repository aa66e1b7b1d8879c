//! The body of `POST /workers/{id}/drain`.

use serde::Deserialize;

pub(crate) const HOW_TO_ASK: &str =
    r#"the body is empty, or {"move_streams": true}: streams go on at other workers at once"#;

/// The operator's order to drain a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerDrain {
    /// The worker takes requests as its health allows.
    Off,
    /// The worker gets no new requests, and finishes its streams.
    KeepStreams,
    /// Like `KeepStreams`, but movable streams continue on other workers.
    MoveStreams,
}

/// Without `retry.mid_stream` no stream can go on at another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStreamMove;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrainBody {
    #[serde(default)]
    move_streams: bool,
}

impl WorkerDrain {
    /// Parses the body of a drain call.
    ///
    /// # Errors
    /// Describes the fault in the body.
    pub(crate) fn from_body(body: &[u8]) -> Result<Self, String> {
        let body = if body.is_empty() { &b"{}"[..] } else { body };
        let body: DrainBody =
            serde_json::from_slice(body).map_err(|error| format!("{error}; {HOW_TO_ASK}"))?;
        Ok(if body.move_streams { Self::MoveStreams } else { Self::KeepStreams })
    }
}

impl NoStreamMove {
    pub(crate) const MESSAGE: &str = "streams cannot move: set `retry.mid_stream = true` and \
        reload, or leave out `move_streams`";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_an_object_or_empty() {
        let read = |body: &str| WorkerDrain::from_body(body.as_bytes());
        assert_eq!(read(""), Ok(WorkerDrain::KeepStreams));
        assert_eq!(read(" {}"), Ok(WorkerDrain::KeepStreams));
        assert_eq!(read("{\"move_streams\": true}"), Ok(WorkerDrain::MoveStreams));
        for wrong in ["null", "true", "{\"move_streams\": 1}", "{\"move\": true}"] {
            assert!(read(wrong).is_err_and(|fault| fault.contains(HOW_TO_ASK)), "{wrong}");
        }
    }
}
