//! Layouts as Lustre writes them, and as it never would.

mod hostile;
mod vectors;
