//! What engines held, by their own account, against the index that their events give.
//!
//! A capture is a recording of a real engine's events with what the engine said beside it:
//! `NAME.kvrec` with `NAME.view.gz` (every path that the engine's cache held at the end) or with
//! `NAME.requests.gz` (requests one after the other, and how much of each the engine found in its
//! cache). `FOREBAY_CAPTURES` names a folder of other captures.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::unreachable,
    reason = "a test that fails must stop"
)]

use flate2::read::GzDecoder;
use forebay::base::RankIndex;
use forebay::base::limits::RANKS_MAX;
use forebay::index::{BlockKey, KeySeed, Overlap, Overlaps};
use forebay::kv_events::BatchResult;
use forebay::record::{FileReader, RebuiltIndex, RecordedMessage, TokenText, inspect};
use std::collections::{BTreeSet, HashSet};
use std::fs::{File, read_dir};
use std::io::Read;
use std::path::{Path, PathBuf};

pub(super) const MEMORY_BYTES_MAX: usize = 1 << 30;

/// Captures of models with windows or states, in which some prefixes are served only in part: the
/// windows' last blocks are gone.
const HYBRID: [&str; 2] = ["gemma3", "hybrid"];

/// What keeps equal tokens apart: cache salt and adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Space {
    salt: String,
    lora: String,
}

/// A path of blocks that a rank holds.
type HeldPath = (Space, Vec<u32>);

pub(super) fn captures(kind: &str) -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kv_events");
    let folder = std::env::var_os("FOREBAY_CAPTURES").map_or(own, PathBuf::from);
    let named = |path: &PathBuf| path.to_str().is_some_and(|name| name.ends_with(kind));
    let mut found: Vec<PathBuf> =
        read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(named).collect();
    found.sort();
    found
}

pub(super) fn text_of(path: &Path) -> String {
    let mut text = String::new();
    GzDecoder::new(File::open(path).unwrap()).read_to_string(&mut text).unwrap();
    text
}

pub(super) fn recording_beside(path: &Path, kind: &str) -> PathBuf {
    PathBuf::from(path.to_str().unwrap().replace(kind, ".kvrec"))
}

