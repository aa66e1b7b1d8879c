//! The only switch between the real atomics and loom's, so that `tests/loom` runs the shipped code.
//! Owns nothing, runs on any thread. Feature `loom` is for these models only: its types panic
//! outside of a model. Never name `std::sync::atomic` in a module that has a model.

#[cfg(feature = "loom")]
pub use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
        },
    },
};
#[cfg(feature = "loom")]
pub use modeled::OnceLock;
#[cfg(not(feature = "loom"))]
pub use real::UnsafeCell;
#[cfg(not(feature = "loom"))]
pub use std::hint::spin_loop;
#[cfg(not(feature = "loom"))]
pub use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

#[cfg(not(feature = "loom"))]
mod real {
    /// `std`'s cell behind loom's closure interface. Loom's cell records each access; this cell
    /// costs nothing.
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Hands out the pointer for a shared access.
        #[inline]
        pub fn with<R>(&self, access: impl FnOnce(*const T) -> R) -> R {
            access(self.0.get().cast_const())
        }

        /// Hands out the pointer for an exclusive access.
        #[inline]
        pub fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
            access(self.0.get())
        }
    }
}

#[cfg(feature = "loom")]
mod modeled {
    use super::{AtomicBool, Ordering};

    /// `std`'s cell with an atomic that shows loom its ordering: a reader of the value sees all
    /// writes that made it.
    #[derive(Debug)]
    pub struct OnceLock<T> {
        value: std::sync::OnceLock<T>,
        is_set: AtomicBool,
    }

    impl<T> OnceLock<T> {
        /// A cell without a value.
        #[must_use]
        pub fn new() -> Self {
            Self { value: std::sync::OnceLock::new(), is_set: AtomicBool::new(false) }
        }

        /// The value, if it is set.
        pub fn get(&self) -> Option<&T> {
            // ordering: Acquire, pairs with the Release in `set`; as `std` has it.
            if self.is_set.load(Ordering::Acquire) { self.value.get() } else { None }
        }

        /// Sets the value.
        ///
        /// # Errors
        /// The argument, when a value is already set.
        pub fn set(&self, value: T) -> Result<(), T> {
            self.value.set(value)?;
            // ordering: Release, pairs with the Acquire in `get`.
            self.is_set.store(true, Ordering::Release);
            Ok(())
        }
    }

    impl<T> Default for OnceLock<T> {
        fn default() -> Self {
            Self::new()
        }
    }
}
