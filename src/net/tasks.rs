//! The tasks of a thread, and the queue of due tasks. Plain data: polls nothing itself.

use slab::Slab;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::Waker;

pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// Id of a task, not reused when its slot is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    place: usize,
    life: u64,
}

impl TaskId {
    /// The `main` future of the loop.
    pub(crate) const MAIN: Self = Self { place: usize::MAX, life: 0 };
}

struct Place {
    life: u64,
    /// Empty while the task is polled.
    task: Option<(Task, Waker)>,
    is_due: bool,
}

#[derive(Default)]
struct TaskTable {
    places: Slab<Place>,
    due: VecDeque<TaskId>,
    /// Tasks at the end of a stage. They go on in this turn, behind all that are due.
    cohort: VecDeque<TaskId>,
    /// The task that is taken, until it is put back or has ended.
    polled: Option<TaskId>,
    /// Polls of tasks since the turn began.
    poll_count: usize,
    main_is_due: bool,
    lives: u64,
}

/// All tasks of a thread.
#[derive(Default)]
pub(crate) struct Tasks(RefCell<TaskTable>);

impl Tasks {
    /// Adds a task, which is due at once. `waker` creates its waker.
    pub(crate) fn add(&self, task: Task, waker: impl FnOnce(TaskId) -> Waker) {
        let mut table = self.0.borrow_mut();
        table.lives += 1;
        let life = table.lives;
        let entry = table.places.vacant_entry();
        let id = TaskId { place: entry.key(), life };
        entry.insert(Place { life, task: Some((task, waker(id))), is_due: true });
        table.due.push_back(id);
    }

    /// Makes a task due. Ended tasks are ignored.
    pub(crate) fn wake(&self, id: TaskId) {
        let mut table = self.0.borrow_mut();
        let TaskTable { places, due, main_is_due, .. } = &mut *table;
        if id == TaskId::MAIN {
            *main_is_due = true;
            return;
        }
        let Some(place) = places.get_mut(id.place) else { return };
        if place.life == id.life && !place.is_due {
            place.is_due = true;
            due.push_back(id);
        }
    }

    /// Takes whether the main future is due.
    pub(crate) fn take_main_due(&self) -> bool {
        std::mem::take(&mut self.0.borrow_mut().main_is_due)
    }

    /// Number of due tasks.
    pub(crate) fn due_count(&self) -> usize {
        let table = self.0.borrow();
        table.due.len() + usize::from(table.main_is_due)
    }

    /// Puts the polled task behind the tasks of this turn. False: it is alone.
    pub(crate) fn join_cohort(&self) -> bool {
        let mut table = self.0.borrow_mut();
        let TaskTable { places, due, cohort, polled, .. } = &mut *table;
        if due.is_empty() && cohort.is_empty() {
            return false;
        }
        let Some(id) = *polled else { return false };
        let Some(place) = places.get_mut(id.place).filter(|place| !place.is_due) else {
            return false;
        };
        place.is_due = true;
        cohort.push_back(id);
        true
    }

    /// True if the polled task is the only task of this turn so far, and no other task is due.
    pub(crate) fn is_alone(&self) -> bool {
        let table = self.0.borrow();
        table.poll_count <= 1 && table.due.is_empty() && table.cohort.is_empty()
    }

    /// Begins the next turn.
    pub(crate) fn begin_turn(&self) {
        self.0.borrow_mut().poll_count = 0;
    }

    /// Takes the task that has been due for longest. The caller polls it, then puts it back or ends
    /// it.
    pub(crate) fn take_due(&self) -> Option<(TaskId, Task, Waker)> {
        self.take_from(|table| &mut table.due)
    }

    /// Takes the first task of the cohort, as [`Self::take_due`].
    pub(crate) fn take_of_cohort(&self) -> Option<(TaskId, Task, Waker)> {
        self.take_from(|table| &mut table.cohort)
    }

    fn take_from(
        &self,
        queue: impl Fn(&mut TaskTable) -> &mut VecDeque<TaskId>,
    ) -> Option<(TaskId, Task, Waker)> {
        let mut table = self.0.borrow_mut();
        loop {
            let id = queue(&mut table).pop_front()?;
            // A task that woke itself in its last turn may have ended since.
            let place = table.places.get_mut(id.place).filter(|place| place.life == id.life);
            let Some(place) = place else { continue };
            place.is_due = false;
            let (task, waker) = place.task.take()?;
            table.polled = Some(id);
            table.poll_count += 1;
            return Some((id, task, waker));
        }
    }

