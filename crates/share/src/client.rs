//! What a worker uses: blocking, without threads, from as many threads as there are.

use std::collections::HashMap;
use std::sync::Arc;

use foreread_types::SampleId;

use crate::address::Address;
use crate::shared_sample::Held;
use crate::wire::{MAX_CALL_NAME, MAX_CALL_PAYLOAD};
use crate::worker_connection::{CallerGuard, SendStatus, StopCheck, WorkerConnection};
use crate::{ShareError, ShareErrorKind};

/// A worker's end: asks the main process's engine for samples.
///
/// Several threads may use one client. Clones are the same client. It is of the process that connected: in a forked child
/// every request is an error ([`ShareErrorKind::Forked`]), and the child connects for itself.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<WorkerConnection>,
}

impl Client {
    /// Connects to the server at `address` ([`Server::address`](crate::Server::address)).
    ///
    /// # Errors
    /// [`ShareErrorKind::Gone`] where nobody serves there any more, at once; [`ShareErrorKind::Refused`] where the server
    /// is another user's or the secret in the address is not its own; [`ShareErrorKind::Invalid`] where the address is none.
    pub fn connect(address: &str) -> Result<Self, ShareError> {
        Self::connect_with(address, &mut || false)
    }

    /// The same; `stop` is asked about every 100 ms whether to give up.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`ShareErrorKind::Interrupted`].
    pub fn connect_with(address: &str, stop: &mut dyn FnMut() -> bool) -> Result<Self, ShareError> {
        let connection = WorkerConnection::connect(&Address::parse(address)?, &mut StopCheck::new(stop))?;
        Ok(Self { connection: Arc::new(connection) })
    }

    /// Gets samples, each its own way: the answer has one entry for each of `ids`, in their order, and what fails for one
    /// does not harm the others. Blocks as long as it takes, and ends at once when the main process does.
    ///
    /// All are asked for at once, as far as the server has them under way (some hundreds); ask for many together where
    /// many are needed. What is larger than the shared memory, or finds no room there, comes through the socket.
    pub fn get(&self, ids: &[SampleId]) -> Vec<Result<Held, ShareError>> {
        self.get_with(ids, &mut || false)
    }

    /// The same; `stop` is asked about every 100 ms whether to give up. What has not come then is an error
    /// ([`ShareErrorKind::Interrupted`]), and what came stays.
    pub fn get_with(
        &self,
        ids: &[SampleId],
        stop: &mut dyn FnMut() -> bool,
    ) -> Vec<Result<Held, ShareError>> {
        let mut got: Vec<Option<Result<Held, ShareError>>> = Vec::new();
        got.resize_with(ids.len(), || None);
        let ended = self.collect(ids, &mut got, &mut StopCheck::new(stop));
        let missing = || ended.clone().err().unwrap_or_else(ShareError::gone);
        got.into_iter().map(|one| one.unwrap_or_else(|| Err(missing()))).collect()
    }

    fn collect(
        &self,
        ids: &[SampleId],
        got: &mut [Option<Result<Held, ShareError>>],
        stop_check: &mut StopCheck<'_>,
    ) -> Result<(), ShareError> {
        self.own()?;
        let caller = CallerGuard::new(&self.connection);
        let mut asked = 0;
        let mut missing: HashMap<u32, usize> = HashMap::new();
        let mut going = Ok(());
        while going.is_ok() && (asked < ids.len() || !missing.is_empty()) {
            going = self.ask(&caller, ids, &mut asked, &mut missing, stop_check);
            // Also where that was the end: what came before it is right.
            for (tag, came) in self.connection.take(caller.number) {
                if let Some(at) = missing.remove(&tag) {
                    got[at] = Some(came.map(|place| Held::new(Arc::clone(&self.connection), place)));
                }
            }
        }
        if missing.is_empty() && asked == ids.len() { Ok(()) } else { going }
    }

    /// Asks for what can be asked for, and waits for something to come.
    fn ask(
        &self,
        caller: &CallerGuard,
        ids: &[SampleId],
        asked: &mut usize,
        missing: &mut HashMap<u32, usize>,
        stop_check: &mut StopCheck<'_>,
    ) -> Result<(), ShareError> {
        let mut to_send = false;
        if *asked < ids.len() {
            match self.connection.ask(caller.number, &ids[*asked..])? {
                SendStatus::Sent(tags) => {
                    for tag in tags {
                        missing.insert(tag, *asked);
                        *asked += 1;
                    }
                }
                SendStatus::LimitReached => {}
                SendStatus::WouldBlock => to_send = true,
            }
        }
        self.connection.wait(caller.number, to_send, stop_check)
    }

    /// Asks the layer above the server something: a name and bytes, answered by bytes.
    ///
    /// # Errors
    /// [`ShareErrorKind::Sample`] with what that layer says; [`ShareErrorKind::Invalid`] where the name is
    /// longer than 256 bytes or the payload than 65,273; what [`get`](Self::get) says of the server. The answer may have
    /// any length.
    pub fn call(&self, name: &str, payload: &[u8]) -> Result<Vec<u8>, ShareError> {
        self.call_with(name, payload, &mut || false)
    }

    /// The same; `stop` is asked about every 100 ms whether to give up.
    ///
    /// # Errors
    /// As [`call`](Self::call), and [`ShareErrorKind::Interrupted`].
    pub fn call_with(
        &self,
        name: &str,
        payload: &[u8],
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u8>, ShareError> {
        self.own()?;
        if name.len() > MAX_CALL_NAME || payload.len() > MAX_CALL_PAYLOAD {
            let detail = format!(
                "a call with a name of {} and a payload of {} bytes: {MAX_CALL_NAME} and {MAX_CALL_PAYLOAD} may be sent at once",
                name.len(),
                payload.len()
            );
            return Err(ShareError::new(ShareErrorKind::Invalid, detail));
        }
        let stop_check = &mut StopCheck::new(stop);
        let caller = CallerGuard::new(&self.connection);
        loop {
            match self.connection.call(caller.number, name, payload)? {
                SendStatus::Sent(()) => break,
                SendStatus::LimitReached => self.connection.wait(caller.number, false, stop_check)?,
                SendStatus::WouldBlock => self.connection.wait(caller.number, true, stop_check)?,
            }
        }
        loop {
            self.connection.wait(caller.number, false, stop_check)?;
            if let Some((_, came)) = self.connection.take(caller.number).pop() {
                return came.map(|place| Held::new(Arc::clone(&self.connection), place).as_ref().to_vec());
            }
        }
    }

    /// Whether this is the process that connected, and not one that was forked from it.
    pub fn is_own(&self) -> bool {
        self.connection.is_own()
    }

    fn own(&self) -> Result<(), ShareError> {
        if self.is_own() {
            return Ok(());
        }
        let detail = "this connection is the parent process's: a forked child connects for itself";
        Err(ShareError::new(ShareErrorKind::Forked, detail))
    }
}
