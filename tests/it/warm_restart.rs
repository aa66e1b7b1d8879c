//! A router that is stopped and started again knows what its fleet holds, and nothing that it does
//! not hold.

use crate::kv_routing::{Person, applied, hear_all, overlap_tokens, received, sent};
use crate::rig::{Client, admin, any_port, metric, port_for_later, post, router, until, usable};
use forebay::base::ShardIndex;
use forebay::config::{Config, Policy, WorkerConfig};
use forebay::engine::{Engine, EngineConfig, EngineHandle, EngineText};
use forebay::index::BlockKey;
use forebay::server::ServerHandle;
use forebay::snapshot::{Link, RankHead, SnapshotEntry, SnapshotFile, SnapshotWriter};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

/// Where an engine listens: ports that nobody else gets until another engine takes them over.
#[derive(Clone)]
pub(crate) struct Ports {
    listen: std::net::SocketAddr,
    kv_events: String,
    replay: Option<String>,
}

fn start_engine(ports: &Ports) -> EngineHandle {
    static TEXT: OnceLock<EngineText> = OnceLock::new();
    let text = TEXT.get_or_init(|| EngineText::load(None).expect("the built-in tokenizer"));
    let config = EngineConfig {
        listen: ports.listen,
        kv_events: Some(ports.kv_events.clone()),
        replay: ports.replay.clone(),
        prefill_tokens_per_s: 1e6,
        itl_ms: 1.0,
        ..EngineConfig::default()
    };
    Engine::start_with(config, text.clone()).expect("the engine starts")
}

pub(crate) fn new_engine(with_replay: bool) -> (EngineHandle, Ports) {
    let endpoint = || format!("tcp://{}", port_for_later());
    let ports = Ports {
        listen: port_for_later(),
        kv_events: endpoint(),
        replay: with_replay.then(endpoint),
    };
    (start_engine(&ports), ports)
}

/// A router that keeps its snapshot there, once it is ready.
fn start_router(workers: &[Ports], snapshot: &Path, cores: Vec<usize>) -> ServerHandle {
    let config = Config { cores, ..config(workers, snapshot) };
    let handle = router(config);
    until("every worker is up", || usable(&handle) == workers.len());
    until("it is ready", || admin(&handle, "/readyz").status == 200);
    handle
}

fn config(workers: &[Ports], snapshot: &Path) -> Config {
    let url = |ports: &Ports| format!("http://{}", ports.listen);
    let mut config = Config {
        listen: any_port(),
        admin: any_port(),
        cores: vec![0],
        policy: Policy::Kv,
        model_dir: Some("tests/data/tokenizer".into()),
        workers: workers
            .iter()
            .map(|ports| WorkerConfig { url: url(ports), ..WorkerConfig::default() })
            .collect(),
        ..Config::default()
    };
    config.index.snapshot = Some(snapshot.to_owned());
    config.index.snapshot_every = Duration::ZERO;
    config.health.interval = Duration::from_millis(100);
    config.timeouts.drain = Duration::from_secs(1);
    config
}

fn stop(handle: ServerHandle) {
    handle.stop();
    handle.join().unwrap();
}

fn live(handle: &ServerHandle) -> f64 {
    metric(handle, "forebay_kv_feed_live{")
}

fn restored(handle: &ServerHandle) -> f64 {
    metric(handle, "forebay_snapshot_restored_blocks_total")
}

fn dropped(handle: &ServerHandle, reason: &str) -> f64 {
    metric(handle, &format!("forebay_snapshot_dropped_blocks_total{{reason=\"{reason}\""))
}

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() < 0.5
}

/// Until the router has applied everything that the engines have published. `unheard`: batches that
/// they had sent before it followed them, or that are lost to it.
fn settle(handle: &ServerHandle, engines: &[&EngineHandle], unheard: u64) {
    hear_all(handle, engines, unheard);
    rest(handle);
}

/// Until nothing changes any more.
fn rest(handle: &ServerHandle) {
    let mut last = -1.0;
    until("every operation is applied", || {
        std::thread::sleep(Duration::from_millis(30));
        near(applied(handle), std::mem::replace(&mut last, applied(handle)))
    });
}

fn people(handle: &ServerHandle, count: usize) -> Vec<Person> {
    (0..count).map(|n| Person::new(handle.listen, &format!("regular {n}"))).collect()
}

