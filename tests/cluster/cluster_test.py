#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: serial
# ctest: slow, without sanitizers
# ctest: timeout=600
"""Tests tools/cluster: rates, delays and counters of links, stopping of ranks, and remains."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.environ.get("HOCKET_SOURCE_DIR") or os.path.dirname(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)
TOOL = os.path.join(ROOT, "tools", "cluster")
sys.path.insert(0, os.path.join(ROOT, "tools"))
import netbox  # noqa: E402

WHY_NOT = netbox.why_not()

# Rank 0 sends argv[2] bytes to the last rank, whose address is argv[1].
SEND = """
import os, socket, sys, time
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
if rank == world - 1:
    server = socket.create_server((sys.argv[1], 4000))
    sock, buffer, total = server.accept()[0], bytearray(1 << 16), 0
    while count := sock.recv_into(buffer):
        total += count
    print(total)
elif rank == 0:
    while True:
        try:
            sock = socket.create_connection((sys.argv[1], 4000))
            break
        except OSError:
            time.sleep(0.05)
    sock.sendall(bytes(int(sys.argv[2])))
    if len(sys.argv) > 3:  # as many again
        time.sleep(0.5)
        print("sent", flush=True)
        time.sleep(0.5)
        sock.sendall(bytes(int(sys.argv[2])))
