//! The stages: each makes its inputs and an operation. Every operation checks that it did its
//! work, so that no count is that of an error path.

use super::inputs::{chat_body, request_head, streamed_answer, whole_answer};
use super::world::{
    BYTES_PER_TOKEN, HOLDER, MODEL, NOW, RANK_COUNT, World, fleet, loads, model_text,
};
use crate::world::REQUESTER;
use forebay_base::{NanosSinceStart, RankIndex, ShardIndex};
use forebay_board::account::{Lease, LeaseCost, LeaseRequest, PromptPrefixes};
use forebay_board::{LoadReports, ShardBoard};
use forebay_config::{Config, Policy};
use forebay_fleet::tenant::TenantPart;
use forebay_fleet::worker::Leg;
use forebay_http1::{
    AnswerBody, DownstreamHead, HeadLimits, Method, Progress, RequestHead, ResponseHead,
    UpstreamHead, Version, decimal, encode_request, encode_response, header, parse_request,
    parse_response,
};
use forebay_index::{Overlaps, PrefixMarks};
use forebay_json::{UsageFinder, UsageForm, UsageReader};
use forebay_mailbox::{Caller, RequestFacts};
use forebay_prompt::parse::{ApiRequest, Endpoint, route, scan};
use forebay_prompt::render::{RenderMethod, RenderThread, render_at};
use forebay_router::dispatch::{RetryBudget, SendPlans};
use forebay_router::request::{
    Action, Loads, NewRequest, RequestEvent, RequestFlow, Scene, Split, StageRules, Stages,
};
use forebay_select::{
    Binder, Candidates, PickRequest, Prices, PromptOverlaps, PromptSize, RankSearch, RoundRobin,
};
use std::hint::black_box;

/// What is counted.
pub(crate) trait Operation {
    /// Before each run, not counted.
    fn prepare(&mut self);
    /// Counted.
    fn run(&mut self);
}

/// Its name, and what makes its operation.
type Stage = (&'static str, fn() -> Box<dyn Operation>);

/// In the order of the path; 1k and 8k are bytes of the body.
pub(crate) const STAGES: [Stage; 17] = [
    ("head", head),
    ("scan_1k", || scan_of(1_024)),
    ("scan_8k", || scan_of(8_192)),
    ("render_1k", || render_of(1_024)),
    ("render_8k", || render_of(8_192)),
    ("walk_1k", || walk_of(World::new(1_024))),
    ("walk_8k", || walk_of(World::new(8_192))),
    ("walk_1k_16_shards", || walk_of(World::of_shards(1_024, 16))),
    ("select", || select_of(Choice::of_known())),
    ("select_new", || select_of(Choice::of_new())),
    ("select_full", || select_of(Choice::of_full())),
    ("lease", lease),
    ("encode", encode),
    ("body_whole", || body_of(vec![whole_answer()])),
    ("body_stream", || body_of(streamed_answer())),
    ("usage", usage),
    ("flow", flow),
];

const OUTPUT_TOKENS: u32 = 256;
const CHAT: Endpoint = Endpoint::ChatCompletions;

/// An operation made of closures over what it works on.
struct Parts<S, P, R> {
    state: S,
    prepare: P,
    run: R,
}

impl<S, P: FnMut(&mut S), R: FnMut(&mut S)> Operation for Parts<S, P, R> {
    fn prepare(&mut self) {
        (self.prepare)(&mut self.state);
    }

    fn run(&mut self) {
        (self.run)(&mut self.state);
    }
}

fn operation<S: 'static>(
    state: S,
    prepare: impl FnMut(&mut S) + 'static,
    run: impl FnMut(&mut S) + 'static,
) -> Box<dyn Operation> {
    Box::new(Parts { state, prepare, run })
}

fn parsed_head(bytes: &[u8]) -> RequestHead {
    let mut head = RequestHead::default();
    let parsed = parse_request(bytes, &HeadLimits::default(), &mut head);
    assert_eq!(parsed.ok(), Some(Progress::Complete));
    head
}

fn scanned(body: &[u8]) -> ApiRequest {
    let mut request = ApiRequest::default();
    scan(body, CHAT, &mut request).unwrap();
    request
}

/// The head of a request, and what API its path is.
fn head() -> Box<dyn Operation> {
    let bytes = request_head(8_192);
    let limits = HeadLimits::default();
    let run = move |head: &mut RequestHead| {
        let parsed = parse_request(black_box(&bytes), &limits, head);
        assert_eq!(parsed.ok(), Some(Progress::Complete));
        assert_eq!(route(&head.method, head.path(&bytes)).ok(), Some(CHAT));
    };
    operation(RequestHead::default(), |_| (), run)
}

/// The scan of a body.
fn scan_of(body_bytes: usize) -> Box<dyn Operation> {
    let body = chat_body(body_bytes);
    let run = move |request: &mut ApiRequest| {
        assert!(scan(black_box(&body), CHAT, request).is_ok());
        assert!(request.messages.len() > 3);
    };
    operation(ApiRequest::default(), |_| (), run)
}

