//! State that feeds share with snapshots, and with other feeds.

use super::rank::RankFeed;
use crate::pool::PoolBlocks;
use forebay_text::Vocabulary;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A feed's state, which a snapshot copies between two messages. Never borrowed across an await.
pub type SharedState = Rc<RefCell<RankFeed<Arc<Vocabulary>>>>;

/// A pool of several ranks, shared by their feeds. Never borrowed across an await.
pub type SharedPool = Rc<RefCell<PoolBlocks<Arc<Vocabulary>>>>;