fn reconnect(people: &mut [Person], handle: &ServerHandle) {
    for person in people {
        person.client = Client::connect(handle.listen);
    }
}

/// Straight to an engine, behind the router's back.
fn tell_engine(ports: &Ports, prompt: &str) {
    let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 1 }).to_string();
    let mut client = Client::connect(ports.listen);
    client.send(&post("/v1/completions", body.as_bytes()));
    assert_eq!(client.reply().status, 200);
}

/// Everybody asks; nobody's cached prompt is over- or underestimated. Returns the workers that
/// answered.
fn ask_all(
    handle: &ServerHandle,
    people: &mut [Person],
    engines: &[&EngineHandle],
    unheard: u64,
    question: &str,
) -> Vec<String> {
    let ask = |person: &mut Person| {
        let (reply, cached) = person.ask(question);
        settle(handle, engines, unheard);
        let predicted = overlap_tokens(&reply);
        assert!(predicted.abs_diff(cached) <= 16, "{question}: {predicted} for {cached}");
        (reply.field("x-forebay-worker").expect("named").to_owned(), cached)
    };
    people.iter_mut().map(|person| ask(person).0).collect()
}

#[test]
fn a_restarted_router_hits_at_once_without_a_single_event() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("index.snapshot");
    let (one, at_one) = new_engine(true);
    let (two, at_two) = new_engine(true);
    let engines = [&one, &two];
    let workers = [at_one, at_two];
    let handle = start_router(&workers, &path, vec![0, 1, 0]);
    let mut regulars = people(&handle, 6);
    ask_all(&handle, &mut regulars, &engines, 0, "What is a router?");
    let homes = ask_all(&handle, &mut regulars, &engines, 0, "And what is a forebay?");
    let mut held = metric(&handle, "forebay_kv_tracked_blocks");
    stop(handle);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort_unstable();
    assert_eq!(left, ["index.snapshot", "index.snapshot.models"], "nothing else is left beside it");

    // With another number of shards every path is placed anew.
    for cores in [vec![0, 1, 0], vec![0], vec![0, 1, 0, 1, 0]] {
        let told = sent(&engines);
        let handle = start_router(&workers, &path, cores);
        assert!(near(metric(&handle, "forebay_kv_tracked_blocks"), held), "all of it");
        assert!(restored(&handle) > 10.0);
        until("the engines confirm", || near(live(&handle), 2.0));
        assert_eq!(received(&handle), 0, "confirmed, and nothing new");
        reconnect(&mut regulars, &handle);
        assert_eq!(ask_all(&handle, &mut regulars, &engines, told, "Tell me more."), homes);
        assert!(near(metric(&handle, "forebay_snapshot_dropped_blocks_total"), 0.0));
        held = metric(&handle, "forebay_kv_tracked_blocks");
        stop(handle);
    }
}

#[test]
fn an_engine_that_went_on_meanwhile_is_caught_up_with() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (engine, at) = new_engine(true);
    let handle = start_router(std::slice::from_ref(&at), &path, vec![0, 1]);
    let mut regulars = people(&handle, 3);
    ask_all(&handle, &mut regulars, &[&engine], 0, "Hello?");
    let before = sent(&[&engine]);
    stop(handle);
    let prompt = "What happened while nobody was looking, in every detail? ".repeat(20);
    tell_engine(&at, &prompt);
    until("it is published", || sent(&[&engine]) > before);

    let handle = start_router(std::slice::from_ref(&at), &path, vec![0, 1]);
    until("the engine confirms", || near(live(&handle), 1.0));
    settle(&handle, &[&engine], before);
    assert_eq!(received(&handle), sent(&[&engine]) - before, "only what is new");
    reconnect(&mut regulars, &handle);
    ask_all(&handle, &mut regulars, &[&engine], before, "Still there?");
    let body = json!({ "model": "sim", "prompt": prompt, "max_tokens": 1 }).to_string();
    let mut client = Client::connect(handle.listen);
    client.send(&post("/v1/completions", body.as_bytes()));
    assert!(overlap_tokens(&client.reply()) > 200, "known from the replay");
    assert!(near(dropped(&handle, "gap") + dropped(&handle, "restart"), 0.0));
}

