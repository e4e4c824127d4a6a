//! W6: resident memory of what is parked, in a process that has done nothing else.

use super::ring::{Ring, Shape, assert_empty};
use super::{Case, Contender, Workload, contenders};
use crate::candidate::Candidate;
use crate::candidates::{
    BTreeAndMap, DelayQueueAndMap, HeapAndMap, KafkaPort, Library, TmWheelAndMap, TokioIdiom,
};
use crate::options::Options;
use crate::outcome::{Metric, Values};
use crate::process::resident;
use crate::request::Flag;

pub(crate) struct W6(Shape);

impl W6 {
    fn round<C: Candidate>(&self) -> Values {
        let candidate = C::new();
        // The harness's own part: written once, so resident before.
        let flags = Flag::board(self.0.flags());
        let bytes = candidate.drive(async {
            let mut ring = Ring::new(&candidate, self.0, flags);
            let before = resident();
            ring.fill().await;
            let after = resident();
            assert_eq!(candidate.parked(), self.0.parked(), "{}", C::NAME);
            ring.drain().await;
            Some(after?.saturating_sub(before?))
        });
        assert_empty(&candidate);
        vec![bytes.map_or(f64::NAN, |bytes| bytes as f64 / self.0.parked() as f64)]
    }
}

impl Workload for W6 {
    const NAME: &'static str = "W6";

    const TITLE: &'static str = "resident memory of what is parked";

    const METRICS: &'static [Metric] = &[Metric::less("memory per request", "bytes")];

    const ALONE: bool = true;

    fn cases(options: &Options) -> Vec<Case<Self>> {
        let mut cases = Vec::new();
        for &keys in &options.keys {
            for &parked in &options.resident {
                cases.push(Case {
                    parameters: vec![("keys", keys), ("parked", parked)],
                    workload: Self(Shape::new(parked, keys)),
                });
            }
        }
        cases
    }

    fn contenders() -> Vec<Contender<Self>> {
        contenders![new, round:
            Library,
            TmWheelAndMap,
            BTreeAndMap,
            HeapAndMap,
            DelayQueueAndMap,
            KafkaPort,
            TokioIdiom,
        ]
    }
}
