//! The layouts of objects on the servers of their storage, as an index reads them.
//!
//! Some thousand objects are requested at once. The price is a request for each object, which only
//! storage with several servers gets.

use std::collections::HashMap;
use std::sync::Arc;

use foreread_tier::{Object, ObjectLayout, OriginTier};

/// Objects whose layouts are requested at once.
const LAYOUTS_AT_ONCE: usize = 4096;

/// The layouts of objects, by path.
pub(crate) type Layouts = HashMap<Arc<str>, Box<dyn ObjectLayout>>;

/// Reads the layouts of `objects`. Empty where the storage has none.
pub(crate) async fn layouts(origin: &dyn OriginTier, objects: &[Object]) -> Layouts {
    let mut found = Layouts::new();
    for some in objects.chunks(LAYOUTS_AT_ONCE) {
        let paths: Vec<_> = some.iter().map(|object| Arc::clone(&object.path)).collect();
        let Some(layouts) = origin.layouts(paths) else { return found };
        let layouts = some.iter().zip(layouts.await);
        found.extend(layouts.filter_map(|(object, layout)| Some((Arc::clone(&object.path), layout?))));
    }
    found
}
