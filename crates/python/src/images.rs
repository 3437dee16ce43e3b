//! Decodes batches of images without the GIL.
//!
//! A [`PyImagePool`] has the threads. [`PyPendingImages`] is a batch that they decode. Its pixels
//! are written to a [`PyPixelBuffer`], or to memory of the caller: pinned memory, which only
//! PyTorch can allocate.

use std::ffi::{c_int, c_void};
use std::sync::Mutex;

use foreread_cli::image_of;
use foreread_decode::{
    BatchBuffer, BatchBuffers, ChannelOrder, Crop, DecodedBatch, Draw, ImageDecoder, ImageOptions, Item,
    Output, Pending, PixelType, Pool, threads_of_rank,
};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::batch::PyBatch;
use crate::errors::ExceptionClass;
use crate::interrupt::POLL_INTERVAL;
use crate::process_local::{self, ProcessLocal};
use crate::sample::PySample;

/// This rank's part of the cores of its node.
#[pyfunction]
pub(crate) fn rank_cores() -> usize {
    threads_of_rank(foreread::Config::default().ranks_on_node())
}

/// Threads that decode images, and the memory of their batches.
#[pyclass(name = "ImagePool", frozen, module = "foreread")]
#[derive(Debug)]
pub struct PyImagePool {
    pool: ProcessLocal<Pool<ImageDecoder>>,
    buffers: ProcessLocal<BatchBuffers>,
}

/// The memory that a batch is written to.
#[derive(Debug)]
enum Memory {
    Own(BatchBuffer),
    /// The caller's, kept alive by the view.
    Given(PyBuffer<u8>),
}

// SAFETY: a batch's own memory has this property. A view of a buffer keeps its memory in place, and
// `begin` takes writable and contiguous ones only. Its caller must not use it until the batch is
// finished, as its documentation says; a reader would see unfinished pixels, as with any buffer
// that another thread fills.
unsafe impl Output for Memory {
    fn start(&mut self) -> *mut u8 {
        match self {
            Self::Own(buffer) => buffer.start(),
            Self::Given(view) => view.buf_ptr().cast(),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Own(buffer) => buffer.length(),
            Self::Given(view) => view.len_bytes(),
        }
    }
}

impl PyImagePool {
    fn pool(&self) -> PyResult<&Pool<ImageDecoder>> {
        self.pool.get("decoder")
    }

    fn begin_items(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        items: Vec<Item>,
        memory: Option<PyBuffer<u8>>,
    ) -> PyResult<PyPendingImages> {
        use foreread_decode::Decoder as _;

        let this = slf.get();
        let pool = this.pool()?;
        let length = items.len() * pool.decoder().output_bytes();
        let memory = match memory {
            Some(view) if view.readonly() || !view.is_c_contiguous() || view.len_bytes() != length => {
                let message = format!("memory must be a writable buffer of {length} bytes");
                return Err(PyValueError::new_err(message));
            }
            Some(view) => Memory::Given(view),
            None => {
                let buffer = this.buffers.get("decoder")?.take(length);
                Memory::Own(buffer.map_err(|error| {
                    ExceptionClass::Error.with(format!("no memory for a batch of {length} bytes: {error}"))
                })?)
            }
        };
        // A waiting thread may hold the queue's lock for a moment.
        let pending = py.detach(|| pool.begin(items, memory));
        let pending = ProcessLocal::new(Mutex::new(Some(pending)));
        Ok(PyPendingImages { pending, _pool: slf.clone().unbind() })
    }
}

#[pymethods]
impl PyImagePool {
    /// Args:
    ///     height, width: the size of the output.
    ///     scale, ratio, flip: of random crops. Without scale, crops are not random.
    ///     resize: the shorter side before a central crop. Without it, images are stretched.
    ///     normalize: the means and deviations of the channels. Without them, values are bytes.
    ///     channels_last: rows, columns, channels, and not channels first.
    ///     max_pixels: larger images are refused.
    ///     threads: 0 are the cores of this process, divided by the ranks of its node.
    #[new]
    #[pyo3(signature = (
        height, width, *, scale, ratio, flip, resize, normalize, channels_last, max_pixels, threads
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments, for one caller")]
    fn new(
        height: u32,
        width: u32,
        scale: Option<(f64, f64)>,
        ratio: (f64, f64),
        flip: f64,
        resize: Option<u32>,
        normalize: Option<([f32; 3], [f32; 3])>,
        channels_last: bool,
        max_pixels: u64,
        threads: usize,
    ) -> PyResult<Self> {
        process_local::count_forks();
        let crop = match (scale, resize) {
            (Some(scale), _) => Crop::Random { scale, ratio, flip },
            (None, Some(resize)) => Crop::Center { resize },
            (None, None) => Crop::Whole,
        };
        let pixels = normalize.map_or(PixelType::U8, |(mean, deviation)| PixelType::F32 { mean, deviation });
        let order = if channels_last { ChannelOrder::Hwc } else { ChannelOrder::Chw };
        let options = ImageOptions { width, height, crop, pixels, order, max_pixels };
        let decoder =
            ImageDecoder::new(options).map_err(|error| ExceptionClass::Config.with(error.to_string()))?;
        let pool = Pool::new(decoder, if threads == 0 { rank_cores() } else { threads });
        let pool =
            pool.map_err(|error| ExceptionClass::Error.with(format!("cannot start threads: {error}")))?;
        Ok(Self { pool: ProcessLocal::new(pool), buffers: ProcessLocal::default() })
    }

