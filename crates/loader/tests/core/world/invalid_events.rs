//! Invalid events, which the core must ignore.

use super::*;

impl World<'_> {
    /// Passes an invalid event to the core, which must not react.
    pub(super) fn invalid_event(&mut self) -> Checked {
        let end = self.model.uses.len() as u64 + 3;
        let (tick, kind) = (Tick(self.draw(end)), self.draw(10));
        let open = |lookup| self.requests.iter().any(|request| request.about() == Some((tick, lookup)));
        let dealing = self.requests.iter().any(|request| matches!(request, PendingRequest::Deal { .. }));
        let event = match kind {
            0 if !open(true) => CoreEvent::Found(tick),
            1 if !open(true) => CoreEvent::Stored(tick),
            2 if !open(true) => CoreEvent::Absent(tick),
            3 if !open(false) => CoreEvent::Arrived(tick),
            4 if !open(false) => CoreEvent::Failed(tick),
            9 if !open(false) => CoreEvent::Invalid(tick),
            5 if self.queue.is_empty() && self.unreported.taken == 0 => CoreEvent::Taken,
            6 if !dealing => CoreEvent::DealFailed { pass: self.dealt },
            7 => CoreEvent::DealFailed { pass: self.dealt + 1 },
            8 => match self.run.pass(0) {
                Some(pass) if !dealing || self.dealt > 1 => {
                    CoreEvent::Dealt { pass: 0, stream: self.run.stream(&pass).unwrap() }
                }
                _ => return Ok(()),
            },
            _ => return Ok(()),
        };
        let (text, before) = (format!("{event:?}"), self.core.charged());
        let mut actions = Vec::new();
        self.core.on(event, &mut actions);
        prop_assert!(actions.is_empty(), "{text} led to {actions:?}");
        prop_assert_eq!(self.core.charged(), before, "{} was counted", text);
        Ok(())
    }
}
