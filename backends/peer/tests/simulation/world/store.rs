//! A small model of a rank's store and its trainer.

use super::*;

impl World {
    pub(super) fn answered(
        &mut self,
        rank: usize,
        to: usize,
        answers: Vec<(u64, u32, Result<Bytes, TierError>)>,
    ) {
        let now = self.scheduler.now();
        for (request, tag, result) in answers {
            let node = &mut self.nodes[rank];
            let Some(link) = node.links.get_mut(&to) else { return };
            let known = link.batches.get_mut(&request).and_then(|uses| uses.get_mut(tag as usize));
            let Some((used, answered)) = known else { panic!("an answer to nothing") };
            let used = *used;
            assert!(!std::mem::replace(answered, true), "answered twice");
            if let Ok(bytes) = &result {
                assert_eq!(*bytes, content(node.order[used]), "wrong bytes");
            }
            if link.complete(request) {
                link.sign(result.is_ok() || result.as_ref().is_err_and(|error| !error.is_retryable()), now);
            }
            let was = node.uses.get(&used).copied();
            self.scheduler.note(format_args!(
                "{rank}: use {used}: {:?}",
                result.as_ref().map(Bytes::len).map_err(TierError::kind)
            ));
            match (was, result.is_ok()) {
                (Some(Use::Requested), true) => {
                    self.nodes[rank].uses.insert(used, Use::Ready);
                    self.work_soon(rank, Work::Train);
                }
                (Some(Use::Requested), false) => {
                    self.outcome.failed += 1;
                    self.nodes[rank].uses.insert(used, Use::Reading);
                    self.read_from_origin(rank, used);
                }
                _ => {}
            }
        }
    }

    pub(super) fn send_request(&mut self, rank: usize, to: usize, uses: Vec<usize>) {
        let now = self.scheduler.now();
        let requested = uses.len() as u64;
        let node = &mut self.nodes[rank];
        let Some(link) = node.links.get_mut(&to) else { return };
        let (mut passed, mut refused) = (uses, Vec::new());
        match link.breaker.2 {
            Some(until) if now < until => std::mem::swap(&mut passed, &mut refused),
            Some(_) => {
                // One probe. Nothing else passes until it is answered.
                refused = passed.split_off(1);
                link.breaker.2 = Some(Duration::MAX);
                link.breaker.3 += 1;
            }
            None => {}
        }
        let down = matches!(link.state, LinkState::Down { until } if now < until);
        let mut dials = false;
        if !passed.is_empty() {
            self.outcome.requested += requested;
            link.requests += 1;
            let request = link.requests;
            let (answers, dropped) = (Rc::clone(&link.answers), Rc::clone(&link.dropped));
            let caller = |(tag, used): (u32, &usize)| {
                let sample = node.order[*used];
                let sample =
                    RequestedSample { key: key(sample), due: Tick(*used as u64), length: length(sample) };
                let (answers, dropped) = (Rc::clone(&answers), Rc::clone(&dropped));
                Caller { request, tag, sample, answers, dropped }
            };
            let callers: Vec<Caller> = (0..).zip(&passed).map(caller).collect();
            link.epochs.insert(request, link.breaker.3);
            link.batches.insert(request, passed.iter().map(|used| (*used, false)).collect());
            match link.state {
                LinkState::Open { conn } => {
                    link.machine.request(callers, now);
                    self.work_soon(rank, Work::ClientTask(conn));
                }
                LinkState::Dialing { .. } => link.pending.push(callers),
                LinkState::Down { .. } if down => {
                    let error = TierError::new(ErrorKind::Transient, "peer");
                    let tags = 0..passed.len() as u32;
                    let answers = tags.map(|tag| (request, tag, Err(error.clone()))).collect();
                    self.answered(rank, to, answers);
                }
                LinkState::Idle | LinkState::Down { .. } => {
                    link.pending.push(callers);
                    dials = true;
                }
            }
        }
        if dials {
            self.dial(rank, to);
        }
        for used in refused {
            self.nodes[rank].uses.insert(used, Use::Reading);
            self.read_from_origin(rank, used);
        }
    }

    /// The store gets a request for a sample.
    pub(super) fn serve(&mut self, rank: usize, conn: u64, request: u64, tag: u32, sample: u64) {
        let owner = (sample % self.nodes.len() as u64) as usize;
        if owner != rank {
            let error = TierError::new(ErrorKind::Absent, "store");
            return self.finish_read(conn, request, tag, Err(error));
        }
        if !self.nodes[rank].memory.contains(&sample) {
            self.notify(conn, request, tag, StoreReply::Reading);
            return self.fly(rank, sample, Waiter::Requester { conn, request, tag });
        }
        if self.disk {
            let time = self.scheduler.between(MS, 40 * MS);
            return self.work(rank, time, Work::Disk { conn, request, tag, sample });
        }
        self.finish_read(conn, request, tag, Ok(content(sample)));
    }

    pub(super) fn finish_read(
        &mut self,
        conn: u64,
        request: u64,
        tag: u32,
        result: Result<Bytes, TierError>,
    ) {
        let result = result.map(|bytes| {
            let check = (crc32c::crc32c(&bytes), None);
            (bytes, check)
        });
        self.notify(conn, request, tag, StoreReply::Done(result));
    }

