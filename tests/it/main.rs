//! Behaviour through bytes: a real router in this process, scripted workers and clients on loopback
//! sockets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::unwrap_in_result,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "helpers of tests may stop the test, block, and look at the clock"
)]

mod adapters;
mod addresses;
mod admin_port;
mod admin_tls;
mod api_keys;
mod approximate_routing;
mod bills;
mod client_port;
mod client_leaves;
mod cors;
mod defaults;
mod demand;
mod doctor;
mod drain;
mod ejection;
mod engine_order;
mod feed_loss;
mod feed_replay;
mod feed_restart;
mod feed_silence;
mod feed_stall;
mod engine_calls;
mod feed_start;
mod forms;
mod hit_figures;
mod hit_ladder;
mod holds;
mod http_rules;
mod identity;
mod images;
mod jwt;
mod kv_pools;
mod kv_routing;
mod learned_limits;
mod live_page;
mod load_reports;
mod logging;
mod mid_stream;
mod mid_stream_faults;
mod mid_stream_moves;
mod mid_stream_sglang;
mod model_cards;
mod model_names;
mod other_models;
mod overload;
mod outliers;
mod orders;
mod own_answers;
mod peers;
mod pair_blame;
mod pair_faults;
mod pair_queues;
mod pair_ranks;
mod pair_ready;
mod pair_shards;
mod pair_storm;
mod pair_streams;
mod pairs;
mod prefill_speed;
mod queue_comments;
mod quotas;
mod recording;
mod refusals;
mod relay_bytes;
mod reload;
mod render_trust;
mod replicas;
mod rig;
mod retries;
mod roles;
mod sessions;
mod shadow;
mod shard_faults;
mod side_doors;
mod sleep;
mod sources;
mod srv;
mod start;
mod starvation;
mod stored_responses;
mod suspect_feeds;
mod tenants;
mod tiers_and_adapters;
mod tls_clients;
mod tls_reload;
mod tls_worker_reload;
mod tls_workers;
mod torn_events;
mod traces;
mod tunnel;
mod unlisted_models;
mod upgrade;
mod waiting;
mod warm_restart;
mod websocket;
mod worker_changes;
mod worker_down;
mod worker_drain;
mod worker_fails;
mod worker_faults;
mod worker_lies;
mod wrong_tokenizer;
