//! The implementations that are compared, one file each.

mod delay_queue;
mod floor;
mod library;
mod straight_port;
mod timer_and_map;
mod tm_wheel;
mod tokio_idiom;
mod watch_lists;

pub(crate) use delay_queue::DelayQueueAndMap;
pub(crate) use floor::Floor;
pub(crate) use library::Library;
pub(crate) use straight_port::{KafkaPort, UnpurgedPort};
pub(crate) use tm_wheel::TmWheelAndMap;
pub(crate) use tokio_idiom::TokioIdiom;