    /// Passes the store's reply on. A store waits while there is no room.
    pub(super) fn notify(&mut self, id: u64, request: u64, tag: u32, expected: StoreReply) {
        let now = self.scheduler.now();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (rank, owner) = (conn.owner.0, conn.owner);
        let Some(end) = &mut conn.serving else { return };
        let sample = end.machine.wanted(request, tag);
        if let (StoreReply::Done(Ok(_)), false, Some(sample)) = (&expected, end.machine.has_room(), sample) {
            let work = Work::Disk { conn: id, request, tag, sample: sample.id.0 };
            self.scheduler.after(MS, Event::Work(owner, work));
            return self.work_soon(rank, Work::Serving(id));
        }
        end.machine.on_reply(request, tag, expected, now);
        self.work_soon(rank, Work::Serving(id));
    }

    /// An owned sample is read once, for all its waiters.
    pub(super) fn fly(&mut self, rank: usize, sample: u64, waiter: Waiter) {
        let waiters = self.nodes[rank].flights.entry(sample).or_default();
        waiters.push(waiter);
        if waiters.len() == 1 {
            let time = self.scheduler.between(5 * MS, 60 * MS);
            self.work(rank, time, Work::Owned { sample });
        }
    }

    pub(super) fn owned(&mut self, rank: usize, sample: u64) {
        self.nodes[rank].memory.insert(sample);
        for waiter in self.nodes[rank].flights.remove(&sample).unwrap_or_default() {
            match waiter {
                Waiter::Use(used) => {
                    self.nodes[rank].uses.insert(used, Use::Ready);
                    self.work_soon(rank, Work::Train);
                }
                Waiter::Requester { conn, request, tag } => {
                    self.finish_read(conn, request, tag, Ok(content(sample)))
                }
            }
        }
    }

    /// Another rank's sample is read for a use of this rank.
    pub(super) fn read_from_origin(&mut self, rank: usize, used: usize) {
        let now = self.scheduler.now();
        if now > RECOVERED {
            self.outcome.off_plan += 1;
        }
        self.scheduler.note(format_args!("{rank}: use {used} from the origin"));
        let time = self.scheduler.between(5 * MS, 60 * MS);
        self.work(rank, time, Work::Read { used });
    }

    pub(super) fn read(&mut self, rank: usize, used: usize) {
        self.nodes[rank].uses.insert(used, Use::Ready);
        self.work_soon(rank, Work::Train);
    }

    /// The store no longer waits for a sample of another. The breaker counts that as a failure.
    fn drop_request(&mut self, rank: usize, used: usize) {
        let now = self.scheduler.now();
        let to = (self.nodes[rank].order[used] % self.nodes.len() as u64) as usize;
        let Some(link) = self.nodes[rank].links.get_mut(&to) else { return };
        let open = link.batches.iter_mut().find_map(|(request, uses)| {
            let (tag, (_, answered)) = (0..).zip(uses).find(|(_, of)| **of == (used, false))?;
            *answered = true;
            Some((*request, tag))
        });
        let Some((request, tag)) = open else { panic!("a request without a sample") };
        if link.complete(request) {
            link.sign(false, now);
        }
        link.dropped.borrow_mut().insert((request, tag));
        if let LinkState::Open { conn } = link.state {
            link.machine.sweep();
            self.work_soon(rank, Work::ClientTask(conn));
        }
    }

    pub(super) fn train(&mut self, rank: usize) {
        let now = self.scheduler.now();
        if self.nodes[rank].run != RUN || now < self.nodes[rank].busy_until {
            return;
        }
        self.issue(rank);
        let node = &mut self.nodes[rank];
        let batch = node.taken..node.taken + BATCH;
        if batch.clone().all(|used| node.uses.get(&used) == Some(&Use::Ready)) {
            let waited = node.waits.take().map_or(Duration::ZERO, |since| now - since);
            if !std::mem::take(&mut node.disturbed) && node.cost.is_zero() {
                self.outcome.stall = self.outcome.stall.max(waited);
            }
            for used in batch {
                node.uses.remove(&used);
            }
            node.taken += BATCH;
            let time = self.scheduler.between(10 * MS, 80 * MS);
            self.nodes[rank].busy_until = now + time;
            self.work(rank, time, Work::Train);
            return;
        }
        let since = *node.waits.get_or_insert(now);
        if now - since >= SECOND {
            let late = |used: &usize| node.uses.get(used) == Some(&Use::Requested);
            for used in batch.filter(late).collect::<Vec<_>>() {
                self.outcome.late += 1;
                self.drop_request(rank, used);
                self.nodes[rank].uses.insert(used, Use::Reading);
                self.read_from_origin(rank, used);
            }
        }
        let node = &mut self.nodes[rank];
        if node.train_at.is_none_or(|at| at <= now) {
            node.train_at = Some(now + 100 * MS);
            self.work(rank, 100 * MS, Work::Train);
        }
    }

    pub(super) fn issue(&mut self, rank: usize) {
        let ranks = self.nodes.len() as u64;
        let mut sample_requests: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        while self.nodes[rank].issued < self.nodes[rank].taken + LOOK_AHEAD {
            let used = self.nodes[rank].issued;
            self.nodes[rank].issued += 1;
            let sample = self.nodes[rank].order[used];
            debug_assert!(sample < self.samples);
            let owner = (sample % ranks) as usize;
            if owner != rank {
                self.nodes[rank].uses.insert(used, Use::Requested);
                sample_requests.entry(owner).or_default().push(used);
            } else if self.nodes[rank].memory.contains(&sample) {
                self.nodes[rank].uses.insert(used, Use::Ready);
            } else {
                self.nodes[rank].uses.insert(used, Use::Reading);
                self.fly(rank, sample, Waiter::Use(used));
            }
        }
        for (owner, uses) in sample_requests {
            self.send_request(rank, owner, uses);
        }
    }
}
