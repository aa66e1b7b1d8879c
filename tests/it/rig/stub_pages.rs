//! What a stub engine says of itself when it is asked, as SGLang 0.5.23 and vLLM 0.33 do.

use serde_json::json;

/// Engine, part and ranks of a stub.
#[derive(Clone, Debug)]
pub(crate) struct Pages {
    pub(crate) engine: Engine,
    /// `prefill`, `decode` or `null`.
    pub(crate) mode: &'static str,
    pub(crate) dp_size: u32,
    /// Every rank has a port of its own, counted up from the first.
    pub(crate) port_per_rank: bool,
    /// A prefill worker whose ranks have not all registered yet says so.
    pub(crate) registered: bool,
    pub(crate) follows_room: bool,
    /// It passes its health checks.
    pub(crate) is_well: bool,
    /// Filled in when it listens.
    pub(crate) port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sglang,
    Vllm,
}

impl Pages {
    pub(crate) fn sglang(mode: &'static str) -> Self {
        Self {
            engine: Engine::Sglang,
            mode,
            dp_size: 1,
            port_per_rank: false,
            registered: true,
            follows_room: true,
            is_well: true,
            port: 0,
        }
    }

    pub(crate) fn vllm() -> Self {
        Self { engine: Engine::Vllm, ..Self::sglang("null") }
    }

    pub(crate) fn ranks(self, dp_size: u32) -> Self {
        Self { dp_size, ..self }
    }

    pub(super) fn get(&self, path: &str) -> (u16, String) {
        if !self.is_well {
            return (503, String::new());
        }
        match (path.split('?').next().unwrap_or(path), self.engine) {
            ("/v1/models", engine) => {
                let owner = if engine == Engine::Vllm { "vllm" } else { "sglang" };
                let card = json!({ "id": "m", "object": "model", "owned_by": owner });
                (200, json!({ "object": "list", "data": [card] }).to_string())
            }
            ("/health", _) => (200, String::new()),
            ("/model_info", Engine::Sglang) => (200, self.info()),
            ("/server_info" | "/get_server_info", Engine::Sglang) => (200, self.info()),
            ("/route", Engine::Sglang) if self.mode == "prefill" => self.route(),
            ("/metrics", Engine::Vllm) => (200, self.metrics()),
            // Mooncake's registry.
            ("/query", Engine::Vllm) => {
                let of_rank = |rank: u32| {
                    let about =
                        json!({ "engine_id": format!("of rank {rank}"), "worker_addr": {} });
                    (rank.to_string(), about)
                };
                let ranks: serde_json::Map<_, _> = (0..self.dp_size).map(of_rank).collect();
                (200, serde_json::Value::Object(ranks).to_string())
            }
            _ => (404, json!({ "detail": "Not Found" }).to_string()),
        }
    }

    fn info(&self) -> String {
        let mut info = json!({
            "model_path": "stub",
            "dp_size": self.dp_size,
            "page_size": 4,
            "disaggregation_mode": self.mode,
            // A decode server tells which port it assumes of others; nobody listens there.
            "disaggregation_bootstrap_port": if self.mode == "prefill" { self.port } else { 8_998 },
        });
        if self.port_per_rank {
            info["frontend"] = json!("rust");
        }
        info.to_string()
    }

    fn route(&self) -> (u16, String) {
        if !self.registered {
            let text = "Prefill server not fully registered yet (0 workers registered).";
            return (503, text.to_owned());
        }
        let route = json!({
            "attn_tp_size": 1, "attn_cp_size": 1, "dp_size": self.dp_size, "pp_size": 1,
            "page_size": 4,
            "kv_cache_dtype": "auto", "follow_bootstrap_room": self.follows_room,
            "enable_dsa_cache_layer_split": false, "prefill_http_port": self.port,
        });
        (200, route.to_string())
    }

    fn metrics(&self) -> String {
        let line =
            |rank| format!("vllm:num_requests_running{{engine=\"{rank}\",model_name=\"m\"}} 0.0\n");
        (0..self.dp_size).map(line).collect()
    }
}