#[test]
fn of_an_engine_that_was_restarted_nothing_stays() {
    // Once with fewer batches than before, once with more: then only their contents tell.
    for prompts in [1, 40] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let (kept, at_kept) = new_engine(true);
        let (engine, at) = new_engine(true);
        let workers = [at_kept, at.clone()];
        let handle = start_router(&workers, &path, vec![0]);
        let mut regulars = people(&handle, 4);
        for at in &workers {
            tell_engine(at, &"Something that each of them holds. ".repeat(40));
        }
        ask_all(&handle, &mut regulars, &[&kept, &engine], 0, "Hello?");
        let before = sent(&[&engine]);
        let told = sent(&[&kept]);
        stop(handle);
        engine.stop();
        let engine = start_engine(&at);
        for number in 0..prompts {
            let word = format!("number {number} ");
            tell_engine(&at, &word.repeat(40));
        }
        until("it has published", || sent(&[&engine]) >= prompts);
        assert_eq!(sent(&[&engine]) > before, prompts == 40);

        let handle = start_router(&workers, &path, vec![0]);
        until("both are followed", || near(live(&handle), 2.0));
        assert!(dropped(&handle, "restart") > 10.0, "its blocks");
        // Who of the regulars is served where is chance; what each of the two was told is not.
        assert!(restored(&handle) > 10.0, "not those of the other");
        assert!(metric(&handle, "forebay_kv_resets_total{reason=\"restart\"") > 0.5);
        settle(&handle, &[&kept, &engine], told);
        assert_eq!(received(&handle), sent(&[&engine]), "followed from its beginning");
        reconnect(&mut regulars, &handle);
        ask_all(&handle, &mut regulars, &[&kept, &engine], told, "Do you remember me?");
        stop(handle);
    }
}

#[test]
fn without_replay_a_snapshot_is_a_hint_until_the_stream_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (one, at_one) = new_engine(false);
    let (two, at_two) = new_engine(false);
    let engines = [&one, &two];
    let workers = [at_one, at_two];
    let handle = start_router(&workers, &path, vec![0]);
    until("both are followed", || near(live(&handle), 2.0));
    // A publisher drops what comes before it knows its subscriber.
    for (number, at) in workers.iter().enumerate() {
        let mut word = 0;
        until("the rank is heard", || {
            word += 1;
            let before = received(&handle);
            tell_engine(at, &format!("warm-up {word} of {number} ").repeat(10));
            std::thread::sleep(Duration::from_millis(50));
            received(&handle) > before
        });
        // Another life of it shall be heard at a lower number, not by chance at the very next one.
        (0..40).for_each(|word| tell_engine(at, &format!("a past of {word} ").repeat(10)));
    }
    until("the engines have sent all", || {
        let before = sent(&engines);
        std::thread::sleep(Duration::from_millis(100));
        sent(&engines) == before
    });
    rest(&handle);
    let lost = sent(&engines) - received(&handle);
    let mut regulars = people(&handle, 4);
    let homes = ask_all(&handle, &mut regulars, &engines, lost, "Hello?");
    stop(handle);

    let handle = start_router(&workers, &path, vec![0]);
    assert!(restored(&handle) > 10.0);
    std::thread::sleep(Duration::from_millis(300));
    assert!(near(live(&handle), 0.0), "nothing has confirmed it");
    reconnect(&mut regulars, &handle);
    let (reply, cached) = regulars[0].ask("Am I known?");
    assert_eq!(reply.field("x-forebay-worker"), Some(homes[0].as_str()), "believed all the same");
    assert!(cached > 100);
    assert_eq!(reply.field("x-forebay-overlap-tokens"), None, "but not claimed");
    until("its next event confirms it", || near(live(&handle), 1.0));
    let (reply, cached) = regulars[0].ask("And now?");
    assert!(overlap_tokens(&reply).abs_diff(cached) <= 16);

    // The other engine is restarted: its first event shows that it is another.
    let (restarted, at) = if homes[0] == workers[0].listen.to_string() {
        (two, &workers[1])
    } else {
        (one, &workers[0])
    };
    restarted.stop();
    let _again = start_engine(at);
    let mut word = 0;
    until("it is followed, and nothing is left of the other", || {
        word += 1;
        tell_engine(at, &format!("another life, part {word} ").repeat(20));
        // By the number that was heard first.
        let other = dropped(&handle, "restart") + dropped(&handle, "gap");
        near(live(&handle), 2.0) && other > 0.5
    });
}

