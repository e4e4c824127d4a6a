//! The processor's time stamp counter.
//!
//! The unsafe code here is three instructions: `rdtsc`, `rdtscp` and `rdpid`. Whatever their operands, they write
//! registers and no memory. Their only risk is that the processor lacks them, or that the process must not use them:
//! then a signal ends the process. Three facts exclude that, or make it harmless:
//!
//! * Every x86-64 processor has `rdtsc` and `cpuid`.
//! * `rdtscp` and `rdpid` are run only with a [`Tsc`] in hand. Only [`Tsc::detect`] makes one, after `cpuid` has
//!   reported the instruction.
//! * A process can forbid itself these instructions by `prctl(PR_SET_TSC)`. But if the system's clock is read from the
//!   counter, such a process cannot read the clock either, because the C library uses the same instructions.
//!
//! A [`Tsc`] exists only if the kernel itself reads its clock from the counter, and the processor reports that the
//! counter runs at the same rate in all sleep states. The kernel has then checked that the counter is equal on all
//! processors. Under loom, shuttle and Miri, and on other systems, there is no [`Tsc`].

use super::anchor::Reading;

/// The time stamp counter of a system on which it can replace the clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tsc(imp::Instruction);

impl Tsc {
    /// Finds out whether the counter can replace the clock. `None` if not. The answer does not change; the first call
    /// takes 0.1 ms.
    pub(super) fn detect() -> Option<Self> {
        imp::detect().map(Self)
    }

    /// Reads the counter without waiting: perhaps before earlier instructions have ended.
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

    /// The instruction that reads the number of the processor. Only [`detect`] makes a value. So a value proves that
    /// the processor has this instruction, and also `rdtscp`, by which [`read_in_order`] reads the counter.
    #[derive(Debug, Clone, Copy)]
    pub(super) enum Instruction {
        /// `rdpid` reads the number of the processor, and `rdtsc` reads the counter of the processor. Neither waits for
        /// earlier instructions. If the thread is moved between the two (rare: they take nanoseconds), the number and
        /// the counter are of different processors.
        Rdpid,
        /// `rdtscp` reads both the counter and the number of the processor. It waits for all earlier instructions.
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

    /// Whether the bit is set in this register of the answer of `cpuid` for `leaf`. `false` if the processor has no
    /// such leaf.
    fn has(leaf: u32, register: fn(std::arch::x86_64::CpuidResult) -> u32, bit: u32) -> bool {
        // The first leaf of each range (0, and 0x8000_0000) gives the number of the range's last leaf.
        let last = cpuid(leaf & 0x8000_0000).eax;
        last >= leaf && register(cpuid(leaf)) >> bit & 1 == 1
    }

    fn cpuid(leaf: u32) -> std::arch::x86_64::CpuidResult {
        // SAFETY: `cpuid` needs only a processor that has the instruction, and every x86-64 processor has it.
        //
        // In later compilers `__cpuid` is a safe function. There the `unsafe` is unused, which the attribute allows.
        #[allow(unused_unsafe)]
        unsafe {
            __cpuid(leaf)
        }
    }

    #[inline(always)]
    pub(super) fn read(instruction: Instruction) -> Reading {
        match instruction {
            Instruction::Rdpid => {
                // SAFETY: `rdtsc` needs only a processor that has the instruction, and every x86-64 processor has it.
                let counter = unsafe { _rdtsc() };
                let processor: u64;
                // SAFETY: `detect` has made `Instruction::Rdpid`, so the processor has `rdpid`. The instruction writes
                // the register of `processor`, and nothing else.
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
        // SAFETY: `detect` makes an `Instruction` only if the processor has `rdtscp`. The call writes only to
        // `processor`, a local variable.
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

    /// Has no value: on this system the counter does not replace the clock.
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
