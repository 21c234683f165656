// SPDX-License-Identifier: Apache-2.0
// Reports: step time, breakdown, memory, MFU, provenance and notes of small programs on small
// clusters; text, JSON and trace agree.
#include "sim/simulator.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "sim/interval.h"
#include "sim/report_text.h"
#include "sim/sim_trace.h"
#include "tests/cluster_util.h"
#include "tests/sim/sim_util.h"

namespace hocket::sim {
namespace {

using cost::Cluster;
using cost::CostModel;

/// Returns two nodes of two devices, with 1 MB of memory and slow links.
Cluster toy() {
  Cluster c = test::cluster_of(2, 2);
  c.name = "toy";
  c.device.name = "toy device";
  c.device.memory.value = 1e6;
  c.links.intra = test::link_of(1e-6, 1e9);
  c.links.inter = test::link_of(10e-6, 100e6);
  return c;
}

/// Two stages x two ranks: a product of 10 MFLOP (10 us) on each, 1 kB between stages, 1 kB
/// all-reduce over dp afterwards.
Program two_by_two() {
  Maker m({{"pp", 2}, {"dp", 2}});
  const TaskId f = m.work(0, "linear", 1);
  m.send(0, +1, 0, 1, {f});
  m.collective(0, {"dp"}, 1, {f});
  const TaskId x = m.recv(1, -1, 0);
  const TaskId g = m.work(1, "linear", 1, {x});
  m.collective(1, {"dp"}, 1, {g});
  for (program::Kind& k : m.p.kinds) {
    k.attrs = {};
    k.in = {{graph::DType::f32, {250}}};
    if (k.op == "linear") {
      k.flops = 10e6;
    }
    k.bytes = 1000;
  }
  for (auto& c : m.p.classes) {
    program::Buffer weights;
    weights.kind = program::BufferKind::persistent;
    weights.name = "w";
    weights.type = {graph::DType::f32, {1000 + 249000 * c.box[0].begin}};
    c.buffers.push_back(weights);
  }
  return m.p;
}

TEST(Simulator, HeterogeneousNodesRunAtTheirOwnSpeed) {
  // Stage 1 is node 1, at half the speed and a quarter of the bandwidth. Its product takes 20 us,
  // the send between both 10 us + 1 kB at 25 MB/s = 50 us. Its all-reduce takes 2 x 1 us + 1 kB at
  // 250 MB/s.
  const Program p = two_by_two();
  cost::Cluster cluster = toy();
  const std::string yaml =
      to_yaml(cluster) + "heterogeneous_nodes: [{first: 1, speed: 0.5, bandwidth: 0.25}]\n";
  cluster = cost::parse_cluster(yaml, "toy.yaml");
  const CostModel costs(cluster, std::nullopt, 1);
  Replay replay;
  const SimReport r = simulate(p, costs, {}, &replay);
  EXPECT_EQ(r.step_ns, 10000 + 50000 + 20000 + 6000);
  EXPECT_EQ(r.replayed_ranks, 2);  // ranks of a stage are equivalent
  EXPECT_EQ(r.time[0].time.compute_ns, 10000);
  EXPECT_EQ(r.time[1].time.compute_ns, 20000);
  EXPECT_NEAR(r.peak_flops, 0.75e12, 1);
  EXPECT_EQ(r.provenance.analytic, 1);

  // Ranks of one class on different nodes are in two groups, and wait for the slowest.
  Maker m({{"dp", 4}});
  const TaskId f = m.work(0, "linear", 1);
  m.collective(0, {"dp"}, 1, {f});
  for (program::Kind& k : m.p.kinds) {
    k.attrs = {};
    k.in = {{graph::DType::f32, {250}}};
    k.flops = k.op == "linear" ? 10e6 : 0;
    k.bytes = 1000;
  }
  const SimReport even = simulate(m.p, CostModel(toy(), std::nullopt, 1), {});
  const SimReport uneven = simulate(m.p, costs, {});
  EXPECT_EQ(even.replayed_ranks, 1);
  EXPECT_EQ(uneven.replayed_ranks, 2);
  EXPECT_EQ(uneven.time[0].time.compute_ns, 10000);
  EXPECT_EQ(uneven.time[1].time.compute_ns, 20000);
  EXPECT_GT(uneven.step_ns, even.step_ns + 10000);
  // The same as if all nodes were slow, except for their products.
  cost::Cluster slow = cluster.homogeneous(1);
  slow.device.peak = toy().device.peak;
  const SimReport all_slow = simulate(m.p, CostModel(slow, std::nullopt, 1), {});
  EXPECT_EQ(uneven.step_ns, all_slow.step_ns + 10000);
}

TEST(Simulator, HostBuffersCountAsMemoryOfThreads) {
  const Program p = two_by_two();
  SimOptions options;
  options.memory = std::vector<program::Memory>(p.classes.size());
  for (program::Memory& memory : options.memory) {
    memory.persistent = 900'000;
    memory.host = 200'000;
  }
  cost::Cluster cluster = toy();
  EXPECT_TRUE(simulate(p, CostModel(cluster, std::nullopt, 1), options).fits());
  cluster.cores_per_node = 2;
  const SimReport threads = simulate(p, CostModel(cluster, std::nullopt, 1), options);
  EXPECT_FALSE(threads.fits());
  const std::string notes = join(threads.notes, "\n");
  EXPECT_NE(notes.find("needs 1.05 MiB of 977 KiB"), std::string::npos) << notes;
}

TEST(Simulator, OnlyTheCpuHasCopiesOfShortOperands) {
  Program p = two_by_two();
  for (program::Kind& kind : p.kinds) {
    if (kind.op != "linear") continue;
    kind.in = {{graph::DType::bf16, {512, 64}}, {graph::DType::bf16, {32, 64}}};
    kind.out = {{graph::DType::bf16, {512, 32}}};
    kind.attrs = {};
    kind.workspace = 1 << 20;
  }
  for (program::RankClass& cls : p.classes) {
    for (program::Task& task : cls.tasks) {
      task.workspace = p.kind(task).op == "linear" ? 0 : program::kNone;
    }
  }
  cost::Cluster cluster = toy();
  cluster.device.peak.bf16 = cluster.device.peak.f32;
  const SimReport gpus = simulate(p, CostModel(cluster, std::nullopt, 1), {});
  cluster.cores_per_node = 2;
  const SimReport threads = simulate(p, CostModel(cluster, std::nullopt, 1), {});
  const int64_t copies = (512 * 64 + 32 * 64 + 512 * 32) * 4;
  EXPECT_EQ(threads.memory[0].step_buffers, 1 << 20);
  EXPECT_LE(gpus.memory[0].step_buffers, (1 << 20) - copies);
  EXPECT_EQ(gpus.kernels, program::Kernels::native);
}

TEST(Simulator, ReportsTimesAndMemoryOfTwoStages) {
  const Program p = two_by_two();
  const CostModel costs(toy(), std::nullopt, 1);
  SimOptions o;
  o.model_flops = 4 * 10e6;
  o.tokens = 100;
  Replay replay;
  const SimReport r = simulate(p, costs, o, &replay);
  // Stage 0 is node 0, stage 1 node 1. Product 10 us; the send crosses nodes: 10 us + 1 kB at 0.1
  // GB/s = 20 us; product 10 us; all-reduce over the 2 of a node: 2 x 1 us + 1 kB at 1 GB/s = 3 us.
  EXPECT_EQ(r.step_ns, 10000 + 20000 + 10000 + 3000);
  EXPECT_EQ(r.ranks, 4);
  EXPECT_EQ(r.replayed_ranks, 2);
  EXPECT_EQ(r.tasks, 12);
  ASSERT_EQ(r.time.size(), 2u);
  EXPECT_EQ(r.time[0].multiplicity, 2);
  EXPECT_EQ(r.time[0].time.compute_ns, 10000);
  // Send and all-reduce have separate lanes, and overlap.
  EXPECT_EQ(r.time[0].time.exposed_ns, 20000);
  EXPECT_EQ(r.time[0].time.bubble_ns, 13000);
  EXPECT_EQ(r.time[0].time.idle_ns, 0);
  EXPECT_EQ(r.time[1].time.exposed_ns, 23000);
  EXPECT_EQ(r.time[1].time.bubble_ns, 10000);
  EXPECT_NEAR(r.tokens_per_s, 100 / 43e-6, 1);
  EXPECT_NEAR(r.mfu, 40e6 / 43e-6 / 4 / 1e12, 1e-12);
  EXPECT_FALSE(r.calibrated);
  EXPECT_EQ(r.provenance.analytic, 1);
  EXPECT_FALSE(r.fits());                       // stage 1 needs 1.004 MB of 1 MB
  EXPECT_EQ(r.memory[0].total(), 4096 + 1000);  // weights, and a message on its way
  EXPECT_EQ(r.memory[1].total(), 245 * 4096);
  ASSERT_EQ(r.path.size(), 3u);
  EXPECT_EQ(r.path_ns, r.step_ns);
  EXPECT_EQ(r.path[0].op, "linear");
  EXPECT_EQ(r.path[0].count, 2);
  EXPECT_EQ(r.path[0].ns, 20000);
  EXPECT_EQ(r.path[1].op, "send");
  EXPECT_EQ(r.path[2].ns, 3000);

  const std::string text = to_text(p, r);
  for (const char* part :
       {"(uncalibrated)", "43 us", "rank", "x2", "MFU 23.3 %", "DOES NOT FIT",
        "does not fit: stage 1", "ranks_per_node=2", "100.0 % analytic", "Not modelled",
        "Critical path", "toy gives no source for device.memory"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  const auto json = nlohmann::json::parse(to_json(p, r));
  EXPECT_EQ(json["step_ns"], 43000);
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["breakdown"].size(), 2u);
  EXPECT_EQ(json["memory"][0]["messages"], 1000);
  EXPECT_EQ(json["memory"][1]["planned"], 245 * 4096);
  EXPECT_EQ(json["provenance"]["analytic"], 1.0);

  // Replaying every rank gives the same.
  SimOptions all = o;
  all.all_ranks = true;
  const SimReport a = simulate(p, costs, all);
  EXPECT_EQ(a.step_ns, r.step_ns);
  EXPECT_EQ(a.replayed_ranks, 4);
  EXPECT_EQ(a.provenance.analytic, 1);
  // A repeated run gives the same, to the byte.
  EXPECT_EQ(to_json(p, simulate(p, costs, o)), to_json(p, r));
}

/// A rank of several cores has their combined peak.
TEST(Simulator, MfuCountsAllCoresOfARank) {
  Cluster c = toy();
  c.cores_per_node = 8;
  SimOptions o;
  o.model_flops = 4 * 10e6;
  const SimReport r = simulate(two_by_two(), CostModel(c, std::nullopt, 4), o);
  EXPECT_EQ(r.peak_flops, 4e12);
  EXPECT_NEAR(r.mfu, 40e6 / (static_cast<double>(r.step_ns) * 1e-9) / 4 / 4e12, 1e-12);
}

TEST(Simulator, TraceHasEveryTaskAndItsFlows) {
  Program p = two_by_two();
  program::Buffer b;
  b.type = {graph::DType::f32, {250}};
  p.classes[0].buffers = {b};
  p.classes[0].tasks[0].out = {0};
  p.classes[0].tasks[1].in = {0};
  const CostModel costs(toy(), std::nullopt, 1);
  SimOptions o;
  o.all_ranks = true;
  Replay replay;
  simulate(p, costs, o, &replay);
  const trace::Trace t = to_trace(p, replay);
  EXPECT_EQ(t.source, "simulation");
  EXPECT_EQ(t.num_ranks, 4);
  ASSERT_EQ(t.events.size(), 12u);
  std::map<int64_t, std::vector<const trace::TraceEvent*>> flows;
  std::map<int32_t, int> groups;
  int64_t end = 0;
  for (const auto& e : t.events) {
    if (e.flow) {
      flows[e.flow].push_back(&e);
    }
    if (e.group >= 0) {
      ++groups[e.group];
    }
    end = std::max(end, e.end_ns);
  }
  EXPECT_EQ(end, 43000);
  ASSERT_EQ(flows.size(), 2u);
  for (const auto& [id, ends] : flows) {
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_EQ(ends[0]->flow_end, trace::FlowEnd::out);
    EXPECT_EQ(ends[1]->flow_end, trace::FlowEnd::in);
    EXPECT_EQ(ends[1]->rank - ends[0]->rank, 2);
  }
  EXPECT_EQ(groups.size(), 2u);
  for (const auto& [id, n] : groups) {
    EXPECT_EQ(n, 2);
  }
  // The buffer lives from the product's start to the send's end, on both ranks of stage 0.
  ASSERT_EQ(t.memory.size(), 4u);
  EXPECT_EQ(t.memory[0].bytes, 1000);
  EXPECT_EQ(t.memory[0].t_ns, 0);
  EXPECT_EQ(t.memory[1].bytes, 0);
  EXPECT_EQ(t.memory[1].t_ns, 30000);
}

TEST(Simulator, ProvenanceIsWeightedByTime) {
  const Program p = two_by_two();
  cost::Profile profile;
  for (const auto& target : cost::distinct_tasks(p)) {
    profile.tasks.push_back({target.key, "linear", "f32", 10e6, 1000, 30000, 0.01});
  }
  profile.device = "toy device";
  profile.links["intra"] = {1000, 1e9};
  const SimReport r = simulate(p, CostModel(toy(), profile, 1), {});
  // Per dp column: 2 products of 30 us timed; all-reduces 2 x 3 us fitted; one send 20 us analytic.
  EXPECT_TRUE(r.calibrated);
  EXPECT_NEAR(r.provenance.timed, 60.0 / 86, 1e-12);
  EXPECT_NEAR(r.provenance.interpolated, 6.0 / 86, 1e-12);
  EXPECT_NEAR(r.provenance.analytic, 20.0 / 86, 1e-12);
  EXPECT_EQ(to_text(p, r).find("uncalibrated"), std::string::npos);
  // Timed tasks are 1 % off; links and analytic times have the ends of a file without errors.
  EXPECT_NEAR(r.provenance.judged, 60.0 / 86, 1e-12);
  EXPECT_NEAR(1.0 * r.interval.low_ns / r.step_ns, 1 - (60 * 0.01 + 26 * 0.3) / 86, 1e-4);
  EXPECT_NEAR(1.0 * r.interval.high_ns / r.step_ns, 1 + (60 * 0.01 + 26 * 1.6) / 86, 1e-4);
  EXPECT_TRUE(r.interval.timed);
  EXPECT_NE(r.interval.why.find("+-1.0 % over 70 % of the time; -30 to +160 % over the rest"),
            std::string::npos)
      << r.interval.why;
}

/// 43 us of tasks on four devices: at 0.5 of their speed 86 us, and 14 us between steps.
TEST(Simulator, AddsTheTimeOfTheFrameworkAndGivesAnInterval) {
  const Program p = two_by_two();
  Cluster c = toy();
  c.framework.step = {14e-6, "s"};
  c.framework.speed_by_devices = {"s", {1, 4}, {1, 0.5}};
  c.accuracy = {"datasheet", 0.8, 1.25, {}, {"a", "b"}, 0, 0.125, "s"};
  SimOptions o;
  o.tokens = 100;
  o.what_if = {{"linear", 2}};
  const SimReport r = simulate(p, CostModel(c, std::nullopt, 1), o);
  EXPECT_EQ(r.step_ns, 100000);
  EXPECT_EQ(r.framework_ns, 57000);
  EXPECT_NEAR(r.tokens_per_s, 100 / 100e-6, 1);
  EXPECT_EQ(r.what_if[0].step_ns, 2 * 33000 + 14000);
  EXPECT_EQ(r.interval.low_ns, 80000);
  EXPECT_EQ(r.interval.high_ns, 125000);
  for (const RankReport& row : r.time) {
    EXPECT_EQ(row.time.compute_ns + row.time.exposed_ns + row.time.bubble_ns + row.time.idle_ns,
              r.step_ns);
  }
  const std::string text = to_text(p, r);
  for (const char* part :
       {"80 us to 125 us (-20 to +25 %: a datasheet", "12.5 % off on 2 published",
        "57 us the trainer's", "(200 k to 312 k)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  const auto json = nlohmann::json::parse(to_json(p, r));
  EXPECT_EQ(json["interval"]["low_s"], 80e-6);
  EXPECT_EQ(json["interval"]["timed"], false);
  EXPECT_EQ(json["framework_s"], 57e-6);
  // A file without errors has an interval, too, and a wider one.
  const SimReport bare = simulate(p, CostModel(toy(), std::nullopt, 1), o);
  EXPECT_EQ(bare.step_ns, 43000);
  EXPECT_LT(1.0 * bare.interval.low_ns / bare.step_ns, 0.8);
  EXPECT_GE(1.0 * bare.interval.high_ns / bare.step_ns, 2.6);
  EXPECT_NE(bare.interval.why.find("up to 2.6 times too fast"), std::string::npos)
      << bare.interval.why;
}

/// The ground of an interval names what is unlike all published steps.
TEST(Simulator, IntervalsNameWhatIsUnlikeThePublishedSteps) {
  Cluster c = toy();
  c.device.name = "B200";
  c.accuracy = {"datasheet", 0.8, 1.25, {}, {"a"}, 0, 0.1, "s", "H100", 64};
  c.accuracy.in_view = true;
  const auto why = [&](int64_t ranks, bool experts) {
    const Interval interval = interval_of(c, {}, {1000000, ranks, experts});
    EXPECT_EQ(interval.low_ns, 800000);
    EXPECT_EQ(interval.high_ns, 1250000);
    return interval.why;
  };
  const auto expect_in = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect_in(why(64, false), "1 published step of H100 in view while the file was made");
  expect_in(why(64, false), "none of these steps is on B200");
  expect_in(why(64, true), "none of these steps is on B200, nor with experts");
  c.device.name = "NVIDIA H100 80GB HBM3";
  EXPECT_EQ(why(256, false).find("none of"), std::string::npos);
  expect_in(why(4096, false), "none of these steps is on more than 64 ranks");
  expect_in(why(8, true), "none of these steps is with experts");
  c.accuracy.experts = true;
  EXPECT_EQ(why(8, true).find("none of"), std::string::npos);
}

/// A collective has the error of its links, if that is of groups as large.
TEST(Simulator, CollectivesHaveTheIntervalOfTheirLinks) {
  Cluster c = toy();
  c.links.intra.held_out = {0.05, 0.1, 8, "s"};
  cost::GroupShape shape;
  shape.members = shape.per_node = 8;
  const Interval known = interval_of_collective(c, shape, {1000000, 8});
  EXPECT_EQ(known.low_ns, 900000);
  EXPECT_EQ(known.high_ns, 1100000);
  EXPECT_NE(known.why.find("5.0 % in the mean"), std::string::npos) << known.why;
  shape.members = 16;
  shape.nodes = 2;
  EXPECT_EQ(interval_of_collective(c, shape, {1000000, 16}).low_ns, 700000);
}

/// Nodes of another file, with wider errors, no price, and a host that launches tasks in another
/// time.
TEST(Simulator, NodesOfAnotherFileCountInIntervalPriceAndNotes) {
  const Program p = two_by_two();
  Cluster c = toy();
  c.accuracy = {"fitted", 0.95, 1.05, {"a"}, {}, 0.02, 0, "s"};
  c.device.price.value = 2;
  cost::NodeGroup& other = c.heterogeneous_nodes.emplace_back();
  other.first = 1;
  other.cluster = "other.yaml";
  other.device = c.device;
  other.links = c.links;
  other.accuracy = {"datasheet", 0.8, 1.25, {}, {}, 0, 0, "s"};
  SimOptions o;
  o.tokens = 100;
  const auto report = [&] { return simulate(p, CostModel(c, std::nullopt, 1), o); };
  const SimReport r = report();
  EXPECT_NEAR(1.0 * r.interval.low_ns / r.step_ns, 0.8, 1e-4);
  EXPECT_NEAR(1.0 * r.interval.high_ns / r.step_ns, 1.25, 1e-4);
  EXPECT_NE(r.interval.why.find("fitted to 1 published step"), std::string::npos);
  EXPECT_NE(r.interval.why.find("nodes of other.yaml: a datasheet"), std::string::npos);
  EXPECT_EQ(r.price, 2);
  EXPECT_EQ(join(r.notes, "\n").find("host_launch"), std::string::npos);
  other.device.price.value = 0;
  other.device.host_launch.value = 1e-6;
  const SimReport without = report();
  EXPECT_EQ(without.price, 0);
  EXPECT_EQ(without.dollars_per_m_tokens, 0);
  EXPECT_NE(join(without.notes, "\n").find("nodes of other.yaml have another device.host_launch"),
            std::string::npos);
  // Where no rank is on them, they do not count.
  other.first = 0;
  other.accuracy = {"fitted", 0.9, 1.1, {"a"}, {}, 0.02, 0, "s"};
  other.count = 2;
  EXPECT_NEAR(1.0 * report().interval.low_ns / r.step_ns, 0.9, 1e-4);
}

/// Stage 1 plans 1,003,520 bytes of 1,100,000.
TEST(Simulator, ReservedMemoryCannotBePlanned) {
  const Program p = two_by_two();
  Cluster c = toy();
  c.device.memory.value = 1100000;
  const auto fits = [&] { return simulate(p, CostModel(c, std::nullopt, 1), {}).fits(); };
  EXPECT_TRUE(fits());  // stage 1 needs 1,003,520
  c.device.reserve.context.value = 50000;
  EXPECT_TRUE(fits());
  c.device.reserve.communicators.value = 50000;
  EXPECT_FALSE(fits());
  c.device.reserve = {};
  c.device.reserve.fragmentation.value = 0.1;
  EXPECT_FALSE(fits());  // 1.1 of them are more than 1,100,000
  const SimReport r = simulate(p, CostModel(c, std::nullopt, 1), {});
  EXPECT_EQ(r.device_memory[1], 1000000);
  EXPECT_EQ(r.memory_reserve, 100000);
  EXPECT_EQ(r.memory_with_reserve[1], 1103872);  // 1.1 of 1,003,520
  EXPECT_EQ(nlohmann::json::parse(to_json(p, r))["device_memory_bytes"], 1100000);
  EXPECT_EQ(nlohmann::json::parse(to_json(p, r))["memory"][1]["with_reserve"], 1103872);
  EXPECT_NE(r.memory_limit_text().find("beside a reserve of"), std::string::npos);
}

/// 1 MiB lives at the loss, 4 MiB later, at the same addresses. 200,000 logits of 14 bytes are less
/// than the difference, of 20 bytes more.
TEST(Simulator, LogitsAreBesideWhatLivesAtTheLoss) {
  Maker m({{"dp", 1}});
  for (const char* op : {"linear", "linear_cross_entropy", "linear_dx"}) {
    m.work(0, op, 1);
  }
  for (program::Kind& k : m.p.kinds) {
    k.attrs = {};
    k.in = {{graph::DType::bf16, {1000, 64}}, {graph::DType::bf16, {200, 64}}};
    k.bytes = 1000;
  }
  program::RankClass& cls = m.p.classes[0];
  for (const int64_t mib : {1, 4}) {
    program::Buffer buffer;
    buffer.kind = program::BufferKind::step;
    buffer.type = {graph::DType::f32, {mib << 18}};
    buffer.offset = 0;
    cls.buffers.push_back(buffer);
  }
  cls.tasks[0].out = cls.tasks[1].in = {program::BufferId(0)};
  cls.tasks[2].out = {program::BufferId(1)};
  Cluster c = toy();
  c.device.memory.value = 1 << 30;
  const auto taken = [&](double bytes_a_logit) {
    c.framework.logits.memory = {bytes_a_logit, "s"};
    const SimReport r = simulate(m.p, CostModel(c, std::nullopt, 1), {});
    EXPECT_EQ(r.memory[0].step_buffers, 4 << 20);
    EXPECT_EQ(r.memory_reserve, r.memory_with_reserve[0] - r.memory[0].total());
    return r.memory_with_reserve[0];
  };
  EXPECT_EQ(taken(14), 4 << 20);
  EXPECT_EQ(taken(20), (1 << 20) + 200000 * 20);
}

TEST(Simulator, RefusesMoreRanksThanTheClusterHas) {
  Maker m({{"pp", 1}, {"dp", 8}});
  m.work(0, "linear", 1);
  try {
    simulate(m.p, CostModel(toy(), std::nullopt, 1), {});
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_NE(std::string(e.what()).find("8 ranks"), std::string::npos);
  }
}

TEST(Simulator, ThreadsPerRank) {
  Program p = two_by_two();
  Cluster c = toy();
  c.cores_per_node = 8;
  EXPECT_EQ(threads_per_rank(p, c), 4);  // 2 ranks per node
  p.config = R"({"plan": {"threads_per_rank": 3}})";
  EXPECT_EQ(threads_per_rank(p, c), 3);
  p.config = R"({"plan": {"threads_per_rank": 0}})";
  EXPECT_EQ(threads_per_rank(p, c), 4);
  c.cores_per_node = 1;
  EXPECT_EQ(threads_per_rank(p, c), 1);
}

}  // namespace
}  // namespace hocket::sim
