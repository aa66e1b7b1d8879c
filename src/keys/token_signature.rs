//! Verifies token signatures with `ring`. `jsonwebtoken` needs a provider for the whole process.
//! This provider neither signs nor supports shared secrets.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature as by_ring;
use signature::Verifier;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(unsupported()),
    verifier_factory: |algorithm, key| {
        let verifier = KeyVerifier { algorithm: *algorithm, key: key.clone() };
        Ok(Box::new(verifier))
    },
    key_utils: KeyUtils {
        rsa_pub_components_from_private_key: |_| Err(unsupported()),
        rsa_pub_components_from_public_key: |_| Err(unsupported()),
        ec_pub_components_from_private_key: |_, _| Err(unsupported()),
        ed_pub_components_from_private_key: |_, _| Err(unsupported()),
        compute_digest: |_, _| Err(unsupported()),
    },
};

/// Must run before the first token is decoded. Further calls have no effect.
pub(super) fn install() {
    let _ = PROVIDER.install_default();
}

fn unsupported() -> Error {
    ErrorKind::UnsupportedAlgorithm.into()
}

struct KeyVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for KeyVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for KeyVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let verified = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let parameters = rsa(self.algorithm).ok_or_else(signature::Error::new)?;
                by_ring::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            DecodingKeyKind::SecretOrDer(point) => {
                let curve = curve(self.algorithm).ok_or_else(signature::Error::new)?;
                by_ring::UnparsedPublicKey::new(curve, point).verify(message, signature)
            }
        };
        verified.map_err(|_| signature::Error::new())
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static by_ring::RsaParameters> {
    Some(match algorithm {
        Algorithm::RS256 => &by_ring::RSA_PKCS1_2048_8192_SHA256,
        Algorithm::RS384 => &by_ring::RSA_PKCS1_2048_8192_SHA384,
        Algorithm::RS512 => &by_ring::RSA_PKCS1_2048_8192_SHA512,
        Algorithm::PS256 => &by_ring::RSA_PSS_2048_8192_SHA256,
        Algorithm::PS384 => &by_ring::RSA_PSS_2048_8192_SHA384,
        Algorithm::PS512 => &by_ring::RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn curve(algorithm: Algorithm) -> Option<&'static dyn by_ring::VerificationAlgorithm> {
    Some(match algorithm {
        Algorithm::ES256 => &by_ring::ECDSA_P256_SHA256_FIXED,
        Algorithm::ES384 => &by_ring::ECDSA_P384_SHA384_FIXED,
        Algorithm::EdDSA => &by_ring::ED25519,
        _ => return None,
    })
}
