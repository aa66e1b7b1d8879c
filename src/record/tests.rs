//! The codec by itself, damage of every kind, files that end early, and streams over real sockets.

use super::*;
use forebay_base::RankIndex;
use forebay_index::{KeySeed, Overlaps};
use forebay_snapshot::framing::CHUNK_HEADER_BYTES;
use forebay_zmq::{Side, ZmqAddress, ZmqEndpoint, ZmqSource};
use proptest::prelude::*;
use std::path::Path;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Owned {
    at_ns: u64,
    source: u16,
    frames: Vec<Vec<u8>>,
}

impl Owned {
    fn new(at_ns: u64, source: u16, frames: &[&[u8]]) -> Self {
        Self { at_ns, source, frames: frames.iter().map(|frame| frame.to_vec()).collect() }
    }

    fn of(message: &RecordedMessage<'_>) -> Self {
        Self::new(message.at_ns, message.source, message.frames())
    }

    fn push(&self, writer: &mut ChunkWriter, out: &mut Vec<u8>) {
        let frames: Vec<&[u8]> = self.frames.iter().map(Vec::as_slice).collect();
        writer.push(&RecordedMessage::new(self.at_ns, self.source, &frames).unwrap(), out).unwrap();
    }
}

fn header(source_count: usize) -> RecordingHeader {
    let name = |number| SourceName {
        endpoint: format!("tcp://gpu1:{}", 5557 + number),
        topic: "kv@".repeat(number % 2),
        kind: SourceKind::Events,
    };
    RecordingHeader {
        started_unix_ns: 1_795_000_000_123_456_789,
        sources: (0..source_count).map(name).collect(),
    }
}

/// A whole recording; a chunk is closed after every `per_chunk` messages.
fn encoded(source_count: usize, messages: &[Owned], per_chunk: usize) -> Vec<u8> {
    let mut out = Vec::new();
    header(source_count).encode(&mut out).unwrap();
    let mut writer = ChunkWriter::new(source_count);
    for chunk in messages.chunks(per_chunk.max(1)) {
        chunk.iter().for_each(|message| message.push(&mut writer, &mut out));
        writer.close_chunk(&mut out);
    }
    writer.finish(&mut out);
    out
}

/// Everything that can be read, with the end or the fault.
fn decoded(mut bytes: &[u8]) -> (Vec<Owned>, Result<RecordingEnd, RecordingError>) {
    let mut decoder = RecordingDecoder::new();
    let mut messages = Vec::new();
    let mut end = None;
    loop {
        let step = match decoder.step(bytes) {
            Ok(step) => step,
            Err(error) => return (messages, Err(error)),
        };
        messages.extend(decoder.messages().map(|message| Owned::of(&message)));
        match step {
            DecodeStep::Header { used_bytes } | DecodeStep::Chunk { used_bytes } => {
                bytes = &bytes[used_bytes..];
            }
            DecodeStep::End { used_bytes } => {
                bytes = &bytes[used_bytes..];
                end = Some(RecordingEnd::Complete);
            }
            DecodeStep::NeedMore { bytes: wanted } => {
                assert!(wanted > bytes.len());
                if decoder.header().is_none() {
                    return (messages, Err(RecordingError::HeaderCut));
                }
                return (messages, Ok(end.unwrap_or(RecordingEnd::Cut { at: decoder.offset() })));
            }
        }
    }
}

fn some_messages() -> Vec<Owned> {
    let payload = vec![7; 3_000];
    (0..10_u8)
        .map(|n| match n {
            6 => Owned::new(70, 1, &[]),
            _ => {
                let number = u64::from(n).to_be_bytes();
                Owned::new(
                    u64::from(n) * 11 + 5,
                    u16::from(n) % 2,
                    &[b"", &number, &payload[..usize::from(n)]],
                )
            }
        })
        .collect()
}

#[test]
fn what_is_written_is_read_back() {
    let mut messages = some_messages();
    messages[7].at_ns = 3;
    let bytes = encoded(2, &messages, 3);
    // Time never goes back.
    let mut sorted = 0;
    let expected: Vec<Owned> = messages
        .iter()
        .map(|message| {
            sorted = message.at_ns.max(sorted);
            Owned { at_ns: sorted, ..message.clone() }
        })
        .collect();
    assert_eq!(decoded(&bytes), (expected, Ok(RecordingEnd::Complete)));
    assert_eq!(RecordingHeader::decode(&bytes).unwrap().unwrap().0, header(2));
}

