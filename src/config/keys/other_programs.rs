//! Keys as operators of other programs write them, and the keys here: nginx, HAProxy, Envoy, Caddy,
//! vllm-router, SGLang's gateway, LiteLLM, and probes of Kubernetes.

use super::nearest::plain_words;

/// Keys here, and the same keys elsewhere. Order, number and marks of words do not matter. A key of
/// two words or more is found in a wrong table too.
const KEYS: &[(&[&str], &str)] = &[
    (
        &["worker.health_path"],
        "worker.health worker.health_check worker.healthcheck worker.health_url worker.health_uri \
         worker.health_endpoint worker.healthz worker.health_check_path worker.health_check_uri \
         worker.readiness_path worker.probe_path worker.check worker.probe worker.ping_path \
         worker.health_check_endpoint worker.health_check_url",
    ),
    (
        &["worker.health_path", "worker_defaults.health_path"],
        "health.path health.uri health.url health.endpoint health_path health_check_path \
         health_check_endpoint health_check_url health_uri probe_path readiness_path",
    ),
    (
        &["worker.models"],
        "worker.model worker.model_name worker.model_id worker.model_list \
         worker.served_model_name worker.served_models served_model_name",
    ),
    (&["worker.models", "model"], "models model_name model_names"),
    (
        &["worker.url"],
        "worker.address worker.addr worker.host worker.hostname worker.port worker.endpoint \
         worker.base_url worker.api_base worker.uri worker.server worker.target worker.ip \
         worker.upstream worker.dial worker.proxy_pass worker.backend worker.host_port",
    ),
    (
        &["worker.concurrency_max"],
        "worker.maxconn worker.max_conns worker.max_connections worker.max_requests \
         worker.max_in_flight worker.in_flight_max worker.max_concurrent_requests \
         worker.max_concurrency worker.max_parallel_requests worker.max_num_seqs \
         worker.max_running_requests worker.capacity worker.limit worker.slots",
    ),
    (&["worker.engine"], "worker.type worker.kind worker.provider worker.runtime worker.dialect"),
    (
        &["worker.api_key"],
        "worker.key worker.token worker.auth worker.authorization worker.bearer_token \
         worker.api_token worker.secret worker.auth_token",
    ),
    (&["worker.api_key_file"], "worker.key_file worker.token_file worker.auth_file"),
    (
        &["worker.model_dir"],
        "worker.tokenizer worker.tokenizer_path worker.tokenizer_dir worker.model_path \
         worker.tokenizer_name",
    ),
    (
        &["model_dir"],
        "tokenizer tokenizer_path tokenizer_dir model_path tokenizer_name chat_template_path \
         chat_template",
    ),
    (
        &["worker.ranks"],
        "worker.dp worker.dp_size worker.data_parallel_size worker.data_parallel worker.dp_ranks",
    ),
    (
        &["worker.block_size"],
        "worker.page_size worker.kv_block_size worker.block_size_tokens kv.block_size block_size \
         page_size kv_block_size",
    ),
    (&["worker.name"], "worker.id worker.label worker.alias worker.title"),
    (
        &["worker.kv_events"],
        "worker.events worker.kv_event_endpoint worker.zmq worker.zmq_endpoint \
         worker.kv_endpoint worker.events_endpoint worker.kv_events_endpoint worker.publisher",
    ),
    (
        &["worker.replay"],
        "worker.kv_event_replay_source worker.replay_endpoint worker.kv_events_replay \
         kv_event_replay_source kv_events_replay",
    ),
    (&["kv.host_credit_percent"], "kv_penalty_host kv.penalty_host"),
    (&["worker.tls_name"], "worker.sni worker.server_name worker.verify_host worker.ssl_name"),
    (
        &["worker"],
        "upstream server backend workers worker_urls urls endpoints targets nodes instances \
         deployments model_list engines hosts_list services reverse_proxy proxy_pass clusters \
         worker_list",
    ),
    (
        &["discovery.file"],
        "workers_file worker_file targets_file hosts_file file_sd file_sd_configs \
         service_discovery_file discovery.path discovery.workers_file",
    ),
    (
        &["discovery.name_server"],
        "resolver resolvers nameserver nameservers dns_server dns_resolver discovery.resolver \
         discovery.nameserver discovery.dns_server",
    ),
    (
        &["discovery.dns"],
        "discovery.srv discovery.name discovery.host discovery.hostname server_template selector \
         service_discovery_port service_discovery_namespace",
    ),
    (&["discovery"], "service_discovery sd"),
    (&["api_keys", "worker_defaults.api_key"], "api_key"),
    (&["api_keys"], "keys_file api_keys_file master_key auth_keys client_keys auth_request"),
    (&["admin_token_file"], "control_plane_api_keys admin_api_key admin_key admin_token"),
    (&["worker.kv_flow"], "worker.kv_connector worker.kv_role kv_connector kv_transfer_config"),
    (
        &["retry.attempts_max"],
        "retry.retries retry.max_retries retry.num_retries retry.count retry.tries retry.max \
         retry.attempts retry.max_attempts retry.number max_retries num_retries retry_attempts \
         proxy_next_upstream_tries retry_max_retries lb_retries disable_retries",
    ),
    (&["retry"], "proxy_next_upstream retry_policy retry_on redispatch"),
    (
        &["health.unhealthy_after"],
        "health.fall health.failure_threshold health.unhealthy_threshold health.retries \
         health.max_fails health.fails health.failures unhealthy_threshold failure_threshold \
         health_failure_threshold health_check_failure_threshold",
    ),
    (
        &["health.healthy_after"],
        "health.rise health.success_threshold health.healthy_threshold health.passes \
         health.successes success_threshold healthy_threshold health_success_threshold \
         health_check_success_threshold",
    ),
    (
        &["health.interval"],
        "health.inter health.period health.period_seconds health.interval_secs health.every \
         health.check_interval period_seconds health_check_interval health_interval",
    ),
    (
        &["health.timeout"],
        "health.timeout_seconds health_check_timeout health_timeout timeouts.check",
    ),
    (&["health.enabled"], "health.check health.checks disable_health_check disable_health_checks"),
    (&["health.slow_start"], "slowstart slow_start worker.slowstart worker.slow_start"),
    (
        &["health"],
        "health_check healthcheck health_checks liveness_probe readiness_probe \
         active_health_check httpchk option_httpchk",
    ),
    (
        &["breaker.failures"],
        "breaker.failure_threshold breaker.threshold breaker.max_failures breaker.max_fails \
         max_fails worker.max_fails allowed_fails cb_failure_threshold consecutive_5xx \
         circuit_breaker_threshold breaker.consecutive_errors breaker.consecutive_failures",
    ),
    (
        &["breaker.open"],
        "breaker.timeout breaker.cooldown breaker.cooldown_time breaker.open_time \
         breaker.ejection_time breaker.base_ejection_time breaker.fail_timeout breaker.reset \
         fail_timeout worker.fail_timeout cooldown_time base_ejection_time cb_timeout_duration",
    ),
    (&["breaker"], "circuit_breaker circuit_breakers outlier_detection cooldown"),
    (
        &["timeouts.first_byte", "timeouts.stream_idle"],
        "timeouts.read timeouts.response timeouts.server timeouts.request timeouts.route \
         timeouts.total timeouts.upstream timeouts.backend timeouts.worker proxy_read_timeout \
         read_timeout request_timeout response_timeout server_timeout stream_timeout",
    ),
    (&["timeouts.write"], "timeouts.send send_timeout write_timeout"),
    (
        &["timeouts.idle"],
        "timeouts.keepalive timeouts.keep_alive timeouts.http_keep_alive keepalive_timeout \
         keep_alive_timeout timeouts.client_keepalive",
    ),
    (
        &["timeouts.connect"],
        "timeouts.connection timeouts.proxy_connect proxy_connect_timeout connect_timeout \
         connection_timeout contimeout",
    ),
    (
        &["timeouts.upstream_idle"],
        "timeouts.keepalive_upstream upstream_keepalive keepalive_upstream pool_idle_timeout \
         max_idle_conn_duration",
    ),
    (&["timeouts.handshake"], "timeouts.tls timeouts.ssl tls_timeout timeouts.tls_handshake"),
    (
        &["timeouts.head"],
        "timeouts.header timeouts.read_header timeouts.http_request timeouts.request_headers \
         client_header_timeout timeouts.client_header",
    ),
    (
        &["timeouts.body"],
        "timeouts.read_body timeouts.request_body client_body_timeout timeouts.client_body \
         timeouts.client client_timeout",
    ),
    (&["timeouts.tunnel"], "timeouts.upgrade timeouts.websocket websocket_timeout"),
    (
        &["timeouts.drain"],
        "timeouts.shutdown timeouts.grace timeouts.graceful_shutdown timeouts.grace_period \
         shutdown_timeout grace_period graceful_shutdown_timeout shutdown_grace_period \
         drain_timeout termination_grace_period",
    ),
    (
        &["queue.wait_max"],
        "queue.timeout queue.max_time timeouts.queue queue_timeout queue.wait_timeout",
    ),
    (
        &["queue.depth_max"],
        "queue.size queue.length queue.capacity queue.limit queue.max queue.max_size \
         queue.max_length queue.max_requests queue.max_queue queue_size max_queue_size",
    ),
    (
        &["policy"],
        "lb_policy load_balancing load_balancing_policy lb_algorithm load_balancer balance \
         balancer algorithm strategy routing_strategy routing_policy router_policy routing \
         scheduling_policy lb_method lb_strategy",
    ),
    (
        &["cores"],
        "threads worker_threads worker_processes nbthread nthreads cpus cpu_affinity \
         worker_cpu_affinity num_threads shards io_threads cpu_map",
    ),
    (
        &["listen"],
        "port host bind bind_address bind_addr listen_address listen_addr listen_port http_port \
         server_port",
    ),
    (
        &["admin"],
        "metrics metrics_port metrics_address metrics_listen prometheus prometheus_port \
         prometheus_host stats stats_port admin_port admin_address admin_listen admin_addr \
         management_port",
    ),
    (&["log.level"], "loglevel verbosity log_verbosity logging_level"),
    (&["log.requests"], "access_log access_logs log.access log.access_log"),
    (&["log"], "logging logger logs"),
    (
        &["tls.cert"],
        "ssl_certfile certfile cert_file tls_cert_path tls.certificate tls.crt tls.cert_file",
    ),
    (
        &["tls.key"],
        "ssl_keyfile keyfile key_file tls_key_path ssl_certificate_key tls.private_key \
         tls.key_file",
    ),
    (&["upstream_tls"], "client_cert_path client_key_path proxy_ssl_certificate"),
    (
        &["tls.client_ca"],
        "ssl_ca_certs ssl_client_certificate tls.ca tls.ca_file tls.cafile tls.client_ca_file",
    ),
    (&["tls.client_auth"], "ssl_verify_client tls.verify_client tls.verify tls.mtls"),
    (
        &["limits.body_bytes_max"],
        "max_payload_size max_request_size max_body_size client_max_body_size \
         limits.request_size limits.payload_size",
    ),
    (
        &["limits.router_in_flight_max"],
        "max_concurrent_requests global_max_parallel_requests limits.max_concurrent_requests",
    ),
    (
        &["tenant.requests_per_minute"],
        "rate_limit rpm rpm_limit limit_req requests_per_minute ratelimit tenant.rpm \
         tenant.rpm_limit tenant.rate_limit requests_per_second rps rps_limit qps \
         max_requests_per_second limit_req_zone rate_limit_requests_per_second \
         rate_limit_tokens_per_second \
         tenant.requests_per_second tenant.rps limits.requests_per_second http_req_rate \
         limits.requests_per_minute",
    ),
    (
        &["tenant.tokens_per_minute"],
        "tpm tpm_limit tokens_per_minute tenant.tpm tenant.tpm_limit tokens_per_second \
         tenant.tokens_per_second limits.tokens_per_minute",
    ),
    (&["tenant"], "tenants teams users customers quota quotas"),
    (
        &["session"],
        "sticky stickiness affinity session_affinity sticky_session hash_key consistent_hash",
    ),
    (&["traces"], "tracing otel otlp opentelemetry telemetry"),
    (
        &["traces.endpoint"],
        "otlp_endpoint otlp_traces_endpoint otel_endpoint traces.url traces.collector traces.otlp",
    ),
    (&["model"], "aliases model_alias model_aliases model_group_alias split_clients"),
    (&["adapter"], "lora loras lora_modules lora_adapters"),
    (&["disaggregation"], "disagg pd disaggregated"),
    (&["client.trusted"], "trusted_proxies set_real_ip_from client.trusted_proxies real_ip_from"),
    (
        &["client.trusted", "client.forwarded"],
        "real_ip_header real_ip_recursive client.real_ip_header client_ip_header \
         client.ip_header use_forwarded_headers xff_num_trusted_hops forwardfor \
         option_forwardfor proxy_set_header",
    ),
    (&["client.proxy_protocol"], "accept_proxy proxy_protocol use_proxy_protocol"),
    (
        &["limits.connections_max", "rank_concurrency_max"],
        "maxconn max_connections limits.maxconn limits.max_connections",
    ),
    (&["limits.connections_max"], "worker_connections global.maxconn"),
    (
        &["limits.connections_per_address_max"],
        "limit_conn limit_conn_zone conn_rate max_connections_per_ip",
    ),
    (
        &["limits.head_bytes_max"],
        "large_client_header_buffers client_header_buffer_size max_header_size bufsize",
    ),
    (&["cors.origins"], "cors_allowed_origins cors_origins allow_origins cors.allowed_origins"),
    (&["log.format"], "log_format logformat access_log_format log.template"),
    (&["log.json"], "json_log log_json log.structured"),
    (&["replicas.peers"], "peers replicas.members replicas.nodes replicas.urls"),
];

