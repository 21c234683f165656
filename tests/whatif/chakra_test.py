#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""Tests hocket whatif on Chakra execution traces: protobuf and both kinds of JSON, nodes that a cluster prices,
damage."""
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "cli"))
import cli_util  # noqa: E402
import hostile_test  # noqa: E402

from chakra_util import node, trace, varint  # noqa: E402

CLUSTER = os.path.join(cli_util.ROOT, "configs", "clusters", "a100-16x8.yaml")
ALL_REDUCE, ALL_GATHER = 0, 2


def run(*words):
    return subprocess.run([cli_util.HOCKET, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          check=False)


class Chakra(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def write(self, name, data):
        path = os.path.join(self.folder.name, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def analyse(self, *words):
        done = run("whatif", *words, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def notes(self, found):
        return "\n".join(found["dropped"]["notes"])

    def ranks(self, packed=True, kind="int64"):
        """Returns two ranks with a product and an all-reduce; the first then sends a message that the second waits
        for."""
        return [[node(0, "mm", "COMP_NODE", duration=100),
                 node(1, "sum", "COMM_COLL_NODE", [0], 50, pg_name=("string", "0")),
                 node(2, "send", "COMM_SEND_NODE", [1], 10, comm_dst=(kind, 1), comm_tag=(kind, 4), packed=packed)],
                [node(0, "mm", "COMP_NODE", duration=300),
                 node(1, "sum", "COMM_COLL_NODE", [0], 50, pg_name=("string", "0")),
                 node(2, "recv", "COMM_RECV_NODE", [], 20, comm_src=(kind, 0), comm_tag=(kind, 4)),
                 node(3, "mm", "COMP_NODE", [2, 1, 9], 40, control=[3, 8], packed=packed)]]

    def test_protobuf(self):
        for packed, kind, version in ((True, "int64", "0.0.4"), (False, "sint32", None), (True, "fixed32", "1"),
                                      (True, "double", "1.1"), (False, "sfixed64", "2"), (True, "float", "3")):
            paths = []
            for i, nodes in enumerate(self.ranks(packed, kind)):
                data = trace(nodes, version)
                paths.append(self.write(f"t.{i}.et", gzip.compress(data) if kind == "double" else data))
            found = self.analyse(*paths)
            self.assertEqual(found["format"], "chakra")
            self.assertAlmostEqual(found["T"], (300 + 50 + 20 + 40) * 1e-6, places=12, msg=kind)
            # Dependencies on missing nodes are reported (astra-sim#338 refuses them).
            self.assertIn("1 wait for nodes that are not in the files", self.notes(found))

    def test_control_dependencies_in_cycles(self):
        """Linked traces have nodes that are their own parent, and parents that wait for what they call. Chakra's feeder
        issues nodes by their data."""
        nodes = [node(1, "root", "COMP_NODE", [], 10, control=[1]),
                 node(2, "call", "COMP_NODE", [1], 20, control=[3]),
                 node(3, "mm", "COMP_NODE", [2], 30, control=[2]),
                 node(4, "apart", "COMP_NODE", [], 5, control=[3])]
        found = self.analyse(self.write("0.et", trace(nodes)))
        self.assertAlmostEqual(found["T"], 60e-6, places=12)
        self.assertIn("4 waits of control: nodes are issued by their data", self.notes(found))
        # Without any for data, control is all there is.
        nodes = [node(1, "root", "COMP_NODE", [], 10, control=[1]), node(2, "mm", "COMP_NODE", [], 20, control=[1])]
        found = self.analyse(self.write("1.et", trace(nodes)))
        self.assertAlmostEqual(found["T"], 30e-6, places=12)
        self.assertIn("of control", found["dependencies"])
        self.assertIn("1 wait of nodes for themselves, one is node 1 of", self.notes(found))

    def refused(self, *ranks):
        paths = [self.write(f"c{i}.et", trace(nodes)) for i, nodes in enumerate(ranks)]
        done = run("whatif", *paths)
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertNotIn("one order of messages", done.stderr)
        return done.stderr

    def test_cycles_are_named_by_ids(self):
        said = self.refused([node(11, "a", "COMP_NODE", [14], 10), node(12, "b", "COMP_NODE", [11], 10),
                             node(14, "c", "COMP_NODE", [12], 10), node(15, "d", "COMP_NODE", [14], 10)])
        self.assertRegex(said, "node (11 for 14 for 12 for 11|14 for 12 for 11 for 14|12 for 11 for 14 for 12);")
        self.assertIn("data_deps", said)
        # Two collectives in opposite orders.
        group = {"pg_name": ("string", "0")}
        def sum_of(number, name, waits):
            return node(number, name, "COMM_COLL_NODE", waits, 10, **group)
        said = self.refused([sum_of(1, "x", []), sum_of(2, "y", [1])], [sum_of(5, "y", []), sum_of(6, "x", [5])])
        self.assertRegex(said, "[12] of rank 0|[56] of rank 1")

    def test_kernels_that_ran_against_their_dependencies(self):
        """Where a kernel began before what it waits for, its times give no dependency that closes a cycle."""
        device = {"is_cpu_op": ("bool", 0)}
        nodes = [node(1, "early", "COMP_NODE", [2], 10, start=100, **device),
                 node(2, "late", "COMP_NODE", [], 10, start=200, **device)]
        found = self.analyse(self.write("0.et", trace(nodes)))
        self.assertAlmostEqual(found["T"], 20e-6, places=12)
        self.assertIn("1 wait of kernels by when they ran", self.notes(found))

    def test_json_of_both_kinds(self):
        # protobuf's JSON leaves out zeros, also the id of the first node.
        json_nodes = [{"name": "mm", "type": "COMP_NODE", "durationMicros": "100"},
                      {"id": "1", "name": "mm", "type": "COMP_NODE", "ctrlDeps": ["0"], "durationMicros": "7"}]
        path = self.write("0.json", "\n".join(map(json.dumps, [{"version": "0.0.4"}, *json_nodes])).encode())
        found = self.analyse(path)
        self.assertAlmostEqual(found["T"], 107e-6, places=12)
        self.assertNotIn("not in the files", self.notes(found))
        # The form that Chakra's feeder reads.
        feeder = {"workload_graph": [
            {"Id": 0, "Name": "mm", "NodeType": 4, "is_cpu_op": False, "runtime": 100, "data_deps": []},
            {"Id": 1, "Name": "sum", "NodeType": 7, "is_cpu_op": False, "runtime": 30, "data_deps": [0],
             "comm_type": 0, "comm_size": 1024}]}
        self.assertAlmostEqual(self.analyse(self.write("1.json", json.dumps(feeder).encode()))["T"], 130e-6, places=12)

    def untimed(self):
        """Writes four ranks without durations: products, a load, all-reduces of pairs, an all-gather of all, a
        message."""
        ranks = []
        for rank in range(4):
            nodes = [node(0, "mm", "COMP_NODE", num_ops=("int64", 10**12), tensor_size=("uint64", 10**6)),
                     node(1, "load", "MEM_LOAD_NODE", [0], tensor_size=("uint64", 10**9)),
                     node(2, "sum", "COMM_COLL_NODE", [1], comm_type=("int64", ALL_REDUCE), comm_size=("int64", 2**26),
                          pg_name=("string", str(rank // 2))),
                     node(3, "gather", "COMM_COLL_NODE", [2], comm_type=("int64", ALL_GATHER),
                          comm_size=("int64", 2**24), pg_name=("string", "all"))]
            if rank == 0:
                nodes.append(node(4, "send", "COMM_SEND_NODE", [3], comm_dst=("int32", 3), comm_size=("int64", 2**20)))
            if rank == 3:
                nodes.append(node(4, "recv", "COMM_RECV_NODE", [3], comm_src=("int32", 0), comm_size=("int64", 2**20)))
            ranks.append(self.write(f"u.{rank}.et", trace(nodes)))
        return ranks

    def cost(self, op, size, ranks):
        """Returns the seconds that the cluster's model gives."""
        done = run("simulate", "op", op, "--bytes", str(size), "--ranks", str(ranks), "--cluster", CLUSTER, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)[0]["time_us"] * 1e-6

    def test_cluster_prices_what_has_no_duration(self):
        paths = self.untimed()
        refused = run("whatif", *paths)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--cluster", refused.stderr)
        found = self.analyse(*paths, "--cluster", CLUSTER)
        launch, memory = 3e-6, 2039e9 * 0.305
        expected = [launch + 1e12 / (312e12 * 0.74), launch + 1e9 / memory, self.cost("all_reduce", 2**26, 2),
                    self.cost("all_gather", 4 * 2**24, 4), self.cost("send", 2**20, 2)]
        self.assertAlmostEqual(found["T"], sum(expected), delta=1e-8)
        self.assertIn("18 nodes without a duration got one by a100-16x8", self.notes(found))
        # A node without a size, and an unknown collective, take no time and are reported.
        nodes = [node(0, "mm", "COMP_NODE", duration=10), node(1, "mm", "COMP_NODE", [0]),
                 node(2, "barrier", "COMM_COLL_NODE", [1], comm_type=("int64", 9), comm_size=("int64", 100))]
        paths = [self.write(f"v.{i}.et", trace(nodes)) for i in range(2)]
        found = self.analyse(*paths, "--cluster", CLUSTER)
        self.assertAlmostEqual(found["T"], 10e-6, places=12)
        self.assertIn("4 nodes did not", self.notes(found))

    def test_collectives_with_a_root(self):
        """A member of a scatter may say its part, or nothing; the root says the whole."""
        size = 2**24
        for number, op, grows in ((1, "reduce", 1), (3, "gather", 4), (4, "scatter", 1), (5, "broadcast", 1)):
            paths = []
            for rank in range(4):
                own = size // 4 if op == "scatter" and rank else size
                nodes = [node(0, op, "COMM_COLL_NODE", comm_type=("int64", number), comm_size=("int64", own))]
                paths.append(self.write(f"{op}.{rank}.et", trace(nodes)))
            with self.subTest(op):
                found = self.analyse(*paths, "--cluster", CLUSTER)
                self.assertAlmostEqual(found["T"], self.cost(op, grows * size, 4), delta=1e-8)
                self.assertIn("4 nodes without a duration got one", self.notes(found))
                self.assertNotIn("did not", self.notes(found))

    def test_a_rank_is_priced_on_its_own_node(self):
        cluster = self.write("two.yaml", b"""
name: two
nodes: 2
devices_per_node: 1
device: {name: d, memory: {value: 1GB}, memory_bandwidth: {value: 100GB/s}, peak: {f32: {value: 1TFLOP/s}},
         efficiency: {matmul: {value: 1}, attention: {value: 1}, memory: {value: 1}}}
links: {intra: {latency: {value: 1us}, bandwidth: {value: 1GB/s}}, inter: {latency: {value: 1us}, bandwidth: {value: 1GB/s}}}
heterogeneous_nodes: [{first: 1, speed: 0.5}]
""")
        paths = [self.write(f"h.{rank}.et", trace([node(0, "load", "MEM_LOAD_NODE", tensor_size=("uint64", 10**9))]))
                 for rank in range(2)]
        self.assertAlmostEqual(self.analyse(*paths, "--cluster", cluster)["T"], 20e-3, places=9)

    def test_where_a_cluster_is_not_taken(self):
        path = self.write("trace.json", json.dumps({"schemaVersion": 1, "traceEvents": []}).encode())
        done = run("whatif", path, "--cluster", CLUSTER)
        self.assertEqual(done.returncode, 2)
        self.assertIn("Chakra trace only", done.stderr)
        many = self.write("one.et", trace([node(0, "mm", "COMP_NODE", duration=1)]))
        self.assertEqual(run("whatif", *[many] * 129, "--cluster", CLUSTER).returncode, 2)

    def test_kernels_that_wait_for_nobody(self):
        """In linked profiles (mlcommons/chakra#215) kernels depend on their launches only. Two kernels run one after
        another, one beside the second; an all-reduce follows the first in another queue."""
        kernel = {"is_cpu_op": ("bool", 0)}
        nodes = [node(0, "launch", "COMP_NODE", duration=5, start=1000, is_cpu_op=("bool", 1)),
                 node(1, "gemm", "COMP_NODE", [0], 100, 1005, **kernel),
                 node(2, "gemm", "COMP_NODE", [0], 100, 1105, **kernel),
                 node(3, "copy", "COMP_NODE", [0], 100, 1150, **kernel),
                 node(4, "gemm", "COMP_NODE", [0], 100, 1250, **kernel),
                 node(5, "sum", "COMM_COLL_NODE", [0], 400, 1105, **kernel),
                 node(6, "sum", "COMM_COLL_NODE", [0], 10, 1505, **kernel)]
        found = self.analyse(self.write("q.et", trace(nodes)))
        # 5; gemm to 105; gemm to 205, copy beside it; gemm to 305; all-reduces from 5 to 405 and 415.
        self.assertAlmostEqual(found["T"], 415e-6, places=12)
        self.assertEqual(found["dependencies"], "the trace's; of kernels of a device also by when they ran")
        longer = [*nodes[:4], node(4, "gemm", "COMP_NODE", [0], 300, 1250, **kernel), *nodes[5:]]
        self.assertAlmostEqual(self.analyse(self.write("r.et", trace(longer)))["T"], 505e-6, places=12)

    def test_dims_and_doubles_are_told(self):
        nodes = [node(0, "mm", "COMP_NODE", duration=10), node(0, "mm", "COMP_NODE", duration=90),
                 node(1, "sum", "COMM_COLL_NODE", [0], 5, involved_dim=("bool_list", [1, 0])),
                 node(2, "sum", "COMM_COLL_NODE", [0], 5, involved_dim=("bool_list", [1, 1]))]
        found = self.analyse(*[self.write(f"d.{i}.et", trace(nodes)) for i in range(2)])
        self.assertAlmostEqual(found["T"], 15e-6, places=12)
        self.assertIn("which ranks 2 collectives are of", self.notes(found))
        self.assertIn("1 node of ", self.notes(found))
        self.assertEqual(found["dropped"]["events"], 2)

    def test_unknown_types_and_starts_of_zero_are_told(self):
        nodes = [{"id": i, "name": "mm", "type": kind, "data_deps": [i - 1] if i else [], "start_time_micros": 0,
                  "duration_micros": 10} for i, kind in enumerate(("COMP_NODE", "FOO_NODE", "COMP_NODE"))]
        path = self.write("u.0.json", json.dumps({"nodes": nodes}).encode())
        found = self.analyse(path)
        self.assertAlmostEqual(found["T"], 30e-6, places=12)
        self.assertIn("1 node of ", self.notes(found))
        self.assertIn("of unknown type 'FOO_NODE', taken as one that computes", self.notes(found))
        # All begin at 0, so the duration of the step is unknown.
        self.assertIn("has no starts", self.notes(found))
        self.assertIsNone(found["T_measured"])
        self.assertIn("fidelity  replayed 30 us a step; dependencies", run("whatif", path).stdout)

    def test_cut_off(self):
        data = trace(self.ranks()[1])
        whole = self.analyse(self.write("w.et", data), "--format", "chakra")
        found = self.analyse(self.write("c.et", data[:-3]), "--format", "chakra")
        self.assertIn("is cut off or damaged after", self.notes(found))
        self.assertLess(found["T"], whole["T"])
        # A message that is no node, in between.
        odd = trace(self.ranks()[1][:1]) + varint(3) + b"\xff\xff\xff" + b"".join(
            varint(len(m)) + m for m in self.ranks()[1][1:])
        found = self.analyse(self.write("o.et", odd))
        self.assertAlmostEqual(found["T"], whole["T"], places=12)
        self.assertIn("1 message of ", self.notes(found))
        for data in (b"", b"\0", varint(200) + b"x", b"\xff" * 20, trace([]), trace([b""])):
            for words in ([], ["--format", "chakra"]):
                self.assertEqual(run("whatif", self.write("n.et", data), *words).returncode, 2, data)

    def test_damage(self):
        """Flipped, cut and doubled bytes give a report or exit code 2."""
        rng = random.Random(f"{hostile_test.SEED} chakra")
        for number in range(60 * int(os.environ.get("HOSTILE_ROUNDS", "1"))):
            files = [trace(nodes) for nodes in self.ranks()]
            files[number % 2] = hostile_test.damage(files[number % 2], rng)
            paths = [self.write(f"x.{i}.et", data) for i, data in enumerate(files)]
            for words in ([], ["--format", "chakra"], ["--format", "chakra", "--cluster", CLUSTER]):
                done = run("whatif", *paths, *words, "--json", "--surface")
                case = f"{number} {words}: {done.stderr[-500:]}"
                self.assertIn(done.returncode, (0, 2), case)
                for word in hostile_test.FORBIDDEN:
                    self.assertNotIn(word, done.stderr, case)
                if done.returncode == 0:
                    json.loads(done.stdout, parse_constant=self.fail)



if __name__ == "__main__":
    unittest.main()
