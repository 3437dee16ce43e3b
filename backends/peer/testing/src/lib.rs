//! For tests only: a network in memory with faults.
//!
//! Hosts are names. Every pair of hosts has one cable with a delay. A cable can be cut (sent bytes
//! are delayed, as if retransmitted), mended, and severed (all its connections end at once). The
//! chance that a write breaks its connection is drawn from a seed. Time is [`tokio::time`] alone,
//! so that a run on a paused clock is quick and repeatable. A connection takes memory for the bytes
//! in flight and a few hundred bytes more.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, Sleep, sleep_until};

use foreread_peer::{Address, BoxedStream, Transport, TransportListener};
use foreread_types::mix;

/// Bytes in flight in one direction.
const CAPACITY: usize = 64 << 10;

/// All hosts and the cables between them. Clones share them.
#[derive(Clone)]
pub struct SimulatedNetwork(Arc<Mutex<NetworkState>>);

struct NetworkState {
    seed: u64,
    draws: u64,
    break_chance: f64,
    next_port: u16,
    listeners: HashMap<(String, u16), mpsc::UnboundedSender<(BoxedStream, String)>>,
    cables: HashMap<(String, String), Arc<Cable>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SimulatedNetwork {
    /// A network without hosts.
    pub fn new(seed: u64) -> Self {
        let (listeners, cables) = (HashMap::new(), HashMap::new());
        Self(Arc::new(Mutex::new(NetworkState {
            seed,
            draws: 0,
            break_chance: 0.0,
            next_port: 1,
            listeners,
            cables,
        })))
    }

    /// The network as the host `name` sees it. It listens and connects at [`Address::Tcp`] of
    /// hosts' names.
    pub fn host(&self, name: impl Into<String>) -> Arc<dyn Transport> {
        Arc::new(SimulatedHost { world: self.clone(), name: name.into() })
    }

    fn cable(&self, one: &str, other: &str) -> Arc<Cable> {
        let (one, other) = if one <= other { (one, other) } else { (other, one) };
        Arc::clone(lock(&self.0).cables.entry((one.to_owned(), other.to_owned())).or_default())
    }

    /// Stops the traffic between the two hosts. Writers do not detect it.
    pub fn cut(&self, one: &str, other: &str) {
        lock(&self.cable(one, other).state).cut = true;
    }

    /// Restores the traffic. Bytes that were sent meanwhile arrive.
    pub fn mend(&self, one: &str, other: &str) {
        let cable = self.cable(one, other);
        lock(&cable.state).cut = false;
        cable.mended.notify_waiters();
        cable.each(Pipe::wake);
    }

    /// All connections between the two hosts end with an error at both ends.
    pub fn sever(&self, one: &str, other: &str) {
        self.cable(one, other).each(Pipe::sever);
    }

    /// Sets the delay of bytes that are sent from now on between the two hosts.
    pub fn delay(&self, one: &str, other: &str, delay: Duration) {
        lock(&self.cable(one, other).state).delay = delay;
    }

    /// Each write breaks its connection with this chance.
    pub fn breaking(&self, chance: f64) {
        lock(&self.0).break_chance = chance;
    }

    /// The number of connections that are open at either end.
    pub fn connections(&self) -> usize {
        let cables: Vec<_> = lock(&self.0).cables.values().cloned().collect();
        let mut pipes = 0;
        cables.iter().for_each(|cable| cable.each(|_| pipes += 1));
        pipes / 2
    }

    fn breaks(&self) -> bool {
        let mut world = lock(&self.0);
        if world.break_chance <= 0.0 {
            return false;
        }
        world.draws += 1;
        let drawn = mix(world.seed ^ mix(world.draws));
        ((drawn >> 11) as f64 / (1u64 << 53) as f64) < world.break_chance
    }
}

impl fmt::Debug for SimulatedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Simulated").field("connections", &self.connections()).finish()
    }
}

/// The cable between two hosts.
#[derive(Default)]
struct Cable {
    state: Mutex<CableState>,
    mended: Notify,
}

#[derive(Default)]
struct CableState {
    cut: bool,
    delay: Duration,
    pipes: Vec<Weak<Pipe>>,
}

impl Cable {
    fn each(&self, mut act: impl FnMut(&Pipe)) {
        let pipes: Vec<_> = lock(&self.state).pipes.iter().filter_map(Weak::upgrade).collect();
        pipes.iter().for_each(|pipe| act(pipe));
    }

