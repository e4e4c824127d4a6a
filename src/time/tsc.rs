//! The processor's time stamp counter.
//!
//! Unsafe here is nothing but three instructions: `rdtsc`, `rdtscp` and `rdpid` write registers and no memory, whatever
//! they are given. What can be wrong with them is that the processor does not have them, and then a process ends by a
//! signal. Every x86-64 processor has `rdtsc` and `cpuid`. For the other two `cpuid` is asked, and a [`Tsc`], without
//! which no function here runs them, is made only by [`Tsc::detect`], which has asked. (A process can forbid itself all
//! of them by `prctl(PR_SET_TSC)`. Where the system's clock is read from the counter, it cannot read that any more
//! either: the C library does so by the same instructions.)
//!
//! There is one only where the kernel itself reads its clock from the counter, and the processor says that this runs at
//! the same rate in all states of sleep. The kernel has then checked that it is equal on all processors. In the models,
//! under Miri and on other systems there is none.

use super::anchor::Reading;

/// The time stamp counter of a system on which it can stand in for the clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tsc(imp::Instruction);

impl Tsc {
    /// `None` where it cannot. The answer stays the same; the first call takes 0.1 ms.
    pub(super) fn detect() -> Option<Self> {
        imp::detect().map(Self)
    }

    /// Reads the counter, perhaps before earlier instructions have ended.
    #[inline(always)]
    pub(super) fn read(self) -> Reading {
        imp::read(self.0)
    }

    /// Reads the counter when all earlier instructions have ended.
    pub(super) fn read_in_order(self) -> Reading {
        imp::read_in_order(self.0)
    }
}

#[cfg(all(
    target_arch = "x86_64",
    target_os = "linux",
    not(any(request_purgatory_loom, request_purgatory_shuttle, miri))
))]
#[allow(unsafe_code)]
mod imp {
    use super::Reading;
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __rdtscp, _rdtsc};
    use std::sync::LazyLock;

    /// How the number of the processor is read. Made by [`detect`] alone.
    #[derive(Debug, Clone, Copy)]
    pub(super) enum Instruction {
        /// By `rdpid`, which waits for nothing, beside `rdtsc`. A thread that is moved between the two has the counter
        /// of one processor and the number of another: there are nanoseconds for it.
        Rdpid,
        /// By `rdtscp`, which reads both, and waits for all earlier instructions.
        Rdtscp,
    }

    const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";

    pub(super) fn detect() -> Option<Instruction> {
        static DETECTED: LazyLock<Option<Instruction>> = LazyLock::new(|| {
            let is_clock = std::fs::read_to_string(CLOCK_SOURCE).is_ok_and(|it| it.trim() == "tsc");
            let has_rdtscp = has(0x8000_0001, |it| it.edx, 27);
            let is_invariant = has(0x8000_0007, |it| it.edx, 8);
            let has_rdpid = has(7, |it| it.ecx, 22);
            match (is_clock && has_rdtscp && is_invariant, has_rdpid) {
                (true, true) => Some(Instruction::Rdpid),
                (true, false) => Some(Instruction::Rdtscp),
                (false, _) => None,
            }
        });
        *DETECTED
    }

    /// Whether the processor's description has this bit.
    fn has(leaf: u32, register: fn(std::arch::x86_64::CpuidResult) -> u32, bit: u32) -> bool {
        // The first leaf of each range says which is the last.
        let last = cpuid(leaf & 0x8000_0000).eax;
        last >= leaf && register(cpuid(leaf)) >> bit & 1 == 1
    }

    fn cpuid(leaf: u32) -> std::arch::x86_64::CpuidResult {
        // SAFETY: every x86-64 processor has the instruction. (Later compilers know that.)
        #[allow(unused_unsafe)]
        unsafe {
            __cpuid(leaf)
        }
    }

    #[inline(always)]
    pub(super) fn read(instruction: Instruction) -> Reading {
        match instruction {
            Instruction::Rdpid => {
                // SAFETY: every x86-64 processor has the instruction.
                let counter = unsafe { _rdtsc() };
                let processor: u64;
                // SAFETY: `detect` has found the instruction. It writes this register, and nothing else.
                unsafe {
                    asm!("rdpid {}", out(reg) processor, options(nomem, nostack, preserves_flags));
                }
                Reading {
                    counter,
                    processor: processor as u32,
                }
            }
            Instruction::Rdtscp => read_in_order(instruction),
        }
    }

    #[inline(always)]
    pub(super) fn read_in_order(_: Instruction) -> Reading {
        let mut processor = 0;
        // SAFETY: `detect` has found the instruction.
        let counter = unsafe { __rdtscp(&mut processor) };
        Reading { counter, processor }
    }
}

#[cfg(not(all(
    target_arch = "x86_64",
    target_os = "linux",
    not(any(request_purgatory_loom, request_purgatory_shuttle, miri))
)))]
mod imp {
    use super::Reading;

    /// There is none.
    #[derive(Debug, Clone, Copy)]
    pub(super) enum Instruction {}

    pub(super) fn detect() -> Option<Instruction> {
        None
    }

    pub(super) fn read(instruction: Instruction) -> Reading {
        match instruction {}
    }

    pub(super) fn read_in_order(instruction: Instruction) -> Reading {
        match instruction {}
    }
}
