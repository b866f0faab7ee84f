//! The QMP client with honest and hostile monitors.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::wait_until;
use memtide_model::Absence;
use memtide_stand_in::qemu::{Behaviour, Machine, StandIn};
use memtide_vmm::qemu::{Command, Peer, Qmp, QmpError};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The deadline for things that should work: long, because the machine may be busy.
const PLENTY: Duration = Duration::from_secs(20);
/// A short deadline, for things that should miss it.
const LITTLE: Duration = Duration::from_millis(150);

struct Fixture {
    stand_in: StandIn,
    path: PathBuf,
    _directory: TempDir,
}

fn stand_in(behaviour: Behaviour) -> Fixture {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("qmp");
    let stand_in = StandIn::start(&path, Machine::new(512), behaviour).expect("a socket");
    Fixture { stand_in, path, _directory: directory }
}

async fn connect(fixture: &Fixture, within: Duration) -> Result<Qmp, QmpError> {
    Qmp::connect(&fixture.path, Some(Peer::Names(std::process::id())), Instant::now() + within).await
}

async fn ask(qmp: &mut Qmp, within: Duration) -> Result<Value, QmpError> {
    qmp.execute(Command::plain("query-balloon"), Instant::now() + within).await
}

#[tokio::test(flavor = "current_thread")]
async fn commands_are_answered() {
    let fixture = stand_in(Behaviour::Honest);
    let mut qmp = connect(&fixture, PLENTY).await.unwrap();
    assert_eq!(ask(&mut qmp, PLENTY).await.unwrap()["actual"], 512 << 20);
    let command = Command::with("balloon", &json!({ "value": 0 }));
    let error = qmp.execute::<Value>(command, Instant::now() + PLENTY).await.unwrap_err();
    assert_eq!(error.to_string(), "refused: Parameter 'value' expects a size (GenericError)");
    assert!(qmp.is_usable());
    assert_eq!(fixture.stand_in.commands(), ["qmp_capabilities", "query-balloon", "balloon"]);
}

#[tokio::test(flavor = "current_thread")]
async fn a_second_client_learns_that_the_monitor_is_taken() {
    let fixture = stand_in(Behaviour::Honest);
    let first = connect(&fixture, PLENTY).await.unwrap();
    assert_eq!(connect(&fixture, LITTLE).await.unwrap_err().absence(), Absence::ControlTaken);
    drop(first);
    connect(&fixture, PLENTY).await.unwrap();
}

#[tokio::test(flavor = "current_thread")]
async fn another_process_than_expected_is_not_spoken_with() {
    let fixture = stand_in(Behaviour::Honest);
    let error = Qmp::connect(&fixture.path, Some(Peer::Names(1)), Instant::now() + PLENTY).await.unwrap_err();
    assert!(matches!(error, QmpError::WrongPeer { pid, .. } if pid == std::process::id()));
}

#[tokio::test(flavor = "current_thread")]
async fn each_misbehaviour_has_its_absence() {
    for (behaviour, within, absence) in [
        (Behaviour::NoGreeting, LITTLE, Absence::ControlTaken),
        (Behaviour::Garbage, PLENTY, Absence::Malformed),
        (Behaviour::EndlessLine, PLENTY, Absence::Malformed),
    ] {
        let fixture = stand_in(behaviour);
        let error = connect(&fixture, within).await.unwrap_err();
        assert_eq!(error.absence(), absence, "{behaviour:?}");
    }
    for (behaviour, within, absence) in [
        (Behaviour::SilentAfterGreeting, LITTLE, Absence::Timeout),
        (Behaviour::HalfMessage, PLENTY, Absence::Disconnected),
        (Behaviour::WrongIds, LITTLE, Absence::Timeout),
        (Behaviour::Refuse, PLENTY, Absence::Refused("not  today".to_owned())),
    ] {
        let fixture = stand_in(behaviour);
        let mut qmp = connect(&fixture, PLENTY).await.unwrap();
        assert_eq!(ask(&mut qmp, within).await.unwrap_err().absence(), absence, "{behaviour:?}");
    }
    let gone = Qmp::connect("/nonexistent/qmp".as_ref(), None, Instant::now() + PLENTY).await.unwrap_err();
    assert_eq!(gone.absence(), Absence::Disconnected);
}

#[tokio::test(flavor = "current_thread")]
async fn a_flood_of_events_is_dropped_and_counted_and_answers_still_come() {
    let fixture = stand_in(Behaviour::EventFlood);
    let mut qmp = connect(&fixture, PLENTY).await.unwrap();
    let begun = Instant::now();
    while qmp.dropped_events() == 0 {
        assert_eq!(ask(&mut qmp, PLENTY).await.unwrap()["actual"], 512 << 20);
        assert!(begun.elapsed() < PLENTY);
    }
    assert_eq!(qmp.take_events().count(), 256);
}

#[tokio::test(flavor = "current_thread")]
async fn nothing_is_sent_to_a_monitor_that_owes_an_answer() {
    let fixture = stand_in(Behaviour::SilentAfterGreeting);
    let mut qmp = connect(&fixture, PLENTY).await.unwrap();
    for _ in 0..3 {
        assert!(matches!(ask(&mut qmp, LITTLE).await, Err(QmpError::Timeout)));
    }
    wait_until("the command arrives", || fixture.stand_in.commands().len() == 2);
    assert!(qmp.is_usable());
}

#[tokio::test(flavor = "current_thread")]
async fn events_arrive_with_their_data() {
    let fixture = stand_in(Behaviour::Honest);
    let mut qmp = connect(&fixture, PLENTY).await.unwrap();
    fixture.stand_in.event("RESET", &json!({"guest": true}));
    fixture.stand_in.event("HUGE", &json!({"text": "x".repeat(100_000)}));
    let reset = qmp.next_event().await.unwrap();
    assert_eq!((reset.name.as_str(), reset.data.as_str()), ("RESET", r#"{"guest":true}"#));
    assert!(reset.at.is_some());
    assert_eq!(qmp.next_event().await.unwrap().data, "");
    fixture.stand_in.hang_up();
    assert!(matches!(qmp.next_event().await, Err(QmpError::Closed)));
}

#[tokio::test(flavor = "current_thread")]
async fn a_flood_of_events_is_read_no_faster_than_events_may_come() {
    let fixture = stand_in(Behaviour::EventFlood);
    let mut qmp = connect(&fixture, PLENTY).await.unwrap();
    let (begun, mut events) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(1) {
        qmp.next_event().await.unwrap();
        events += 1;
    }
    // 16 KiB within 100 ms, with events of some 90 bytes, plus the same amount in the first such period.
    let most = (begun.elapsed().as_millis() / 100 + 2) * (16 << 10) / 80;
    assert!(events < most, "{events} events in {:?}", begun.elapsed());
}
