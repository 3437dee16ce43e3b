//! The requests of a batch that have not been answered.

use foreread_tier::ReadRequest;

/// Found by tag. Tags are nearly always the places in the batch, which makes finding free; any others are searched for.
#[derive(Debug)]
pub(crate) struct Open {
    requests: Vec<Option<ReadRequest>>,
    left: usize,
    /// All before this place are answered.
    first: usize,
}

impl Open {
    pub(crate) fn new(batch: Vec<ReadRequest>) -> Self {
        let left = batch.len();
        Self { requests: batch.into_iter().map(Some).collect(), left, first: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.left
    }

    fn place(&self, tag: u32) -> Option<usize> {
        let is = |request: &Option<ReadRequest>| request.as_ref().is_some_and(|request| request.tag == tag);
        // Parts of a batch have tags from somewhere in the middle on, in order.
        let offset = self.requests.get(self.first).and_then(Option::as_ref).map_or(0, |first| first.tag);
        let guess = (tag.wrapping_sub(offset) as usize).wrapping_add(self.first);
        match self.requests.get(guess) {
            Some(request) if is(request) => Some(guess),
            _ => self.requests[self.first..].iter().position(is).map(|place| place + self.first),
        }
    }

    /// The open request with this tag.
    pub(crate) fn get(&self, tag: u32) -> Option<&ReadRequest> {
        self.requests[self.place(tag)?].as_ref()
    }

    /// The request with this tag, which is answered from now on; `None` if it was already, or nobody asked for it.
    pub(crate) fn close(&mut self, tag: u32) -> Option<ReadRequest> {
        let place = self.place(tag)?;
        let request = self.requests[place].take();
        self.left -= 1;
        while self.requests.get(self.first).is_some_and(Option::is_none) {
            self.first += 1;
        }
        request
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ReadRequest> {
        self.requests[self.first..].iter().flatten()
    }
}