#[test]
fn every_cut_keeps_the_whole_chunks_before_it() {
    let messages = some_messages();
    let bytes = encoded(2, &messages, 3);
    let header_bytes = RecordingHeader::decode(&bytes).unwrap().unwrap().1;
    let whole = decoded(&bytes).0;
    for cut in 0..bytes.len() {
        let (read, end) = decoded(&bytes[..cut]);
        if cut < header_bytes {
            assert_eq!((read.len(), end), (0, Err(RecordingError::HeaderCut)), "cut at {cut}");
            continue;
        }
        assert_eq!(read, whole[..read.len()]);
        assert_eq!(read.len() % 3 * usize::from(read.len() < 10), 0, "whole chunks");
        let Ok(RecordingEnd::Cut { at }) = end else { panic!("{end:?} at {cut}") };
        assert!(usize::try_from(at).unwrap() <= cut);
    }
    // One byte after the end is too many.
    let longer = [bytes.as_slice(), b"x"].concat();
    let at = bytes.len() as u64;
    assert_eq!(
        decoded(&longer).1,
        Err(RecordingError::Damaged { at, what: RecordingDamage::AfterEnd })
    );
}

#[test]
fn every_changed_bit_is_noticed() {
    let bytes = encoded(2, &some_messages(), 3);
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << bit;
            let (read, end) = decoded(&changed);
            let error = match end {
                Err(error) => error,
                // A longer source list in the header reads like a file that ends there.
                Ok(end) => panic!("{end:?} after a change at {at}"),
            };
            match (at, error) {
                (0..8, error) => assert_eq!(error, RecordingError::Foreign),
                (8..10, error) => assert!(matches!(error, RecordingError::Version(_))),
                (_, error) => assert!(
                    matches!(error, RecordingError::Damaged { .. } | RecordingError::HeaderCut),
                    "{error}"
                ),
            }
            assert_eq!(read[..], decoded(&bytes).0[..read.len()]);
        }
    }
}

#[test]
fn foreign_files_and_later_versions_are_named() {
    for foreign in [b"PK\x03\x04".as_slice(), b"{\"a\":1}", b"\x89PNG\r\n\x1a\n", &[0; 64]] {
        assert_eq!(decoded(foreign).1, Err(RecordingError::Foreign));
    }
    assert_eq!(decoded(b"").1, Err(RecordingError::HeaderCut));
    let mut later = encoded(1, &[], 1);
    later[8] = 3;
    let error = decoded(&later).1.unwrap_err();
    assert_eq!(error.to_string(), "a recording of version 3; this program reads versions 1 to 2");
}

/// As the version before wrote it: no source has a kind.
#[test]
fn the_version_before_is_read() {
    let mut old = b"\x89FKV\r\n\x1a\n".to_vec();
    old.extend([1, 0, 1, 0]);
    let list = b"\x09\x00tcp://a:1\x03\x00kv@";
    old.extend(u32::try_from(list.len()).unwrap().to_le_bytes());
    old.extend(7_u64.to_le_bytes());
    old.extend(list);
    old.extend(twox_hash::XxHash3_64::oneshot(&old).to_le_bytes());
    let (header, used) = RecordingHeader::decode(&old).unwrap().unwrap();
    assert_eq!((used, header.started_unix_ns, header.events_count()), (old.len(), 7, 1));
    assert_eq!(header.sources[0].endpoint, "tcp://a:1");
    assert!(header.has_events(0) && !header.has_events(1));
}

/// A recording of one source whose only chunk has these messages, valid or not.
fn with_plain(plain: &[u8], count: u32) -> Vec<u8> {
    use std::io::Read;
    let mut packed = Vec::new();
    let compression = flate2::Compression::default();
    flate2::read::DeflateEncoder::new(plain, compression).read_to_end(&mut packed).unwrap();
    let mut out = Vec::new();
    header(1).encode(&mut out).unwrap();
    frame_chunk(&packed, plain.len(), count, &mut out);
    out
}

