//! A console of a UML instance: whatever it replies, the instance's size stays within its memory, and errors can be shown.
//!
//! An input is a sequence of replies. A line `@ok`, `@more` or `@error` begins a reply with the text that follows up to the next such line; after
//! `@more`, another reply of the same answer follows. A line `@raw` begins a datagram as it is. The answers are taken in turn as `proc meminfo`
//! and `proc vmstat`, and a step that unplugs or plugs memory lies between them.

use std::time::Duration;

use memtide_model::{Bytes, GuestStats};
use memtide_vmm::uml::wire::{Answer, LONGEST, command, replies};
use memtide_vmm::uml::{Kernel, MconsoleError, Plug, Step};

use crate::texts::{are_for_people, survives_json};

const FULL: Bytes = Bytes::from_mib(256);
const RESERVE: Bytes = Bytes::from_mib(2);

/// Takes the replies in `bytes` as those of one console.
///
/// # Panics
/// If a property does not hold.
pub fn run(bytes: &[u8]) {
    let (mut answer, mut instance) = (Answer::default(), Instance { plug: Plug::new(FULL), taken: 0 });
    for datagram in datagrams(bytes) {
        // A stand-in reads requests with the same care.
        let _any = command(&datagram);
        match answer.add(&datagram) {
            Ok(Some(Ok(text))) => instance.take(&text),
            Ok(Some(Err(message))) => are_for_people(&MconsoleError::refused(&message)),
            Ok(None) => {}
            Err(_) => answer = Answer::default(),
        }
    }
}

struct Instance {
    plug: Plug,
    taken: usize,
}

impl Instance {
    fn take(&mut self, text: &str) {
        self.taken += 1;
        let kernel = Kernel::default().with_vmstat(text);
        let Some(kernel) = kernel.with_meminfo(text) else { return };
        self.plug.see(&kernel);
        self.is_within();
        let stats: GuestStats = kernel.stats(self.plug.removed());
        survives_json(&stats);
        survives_json(&kernel.as_agent(self.plug.removed()));
        self.plug.aim(FULL.mul_div(self.taken as u64 % 5, 4));
        let step = self.plug.next(&kernel, RESERVE);
        if let Step::Take(bytes) = step {
            let left = kernel.memory.free.saturating_sub(bytes);
            assert!(left >= RESERVE, "{bytes} of {} free", kernel.memory.free);
        }
        self.plug.sends(step);
        self.is_within();
        self.plug.did(step, Duration::from_millis(self.taken as u64));
    }

    fn is_within(&self) {
        assert!(self.plug.removed() <= FULL && self.plug.actual() <= FULL, "{:?}", self.plug);
    }
}

fn datagrams(bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut found: Vec<(&[u8], Vec<u8>)> = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let kind = line.strip_suffix(b"\n").unwrap_or(line);
        if matches!(kind, b"@ok" | b"@more" | b"@error" | b"@raw") {
            found.push((kind, Vec::new()));
        } else if let Some((_, content)) = found.last_mut() {
            content.extend_from_slice(line);
        }
    }
    let datagrams = found.into_iter().flat_map(|(kind, content)| {
        if kind == b"@raw" {
            return vec![content.into_iter().take(LONGEST).collect()];
        }
        let mut pieces = replies(&String::from_utf8_lossy(&content), kind == b"@error");
        if let Some(more) = pieces.last_mut().and_then(|last| last.get_mut(4..8)) {
            more.copy_from_slice(&u32::from(kind == b"@more").to_ne_bytes());
        }
        pieces
    });
    datagrams.collect()
}
