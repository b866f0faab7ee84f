//! Places of which no user gets all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A number of places. A user gets a quarter of them at most. Its clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Places {
    most: usize,
    /// The places that each user has.
    taken: Arc<Mutex<BTreeMap<u32, usize>>>,
}

/// A place that a user has. Dropping it gives the place back.
#[derive(Debug)]
pub(crate) struct Place {
    taken: Arc<Mutex<BTreeMap<u32, usize>>>,
    user: u32,
}

impl Places {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Arc::default() }
    }

    /// A place for `user`; `None` if the user has a quarter of all, or if all are taken.
    pub(crate) fn take(&self, user: u32) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let has = taken.get(&user).copied().unwrap_or_default();
        if has >= self.most.div_ceil(4) || taken.values().sum::<usize>() >= self.most {
            return None;
        }
        taken.insert(user, has + 1);
        Some(Place { taken: Arc::clone(&self.taken), user })
    }

    /// The places that are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.taken.lock().unwrap().values().sum()
    }
}

impl Place {
    /// The user who has it.
    pub(crate) const fn user(&self) -> u32 {
        self.user
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(has) = taken.get_mut(&self.user) {
            *has -= 1;
            if *has == 0 {
                taken.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_gets_a_quarter_and_gives_it_back() {
        let places = Places::new(8);
        let first: Vec<_> = (0..3).map(|_| places.take(1000)).collect();
        assert!(first[1].is_some() && first[2].is_none());
        let others: Vec<_> = (0..4).flat_map(|user| [places.take(user), places.take(user)]).collect();
        assert_eq!(others.iter().filter(|place| place.is_some()).count(), 6, "eight in all");
        drop(first);
        assert_eq!((places.taken(), places.take(3).map(|place| place.user())), (6, Some(3)));
    }
}
