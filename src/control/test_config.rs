//! Configuration that tests share: workers by URL.

use forebay_config::{Config, WorkerConfig};
use forebay_index::KeySeed;

pub(super) const SEED: KeySeed = KeySeed(3);

pub(super) fn config(urls: &[&str]) -> Config {
    let worker = |url: &&str| WorkerConfig { url: (*url).to_owned(), ..WorkerConfig::default() };
    Config { workers: urls.iter().map(worker).collect(), ..Config::default() }
}
