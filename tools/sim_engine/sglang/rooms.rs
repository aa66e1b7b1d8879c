//! Rooms that connect a request to its other leg: ids, rooms and ranks of a body, distributed over
//! its prompts and answers.

use super::body::{OneOrList, SglangBody};
use super::error::Failure;
use crate::config::EngineRole;
use crate::random_id::random_id_128;
use axum::http::HeaderMap;

const RANK_FIELD: &str = "x-data-parallel-rank";

/// The room of a request's prefill and decode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Room {
    /// Host of the prefill engine's registry.
    pub(super) host: Option<String>,
    /// Port of the registry; `None` is the decode engine's own setting.
    pub(super) port: Option<u16>,
    pub(super) id: i64,
}

/// Ids, rooms and ranks in a body and its headers.
#[derive(Debug)]
pub(super) struct Routing {
    rids: Option<OneOrList<String>>,
    hosts: Option<OneOrList<String>>,
    ports: Option<OneOrList<Option<i64>>>,
    rooms: Option<OneOrList<Option<i64>>>,
    pub(super) dp_rank: Option<usize>,
    /// Rank that computes or has computed the prompt.
    pub(super) prefill_dp_rank: Option<i64>,
}

/// Headers that a route accepts.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadRules {
    /// `x-override-` headers count, if enabled.
    pub(super) overrides: bool,
    /// `x-data-parallel-rank` counts, except on `/generate`.
    pub(super) rank: bool,
}

/// Number of prompts, and of answers to each prompt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    pub(super) prompts: usize,
    pub(super) answers: usize,
    /// The body has a list of prompts.
    pub(super) is_batch: bool,
}

impl Routing {
    /// Reads body and headers; `x-override-` headers override the body.
    pub(super) fn read(
        body: &SglangBody<'_>,
        headers: &HeaderMap,
        heard: HeadRules,
        rank_count: u32,
    ) -> Result<Self, Failure> {
        let header = |name: &str| {
            let is_heard = if name == RANK_FIELD { heard.rank } else { heard.overrides };
            headers.get(name).filter(|_| is_heard).and_then(|value| value.to_str().ok())
        };
        let number = |name: &str| -> Result<Option<i64>, Failure> {
            let Some(text) = header(name) else { return Ok(None) };
            text.trim().parse().map(Some).map_err(|error| {
                Failure::bad_request(format!("invalid {name} header \"{text}\": {error}"))
            })
        };
        let single = |value: Option<i64>| value.map(|value| OneOrList::One(Some(value)));
        let text = |name| header(name).map(|text| OneOrList::One(text.to_owned()));
        let pinned = number("x-override-routed-dp-rank")?.or(number(RANK_FIELD)?);
        let pinned = match pinned {
            Some(rank) => Some(rank),
            None => match one(body.integers("routed_dp_rank")?) {
                Some(rank) => Some(rank),
                None => one(body.integers("data_parallel_rank")?),
            },
        };
        let hinted = number("x-override-disagg-prefill-dp-rank")?;
        Ok(Self {
            rids: text("x-override-rid").or(body.texts("rid")?),
            hosts: text("x-override-bootstrap-host").or(body.texts("bootstrap_host")?),
            ports: single(number("x-override-bootstrap-port")?)
                .or(body.integers("bootstrap_port")?),
            rooms: single(number("x-override-bootstrap-room")?)
                .or(body.integers("bootstrap_room")?),
            dp_rank: pinned.map(|rank| in_range(rank, rank_count)).transpose()?,
            prefill_dp_rank: hinted.or(one(body.integers("disagg_prefill_dp_rank")?)),
        })
    }

    /// Id of an answer.
    pub(super) fn rid(&self, spread: Spread, index: usize) -> String {
        let is_single = !spread.is_batch && spread.answers == 1;
        match &self.rids {
            Some(OneOrList::One(rid)) if is_single => rid.clone(),
            Some(OneOrList::One(rid)) => format!("{rid}_{index}"),
            Some(OneOrList::List(rids)) if rids.len() > index => {
                rids.get(index).cloned().unwrap_or_default()
            }
            _ => random_id_128(),
        }
    }

    /// Lists must be as long as the batch.
    pub(super) fn check(&self, spread: Spread) -> Result<(), Failure> {
        fn length<T>(list: Option<&OneOrList<T>>) -> Option<usize> {
            match list {
                Some(OneOrList::List(list)) => Some(list.len()),
                _ => None,
            }
        }
        let lengths = [
            ("bootstrap_host", length(self.hosts.as_ref())),
            ("bootstrap_port", length(self.ports.as_ref())),
            ("bootstrap_room", length(self.rooms.as_ref())),
        ];
        for (name, length) in lengths {
            // Without a batch the first item of the list counts.
            if let Some(length) =
                length.filter(|length| spread.is_batch && *length != spread.prompts || *length == 0)
            {
                return Err(Failure::bad_request(format!(
                    "validation failed: {name} list length {length} does not match batch size {}",
                    spread.prompts
                )));
            }
        }
        Ok(())
    }

