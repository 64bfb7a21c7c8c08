//! Encrypted connections to a PostgreSQL target: what `sslmode` and `sslrootcert` mean, as libpq defines them.
//!
//! | sslmode | encrypted | the server's certificate |
//! | --- | --- | --- |
//! | `disable`, `allow` | no | |
//! | `prefer` (default) | if the server can | not checked |
//! | `require` | yes | not checked; as `verify-ca` if `sslrootcert` is given |
//! | `verify-ca` | yes | must be signed by a known authority |
//! | `verify-full` | yes | and be made out to the host's name |
//!
//! `sslrootcert` is a file of authorities in PEM; without it, or with `system`, the machine's are used. A Unix socket is never encrypted.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::{Connect, TlsConnector, client};

use crate::{Result, RuntimeError};

/// What is known of the server's certificate before a word is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    Anybody,
    Authority,
    AuthorityAndName,
}

/// How a sink's connections are encrypted.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    /// Whether they are.
    pub(super) mode: SslMode,
    config: Arc<ClientConfig>,
}

impl Tls {
    /// Of a sink's options.
    ///
    /// # Errors
    /// 22023 for a mode that does not exist; 58P01 if the authorities cannot be read.
    pub(super) fn of(options: &BTreeMap<String, String>) -> Result<Self> {
        let authorities = options.get("sslrootcert").map(String::as_str);
        let (mode, trust) = match options.get("sslmode").map_or("prefer", String::as_str) {
            "disable" | "allow" => (SslMode::Disable, Trust::Anybody),
            "prefer" => (SslMode::Prefer, Trust::Anybody),
            "require" if authorities.is_some() => (SslMode::Require, Trust::Authority),
            "require" => (SslMode::Require, Trust::Anybody),
            "verify-ca" => (SslMode::Require, Trust::Authority),
            "verify-full" => (SslMode::Require, Trust::AuthorityAndName),
            other => return Err(RuntimeError::user("22023", format!("unknown sslmode \"{other}\""))),
        };
        Ok(Self {
            mode,
            config: Arc::new(client_config(trust, authorities)?),
        })
    }
}

fn client_config(trust: Trust, authorities: Option<&str>) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let bad = |e: &dyn std::fmt::Display| RuntimeError::internal(format!("a TLS client cannot be set up: {e}"));
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anybody => Arc::new(Unchecked(Arc::clone(&provider))),
        Trust::Authority | Trust::AuthorityAndName => {
            let roots = Arc::new(roots(authorities)?);
            let checked = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider))
                .build()
                .map_err(|e| bad(&e))?;
            if trust == Trust::Authority {
                Arc::new(AnyName(checked))
            } else {
                checked
            }
        }
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| bad(&e))?;
    Ok(builder
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth())
}

fn roots(authorities: Option<&str>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let path = match authorities {
        None | Some("system") => {
            let found = rustls_native_certs::load_native_certs();
            let (added, _) = roots.add_parsable_certificates(found.certs);
            if added == 0 {
                return Err(RuntimeError::User {
                    code: "58P01",
                    message: "this machine knows no certificate authorities".to_owned(),
                    hint: Some("Name a file of them with sslrootcert.".to_owned()),
                });
            }
            return Ok(roots);
        }
        Some(path) => path,
    };
    let unreadable = |e: &dyn std::fmt::Display| RuntimeError::User {
        code: "58P01",
        message: format!("sslrootcert \"{path}\" cannot be read: {e}"),
        hint: Some("It is a file of certificates in PEM form, on the server's machine.".to_owned()),
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| unreadable(&e))? {
        let certificate = certificate.map_err(|e| unreadable(&e))?;
        roots.add(certificate).map_err(|e| unreadable(&e))?;
    }
    if roots.is_empty() {
        return Err(unreadable(&"there is no certificate in it"));
    }
    Ok(roots)
}

/// Takes every certificate: the connection is encrypted, nobody knows with whom.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Takes a certificate of a known authority, whatever name it is made out to. The chain is checked before the name is.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let checked = self
            .0
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match checked {
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// A connection that is about to be encrypted.
pub(super) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl<S> MakeTlsConnect<S> for Tls
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, Self::Error> {
        // A Unix socket has no name, and is not encrypted.
        let domain = if domain.is_empty() { "localhost" } else { domain };
        Ok(Handshake {
            connector: TlsConnector::from(Arc::clone(&self.config)),
            name: ServerName::try_from(domain.to_owned())?,
        })
    }
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Shaking<S>;

    fn connect(self, stream: S) -> Shaking<S> {
        Shaking(self.connector.connect(self.name, stream))
    }
}

/// The handshake.
pub(super) struct Shaking<S>(Connect<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Shaking<S> {
    type Output = io::Result<Encrypted<S>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map_ok(Encrypted)
    }
}

/// An encrypted stream.
pub(super) struct Encrypted<S>(client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