    /// A new connection over it: both ends.
    fn connect(self: &Arc<Self>, world: &SimulatedNetwork) -> (ConnectionEnd, ConnectionEnd) {
        let pipe =
            || Arc::new(Pipe { cable: Arc::clone(self), world: world.clone(), state: Mutex::default() });
        let (one, other) = (pipe(), pipe());
        let mut state = lock(&self.state);
        state.pipes.retain(|pipe| pipe.strong_count() > 0);
        state.pipes.extend([Arc::downgrade(&one), Arc::downgrade(&other)]);
        drop(state);
        let end = |read: &Arc<Pipe>, write: &Arc<Pipe>| ConnectionEnd {
            read: Arc::clone(read),
            write: Arc::clone(write),
            timer: None,
        };
        (end(&one, &other), end(&other, &one))
    }
}

/// One direction of a connection.
struct Pipe {
    cable: Arc<Cable>,
    world: SimulatedNetwork,
    state: Mutex<PipeState>,
}

#[derive(Default)]
struct PipeState {
    in_flight: VecDeque<(Instant, Bytes)>,
    bytes: usize,
    /// The writer has ended.
    ended: bool,
    /// The reader is gone.
    reader_gone: bool,
    severed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Pipe {
    fn change(&self, change: impl FnOnce(&mut PipeState)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let wakers = [state.reader.take(), state.writer.take()];
        drop(state);
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    fn wake(&self) {
        self.change(|_| ());
    }

    fn sever(&self) {
        self.change(|state| {
            state.severed = true;
            state.in_flight.clear();
            state.bytes = 0;
        });
    }
}

/// One end of a connection.
struct ConnectionEnd {
    read: Arc<Pipe>,
    write: Arc<Pipe>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl AsyncRead for ConnectionEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(tokio::task::coop::poll_proceed(cx)).made_progress();
        let this = &mut *self;
        loop {
            let cut = lock(&this.read.cable.state).cut;
            let mut state = lock(&this.read.state);
            if state.severed {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            state.reader = Some(cx.waker().clone());
            if cut {
                return Poll::Pending;
            }
            let now = Instant::now();
            let ended = state.ended;
            match state.in_flight.front_mut() {
                Some((at, bytes)) if *at <= now => {
                    let count = bytes.len().min(into.remaining());
                    into.put_slice(&bytes[..count]);
                    bytes.advance(count);
                    if bytes.is_empty() {
                        state.in_flight.pop_front();
                    }
                    state.bytes -= count;
                    let writer = state.writer.take();
                    drop(state);
                    writer.into_iter().for_each(Waker::wake);
                    return Poll::Ready(Ok(()));
                }
                Some((at, _)) => {
                    let at = *at;
                    drop(state);
                    let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
                    if timer.deadline() != at {
                        timer.as_mut().reset(at);
                    }
                    ready!(Future::poll(timer.as_mut(), cx));
                }
                None if ended => return Poll::Ready(Ok(())),
                None => return Poll::Pending,
            }
        }
    }
}

impl AsyncWrite for ConnectionEnd {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(tokio::task::coop::poll_proceed(cx)).made_progress();
        if self.write.world.breaks() {
            self.read.sever();
            self.write.sever();
        }
        let delay = lock(&self.write.cable.state).delay;
        let mut state = lock(&self.write.state);
        if state.severed || state.reader_gone {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = CAPACITY - state.bytes;
        if room == 0 {
            state.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut taken = Vec::with_capacity(parts.iter().map(|part| part.len()).sum::<usize>().min(room));
        for part in parts {
            let count = part.len().min(room - taken.len());
            taken.extend_from_slice(&part[..count]);
        }
        let count = taken.len();
        // Bytes that are sent later do not arrive earlier, even if the delay was reduced.
        let last = state.in_flight.back().map(|(at, _)| *at);
        let at = (Instant::now() + delay).max(last.unwrap_or_else(Instant::now));
        if count > 0 {
            state.in_flight.push_back((at, taken.into()));
            state.bytes += count;
        }
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.change(|state| state.ended = true);
        Poll::Ready(Ok(()))
    }
}

impl Drop for ConnectionEnd {
    fn drop(&mut self) {
        self.write.change(|state| state.ended = true);
        self.read.change(|state| state.reader_gone = true);
    }
}

#[derive(Debug)]
struct SimulatedHost {
    world: SimulatedNetwork,
    name: String,
}

fn tcp(address: &Address) -> io::Result<(&str, u16)> {
    match address {
        Address::Tcp(host, port) => Ok((host, *port)),
        Address::Local(_) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "a simulated network has no Unix sockets"))
        }
    }
}

