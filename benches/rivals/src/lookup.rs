//! Time to find what each rank holds of a prompt, alone and while another thread applies events.

use crate::byte_keyed::{ByteReader, Feeds, byte_index};
use crate::churn::{Paced, Target};
use crate::dynamo::{Dynamo, DynamoReader, locals_of, router_event};
use crate::history::{BLOCK_TOKENS, DEPTHS, Fleet, fleet, local_hash};
use crate::report::{Times, row, title};
use crate::token_keyed::{TokenFeeds, TokenReader, paths_of};
use crate::words::Words;
use dynamo_kv_router::protocols::LocalBlockHash;
use forebay::index::SliceWriter;
use std::hint::black_box;
use std::time::Instant;

const RANKS: [u16; 4] = [8, 64, 256, 1_000];
const COLUMNS: [&str; 8] = [
    "ranks",
    "blocks",
    "**Forebay**, from text",
    "tokens: tokenize",
    "tokens: hash and search",
    "**tokens**, from text",
    "Dynamo, from ready hashes",
    "**Dynamo**, from text",
];

/// What is measured of one lookup.
const FIGURES: usize = 6;
type Figures = [Times; FIGURES];

/// How prompts are chosen, and what happens beside.
#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    hot: bool,
    applying: bool,
}

const MODES: [Mode; 4] = [
    Mode { name: "the same prompt again", hot: true, applying: false },
    Mode { name: "any session", hot: false, applying: false },
    Mode { name: "the same prompt again, events applied beside", hot: true, applying: true },
    Mode { name: "any session, events applied beside", hot: false, applying: true },
];

/// One fleet in every index.
struct Rivals {
    fleet: Fleet,
    bytes: ByteReader,
    tokens: TokenReader,
    dynamo: DynamoReader,
    writers: Writers,
}

struct Writers {
    slice: SliceWriter,
    byte_feeds: Feeds,
    token_feeds: TokenFeeds,
    dynamo: Dynamo,
}

pub(crate) fn measure(words: &Words, rounds: usize, quick: bool) {
    let samples = if quick { 40 } else { 1_000 };
    let mut tables: Vec<Vec<Vec<Figures>>> = Vec::new();
    for ranks in RANKS {
        let mut rivals = Rivals::new(words, ranks, if quick { 0.02 } else { 1.0 });
        rivals.agree(words);
        let mut of_ranks = vec![vec![Figures::default(); DEPTHS.len()]; MODES.len()];
        for round in 0..rounds {
            for (mode, figures) in MODES.iter().zip(&mut of_ranks) {
                rivals.round(words, *mode, samples, round as u64, figures);
            }
        }
        tables.push(of_ranks);
    }
    for (at, mode) in MODES.iter().enumerate() {
        title(&format!("Look-up, {}: us, p50 / p99", mode.name), &COLUMNS);
        for (ranks, of_ranks) in RANKS.iter().zip(&tables) {
            for ((blocks, ..), figures) in DEPTHS.iter().zip(&of_ranks[at]) {
                let head = [ranks.to_string(), blocks.to_string()];
                row(head.into_iter().chain(figures.iter().map(Times::show)));
            }
        }
    }
}

impl Rivals {
    fn new(words: &Words, ranks: u16, scale: f64) -> Self {
        let fleet = fleet(words, ranks, scale);
        let (bytes, mut slice) = byte_index(usize::from(ranks));
        let mut byte_feeds = Feeds::new(&words.vocabulary);
        let mut token_feeds = TokenFeeds::default();
        let dynamo = Dynamo::new();
        for event in &fleet.history.events {
            byte_feeds.take(&fleet.history.prompts, event, |rank, op| slice.apply(rank, op));
            token_feeds.take(&fleet.history.prompts, event);
            dynamo.send(router_event(&fleet.history.prompts, event));
        }
        dynamo.flush();
        assert_eq!(bytes.refused(), 0);
        let tokens = token_feeds.reader(usize::from(ranks));
        let reader = dynamo.reader();
        let writers = Writers { slice, byte_feeds, token_feeds, dynamo };
        Self { fleet, bytes, tokens, dynamo: reader, writers }
    }

