//! Recordings by hand whose answer is known.

use super::*;

const PART: u64 = NOTE_PART_BYTES as u64;

/// A prompt of these parts and a little more, and an answer by the same rank. A token is 4 bytes.
fn asked(id: u64, rank: u32, keys: &[u64], cached_parts: u64) -> [RequestNote; 2] {
    let prompt_bytes = keys.len() as u64 * PART + 64;
    let sent = RequestStart { id, rank, prompt_bytes, keys: keys.to_vec(), ..Default::default() };
    let prompt = prompt_bytes / 4;
    let cached = cached_parts * PART / 4;
    let told = Some(RequestUsage { prompt, cached, output: 1 });
    [RequestNote::Sent(sent), RequestNote::Ended(RequestEnd { id, rank, told })]
}

fn ranks(parts_of_each: &[u64]) -> RequestNote {
    let rank = |(number, parts): (usize, &u64)| RankEntry {
        kv_tokens: parts * PART / 4,
        name: number.to_string(),
        pool: 0,
    };
    RequestNote::Ranks(parts_of_each.iter().enumerate().map(rank).collect())
}

fn ladder(notes: &[RequestNote]) -> HitLadder {
    let mut survey = LadderSurvey::default();
    notes.iter().for_each(|note| survey.take(note.clone()));
    let mut maker = survey.maker(0);
    notes.iter().for_each(|note| maker.take(note));
    maker.finish()
}

/// Two ranks that hold four parts each, and five requests:
///
/// | request | rank | possible | in 8 parts | by match | as chosen | told |
/// |---|---|---|---|---|---|---|
/// | A of 4 parts | 0 | 0 | 0 | 0 | 0 | 0 |
/// | B of 4 parts | 1 | 0 | 0 | 0 | 0 | 0 |
/// | A again | 1 | 4 | 4 | 4 | 0 | 0 |
/// | C of 6 parts | 0 | 0 | 0 | 0 | 0 | 0 |
/// | A again | 1 | 4 | 2 | 4 or less | 4 | 3 |
///
/// C drops all of B and the last two of A from the one cache of 8 parts. By match C goes to the
/// rank that B was on.
#[test]
fn a_recording_by_hand_has_the_ladder_that_is_known_and_its_steps_add_up() {
    let a = [1, 2, 3, 4];
    let b = [11, 12, 13, 14];
    let c = [21, 22, 23, 24, 25, 26];
    let mut notes = vec![ranks(&[4, 4])];
    notes.extend(asked(1, 0, &a, 0));
    notes.extend(asked(2, 1, &b, 0));
    notes.extend(asked(3, 1, &a, 0));
    notes.extend(asked(4, 0, &c, 0));
    notes.extend(asked(5, 1, &a, 3));
    let ladder = ladder(&notes);
    let parts = ladder.rungs.map(|tokens| tokens / (PART / 4));
    assert_eq!(parts[0], 8, "both repetitions of A");
    assert_eq!(parts[1], 6, "the one cache has lost two parts of A");
    assert!(parts[2] == 8 || parts[2] == 4, "C has gone to one of two ranks that are full");
    assert_eq!((parts[3], parts[4]), (4, 3));
    let whole: i64 = ladder.steps().iter().sum();
    assert_eq!(whole, 5 * 32, "the steps add up to what is missing");
    assert_eq!((ladder.requests, ladder.prompt_tokens), (5, (3 * 4 + 4 + 6) * 32 + 5 * 16));
    assert_eq!((ladder.cut, ladder.moved, ladder.untold, ladder.forgotten), (0, 0, 0, 0));
}

#[test]
fn what_cannot_be_counted_is_left_out_of_all_rungs_and_said() {
    let mut notes = vec![ranks(&[9]), RequestNote::Lost(3)];
    let [sent, _] = asked(1, 0, &[1, 2], 0);
    notes.push(sent);
    notes.extend(asked(2, 0, &[1, 2], 1));
    let [sent, ended] = asked(3, 0, &[1, 2], 2);
    let RequestNote::Ended(ended) = ended else { panic!("no end") };
    notes.extend([sent, RequestNote::Ended(RequestEnd { rank: 7, ..ended })]);
    let [sent, _] = asked(4, 0, &[1, 2], 2);
    notes.extend([sent, RequestNote::Ended(RequestEnd { id: 4, rank: 0, told: None })]);
    notes.push(RequestNote::Ended(RequestEnd { id: 99, ..ended }));
    let ladder = ladder(&notes);
    assert_eq!((ladder.requests, ladder.rungs), (1, [64, 64, 64, 64, 32]));
    assert_eq!((ladder.cut, ladder.moved, ladder.untold, ladder.lost), (2, 1, 1, 3));
}

#[test]
fn the_part_with_the_last_token_is_always_computed() {
    let whole =
        RequestStart { id: 1, prompt_bytes: 2 * PART, keys: vec![1, 2], ..Default::default() };
    let end = |id| {
        RequestNote::Ended(RequestEnd {
            id,
            rank: 0,
            told: Some(RequestUsage { prompt: 64, ..RequestUsage::default() }),
        })
    };
    let again = RequestStart { id: 2, ..whole.clone() };
    let notes = [ranks(&[9]), RequestNote::Sent(whole), end(1), RequestNote::Sent(again), end(2)];
    assert_eq!(ladder(&notes).rungs, [32, 32, 32, 32, 0]);
}

#[test]
fn pools_have_caches_of_their_own() {
    let other = |note| match note {
        RequestNote::Sent(sent) => RequestNote::Sent(RequestStart { pool: 1, ..sent }),
        note => note,
    };
    let mut notes = vec![ranks(&[9, 9])];
    notes.extend(asked(1, 0, &[1, 2], 0));
    notes.extend(asked(2, 1, &[1, 2], 0).map(other));
    // No list has a rank of this pool, so that its cache holds nothing.
    assert_eq!(ladder(&notes).rungs, [64, 0, 0, 0, 0]);
}

/// The answer of the first turn has one part and fills up another: the second turn finds both.
#[test]
fn a_next_turn_finds_the_answer_of_the_turn_before() {
    let told = |prompt, cached, output| Some(RequestUsage { prompt, cached, output });
    let sent = |id, rank, prompt_bytes, keys: &[u64]| {
        let keys = keys.to_vec();
        RequestNote::Sent(RequestStart { id, rank, prompt_bytes, keys, ..Default::default() })
    };
    let end = |id, rank, told| RequestNote::Ended(RequestEnd { id, rank, told });
    let first = 2 * PART + 64;
    let turns = |second_rank| {
        [
            ranks(&[20, 20]),
            sent(1, 0, first, &[1, 2]),
            // 64 bytes behind the parts, and 48 tokens of 4 bytes: two parts.
            end(1, 0, told(first / 4, 0, 49)),
            sent(2, second_rank, 6 * PART, &[1, 2, 3, 4, 5, 6]),
            end(2, second_rank, told(6 * PART / 4, 4 * PART / 4, 1)),
        ]
    };
    assert_eq!(ladder(&turns(0)).rungs, [4 * PART / 4; 5]);
    let elsewhere = ladder(&turns(1)).rungs;
    assert_eq!(elsewhere[..3], [4 * PART / 4; 3]);
    assert_eq!(elsewhere[3], 0, "the router has sent it away from what it said");
}
