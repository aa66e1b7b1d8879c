//! The table of keys, clients: forwarded addresses, JSON Web Tokens, and CORS.

use crate::keys::table::{table, words};
use std::time::Duration;

table! {
    /// Who clients are behind proxies, and what workers are told of it.
    pub struct ClientConfig in "client." {
        /// Proxies in front of the router: addresses, or networks such as `10.0.0.0/8`.
        /// Only these are believed when they say who their client is.
        trusted: Vec<String> = Vec::new();
        /// Connections of `client.trusted` begin with a PROXY header, version 1 or 2.
        proxy_protocol: bool = false;
        /// What workers are told in `x-forwarded-for` and `forwarded`.
        forwarded: Forwarded = Forwarded::Off;
    }
}

table! {
    /// JSON Web Tokens that clients may show in place of a key.
    pub struct JwtConfig in "jwt." {
        /// Set of public keys (JWKS): a file, or an `https://` URL. A URL is fetched over the
        /// authorities of `upstream_tls.ca`, else of the system.
        jwks: Option<String> = None, { absent: "no tokens" };
        /// What the claim `iss` must be. Required with `jwt.jwks`.
        issuer: String = String::new();
        /// The claim `aud` must hold any of these. Required with `jwt.jwks`.
        audience: Vec<String> = Vec::new();
        /// Claim with the tenant. Tokens without the claim belong to the tenant `*`.
        tenant_claim: String = "tenant".to_owned();
        /// Claim with the models that the token may use: a name or a list of names. A token
        /// without the claim is refused.
        models_claim: Option<String> = None, { absent: "tokens may use all models" };
        /// Claim with the best class of the token's requests.
        class_claim: Option<String> = None, { absent: "`queue.class_default`" };
        /// Tolerance in `exp` and `nbf`.
        leeway: Duration = Duration::from_mins(1), { range: 0..=3_600_000 };
        /// Time between two fetches of a URL. A token with an unknown `kid` causes a fetch, at
        /// most every 5 s.
        refresh: Duration = Duration::from_mins(5), { range: 1_000..=u64::MAX };
    }
}

words! {
    /// What workers are told in `x-forwarded-for` and `forwarded`.
    pub enum Forwarded {
        /// Both fields pass as the client has sent them.
        Off = "off",
        /// The address that has connected is added behind what the client has sent.
        Append = "append",
        /// The client's address, and nothing that the client has sent.
        Replace = "replace",
    }
}

table! {
    /// Which pages of other sites may call the router from a browser (CORS).
    pub struct CorsConfig in "cors." {
        /// Origins such as `https://app.example`, or `*` for all. Empty: the router says nothing,
        /// and what workers say passes.
        origins: Vec<String> = Vec::new();
        /// Methods that pages may use.
        methods: Vec<String> = ["GET", "HEAD", "POST"].map(str::to_owned).to_vec();
        /// Header fields that pages may send. Empty: those that they ask for.
        headers: Vec<String> = Vec::new();
        /// Time that browsers may remember the answer.
        max_age: Duration = Duration::from_mins(10);
        /// Pages may send cookies and client certificates.
        credentials: bool = false;
    }
}