/// Keys of other programs without a key of the same meaning here, and what there is.
const TEXTS: &[(&str, &str)] = &[
    (
        "workers have no weights: each request goes where least work is left; \
         `worker.concurrency_max` limits the requests of each rank",
        "worker.weight",
    ),
    (
        "workers have no order: each request goes where least work is left; drain a worker that \
         shall wait, by `forebay drain`",
        "worker.priority worker.backup worker.order",
    ),
    (
        "times hold for all workers: see `[timeouts]`",
        "worker.timeout worker.read_timeout worker.connect_timeout worker.request_timeout",
    ),
    (
        "write a [[worker]] for each, with `role = \"prefill\"` or `role = \"decode\"`",
        "worker.prefill worker.decode worker.disaggregation_mode worker.worker_type prefill \
         decode prefill_urls decode_urls prefills decodes prefill_workers decode_workers \
         vllm_pd_disaggregation pd_disaggregation",
    ),
    (
        "the log goes to standard error: leave it to systemd or the container, or start with \
         2>>FILE",
        "log.file log.path log.dir log.output log_file log_dir log_path error_log",
    ),
    (
        "TLS 1.2 and 1.3 with fixed ciphers, sessions and curves: remove it; the page TLS has the \
         rest",
        "ssl_protocols ssl_ciphers ssl_prefer_server_ciphers ssl_session_cache \
         ssl_session_timeout ssl_session_tickets ssl_dhparam ssl_ecdh_curve ssl_stapling \
         ssl_min_ver ssl_max_ver ssl_default_bind_ciphers ssl_default_bind_options \
         tls.protocols tls.ciphers tls.min_version tls.max_version tls_min_version tls.versions \
         tls_params",
    ),
    (
        "answers pass as they come, over connections that are kept: remove it",
        "proxy_buffering proxy_request_buffering proxy_http_version proxy_buffer_size \
         proxy_buffers keepalive keepalive_requests tcp_nodelay tcp_nopush sendfile \
         http_server_close",
    ),
    (
        "paths, hosts and pages are no matter of this router: keep that proxy in front; the page \
         Proxies has a configuration",
        "location locations server_name server_names root gzip error_page rewrite http2 http_2 \
         alpn allow deny acl add_header proxy_cache default_backend frontend",
    ),
    (
        "a further attempt goes to another worker at once, without a pause: remove it; `[retry]` \
         has the limits",
        "retry_initial_backoff_ms retry_max_backoff_ms retry_backoff_multiplier \
         retry_jitter_factor retry.backoff retry.initial_backoff retry.max_backoff retry.jitter \
         retry.delay retry_after retry_delay retry_backoff",
    ),
    (
        "`policy` chooses both workers of a pair together: remove it",
        "prefill_policy decode_policy disaggregation.prefill_policy disaggregation.decode_policy",
    ),
    (
        "the engine reads reasoning and calls of tools: give it these flags, and remove the key",
        "reasoning_parser tool_call_parser tool_parser",
    ),
    (
        "tools are called by clients, and not by this router: remove it",
        "mcp_config_path mcp_servers",
    ),
    (
        "write the rule as `policy`, such as \"least_loaded\" or \"session\"",
        "least_conn ip_hash hash leastconn roundrobin cookie",
    ),
    (
        "a worker that is up later gets requests from then on: remove it",
        "worker_startup_timeout_secs worker_startup_check_interval startup_timeout",
    ),
    (
        "ranks are found at the engine: remove it, or set `worker.ranks` where health checks are \
         off",
        "dp_aware intra_node_data_parallel_size dp_size data_parallel_size",
    ),
    (
        "remove it: policy `kv` weighs caches against load by itself",
        "cache_threshold balance_abs_threshold balance_rel_threshold max_tree_size \
         max_tree_depth eviction_interval kv.cache_threshold kv.balance_abs_threshold \
         kv.balance_rel_threshold",
    ),
];