#[async_trait]
impl Transport for SimulatedHost {
    async fn listen(&self, address: &Address) -> io::Result<Box<dyn TransportListener>> {
        let (_, mut port) = tcp(address)?;
        let mut world = lock(&self.world.0);
        if port == 0 {
            port = world.next_port;
            world.next_port = world.next_port.wrapping_add(1).max(1);
        }
        let place = (self.name.clone(), port);
        if world.listeners.get(&place).is_some_and(|listener| !listener.is_closed()) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let (sender, accepted) = mpsc::unbounded_channel();
        world.listeners.insert(place, sender);
        Ok(Box::new(SimulatedListener { accepted, address: Address::tcp(self.name.clone(), port) }))
    }

    async fn connect(&self, address: &Address) -> io::Result<BoxedStream> {
        let (host, port) = tcp(address)?;
        let cable = self.world.cable(&self.name, host);
        loop {
            let mended = cable.mended.notified();
            if !lock(&cable.state).cut {
                break;
            }
            mended.await;
        }
        let delay = lock(&cable.state).delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay * 2).await;
        }
        let listener = lock(&self.world.0).listeners.get(&(host.to_owned(), port)).cloned();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let (ours, theirs) = cable.connect(&self.world);
        let listener = listener.ok_or_else(refused)?;
        listener.send((Box::new(theirs), self.name.clone())).map_err(|_| refused())?;
        Ok(Box::new(ours))
    }
}

#[derive(Debug)]
struct SimulatedListener {
    accepted: mpsc::UnboundedReceiver<(BoxedStream, String)>,
    address: Address,
}

#[async_trait]
impl TransportListener for SimulatedListener {
    async fn accept(&mut self) -> io::Result<(BoxedStream, String)> {
        self.accepted.recv().await.ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn address(&self) -> &Address {
        &self.address
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::time::timeout;

    use super::*;

    async fn pair(network: &SimulatedNetwork) -> (BoxedStream, BoxedStream) {
        let mut listener = network.host("a").listen(&Address::tcp("a", 0)).await.unwrap();
        let one = network.host("b").connect(listener.address()).await.unwrap();
        (one, listener.accept().await.unwrap().0)
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_arrive_in_order_and_the_end_after_them() {
        let network = SimulatedNetwork::new(1);
        let (mut one, mut other) = pair(&network).await;
        let sent: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        let write = tokio::spawn(async move { one.write_all(&sent).await.unwrap() });
        let mut got = Vec::new();
        other.read_to_end(&mut got).await.unwrap();
        write.await.unwrap();
        assert!(got == expected);
        assert!(other.write_all(b"x").await.is_err(), "the reader is gone");
    }

    #[tokio::test(start_paused = true)]
    async fn cut_cable_delays_and_severed_cable_ends() {
        let network = SimulatedNetwork::new(1);
        let (mut one, mut other) = pair(&network).await;
        network.cut("a", "b");
        one.write_all(b"late").await.unwrap();
        let mut got = [0; 4];
        assert!(timeout(Duration::from_secs(60), other.read_exact(&mut got)).await.is_err());
        network.mend("b", "a");
        other.read_exact(&mut got).await.unwrap();
        assert_eq!((&got, network.connections()), (b"late", 1));
        network.sever("a", "b");
        assert!(other.read_exact(&mut got).await.is_err() && one.write_all(b"x").await.is_err());
        drop((one, other));
        assert_eq!(network.connections(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn sent_bytes_arrive_after_the_delay() {
        let network = SimulatedNetwork::new(1);
        network.delay("a", "b", Duration::from_millis(30));
        let began = Instant::now();
        let (mut one, mut other) = pair(&network).await;
        assert_eq!(began.elapsed(), Duration::from_millis(60));
        one.write_all(b"1234").await.unwrap();
        assert_eq!(other.read_u32().await.unwrap(), 0x3132_3334);
        assert_eq!(began.elapsed(), Duration::from_millis(90));
    }
}
