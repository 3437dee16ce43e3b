//! Faults, and their effect on processes and links.

use super::*;

impl World {
    pub(super) fn plan_faults(&mut self) {
        let ranks = self.nodes.len() as u64;
        for _ in 0..1 + self.scheduler.below(6) {
            let at = self.scheduler.between(FAULTS.0, FAULTS.1 - 4 * SECOND);
            let lasts = self.scheduler.between(50 * MS, 4 * SECOND).min(FAULTS.1 - at);
            let one = self.scheduler.below(ranks) as usize;
            let other = (one + 1 + self.scheduler.below(ranks - 1) as usize) % ranks as usize;
            let (begin, end) = match self.scheduler.below(6) {
                0 => (Fault::Cut(one, other), Some(Fault::Mend(one, other))),
                1 => (Fault::Pause(one, lasts), None),
                2 => (
                    Fault::Slow(one, self.scheduler.between(MS / 10, 2 * MS)),
                    Some(Fault::Slow(one, Duration::ZERO)),
                ),
                3 => (Fault::Die(one), Some(Fault::Start(one, RUN))),
                4 => {
                    // Another run takes the address for a while.
                    self.scheduler.after(at, Event::Fault(Fault::Die(one)));
                    (Fault::Start(one, OTHER_RUN), Some(Fault::Start(one, RUN)))
                }
                _ => (Fault::Break(one, other), None),
            };
            self.scheduler.after(at, Event::Fault(begin));
            if let Some(end) = end {
                self.scheduler.after(at + lasts, Event::Fault(end));
            }
        }
        // All ranks of this run exist at the end, whatever faults coincided.
        for rank in 0..ranks as usize {
            self.scheduler.after(FAULTS.1, Event::Fault(Fault::Start(rank, RUN)));
        }
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Cut(one, other) => drop(self.cuts.insert((one, other))),
            Fault::Mend(one, other) => drop(self.cuts.remove(&(one, other))),
            Fault::Pause(rank, time) => {
                let until = self.scheduler.now() + time;
                let node = &mut self.nodes[rank];
                (node.paused, node.disturbed) = (node.paused.max(until), true);
            }
            Fault::Slow(rank, cost) => {
                let node = &mut self.nodes[rank];
                (node.cost, node.disturbed) = (cost, true);
            }
            Fault::Die(rank) => self.end_process(rank),
            Fault::Start(rank, run) => {
                let node = &self.nodes[rank];
                if node.alive && node.run == run {
                    return;
                }
                self.end_process(rank);
                let ranks = self.nodes.len();
                let budget = Rc::new(Cell::new(self.budget));
                let node = &mut self.nodes[rank];
                (node.alive, node.run, node.budget) = (true, run, budget);
                node.links =
                    (0..ranks).filter(|to| *to != rank).map(|to| (to, SimulatedLink::new(to))).collect();
                // The trainer of another run is not checked.
                if run == RUN {
                    self.work_soon(rank, Work::Train);
                }
            }
            Fault::Break(one, other) => {
                let of = |conn: &Conn| conn.requester.0 == one && conn.owner.0 == other;
                let conns: Vec<u64> =
                    self.conns.iter().filter(|(_, conn)| of(conn)).map(|(number, _)| *number).collect();
                for conn in conns {
                    self.outcome.broken += 1;
                    let keep = self.scheduler.below(2) == 0;
                    self.close(conn, keep);
                }
            }
        }
    }

    pub(super) fn end_process(&mut self, rank: usize) {
        let process = self.process(rank);
        let of = |conn: &Conn| conn.requester == process || conn.owner == process;
        let conns: Vec<u64> = self.conns.iter().filter(|(_, conn)| of(conn)).map(|(id, _)| *id).collect();
        for conn in conns {
            self.close(conn, true);
        }
        let node = &mut self.nodes[rank];
        node.process += 1;
        (node.alive, node.cost, node.free_at) = (false, Duration::ZERO, Duration::ZERO);
        (node.paused, node.waits, node.train_at) = (Duration::ZERO, None, None);
        node.memory.clear();
        node.flights.clear();
        node.links.clear();
        // A new process resumes at the batch that was taken last.
        node.uses.clear();
        node.issued = node.taken;
    }

    /// Closes both directions. Bytes in flight are lost, perhaps except for a part.
    pub(super) fn close(&mut self, id: u64, keep: bool) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        for pipe in &mut conn.pipes {
            if keep && let Some(first) = pipe.flying.pop_front() {
                let half = first.len() / 2;
                pipe.arrived.extend(&first[..half]);
            }
            pipe.flying.clear();
            pipe.written.clear();
            pipe.closed = true;
        }
        let (requester, owner) = (conn.requester, conn.owner);
        let delay = self.delay;
        self.scheduler.after(delay, Event::Work(requester, Work::ClientTask(id)));
        self.scheduler.after(delay, Event::Work(owner, Work::Serving(id)));
    }

    pub(super) fn is_cut(&self, from: usize, to: usize) -> bool {
        self.cuts.contains(&(from, to))
    }
}