    /// All give the same blocks for every rank and prompt, and the tokenizer gives the tokens that
    /// engines named.
    fn agree(&mut self, words: &Words) {
        let mut paths = Vec::new();
        for prompt in &self.fleet.history.prompts {
            let text = std::str::from_utf8(&prompt.text).expect("the text is ASCII");
            let tokens = words.tokenizer.encode(text).expect("tokens");
            assert!(tokens == prompt.tokens, "the tokens of a prompt differ from its words'");
            paths_of(&tokens, &mut paths);
            let found = self.bytes.found(&prompt.text);
            assert_eq!(found, self.tokens.found(&paths), "Forebay and the index of tokens");
            assert_eq!(found, self.dynamo.found(&locals_of(prompt)), "Forebay and Dynamo");
        }
    }

    fn round(
        &mut self,
        words: &Words,
        mode: Mode,
        samples: usize,
        seed: u64,
        figures: &mut [Figures],
    ) {
        // One after the other, so that each has both cores when others are applied to beside.
        for subject in [Subject::Bytes, Subject::Tokens, Subject::Dynamo] {
            let paced = mode.applying.then(|| {
                let Writers { slice, byte_feeds, token_feeds, dynamo } = &mut self.writers;
                let target = match subject {
                    Subject::Bytes => Target::bytes(&self.fleet, byte_feeds, slice),
                    Subject::Tokens => Target::Tokens(token_feeds),
                    Subject::Dynamo => Target::Dynamo(dynamo),
                };
                Paced::new(&self.fleet, target)
            });
            let mut asked = Asked {
                fleet: &self.fleet,
                words,
                bytes: &mut self.bytes,
                tokens: &mut self.tokens,
                dynamo: &self.dynamo,
                text: String::new(),
                locals: Vec::new(),
                paths: Vec::new(),
            };
            Paced::beside(paced, || asked.all(subject, mode, samples, seed, figures));
        }
        figures.iter_mut().flatten().for_each(Times::end_round);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Bytes,
    Tokens,
    Dynamo,
}

struct Asked<'a> {
    fleet: &'a Fleet,
    words: &'a Words,
    bytes: &'a mut ByteReader,
    tokens: &'a mut TokenReader,
    dynamo: &'a DynamoReader,
    text: String,
    locals: Vec<LocalBlockHash>,
    paths: Vec<u64>,
}

impl Asked<'_> {
    fn all(
        &mut self,
        subject: Subject,
        mode: Mode,
        samples: usize,
        seed: u64,
        figures: &mut [Figures],
    ) {
        let mut rng = fastrand::Rng::with_seed(seed);
        for sample in 0..samples {
            for ((depth, prompts), figures) in
                self.fleet.of_depth.iter().enumerate().zip(&mut *figures)
            {
                // The long ones are tokenized for milliseconds.
                if sample % [1, 1, 2, 5][depth] != 0 {
                    continue;
                }
                let at = if mode.hot {
                    prompts.start + seed as usize % 8
                } else {
                    rng.usize(prompts.clone())
                };
                // As after a body was read: the text itself is in the caches.
                self.text.clear();
                self.text.push_str(
                    std::str::from_utf8(&self.fleet.history.prompts[at].text).expect("ASCII"),
                );
                if mode.hot {
                    self.ask(subject, &mut Figures::default());
                }
                self.ask(subject, figures);
            }
        }
    }

    fn ask(&mut self, subject: Subject, figures: &mut Figures) {
        if subject == Subject::Bytes {
            let start = Instant::now();
            black_box(self.bytes.find(black_box(self.text.as_bytes())));
            figures[0].add(start.elapsed());
            return;
        }
        let start = Instant::now();
        let tokens = self.words.tokenizer.encode(black_box(&self.text)).expect("tokens");
        let tokenized = Instant::now();
        if subject == Subject::Tokens {
            paths_of(&tokens, &mut self.paths);
            black_box(self.tokens.find(black_box(&self.paths)));
            figures[1].add(tokenized - start);
            figures[2].add(tokenized.elapsed());
            figures[3].add(start.elapsed());
            return;
        }
        self.locals.clear();
        self.locals.extend(
            tokens.chunks_exact(BLOCK_TOKENS).map(|block| LocalBlockHash(local_hash(block))),
        );
        let hashed = Instant::now();
        black_box(self.dynamo.find(black_box(&self.locals)));
        figures[4].add(hashed.elapsed());
        figures[5].add(start.elapsed());
    }
}