    /// Begins to decode a batch: into `memory`, a writable buffer that is not used until the batch
    /// is finished, or else into own memory.
    #[pyo3(signature = (batch, seed, memory = None))]
    fn begin(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        batch: &PyBatch,
        seed: u64,
        memory: Option<PyBuffer<u8>>,
    ) -> PyResult<PyPendingImages> {
        let (samples, catalog) = (batch.batch(), batch.catalog());
        let epoch = samples.epoch();
        let items = samples.samples().map(|sample| Item {
            bytes: image_of(catalog, sample.id(), &sample.bytes()),
            draw: Draw { seed, epoch, sample: sample.id().0 },
        });
        Self::begin_items(slf, py, items.collect(), memory)
    }

    /// Begins to decode samples, or other buffers, whose bytes are copied. `ids` are their draws'.
    fn begin_samples(
        slf: &Bound<'_, Self>,
        py: Python<'_>,
        samples: Vec<Bound<'_, PyAny>>,
        ids: Vec<u64>,
        seed: u64,
        epoch: u64,
    ) -> PyResult<PyPendingImages> {
        if ids.len() != samples.len() {
            return Err(PyValueError::new_err(format!("{} ids of {} samples", ids.len(), samples.len())));
        }
        let mut items = Vec::with_capacity(samples.len());
        for (sample, id) in samples.iter().zip(ids) {
            let bytes = match sample.cast::<PySample>() {
                Ok(sample) => {
                    let sample = sample.get();
                    image_of(sample.catalog(), sample.sample_id(), sample.data())
                }
                Err(_) => PyBuffer::<u8>::get(sample)?.to_vec(py)?.into(),
            };
            items.push(Item { bytes, draw: Draw { seed, epoch, sample: id } });
        }
        Self::begin_items(slf, py, items, None)
    }

    /// The first row and column, height and width of the region that is used of an image of this
    /// size, and whether it is flipped.
    fn augmentation(
        &self,
        width: u32,
        height: u32,
        seed: u64,
        epoch: u64,
        sample: u64,
    ) -> PyResult<(u32, u32, u32, u32, bool)> {
        let drawn = self.pool()?.decoder().augmentation(width, height, Draw { seed, epoch, sample });
        let region = drawn.region;
        Ok((region.top, region.left, region.height, region.width, drawn.flipped))
    }

    /// The seconds that threads have spent decoding, summed over all.
    #[getter]
    fn busy(&self) -> PyResult<f64> {
        Ok(self.pool()?.busy().as_secs_f64())
    }

    /// The number of threads.
    #[getter]
    fn threads(&self) -> PyResult<usize> {
        Ok(self.pool()?.threads())
    }
}

/// The index and reason of each sample that could not be decoded.
type Failures = Vec<(usize, String)>;

/// A batch that is being decoded.
#[pyclass(name = "PendingImages", frozen, module = "foreread")]
#[derive(Debug)]
pub struct PyPendingImages {
    pending: ProcessLocal<Mutex<Option<Pending<ImageDecoder, Memory>>>>,
    /// Its threads end with it, and no other batch would ever be done.
    _pool: Py<PyImagePool>,
}

#[pymethods]
impl PyPendingImages {
    /// Whether it is decoded.
    fn is_ready(&self, py: Python<'_>) -> PyResult<bool> {
        let pending = self.pending.get("batch")?;
        py.detach(|| {
            let pending = pending.lock().map_err(|_| taken())?;
            Ok(pending.as_ref().ok_or_else(taken)?.wait(std::time::Duration::ZERO))
        })
    }

    /// Waits for the batch. Returns its memory, unless it is the caller's, and the index and reason
    /// of each sample that could not be decoded, whose pixels are undefined. Only once.
    fn finish(&self, py: Python<'_>) -> PyResult<(Option<PyPixelBuffer>, Failures)> {
        let pending = self.pending.get("batch")?;
        let pending = pending.lock().map_err(|_| taken())?.take().ok_or_else(taken)?;
        while !py.detach(|| pending.wait(POLL_INTERVAL)) {
            py.check_signals()?;
        }
        let decoded = pending.finish();
        let DecodedBatch { output, failures } =
            decoded.ok_or_else(|| ExceptionClass::Closed.with("the decoder is closed"))?;
        let failures = failures.into_iter().map(|failure| (failure.at, failure.error.to_string()));
        let buffer = match output {
            Memory::Own(buffer) => Some(PyPixelBuffer::new(buffer)),
            Memory::Given(_) => None,
        };
        Ok((buffer, failures.collect()))
    }
}

fn taken() -> PyErr {
    PyValueError::new_err("this batch was finished before")
}

/// A decoded batch: a writable buffer. Its memory is reused when the last view is gone.
#[pyclass(name = "PixelBuffer", frozen, module = "foreread")]
#[derive(Debug)]
pub struct PyPixelBuffer {
    /// Keeps the memory.
    _memory: ProcessLocal<BatchBuffer>,
    /// The address of the first byte, an integer because Python's threads share it.
    start: usize,
    length: usize,
}

impl PyPixelBuffer {
    fn new(mut buffer: BatchBuffer) -> Self {
        let bytes = buffer.bytes_mut();
        let (start, length) = (bytes.as_mut_ptr() as usize, bytes.len());
        Self { _memory: ProcessLocal::new(buffer), start, length }
    }
}

#[pymethods]
impl PyPixelBuffer {
    fn __len__(&self) -> usize {
        self.length
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let py = slf.py();
        let (start, length) = (slf.get().start as *mut c_void, slf.get().length as ffi::Py_ssize_t);
        // SAFETY: Python provides the view. It holds a reference to this object in it, which keeps
        // the memory. Rust neither reads nor writes it while the object lives.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(py)) }
    }
}