#[test]
fn a_damaged_snapshot_is_a_cold_start_and_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (engine, at) = new_engine(true);
    let workers = [at];
    let handle = start_router(&workers, &path, vec![0]);
    let mut regulars = people(&handle, 3);
    ask_all(&handle, &mut regulars, &[&engine], 0, "Hello?");
    stop(handle);
    let sound = std::fs::read(&path).unwrap();
    let mut flipped = sound.clone();
    let last = flipped.len() - 60;
    flipped[last] ^= 4;
    let cut = sound[..sound.len() / 2].to_vec();
    for bytes in [flipped, cut, b"\x89PNG\r\n\x1a\n and so on".to_vec(), Vec::new()] {
        std::fs::write(&path, &bytes).unwrap();
        let handle = start_router(&workers, &path, vec![0]);
        until("the engine is followed", || near(live(&handle), 1.0));
        assert!(near(restored(&handle), 0.0));
        settle(&handle, &[&engine], 0);
        assert_eq!(received(&handle), sent(&[&engine]), "all of it, by replay");
        reconnect(&mut regulars, &handle);
        ask_all(&handle, &mut regulars, &[&engine], 0, "Once more?");
        stop(handle);
        let handle = start_router(&workers, &path, vec![0]);
        assert!(restored(&handle) > 10.0, "a sound one is in its place");
        stop(handle);
    }
}

#[test]
fn snapshots_are_written_while_the_router_runs_and_survive_a_disk_that_fails() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("state");
    std::fs::create_dir(&place).unwrap();
    let path = place.join("s");
    let (_engine, at) = new_engine(true);
    let mut config = config(std::slice::from_ref(&at), &path);
    config.index.snapshot_every = Duration::from_millis(200);
    let handle = router(config);
    until("it is ready", || admin(&handle, "/readyz").status == 200);
    tell_engine(&at, &"Something to keep. ".repeat(40));
    let writes = |result: &str| {
        metric(&handle, &format!("forebay_snapshot_writes_total{{result=\"{result}\""))
    };
    until("blocks are written", || metric(&handle, "forebay_snapshot_blocks") > 5.0);
    assert!(writes("written") > 0.5 && near(writes("failed"), 0.0));
    // Blocks still come, so a larger file may be renamed into place between the two looks.
    until("the size of the file is reported", || {
        let size = metric(&handle, "forebay_snapshot_bytes");
        near(size, std::fs::metadata(&path).unwrap().len() as f64)
    });
    assert!(metric(&handle, "forebay_snapshot_age_seconds") < 5.0);
    assert!(metric(&handle, "forebay_snapshot_write_seconds") > 0.0);

    let kept = std::fs::read(&path).unwrap();
    // The router may just write a file there.
    until("the folder is gone", || std::fs::remove_dir_all(&place).is_ok());
    until("the failure is counted", || writes("failed") > 0.5);
    // N7: the failure was no concern.
    let readyz = admin(&handle, "/readyz").text();
    assert!(readyz.contains("`index.snapshot` ") && readyz.contains(" cannot be written for "));
    assert_eq!(admin(&handle, "/readyz").status, 200, "and nothing else happens");
    std::fs::create_dir(&place).unwrap();
    until("it is there again", || path.is_file());
    stop(handle);
    assert!(std::fs::metadata(&path).unwrap().len() >= kept.len() as u64 / 2);
}

#[test]
fn a_worker_that_was_not_heard_of_is_not_forgotten_by_the_next_stop() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (one, at_one) = new_engine(true);
    let (_two, at_two) = new_engine(true);
    let workers = [at_one.clone(), at_two];
    let handle = start_router(&workers, &path, vec![0]);
    let tracked = || metric(&handle, "forebay_kv_tracked_blocks");
    for at in &workers {
        let before = tracked();
        tell_engine(at, &"Something to keep. ".repeat(40));
        until("it has told", || tracked() > before + 5.5);
    }
    stop(handle);
    let kept = std::fs::read(&path).unwrap();

    one.stop();
    let handle = router(config(&workers, &path));
    until("one of two is up", || admin(&handle, "/readyz").status == 200);
    assert!(restored(&handle) > 5.0, "what is known of the other");
    stop(handle);
    assert_eq!(std::fs::read(&path).unwrap(), kept, "the file waits for the one that is away");
    let _again = start_engine(&at_one);
    let handle = start_router(&workers, &path, vec![0]);
    until("both are followed", || near(live(&handle), 2.0));
    assert!(dropped(&handle, "restart") > 5.0, "it was restarted, which only now can be known");
    stop(handle);
    assert_ne!(std::fs::read(&path).unwrap(), kept);
}