fn tokens(words: &str) -> Vec<u32> {
    words.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Tokens as [`TokenText::Ids`] writes them.
fn bytes(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

fn empty(recording: &Path) -> RebuiltIndex {
    let sources = inspect(recording).unwrap().header.sources.len();
    RebuiltIndex::new(KeySeed(7), &TokenText::Ids, sources, MEMORY_BYTES_MAX)
}

pub(super) fn each_message(recording: &Path, mut take: impl FnMut(u64, &RecordedMessage<'_>)) {
    let mut reader = FileReader::open(recording).unwrap();
    let started_ns = reader.header().started_unix_ns;
    loop {
        let end = reader.next_chunk().unwrap();
        for message in reader.messages() {
            take(started_ns + message.at_ns, &message);
        }
        if end.is_some() {
            return;
        }
    }
}

/// When the engine published a batch, by the clock of its requests: a recorder on a busy machine
/// has the batch later. Nanoseconds since 1970.
pub(super) fn published_ns(message: &RecordedMessage<'_>) -> Option<u64> {
    let [_, _, payload] = message.frames() else { return None };
    let [0x93, 0xcb, seconds @ ..] = payload else { return None };
    let seconds = f64::from_be_bytes(*seconds.first_chunk()?);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of today")]
    Some((seconds * 1e9) as u64)
}

fn overlap(index: &RebuiltIndex, block_tokens: u32, space: &Space, tokens: &[u32]) -> Vec<Overlap> {
    let rank_count = index.ranks().count();
    let mut overlaps = Overlaps::new(RANKS_MAX);
    index.overlap(root(index, block_tokens, space), &bytes(tokens), &mut overlaps);
    (0..rank_count).map(|rank| overlaps.get(RankIndex(u16::try_from(rank).unwrap()))).collect()
}

fn root(index: &RebuiltIndex, block_tokens: u32, space: &Space) -> BlockKey {
    index.index().salted(index.lora_root(block_tokens, &space.lora), &space.salt)
}

/// What a rank holds, whether or not it can resume there.
fn bound(index: &RebuiltIndex, block_tokens: u32, asked: &Asked) -> Overlap {
    let mut overlaps = Overlaps::new(asked.rank + 1);
    let root = root(index, block_tokens, &asked.space);
    index.index().overlap(root, &bytes(&asked.tokens), &mut overlaps);
    overlaps.get(RankIndex(u16::try_from(asked.rank).unwrap()))
}

/// The paths of every rank, one for each block, from the lines of a view: rank, blocks before,
/// salt, adapter, tokens.
fn held(view: &str, rank_count: usize, block_tokens: usize) -> Vec<BTreeSet<HeldPath>> {
    let mut ranks = vec![BTreeSet::new(); rank_count];
    let mut path: Vec<u32> = Vec::new();
    for line in view.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let &[rank, before, salt, lora, words] = columns.as_slice() else { unreachable!() };
        path.truncate(before.parse::<usize>().unwrap() * block_tokens);
        let space = Space { salt: salt.into(), lora: lora.into() };
        for block in tokens(words).chunks(block_tokens) {
            path.extend(block);
            ranks[rank.parse::<usize>().unwrap()].insert((space.clone(), path.clone()));
        }
    }
    ranks
}

/// How many blocks of `tokens` are held from the start.
fn blocks_held(
    held: &BTreeSet<HeldPath>,
    space: &Space,
    tokens: &[u32],
    block_tokens: usize,
) -> usize {
    let holds =
        |blocks: &usize| held.contains(&(space.clone(), tokens[..blocks * block_tokens].to_vec()));
    (1..=tokens.len() / block_tokens).take_while(holds).count()
}

fn check_view(path: &Path) {
    let recording = recording_beside(path, ".view.gz");
    let mut index = empty(&recording);
    each_message(&recording, |_, message| {
        index.take(message);
    });
    assert_eq!(index.counters().batch_count(BatchResult::Refused), 0, "{}", path.display());
    assert_eq!(index.counters().batch_count(BatchResult::Partly), 0, "{}", path.display());
    let feeds: Vec<(usize, u32)> = index.ranks().collect();
    let block_tokens = feeds[0].1;
    let block = usize::try_from(block_tokens).unwrap();
    let ranks = held(&text_of(path), feeds.len(), block);
    assert!(ranks.iter().all(|rank| rank.len() > 50), "a view that says something");
    for (rank, (held, (blocks, _))) in ranks.iter().zip(&feeds).enumerate() {
        assert_eq!(*blocks, held.len(), "blocks of rank {rank}");
    }
    let all: BTreeSet<&HeldPath> = ranks.iter().flatten().collect();
    let roots: HashSet<&Space> = all.iter().map(|(space, _)| space).collect();
    let entries = index.index().entry_count();
    assert_eq!(entries, (all.len() + roots.len()) as u64, "paths and roots, nothing else");
    for (space, path) in all {
        let found = overlap(&index, block_tokens, space, path);
        // The same path with its last block changed: what is held before it, and nothing of it.
        let mut other = path.clone();
        *other.last_mut().unwrap() ^= 0x4000_0000;
        let parted = overlap(&index, block_tokens, space, &other);
        for (rank, held) in ranks.iter().enumerate() {
            assert_eq!(
                found[rank].blocks as usize,
                blocks_held(held, space, path, block),
                "rank {rank}, {space:?}, {path:?}"
            );
            assert_eq!(
                parted[rank].blocks as usize,
                blocks_held(held, space, &other, block),
                "rank {rank}, {space:?}, {other:?}"
            );
        }
    }
}

/// One request of a capture: when, on which rank, with what result.
struct Asked {
    at_ns: u64,
    rank: usize,
    cached_tokens: u32,
    space: Space,
    tokens: Vec<u32>,
}

fn asked(line: &str) -> Asked {
    let columns: Vec<&str> = line.split('\t').collect();
    let &[at_ns, rank, cached, salt, words] = columns.as_slice() else { unreachable!() };
    Asked {
        at_ns: at_ns.parse().unwrap(),
        rank: rank.parse().unwrap(),
        cached_tokens: cached.parse().unwrap(),
        space: Space { salt: salt.into(), lora: String::new() },
        tokens: tokens(words),
    }
}

fn check_requests(path: &Path) {
    let recording = recording_beside(path, ".requests.gz");
    let text = text_of(path);
    let mut requests = text.lines().map(asked).peekable();
    let mut index = empty(&recording);
    let mut hits = 0;
    let mut short = 0;
    let mut wrong = Vec::new();
    let mut check = |index: &RebuiltIndex, asked: &Asked| {
        let block_tokens = index.ranks().map(|(_, block_tokens)| block_tokens).max().unwrap();
        let found = overlap(index, block_tokens, &asked.space, &asked.tokens)[asked.rank];
        let servable = found.servable_blocks(asked.tokens.len() * 4) * block_tokens;
        let right = servable == asked.cached_tokens;
        let most = bound(index, block_tokens, asked).servable_blocks(asked.tokens.len() * 4);
        short += u32::from(most * block_tokens > asked.cached_tokens);
        if !right {
            wrong.push((asked.at_ns, asked.rank, servable, asked.cached_tokens));
        }
        hits += u32::from(asked.cached_tokens > 0);
    };
    each_message(&recording, |at_ns, message| {
        let at_ns = published_ns(message).unwrap_or(at_ns);
        while let Some(asked) = requests.next_if(|asked| asked.at_ns < at_ns) {
            check(&index, &asked);
        }
        index.take(message);
    });
    requests.for_each(|asked| check(&index, &asked));
    assert_eq!(wrong, [], "at, rank, expected, found, in {}", path.display());
    assert!(hits > 20, "requests that found something: {hits}");
    let name = path.file_name().unwrap().to_str().unwrap();
    let is_hybrid = HYBRID.iter().any(|word| name.contains(word));
    assert_eq!(short > 2, is_hybrid, "resumed before the end of what is held: {short}");
}

#[test]
fn predictions_are_what_the_engine_found() {
    let requests = captures(".requests.gz");
    assert!(!requests.is_empty() || std::env::var_os("FOREBAY_CAPTURES").is_some());
    for path in requests {
        check_requests(&path);
    }
}

#[test]
fn the_index_is_what_the_engine_holds() {
    let views = captures(".view.gz");
    assert!(!views.is_empty() || std::env::var_os("FOREBAY_CAPTURES").is_some());
    for path in views {
        check_view(&path);
    }
}