#[test]
fn chunks_with_sound_checksums_are_still_checked() {
    let fault = |plain: &[u8], count| match decoded(&with_plain(plain, count)).1 {
        Err(RecordingError::Damaged { what, .. }) => Some(what),
        _ => None,
    };
    assert_eq!(fault(&[0, 0, 0], 1), None);
    assert_eq!(
        fault(&[0, 0, 0], 2),
        Some(RecordingDamage::ChunkHeader),
        "more messages than bytes allow"
    );
    assert_eq!(fault(&[0, 1, 0], 1), Some(RecordingDamage::Message), "no such source");
    assert_eq!(
        fault(&[0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0], 1),
        Some(RecordingDamage::Message),
        "frames"
    );
    assert_eq!(fault(&[0, 0, 1, 4, 1], 1), Some(RecordingDamage::Message), "a frame past the end");
    assert_eq!(fault(&[0, 0, 0, 0], 1), Some(RecordingDamage::Message), "bytes are left");
    assert_eq!(fault(&[0xff; 12], 1), Some(RecordingDamage::Message), "a number past 64 bits");
    let mut huge = Vec::new();
    header(1).encode(&mut huge).unwrap();
    frame_chunk(&[1, 2, 3], 4_000_000_000, 1, &mut huge);
    let (_, end) = decoded(&huge);
    assert!(matches!(end, Err(RecordingError::Damaged { what: RecordingDamage::ChunkHeader, .. })));
}

#[test]
fn limits_hold_when_writing() {
    assert_eq!(header(0).encode(&mut Vec::new()), Err(RecordingError::Sources));
    assert_eq!(header(1_025).encode(&mut Vec::new()), Err(RecordingError::Sources));
    let mut long = header(1);
    long.sources[0].topic = "x".repeat(1_025);
    assert_eq!(long.encode(&mut Vec::new()), Err(RecordingError::Sources));
    assert_eq!(RecordedMessage::new(0, 0, &[b"".as_slice(); 9]), Err(RecordingError::Message));
    let message = RecordedMessage::new(0, 1, &[]).unwrap();
    let pushed = ChunkWriter::new(1).push(&message, &mut Vec::new());
    assert_eq!(pushed, Err(RecordingError::Message));
}

#[test]
fn a_large_message_has_a_chunk_of_its_own() {
    let large = vec![0x5a; 3 << 20];
    let messages: Vec<Owned> =
        [b"a".as_slice(), &large, b"b"].iter().map(|frame| Owned::new(1, 0, &[frame])).collect();
    let bytes = encoded(1, &messages, usize::MAX);
    assert!(bytes.len() < 20_000, "{} bytes: it is packed", bytes.len());
    assert_eq!(decoded(&bytes), (messages, Ok(RecordingEnd::Complete)));
}

prop_compose! {
    fn any_message()(
        step in 0_u64..1 << 40,
        source in 0_u16..3,
        frames in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..8),
    ) -> Owned {
        Owned { at_ns: step, source, frames }
    }
}

proptest! {
    #[test]
    fn any_messages_come_back(
        mut messages in proptest::collection::vec(any_message(), 0..40),
        per_chunk in 1_usize..9,
        cut in any::<prop::sample::Index>(),
        flip in any::<prop::sample::Index>(),
    ) {
        let mut now = 0;
        for message in &mut messages {
            now += message.at_ns;
            message.at_ns = now;
        }
        let bytes = encoded(3, &messages, per_chunk);
        prop_assert_eq!(decoded(&bytes), (messages.clone(), Ok(RecordingEnd::Complete)));
        let (read, _) = decoded(&bytes[..cut.index(bytes.len())]);
        prop_assert_eq!(&read[..], &messages[..read.len()]);
        let mut changed = bytes.clone();
        changed[flip.index(bytes.len())] ^= 0x10;
        let (read, end) = decoded(&changed);
        prop_assert!(end.is_err());
        prop_assert_eq!(&read[..], &messages[..read.len()]);
    }

    #[test]
    fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200), count in 0_u32..9) {
        let _ = decoded(&bytes);
        let _ = decoded(&with_plain(&bytes, count));
        let mut framed = encoded(1, &[], 1);
        framed.truncate(framed.len() - CHUNK_HEADER_BYTES);
        frame_chunk(&bytes, bytes.len(), count, &mut framed);
        let _ = decoded(&framed);
    }
}

#[test]
fn files_are_written_and_inspected_and_never_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.kvrec");
    let mut writer = FileWriter::create(&path, &header(2)).unwrap();
    for message in some_messages() {
        let frames: Vec<&[u8]> = message.frames.iter().map(Vec::as_slice).collect();
        writer
            .push(&RecordedMessage::new(message.at_ns, message.source, &frames).unwrap())
            .unwrap();
    }
    writer.flush().unwrap();
    let until_now = std::fs::read(&path).unwrap();
    let size = writer.finish().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().len(), size);
    let summary = inspect(&path).unwrap();
    assert_eq!(
        (summary.messages, summary.disconnects, summary.end),
        (9, 1, RecordingEnd::Complete)
    );
    assert_eq!(summary.duration_ns, 104);
    assert!(FileWriter::create(&path, &header(2)).is_err());

    std::fs::write(&path, &until_now).unwrap();
    let cut = inspect(&path).unwrap();
    assert_eq!((cut.messages, cut.end), (9, RecordingEnd::Cut { at: until_now.len() as u64 }));
    let damage = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        inspect(&path).unwrap_err().to_string()
    };
    assert!(damage(b"GIF89a").contains("not a recording of KV events"));
    assert!(damage(&until_now[..20]).contains("ends within its header"));
    let mut flipped = until_now;
    *flipped.last_mut().unwrap() ^= 1;
    assert!(damage(&flipped).contains("does not match its checksum"));
}