/// Messages to the prompt's text.
fn render_of(body_bytes: usize) -> Box<dyn Operation> {
    let body = chat_body(body_bytes);
    let text = model_text();
    let request = scanned(&body);
    let run = move |out: &mut Vec<u8>| {
        let rendered = render_at(RenderThread::Shard, black_box(&request), &body, &text, out);
        assert_eq!(rendered, Ok(RenderMethod::Plan));
    };
    operation(Vec::new(), Vec::clear, run)
}

/// The text to block keys, and the walk of the index.
fn walk_of(world: World) -> Box<dyn Operation> {
    let (matched, prompt) = world.matched();
    let found = matched.overlaps().get(HOLDER);
    operation(
        (world, matched, prompt),
        |(world, _, prompt)| world.render(prompt),
        move |(world, matched, prompt)| {
            black_box(&*world).walk(matched, prompt);
            assert_eq!(matched.overlaps().get(HOLDER), found);
        },
    )
}

/// What a choice looks at.
struct Choice {
    world: World,
    board: ShardBoard,
    reports: LoadReports,
    matched: PromptOverlaps,
    marks: PrefixMarks,
    /// Instead of what was matched: nothing.
    held_nowhere: Option<Overlaps>,
    /// `None`: no rank has room.
    best: Option<RankIndex>,
    _leases: Vec<Lease>,
}

impl Choice {
    /// For a prompt that a rank has most of.
    fn of_known() -> Self {
        let world = World::new(8_192);
        let (board, reports, leases) = loads(&world.fleet);
        let (matched, prompt) = world.matched();
        let best = Some(HOLDER);
        let marks = prompt.marks().clone();
        Self { world, board, reports, matched, marks, held_nowhere: None, best, _leases: leases }
    }

    /// For a prompt that no rank knows.
    fn of_new() -> Self {
        let none = Overlaps::new(usize::from(RANK_COUNT));
        Self { held_nowhere: Some(none), best: Some(RankIndex(0)), ..Self::of_known() }
    }

    /// On a fleet whose ranks have a place each, which is taken.
    fn of_full() -> Self {
        let mut choice = Self { best: None, ..Self::of_known() };
        choice.world.fleet.ranks.iter_mut().for_each(|rank| rank.room.places_max = 1);
        choice
    }

    fn request(&self) -> PickRequest<'_> {
        PickRequest {
            requester: REQUESTER,
            leg: Leg::Whole,
            ranks: &[],
            board: &self.board,
            reports: &self.reports,
            now: NOW,
            overlaps: self.held_nowhere.as_ref().unwrap_or(self.matched.overlaps()),
            fleet: &self.world.fleet,
            prices: Prices::of(
                Policy::Kv,
                &self.world.fleet,
                &self.board,
                &self.world.model().ranks,
            ),
            prompt: PromptSize::new(self.matched.prompt_bytes(), BYTES_PER_TOKEN),
            marks: &self.marks,
            session: None,
            anchor: None,
        }
    }
}

/// Candidates, their costs, the choice.
fn select_of(choice: Choice) -> Box<dyn Operation> {
    let state = (choice, Candidates::default());
    let mut turn = RoundRobin::default();
    let mut random = fastrand::Rng::with_seed(4);
    let run = move |(choice, candidates): &mut (Choice, Candidates)| {
        let choice = black_box(&*choice);
        let fleet = &choice.world.fleet;
        let request = choice.request();
        let mut binder = Binder {
            fleet,
            board: &choice.board,
            reports: &choice.reports,
            policy: Policy::Kv,
            now: NOW,
            turn: &mut turn,
            random: &mut random,
        };
        let model = choice.world.model();
        let seeking =
            RankSearch { requester: REQUESTER, leg: Leg::Whole, near: None, pin: None, tried: &[] };
        let found = candidates.collect(fleet, model, &choice.board, seeking, NOW);
        assert!(found.is_ok());
        let _ = binder.keep_able(&request, OUTPUT_TOKENS, candidates);
        let chosen = binder.would_bind(&request, OUTPUT_TOKENS, candidates);
        assert_eq!(chosen, choice.best);
    };
    operation(state, |_| (), run)
}

/// A lease, from its taking to its return.
fn lease() -> Box<dyn Operation> {
    let fleet = fleet(None);
    let (board, _, leases) = loads(&fleet);
    let cost =
        LeaseCost { prefill_tokens: 200, decode_tokens: 2_304, kv_tokens: 456, shared_tokens: 0 };
    let limits = fleet.room(HOLDER);
    let (_, prompt) = World::new(8_192).matched();
    let marks = prompt.marks().clone();
    let run = move |_: &mut Vec<Lease>| {
        let prefixes = PromptPrefixes { marks: &marks, bytes_per_token: BYTES_PER_TOKEN };
        let wanted = LeaseRequest { rank: HOLDER, requester: REQUESTER, cost, limits, prefixes };
        let taken = Lease::try_take(black_box(&board), wanted, NOW);
        let mut lease = taken.unwrap();
        lease.prefill_done(|| NOW);
        lease.judge_success();
    };
    operation(leases, |_| (), run)
}