    pub(crate) fn put_back(&self, id: TaskId, task: Task, waker: Waker) {
        let mut table = self.0.borrow_mut();
        table.polled = None;
        if let Some(place) = table.places.get_mut(id.place) {
            place.task = Some((task, waker));
        }
    }

    /// Frees the slot of an ended task.
    pub(crate) fn end(&self, id: TaskId) {
        let mut table = self.0.borrow_mut();
        table.polled = None;
        let _ended = table.places.try_remove(id.place);
    }

    /// Takes all tasks out, for dropping.
    pub(crate) fn take_all(&self) -> Vec<Task> {
        let mut table = self.0.borrow_mut();
        table.due.clear();
        table.cohort.clear();
        table.places.drain().filter_map(|place| place.task).map(|(task, _)| task).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_due_once_and_a_late_wake_hits_nobody_else() {
        let tasks = Tasks::default();
        tasks.add(Box::pin(async {}), |_| Waker::noop().clone());
        let (id, task, waker) = tasks.take_due().unwrap();
        tasks.wake(id);
        tasks.wake(id);
        tasks.put_back(id, task, waker);
        assert_eq!(tasks.due_count(), 1);
        let (_, task, _) = tasks.take_due().unwrap();
        drop(task);
        tasks.end(id);
        tasks.add(Box::pin(async {}), |_| Waker::noop().clone());
        let (next, task, waker) = tasks.take_due().unwrap();
        assert!(next.place == id.place && next.life != id.life);
        tasks.put_back(next, task, waker);
        tasks.wake(id);
        assert_eq!(tasks.due_count(), 0, "the place is another task's by now");
    }

    #[test]
    fn a_cohort_has_each_task_once_and_a_lone_task_joins_none() {
        let tasks = Tasks::default();
        assert!(!tasks.join_cohort(), "no task is polled");
        tasks.add(Box::pin(async {}), |_| Waker::noop().clone());
        let (first, task, waker) = tasks.take_due().unwrap();
        assert!(!tasks.join_cohort(), "no other task is due");
        tasks.add(Box::pin(async {}), |_| Waker::noop().clone());
        assert!(tasks.join_cohort());
        assert!(!tasks.join_cohort(), "the task is in the cohort");
        tasks.wake(first);
        tasks.put_back(first, task, waker);
        assert_eq!(tasks.due_count(), 1, "the first task is in the cohort");
        let (second, ..) = tasks.take_due().unwrap();
        assert!(second != first && tasks.join_cohort(), "a task waits at the end of the stage");
        assert_eq!(tasks.take_of_cohort().unwrap().0, first);
    }

    #[test]
    fn a_task_is_alone_until_another_is_due_or_was_polled_in_its_turn() {
        let tasks = Tasks::default();
        tasks.add(Box::pin(async {}), |_| Waker::noop().clone());
        let (first, task, waker) = tasks.take_due().unwrap();
        assert!(tasks.is_alone());
        tasks.add(Box::pin(async {}), |_| Waker::noop().clone());
        assert!(!tasks.is_alone(), "another task is due");
        tasks.put_back(first, task, waker);
        let (second, ..) = tasks.take_due().unwrap();
        assert!(!tasks.is_alone(), "another task was polled");
        tasks.end(second);
        tasks.begin_turn();
        tasks.wake(first);
        assert_eq!(tasks.take_due().unwrap().0, first);
        assert!(tasks.is_alone());
    }

    #[test]
    fn one_that_wakes_itself_waits_behind_the_others() {
        let tasks = Tasks::default();
        tasks.add(Box::pin(async {}), |_| Waker::noop().clone());
        tasks.add(Box::pin(async {}), |_| Waker::noop().clone());
        let (first, task, waker) = tasks.take_due().unwrap();
        tasks.wake(first);
        tasks.put_back(first, task, waker);
        let (second, ..) = tasks.take_due().unwrap();
        assert!(second != first);
    }
}
