//! The state of a feed, which a snapshot reads too.

use super::pool::PoolBlocks;
use super::rank::RankFeed;
use forebay_text::Vocabulary;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// A feed's state, which a snapshot is taken of between two messages. Never borrowed across an
/// await.
pub type SharedState = Rc<RefCell<RankFeed<Arc<Vocabulary>>>>;

/// A pool, which the feeds of its ranks share. Never borrowed across an await.
pub type SharedPool = Rc<RefCell<PoolBlocks<Arc<Vocabulary>>>>;
