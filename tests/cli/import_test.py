# SPDX-License-Identifier: Apache-2.0
# ctest: slow
"""hocket profile --import turns logs into a cluster file, and hocket simulate op predicts times of other groups from
it. All logs are synthetic."""
import json
import math
import os
import subprocess
import tempfile
import unittest

import cli_util
import yaml
from nccl_log import log, sum_us

CLUSTERS = os.path.join(cli_util.ROOT, "configs", "clusters")


class ImportTest(unittest.TestCase):
    def setUp(self):
        self.box = tempfile.TemporaryDirectory()
        self.addCleanup(self.box.cleanup)

    def put(self, name, text):
        with open(os.path.join(self.box.name, name), "w", encoding="utf-8") as f:
            f.write(text)
        return name

    def hocket(self, *words):
        return subprocess.run([cli_util.HOCKET, *words], cwd=self.box.name, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60, check=False)

    def good(self, *words):
        r = self.hocket(*words)
        self.assertEqual(r.returncode, 0, r.stderr)
        return r.stdout

    def refused(self, part, *words):
        r = self.hocket(*words)
        self.assertEqual(r.returncode, 2, r.stdout + r.stderr)
        self.assertIn(part, r.stderr)

    def logs(self):
        return [self.put(f"all_reduce_{n}.log", log(n)) for n in (2, 4, 8)]

    def test_logs_of_one_node_predict_two(self):
        self.good("profile", "--import", *self.logs(), "--out", "c.yaml")
        times = json.loads(self.good("simulate", "op", "all_reduce", "--bytes", "1MiB,1GiB", "--ranks", "16",
                                     "--cluster", "c.yaml", "--json"))
        self.assertEqual([t["bytes"] for t in times], [2 ** 20, 2 ** 30])
        # 8 adapters of 15.85 GB/s, 26.25 steps inside and 3.75 between, as the shipped file says.
        expected = 30 + 26.25 + 3.75 * 14 + 1.875 * 2 ** 30 / (8 * 25e3 * 0.634)
        self.assertAlmostEqual(times[1]["time_us"] / expected, 1, delta=0.01)
        self.assertEqual(times[1]["algorithm"], "ring")
        self.assertEqual(times[1]["busiest"], "inter")

    def test_held_out_groups_are_predicted_and_told(self):
        told = json.loads(self.good("profile", "--import", *self.logs(), "--out", "c.yaml", "--hold-out", "8", "--json"))
        self.assertEqual(told["fitted"], ["links.intra"])
        self.assertEqual(told["times"], 2 * 21)  # of the groups that are not held out
        self.assertEqual((told["assumed"], told["dropped"]), ([], []))
        self.assertEqual(told["base"], "azure-nd-a100-v4")
        (error,) = told["held_out"]
        self.assertEqual((error["op"], error["ranks"], error["predicted_from"]), ("all_reduce", 8, "the rest"))
        self.assertLess(error["mean"], 0.02)
        with open(os.path.join(self.box.name, "c.yaml"), encoding="utf-8") as f:
            text = f.read()
        self.assertIn("fitted to all_reduce_2.log, all_reduce_4.log", text)
        self.assertNotIn("ranks: 8\n    nodes", text)
        self.assertIn("536870912, 1073741824]", text)  # exact sizes

    def test_times_of_a_second_import_join_those_of_the_first(self):
        def measured(cluster):
            with open(os.path.join(self.box.name, cluster), encoding="utf-8") as f:
                return {(t["op"], t["ranks"]): dict(zip(t["bytes"], t["us"])) for t in yaml.safe_load(f)["measured"]}

        def is_kept(line):
            return line.startswith("#") or int(line.split()[0]) >= 2 ** 20

        self.good("profile", "--import", *self.logs(), "--out", "c.yaml")
        again = log(8, time=lambda ranks, size: 2 * sum_us(ranks, size)).splitlines(keepends=True)
        self.put("all_reduce_again.log", "".join(filter(is_kept, again)))
        self.put("all_gather.log", log(4))
        out = self.good("profile", "--import", "all_reduce_again.log", "all_gather.log", "--cluster", "c.yaml", "--out", "d.yaml")
        self.assertIn("kept:     measured times of 2 groups of c, which these logs do not have", out)
        before, after = measured("c.yaml"), measured("d.yaml")
        self.assertEqual(set(after), {*before, ("all_gather", 4)})
        for group, times in before.items():
            self.assertEqual(set(times), set(after[group]))
            for size, us in times.items():
                slower = 2 if group == ("all_reduce", 8) and size >= 2 ** 20 else 1
                self.assertAlmostEqual(after[group][size] / us, slower, delta=1e-3)

    def test_every_collective_has_a_cost(self):
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "resplit", "send", "size_exchange", "transfer",
                   "alltoall", "sendrecv_perf", "broadcast", "reduce", "gather", "scatter", "scatter_perf"):
            out = json.loads(self.good("simulate", "op", op, "--bytes", "1KiB..1MiB", "--ranks", "2", "--cluster",
                                       os.path.join(CLUSTERS, "h100-64x8.yaml"), "--json"))
            self.assertEqual(len(out), 11)
            self.assertTrue(all(math.isfinite(row["time_us"]) and row["time_us"] > 0 for row in out))

    def test_a_collective_has_the_interval_of_its_cluster(self):
        cluster = os.path.join(CLUSTERS, "mosaic-h100.yaml")
        with open(cluster, encoding="utf-8") as f:
            accuracy = yaml.safe_load(f)["accuracy"]
        op = ("simulate", "op", "all_reduce", "--bytes", "1MiB,64MiB", "--ranks", "16", "--cluster", cluster)
        for row in json.loads(self.good(*op, "--json")):
            for end in ("low", "high"):
                self.assertAlmostEqual(row["interval"][f"{end}_us"], accuracy[end] * row["time_us"], delta=0.01)
        self.assertIn("\ninterval of each: -", self.good(*op))

    def test_links_have_the_error_of_times_that_were_kept_back(self):
        op = ("simulate", "op", "all_reduce", "--bytes", "64MiB", "--json", "--cluster", "c.yaml", "--ranks")
        told = json.loads(self.good("profile", "--import", *self.logs(), "--out", "c.yaml", "--json"))
        worst = max(error["worst"] for error in told["held_out"])
        for ranks in ("4", "8"):
            (row,) = json.loads(self.good(*op, ranks))
            self.assertIn("greatest error of the links", row["interval"]["why"])
            self.assertAlmostEqual(row["interval"]["high_us"] / row["time_us"], 1 + worst, delta=1e-3)
        # These logs have nothing between nodes: there the file's interval counts.
        (row,) = json.loads(self.good(*op, "16"))
        self.assertIn("published steps of A100", row["interval"]["why"])

    def test_errors_on_steps_of_another_device_are_not_kept(self):
        def accuracy(logs, *more):
            self.good("profile", "--import", *logs, *more, "--out", "c.yaml")
            with open(os.path.join(self.box.name, "c.yaml"), encoding="utf-8") as f:
                return yaml.safe_load(f).get("accuracy")

        self.assertEqual(accuracy(self.logs())["device"], "A100")
        others = [self.put(f"all_reduce_amd_{n}.log", log(n).replace("A100-SXM4-40GB", "AMD Instinct MI300X")) for n in (2, 4, 8)]
        self.assertIsNone(accuracy(others))
        self.assertIsNone(accuracy(others, "--cluster", os.path.join(CLUSTERS, "h100-64x8.yaml")))
        self.assertIn("names no errors", self.good("simulate", "op", "all_reduce", "--bytes", "1MiB", "--ranks", "16", "--cluster", "c.yaml"))

    def test_a_log_that_lacks_its_last_rank(self):
        lines = log(8).splitlines(keepends=True)
        bad = self.put("all_reduce_8.log", "".join(line for line in lines if "Rank  7" not in line))
        self.refused("busbw over algbw is 1.750, as for all_reduce on 8 ranks, and there are lines of 7 ranks",
                     "profile", "--import", bad, "--out", "c.yaml")

    def test_too_few_sizes_are_told(self):
        """Half of four sizes are too few to fit: that these scale badly says nothing of the log."""
        def is_kept(line):
            return line.startswith("#") or int(line.split()[0]) in (2 ** 10, 2 ** 14, 2 ** 18, 2 ** 22)

        few = self.put("all_reduce_8.log", "".join(filter(is_kept, log(8).splitlines(keepends=True))))
        r = self.hocket("profile", "--import", few, "--out", "c.yaml")
        self.assertEqual(r.returncode, 0, r.stderr)
        self.assertIn("fewer than four times show its links, too few to fit", r.stderr)
        self.assertNotIn("one cluster", r.stderr)

    def test_every_shipped_cluster_predicts(self):
        for name in sorted(os.listdir(CLUSTERS)):
            out = self.good("simulate", "op", "all_reduce", "--bytes", "1KiB,64MiB", "--cluster",
                            os.path.join(CLUSTERS, name), "--all-ways")
            # A cluster of one device has no all-reduce.
            self.assertIn("none" if "of 1 rank" in out else "ring", out, name)

    def test_what_cannot_be_used_is_told(self):
        bad = self.put("bad.log", "no log\n")
        logs = self.logs()
        out = self.good("profile", "--import", bad, logs[0], logs[1], "--out", "c.yaml")
        self.assertIn("left out: [bad.log] has no measurement", out)
        self.refused("none of the 1 file can be read", "profile", "--import", bad)
        self.refused("got no FILE", "profile", "--import")
        self.refused("go with --import", "profile", logs[0], "--op", "all_reduce")
        self.refused("expected one, or --import", "profile", *logs)
        self.refused("keeps back all there is", "profile", "--import", logs[0], "--hold-out", "2")
        self.refused("expected numbers of ranks", "profile", "--import", logs[0], "--hold-out", "x")
        self.refused("expected an op", "profile", "--import", logs[0], "--op", "broadcasts")
        self.refused("--out] none/c.yaml cannot be written: No such file", "profile", "--import", logs[0], "--out",
                     "none/c.yaml")
        cluster = os.path.join(CLUSTERS, "a100-16x8.yaml")
        op = ("simulate", "op", "--cluster", cluster)
        self.refused("there is no cost of 'hypercube'", *op, "hypercube", "--bytes", "1MiB")
        self.refused("got no --bytes", *op, "all_reduce")
        self.refused("--bytes has", *op, "all_reduce", "--bytes", "0")
        self.refused("expected the smaller size first", *op, "all_reduce", "--bytes", "2KiB..1KiB")
        self.refused("try --set nodes=17", *op, "all_reduce", "--bytes", "1", "--ranks", "129")
        self.refused("at most the 8 devices", *op, "all_reduce", "--bytes", "1", "--per-node", "9")
        self.refused("unexpected argument 'run.yaml'", *op, "all_reduce", "run.yaml")
        self.refused("goes with all_reduce", *op, "all_gather", "--bytes", "1MiB", "--codec", "int8")
        self.refused("expected one of", *op, "all_reduce", "--bytes", "1MiB", "--codec", "int7")
        self.refused("equally many on each node", *op, "all_reduce", "--bytes", "1MiB", "--codec", "int8", "--ranks", "12")
        with open(os.path.join(CLUSTERS, "modelzoo-h100.yaml"), encoding="utf-8") as f:
            text = f.read()
        for known, unknown in (("[sumexp]", "[sumexps]"), ("[nll]", "[loss]")):
            self.assertIn(known, text)
            ops = self.put("ops.yaml", text.replace(known, unknown))
            self.refused("expected a registered op", "simulate", "op", "--cluster", ops, "all_reduce", "--bytes", "1")
        self.refused("unknown option '--bytes'", "simulate", "run.yaml", "--bytes", "1MiB")

    def test_sums_through_a_codec(self):
        op = ("simulate", "op", "all_reduce", "--codec", "int8", "--bytes", "4KiB,64MiB", "--cluster")
        pcie = os.path.join(CLUSTERS, "v100-pcie-25g.yaml")
        small, large = json.loads(self.good(*op, pcie, "--json"))
        self.assertLess(large["time_us"], large["plain_us"])
        self.assertIn("encode", large["way"])
        self.assertNotIn("encode", large["plain_way"])
        self.assertLessEqual(small["time_us"], small["plain_us"])
        self.assertIn("the fastest of 4341 ways", self.good(*op, pcie))
        # One node has one level. The other cluster does not describe its hosts, so no way encodes there.
        self.assertIn("the fastest of 63 ways", self.good(*op, pcie, "--ranks", "8"))
        self.assertIn("of hosts the cluster says nothing", self.good(*op, os.path.join(CLUSTERS, "a100-16x8.yaml")))

    def test_what_a_log_does_not_say_is_told_apart_from_what_is_left_out(self):
        unnamed = [self.put(f"{n}.log", log(n)) for n in (2, 4)]
        out = self.good("profile", "--import", *unnamed, "--out", "c.yaml")
        self.assertIn("assumed:  2.log: no word on which collective it is: taken for all_reduce", out)
        self.assertNotIn("left out", out)

    def test_a_log_that_is_cut_off_or_too_short(self):
        text = log(8)
        row = text.index("     1048576")
        cut = self.put("cut_8.log", text[:row + 70])
        out = self.good("profile", "--import", cut, "--op", "all_reduce", "--out", "c.yaml")
        self.assertIn("1 line that cannot be read", out)
        with open(os.path.join(self.box.name, "c.yaml"), encoding="utf-8") as f:
            self.assertNotIn("1048576", f.read())
        # Three times of one group do not determine a link, and no file is written.
        short = self.put("all_reduce_8.log", "".join(line + "\n" for line in text.splitlines()[:3 + 8 + 1 + 3]))
        self.refused("nothing can be fitted to 3 times", "profile", "--import", short, "--out", "none.yaml")
        self.assertFalse(os.path.exists(os.path.join(self.box.name, "none.yaml")))

    def test_an_absurd_fit_is_warned_of(self):
        logs = self.logs() + [self.put("all_reduce_16.log", log(16, 2, lambda n, s: 1e-3 * sum_us(n, s)))]
        r = self.hocket("profile", "--import", *logs, "--hold-out", "16", "--out", "c.yaml")
        self.assertIn("one cluster, or not times", r.stderr)

    def test_a_cluster_of_other_devices_is_warned_of(self):
        for cluster, warned in (("h100-64x8.yaml", True), ("azure-nd-a100-v4.yaml", False)):
            r = self.hocket("profile", "--import", *self.logs(), "--cluster", os.path.join(CLUSTERS, cluster),
                            "--out", "c.yaml")
            self.assertEqual(r.returncode, 0, r.stderr)
            self.assertEqual("the logs are of A100-SXM4-40GB" in r.stderr, warned, r.stderr)

    def test_from_and_to_one_rank(self):
        """Two nodes of 8 with an adapter per device: a chain passes its payload through all adapters, a rooted
        collective sends all parts through the root's."""
        def of(op, *more):
            (row,) = json.loads(self.good("simulate", "op", op, "--bytes", "1GiB", "--ranks", "16", "--cluster",
                                          os.path.join(CLUSTERS, "h100-64x8.yaml"), "--json", *more))
            return row
        self.assertEqual(of("broadcast")["algorithm"], "chain")
        self.assertEqual(of("broadcast")["data_us"], of("reduce")["data_us"])
        # An all_reduce around a ring passes nearly twice as much.
        self.assertAlmostEqual(of("all_reduce")["data_us"] / of("broadcast")["data_us"], 2 * 15 / 16, delta=0.01)
        self.assertEqual((of("scatter")["algorithm"], of("scatter")["busiest"]), ("rooted", "inter"))
        # Half of the parts leave the root's node, through one adapter of the eight.
        self.assertEqual(of("gather")["data_us"], of("scatter")["data_us"])
        self.assertAlmostEqual(of("gather")["data_us"] / of("broadcast")["data_us"], 0.5 * 8, delta=0.05)
        # With one adapter per node, an all-to-all takes eight times as long as a scatter.
        one = ("--set", "topology.adapters_per_node=1")
        self.assertAlmostEqual(of("all_to_all", *one)["data_us"] / of("gather", *one)["data_us"], 8, delta=0.01)

    def test_a_collective_of_this_machine_and_of_slow_links(self):
        op = ("simulate", "op", "all_reduce", "--bytes", "1MiB")
        self.assertIn("on 1 node of local", self.good(*op, "--ranks", "4"))
        self.assertIn("all_reduce of", self.good(*op))
        self.refused("expected --cluster with it", *op, "--set", "nodes=2")
        box = self.good(*op, "--cluster", os.path.join(CLUSTERS, "box-4x2.yaml"))
        self.assertIn(" MB/s", box)
        self.assertNotIn(" 0.00 ", box)

    def test_launchers_and_tables(self):
        prefixed = self.put("nccl_16.log", log(16, 2, lambda n, s: sum_us(n, s) * 2, "[1,0]<stdout>:"))
        rows = "".join(f"{i},{sum_us(4, s) * 1e-3},0,4,{s},all_reduce,4,8\n"
                       for i, s in enumerate(range(4096, 2 ** 22, 4096)))
        table = self.put("all_reduce.csv", ",time_stats.all_reduce.median,rank,num_workers,size,collective,"
                         "devices_per_node,max_devices_per_node\n" + rows)
        told = json.loads(self.good("profile", "--import", prefixed, table, "--op", "all_reduce", "--out", "c.yaml", "--json"))
        self.assertEqual(told["fitted"], ["links.intra", "links.inter"])
        by_size = [e for e in told["held_out"] if e["predicted_from"] == "other sizes"]
        self.assertEqual({(e["ranks"], e["nodes"]) for e in by_size}, {(16, 2), (4, 1)})
        self.assertLess(max(e["mean"] for e in by_size), 0.05)


if __name__ == "__main__":
    unittest.main()
