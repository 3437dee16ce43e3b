//! TLS between ranks: who has no certificate of the authority's is no rank, whatever token it has.

use std::path::Path;
use std::sync::Arc;

use foreread_peer::{Address, Encrypted, Network, Settings, System, TlsFiles};
use foreread_tier_testing::conformance;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{How, Node, Shelf, read_all, read_one, samples};

/// Writes an authority and a certificate for `names` that it has signed.
pub fn files(directory: &Path, names: &[&str], name: Option<&str>) -> TlsFiles {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let root = authority.self_signed(&authority_key).unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let write = |name: &str, text: String| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    TlsFiles {
        certificate: write("rank.pem", certificate.pem()),
        key: write("rank.key", key.serialize_pem()),
        authority: write("authority.pem", root.pem()),
        name: name.map(str::to_owned),
    }
}

pub fn encrypted(files: &TlsFiles) -> Arc<dyn Network> {
    Arc::new(Encrypted::new(Arc::new(System), files).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_over_tls_is_a_tier() {
    let directory = tempfile::tempdir().unwrap();
    let network = encrypted(&files(directory.path(), &["127.0.0.1"], None));
    let known = conformance::samples(11);
    let shelf = Shelf::new(&known, |_, _| How::Now);
    let listen =
        [Address::tcp("127.0.0.1", 0), Address::local(directory.path().join("rank/0").to_string_lossy())];
    let owner = Node::new(&network, 0, &listen, Settings::default(), shelf).await;
    let asker = Node::new(&network, 1, &[], Settings::default(), Shelf::new(&[], |_, _| How::Now)).await;
    for address in owner.server.addresses() {
        let remote = asker.asker.remote(foreread_types::Rank(0), vec![address.clone()]);
        conformance::tier(&foreread_peer::PeerTier::new(vec![remote]), &known).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_no_certificate_is_no_rank_and_holds_up_none() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let network = encrypted(&files(ours.path(), &["ranks.of.a.job"], Some("ranks.of.a.job")));
    let known = samples(20, 30_000);
    let listen = [Address::tcp("127.0.0.1", 0)];
    let owner =
        Node::new(&network, 0, &listen, Settings::default(), Shelf::new(&known, |_, _| How::Now)).await;
    // One that says nothing, not even the beginning of TLS.
    let silent = System.connect(&owner.server.addresses()[0]).await.unwrap();
    // The right token, and no TLS, or certificates of another authority.
    let plain: Arc<dyn Network> = Arc::new(System);
    let others = encrypted(&files(theirs.path(), &["ranks.of.a.job"], Some("ranks.of.a.job")));
    for network in [plain, others] {
        let stranger =
            Node::new(&network, 1, &[], Settings::default(), Shelf::new(&[], |_, _| How::Now)).await;
        assert!(read_one(&owner.tier_for(&stranger), &known[0]).await.is_err());
    }
    // Certificates that are right, for another name.
    let wrong_name = TlsFiles { name: Some("other.name".into()), ..files_of(ours.path()) };
    let network_of_others = encrypted(&wrong_name);
    let stranger =
        Node::new(&network_of_others, 1, &[], Settings::default(), Shelf::new(&[], |_, _| How::Now)).await;
    assert!(read_one(&owner.tier_for(&stranger), &known[0]).await.is_err());
    let asker = Node::new(&network, 1, &[], Settings::default(), Shelf::new(&[], |_, _| How::Now)).await;
    read_all(&owner.tier_for(&asker), &known).await;
    drop(silent);
}

fn files_of(directory: &Path) -> TlsFiles {
    TlsFiles {
        certificate: directory.join("rank.pem"),
        key: directory.join("rank.key"),
        authority: directory.join("authority.pem"),
        name: None,
    }
}

#[tokio::test]
async fn nothing_that_is_sent_can_be_read_on_the_way() {
    let directory = tempfile::tempdir().unwrap();
    let network = encrypted(&files(directory.path(), &["127.0.0.1"], None));
    let mut listener = System.listen(&Address::tcp("127.0.0.1", 0)).await.unwrap();
    let mut theirs = network.listen(&Address::tcp("127.0.0.1", 0)).await.unwrap();
    // In between, somebody who passes everything on and looks at it.
    let (between, behind) = (listener.address().clone(), theirs.address().clone());
    let seen = tokio::spawn(async move {
        let mut ours = listener.accept().await.unwrap().0;
        let mut theirs = System.connect(&behind).await.unwrap();
        let mut seen = Vec::new();
        let (mut one, mut other) = ([0; 4096], [0; 4096]);
        loop {
            tokio::select! {
                read = ours.read(&mut one) => match read {
                    Ok(1..) => {
                        let count = read.unwrap();
                        seen.extend_from_slice(&one[..count]);
                        theirs.write_all(&one[..count]).await.unwrap();
                    }
                    _ => return seen,
                },
                read = theirs.read(&mut other) => {
                    let Ok(count @ 1..) = read else { return seen };
                    let _ = ours.write_all(&other[..count]).await;
                }
            }
        }
    });
    let secret = b"what nobody else is to know of";
    let read = tokio::spawn(async move {
        let mut heard = vec![0; secret.len()];
        let mut stream = theirs.accept().await.unwrap().0;
        stream.read_exact(&mut heard).await.unwrap();
        heard
    });
    let mut ours = network.connect(&between).await.unwrap();
    ours.write_all(secret).await.unwrap();
    ours.flush().await.unwrap();
    assert_eq!(read.await.unwrap(), secret);
    drop(ours);
    let seen = seen.await.unwrap();
    assert!(seen.len() > secret.len() && !seen.windows(8).any(|part| part == &secret[..8]));
}

#[test]
fn files_that_are_of_no_use_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let good = files(directory.path(), &["127.0.0.1"], None);
    let none = directory.path().join("none.pem");
    let new = |files: &TlsFiles| Encrypted::new(Arc::new(System), files).unwrap_err().to_string();
    assert!(new(&TlsFiles { certificate: none.clone(), ..good.clone() }).contains("none.pem"));
    assert!(new(&TlsFiles { key: none.clone(), ..good.clone() }).contains("none.pem"));
    std::fs::write(&none, "nothing").unwrap();
    let empty = new(&TlsFiles { authority: none, ..good.clone() });
    assert!(empty.ends_with("none.pem: no certificate in PEM form is in it"), "{empty}");
    assert!(!new(&TlsFiles { name: Some("no name".into()), ..good }).is_empty());
}