"""


def call(*words, timeout=120):
    return subprocess.run([TOOL, *words], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def namespaces(owner=""):
    names = os.listdir("/run/netns") if os.path.isdir("/run/netns") else []
    return [n for n in names if n.startswith(netbox.PREFIX + owner)]


class Words(unittest.TestCase):
    """Tests that need no root."""

    def refused(self, text, *words):
        done = call(*words)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(text, done.stderr)

    def test_bad_words_are_refused_with_what_is_expected(self):
        self.refused("no command; expected e.g.", "--hosts", "2")
        self.refused("got the rate '1gb'; expected e.g. 1gbit", "--rate", "1gb", "--", "true")
        self.refused("got the delay '50'; expected e.g. 50us", "--delay", "50", "--", "true")
        self.refused("--rate has 2 values; expected 1, or 4", "--hosts", "4", "--rate", "1gbit,2gbit", "--", "true")
        self.refused("expected host2@5", "--fail", "2", "--", "true")
        self.refused("there are 2, counted from 0", "--fail", "host2@5", "--", "true")
        self.refused("--inside gives each rank", "--inside", "1gbit", "--per-host", "--", "true")
        self.refused("expected 1 to 200", "--hosts", "0", "--", "true")

    def test_help_teaches(self):
        text = call("--help").stdout
        for word in ("--rate 1gbit,1gbit,200mbit,1gbit", "--inside 10gbit", "--measure", "--clean", "root"):
            self.assertIn(word, text)

    @unittest.skipIf(os.geteuid() == 0, "is root")
    def test_says_that_it_needs_root(self):
        self.refused("need root", "--", "true")


@unittest.skipIf(WHY_NOT, f"no cluster in a box here: {WHY_NOT}")
class Cluster(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.json = os.path.join(self.folder, "result.json")

    def result(self, *words, code=0):
        done = call("--json", self.json, *words)
        self.assertEqual(done.returncode, code, done.stderr)
        with open(self.json) as f:
            return json.load(f), done

    def measured(self, check, *words):
        """Asserts `check` for every measured pair, and returns the result. Other work on the machine lowers rates and
        prolongs times, never the reverse. So a failed check measures again, and each pair keeps its best of three."""
        best = {}
        for tries_left in (2, 1, 0):
            found, _ = self.result(*words, "--measure")
            for pair in found["pairs"]:
                seen = best.setdefault((pair["from"], pair["to"]), pair)
                pair["mbit"] = max(pair["mbit"], seen["mbit"])
                pair["rtt_us"] = min(pair["rtt_us"], seen["rtt_us"])
                best[pair["from"], pair["to"]] = pair
            try:
                for pair in found["pairs"]:
                    check(pair)
                return found
            except AssertionError:
                if not tries_left:
                    raise

    def assert_rate(self, pair):
        """A link passes its rate at most. Packet headers take 5 % of it, the start of a connection and a busy machine
        more: 11 % were seen as the best of three. A shaper of another link would be off by a factor of two."""
        ratio = pair["mbit"] / pair["asked_mbit"]
        self.assertGreater(ratio, 0.7, pair)
        self.assertLess(ratio, 1.05, pair)

    def test_variables_of_a_launcher(self):
        names = "RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK NNODES MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME"
        words = " ".join("$" + n for n in names.split())
        _, done = self.result("--hosts", "2", "--ranks-per-host", "2", "--quiet", "--port", "1234", "--",
                              "sh", "-c", f'echo {words} $(hostname) "{{host}} {{rank}} {{local_rank}}"')
        self.assertEqual(
            sorted(done.stdout.splitlines()),
            [
                f"[{r}] {r} 4 {r % 2} 2 {r // 2} 2 10.97.0.1 1234 eth0 host{r // 2} {r // 2} {r} {r % 2}"
                for r in range(4)
            ],
        )
        self.assertEqual(done.stderr, "")
        _, done = self.result(
            "--hosts", "2", "--ranks-per-host", "2", "--per-host", "--", "sh", "-c", "echo $RANK- $NODE_RANK"
        )
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] - 0", "[1] - 1"])

    def test_links_carry_their_rates(self):
        def check(pair):
            slow = 1 in (pair["from"], pair["to"])
            self.assertEqual(pair["asked_mbit"], 50 if slow else 200)
            self.assert_rate(pair)

        found = self.measured(check, "--hosts", "3", "--rate", "200mbit,50mbit,none", "--measure-seconds", "1")
        self.assertEqual(len(found["pairs"]), 6)
        self.assertEqual(len(found["together"]), 3)

    def test_ranks_have_links_of_their_own_inside_a_host(self):
        def check(pair):
            same = pair["from"] // 2 == pair["to"] // 2
            self.assertEqual(pair["asked_mbit"], 500 if same else 50)
            self.assert_rate(pair)

        self.measured(check, "--hosts", "2", "--ranks-per-host", "2", "--rate", "50mbit", "--inside", "500mbit",
                      "--measure-seconds", "1")

    def test_links_take_their_delays(self):
        def check(pair):
            of = sum([5, 0, 2][x] for x in (pair["from"], pair["to"])) * 2e3
            self.assertEqual(pair["asked_rtt_us"], of)
            # A busy machine takes longer, never shorter: 1 ms was seen. A delay taken twice adds 4 ms and more.
            self.assertGreater(pair["rtt_us"], 0.97 * of)
            self.assertLess(pair["rtt_us"], of + 3000)
            self.assertEqual(pair["asked_mbit"], 100)
            self.assert_rate(pair)

        self.measured(check, "--hosts", "3", "--rate", "100mbit", "--delay", "5ms,0,2ms", "--measure-seconds", "1")

    def test_bytes_of_the_links(self):
        count = 20_000_000
        for extra, last in ((["--hosts", "2"], "10.97.1.1"), (["--hosts", "2", "--delay", "100us"], "10.97.1.1"),
                            (["--hosts", "2", "--ranks-per-host", "2", "--inside", "1gbit"], "10.97.1.2")):
            found, done = self.result(
                *extra, "--rate", "400mbit", "--", sys.executable, "-c", SEND, last, str(count)
            )
            self.assertIn(f"] {count}\n", done.stdout)
            self.assertRegex(done.stderr, r"host 0 +400 Mbit/s +2\d\.\d+ ")
            links = {("host" if "host" in x else "rank", x.get("host", x.get("rank"))): x for x in found["links"]}
            a, b = links["host", 0], links["host", 1]
            ways = [a["out"], b["in"]]
            if len(links) > 2:
                ways += [links["rank", 0]["out"], links["rank", 3]["in"]]
                self.assertLess(links["rank", 1]["out"]["bytes"], 10_000)
            for way in ways:
                self.assertAlmostEqual(way["payload"] / count, 1, delta=0.02, msg=way)
                # 66 bytes of headers for 1448 of payload
                self.assertAlmostEqual(way["bytes"] / count, 1514 / 1448, delta=0.02, msg=way)
            self.assertLess(a["in"]["payload"], 0.02 * count)

    def test_bytes_count_from_a_line(self):
        count = 5_000_000
        words = ["--hosts", "2", "--count-from", "sent", "--", sys.executable, "-c", SEND, "10.97.1.1", str(count)]
        found, done = self.result(*words, "twice")
        self.assertIn(f"] {2 * count}\n", done.stdout)
        self.assertAlmostEqual(found["links"][0]["out"]["payload"] / count, 1, delta=0.02)
        found, done = self.result(*words)
        self.assertIn("never printed 'sent'", done.stderr)
        self.assertAlmostEqual(found["links"][0]["out"]["payload"] / count, 1, delta=0.02)

    def test_a_failing_rank_stops_the_others(self):
        began = time.monotonic()
        found, done = self.result("--hosts", "3", "--", "sh", "-c", "test {rank} = 1 && exit 7; sleep 60", code=7)
        self.assertLess(time.monotonic() - began, 20)
        self.assertIn("rank 1 ended with 7; stopping the others", done.stderr)
        self.assertEqual([r["exit"] for r in found["ranks"]], [143, 7, 143])
        found, done = self.result(
            "--hosts", "3", "--keep-going", "--", "sh", "-c", "test {rank} = 1 && exit 7; sleep 1", code=7
        )
        self.assertEqual([r["exit"] for r in found["ranks"]], [0, 7, 0])

    def test_what_does_not_listen_is_killed(self):
        began = time.monotonic()
        self.result(
            "--hosts", "2", "--timeout", "1", "--", "sh", "-c", "trap '' TERM; sleep 60 & sleep 60", code=124
        )
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual(self.result("--hosts", "2", "--", "no-such-program", code=127)[0]["exit"], 127)

    def test_faults_on_order(self):
        found, _ = self.result(
            "--hosts",
            "3",
            "--ranks-per-host",
            "2",
            "--fail",
            "host2@0.5",
            "--fail",
            "rank1@0.5",
            "--keep-going",
            "--",
            "sleep",
            "2",
            code=137,
        )
        self.assertEqual([r["exit"] for r in found["ranks"]], [0, 137, 0, 0, 137, 137])
        cut = call(
            "--hosts",
            "2",
            "--fail",
            "link1@0.5",
            "--timeout",
            "3",
            "--",
            sys.executable,
            "-c",
            SEND,
            "10.97.1.1",
            "2000000000",
        )
        self.assertEqual(cut.returncode, 124, cut.stderr)

    def test_hosts_without_a_shared_folder(self):
        own = os.path.join(self.folder, "own")
        _, done = self.result(
            "--hosts",
            "2",
            "--private",
            own,
            "--",
            "sh",
            "-c",
            f"echo {{host}} > {own}/x; sleep 0.5; cat {own}/x",
        )
        self.assertEqual(sorted(done.stdout.splitlines()), ["[0] 0", "[1] 1"])
        self.assertEqual(os.listdir(own), [])

    @unittest.skipUnless(shutil.which("mpirun"), "no mpirun here (package openmpi-bin)")
    def test_a_launcher_reaches_the_hosts_by_a_remote_shell(self):
        _, done = self.result(
            "--hosts",
            "2",
            "--once",
            "--",
            "sh",
            "-c",
            "mpirun --allow-run-as-root --mca plm_rsh_agent $CLUSTER_RSH --mca oob_tcp_if_include eth0 "
            "-H host0:2,host1:2 -x MASTER_ADDR -x MASTER_PORT sh -c "
            "'echo $(hostname) $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_LOCAL_RANK $OMPI_COMM_WORLD_SIZE "
            "$OMPI_COMM_WORLD_LOCAL_SIZE $MASTER_ADDR:$MASTER_PORT'",
        )
        self.assertEqual(sorted(done.stdout.splitlines()),
                         [f"[0] host{r // 2} {r} {r % 2} 4 2 10.97.0.1:29500" for r in range(4)], done.stderr)

    def test_outputs_in_files(self):
        logs = os.path.join(self.folder, "logs")
        _, done = self.result(
            "--hosts",
            "2",
            "--files",
            logs,
            "--quiet",
            "--",
            "sh",
            "-c",
            "echo out {rank}; echo err {rank} >&2",
        )
        self.assertEqual((done.stdout, done.stderr), ("out 0\n", "err 0\n"))
        with open(os.path.join(logs, "rank-1.log")) as f:
            self.assertEqual(sorted(f.read().splitlines()), ["err 1", "out 1"])

    def start(self):
        """Starts a box; returns its process, once its ranks run, and the owner's part of its names."""
        child = subprocess.Popen(
            [TOOL, "--hosts", "2", "--delay", "1ms", "--", "sh", "-c", "echo up; sleep 300 & sleep 300"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.addCleanup(child.stdout.close)
        self.assertIn("up", child.stdout.readline())
        owner = f"{child.pid}-{netbox.start_time(child.pid)}-"
        self.assertEqual(len(namespaces(owner)), 3)
        return child, owner

    def test_nothing_is_left_after_a_signal(self):
        for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
            child, owner = self.start()
            child.send_signal(number)
            self.assertEqual(child.wait(timeout=20), code)
            self.assertEqual(namespaces(owner), [])
            self.assertFalse(os.path.exists(os.path.join(netbox.RUN, owner[:-1])))

    def test_what_a_killed_run_left_goes_at_the_next_start(self):
        other, other_owner = self.start()
        for words in (["--clean"], ["--hosts", "1", "--quiet", "--", "true"]):
            child, owner = self.start()
            pids = [p for n in namespaces(owner) for p in netbox.pids_in(n)]
            self.assertGreaterEqual(len(pids), 4)
            child.kill()
            child.wait()
            done = call(*words)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(namespaces(owner), [])
            self.assertFalse(any(netbox.start_time(p) for p in pids))
            self.assertEqual(len(namespaces(other_owner)), 3, "one that still runs must stay")
        other.terminate()
        other.wait(timeout=20)
        self.assertEqual(namespaces(other_owner), [])


if __name__ == "__main__":
    unittest.main()
