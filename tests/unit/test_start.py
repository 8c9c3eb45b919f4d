"""Every row of the design's table 'At start: which disagreement is a gap'."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from runnel.capture.publication import PublicationFacts
from runnel.capture.start import Go, LogFacts, ServerFacts, SlotFacts, check_position, decide, switch_point
from runnel.errors import Refused
from runnel.log.api import Lineage
from runnel.postgres.lsn import Lsn
from runnel.progress.position import Position
from runnel.progress.records import Subscription

ID = uuid.UUID("1f2e3d4c-0000-4000-8000-000000000000")
LINEAGE = Lineage("7400000000000000001", 1, "shop_1f2e3d4c")
SUBSCRIPTION = Subscription("shop", ID, "shop_1f2e3d4c", "shop", LINEAGE, Lsn(100), 1)
SERVER = ServerFacts("7400000000000000001", 1)
PUBLICATION = PublicationFacts(ID)
SLOT = SlotFacts("shop_1f2e3d4c", Lsn(500))
LOG = LogFacts(Lsn(100), Lsn(900), LINEAGE, "./.runnel/log")
HISTORY = "1\t0/384\tno recovery target specified\n"  # timeline 1 was left at 900


def at(lsn: int, lineage: Lineage = LINEAGE) -> Position:
    return Position(lineage, 1, Lsn(lsn))


def go(
    subscription: Subscription = SUBSCRIPTION,
    server: ServerFacts = SERVER,
    slot: SlotFacts | None = SLOT,
    log: LogFacts = LOG,
    ack: str = "sink",
    publication: PublicationFacts | None = PUBLICATION,
    **positions: int,
) -> Go:
    found = {name: at(lsn) for name, lsn in (positions or {"copy": 700}).items()}
    return decide(subscription, server, slot, log, found, publication=publication, ack=ack)


def test_a_restart_streams_from_the_logs_end() -> None:
    assert go() == Go(Lsn(900), LINEAGE)


def test_a_new_log_begins_at_the_confirmed_lsn() -> None:
    assert go(slot=replace(SLOT, confirmed=Lsn(100)), log=LogFacts(), copy=100) == Go(Lsn(100), LINEAGE)


def test_a_subscription_without_pipelines_starts() -> None:
    assert (
        decide(
            SUBSCRIPTION, SERVER, replace(SLOT, confirmed=Lsn(100)), LogFacts(), {}, publication=PUBLICATION
        ).start
        == 100
    )


def test_without_pipelines_the_slot_may_be_as_far_as_the_log_but_not_past_it() -> None:
    log = replace(LOG, first=Lsn(400), end=Lsn(500))
    assert decide(SUBSCRIPTION, SERVER, SLOT, log, {}, publication=PUBLICATION) == Go(Lsn(500), LINEAGE)
    assert decide(SUBSCRIPTION, SERVER, SLOT, LogFacts(), {}, publication=PUBLICATION) == Go(
        Lsn(500), LINEAGE
    )
    with pytest.raises(Refused, match="somebody else advanced it"):
        decide(SUBSCRIPTION, SERVER, SLOT, replace(log, end=Lsn(450)), {}, publication=PUBLICATION)


def test_a_missing_slot_is_refused_by_name() -> None:
    with pytest.raises(Refused, match=r"shop_1f2e3d4c.*gone") as caught:
        go(slot=None)
    assert "runnel destroy" in caught.value.hint


def test_a_slot_of_another_uuid_is_refused() -> None:
    with pytest.raises(Refused, match="not the one of subscription"):
        go(slot=replace(SLOT, name="shop_99999999"))
    with pytest.raises(Refused, match="not the one of subscription"):
        go(
            subscription=replace(SUBSCRIPTION, slot="shop_99999999"),
            slot=replace(SLOT, name="shop_99999999"),
        )


def test_a_slot_of_another_plugin_is_refused() -> None:
    with pytest.raises(Refused, match="test_decoding"):
        go(slot=replace(SLOT, plugin="test_decoding"))


@pytest.mark.parametrize(
    "broken", [replace(SLOT, wal_status="lost"), replace(SLOT, invalidation="idle_timeout")]
)
def test_an_invalidated_slot_is_refused(broken: SlotFacts) -> None:
    with pytest.raises(Refused, match="invalidated"):
        go(slot=broken)


def test_a_slot_whose_wal_is_only_unreserved_goes_on() -> None:
    assert go(slot=replace(SLOT, wal_status="unreserved")).start == 900


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "does not exist any more"),
        (PublicationFacts(None), "made anew"),
        (PublicationFacts(uuid.UUID(int=7)), "made anew"),
        (PublicationFacts(ID, lacks=("update", "delete")), "does not publish update, delete any more"),
        (PublicationFacts(ID, via_root=False), "publishes partitions under their own names"),
    ],
)
def test_a_publication_that_is_not_what_it_was_is_refused(
    found: PublicationFacts | None, says: str
) -> None:
    with pytest.raises(Refused, match=f"'shop'.*{says}.*changes after 0/1F4 may be missing") as caught:
        go(publication=found)
    assert "runnel destroy && runnel init" in caught.value.hint


def test_another_server_is_refused_and_accept_server_is_offered() -> None:
    with pytest.raises(Refused, match="another server") as caught:
        go(server=ServerFacts("7499", 1))
    assert "--accept-server" in caught.value.hint


def test_after_accept_server_positions_below_the_new_start_are_bridged() -> None:
    new = Lineage("7499", 1, LINEAGE.slot)
    accepted = replace(SUBSCRIPTION, lineage=new, former=(LINEAGE,), consistent_lsn=Lsn(2000))
    decision = go(accepted, ServerFacts("7499", 1), replace(SLOT, confirmed=Lsn(2000)), copy=900)
    assert (decision.start, decision.bridge, decision.lineage) == (2000, (900, 2000), new)


def test_after_accept_server_a_slot_advanced_later_is_still_refused() -> None:
    new = Lineage("7499", 1, LINEAGE.slot)
    accepted = replace(SUBSCRIPTION, lineage=new, former=(LINEAGE,), consistent_lsn=Lsn(2000))
    with pytest.raises(Refused, match="somebody else"):
        go(accepted, ServerFacts("7499", 1), replace(SLOT, confirmed=Lsn(2001)), copy=900)


def test_a_clean_failover_goes_on_under_the_new_timeline() -> None:
    decision = go(server=replace(SERVER, timeline=2, history=HISTORY), slot=replace(SLOT, failover=True))
    assert decision.start == 900
    assert decision.lineage == replace(LINEAGE, timeline=2)
    assert "clean failover" in decision.notes[0]


def test_a_failover_that_lost_captured_changes_is_refused_with_the_lsn() -> None:
    server = replace(SERVER, timeline=2, history="1\t0/383\tpromoted\n")
    with pytest.raises(Refused, match="at 0/383, but changes up to 0/384"):
        go(server=server, slot=replace(SLOT, failover=True))


def test_a_failover_that_lost_delivered_changes_is_refused_though_the_log_is_gone() -> None:
    server = replace(SERVER, timeline=2, history="1\t0/300\tpromoted\n")
    with pytest.raises(Refused, match="may stand in the targets"):
        go(server=server, slot=replace(SLOT, failover=True), log=LogFacts(), copy=0x301)


def test_a_promotion_without_a_failover_slot_is_refused() -> None:
    with pytest.raises(Refused, match="not a failover slot"):
        go(server=replace(SERVER, timeline=2, history=HISTORY))


@pytest.mark.parametrize("history", [None, "", "3\t0/900\tother\n"])
def test_a_timeline_that_does_not_descend_from_ours_is_refused(history: str | None) -> None:
    with pytest.raises(Refused, match="does not know ours"):
        go(server=replace(SERVER, timeline=4, history=history), slot=replace(SLOT, failover=True))


def test_a_slot_that_somebody_advanced_is_refused() -> None:
    with pytest.raises(Refused, match="somebody else advanced it"):
        go(slot=replace(SLOT, confirmed=Lsn(701)), copy=700, events=800)


def test_under_ack_log_the_slot_may_be_past_the_positions_but_not_past_the_log() -> None:
    assert go(slot=replace(SLOT, confirmed=Lsn(900)), ack="log", copy=100).start == 900
    with pytest.raises(Refused, match="the log's end"):
        go(slot=replace(SLOT, confirmed=Lsn(901)), ack="log", copy=700)


def test_under_ack_log_a_lost_log_is_legal_once_everything_was_delivered() -> None:
    assert go(slot=replace(SLOT, confirmed=Lsn(901)), log=LogFacts(), ack="log", copy=901).start == 901


def test_a_position_before_log_and_slot_is_refused_and_a_new_import_offered() -> None:
    with pytest.raises(Refused, match="restored from a backup") as caught:
        go(log=replace(LOG, first=Lsn(400)), slot=replace(SLOT, confirmed=Lsn(300)), copy=200, ack="log")
    assert "import again" in caught.value.hint


def test_a_position_before_the_slot_with_an_empty_log_is_refused() -> None:
    with pytest.raises(Refused, match="the log is empty"):
        go(log=LogFacts(), slot=replace(SLOT, confirmed=Lsn(300)), copy=200, ack="log")


def test_a_position_before_the_log_that_the_slot_still_has_asks_for_a_new_log() -> None:
    with pytest.raises(Refused, match="still has everything") as caught:
        go(log=replace(LOG, first=Lsn(400)), slot=replace(SLOT, confirmed=Lsn(150)), copy=200)
    assert "./.runnel/log" in caught.value.hint


def test_a_position_past_a_lost_log_is_legal() -> None:
    assert go(log=LogFacts(), copy=5000).start == 500


def test_a_lost_log_is_bridged_where_capture_wrote_down_that_nothing_happened() -> None:
    quiet = replace(SUBSCRIPTION, quiet=(Lsn(450), Lsn(500)))
    assert go(quiet, log=LogFacts(), copy=450, late=600) == Go(Lsn(500), LINEAGE, (Lsn(450), Lsn(500)))
    with pytest.raises(Refused, match="the log is empty"):
        go(quiet, log=LogFacts(), copy=449)
    with pytest.raises(Refused, match="the log is empty"):
        go(quiet, slot=replace(SLOT, confirmed=Lsn(501)), log=LogFacts(), copy=450)


def test_a_log_that_ends_before_the_slot_is_bridged_when_every_pipeline_is_past_it() -> None:
    decision = go(log=replace(LOG, end=Lsn(300)), copy=500)
    assert (decision.start, decision.bridge) == (500, (300, 500))
    assert decision.notes


def test_a_log_that_ends_before_a_position_but_after_confirmed_is_filled_again_from_its_end() -> None:
    assert go(log=replace(LOG, end=Lsn(600)), copy=700) == Go(Lsn(600), LINEAGE)


def test_the_position_of_another_sources_target_is_refused() -> None:
    for foreign in (Lineage("7499", 1, LINEAGE.slot), Lineage(LINEAGE.system_id, 1, "shop_00000000")):
        with pytest.raises(Refused, match="not of"):
            check_position("copy", at(700, foreign), SUBSCRIPTION, LOG, Lsn(500))


def test_a_position_of_before_a_failover_is_still_ours() -> None:
    check_position("copy", at(700, replace(LINEAGE, timeline=7)), SUBSCRIPTION, LOG, Lsn(500))


def test_the_log_of_another_subscription_is_refused_by_path() -> None:
    with pytest.raises(Refused, match=r"\./\.runnel/log belongs to slot 'other_1'"):
        go(log=replace(LOG, lineage=Lineage("7400000000000000001", 1, "other_1")))


def test_a_history_file_is_read_with_comments_and_several_switches() -> None:
    text = "# comment\n\n1\t0/3000158\tno recovery target specified\n2\t0/50000A0\tbefore 2026-01-01\n"
    assert switch_point(text, 1) == Lsn.parse("0/3000158")
    assert switch_point(text, 2) == Lsn.parse("0/50000A0")
    assert switch_point(text, 3) is None


def test_an_accepted_promotion_is_still_refused_if_the_log_holds_what_it_lost() -> None:
    accepted = replace(SUBSCRIPTION, lineage=replace(LINEAGE, timeline=2), former=(LINEAGE,))
    assert go(accepted, replace(SERVER, timeline=2, history=HISTORY)).lineage == accepted.lineage
    with pytest.raises(Refused, match="no longer exist"):
        go(accepted, replace(SERVER, timeline=2, history="1\t0/383\tpromoted\n"))


def test_an_accepted_server_whose_lsns_do_not_follow_is_refused() -> None:
    new = Lineage("7499", 1, LINEAGE.slot)
    accepted = replace(SUBSCRIPTION, lineage=new, former=(LINEAGE,), consistent_lsn=Lsn(800))
    slot = replace(SLOT, confirmed=Lsn(800))
    with pytest.raises(Refused, match="do not follow"):
        go(accepted, ServerFacts("7499", 1), slot, copy=700)
