//! Any bytes as a recording of KV events. Must hold: reading does not depend on how the bytes are
//! cut; what was read from a part is a beginning of what is read from the whole; bytes are never
//! used twice; bytes inside a chunk with sound checksums are checked all the same; what was read
//! can be written and is read back equal. The same bytes as a note of a request: what was read is
//! written and read back equal, and the steps of a ladder of such notes add up.

use forebay_record::{
    ChunkWriter, DecodeStep, LadderSurvey, RecordedMessage, RecordingDecoder, RecordingHeader,
    RequestNote, SourceKind, SourceName, frame_chunk,
};

type Owned = (u64, u16, Vec<Vec<u8>>);

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    file(data);
    notes(data);
    // As the packed bytes of a chunk whose checksums hold.
    let (&first, rest) = data.split_first().unwrap_or((&0, &[]));
    let mut chunk = head();
    frame_chunk(rest, usize::from(first) * 3, u32::from(first % 7), &mut chunk);
    file(&chunk);
    // As its messages, unpacked: DEFLATE has blocks that are not compressed.
    let mut chunk = head();
    frame_chunk(&stored_block(rest), rest.len(), u32::from(first % 7), &mut chunk);
    file(&chunk);
}

/// Notes of up to 48 bytes, one behind the other.
fn notes(data: &[u8]) {
    let notes: Vec<RequestNote> = data.chunks(48).filter_map(RequestNote::decode).collect();
    let mut survey = LadderSurvey::default();
    for note in &notes {
        let mut bytes = Vec::new();
        note.encode(&mut bytes);
        assert_eq!(RequestNote::decode(&bytes).as_ref(), Some(note), "written and read back");
        survey.take(note.clone());
    }
    let mut maker = survey.maker(1_000);
    notes.iter().for_each(|note| maker.take(note));
    let ladder = maker.finish();
    let [first, .., last] = ladder.rungs.map(i128::from);
    let sum: i128 = ladder.steps().into_iter().map(i128::from).sum();
    let is_small = ladder.rungs.iter().all(|tokens| i64::try_from(*tokens).is_ok());
    assert!(!is_small || first - last == sum, "the steps are not the whole");
}

fn file(data: &[u8]) {
    let (whole, sound) = read(data);
    for cut in [data.len() / 2, data.len().saturating_sub(1)] {
        let (part, _) = read(&data[..cut]);
        assert_eq!(part[..], whole[..part.len()], "cut at {cut}");
    }
    assert!(whole.is_sorted_by_key(|(at_ns, _, _)| *at_ns), "time goes back");
    if sound {
        assert_eq!(read(&written(data, &whole)), (whole, true), "written and read back");
    }
}

/// All messages, and whether the bytes were sound as far as they went.
fn read(data: &[u8]) -> (Vec<Owned>, bool) {
    let mut decoder = RecordingDecoder::new();
    let mut messages = Vec::new();
    let mut start = 0;
    loop {
        let Ok(step) = decoder.step(&data[start..]) else { return (messages, false) };
        for message in decoder.messages() {
            let frames = message.frames().iter().map(|frame| frame.to_vec()).collect();
            messages.push((message.at_ns, message.source, frames));
        }
        match step {
            DecodeStep::Header { used_bytes }
            | DecodeStep::Chunk { used_bytes }
            | DecodeStep::End { used_bytes } => {
                assert!(used_bytes > 0);
                start += used_bytes;
                assert_eq!(decoder.offset(), start as u64);
            }
            DecodeStep::NeedMore { bytes } => {
                assert!(bytes > data.len() - start);
                return (messages, decoder.header().is_some());
            }
        }
    }
}

fn written(data: &[u8], messages: &[Owned]) -> Vec<u8> {
    let header = RecordingHeader::decode(data).unwrap().unwrap().0;
    let mut out = Vec::new();
    header.encode(&mut out).unwrap();
    let mut writer = ChunkWriter::new(header.sources.len());
    for (at_ns, source, frames) in messages {
        let frames: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
        writer.push(&RecordedMessage::new(*at_ns, *source, &frames).unwrap(), &mut out).unwrap();
    }
    writer.finish(&mut out);
    out
}

fn head() -> Vec<u8> {
    let source = || SourceName {
        endpoint: "tcp://a:1".to_owned(),
        topic: String::new(),
        kind: SourceKind::Events,
    };
    let mut out = Vec::new();
    RecordingHeader { started_unix_ns: 0, sources: vec![source(), source()] }
        .encode(&mut out)
        .unwrap();
    out
}

fn stored_block(plain: &[u8]) -> Vec<u8> {
    let plain = &plain[..plain.len().min(usize::from(u16::MAX))];
    let length = u16::try_from(plain.len()).unwrap();
    let mut out = vec![1];
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend_from_slice(plain);
    out
}
