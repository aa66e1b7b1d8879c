//! Any bytes as what an engine says of its load: Prometheus text, JSON, or a `LoadStat` message,
//! for a worker of one to four ranks (the first byte). Must hold: a rank has at most one reading,
//! and only ranks of the worker have one; what is whole is within belief; an answer without a
//! reading for every rank counts a fault; what was read before changes nothing; the report made of
//! it adds to a rank's cost no more than what is not our own.

use forebay_base::{NanosSinceStart, RankIndex};
use forebay_board::{
    FirstTokenCounts, LoadBoard, LoadReading, LoadReport, LoadReports, OwnLoad, RankLoad, RankPast,
};
use forebay_load::{ReadFault, Readings, read_load_stat, read_loads, read_metrics};
use forebay_select::{Prices, RankCost, RankSnapshot, RankWork, predicted_work};
use std::time::Duration;

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    let Some((&first, answer)) = data.split_first() else { return };
    let ranks = usize::from(first % 4) + 1;
    let text = String::from_utf8_lossy(answer);
    let mut readings = Readings::default();
    let mut all = Vec::new();
    for form in 0..3 {
        let read = |readings: &mut Readings| {
            readings.begin(ranks);
            match form {
                0 => read_metrics(&text, readings),
                1 => read_loads(&text, readings),
                _ => read_load_stat(answer, 0, readings),
            }
            (readings.iter().collect::<Vec<_>>(), faults(readings))
        };
        let (found, faults) = read(&mut readings);
        assert_eq!(read(&mut Readings::default()), (found.clone(), faults), "what was before");
        let expected = if form == 2 { 1 } else { ranks };
        assert!(found.len() == expected || faults > 0, "{found:?} of {expected}");
        assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0), "{found:?}");
        for (rank, reading) in found {
            assert!(rank < ranks);
            assert!(reading.kv_permille.is_none_or(|permille| permille <= 1_000));
            all.push(reading);
        }
    }
    all.iter().for_each(weigh);
    count(&all);
}

fn faults(readings: &Readings) -> u64 {
    ReadFault::ALL.iter().map(|(fault, _)| readings.fault_count(*fault)).sum()
}

/// As counts of first tokens of one rank, a second after another.
fn count(readings: &[LoadReading]) {
    let board = LoadBoard::new();
    let mut counts = FirstTokenCounts::default();
    for (reading, second) in readings.iter().zip(0..) {
        let now = NanosSinceStart(second * 1_000_000_000);
        counts.observe(RankIndex(7), reading, OwnLoad::default(), &board, now);
    }
}

/// As reports of a rank with nothing of ours, and with all of it ours.
fn weigh(reading: &LoadReading) {
    let reading = reading.completed(4_096);
    let requests = reading.running.checked_add(reading.waiting).expect("within belief");
    let ours = OwnLoad {
        in_flight: requests,
        prefill_tokens: u64::MAX,
        decode_tokens: u64::MAX,
        ..OwnLoad::default()
    };
    let cost = |own, age_ns| {
        let mut reports = LoadReports::new(Duration::from_secs(5));
        let rank = RankIndex(7);
        reports.take(LoadReport::new(rank, NanosSinceStart(0), &reading, own));
        let work = RankWork {
            prompt_tokens: 10,
            uncached_tokens: 10,
            prices: Prices::LEAST,
            kv_capacity_tokens: 0,
            most: RankCost::MAX,
        };
        let load = RankLoad::default();
        let past = RankPast::default();
        let report = reports.newest(rank);
        let now = NanosSinceStart(age_ns);
        let seen = RankSnapshot { load: &load, past: &past, report, now };
        predicted_work(seen, &work, |report| reports.weight_of(report, now))
    };
    let strange = cost(OwnLoad::default(), 0);
    let own = cost(ours, 0);
    assert!(strange.total() >= own.total());
    // A full cache is told of whoever filled it.
    assert!(own.reported_tokens <= 4_000, "{own:?}");
    let mut last = strange.reported_tokens;
    for age_s in 1..=5 {
        let now = cost(OwnLoad::default(), age_s * 1_000_000_000).reported_tokens;
        assert!(now <= last, "it fades");
        last = now;
    }
    assert_eq!(last, 0);
}