#[test]
fn speeds_are_read_and_kept() {
    assert_eq!("max".parse(), Ok(Speed::Max));
    assert_eq!("2.5".parse(), Ok(Speed::Times(2.5)));
    for bad in ["", "0", "-1", "nan", "inf", "fast"] {
        assert!(bad.parse::<Speed>().is_err(), "{bad}");
    }
    assert_eq!(Speed::Max.due(5), None);
    assert_eq!(Speed::Times(4.0).due(2_000_000_000), Some(Duration::from_millis(500)));
    assert_eq!(Speed::Times(1e-300).due(u64::MAX), Some(Duration::MAX));
}

/// `[0.0, [["BlockStored", [hash], parent, tokens, 4]]]`.
fn stored(hash: u8, parent: Option<u8>, token: u8) -> Vec<u8> {
    let mut payload = vec![0x92, 0xca, 0, 0, 0, 0, 0x91, 0x95, 0xab];
    payload.extend_from_slice(b"BlockStored");
    payload.extend_from_slice(&[0x91, hash, parent.unwrap_or(0xc0), 0x94]);
    payload.extend_from_slice(&[token; 4]);
    payload.push(4);
    payload
}

/// Two ranks share a first block, one goes on.
fn stream() -> Vec<Owned> {
    let message = |at_ns, source, number: u64, payload: &[u8]| {
        Owned::new(at_ns, source, &[b"kv@m", &number.to_be_bytes(), payload])
    };
    vec![
        message(10, 0, 0, &stored(1, None, 5)),
        message(20, 1, 0, &stored(9, None, 5)),
        message(30, 0, 1, &stored(2, Some(1), 6)),
        message(40, 0, 2, &stored(3, Some(2), 7)),
    ]
}

fn rebuilt(messages: &[Owned]) -> RebuiltIndex {
    let mut rebuilt = RebuiltIndex::new(KeySeed(3), &TokenText::Ids, 2, 1 << 24);
    for message in messages {
        let frames: Vec<&[u8]> = message.frames.iter().map(Vec::as_slice).collect();
        rebuilt.take(&RecordedMessage::new(message.at_ns, message.source, &frames).unwrap());
    }
    rebuilt
}

fn blocks(rebuilt: &RebuiltIndex) -> [u32; 2] {
    let prompt: Vec<u8> =
        [5_u32, 6, 7].iter().flat_map(|token| token.to_le_bytes().repeat(4)).collect();
    let mut overlaps = Overlaps::new(2);
    rebuilt.index().overlap(rebuilt.root(4), &prompt, &mut overlaps);
    [0, 1].map(|rank| overlaps.get(RankIndex(rank)).blocks)
}

#[test]
fn a_stream_becomes_an_index_and_a_lost_connection_empties_its_rank() {
    let mut messages = stream();
    let index = rebuilt(&messages);
    assert_eq!(blocks(&index), [3, 1]);
    assert_eq!(index.ranks().collect::<Vec<_>>(), [(3, 4), (1, 4)]);
    messages.push(Owned::new(50, 0, &[]));
    assert_eq!(blocks(&rebuilt(&messages)), [0, 1]);
    assert!(RebuiltIndex::new(KeySeed(3), &TokenText::Ids, 0, 0).ranks().next().is_none());
}

fn block_on_local<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limited = async { tokio::time::timeout(Duration::from_secs(20), test).await.unwrap() };
    LocalSet::new().block_on(&runtime, limited)
}

fn any_port() -> ZmqEndpoint {
    ZmqEndpoint {
        side: Side::Connect,
        place: ZmqAddress::Tcp { host: "127.0.0.1".into(), port: 0 },
    }
}

fn read(path: &Path) -> Vec<Owned> {
    let bytes = std::fs::read(path).unwrap();
    let (messages, end) = decoded(&bytes);
    assert_eq!(end, Ok(RecordingEnd::Complete));
    messages
}

