//! The client's API: without background threads, usable from any number of threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use foreread_types::{DatasetId, SampleId, SampleKey, Tick};

use crate::address::Address;
use crate::shared_sample::SharedBytes;
use crate::wire::{MAX_CALL_NAME, MAX_CALL_PAYLOAD};
use crate::worker_connection::{CallerGuard, SendStatus, StopCheck, WorkerConnection};
use crate::{StoreError, StoreErrorKind};

/// A client's end: requests samples from the server's engine.
///
/// Several threads may use one client. Clones are the same client. A client belongs to the process
/// that connected. In a forked child every request fails ([`StoreErrorKind::Forked`]), and the
/// child connects on its own.
#[derive(Clone, Debug)]
pub struct Client {
    connection: Arc<WorkerConnection>,
}

impl Client {
    /// Connects to the server at `address` ([`Server::address`](crate::Server::address)).
    ///
    /// # Errors
    /// * [`StoreErrorKind::Gone`] at once if no server listens there.
    /// * [`StoreErrorKind::Refused`] if the server belongs to another user or the secret is wrong.
    /// * [`StoreErrorKind::Invalid`] if the address is malformed.
    pub fn connect(address: &str) -> Result<Self, StoreError> {
        Self::connect_with(address, &mut || false)
    }

    /// The same, calling `stop` about every 100 ms. If it returns true, the wait ends.
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`StoreErrorKind::Interrupted`].
    pub fn connect_with(address: &str, stop: &mut dyn FnMut() -> bool) -> Result<Self, StoreError> {
        let connection = WorkerConnection::connect(&Address::parse(address)?, &mut StopCheck::new(stop))?;
        Ok(Self { connection: Arc::new(connection) })
    }

    /// Gets samples. The result has one entry for each of `ids`, in their order, and each fails
    /// alone. Blocks until all have arrived, or until the main process ends.
    ///
    /// The server handles some hundreds of requests at once, so request many samples together where
    /// many are needed.
    pub fn get(&self, ids: &[SampleId]) -> Vec<Result<SharedBytes, StoreError>> {
        self.get_with(ids, &mut || false)
    }

    /// The same, calling `stop` about every 100 ms. If it returns true, missing samples are errors
    /// ([`StoreErrorKind::Interrupted`]), and the others stay valid.
    pub fn get_with(
        &self,
        ids: &[SampleId],
        stop: &mut dyn FnMut() -> bool,
    ) -> Vec<Result<SharedBytes, StoreError>> {
        let mut got: Vec<Option<Result<SharedBytes, StoreError>>> = Vec::new();
        got.resize_with(ids.len(), || None);
        let ended = self.collect(ids, &mut got, &mut StopCheck::new(stop));
        let missing = || ended.clone().err().unwrap_or_else(StoreError::gone);
        got.into_iter().map(|one| one.unwrap_or_else(|| Err(missing()))).collect()
    }

    fn collect(
        &self,
        ids: &[SampleId],
        got: &mut [Option<Result<SharedBytes, StoreError>>],
        stop_check: &mut StopCheck<'_>,
    ) -> Result<(), StoreError> {
        self.own()?;
        let caller = CallerGuard::new(&self.connection);
        let samples: Vec<_> = ids.iter().map(|id| (SampleKey::new(DatasetId(0), *id), Tick(0))).collect();
        let mut requested = 0;
        let mut missing: HashMap<u32, usize> = HashMap::new();
        let mut progress = Ok(());
        while progress.is_ok() && (requested < ids.len() || !missing.is_empty()) {
            progress = self.send_requests(&caller, &samples, &mut requested, &mut missing, stop_check);
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
        samples: &[(SampleKey, Tick)],
        requested: &mut usize,
        missing: &mut HashMap<u32, usize>,
        stop_check: &mut StopCheck<'_>,
    ) -> Result<(), StoreError> {
        let mut to_send = false;
        if *requested < samples.len() {
            match self.connection.send_requests(caller.number, &samples[*requested..])? {
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
    /// [`StoreErrorKind::Sample`] with that layer's error. [`StoreErrorKind::Invalid`] if the name
    /// is longer than 256 bytes or the payload longer than 65,270. Errors of the server as in
    /// [`get`](Self::get).
    pub fn call(&self, name: &str, payload: &[u8]) -> Result<Vec<u8>, StoreError> {
        self.call_with(name, payload, &mut || false)
    }

    /// The same, calling `stop` about every 100 ms. If it returns true, the wait ends.
    ///
    /// # Errors
    /// As [`call`](Self::call), and [`StoreErrorKind::Interrupted`].
    pub fn call_with(
        &self,
        name: &str,
        payload: &[u8],
        stop: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<u8>, StoreError> {
        self.own()?;
        if name.len() > MAX_CALL_NAME || payload.len() > MAX_CALL_PAYLOAD {
            let detail = format!(
                "a call with a name of {} and a payload of {} bytes: at most {MAX_CALL_NAME} and \
                 {MAX_CALL_PAYLOAD} are allowed",
                name.len(),
                payload.len()
            );
            return Err(StoreError::new(StoreErrorKind::Invalid, detail));
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

    /// Requests without waiting. See [`RequestStream`].
    pub fn stream(&self) -> RequestStream {
        RequestStream { caller: CallerGuard::new(&self.connection) }
    }

    /// Whether the server's process is known to run. False also where it cannot be observed, such
    /// as from another container.
    pub fn is_server_running(&self) -> bool {
        self.connection.is_server_running()
    }

    /// Whether this process made the connection, so is not a forked child.
    pub fn is_own(&self) -> bool {
        self.connection.is_own()
    }

    fn own(&self) -> Result<(), StoreError> {
        if self.is_own() {
            return Ok(());
        }
        let detail = "this connection belongs to the parent process: a forked child must connect on its own";
        Err(StoreError::new(StoreErrorKind::Forked, detail))
    }
}

/// Requests that one thread sends and another one receives, for programs that never wait for a
/// single sample.
#[derive(Debug)]
pub struct RequestStream {
    caller: CallerGuard,
}

/// A sample with the number of its request.
pub type Received = (u32, Result<SharedBytes, StoreError>);

impl RequestStream {
    /// Requests samples, each with the position at which it is used, and returns the numbers of the
    /// requests. These are fewer than the samples if too many are in flight or the socket is full.
    /// Never blocks.
    ///
    /// # Errors
    /// [`StoreErrorKind::Gone`] if the server has ended. Samples that were received before are
    /// still returned by [`receive`](Self::receive).
    pub fn send(&self, samples: &[(SampleKey, Tick)]) -> Result<Vec<u32>, StoreError> {
        match self.caller.connection.send_requests(self.caller.number, samples)? {
            SendStatus::Sent(numbers) => Ok(numbers),
            SendStatus::LimitReached | SendStatus::WouldBlock => Ok(Vec::new()),
        }
    }

    /// The samples that have arrived. Blocks until there is one, or for about 100 ms.
    ///
    /// # Errors
    /// If the server has ended, and all samples that had arrived before were returned.
    pub fn receive(&self) -> Result<Vec<Received>, StoreError> {
        let connection = &self.caller.connection;
        let waited = connection.wait(self.caller.number, false, &mut StopCheck::new(&mut || false));
        let received = connection.take(self.caller.number);
        if received.is_empty() {
            waited?;
        }
        let sample = |(number, received): (u32, Result<_, _>)| {
            (number, received.map(|place| SharedBytes::new(Arc::clone(connection), place)))
        };
        Ok(received.into_iter().map(sample).collect())
    }

    /// Requests a sign of life, which [`heard`](Self::heard) notes. Never blocks.
    ///
    /// # Errors
    /// If the server has ended.
    pub fn ping(&self, number: u32) -> Result<(), StoreError> {
        self.caller.connection.ping(number)
    }

    /// When the last message of the server arrived.
    pub fn heard(&self) -> Option<Instant> {
        self.caller.connection.heard()
    }
}
