//! Models that use the common `model_dir`.

use super::{Fleet, KnownWorker};
use forebay_fleet::worker::ANY_MODEL;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name and root of a model that uses the directory.
type User<'a> = (&'a Arc<str>, Option<&'a str>);

impl Fleet {
    /// Names of the different models that use the directory for all.
    pub(crate) fn sharing_models(&self) -> Vec<Arc<str>> {
        distinct(self.workers.iter().flat_map(users))
    }
}

fn users(known: &KnownWorker) -> impl Iterator<Item = User<'_>> {
    let models = known.description.iter().flat_map(|description| &description.models);
    models.filter_map(|model| {
        let found = known.texts.get(&model.name)?;
        (found.is_of_all && found.text.is_some()).then_some((&model.name, model.root.as_deref()))
    })
}

/// Two names of a root, or two roots of a name, are the same model.
fn distinct<'a>(users: impl Iterator<Item = User<'a>>) -> Vec<Arc<str>> {
    let mut by_root: BTreeMap<&str, &str> = BTreeMap::new();
    let mut names: Vec<Arc<str>> = Vec::new();
    for (name, root) in users.filter(|(name, _)| &***name != ANY_MODEL) {
        let first = by_root.entry(root.unwrap_or(name)).or_insert(name);
        if *first == &**name && !names.contains(name) {
            names.push(Arc::clone(name));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_are_one_model() {
        let [a, b, any]: [Arc<str>; 3] = ["a".into(), "b".into(), ANY_MODEL.into()];
        let count = |users: &[User<'_>]| distinct(users.iter().copied()).len();
        assert_eq!(count(&[(&a, None), (&b, None), (&any, None)]), 2);
        assert_eq!(count(&[(&a, Some("r")), (&b, Some("r"))]), 1);
        assert_eq!(count(&[(&a, Some("r")), (&a, Some("s"))]), 1);
        assert_eq!(count(&[(&a, Some("r")), (&b, Some("s"))]), 2);
    }
}
