//! The keys, as people read them.

/// The text.
pub const TEXT: &str = "\
guests
  ↑ ↓ j k      previous, next guest; also the wheel, and a click
  PgUp PgDn    a page up or down; Home and End: the first and the last
  Enter e      why this guest has its memory (stays up to date)
  w            why each guest has its memory, in place of graph and log
  v            the log in place of graph and guests
  s            sort: what matters now, name, cost, memory in use, stalls
  /            show only guests whose names contain what you type; Esc: all
time
  space        pause, or follow the newest again
               a journal: play, or pause; + - play faster, slower
  ← →          one step back, one step forward
  [ ]          a minute back, a minute forward; or click on the graph
  n N          next, previous event; t chooses the kind of events
  1432         four digits go to 14:32
  Esc          back to the present, or to the end of a journal
orders (a question comes first)
  h            hold: leave the guest alone at its present size
  l            let go: release it to its limit, then leave it alone
  m            manage it again: ends both
  c            reclaim what it can spare, after a preview
  y Enter      yes; n or Esc: no
else
  !            the warnings in full
  ? q          this help; end (also Ctrl-C); Ctrl-L draws everything again
bars
  █ in use  ▓ page cache that the guest needs  ▒ cold page cache  · free
  ░ given away to the host  ? kept, its use unknown
  COST is what the guest costs the host now, KEEPS the size that it has.
  STALLS is how long (%) or how often (×) its programs waited for memory
  in the last 10 seconds; - means that the guest does not tell.";