    /// Room of an answer. A single room of several answers is the first of consecutive rooms. A
    /// list is reused for the second answer to each prompt, as in SGLang, where that is a conflict.
    pub(super) fn room(&self, index: usize) -> Result<Option<Room>, Failure> {
        let id = match &self.rooms {
            None => None,
            Some(OneOrList::One(first)) => {
                let offset = i64::try_from(index).unwrap_or(i64::MAX);
                first.and_then(|first| first.checked_add(offset))
            }
            Some(OneOrList::List(list)) => list.get(index % list.len().max(1)).copied().flatten(),
        };
        let Some(id) = id else { return Ok(None) };
        let host = match &self.hosts {
            None => None,
            Some(OneOrList::One(host)) => Some(host.clone()),
            Some(OneOrList::List(list)) => list.get(index % list.len().max(1)).cloned(),
        };
        let port = match &self.ports {
            None => None,
            Some(OneOrList::One(port)) => *port,
            Some(OneOrList::List(list)) => list.get(index % list.len().max(1)).copied().flatten(),
        };
        let port = port.map(u16::try_from).transpose();
        let port = port.map_err(|_| Failure::bad_request("bootstrap_port is out of range"))?;
        Ok(Some(Room { host, port, id }))
    }
}

/// Refuses a request without a room on a disaggregated engine.
pub(super) fn check_room(role: EngineRole, room: Option<&Room>, rid: &str) -> Result<(), Failure> {
    if role == EngineRole::Both || room.is_some() {
        return Ok(());
    }
    Err(Failure::bad_request(format!(
        "Invalid request: Disaggregated request received without bootstrap room id. req.rid='{rid}'"
    )))
}

fn one(value: Option<OneOrList<Option<i64>>>) -> Option<i64> {
    match value? {
        OneOrList::One(value) => value,
        OneOrList::List(list) => list.first().copied().flatten(),
    }
}

fn in_range(rank: i64, rank_count: u32) -> Result<usize, Failure> {
    match usize::try_from(rank) {
        Ok(known) if known < rank_count as usize => Ok(known),
        _ => Err(Failure::bad_request(format!(
            "routed_dp_rank={rank} is out of range [0, {rank_count})"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::ErrorShape;
    use super::*;

    const ALL: HeadRules = HeadRules { overrides: true, rank: true };

    fn routing(text: &str) -> Routing {
        let body = SglangBody::read(text.as_bytes(), ErrorShape::Native).expect("JSON");
        Routing::read(&body, &HeaderMap::new(), ALL, 2).expect("reads")
    }

    fn ids(routing: &Routing, count: usize) -> Vec<Option<i64>> {
        let room = |index| routing.room(index).expect("port").map(|room| room.id);
        (0..count).map(room).collect()
    }

    #[test]
    fn rooms_are_spread_as_sglang_does() {
        let row = routing(r#"{"bootstrap_room":100,"bootstrap_host":"h","rid":"a"}"#);
        assert_eq!(ids(&row, 2), [Some(100), Some(101)]);
        let batch = Spread { prompts: 2, answers: 1, is_batch: true };
        assert_eq!([row.rid(batch, 0), row.rid(batch, 1)], ["a_0", "a_1"]);
        let list = routing(r#"{"bootstrap_room":[7,9],"bootstrap_port":[1,null]}"#);
        assert_eq!(ids(&list, 4), [Some(7), Some(9), Some(7), Some(9)]);
        let ports = [0, 1].map(|at| list.room(at).expect("reads").expect("room").port);
        assert_eq!(ports, [Some(1), None]);
        assert!(list.check(batch).is_ok());
        let wrong = list.check(Spread { prompts: 3, ..batch }).expect_err("length");
        assert!(wrong.message.contains("list length 2 does not match batch size 3"), "{wrong:?}");
        assert_eq!(ids(&routing("{}"), 1), [None]);
    }

    #[test]
    fn a_header_counts_more_than_the_body_and_ranks_must_exist() {
        let body = SglangBody::read(br#"{"routed_dp_rank":0,"rid":"a"}"#, ErrorShape::Native)
            .expect("JSON");
        let mut headers = HeaderMap::new();
        headers.insert("x-data-parallel-rank", "1".parse().expect("value"));
        headers.insert("x-override-rid", "b".parse().expect("value"));
        let single = Spread { prompts: 1, answers: 1, is_batch: false };
        for (heard, rank, rid) in [
            (ALL, 1, "b"),
            (HeadRules { rank: false, ..ALL }, 0, "b"),
            (HeadRules { overrides: false, ..ALL }, 1, "a"),
        ] {
            let read = Routing::read(&body, &headers, heard, 2).expect("reads");
            assert_eq!((read.dp_rank, read.rid(single, 0)), (Some(rank), rid.into()), "{heard:?}");
        }
        assert!(Routing::read(&body, &headers, ALL, 1).is_err());
        headers.insert("x-data-parallel-rank", "x".parse().expect("value"));
        assert!(Routing::read(&body, &headers, ALL, 2).is_err());
    }
}
