"""Bugs of heartbeats, liveness and the permission to serve."""

from tests.mutations.framework import Mutation, PytestCheck, SimSeeds

DETECTOR = PytestCheck("tests/unit/control/liveness/test_failure_detector.py")
WORLDS = PytestCheck("tests/sim/test_liveness.py")
STORM = SimSeeds("liveness", "1-50")

MUTATIONS = (
    Mutation(
        name="liveness-old-answer-counts",
        module="ebla.control.liveness.failure_detector",
        function="FailureDetector.answered",
        find="if before is None or now_ms - answer.asked_ms >= self.silence_ms:",
        replace="if before is None:",
        check=DETECTOR,
        why="a node that was paused would consider peers up that died meanwhile",
    ),
    Mutation(
        name="liveness-answer-counts-from-arrival",
        module="ebla.control.liveness.heartbeats",
        function="HeartbeatMonitor._beat",
        find="asked_ms=asked_ms",
        replace="asked_ms=self._clock.boot_ms()",
        check=WORLDS,
        why="old answers in a socket buffer would make a dead peer look alive",
    ),
    Mutation(
        name="liveness-down-too-late",
        module="ebla.control.liveness.failure_detector",
        function="FailureDetector._silent",
        find="return now_ms - peer.heard_ms >= self.silence_ms",
        replace="return now_ms - peer.heard_ms >= self.silence_ms * 2",
        check=STORM,
        why="requests would go to a dead peer for twice as long",
    ),
    Mutation(
        name="liveness-down-too-early",
        module="ebla.control.liveness.failure_detector",
        function="FailureDetector._silent",
        find="return now_ms - peer.heard_ms >= self.silence_ms",
        replace="return now_ms - peer.heard_ms >= self.silence_ms // 4",
        check=STORM,
        why="one late answer would mark a healthy peer down",
    ),
    Mutation(
        name="liveness-dead-connection-kept",
        module="ebla.control.liveness.heartbeats",
        function="HeartbeatMonitor._identify",
        find="self._forget(peer)\nhost = self._hosts[peer]",
        replace="host = self._hosts[peer]",
        check=WORLDS,
        why="a half-open connection keeps a healthy peer down for seconds, until the wire gives it up",
    ),
    Mutation(
        name="liveness-restart-unseen",
        module="ebla.control.liveness.failure_detector",
        function="FailureDetector.answered",
        find="same = before.host == answer.host and before.incarnation == answer.incarnation",
        replace="same = before.host == answer.host",
        check=DETECTOR,
        why="a peer that restarted between two heartbeats would look as if nothing had happened",
    ),
    Mutation(
        name="liveness-stale-opinion-shown",
        module="ebla.control.liveness.heartbeats",
        function="HeartbeatMonitor.peers",
        find="self._check()",
        replace="pass",
        check=STORM,
        why="a reader between two checks would see an expired `up`",
    ),
    Mutation(
        name="serving-without-control",
        module="ebla.node.shard_process",
        function="ShardProcess._has_right",
        find="now_ms = self._now_ms()",
        replace="now_ms = follower.last_heard_ms",
        check=STORM,
        why="a shard cut off from its control would keep serving with an outdated topology",
    ),
    Mutation(
        name="serving-counts-from-arrival",
        module="ebla.node.child_process",
        function="ChildProcess.send_heartbeats",
        find="self.control_answered(sent_ms, answer)",
        replace="self.control_answered(clock.boot_ms(), answer)",
        check=WORLDS,
        why="an old answer in the socket buffer of a paused shard would let it serve without a control",
    ),
    Mutation(
        name="clocks-offset-ignored",
        module="ebla.control.liveness.heartbeats",
        function="HeartbeatMonitor.clock_ahead_ms",
        find="one.offset_ms for one in",
        replace="0 * one.offset_ms for one in",
        check=PytestCheck(
            "tests/sim/test_liveness.py::test_a_node_whose_clock_is_far_ahead_of_the_others_assigns_no_timestamps"
        ),
        why="a node whose clock is days ahead would hide the writes of all others",
    ),
    Mutation(
        name="clocks-timestamp-not-checked",
        module="ebla.request.timestamps",
        function="WriteTimestamps.check",
        find="if self._ahead_max_ms and timestamp_us - now_us > self._ahead_max_ms * MICROSECONDS_PER_MS:",
        replace="if timestamp_us - now_us > 1 << 64:",
        check=PytestCheck("tests/unit/request/test_timestamps.py"),
        why="a row with the greatest timestamp can never be deleted",
    ),
    Mutation(
        name="serving-against-the-word-of-control",
        module="ebla.replica.serving",
        function="ServingRight.heard",
        find=" if allowed else 0",
        replace="",
        check=PytestCheck("tests/unit/replica/test_serving.py"),
        why="a stopping node would accept new requests",
    ),
)