#[test]
fn what_is_published_is_recorded_with_topic_filter_and_lost_connections() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.kvrec");
    let mut messages = stream();
    messages.insert(2, Owned::new(25, 0, &[b"other", b"12345678", b"not asked for"]));
    messages.insert(3, Owned::new(26, 1, &[]));
    messages.push(Owned::new(60, 1, &[b"kv@m", &1_u64.to_be_bytes(), &stored(8, Some(9), 6)]));
    let published = block_on_local(async {
        let mut publisher = Publisher::bind(&any_port(), 2).await.unwrap();
        let source = |endpoint: &ZmqEndpoint| RecordSource {
            endpoint: endpoint.clone(),
            topic: "kv@".into(),
        };
        let sources: Vec<RecordSource> = publisher.endpoints().map(source).collect();
        let (stop, stopped) = oneshot::channel::<()>();
        let out = path.clone();
        let recording = spawn_local(async move {
            record(&sources, None, &out, async { drop(stopped.await) }).await.unwrap()
        });
        publisher.wait_for_subscribers(1).await;
        for message in &messages {
            let frames: Vec<&[u8]> = message.frames.iter().map(Vec::as_slice).collect();
            publisher
                .publish(&RecordedMessage::new(message.at_ns, message.source, &frames).unwrap())
                .await;
        }
        let published = publisher.close().await;
        // Closing is heard as a lost connection of either source, after all messages.
        tokio::time::sleep(Duration::from_millis(50)).await;
        stop.send(()).unwrap();
        let recorded = recording.await.unwrap();
        assert_eq!((recorded.messages, recorded.reached), (vec![3, 2], vec![true; 2]));
        published
    });
    assert_eq!(published, PublishTotals { sent: 5, unheard: 1 });
    let of = |source: u16, all: &[Owned]| -> Vec<Vec<Vec<u8>>> {
        let of_source = all.iter().filter(|message| message.source == source);
        of_source
            .filter(|m| m.frames.first().is_none_or(|t| t != b"other"))
            .map(|m| m.frames.clone())
            .collect()
    };
    let heard = read(&path);
    for source in [0, 1] {
        let heard = of(source, &heard);
        let sent = of(source, &messages);
        assert_eq!(heard[..sent.len()], sent, "source {source}");
    }
}

/// A recording without a source is no success: its command ends with an error.
#[test]
fn a_source_that_no_connection_reached_is_known_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    block_on_local(async {
        let publisher = Publisher::bind(&any_port(), 1).await.unwrap();
        let reached = publisher.endpoints().next().unwrap().clone();
        // Nothing listens on the discard port.
        let gone = ZmqEndpoint::parse("tcp://127.0.0.1:9", "x").unwrap();
        let source = |endpoint| RecordSource { endpoint, topic: String::new() };
        let sources = [source(gone), source(reached)];
        let stop = publisher.wait_for_subscribers(1);
        let path = dir.path().join("a.kvrec");
        let recorded = record(&sources, None, &path, stop).await.unwrap();
        assert_eq!((recorded.messages, recorded.reached), (vec![0, 0], vec![false, true]));
    });
}

#[test]
fn a_published_recording_reaches_a_common_zeromq_client() {
    use zeromq::{Socket, SocketRecv};
    block_on_local(async {
        let mut publisher = Publisher::bind(&any_port(), 1).await.unwrap();
        let place = publisher.endpoints().next().unwrap().to_string();
        let mut client = zeromq::SubSocket::new();
        client.connect(&place).await.unwrap();
        client.subscribe("kv@").await.unwrap();
        publisher.wait_for_subscribers(1).await;
        let frames: [&[u8]; 3] = [b"kv@m", b"12345678", &[3; 1_000]];
        publisher.publish(&RecordedMessage::new(0, 0, &frames).unwrap()).await;
        let got = client.recv().await.unwrap().into_vec();
        assert_eq!(got, frames);
    });
}

#[test]
fn a_publisher_refuses_what_is_no_subscriber_and_a_taken_port() {
    block_on_local(async {
        let publisher = Publisher::bind(&any_port(), 1).await.unwrap();
        let endpoint = publisher.endpoints().next().unwrap().clone();
        let error = Publisher::bind(&endpoint, 1).await.unwrap_err().to_string();
        assert!(error.contains("cannot publish on bind:tcp://127.0.0.1:"), "{error}");
        let source = ZmqSource::open(&endpoint).await.unwrap();
        assert!(source.publish().await.is_err(), "two publishers");
        let again = source.subscribe("").await;
        assert!(again.is_ok(), "the next peer is served");
    });
}