#[test]
fn blocks_of_another_tokenizer_are_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (engine, at) = new_engine(true);
    let workers = [at];
    let handle = start_router(&workers, &path, vec![0]);
    tell_engine(&workers[0], &"Something to keep. ".repeat(40));
    until("it has told", || metric(&handle, "forebay_kv_tracked_blocks") > 5.0);
    settle(&handle, &[&engine], 0);
    stop(handle);

    // One more special token: some id decodes to something else.
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        let text = std::fs::read_to_string(Path::new("tests/data/tokenizer").join(file));
        if let Ok(text) = text {
            let changed = text.replacen("<|im_end|>", "<|the_end|>", 1);
            std::fs::write(model.join(file), changed).unwrap();
        }
    }
    let mut config = config(&workers, &path);
    config.model_dir = Some(model);
    let handle = router(config);
    until("it is followed", || near(live(&handle), 1.0));
    assert!(near(restored(&handle), 0.0));
    assert!(dropped(&handle, "tokenizer") > 5.0);
    stop(handle);
}

/// Adds chains of made-up blocks to the only rank of a snapshot.
fn enlarge(path: &Path, more: u64) {
    let mut file = SnapshotFile::open(path).unwrap().expect("a snapshot");
    let header = *file.header();
    let contents = file.check().unwrap();
    let place = contents.ranks.into_values().next().expect("a rank");
    let mut writer = SnapshotWriter::create(path, &header).unwrap();
    let entry_count = place.head.entry_count + more;
    assert!(writer.rank(&RankHead { entry_count, ..place.head.clone() }));
    file.entries(&place, |entry| writer.entry(&entry).unwrap()).unwrap();
    let root = BlockKey::from_word(7).unwrap();
    let mut parent = root;
    let mut links = Vec::new();
    for number in 0..more {
        parent = if number % 100 == 0 { root } else { parent };
        let key = parent.child(header.seed, &number.to_le_bytes());
        let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        writer.entry(&SnapshotEntry { id, key, stores: [1, 0, 0] }).unwrap();
        links.push(Link { parent, key, block_bytes: 64, slice: ShardIndex(0) });
        parent = key;
    }
    links.extend((0..contents.paths.len()).filter_map(|at| contents.paths.link(at)));
    links.iter().for_each(|link| writer.link(link).unwrap());
    writer.finish().unwrap();
}

#[test]
fn requests_are_served_while_much_is_restored() {
    const MORE: u64 = 30_000;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let (engine, at) = new_engine(true);
    let workers = [at];
    let handle = start_router(&workers, &path, vec![0]);
    let mut regulars = people(&handle, 2);
    ask_all(&handle, &mut regulars, &[&engine], 0, "Hello?");
    stop(handle);
    enlarge(&path, MORE);

    let handle = router(config(&workers, &path));
    until("it listens", || std::net::TcpStream::connect(handle.listen).is_ok());
    reconnect(&mut regulars, &handle);
    until("the worker has answered", || usable(&handle) == 1);
    regulars[0].ask("Do you serve?");
    until("it is ready", || admin(&handle, "/readyz").status == 200);
    assert!(restored(&handle) > 30_000.0);
    until("the engine confirms", || near(live(&handle), 1.0));
    until("the shards have applied it", || metric(&handle, "forebay_index_entries") > 30_000.0);
    // On a busy machine the router has closed a connection that said nothing for so long.
    reconnect(&mut regulars, &handle);
    let (reply, cached) = regulars[1].ask("And me?");
    assert!(cached > 100 && overlap_tokens(&reply).abs_diff(cached) <= 16);
    stop(handle);

    // Half of it in a router that may track less: the beginning of it, whole.
    let mut config = config(&workers, &path);
    config.limits.index_bytes_max = 4 << 20;
    let handle = router(config);
    until("it is ready", || admin(&handle, "/readyz").status == 200);
    until("it is followed", || near(live(&handle), 1.0));
    let kept = restored(&handle);
    let left = dropped(&handle, "limit");
    assert!(kept > 10_000.0 && left > 10_000.0 && kept + left > 30_000.0, "{kept}, {left}");
    assert!(near(metric(&handle, "forebay_broken_invariants_total"), 0.0));
    stop(handle);
}
