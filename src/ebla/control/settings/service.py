"""Serves the verbs by which operators read and change settings."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import msgspec

from ebla.control.settings.replication import MESSAGE_BYTES_MAX
from ebla.control.settings.settings_node import SentChange, SettingsNode
from ebla.model.errors import EblaError, InvalidRequest, Refused
from ebla.model.identity import HostId
from ebla.ports.clock import Clock
from ebla.settings_store.entry import Entry
from ebla.settings_store.node_store import KEYS_MAX, Decision, SettingsStore, Writer
from ebla.settings_store.registry import ACTOR_NAME, node_key, split_key
from ebla.wire.peers import Peers
from ebla.wire.server import IncomingCall, Server
from ebla.wire.settings_messages import (
    HostProblem,
    SettingChange,
    SettingHistoryView,
    SettingsGetRequest,
    SettingsHistoryAnswer,
    SettingsHistoryRequest,
    SettingsListAnswer,
    SettingsListRequest,
    SettingsPurgeAnswer,
    SettingsPurgeRequest,
    SettingsPurgeStatusAnswer,
    SettingsPurgeStatusRequest,
    SettingsWatchAnswer,
    SettingsWatchRequest,
    SettingsWriteAnswer,
    SettingsWriteRequest,
    SettingView,
)
from ebla.wire.verbs import (
    SETTINGS_GET,
    SETTINGS_HISTORY,
    SETTINGS_LIST,
    SETTINGS_PURGE,
    SETTINGS_PURGE_STATUS,
    SETTINGS_WATCH,
    SETTINGS_WRITE,
)

PAGE_SETTINGS_MAX = 500
ASK_LEADER_MS = 1_000
WAIT_MS_MAX = 30_000


class SettingsService:
    def __init__(self, node: SettingsNode, peers: Peers, clock: Clock) -> None:
        self._node = node
        self._cluster = node.cluster
        self._peers = peers
        self._clock = clock

    def serve_own(self, server: Server) -> None:
        server.serve(SETTINGS_LIST, self._list)
        server.serve(SETTINGS_GET, self._get)
        server.serve(SETTINGS_WRITE, self._write)
        server.serve(SETTINGS_WATCH, self._watch)
        server.serve(SETTINGS_HISTORY, self._history)
        server.serve(SETTINGS_PURGE, self._pass_purge_on)
        server.serve(SETTINGS_PURGE_STATUS, self._purge_status)

    def serve_peers(self, server: Server) -> None:
        """What nodes ask of one another on behalf of an operator."""
        server.serve(SETTINGS_WRITE, self._write)
        server.serve(SETTINGS_PURGE, self._purge)
        server.serve(SETTINGS_PURGE_STATUS, self._purge_status)

    # ---- reads

    def _list(self, request: SettingsListRequest, _call: IncomingCall) -> SettingsListAnswer:
        store = self._node.store
        names = sorted({*store.registry.settings, *store.entries})
        chosen = [
            name
            for name in names
            if name.startswith(request.prefix) and name > request.after and self._is_shown(name, request)
        ]
        views: list[SettingView] = []
        size = 0
        hosts = self._hosts_by_actor()
        for name in chosen[:PAGE_SETTINGS_MAX]:
            if size > MESSAGE_BYTES_MAX:
                break
            views.append(self._view(name, hosts))
            size += len(name) + len(views[-1].value or b"")
        return SettingsListAnswer(tuple(views), len(views) < len(chosen), self._node.durable.serial)

    def _is_shown(self, name: str, request: SettingsListRequest) -> bool:
        store = self._node.store
        return request.deleted or name in store.registry.settings or name not in store.tombstones

    def _get(self, request: SettingsGetRequest, _call: IncomingCall) -> SettingView:
        registry = self._node.store.registry
        name, field = registry.split_field(request.name)
        if name not in self._node.store.entries:
            registry.check_name(name)
        view = self._view(name, self._hosts_by_actor())
        if not field or view.value is None:
            return view
        fields = msgspec.json.decode(view.value, type=dict[str, msgspec.Raw])
        if field not in fields:
            raise InvalidRequest(f"{name} has no field {field}", advice=f"known: {', '.join(fields)}")
        return msgspec.structs.replace(view, name=request.name, value=bytes(fields[field]))

    def _view(self, name: str, hosts: Mapping[UUID, HostId]) -> SettingView:
        store = self._node.store
        setting = store.registry.settings.get(name)
        if setting is None:
            entry = store.entries.get(name)
            return self._described(
                SettingView(
                    name=name,
                    value=store.valid_value(name),
                    is_deleted=entry is not None and entry.is_tombstone,
                    problem=store.registry.problem(name, store.get(name)),
                ),
                entry,
                hosts,
            )
        found = store.in_effect(name)
        parts = split_key(found.key) if found.key else None
        view = SettingView(
            name=name,
            value=msgspec.json.encode(setting.default) if found.value is None else found.value,
            is_default=found.value is None,
            is_deleted=name in store.tombstones,
            problem=found.problem,
            own_of=None if parts is None else parts.host,
        )
        return self._described(view, store.entries.get(found.key or name), hosts)

    def _described(self, view: SettingView, entry: Entry | None, hosts: Mapping[UUID, HostId]) -> SettingView:
        stamp = None if entry is None else entry.newest_stamp
        if stamp is None:
            return view
        host = hosts.get(stamp.actor)
        return msgspec.structs.replace(
            view, changed_wall_us=stamp.wall_us, changed_by=host, changed_at=self._name_of(host, stamp.actor)
        )

    def _hosts_by_actor(self) -> dict[UUID, HostId]:
        store = self._node.store
        found = {store.header.actor: store.host}
        if self._cluster.group0.is_running:
            for member in self._cluster.store.members.values():
                actor = store.get(node_key(member.host, ACTOR_NAME))
                try:
                    found[UUID((actor or b"").decode())] = member.host
                except ValueError:
                    continue  # it has published none yet
        return found

    def _name_of(self, host: HostId | None, actor: UUID | None) -> str:
        if host is None:
            return f"a node that is not known any more (actor {actor})"
        return self._cluster.address_of(host) if self._cluster.group0.is_running else str(host)

    async def _watch(self, request: SettingsWatchRequest, call: IncomingCall) -> SettingsWatchAnswer:
        loop = asyncio.get_running_loop()
        expires_at = loop.time() + min(request.wait_ms, call.work_ms()) / 1000
        while True:
            keys = self._node.changes_since(request.after)
            serial = self._node.durable.serial
            if keys is None:
                return SettingsWatchAnswer(serial=serial, reset=True)
            names = sorted({name for key in keys for name in self._names_of(key) if name.startswith(request.prefix)})
            if len(names) > PAGE_SETTINGS_MAX:
                return SettingsWatchAnswer(serial=serial, reset=True)
            if names or loop.time() >= expires_at:
                hosts = self._hosts_by_actor()
                return SettingsWatchAnswer(serial=serial, settings=tuple(self._view(name, hosts) for name in names))
            await self._node.changed.wait(expires_at - loop.time())

    def _names_of(self, key: str) -> tuple[str, ...]:
        """An own value of this node changes what is in effect under the setting's name too."""
        parts = split_key(key)
        if parts is None or parts.host != self._node.store.host or parts.name not in self._node.store.registry.settings:
            return (key,)
        return (key, parts.name)

    def _history(self, request: SettingsHistoryRequest, _call: IncomingCall) -> SettingsHistoryAnswer:
        store, hosts = self._node.store, self._hosts_by_actor()
        if request.name not in store.history:
            store.registry.check_name(request.name)
        found = []
        for record in store.history.get(request.name, ()):
            host = None if record.actor is None else hosts.get(record.actor)
            found.append(
                SettingHistoryView(
                    seen_wall_us=record.seen_wall_us,
                    changed_wall_us=record.changed_wall_us,
                    changed_by=host,
                    changed_at=self._name_of(host, record.actor),
                    old=record.old,
                    new=record.new,
                    lost=record.lost,
                )
            )
        return SettingsHistoryAnswer(tuple(found))

    # ---- writes

    async def _write(self, request: SettingsWriteRequest, call: IncomingCall) -> SettingsWriteAnswer:
        await self._cluster.wait_members_known(call.work_ms())
        own = self._cluster.find_host(request.on) if request.on else None
        if own is not None and own != self._cluster.host:
            return await self._peers.call(own, SETTINGS_WRITE, request, call.work_ms())
        blocked_by = await self._blocked_by() if len(self._node.store.entries) >= KEYS_MAX else ""

        def decide(store: SettingsStore, writer: Writer) -> Decision:
            for expected in request.expected:
                _check_expected(store, expected, own)
            changes = dict(_parsed(store, change, own) for change in request.changes)
            return store.write(changes, self._clock.wall_us(), writer)

        sent = await self._node.change(decide, blocked_by)
        missing = await self._wait_for_peers(sent, min(request.wait_ms, WAIT_MS_MAX, call.work_ms()))
        return SettingsWriteAnswer(
            changed=sent.decision.update is not None, members=max(1, len(self._cluster.members())), missing=missing
        )

    async def _wait_for_peers(self, sent: SentChange, wait_ms: int) -> tuple[HostProblem, ...]:
        if not sent.decision.pushed:
            return ()
        if sent.acknowledged:
            await asyncio.wait(sent.acknowledged.values(), timeout=wait_ms / 1000)
        missing = []
        for member in self._cluster.others():
            result = sent.acknowledged.get(member.host)
            cause = "has not acknowledged it yet" if result is None or not result.done() else result.result()
            if cause:
                missing.append(self._cluster.problem(member.host, cause))
        return tuple(missing)

    async def _blocked_by(self) -> str:
        status = await self._purge_status_of_leader()
        last = None if status is None else status.last_round
        if last is None:
            return ""
        hosts = ", ".join(f"{one.address} ({one.cause})" for one in last.problems)
        return ": ".join(part for part in (last.result, hosts or last.detail) if part)

    # ---- purge

    async def _pass_purge_on(self, request: SettingsPurgeRequest, call: IncomingCall) -> SettingsPurgeAnswer:
        leader = self._cluster.leader()
        if leader == self._cluster.host:
            return await self._purge(request, call)
        return await self._peers.call(leader, SETTINGS_PURGE, request, call.work_ms())

    async def _purge(self, request: SettingsPurgeRequest, call: IncomingCall) -> SettingsPurgeAnswer:
        wait_ms = min(request.wait_ms, call.work_ms())
        return await self._node.purger.serve(msgspec.structs.replace(request, wait_ms=wait_ms))

    async def _purge_status(
        self, request: SettingsPurgeStatusRequest, _call: IncomingCall
    ) -> SettingsPurgeStatusAnswer:
        own = self._own_purge_status()
        if not request.ask_leader or self._cluster.leads:
            return own
        of_leader = await self._purge_status_of_leader()
        return own if of_leader is None else msgspec.structs.replace(own, last_round=of_leader.last_round)

    async def _purge_status_of_leader(self) -> SettingsPurgeStatusAnswer | None:
        """None: it cannot be asked."""
        if self._cluster.leads:
            return self._own_purge_status()
        try:
            request = SettingsPurgeStatusRequest(ask_leader=False)
            return await self._peers.call(self._cluster.leader(), SETTINGS_PURGE_STATUS, request, ASK_LEADER_MS)
        except EblaError:
            return None

    def _own_purge_status(self) -> SettingsPurgeStatusAnswer:
        store, now_us = self._node.store, self._clock.wall_us()
        entries = [store.entries[key] for key in store.tombstones]
        future = [entry for entry in entries if entry.timestamp_us > now_us]
        hosts = self._hosts_by_actor()
        authors = {stamp.actor for entry in future if (stamp := entry.newest_stamp) is not None}
        names = {self._name_of(hosts.get(actor), actor) for actor in authors}
        header = store.header
        return SettingsPurgeStatusAnswer(
            now_wall_us=now_us,
            tentative_us=header.tentative_us,
            effective_us=header.effective_us,
            watermark_us=header.watermark_us,
            waiting=len(entries),
            oldest_wall_us=min((entry.timestamp_us for entry in entries), default=None),
            future=len(future),
            future_by=tuple(sorted(names)),
            last_round=self._node.purger.last,
            in_reset=self._node.reset.in_progress,
            leader=self._cluster.group0.running.leader_host() if self._cluster.group0.is_running else None,
        )


