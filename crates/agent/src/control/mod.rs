//! The control process of a cluster: it coordinates the agents of all nodes.
//!
//! Agents dial it and report once per second. It divides the limits of origins over all of them,
//! and shows the cluster as a whole. It gives each agent a part of a dataset to fill its memory
//! with.
//!
//! # Decisions and price
//!
//! * *Its state is soft.* Agents report all that it needs. They keep
//!   [notes](messages::ClusterNotes) for its successor. So there is no database, and a restart
//!   costs two seconds.
//! * *A lease is an upper limit that ends.* After [`LEASE`], a disconnected agent reads the limit
//!   divided by the number of agents. This rate is reserved for it until a user removes the agent.
//!   The price is unused bandwidth while it is gone.
//! * *No job waits for it.* An agent without it has its last lease, or its part of the limit.
//! * *Only its own user changes it*, over a Unix socket. Agents cannot change anything. The name of
//!   a token is the name of its agents' user.

mod cluster;
mod division;
mod intervals;
mod job_control;
mod link;
mod messages;
mod node;
mod provider;
mod rosters;
mod serving;
mod state;
mod status;
mod tokens;
mod warm_part;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::AgentError;
use foreread_connection::{Address, SystemTransport, Transport, TransportListener};
use foreread_dataset::LockFile;
use foreread_host::JobRuntime;
use foreread_host::policy::CLUSTER_WORDS;
use foreread_host::policy_file::PolicyFile;
use foreread_host::provider::server_settings;
use foreread_store::Server;
use foreread_tier::{ArenaBuffers, Buffers};

pub use self::cluster::wrong_node_name;
use self::intervals::SETTLED;
pub(crate) use self::job_control::JobControl;
pub(crate) use self::link::ControlLink;
pub use self::link::{ControlTarget, ShareChoice};
use self::provider::ControlProvider;
pub use self::provider::{CONTROL_CHANGE, CONTROL_STATUS, CONTROL_STOP, ControlAnswer, ControlRequest};
use self::state::ControlState;
pub use self::status::{ControlChange, ControlStatus, NodeLease, NodeStatus};
pub use self::tokens::ClusterToken;
pub(crate) use self::warm_part::OwnAgent;
use crate::http::{HttpListeners, HttpServer};
use crate::reload::reload_regularly;
use crate::socket;

/// The settings of a control process.
#[derive(Clone, Debug)]
pub struct ControlSettings {
    /// The path of the socket of its user. Its directory is created if it does not exist.
    pub socket: PathBuf,
    /// Where agents connect, as `HOST:PORT`. Port 0 takes a free one.
    pub listen: String,
    /// The file with the tokens.
    pub tokens: PathBuf,
    /// The policy file, of which the table `cluster` counts. It need not exist.
    pub policy: PathBuf,
    /// The loopback address of its page. `None`: only by a Unix socket next to its own.
    pub http: Option<SocketAddr>,
}

/// A running control process. Dropping it ends it: agents keep their leases until they end.
#[derive(Debug)]
pub struct Control {
    state: Arc<ControlState>,
    socket: PathBuf,
    address: String,
    server: Option<Server>,
    http: HttpServer,
    _runtime: JobRuntime,
    _lock: LockFile,
}

impl Control {
    /// Starts it.
    ///
    /// # Errors
    /// If another one uses the directory, the address is in use, or a file has a mistake.
    pub fn start(settings: ControlSettings) -> Result<Self, AgentError> {
        let ControlSettings { socket, listen, tokens, policy, http } = settings;
        let lock = socket::prepare(&socket)?;
        let tokens = tokens::read_tokens(&tokens)?;
        let file = PolicyFile::with_words(policy, CLUSTER_WORDS);
        let state = Arc::new(ControlState::new(&tokens, file, SETTLED)?);
        let http = HttpListeners::bind(socket::private_directory(&socket)?, http)?;
        crate::FileLimit::current().raise(None);
        // One thread is enough for thousands of agents, and has one heap.
        let runtime = JobRuntime::new(1)?;
        let listener = runtime.handle().block_on(bind(&listen))?;
        let address = listener.address().to_string();
        runtime.handle().spawn(serving::serve(listener, Arc::clone(&state)));
        let granting = runtime.handle().spawn(serving::grant_regularly(Arc::clone(&state)));
        let stopping = Arc::clone(&state);
        runtime.handle().spawn(async move {
            // It ends by a fault only. Then agents keep their leases, and a service manager starts
            // another process.
            let _ = granting.await;
            stopping.stop();
        });
        runtime.handle().spawn(reload_regularly(Arc::clone(&state), ControlState::reload));
        let provider = Arc::new(ControlProvider { state: Arc::clone(&state), address: address.clone() });
        let buffers: Arc<dyn Buffers> = Arc::new(ArenaBuffers::default());
        let server = Server::start_at(&socket, provider, buffers, server_settings())?;
        socket::restrict(&socket)?;
        let (shown, at) = (Arc::clone(&state), address.clone());
        let http = http.serve(runtime.handle(), move || shown.status(&at));
        tracing::info!(address, socket = %socket.display(), "the control process serves");
        Ok(Self { state, socket, address, server: Some(server), http, _runtime: runtime, _lock: lock })
    }

    /// Where agents connect.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The loopback address of its page, if it has one.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http.address()
    }

    /// Whether it serves no longer: its user has had it stop, or its server has failed.
    pub fn is_stopped(&self) -> bool {
        self.state.is_stopped() || self.server.as_ref().is_none_or(Server::has_ended)
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        drop(self.server.take());
        // Clients that look for a control process should find none.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Listens where agents connect.
async fn bind(listen: &str) -> Result<Box<dyn TransportListener>, AgentError> {
    let wrong = || AgentError::Address { address: listen.to_owned() };
    let address: Address = listen.parse().map_err(|_| wrong())?;
    let Address::Tcp(..) = address else { return Err(wrong()) };
    let listening = SystemTransport.listen(&address).await;
    listening.map_err(|error| AgentError::system(format!("cannot listen on {address}"), error))
}
