//! The connections of ranks, and the handling of lost connections.

use foreread_connection::output::FrameOutput;

use super::*;

impl World {
    pub(super) fn dial(&mut self, rank: usize, to: usize) {
        let number = self.number();
        let from = self.process(rank);
        let Some(link) = self.nodes[rank].links.get_mut(&to) else { return };
        link.state = LinkState::Dialing { number };
        self.work(rank, CONNECT_TIMEOUT, Work::TimedOut { to, number });
        if self.is_cut(rank, to) || self.is_cut(to, rank) {
            return; // retransmissions come too late
        }
        let delay = self.delay;
        if self.nodes[to].alive {
            let process = self.process(to);
            self.scheduler.after(delay, Event::Work(process, Work::Accept { from, number }));
        } else {
            self.work(rank, 2 * delay, Work::TimedOut { to, number });
        }
    }

    pub(super) fn accept(&mut self, rank: usize, from: Process, number: u64) {
        if !self.is_there(from) {
            return;
        }
        let id = self.number();
        let serving = ServingEnd::new(self.nodes[rank].run, self.share);
        let conn = Conn {
            requester: from,
            owner: self.process(rank),
            pipes: Default::default(),
            requesting: None,
            serving: Some(serving),
            timers: [None, None],
        };
        self.conns.insert(id, conn);
        let delay = self.delay;
        self.scheduler.after(delay, Event::Work(from, Work::Connected { to: rank, number, conn: id }));
    }

    pub(super) fn connected(&mut self, rank: usize, to: usize, number: u64, id: u64) {
        let now = self.scheduler.now();
        let Some(link) = self.nodes[rank].links.get_mut(&to) else { return };
        if !matches!(link.state, LinkState::Dialing { number: dialing } if dialing == number) {
            return self.close(id, false);
        }
        if !self.conns.contains_key(&id) {
            // It broke while this rank was stopped.
            let why = WireError::new(WireErrorKind::Disconnected, "it was closed");
            return self.lose(rank, to, false, &why);
        }
        link.state = LinkState::Open { conn: id };
        link.machine.resume(FrameOutput::new(None), now);
        std::mem::take(&mut link.pending).into_iter().for_each(|callers| link.machine.request(callers, now));
        link.machine.sweep();
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.requesting = Some(AskingEnd::new());
        }
        self.work_soon(rank, Work::ClientTask(id));
    }

    pub(super) fn timed_out(&mut self, rank: usize, to: usize, number: u64) {
        let Some(link) = self.nodes[rank].links.get(&to) else { return };
        if matches!(link.state, LinkState::Dialing { number: dialing } if dialing == number) {
            self.lose(rank, to, false, &WireError::new(WireErrorKind::Timeout, "no answer"));
        }
    }

    /// A connection ended at the client.
    pub(super) fn ended(&mut self, rank: usize, to: usize, useful: bool, error: &WireError) {
        if useful && error.kind() == WireErrorKind::Timeout {
            self.outcome.resumed += 1;
            let number = self.number();
            let jitter = self.scheduler.between(Duration::ZERO, RECONNECT_JITTER);
            if let Some(link) = self.nodes[rank].links.get_mut(&to) {
                link.state = LinkState::Dialing { number };
            }
            return self.work(rank, jitter, Work::Dial { to });
        }
        self.lose(rank, to, useful, error);
    }

    /// All open requests to a rank fail.
    pub(super) fn lose(&mut self, rank: usize, to: usize, useful: bool, why: &WireError) {
        let now = self.scheduler.now();
        let Some(link) = self.nodes[rank].links.get_mut(&to) else { return };
        link.failures = if useful { 1 } else { link.failures + 1 };
        let wait = (BACKOFF.0 * 2u32.pow(link.failures.min(5) - 1)).min(BACKOFF.1);
        link.state = LinkState::Down { until: now + wait };
        link.machine = ClientMachine::new(Rank(to as u32), RUN);
        link.pending.clear();
        link.dropped.borrow_mut().clear();
        let error = crate::tier_error::error_of(Rank(to as u32), why);
        let mut answers = Vec::new();
        for (&request, uses) in &link.batches {
            let open = (0..).zip(uses).filter(|(_, (_, answered))| !answered);
            answers.extend(open.map(|(tag, _)| (request, tag, Err(error.clone()))));
        }
        self.answered(rank, to, answers);
    }
}
