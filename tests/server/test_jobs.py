"""The job table: states, pages, keys, restarts and broken disks."""

import sqlite3
import threading
import time

import pytest

from omnireel.errors import Conflict, InvalidRequest, StorageFailed, UnknownJob
from omnireel.server import jobs as table
from omnireel.server.jobs import Job, Jobs, StoredFile, new_id


@pytest.fixture
def jobs(tmp_path):
    found = Jobs(tmp_path / "jobs.db")
    yield found
    found.close()


def added(jobs, count=1, **columns):
    return [jobs.add(Job(id=new_id("video"), **columns)) for _ in range(count)]


def test_a_job_comes_back_as_it_went_in(jobs):
    job = Job(id="video_1", owner="o", cost=2.5, request={"prompt": "\u00e4", "media": []}, settled={"seed": 2**62})
    jobs.add(job)
    assert jobs.get("video_1") == job


def test_an_unknown_job_is_told(jobs):
    with pytest.raises(UnknownJob, match="video_0"):
        jobs.get("video_0")


@pytest.mark.parametrize("start", table.STATES)
@pytest.mark.parametrize("end", table.STATES)
def test_only_listed_ways_lead_from_state_to_state(jobs, start, end):
    (job,) = added(jobs, status=start)
    is_way = end in table.TRANSITIONS[start]
    assert jobs.move(job.id, end) == is_way
    found = jobs.get(job.id)
    assert found.status == (end if is_way else start)
    assert (found.ended_at is not None) == (is_way and end in (table.COMPLETED, table.FAILED, table.CANCELLED))


def test_the_longest_waiting_job_is_claimed_once(jobs):
    first, second = added(jobs, 2)
    assert [job and job.id for job in (jobs.claim(), jobs.claim(), jobs.claim())] == [first.id, second.id, None]
    assert (jobs.get(first.id).status, jobs.get(first.id).attempts) == (table.RUNNING, 1)


def test_two_threads_never_claim_the_same(jobs):
    added(jobs, 40)
    claimed = []

    def take():
        while (job := jobs.claim()) is not None:
            claimed.append(job.id)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 40


@pytest.mark.parametrize("is_ascending", [True, False])
def test_pages_meet_every_job_once_while_others_come(jobs, is_ascending):
    old = [job.id for job in added(jobs, 7)]
    seen, after, has_more = [], None, True
    while has_more:
        page, has_more = jobs.page(after=after, limit=3, is_ascending=is_ascending)
        seen += [job.id for job in page]
        after = seen[-1]
        if len(seen) < 7:
            added(jobs)
    found = [job_id for job_id in seen if job_id in old]
    assert found == (old if is_ascending else old[::-1])
    assert len(seen) == len(set(seen))


def test_a_page_of_none_and_a_page_behind_nothing(jobs):
    added(jobs, 2)
    assert jobs.page(after=None, limit=0, is_ascending=True) == ([], True)
    with pytest.raises(InvalidRequest, match="after"):
        jobs.page(after="video_0", limit=3, is_ascending=True)


def test_synchronous_jobs_are_not_listed(jobs):
    added(jobs, is_sync=True)
    assert jobs.page(after=None, limit=9, is_ascending=True) == ([], False)


def test_an_idempotency_key_gives_the_same_job_to_its_owner(jobs):
    first = jobs.add(Job(id="a", owner="o", idempotency_key="k", body_digest="d"))
    assert jobs.add(Job(id="b", owner="o", idempotency_key="k", body_digest="d")).id == first.id
    assert jobs.add(Job(id="c", owner="p", idempotency_key="k", body_digest="d")).id == "c"
    with pytest.raises(Conflict):
        jobs.add(Job(id="d", owner="o", idempotency_key="k", body_digest="other"))
    assert jobs.count(table.QUEUED) == 2


@pytest.mark.parametrize(
    ("is_rerun", "attempts", "status", "code"),
    [(True, 1, "queued", None), (True, 2, "failed", "interrupted"), (False, 1, "failed", "interrupted")],
)
def test_what_ran_when_the_server_was_killed(tmp_path, is_rerun, attempts, status, code):
    before = Jobs(tmp_path / "jobs.db")
    (running,) = added(before, status=table.RUNNING, attempts=attempts)
    (done,) = added(before, status=table.COMPLETED)
    added(before, is_sync=True)
    before.close()
    after = Jobs(tmp_path / "jobs.db")
    after.recover(is_rerun=is_rerun, ttl_seconds=60.0)
    assert after.get(running.id).status == status
    assert [job.id for job in after.outdated(time.time() + 61)] == ([running.id] if status == "failed" else [])
    assert after.get(running.id).error.get("code") == code
    assert after.get(done.id).status == table.COMPLETED
    assert after.ids() == {running.id, done.id}
    after.close()


def test_kept_time_runs_out(jobs):
    old, new, ever = (added(jobs, status=table.COMPLETED, expires_at=at)[0] for at in (10.0, 99.0, None))
    assert [job.id for job in jobs.outdated(50.0)] == [old.id]
    jobs.expire(old.id)
    assert jobs.get(old.id).is_expired
    assert not jobs.outdated(50.0)
    jobs.forget_expired(50.0)
    assert {job.id for job in jobs.page(after=None, limit=9, is_ascending=True)[0]} == {new.id, ever.id}


def test_counts_are_by_state_and_owner(jobs):
    added(jobs, 2, owner="a")
    added(jobs, 1, owner="b", status=table.RUNNING)
    assert jobs.count(table.QUEUED) == 2
    assert jobs.count(table.QUEUED, table.RUNNING, owner="b") == 1


def test_files_are_kept_and_forgotten(jobs):
    stored = StoredFile(id="file_1", name="a.png", purpose="vision", bytes=3, created_at=1.0)
    jobs.add_file(stored)
    assert jobs.file("file_1") == stored
    assert jobs.files() == [stored]
    jobs.remove_file("file_1")
    with pytest.raises(UnknownJob):
        jobs.file("file_1")


def test_a_broken_table_is_an_error_of_storage(tmp_path):
    (tmp_path / "jobs.db").write_bytes(b"no database, but long enough to be taken for one " * 100)
    with pytest.raises(StorageFailed):
        Jobs(tmp_path / "jobs.db")


def test_a_full_disk_changes_nothing(jobs):
    (job,) = added(jobs)
    jobs._database.execute(f"PRAGMA max_page_count = {jobs._database.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StorageFailed, match="full"):
        added(jobs, 50, request={"prompt": "x" * 5000})
    assert jobs.get(job.id) == job
    jobs._database.execute("PRAGMA max_page_count = 100000")
    assert jobs.claim() is not None


def test_what_is_acknowledged_is_on_disk(tmp_path):
    jobs = Jobs(tmp_path / "jobs.db")
    added(jobs, 3)
    other = sqlite3.connect(tmp_path / "jobs.db")
    assert other.execute("SELECT COUNT(*) FROM jobs").fetchone() == (3,)
    assert jobs._database.execute("PRAGMA synchronous").fetchone()[0] == 2
    other.close()
    jobs.close()
