//! A certificate authority of the lab's own, which signs a certificate for whatever name a client asks for.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    PublicKeyData,
};
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    provider: Arc<CryptoProvider>,
    /// By name; "" is for clients that ask for none, because the URL has an address.
    issued: Mutex<HashMap<String, Arc<CertifiedKey>>>,
    addresses: Vec<IpAddr>,
}

impl Authority {
    /// `addresses` are those that `https://ADDRESS/` is to work with.
    pub fn new(addresses: &[IpAddr]) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "onioncell lab CA");
        Ok(Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate()?)?,
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            issued: Mutex::default(),
            addresses: addresses.to_vec(),
        })
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// The certificate as DER in base64, as Chromium's CACertificates policy takes it.
    pub fn der_base64(&self) -> String {
        base64(self.issuer.der())
    }

    /// For Chromium's --ignore-certificate-errors-spki-list: base64 of the SHA-256 of the public key info.
    pub fn spki_hash(&self) -> String {
        let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
        let Some(tls13) = suite.tls13() else {
            return String::new();
        };
        base64(
            tls13
                .common
                .hash_provider
                .hash(&self.issuer.key().subject_public_key_info())
                .as_ref(),
        )
    }

    pub fn server_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>> {
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    fn issue(&self, name: &str) -> Result<CertifiedKey> {
        let names = match name {
            "" => self.addresses.iter().map(ToString::to_string).collect(),
            name => vec![name.to_owned()],
        };
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(
            DnType::CommonName,
            if name.is_empty() { "lab" } else { name },
        );
        params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let key = self
            .provider
            .key_provider
            .load_private_key(key)
            .context("cannot load the site's key")?;
        // The CA's certificate goes along, so that a list of key hashes with the CA's in it accepts the chain.
        Ok(CertifiedKey::new(
            vec![leaf.der().clone(), self.issuer.der().clone()],
            key,
        ))
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

impl ResolvesServerCert for Authority {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().unwrap_or_default().to_ascii_lowercase();
        let mut issued = self.issued.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = issued.get(&name) {
            return Some(Arc::clone(known));
        }
        let new = Arc::new(self.issue(&name).ok()?);
        issued.insert(name, Arc::clone(&new));
        Some(new)
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let value = group
            .iter()
            .fold(0_u32, |value, byte| value << 8 | u32::from(*byte))
            << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(value >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= group.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    text
}
