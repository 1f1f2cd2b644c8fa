//! The TLS side of the test's site: a certificate of the moment, which also is a vector. It names
//! places to fetch its issuer, its status and its revocation list from.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CrlDistributionPoint, CustomExtension,
    DnType, IsCa, KeyPair, PublicKeyData as _,
};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::TlsAcceptor;

use super::aim::Aim;
use super::vectors;

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot make the site's certificate: {0}")]
    Make(#[from] rcgen::Error),
    #[error("cannot use the site's certificate: {0}")]
    Use(#[from] rustls::Error),
}

/// Object identifiers of RFC 5280, section 4.2.2.1.
const AUTHORITY_INFORMATION: &[u64] = &[1, 3, 6, 1, 5, 5, 7, 1, 1];
const OCSP: [u8; 10] = [0x06, 8, 0x2b, 6, 1, 5, 5, 7, 48, 1];
const CA_ISSUERS: [u8; 10] = [0x06, 8, 0x2b, 6, 1, 5, 5, 7, 48, 2];

/// The site's identity for one run. A browser must trust it, or the page gets no service worker.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) acceptor: TlsAcceptor,
    /// The same site with a certificate that nobody has a reason to trust: a browser looks for its
    /// issuer and its status where the certificate says.
    pub(super) untrusted: TlsAcceptor,
    /// The authority's certificate (RFC 7468).
    pub(super) authority: String,
    /// For --ignore-certificate-errors-spki-list.
    pub(super) key_hash: String,
}

/// Makes the identity of `domain`.
pub(super) fn identity(domain: &str) -> Result<Identity, CertificateError> {
    let (acceptor, authority, key_hash) = issue(domain)?;
    let (untrusted, ..) = issue(domain)?;
    Ok(Identity {
        acceptor,
        untrusted,
        authority,
        key_hash,
    })
}

fn issue(domain: &str) -> Result<(TlsAcceptor, String, String), CertificateError> {
    let base = aim(domain).fill("http://$NAME");
    let mut issuer = CertificateParams::default();
    issuer
        .distinguished_name
        .push(DnType::CommonName, "onioncell leak test");
    issuer.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(issuer, KeyPair::generate()?)?;

    let key = KeyPair::generate()?;
    let mut leaf = CertificateParams::new(vec![domain.to_owned()])?;
    leaf.crl_distribution_points = vec![CrlDistributionPoint {
        uris: vec![format!("{base}/list.crl")],
    }];
    leaf.custom_extensions = vec![CustomExtension::from_oid_content(
        AUTHORITY_INFORMATION,
        authority_information(&base),
    )];
    leaf.use_authority_key_identifier_extension = true;
    let certificate = leaf.signed_by(&key, &issuer)?;
    let key_hash = BASE64.encode(sha256(&key.subject_public_key_info()));

    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    let authority = format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        BASE64.encode(issuer.der())
    );
    Ok((TlsAcceptor::from(Arc::new(config)), authority, key_hash))
}

/// Where the vector of the untrusted certificate aims.
pub(super) fn aim(domain: &str) -> Aim<'_> {
    Aim {
        number: vectors::number("certificate-fetch").unwrap_or_default(),
        domain,
    }
}

fn sha256(bytes: &[u8]) -> Vec<u8> {
    let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let hash = suite.tls13().map(|suite| suite.common.hash_provider);
    hash.map_or_else(Vec::new, |hash| hash.hash(bytes).as_ref().to_vec())
}

fn authority_information(base: &str) -> Vec<u8> {
    const SEQUENCE: u8 = 0x30;
    const URI: u8 = 0x86;
    let access = |method: &[u8], file: &str| {
        let location = der(URI, format!("{base}/{file}").as_bytes());
        der(SEQUENCE, &[method, &location].concat())
    };
    der(
        SEQUENCE,
        &[access(&CA_ISSUERS, "issuer.crt"), access(&OCSP, "ocsp")].concat(),
    )
}

/// One DER element (X.690, section 8.1) of less than 64 KiB.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let [.., high, low] = content.len().to_be_bytes();
    let mut element = match content.len() {
        0..128 => vec![tag, low],
        128..256 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    element.extend(content);
    element
}