/// Keys here that have the meaning of `path` in another program. Empty: none is known.
#[must_use]
pub fn keys_for(path: &str) -> &'static [&'static str] {
    find(KEYS, path).unwrap_or_default()
}

/// What there is in place of a key of another program.
pub(crate) fn advice_for(path: &str) -> Option<&'static str> {
    find(TEXTS, path)
}

fn find<T: Copy>(table: &[(T, &'static str)], path: &str) -> Option<T> {
    let name = path.rsplit('.').next().unwrap_or(path);
    let place = |wanted: &str| {
        let words = plain_words(wanted);
        let letters = letters_of(wanted);
        let is_same = |other: &str| plain_words(other) == words || letters_of(other) == letters;
        let mut rows = table.iter();
        rows.find(|(_, others)| others.split(' ').any(is_same)).map(|(own, _)| *own)
    };
    // A single word means something else in each table, and so does each key of a worker.
    let is_plain = !path.starts_with("worker") && plain_words(name).len() > 1;
    place(path).or_else(|| place(name).filter(|_| is_plain))
}

/// Letters without marks, in the singular: `lbPolicy` and `lb-policy` are equal.
fn letters_of(path: &str) -> String {
    let letters = path.replace(['.', '_', '-'], "").to_ascii_lowercase();
    letters.strip_suffix('s').map(str::to_owned).unwrap_or(letters)
}

#[cfg(test)]
pub(crate) fn all_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    let pairs = |(own, others): &(&'static [&'static str], &'static str)| {
        let others: Vec<&'static str> = others.split(' ').collect();
        own.iter()
            .flat_map(move |own| others.clone().into_iter().map(move |other| (*own, other)))
            .collect::<Vec<_>>()
    };
    KEYS.iter().flat_map(pairs)
}