def _parsed(store: SettingsStore, change: SettingChange, own: HostId | None) -> tuple[str, bytes | None]:
    """The key and value that the operator means."""
    name, field = store.registry.split_field(change.name)
    key = name if own is None else node_key(own, name)
    if change.value is None:
        if field:
            raise InvalidRequest(f"{change.name} is a field", advice=f"delete {name} as a whole, or set the field")
        return key, None
    if field:
        return key, store.registry.parse_field(key, field, change.value, store.valid_value(key))
    return key, store.registry.parse(key, change.value)


def _check_expected(store: SettingsStore, expected: SettingChange, own: HostId | None) -> None:
    """Raises `Refused` unless the setting has this value; one that is not set has its default."""
    name, field = store.registry.split_field(expected.name)
    key = name if own is None else node_key(own, name)
    setting = store.registry.find(key)
    actual = store.valid_value(key)
    if actual is None and setting is not None and expected.value is not None:
        actual = msgspec.json.encode(setting.default)
    wanted: object = None
    if expected.value is not None:
        text = expected.value
        parse = store.registry
        wanted = parse.parse_field(key, field, text, actual) if field else parse.parse(key, text)
    holds = actual == wanted
    if not holds and setting is not None and actual is not None and isinstance(wanted, bytes):
        holds = setting.decode(actual) == setting.decode(wanted)
    if not holds:
        shown = "not set" if actual is None else actual[:256].decode(errors="replace")
        raise Refused(f"{key} is {shown}, not {expected.value}", advice="read it again and decide again")
