"""The job table: every state a job can be in, every way from one to another, and what a restart makes of them.

SQLite in WAL mode, committed to the disk before anybody hears of a change: an accepted job outlives whatever is killed.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omnireel.errors import Conflict, InvalidRequest, StorageFailed, UnknownJob

QUEUED, RUNNING, COMPLETED, FAILED, CANCELLED = "queued", "in_progress", "completed", "failed", "cancelled"
STATES = (QUEUED, RUNNING, COMPLETED, FAILED, CANCELLED)
TRANSITIONS: Mapping[str, tuple[str, ...]] = {
    QUEUED: (RUNNING, FAILED, CANCELLED),
    RUNNING: (QUEUED, COMPLETED, FAILED, CANCELLED),
    COMPLETED: (),
    FAILED: (),
    CANCELLED: (),
}
"""State -> those that may follow it. Back to queued only when a server stops or was killed."""

MAX_ATTEMPTS = 2
_JSON = ("request", "settled", "result", "error")
_TABLES = f"""
CREATE TABLE IF NOT EXISTS jobs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    status TEXT NOT NULL CHECK (status IN {STATES}),
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    expires_at REAL,
    attempts INTEGER NOT NULL,
    is_sync INTEGER NOT NULL,
    idempotency_key TEXT,
    body_digest TEXT NOT NULL,
    cost REAL NOT NULL,
    is_expired INTEGER NOT NULL,
    request TEXT NOT NULL,
    settled TEXT NOT NULL,
    result TEXT NOT NULL,
    error TEXT NOT NULL,
    UNIQUE (owner, idempotency_key)
);
CREATE INDEX IF NOT EXISTS jobs_by_status ON jobs (status, number);
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    name TEXT NOT NULL,
    purpose TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    created_at REAL NOT NULL
);
"""


def new_id(prefix: str) -> str:
    """A fresh id that nobody can guess: the prefix and 32 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(16)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row. request: what was asked, enough to run it again; settled: what the rules made of it; result: what came out.

    Times are seconds since 1970. owner: a digest of the key that it came with, "" without keys. A synchronous job belongs to a
    connection and does not outlive it.
    """

    id: str
    status: str = QUEUED
    owner: str = ""
    created_at: float = field(default_factory=time.time)
    started_at: float | None = None
    ended_at: float | None = None
    expires_at: float | None = None
    attempts: int = 0
    is_sync: bool = False
    idempotency_key: str | None = None
    body_digest: str = ""
    cost: float = 0.0
    is_expired: bool = False
    request: Mapping[str, Any] = field(default_factory=dict)
    settled: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_final(self) -> bool:
        """Whether nothing follows its state."""
        return not TRANSITIONS[self.status]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """An uploaded file that requests name by its id."""

    id: str
    name: str
    purpose: str
    bytes: int
    created_at: float


_COLUMNS = tuple(item.name for item in fields(Job))
_INSERT = f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_FILE_COLUMNS = tuple(item.name for item in fields(StoredFile))


class Jobs:
    """The table. Safe to use from any thread; each call is one transaction.

    Every method raises StorageFailed when the disk is full, read-only or broken.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.RLock()
        with _database_errors():
            self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10)
            self._database.row_factory = sqlite3.Row
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_TABLES)

    def add(self, job: Job) -> Job:
        """Puts a new job in; gives the earlier one where its owner has used the idempotency key before.

        Raises:
            Conflict: the key was used for another body.
        """
        if job.idempotency_key is None:
            # One statement is a transaction of its own, with one wait for the interpreter instead of four under the lock.
            self._insert(job)
            return job
        with self._transaction():
            earlier = self.repeated(job)
            if earlier is None:
                self._insert(job)
        return earlier or job

    def repeated(self, job: Job) -> Job | None:
        """The job that the same request made before, told by its owner and its idempotency key.

        Raises:
            Conflict: the key was used for another body.
        """
        if job.idempotency_key is None:
            return None
        row = self._one("SELECT * FROM jobs WHERE owner = ? AND idempotency_key = ?", job.owner, job.idempotency_key)
        if row is None:
            return None
        if row["body_digest"] != job.body_digest:
            raise Conflict("the idempotency key was used for another request", hint="use a new key for a new request")
        return _job(row)

    def get(self, job_id: str) -> Job:
        """One job.

        Raises:
            UnknownJob: there is none of this id.
        """
        row = self._one("SELECT * FROM jobs WHERE id = ?", job_id)
        if row is None:
            raise UnknownJob(f"there is no video {_quoted(job_id)}")
        return _job(row)

    def page(self, *, after: str | None, limit: int, is_ascending: bool) -> tuple[list[Job], bool]:
        """Up to `limit` jobs behind `after` in order of creation, and whether there are more; synchronous ones are left out.

        Raises:
            InvalidRequest: `after` is no job.
        """
        where, order, values = "is_sync = 0", "ASC" if is_ascending else "DESC", list[Any]()
        if after is not None:
            row = self._one("SELECT number FROM jobs WHERE id = ?", after)
            if row is None:
                raise InvalidRequest("after", after, "it must be the id of a video that is there")
            where += f" AND number {'>' if is_ascending else '<'} ?"
            values.append(row["number"])
        rows = self._all(f"SELECT * FROM jobs WHERE {where} ORDER BY number {order} LIMIT ?", *values, limit + 1)
        return [_job(row) for row in rows[:limit]], len(rows) > limit

    def claim(self) -> Job | None:
        """Takes the job that has waited longest and marks it as running."""
        with self._transaction():
            row = self._one("SELECT * FROM jobs WHERE status = ? ORDER BY number LIMIT 1", QUEUED)
            if row is None:
                return None
            self._move(row["id"], QUEUED, RUNNING, started_at=time.time(), attempts=row["attempts"] + 1)
            return self.get(row["id"])

    def move(self, job_id: str, to: str, **columns: Any) -> bool:
        """Brings a job into another state; False when it is gone, or in a state from which no way leads there."""
        with self._transaction():
            row = self._one("SELECT status FROM jobs WHERE id = ?", job_id)
            if row is None or to not in TRANSITIONS[row["status"]]:
                return False
            if not TRANSITIONS[to]:
                columns.setdefault("ended_at", time.time())
            self._move(job_id, row["status"], to, **columns)
        return True

    def remove(self, job_id: str) -> None:
        """Forgets a job."""
        self._run("DELETE FROM jobs WHERE id = ?", job_id)

    def recover(self, *, is_rerun: bool, ttl_seconds: float | None = None) -> None:
        """To be called before anything runs: what ran when the server was killed waits again, once, or has failed.

        A synchronous job's caller is gone with the connection, so such jobs are forgotten.

        Args:
            is_rerun: whether they wait again.
            ttl_seconds: how long the files of those that failed are kept; None for ever.
        """
        now = time.time()
        expires_at = None if ttl_seconds is None else now + ttl_seconds
        again = MAX_ATTEMPTS if is_rerun else 0
        error = {
            "code": "interrupted", "message": "the server was stopped while this ran", "hint": "ask for it again",
            "details": {},
        }  # fmt: skip
        with self._transaction():
            self._run("DELETE FROM jobs WHERE is_sync = 1")
            self._run(
                "UPDATE jobs SET status = ?, ended_at = ?, expires_at = ?, error = ? WHERE status = ? AND attempts >= ?",
                FAILED, now, expires_at, json.dumps(error), RUNNING, again,
            )  # fmt: skip
            self._run("UPDATE jobs SET status = ?, started_at = NULL WHERE status = ?", QUEUED, RUNNING)

    def ids(self) -> set[str]:
        """Every job's id."""
        return {row["id"] for row in self._all("SELECT id FROM jobs WHERE is_expired = 0")}

    def count(self, *states: str, owner: str | None = None) -> int:
        """Jobs in these states, of one owner or of all."""
        marks = ", ".join("?" * len(states))
        query, values = f"SELECT COUNT(*) FROM jobs WHERE status IN ({marks})", [*states]
        if owner is not None:
            query, values = f"{query} AND owner = ?", [*values, owner]
        row = self._one(query, *values)
        return 0 if row is None else int(row[0])

    def outdated(self, now: float) -> list[Job]:
        """Jobs whose files have been kept for their time."""
        return [_job(row) for row in self._all("SELECT * FROM jobs WHERE is_expired = 0 AND expires_at < ?", now)]

    def expire(self, job_id: str) -> None:
        """Notes down that the files of a job are gone."""
        self._run("UPDATE jobs SET is_expired = 1 WHERE id = ?", job_id)

    def forget_expired(self, before: float) -> None:
        """Forgets jobs whose files went before that time."""
        self._run("DELETE FROM jobs WHERE is_expired = 1 AND expires_at < ?", before)

    def add_file(self, stored: StoredFile) -> None:
        """Notes down an uploaded file."""
        marks = ", ".join("?" * len(_FILE_COLUMNS))
        values = [getattr(stored, name) for name in _FILE_COLUMNS]
        self._run(f"INSERT INTO files ({', '.join(_FILE_COLUMNS)}) VALUES ({marks})", *values)

    def file(self, file_id: str) -> StoredFile:
        """One uploaded file.

        Raises:
            UnknownJob: there is none of this id.
        """
        row = self._one("SELECT * FROM files WHERE id = ?", file_id)
        if row is None:
            raise UnknownJob(f"there is no file {_quoted(file_id)}")
        return StoredFile(**{name: row[name] for name in _FILE_COLUMNS})

    def files(self) -> list[StoredFile]:
        """Every uploaded file, the newest first."""
        rows = self._all("SELECT * FROM files ORDER BY number DESC")
        return [StoredFile(**{name: row[name] for name in _FILE_COLUMNS}) for row in rows]

    def remove_file(self, file_id: str) -> None:
        """Forgets an uploaded file."""
        self._run("DELETE FROM files WHERE id = ?", file_id)

    def close(self) -> None:
        """Closes the table."""
        with self._lock:
            self._database.close()

    def _insert(self, job: Job) -> None:
        self._run(_INSERT, *_values(job))

    def _move(self, job_id: str, before: str, to: str, **columns: Any) -> None:
        changes = {"status": to, **columns}
        names = ", ".join(f"{name} = ?" for name in changes)
        values = [json.dumps(value) if name in _JSON else value for name, value in changes.items()]
        self._run(f"UPDATE jobs SET {names} WHERE id = ? AND status = ?", *values, job_id, before)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, _database_errors():
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _run(self, query: str, *values: Any) -> None:
        with self._lock, _database_errors():
            self._database.execute(query, values)

    def _one(self, query: str, *values: Any) -> sqlite3.Row | None:
        with self._lock, _database_errors():
            row: sqlite3.Row | None = self._database.execute(query, values).fetchone()
            return row

    def _all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._lock, _database_errors():
            return self._database.execute(query, values).fetchall()


@contextmanager
def _database_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise StorageFailed(
            f"the job table cannot be used now ({error})", hint="try again later, or tell who runs the server"
        ) from None


def _values(job: Job) -> list[Any]:
    given = {name: getattr(job, name) for name in _COLUMNS}
    return [json.dumps(value) if name in _JSON else value for name, value in given.items()]


def _job(row: sqlite3.Row) -> Job:
    values = {name: json.loads(row[name]) if name in _JSON else row[name] for name in _COLUMNS}
    return Job(**{**values, "is_sync": bool(row["is_sync"]), "is_expired": bool(row["is_expired"])})


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
