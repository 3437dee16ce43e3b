//! Connections over TCP, encrypted, with certificates at both ends.
//!
//! Where the network between nodes is not the job's own, whoever can change packets could take over a connection after its
//! handshake, and whoever can read them sees samples. Both ends show a certificate that the job's authority has signed;
//! the token is asked for on top, so that a certificate for one job does not open another. TLS 1.3 alone: both ends are this
//! program. Unix sockets stay as they are. The price is the encryption of every byte, and that samples are copied at both
//! ends.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor, TlsConnector};

use crate::{Address, Listener, Network, Stream};

/// Files in PEM form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// This rank's certificate, and behind it those that lead to the authority's. It has to be good for servers and for
    /// clients.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The certificates of whom this end believes.
    pub authority: PathBuf,
    /// The name that all ranks' certificates bear. Where there is none, each bears the name or number by which its host is
    /// reached.
    pub name: Option<String>,
}

/// A network whose connections over TCP are encrypted.
pub struct Encrypted {
    inner: Arc<dyn Network>,
    connector: TlsConnector,
    acceptor: TlsAcceptor,
    name: Option<ServerName<'static>>,
}

impl fmt::Debug for Encrypted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encrypted").field("inner", &self.inner).finish_non_exhaustive()
    }
}

fn wrong(path: &Path, error: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = found.map_err(|error| wrong(path, error))?;
    if found.is_empty() { Err(wrong(path, "no certificate in PEM form is in it")) } else { Ok(found) }
}

impl Encrypted {
    /// `inner`, encrypted by what is in `files`. They are read now and not again.
    ///
    /// # Errors
    /// If a file cannot be read, or what is in it is of no use.
    pub fn new(inner: Arc<dyn Network>, files: &TlsFiles) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let chain = certificates(&files.certificate)?;
        let key = || PrivateKeyDer::from_pem_file(&files.key).map_err(|error| wrong(&files.key, error));
        let mut roots = RootCertStore::empty();
        for root in certificates(&files.authority)? {
            roots.add(root).map_err(|error| wrong(&files.authority, error))?;
        }
        let roots = Arc::new(roots);
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?
            .with_root_certificates(Arc::clone(&roots))
            .with_client_auth_cert(chain.clone(), key()?)
            .map_err(|error| wrong(&files.certificate, error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .build()
            .map_err(|error| wrong(&files.authority, error))?;
        let server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(io::Error::other)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key()?)
            .map_err(|error| wrong(&files.certificate, error))?;
        let name = files.name.clone().map(ServerName::try_from).transpose();
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let (connector, acceptor) =
            (TlsConnector::from(Arc::new(client)), TlsAcceptor::from(Arc::new(server)));
        Ok(Self { inner, connector, acceptor, name })
    }
}

#[async_trait]
impl Network for Encrypted {
    async fn listen(&self, address: &Address) -> io::Result<Box<dyn Listener>> {
        let listener = self.inner.listen(address).await?;
        Ok(match address {
            Address::Local(_) => listener,
            Address::Tcp(..) => Box::new(Listening { listener, acceptor: self.acceptor.clone() }),
        })
    }

    async fn connect(&self, address: &Address) -> io::Result<Stream> {
        let stream = self.inner.connect(address).await?;
        let Address::Tcp(host, _) = address else { return Ok(stream) };
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.clone())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
        };
        Ok(Box::new(self.connector.connect(name, stream).await?))
    }
}

struct Listening {
    listener: Box<dyn Listener>,
    acceptor: TlsAcceptor,
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listener.fmt(f)
    }
}

#[async_trait]
impl Listener for Listening {
    async fn accept(&mut self) -> io::Result<(Stream, String)> {
        let (stream, from) = self.listener.accept().await?;
        // Whoever connects and says nothing must not hold up the next: TLS begins when the stream is first read.
        Ok((Box::new(Lazy::Shaking(Box::new(self.acceptor.accept(stream)))), from))
    }

    fn address(&self) -> &Address {
        self.listener.address()
    }
}

/// The answerer's end, whose handshake goes on whenever it is read or written.
enum Lazy {
    Shaking(Box<Accept<Stream>>),
    Ready(Box<TlsStream<Stream>>),
    Failed,
}

impl Lazy {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut TlsStream<Stream>>>> {
        if let Self::Shaking(accept) = self {
            *self = match ready!(Pin::new(accept).poll(cx)) {
                Ok(stream) => Self::Ready(Box::new(stream)),
                Err(error) => {
                    *self = Self::Failed;
                    return Poll::Ready(Err(error));
                }
            };
        }
        Poll::Ready(match self {
            Self::Ready(stream) => Ok(Pin::new(stream)),
            _ => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

impl AsyncRead for Lazy {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?.poll_read(cx, into)
    }
}

impl AsyncWrite for Lazy {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_ready(cx))?.poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_ready(cx))?.poll_shutdown(cx)
    }
}
