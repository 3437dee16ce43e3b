//! The worker's API: blocking, without background threads, usable from any number of threads.

use std::collections::HashMap;
use std::sync::Arc;

use foreread_types::SampleId;

use crate::address::Address;
use crate::shared_sample::SharedBytes;
use crate::wire::{MAX_CALL_NAME, MAX_CALL_PAYLOAD};
use crate::worker_connection::{CallerGuard, SendStatus, StopCheck, WorkerConnection};
use crate::{ShareError, ShareErrorKind};

/// A worker's end: requests samples from the main process's engine.
///
/// Several threads may use one client. Clones are the same client. A client belongs to the process
/// that connected. In a forked child every request fails ([`ShareErrorKind::Forked`]), and the
/// child connects on its own.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<WorkerConnection>,
}

impl Client {
    /// Connects to the server at `address` ([`Server::address`](crate::Server::address)).
    ///
    /// # Errors
    /// * [`ShareErrorKind::Gone`] at once if no server listens there.
    /// * [`ShareErrorKind::Refused`] if the server belongs to another user or the secret is wrong.
    /// * [`ShareErrorKind::Invalid`] if the address is malformed.
    pub fn connect(address: &str) -> Result<Self, ShareError> {
        Self::connect_with(address, &mut || false)
    }

    /// The same, calling `stop` about every 100 ms. If it returns true, the wait ends.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`ShareErrorKind::Interrupted`].
    pub fn connect_with(address: &str, stop: &mut dyn FnMut() -> bool) -> Result<Self, ShareError> {
        let connection = WorkerConnection::connect(&Address::parse(address)?, &mut StopCheck::new(stop))?;
        Ok(Self { connection: Arc::new(connection) })
    }

    /// Gets samples. The result has one entry for each of `ids`, in their order, and each fails
    /// alone. Blocks until all have arrived, or until the main process ends.
    ///
    /// The server handles some hundreds of requests at once, so request many samples together where
    /// many are needed. A sample that finds no room in the shared memory arrives through the
    /// socket.
    pub fn get(&self, ids: &[SampleId]) -> Vec<Result<SharedBytes, ShareError>> {
        self.get_with(ids, &mut || false)
    }

    /// The same, calling `stop` about every 100 ms. If it returns true, missing samples are errors
    /// ([`ShareErrorKind::Interrupted`]), and the others stay valid.
    pub fn get_with(
        &self,
        ids: &[SampleId],
        stop: &mut dyn FnMut() -> bool,
    ) -> Vec<Result<SharedBytes, ShareError>> {
        let mut got: Vec<Option<Result<SharedBytes, ShareError>>> = Vec::new();
        got.resize_with(ids.len(), || None);
        let ended = self.collect(ids, &mut got, &mut StopCheck::new(stop));
        let missing = || ended.clone().err().unwrap_or_else(ShareError::gone);
        got.into_iter().map(|one| one.unwrap_or_else(|| Err(missing()))).collect()
    }

    fn collect(
        &self,
        ids: &[SampleId],
        got: &mut [Option<Result<SharedBytes, ShareError>>],
        stop_check: &mut StopCheck<'_>,
    ) -> Result<(), ShareError> {
        self.own()?;
        let caller = CallerGuard::new(&self.connection);
        let mut requested = 0;
        let mut missing: HashMap<u32, usize> = HashMap::new();
        let mut progress = Ok(());
        while progress.is_ok() && (requested < ids.len() || !missing.is_empty()) {
            progress = self.send_requests(&caller, ids, &mut requested, &mut missing, stop_check);
            // Also after an error, because earlier results are valid.
            for (tag, received) in self.connection.take(caller.number) {
                if let Some(at) = missing.remove(&tag) {
                    got[at] =
                        Some(received.map(|place| SharedBytes::new(Arc::clone(&self.connection), place)));
                }
            }
        }
        if missing.is_empty() && requested == ids.len() { Ok(()) } else { progress }
    }

    /// Sends as many requests as allowed, and waits for a result.
    fn send_requests(
        &self,
        caller: &CallerGuard,
        ids: &[SampleId],
        requested: &mut usize,
        missing: &mut HashMap<u32, usize>,
        stop_check: &mut StopCheck<'_>,
    ) -> Result<(), ShareError> {
        let mut to_send = false;
        if *requested < ids.len() {
            match self.connection.send_requests(caller.number, &ids[*requested..])? {
                SendStatus::Sent(tags) => {
                    for tag in tags {
                        missing.insert(tag, *requested);
                        *requested += 1;
                    }
                }
                SendStatus::LimitReached => {}
                SendStatus::WouldBlock => to_send = true,
            }
        }
        self.connection.wait(caller.number, to_send, stop_check)
    }

    /// Calls the layer above the server: a name and bytes, answered by bytes of any length.
    ///
    /// # Errors
    /// [`ShareErrorKind::Sample`] with that layer's error. [`ShareErrorKind::Invalid`] if the name
    /// is longer than 256 bytes or the payload longer than 65,273. Errors of the server as in
    /// [`get`](Self::get).
    pub fn call(&self, name: &str, payload: &[u8]) -> Result<Vec<u8>, ShareError> {
        self.call_with(name, payload, &mut || false)
    }

    /// The same, calling `stop` about every 100 ms. If it returns true, the wait ends.
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
                "a call with a name of {} and a payload of {} bytes: at most {MAX_CALL_NAME} and \
                 {MAX_CALL_PAYLOAD} are allowed",
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
            if let Some((_, received)) = self.connection.take(caller.number).pop() {
                return received
                    .map(|place| SharedBytes::new(Arc::clone(&self.connection), place).as_ref().to_vec());
            }
        }
    }

    /// Whether this process made the connection, so is not a forked child.
    pub fn is_own(&self) -> bool {
        self.connection.is_own()
    }

    fn own(&self) -> Result<(), ShareError> {
        if self.is_own() {
            return Ok(());
        }
        let detail = "this connection belongs to the parent process: a forked child must connect on its own";
        Err(ShareError::new(ShareErrorKind::Forked, detail))
    }
}