/// The plan of a rank, and the request as it is sent there.
fn encode() -> Box<dyn Operation> {
    let fleet = fleet(None);
    let body = chat_body(8_192);
    let bytes = request_head(body.len());
    let head = parsed_head(&bytes);
    let content_length = u64::try_from(body.len()).ok();
    let run = move |(plans, out): &mut (SendPlans, Vec<u8>)| {
        let plan = plans.of(black_box(&fleet), HOLDER, CHAT).unwrap();
        let mut digits = [0; 20];
        let pin = plan.dp.pin.unwrap();
        let upstream = UpstreamHead {
            authority: &plan.authority,
            via: b"forebay-0123456789abcdef",
            content_length,
            request_id: b"7f3c9a52-1d0e-4b8f-9c61-2a5e8d7b4f10",
            authorization: plan.authorization.as_deref(),
            extra: &[(header::DP_RANK, decimal(u64::from(pin), &mut digits))],
        };
        encode_request(&head, &bytes, &upstream, out);
        out.extend_from_slice(&body);
        assert!(out.len() > body.len() + 500);
    };
    operation((SendPlans::default(), Vec::new()), |(_, out)| out.clear(), run)
}

/// An answer on its way.
struct Answer {
    /// As they come from the engine.
    reads: Vec<Vec<u8>>,
    head: ResponseHead,
    out: Vec<u8>,
}

/// An answer: its head, then its body as it is framed for the client, read by read.
fn body_of(sent: Vec<Vec<u8>>) -> Box<dyn Operation> {
    let limits = HeadLimits::default();
    let answer = Answer { reads: sent.clone(), head: ResponseHead::default(), out: Vec::new() };
    let prepare = move |answer: &mut Answer| {
        for (read, sent) in answer.reads.iter_mut().zip(&sent) {
            read.clone_from(sent);
        }
    };
    let run = move |answer: &mut Answer| {
        let Answer { reads, head, out } = black_box(answer);
        let parsed = parse_response(&reads[0], &Method::Post, &limits, head);
        assert_eq!(parsed.ok(), Some(Progress::Complete));
        let downstream = DownstreamHead {
            framing: head.body,
            keep_alive: true,
            client_version: Version::Http11,
            extra: &[(header::WORKER, b"10.0.0.1:8001/1"), (header::REQUEST_ID, b"7f3c9a52")],
        };
        out.clear();
        encode_response(head, &reads[0], &downstream, out);
        reads[0].drain(..head.head_bytes);
        let mut body = AnswerBody::new(head.body, Version::Http11);
        for read in reads {
            assert!(body.feed(read, out).is_ok());
            // A read is written to the client before the next comes.
            out.clear();
        }
        assert!(body.is_done());
    };
    operation(answer, prepare, run)
}

/// The tokens that an engine reports in an answer in one piece.
fn usage() -> Box<dyn Operation> {
    let answer = whole_answer();
    let run = move |finder: &mut UsageFinder| {
        let mut reader = UsageReader::glance(UsageForm::Usage);
        reader.feed(finder, black_box(&answer));
        assert_eq!(reader.usage().map(|usage| usage.cached), Some(1_792));
    };
    operation(UsageFinder::default(), |_| (), run)
}

/// One step of the machine: from a matched prompt to the rank that it is sent to, and the end of
/// its lease.
fn flow() -> Box<dyn Operation> {
    let world = World::new(8_192);
    let config = Config::default();
    let (board, reports, leases) = loads(&world.fleet);
    let (matched, prompt) = world.matched();
    let mut stages = Stages::new(
        ShardIndex(0),
        StageRules::of(&config),
        Loads { board, reports },
        RetryBudget::new(20),
        fastrand::Rng::with_seed(4),
    );
    stages.matching.matched = matched;
    let facts = RequestFacts {
        model: MODEL,
        caller: Caller { class: 1, tenant: 0, weight: 1, session: None, source: 0 },
        arrived_at: NOW,
        deadline: NanosSinceStart(u64::MAX),
        client_deadline: None,
        pin: None,
        tried: Vec::new(),
        output_tokens: OUTPUT_TOKENS,
    };
    let body_bytes = u64::try_from(world.body.len()).unwrap();
    let run = move |(stages, _): &mut (Stages, Vec<Lease>)| {
        let mut scene = Scene {
            fleet: &world.fleet,
            stages,
            prompt: &prompt,
            text_bytes: body_bytes,
            body: &world.body,
            split: &mut Split::default(),
            count: &|_| (),
        };
        let mut flow =
            RequestFlow::new(facts.clone(), CHAT, body_bytes, NewRequest::of(TenantPart::ONLY));
        match flow.step(NOW, RequestEvent::Ready, black_box(&mut scene)) {
            Action::Send(chosen) => assert_eq!(chosen.lease.rank(), HOLDER),
            other => panic!("{other:?}"),
        }
    };
    operation((stages, leases), |_| (), run)
}
